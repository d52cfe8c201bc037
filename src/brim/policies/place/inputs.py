"""What compiled placement code relies on: it has no bounds checks, and a wrong row would end the interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from brim.core.arrays import BoolArray, IntArray
from brim.core.checks import cores_milli
from brim.core.snapshot import Snapshot
from brim.core.tables import EMPTY, Grants
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


def without_cpu_ranks(snapshot: Snapshot) -> tuple[Snapshot, tuple[IntArray, IntArray]]:
    """Set ranks on CPU aside: return the snapshot without them and without what they hold, and their jobs and nodes.

    The place parts of brim place ranks on GPUs. Ranks on CPU stay where they are as long as their job keeps GPUs.
    """
    held, nodes = snapshot.grants, snapshot.nodes
    if not len(held) or held.gpu.min() >= 0:
        return snapshot, (EMPTY, EMPTY)
    on_cpu = held.gpu < 0
    job, node = held.job[on_cpu], held.node[on_cpu]
    cores = np.bincount(node, cores_milli(snapshot.jobs, job, held.gpu[on_cpu], None), len(nodes)).astype(np.int64)
    mem = np.bincount(node, snapshot.jobs.mem_mib[job], len(nodes)).astype(np.int64)
    rest = Grants(
        **{name: getattr(held, name)[~on_cpu] for name in ("job", "node", "gpu", "share_milli")}, why=held.why,
        blocker=held.blocker,
    )
    left = replace(nodes, cpu_milli=nodes.cpu_milli - cores, mem_mib=nodes.mem_mib - mem)
    return replace(snapshot, grants=rest, nodes=left), (job, node)


def with_cpu_ranks(grants: Grants, on_cpu: tuple[IntArray, IntArray]) -> Grants:
    """Add the ranks on CPU of jobs that have GPUs."""
    if not len(on_cpu[0]):
        return grants
    stays = np.isin(on_cpu[0], grants.job)
    job, node = np.append(grants.job, on_cpu[0][stays]), np.append(grants.node, on_cpu[1][stays])
    gpu, share_milli = (
        np.append(has, np.full(int(stays.sum()), value))
        for has, value in ((grants.gpu, -1), (grants.share_milli, 0))
    )
    order = np.lexsort((gpu, node, job))
    return replace(grants, job=job[order], node=node[order], gpu=gpu[order], share_milli=share_milli[order])


_JOBS: Final = ("phase", "gpus_now", "share_now", "share_milli", "cpu_milli", "mem_mib", "gpu_type")
_NODES: Final = ("gpus", "gpu_type", "cpu_milli", "mem_mib", "is_open")
_KIND: Final = {"is_open": np.bool_}


def _check(what: str, right: BoolArray) -> None:
    if not right.all():
        raise PlanError(f"{what}: row {int(np.argmin(right))} refers to what does not exist, or is no possible value")
