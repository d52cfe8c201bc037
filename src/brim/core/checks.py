"""The invariants, as functions that the engine, the twin and the tests share.

Numbers refer to the promises of docs/invariants.md: I4 fenced start, I6 no over-grant, I8 gang whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.core.actions import Plan, Preempt, Reject, Resize, Start, Tune
from brim.core.lifecycle import Phase
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE
from brim.errors import InvariantError, PlanError
from brim.units import WHOLE_GPU

_PENDING, _HELD, _HOLDING = int(Phase.PENDING), int(Phase.HELD), (int(Phase.STARTING), int(Phase.RUNNING))


def check_plan(snapshot: Snapshot, plan: Plan) -> None:
    """Refuse a plan that cannot be applied to the snapshot.

    Checks that frees come before takes, each job is acted on once and in a phase that allows it, epochs are the next
    ones (I4), gangs are whole and of a size the job can run on (I8) on open nodes of the right type, batches lie in
    the job's range, and no GPU, core or MiB is granted twice (I6).

    Raises:
        PlanError: naming the job, and the node or GPU.
    """
    if not plan.actions:
        return
    jobs = snapshot.jobs
    rows = np.searchsorted(jobs.id, [action.job for action in plan.actions]).tolist()
    seen: set[int] = set()
    stopped: set[int] = set()
    takes: list[tuple[int, Start | Resize]] = []
    stage = 0
    for row, action in zip(rows, plan.actions, strict=True):
        if row == len(jobs) or jobs.id[row] != action.job:
            raise PlanError(f"plan acts on job {action.job}, which is not in the snapshot")
        if action.job in seen:
            raise PlanError(f"plan acts twice on job {action.job}")
        seen.add(action.job)
        rank, verb, phases, ahead = _RULES[type(action)]
        if rank < stage:
            raise PlanError(f"plan {verb} job {action.job} after a later kind of action: frees come before takes")
        stage = rank
        if jobs.phase[row] not in phases or action.epoch != jobs.epoch[row] + ahead:
            raise PlanError(
                f"plan {verb} job {action.job} (epoch {action.epoch}), which is {Phase(jobs.phase[row]).name}"
            )
        if isinstance(action, Preempt | Resize):
            stopped.add(row)
        if isinstance(action, Start | Resize):
            _check_gang(snapshot, row, action)
            takes.append((row, action))
        if isinstance(action, Start | Resize | Tune):
            _check_batch(snapshot, row, action.batch)
    _check_room(snapshot, stopped, takes)


_RULES: Final = {
    Preempt: (0, "preempts", _HOLDING, 0), Reject: (1, "rejects", (_PENDING, _HELD), 0),
    Resize: (2, "resizes", _HOLDING, 1), Start: (3, "starts", (_PENDING,), 1), Tune: (4, "tunes", _HOLDING, 0),
}
"""Per kind of action: rank in the plan, verb for messages, phases it applies to, epoch relative to the job's."""


def _check_batch(snapshot: Snapshot, row: int, batch: int) -> None:
    """Check that the batch is the one asked or lies in the job's range; only a job without a batch may have NONE."""
    jobs = snapshot.jobs
    least, most, asked = int(jobs.batch_min[row]), int(jobs.batch_max[row]), int(jobs.batch[row])
    if batch == asked or (least != NONE and least <= batch <= most):
        return
    range_of = f"{least} to {most}" if least != NONE else f"{asked}" if asked != NONE else "no size of its own"
    raise PlanError(f"job {jobs.id[row]} trains with batches of {range_of}, plan gives it {batch}")


