"""What compiled placement code relies on: it has no bounds checks, and a wrong row would end the interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from brim.core.arrays import BoolArray, IntArray
from brim.core.checks import cores_milli
from brim.core.lifecycle import Phase
from brim.core.reasons import Why
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.errors import PlanError
from brim.units import WHOLE_GPU

_MOST: Final = 1 << 31
"""Above every size in GPUs; sums of so many stay within 64 bits."""


def check_inputs(snapshot: Snapshot, order: IntArray, gpus: IntArray) -> None:
    """Check the arguments of a place part, which another part may have made up or changed.

    Raises:
        PlanError: a column has another length or type than it should, or refers to what does not exist.
    """
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    size, width, types = len(jobs.phase), len(nodes.gpus), len(snapshot.gpu_types)
    for what, length, columns in (
        ("order", size, {"order": order}), ("sizes", size, {"gpus": gpus}),
        ("jobs", size, {name: getattr(jobs, name) for name in _JOBS}),
        ("nodes", width, {name: getattr(nodes, name) for name in _NODES}),
        ("grants", len(held.job), {name: getattr(held, name) for name in ("job", "node", "gpu")}),
    ):
        for name, column in columns.items():
            if type(column) is not np.ndarray or column.shape != (length,) or column.dtype != _KIND.get(name, np.int64):
                raise PlanError(f"{what}: column {name} is not the one that the round gave it")
    if nodes.withheld.size and nodes.withheld.shape != (width, int(nodes.gpus.max())):
        raise PlanError("nodes: column withheld is not the one that the round gave it")
    _check("order", (order >= 0) & (order < size))
    _check("order", np.bincount(order, minlength=size) == 1)
    _check("sizes", (gpus >= 0) & (gpus < _MOST))
    _check("nodes", (nodes.gpus >= 0) & (nodes.gpus < _MOST) & (nodes.gpu_type >= 0) & (nodes.gpu_type < types))
    _check("jobs", (jobs.gpu_type >= -1) & (jobs.gpu_type < types) & (jobs.cpu_milli >= 0) & (jobs.mem_mib >= 0))
    _check("grants", (held.job >= 0) & (held.job < size) & (held.node >= 0) & (held.node < width))
    _check("grants", (held.gpu >= 0) & (held.gpu < nodes.gpus[held.node]))
    holds = jobs.holds
    _check("grants", np.bincount(held.job, minlength=size) == np.where(holds, jobs.gpus_now, 0))
    share_milli = np.where(holds, jobs.share_now, jobs.share_milli)
    _check("jobs", (share_milli > 0) & (share_milli <= WHOLE_GPU))


def without_cpu_ranks(snapshot: Snapshot) -> Snapshot:
    """Set ranks on CPU aside: return the snapshot without them and without what they hold.

    The place parts of brim place ranks on GPUs. Ranks on CPU stay where they are as long as their job keeps GPUs. A job
    that has only ranks on CPU keeps them; in the snapshot returned it holds nothing.
    """
    jobs, held, nodes = snapshot.jobs, snapshot.grants, snapshot.nodes
    if not len(held) or held.gpu.min() >= 0:
        return snapshot
    on_cpu = held.gpu < 0
    job, node = held.job[on_cpu], held.node[on_cpu]
    cores = np.bincount(node, cores_milli(snapshot.jobs, job, held.gpu[on_cpu], None), len(nodes)).astype(np.int64)
    mem = np.bincount(node, snapshot.jobs.mem_mib[job], len(nodes)).astype(np.int64)
    rest = Grants(
        **{name: getattr(held, name)[~on_cpu] for name in ("job", "node", "gpu", "share_milli")}, why=held.why,
        blocker=held.blocker,
    )
    left = replace(nodes, cpu_milli=nodes.cpu_milli - cores, mem_mib=nodes.mem_mib - mem)
    phase = np.where(jobs.holds & (jobs.gpus_now == 0), int(Phase.STOPPING), jobs.phase)
    return replace(snapshot, jobs=replace(jobs, phase=phase), grants=rest, nodes=left)


def as_before(grants: Grants, snapshot: Snapshot) -> Grants:
    """Add the ranks on CPU that jobs keep to grants of GPUs, and mark what is revocable in the snapshot."""
    jobs, held = snapshot.jobs, snapshot.grants
    on_cpu = held.gpu < 0
    if on_cpu.any():
        stays = np.isin(held.job, grants.job) | (jobs.gpus_now == 0)[held.job]
        added = on_cpu & stays
        job, node = np.append(grants.job, held.job[added]), np.append(grants.node, held.node[added])
        gpu, share_milli = (
            np.append(has, np.full(int(added.sum()), value))
            for has, value in ((grants.gpu, -1), (grants.share_milli, 0))
        )
        why = grants.why.copy()
        why[job] = int(Why.RUNS)
        order = np.lexsort((gpu, node, job))
        grants = replace(
            grants, job=job[order], node=node[order], gpu=gpu[order], share_milli=share_milli[order], why=why
        )
    if not len(held.revocable):
        return grants
    return replace(grants, revocable=held.revocable_jobs(len(jobs))[grants.job])


_JOBS: Final = ("phase", "gpus_now", "share_now", "share_milli", "cpu_milli", "mem_mib", "gpu_type")
_NODES: Final = ("gpus", "gpu_type", "cpu_milli", "mem_mib", "is_open")
_KIND: Final = {"is_open": np.bool_}


def _check(what: str, right: BoolArray) -> None:
    if not right.all():
        raise PlanError(f"{what}: row {int(np.argmin(right))} refers to what does not exist, or is no possible value")
