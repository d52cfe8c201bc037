"""What compiled placement code relies on: it has no bounds checks, and a wrong row would end the interpreter."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Final

import numpy as np

from brim.core.arrays import IntArray, frozen
from brim.core.checks import cores_milli
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.errors import PlanError
from brim.policies.place.faults import FINE, inputs_fault

_WHAT: Final = ("order", "sizes", "nodes", "jobs", "grants")


def check_inputs(snapshot: Snapshot, order: IntArray, gpus: IntArray) -> None:
    """Check the arguments of a place part, which another part may have made up or changed.

    Raises:
        PlanError: a column has another length or type than it should, or refers to what does not exist.
    """
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    size, width = len(jobs.phase), len(nodes.gpus)
    of_jobs, of_nodes, of_grants = _JOBS(jobs), _NODES(nodes), _GRANTS(held)
    _check_columns("order", size, ("order",), (order,))
    _check_columns("sizes", size, ("gpus",), (gpus,))
    _check_columns("jobs", size, _JOB_NAMES, of_jobs)
    _check_columns("nodes", width, _NODE_NAMES, of_nodes)
    _check_columns("grants", len(held.job), _GRANT_NAMES, of_grants)
    if nodes.withheld.size and nodes.withheld.shape != (width, int(nodes.gpus.max())):
        raise PlanError("nodes: column withheld is not the one that the round gave it")
    what, row = inputs_fault(
        len(snapshot.gpu_types), *map(_read_only, (order, gpus, *of_jobs, nodes.gpus, nodes.gpu_type, *of_grants))
    )
    if row != FINE:
        raise PlanError(f"{_WHAT[what]}: row {row} refers to what does not exist, or is no possible value")


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
    taken = cores_milli(snapshot.jobs, job, held.gpu[on_cpu], held.share_milli[on_cpu], None)
    cores = np.bincount(node, taken, len(nodes)).astype(np.int64)
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
        gpu = np.append(grants.gpu, held.gpu[added])
        share_milli = np.append(grants.share_milli, held.share_milli[added])
        why = grants.why.copy()
        why[job] = int(Reason.RUNS)
        order = np.lexsort((gpu, node, job))
        grants = replace(
            grants, job=job[order], node=node[order], gpu=gpu[order], share_milli=share_milli[order], why=why
        )
    return revocable_as_before(grants, snapshot)


def revocable_as_before(grants: Grants, snapshot: Snapshot) -> Grants:
    """Mark the grants of jobs whose grants are revocable in the snapshot."""
    held = snapshot.grants
    if not len(held.revocable):
        return grants
    return replace(grants, revocable=held.revocable_jobs(len(snapshot.jobs))[grants.job])


_JOB_NAMES: Final = ("phase", "gpus_now", "share_now", "share_milli", "cpu_milli", "mem_mib", "gpu_type")
_NODE_NAMES: Final = ("gpus", "gpu_type", "cpu_milli", "mem_mib", "is_open")
_GRANT_NAMES: Final = ("job", "node", "gpu")
_JOBS, _NODES, _GRANTS = attrgetter(*_JOB_NAMES), attrgetter(*_NODE_NAMES), attrgetter(*_GRANT_NAMES)
_INT, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)


def _check_columns(what: str, length: int, names: tuple[str, ...], columns: tuple[object, ...]) -> None:
    """Check that columns are plain arrays of the type and length that compiled code expects."""
    for name, column in zip(names, columns, strict=True):
        if (
            type(column) is not np.ndarray or column.shape != (length,)
            or column.dtype != (_BOOL if name == "is_open" else _INT)
        ):
            raise PlanError(f"{what}: column {name} is not the one that the round gave it")


def _read_only(column: IntArray) -> IntArray:
    """The column as the round gives it: numba compiles a function anew for arrays that can be written or have gaps."""
    flags = column.flags
    return frozen(np.ascontiguousarray(column)) if flags.writeable or not flags.c_contiguous else column
