"""The invariants, as functions that the engine, the twin and the tests share.

Numbers refer to the promises of docs/invariants.md: I4 fenced start, I6 no over-grant, I8 gang whole.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from brim.core.actions import WITH_SETTING, Action, Plan, Tune, setting_in, stage_of
from brim.core.arrays import FloatArray, IntArray
from brim.core.lifecycle import Phase
from brim.core.setting import Setting
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
    if not plan.actions:
        return
    jobs = snapshot.jobs
    rows = np.searchsorted(jobs.id, [action.job for action in plan.actions]).tolist()
    acts = list(zip(rows, plan.actions, strict=True))
    gangs = [(row, setting) for row, action in acts if (setting := setting_in(action)) is not None]
    new, first = _ranks_in(gangs)
    sound = max(rows) < len(jobs) and _are_plainly_sound(snapshot, new, first)
    seen: set[int] = set()
    stage = 0
    for row, action in acts:
        if row == len(jobs) or jobs.id.item(row) != action.job:
            raise PlanError(f"plan acts on job {action.job}, which is not in the snapshot")
        if action.job in seen:
            raise PlanError(f"plan acts twice on job {action.job}")
        seen.add(action.job)
        rule, setting = action.rule, setting_in(action)
        has = snapshot.setting_of(row) if rule.frees and setting is not None else None
        at = stage_of(action, has)
        if at < stage:
            raise PlanError(f"plan {rule.verb} job {action.job} after a later kind of action: frees come before takes")
        stage = at
        _check_fence(snapshot, row, action)
        if setting is not None:
            if not sound:
                _check_gang(snapshot, row, setting)
            _check_batch(snapshot, row, setting.batch)
            if isinstance(action, Tune) and (has is None or not setting.keeps_ranks_of(has)):
                raise PlanError(f"plan tunes job {action.job} and moves its ranks")
    if gangs:
        acted = [row for row, action in acts if action.rule.frees or action.rule.takes]
        _check_room(snapshot, acted, new, count_loaders)


def _ranks_in(gangs: list[tuple[int, Setting]]) -> tuple[IntArray, IntArray]:
    """Row of the job, node, gpu, share and loader workers of each rank (K, 5), and where each gang begins (A + 1,)."""
    counts = [len(setting.ranks) for _, setting in gangs]
    new = np.empty((sum(counts), 5), dtype=np.int64)
    new[:, 0] = np.repeat(np.array([row for row, _ in gangs], dtype=np.int64), counts)
    ranks = chain.from_iterable(rank for _, setting in gangs for rank in setting.ranks)
    new[:, 1:] = np.fromiter(ranks, np.int64, 4 * len(new)).reshape(-1, 4)
    return new, np.cumsum([0, *counts])


def _are_plainly_sound(snapshot: Snapshot, new: IntArray, first: IntArray) -> bool:
    jobs, nodes = snapshot.jobs, snapshot.nodes
    return plainly_sound(
        new, first, jobs.gpus, jobs.gpus_min, jobs.gpus_max, jobs.size_list, jobs.gpu_type, nodes.gpus, nodes.gpu_type,
        nodes.is_open, nodes.withheld,
    )


def _check_fence(snapshot: Snapshot, row: int, action: Action) -> None:
    """Check phase, attempt and, where there is a setting, its number in the sequence."""
    jobs, rule = snapshot.jobs, action.rule
    phase = jobs.phase.item(row)
    wrong = f"attempt {action.attempt}" if action.attempt != jobs.attempt.item(row) + rule.begins_attempt else ""
    if isinstance(action, WITH_SETTING) and action.sequence != jobs.sequence.item(row) + 1:
        wrong = wrong or f"setting {action.sequence}"
    if wrong or phase not in rule.phases:
        number = f" ({wrong})" if wrong else ""
        raise PlanError(f"plan {rule.verb} job {action.job}{number}, which is {Phase(phase).name}")


def _check_batch(snapshot: Snapshot, row: int, batch: int) -> None:
    """Check that the batch is the one asked or lies in the job's range; only a job without a batch may have NONE."""
    jobs = snapshot.jobs
    least, most, asked = jobs.batch_min.item(row), jobs.batch_max.item(row), jobs.batch.item(row)
    if batch == asked or (least != NONE and least <= batch <= most):
        return
    range_of = f"{least} to {most}" if least != NONE else f"{asked}" if asked != NONE else "no size of its own"
    raise PlanError(f"job {jobs.id[row]} trains with batches of {range_of}, plan gives it {batch}")


