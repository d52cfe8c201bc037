"""The invariants, as functions that the engine, the twin and the tests share.

Numbers refer to the promises of docs/invariants.md: I4 fenced start, I6 no over-grant, I8 gang whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from brim.core.actions import WITH_SETTING, Action, Plan, setting_in
from brim.core.arrays import FloatArray, IntArray
from brim.core.changes import BATCH, FENCE, FINE, LATE, MOVED, RULES, TWICE, UNKNOWN, first_fault, stages
from brim.core.lifecycle import Phase
from brim.core.setting import ON_CPU, SERVER, Setting
from brim.core.snapshot import Snapshot
from brim.core.sums import CORES, GPU, MEMORY, cores_of_ranks, overfull, plainly_sound
from brim.core.tables import EMPTY, JobTable, NodeTable
from brim.core.trace import NONE
from brim.errors import InvariantError, PlanError
from brim.units import WHOLE_GPU, counted


def check_plan(snapshot: Snapshot, plan: Plan, *, count_loaders: bool = False) -> None:
    """Refuse a plan that cannot be applied to the snapshot.

    Checks that frees come before takes, each job is acted on once and in a phase that allows it, attempts and settings
    have the numbers they should (I4), gangs are whole and of a size the job can run on (I8) on open nodes of the right
    type, batches lie in the job's range, and no GPU, core or MiB is granted twice (I6).

    Args:
        snapshot: The snapshot on which the plan was made.
        plan: The plan.
        count_loaders: Whether each loader worker takes a core of its own from its node; otherwise loader workers run on
            the cores that their ranks have.

    Raises:
        PlanError: naming the job, and the node or GPU.
    """
    if not len(plan):
        return
    jobs, held, booked = snapshot.jobs, snapshot.grants, plan.bookings
    rows = np.searchsorted(jobs.id, booked.job)
    stage, stays = stages(
        booked, rows, (held.job, held.node, held.gpu, held.share_milli, held.loaders), jobs.batch_now, RULES
    )
    fault, at = first_fault(
        booked, rows, (plan.attempt, plan.sequence), stage, stays, jobs.id, jobs.phase, (jobs.attempt, jobs.sequence),
        (jobs.batch_min, jobs.batch_max, jobs.batch), RULES,
    )
    if fault != FINE:
        raise PlanError(_SENTENCES[fault](snapshot, plan.actions[at], int(rows[at])))
    gives = RULES.gives[booked.kind]
    if gives.any():
        new = np.column_stack((np.repeat(rows, np.diff(booked.first)), booked.ranks))
        if not _are_plainly_sound(snapshot, new, np.append(booked.first[:-1][gives], len(new))):
            for row, action in zip(rows.tolist(), plan, strict=True):
                if isinstance(action, WITH_SETTING):
                    _check_gang(snapshot, row, action.setting)
        _check_room(snapshot, rows[RULES.frees[booked.kind] | RULES.takes[booked.kind]], new, count_loaders)


def _are_plainly_sound(snapshot: Snapshot, new: IntArray, first: IntArray) -> bool:
    jobs, nodes = snapshot.jobs, snapshot.nodes
    return plainly_sound(
        new, first, jobs.gpus, jobs.gpus_min, jobs.gpus_max, jobs.size_list, jobs.gpu_type, nodes.gpus, nodes.gpu_type,
        nodes.is_open, nodes.withheld,
    )


def _late(snapshot: Snapshot, action: Action, row: int) -> str:
    return f"plan {action.rule.verb} job {action.job} after a later kind of action: frees come before takes"


def _fence(snapshot: Snapshot, action: Action, row: int) -> str:
    jobs, rule = snapshot.jobs, action.rule
    wrong = f"attempt {action.attempt}" if action.attempt != jobs.attempt[row] + rule.begins_attempt else ""
    if isinstance(action, WITH_SETTING) and action.sequence != jobs.sequence[row] + 1:
        wrong = wrong or f"setting {action.sequence}"
    number = f" ({wrong})" if wrong else ""
    return f"plan {rule.verb} job {action.job}{number}, which is {Phase(int(jobs.phase[row])).name}"


def _batch(snapshot: Snapshot, action: Action, row: int) -> str:
    """Only a job without a batch may have NONE."""
    jobs, setting = snapshot.jobs, setting_in(action) or Setting(())
    least, most, asked = int(jobs.batch_min[row]), int(jobs.batch_max[row]), int(jobs.batch[row])
    range_of = f"{least} to {most}" if least != NONE else f"{asked}" if asked != NONE else "no size of its own"
    return f"job {action.job} trains with batches of {range_of}, plan gives it {setting.batch}"


_SENTENCES: Final[dict[int, Callable[[Snapshot, Action, int], str]]] = {
    UNKNOWN: lambda _, action, row: f"plan acts on job {action.job}, which is not in the snapshot",
    TWICE: lambda _, action, row: f"plan acts twice on job {action.job}",
    LATE: _late, FENCE: _fence, BATCH: _batch,
    MOVED: lambda _, action, row: f"plan tunes job {action.job} and moves its ranks",
}
"""What is wrong with an action, by its fault."""


def _check_gang(snapshot: Snapshot, row: int, setting: Setting) -> None:
    jobs, nodes, job = snapshot.jobs, snapshot.nodes, int(snapshot.jobs.id[row])
    gpus, shares = setting.gpus, {rank.share_milli for rank in setting.ranks if rank.gpu >= 0}
    odd = [share for share in sorted(shares) if not 0 < share <= WHOLE_GPU or len(shares) > 1]
    if odd:
        raise PlanError(f"job {job} is granted {' and '.join(f'{share / 10:g}' for share in odd)} % of its GPUs")
    possible = len(gpus) == jobs.gpus[row] or jobs.gpus_min[row] <= len(gpus) <= jobs.gpus_max[row]
    if jobs.size_list[row] != NONE:
        possible = len(gpus) in jobs.sizes_of(row)
    if not gpus and any(rank.gpu == ON_CPU for rank in setting.ranks):
        possible = True  # on CPU alone; how many ranks it may have there is checked below
    if not possible or len(set(gpus)) != len(gpus):
        least, most = int(jobs.gpus_min[row]), int(jobs.gpus_max[row])
        wants = f"{least} to {most} GPUs" if least < most else counted(int(jobs.gpus[row]), "GPU")
        wants = " or ".join(map(str, jobs.sizes_of(row))) + " GPUs" if jobs.size_list[row] != NONE else wants
        raise PlanError(f"job {job} asks for a gang of {wants}, plan grants {gpus}")
    places = [rank[:2] for rank in setting.ranks]
    if places != sorted(places):
        raise PlanError(f"grants of job {job} are not in increasing order: {tuple(places)}")
    on_cpu = len(places) - len(gpus)
    if on_cpu > jobs.cpu_ranks_max[row]:
        raise PlanError(f"job {job} may have {counted(jobs.cpu_ranks_max[row], 'rank')} on CPU, plan grants {on_cpu}")
    types = set()
    for node, gpu in places:
        if not 0 <= node < len(nodes) or not SERVER <= gpu < nodes.gpus[node]:
            raise PlanError(f"job {job} is granted GPU {gpu} of node {node}, which does not exist")
        if not nodes.is_open[node] and not _has(snapshot, row, node, gpu):
            raise PlanError(f"job {job} is granted a rank on node {node}, which is down or draining")
        if gpu >= 0 and nodes.withheld.size and nodes.withheld[node, gpu] and not _has(snapshot, row, node, gpu):
            raise PlanError(f"job {job} is granted GPU {gpu} of node {node}, which is withheld")
        if gpu >= 0:
            types.add(int(nodes.gpu_type[node]))
    if len(types) > 1 or (jobs.gpu_type[row] != NONE and types - {int(jobs.gpu_type[row])}):
        raise PlanError(f"job {job} is granted GPUs of types {sorted(types)}")


def _has(snapshot: Snapshot, row: int, node: int, gpu: int) -> bool:
    """Whether the job holds this GPU: a job that shrinks may stay on a draining node."""
    held = snapshot.grants
    return bool(((held.job == row) & (held.node == node) & (held.gpu == gpu)).any())


def _check_room(snapshot: Snapshot, acted: IntArray, new: IntArray, count_loaders: bool) -> None:
    """Sum the GPUs, cores and memory held after the plan, and compare the sums with what each node has.

    Args:
        snapshot: The snapshot on which the plan was made.
        acted: Rows of the jobs that give up what they hold.
        new: Row of the job, node, gpu, share and loader workers of each rank that the plan grants (K, 5).
        count_loaders: See ``check_plan``.
    """
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    gives_up = np.zeros(len(jobs), dtype=np.bool_)
    gives_up[acted] = True
    what, where, total = overfull(
        (held.job, held.node, held.gpu, held.share_milli, held.loaders), gives_up, new, jobs.cpu_milli, jobs.mem_mib,
        nodes.gpus, nodes.cpu_milli, nodes.mem_mib, count_loaders,
    )
    if what == GPU:
        node, gpu = divmod(where, int(nodes.gpus.max()))
        raise PlanError(f"GPU {gpu} of node {node} is granted {total / 10:g} % of itself")
    if what == CORES:
        raise PlanError(f"cores of node {where}: {total:g} granted of {nodes.cpu_milli[where]}")
    if what == MEMORY:
        raise PlanError(f"memory of node {where}: {total:g} granted of {nodes.mem_mib[where]}")


def gpu_shares(nodes: NodeTable, node: IntArray, gpu: IntArray, share_milli: IntArray) -> FloatArray:
    """Thousandths granted of each GPU, for the widest node's number of GPUs on each node; ranks on CPU do not count."""
    if len(gpu) and gpu.min() < 0:
        on_gpu = gpu >= 0
        node, gpu, share_milli = node[on_gpu], gpu[on_gpu], share_milli[on_gpu]
    return np.asarray(np.bincount(node * int(nodes.gpus.max()) + gpu, weights=share_milli), dtype=np.float64)


