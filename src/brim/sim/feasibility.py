"""Which jobs of a trace a cluster could run when empty, and which of its GPU types they ask for."""

from __future__ import annotations

import numpy as np

from brim.core.arrays import BoolArray, IntArray
from brim.core.cluster import Cluster
from brim.core.trace import NONE, Trace
from brim.errors import ConfigError
from brim.policies.place.free_resources import CONSOLIDATE, GangRequest, all_free, choose
from brim.policies.place.parts import NO_CLASSES
from brim.units import counted


def type_codes(trace: Trace, cluster: Cluster) -> IntArray:
    """Return the cluster's code for each GPU type of the trace; the last entry is for jobs that ask for none.

    Raises:
        ConfigError: the cluster does not have a type that a job asks for.
    """
    if len(cluster.gpu_types) == 1:
        return np.full(len(trace.gpu_types) + 1, NONE, dtype=np.int64)
    lacking = lacks_type(trace, cluster)
    if lacking.any():
        name = trace.gpu_types[trace.gpu_type[lacking.argmax()]]
        raise ConfigError(
            f"{trace.name}: jobs ask for GPU type {name!r}, but the cluster has {', '.join(cluster.gpu_types)}; "
            f"--drop-too-large leaves out jobs of types that it lacks ({lacking.sum()} of {len(trace)})"
        )
    types = [name.casefold() for name in cluster.gpu_types]
    codes = [types.index(name.casefold()) if name.casefold() in types else NONE for name in trace.gpu_types]
    return np.array([*codes, NONE], dtype=np.int64)


def lacks_type(trace: Trace, cluster: Cluster) -> BoolArray:
    """Return whether each job asks for a GPU type that the cluster lacks (J,); one type serves jobs of any type."""
    types = {name.casefold() for name in cluster.gpu_types}
    absent = [len(types) > 1 and name.casefold() not in types for name in trace.gpu_types]
    return np.array([*absent, False], dtype=np.bool_)[trace.gpu_type]


def checked_types(trace: Trace, cluster: Cluster) -> IntArray:
    """Return the code of the GPU type of each job (J,), once every job could run on the empty cluster.

    Raises:
        ConfigError: names the first job that could not, what it needs and what the cluster has; "needs", because a
            Slurm job may have been given more GPUs than it asked for.
    """
    gpu_type = type_codes(trace, cluster)[trace.gpu_type] if len(trace) else trace.gpu_type
    misfits = np.flatnonzero(~fits(trace, cluster, gpu_type))
    if not len(misfits):
        return gpu_type
    row = int(misfits[0])
    cpu, mem, code = int(trace.cpu_milli[row]), int(trace.mem_mib[row]), int(gpu_type[row])
    extras = [f"{cpu / 1000:g} cores each"] if cpu else []
    extras += [f"{mem / 1024:.4g} GB each"] if mem else []
    extras += [f"of type {cluster.gpu_types[code]}"] if code != NONE else []
    raise ConfigError(
        f"{trace.name}: job {trace.job_id[row]} needs {counted(int(trace.gpus[row]), 'GPU')}"
        f"{' with ' + ', '.join(extras) if extras else ''}, which cluster {cluster} "
        f"({counted(cluster.num_gpus, 'GPU')}) could "
        f"not give it even when empty; --drop-too-large leaves out such jobs ({len(misfits)} of {len(trace)})"
    )


def fits(trace: Trace, cluster: Cluster, gpu_type: IntArray) -> BoolArray:
    """Return whether each job could run on the empty cluster (J,)."""
    asks = (trace.gpus, trace.share_milli, trace.cpu_milli, trace.mem_mib, gpu_type)
    kind_of = np.zeros(len(trace), dtype=np.int64)
    for column in asks:  # number the distinct combinations, which is far cheaper than sorting rows of five
        if not len(column) or column.min() == column.max():
            continue
        codes, num_codes = _numbered(column - column.min())
        kind_of, _ = _numbered(kind_of * num_codes + codes)
    first_row = np.full(kind_of.max(initial=-1) + 1, -1, dtype=np.int64)
    first_row[kind_of[::-1]] = np.arange(len(kind_of) - 1, -1, -1)  # the last write, of the first row, stays
    everything: BoolArray = np.ones(cluster.num_nodes, dtype=np.bool_)
    free = all_free(cluster.gpu_type_N, cluster.gpus_N, cluster.cpu_milli_N, cluster.mem_mib_N, everything,
                      len(cluster.gpu_types))
    scratch = np.zeros((2, cluster.num_nodes), dtype=np.int64)
    pairs = np.empty((int(trace.gpus.max(initial=1)), 2), dtype=np.int64)
    kind_fits = np.array([
        choose(free, GangRequest(*(int(column[row]) for column in asks)), CONSOLIDATE, NO_CLASSES, scratch, pairs)
        for row in first_row.tolist()
    ], dtype=np.bool_)
    return kind_fits[kind_of]


def _numbered(values: IntArray) -> tuple[IntArray, int]:
    """Return the rank of each non-negative value among the distinct values, and the number of distinct values."""
    if values.max() < 1 << 20:
        rank = np.cumsum(np.bincount(values) > 0) - 1
        return rank[values], int(rank[-1]) + 1
    distinct, codes = np.unique(values, return_inverse=True)
    return codes, len(distinct)
