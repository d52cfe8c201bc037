"""The jobs of a trace and their users, as the scheduler of a replay receives them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brim.core.arrays import IntArray
from brim.core.cluster import Cluster
from brim.core.events import JobSpec
from brim.core.trace import NONE, Trace
from brim.sim.feasibility import checked_types
from brim.sim.truths.truth import Truth


def specs_of(trace: Trace, cluster: Cluster, truth: Truth) -> list[JobSpec]:
    """Return the jobs as the scheduler receives them.

    Ids are row numbers of the trace, GPU types are codes of the cluster, and the truth sets the limits on sizes, within
    which a job keeps the sizes that the trace lists. In a cluster with one GPU type, the types that jobs ask for are
    ignored.

    Raises:
        ConfigError: a job could not run even on the empty cluster.
    """
    gpu_type = checked_types(trace, cluster)
    deadline_ms = np.where(
        trace.relative_deadline_ms == NONE, NONE, trace.submit_ms + trace.relative_deadline_ms
    )
    columns = (
        np.arange(len(trace)), user_codes(trace), trace.submit_ms, trace.gpus, trace.share_milli, trace.cpu_milli,
        trace.mem_mib, gpu_type, trace.time_limit_ms, trace.after, trace.priority, trace.job_class, deadline_ms,
        trace.gpu_util_milli, trace.gpu_mem_mib,
    )
    specs = [
        JobSpec(id=i, user=u, submit_ms=s, gpus=g, share_milli=h, cpu_milli=c, mem_mib=m, gpu_type=t,
                time_limit_ms=limit, after=after, priority=p, job_class=k, deadline_ms=d,
                gpu_util_milli=util, gpu_mem_mib=gpu_mem)
        for i, u, s, g, h, c, m, t, limit, after, p, k, d, util, gpu_mem in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    more = truth.columns()
    if not more:
        return specs
    rows = zip(*(column.tolist() for column in more.values()), strict=True)
    specs = [replace(spec, **dict(zip(more, row, strict=True))) for spec, row in zip(specs, rows, strict=True)]
    for row in np.flatnonzero(trace.size_list != NONE).tolist():
        specs[row] = _with_sizes(specs[row], trace.size_lists[trace.size_list[row]])
    return specs


def _with_sizes(spec: JobSpec, listed: tuple[int, ...]) -> JobSpec:
    """Restrict a job to the listed sizes within its limits; its own size is one of them."""
    least, most = spec.limits
    sizes = tuple(size for size in listed if least <= size <= most)
    return replace(spec, gpus_min=sizes[0], gpus_max=sizes[-1], sizes=sizes)


def user_names(trace: Trace) -> tuple[str, ...]:
    """Return the users of the trace, or its groups if it names no users; the last entry is for jobs with neither."""
    return (*(trace.groups if groups_stand_for_users(trace) else trace.users), "(not recorded)")


def user_codes(trace: Trace) -> IntArray:
    """Return the entry of ``user_names`` of each job (J,)."""
    owner = trace.group if groups_stand_for_users(trace) else trace.user
    return np.where(owner == NONE, len(user_names(trace)) - 1, owner)


def groups_stand_for_users(trace: Trace) -> bool:
    """Whether the trace names groups but no users."""
    return not trace.users and bool(trace.groups)