def cores_milli(
    jobs: JobTable, job: IntArray, gpu: IntArray, share_milli: IntArray, loader_workers: IntArray | None
) -> IntArray:
    """Milli-cores that each rank takes from its node: the ledger of cores.

    Args:
        jobs: The job table.
        job: Row of the job of each rank.
        gpu: GPU of each rank, below 0 for one on CPU.
        share_milli: Milli-cores of each rank on CPU, 0 for those that its job asks for, at least one core.
        loader_workers: Loader workers of each rank, which take a core each; None if they run on their ranks' cores.
    """
    return cores_of_ranks(jobs.cpu_milli, job, gpu, share_milli, EMPTY if loader_workers is None else loader_workers)


def check_snapshot(snapshot: Snapshot) -> None:
    """Refuse a snapshot whose grants contradict its jobs or nodes (I6, I8).

    Raises:
        InvariantError: naming the job or GPU.
    """
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    if (np.diff(jobs.id) <= 0).any():
        raise InvariantError("the job table is not sorted by id")
    counts = np.bincount(held.job[held.gpu >= 0], minlength=len(jobs))
    wrong = np.flatnonzero(counts != np.where(jobs.holds, jobs.gpus_now, 0))
    if len(wrong):
        row = int(wrong[0])
        raise InvariantError(
            f"job {jobs.id[row]} ({Phase(int(jobs.phase[row])).name}) holds {counts[row]} of "
            f"{counted(jobs.gpus_now[row], 'GPU')}"
        )
    if len(held):
        shares = gpu_shares(nodes, held.node, held.gpu, held.share_milli)
        if shares.max(initial=0) > WHOLE_GPU:
            where, which = divmod(int(shares.argmax()), int(nodes.gpus.max()))
            raise InvariantError(f"GPU {which} of node {where} is over-granted")
        if not nodes.up[held.node].all():
            raise InvariantError("a node that is down still has grants")