def _check_gang(snapshot: Snapshot, row: int, setting: Setting) -> None:
    jobs, nodes, job = snapshot.jobs, snapshot.nodes, int(snapshot.jobs.id[row])
    gpus, shares = setting.gpus, {rank.share_milli for rank in setting.ranks if rank.gpu != NONE}
    odd = [share for share in sorted(shares) if not 0 < share <= WHOLE_GPU or len(shares) > 1]
    if odd:
        raise PlanError(f"job {job} is granted {' and '.join(f'{share / 10:g}' for share in odd)} % of its GPUs")
    possible = len(gpus) == jobs.gpus[row] or jobs.gpus_min[row] <= len(gpus) <= jobs.gpus_max[row]
    if jobs.size_list[row] != NONE:
        possible = len(gpus) in jobs.sizes_of(row)
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
        if not 0 <= node < len(nodes) or not (gpu == NONE or 0 <= gpu < nodes.gpus[node]):
            raise PlanError(f"job {job} is granted GPU {gpu} of node {node}, which does not exist")
        if not nodes.is_open[node] and not _has(snapshot, row, node, gpu):
            raise PlanError(f"job {job} is granted a rank on node {node}, which is down or draining")
        if gpu != NONE and nodes.withheld.size and nodes.withheld[node, gpu] and not _has(snapshot, row, node, gpu):
            raise PlanError(f"job {job} is granted GPU {gpu} of node {node}, which is withheld")
        if gpu != NONE:
            types.add(int(nodes.gpu_type[node]))
    if len(types) > 1 or (jobs.gpu_type[row] != NONE and types != {int(jobs.gpu_type[row])}):
        raise PlanError(f"job {job} is granted GPUs of types {sorted(types)}")


def _has(snapshot: Snapshot, row: int, node: int, gpu: int) -> bool:
    """Whether the job holds this GPU: a job that shrinks may stay on a draining node."""
    held = snapshot.grants
    return bool(((held.job == row) & (held.node == node) & (held.gpu == gpu)).any())


def _check_room(snapshot: Snapshot, acted: list[int], new: IntArray, count_loaders: bool) -> None:
    """Sum the GPUs, cores and memory held after the plan, and compare the sums with what each node has.

    Args:
        snapshot: The snapshot on which the plan was made.
        acted: Rows of the jobs that give up what they hold.
        new: What the plan grants, see ``_ranks_in``.
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
    if len(gpu) and gpu.min() == NONE:
        on_gpu = gpu != NONE
        node, gpu, share_milli = node[on_gpu], gpu[on_gpu], share_milli[on_gpu]
    return np.asarray(np.bincount(node * int(nodes.gpus.max()) + gpu, weights=share_milli), dtype=np.float64)


def cores_milli(jobs: JobTable, job: IntArray, gpu: IntArray, loader_workers: IntArray | None) -> IntArray:
    """Milli-cores that each rank takes from its node: the ledger of cores.

    Args:
        jobs: The job table.
        job: Row of the job of each rank.
        gpu: GPU of each rank, NONE for one on CPU, which takes at least one core.
        loader_workers: Loader workers of each rank, which take a core each; None if they run on their ranks' cores.
    """
    return cores_of_ranks(jobs.cpu_milli, job, gpu, EMPTY if loader_workers is None else loader_workers)


def check_snapshot(snapshot: Snapshot) -> None:
    """Refuse a snapshot whose grants contradict its jobs or nodes (I6, I8).

    Raises:
        InvariantError: naming the job or GPU.
    """
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    if (np.diff(jobs.id) <= 0).any():
        raise InvariantError("the job table is not sorted by id")
    counts = np.bincount(held.job[held.gpu != NONE], minlength=len(jobs))
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