def _check_gang(snapshot: Snapshot, row: int, action: Start | Resize) -> None:
    jobs, nodes, gpus = snapshot.jobs, snapshot.nodes, action.gpus
    if action.share_milli != NONE and not 0 < action.share_milli <= WHOLE_GPU:
        raise PlanError(f"job {action.job} is granted {action.share_milli / 10:g} % of each of its GPUs")
    asked = len(gpus) == jobs.gpus[row]
    if not (asked or jobs.gpus_min[row] <= len(gpus) <= jobs.gpus_max[row]) or len(set(gpus)) != len(gpus):
        least, most = int(jobs.gpus_min[row]), int(jobs.gpus_max[row])
        wants = f"{least} to {most}" if least < most else f"{jobs.gpus[row]}"
        raise PlanError(f"job {action.job} asks for a gang of {wants} GPUs, plan grants {gpus}")
    if list(gpus) != sorted(gpus):
        raise PlanError(f"grants of job {action.job} are not in increasing order: {gpus}")
    types = set()
    for node, gpu in gpus:
        if not (0 <= node < len(nodes) and 0 <= gpu < nodes.gpus[node]):
            raise PlanError(f"job {action.job} is granted GPU {gpu} of node {node}, which does not exist")
        if not nodes.is_open[node] and not _has(snapshot, row, node, gpu):
            raise PlanError(f"job {action.job} is granted a GPU of node {node}, which is down or draining")
        types.add(int(nodes.gpu_type[node]))
    if len(types) > 1 or (jobs.gpu_type[row] != NONE and types != {int(jobs.gpu_type[row])}):
        raise PlanError(f"job {action.job} is granted GPUs of types {sorted(types)}")


def _has(snapshot: Snapshot, row: int, node: int, gpu: int) -> bool:
    """Whether the job holds this GPU: a job that shrinks may stay on a draining node."""
    held = snapshot.grants
    return bool(((held.job == row) & (held.node == node) & (held.gpu == gpu)).any())


def _check_room(snapshot: Snapshot, stopped: set[int], takes: list[tuple[int, Start | Resize]]) -> None:
    """Sum the GPUs, cores and memory held after the plan, and compare the sums with what each node has."""
    if not takes:
        return
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    stays = ~np.isin(held.job, list(stopped)) if stopped else np.ones(len(held), dtype=np.bool_)
    new = np.array([
        (row, node, gpu, jobs.share_milli[row] if action.share_milli == NONE else action.share_milli)
        for row, action in takes for node, gpu in action.gpus
    ], dtype=np.int64)
    job = np.concatenate((held.job[stays], new[:, 0]))
    node = np.concatenate((held.node[stays], new[:, 1]))
    gpu = np.concatenate((held.gpu[stays], new[:, 2]))
    width = int(nodes.gpus.max())
    share_milli = np.bincount(
        node * width + gpu, weights=np.concatenate((held.share_milli[stays], new[:, 3])),
    )
    if share_milli.max() > WHOLE_GPU:
        where = int(share_milli.argmax())
        raise PlanError(
            f"GPU {where % width} of node {where // width} is granted {share_milli[where] / 10:g} % of itself"
        )
    for name, used, room in (
        ("cores", jobs.cpu_milli, nodes.cpu_milli), ("memory", jobs.mem_mib, nodes.mem_mib),
    ):
        total = np.bincount(node, weights=used[job], minlength=len(nodes))
        if (total > room).any():
            where = int((total > room).argmax())
            raise PlanError(f"{name} of node {where}: {total[where]:g} granted of {room[where]}")


def check_snapshot(snapshot: Snapshot) -> None:
    """Refuse a snapshot whose grants contradict its jobs or nodes (I6, I8).

    Raises:
        InvariantError: naming the job or GPU.
    """
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    if (np.diff(jobs.id) <= 0).any():
        raise InvariantError("the job table is not sorted by id")
    counts = np.bincount(held.job, minlength=len(jobs))
    wrong = np.flatnonzero(counts != np.where(jobs.holds, jobs.gpus_now, 0))
    if len(wrong):
        row = int(wrong[0])
        raise InvariantError(
            f"job {jobs.id[row]} ({Phase(int(jobs.phase[row])).name}) holds {counts[row]} of {jobs.gpus_now[row]} GPUs"
        )
    if len(held):
        width = int(nodes.gpus.max())
        share_milli = np.bincount(held.node * width + held.gpu, weights=held.share_milli)
        if share_milli.max() > WHOLE_GPU:
            where = int(share_milli.argmax())
            raise InvariantError(f"GPU {where % width} of node {where // width} is over-granted")
        if not nodes.up[held.node].all():
            raise InvariantError("a node that is down still has grants")
