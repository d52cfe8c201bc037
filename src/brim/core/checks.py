"""The invariants, as functions. The engine, the twin, the tests and ``brim doctor`` use the same ones.

Numbers refer to the promises of docs/invariants.md: I4 fenced start, I6 no over-grant, I8 gang whole.
"""

from __future__ import annotations

import numpy as np

from brim.core.actions import Plan, Preempt, Start
from brim.core.lifecycle import Phase
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE
from brim.errors import InvariantError, PlanError
from brim.units import WHOLE_GPU

_PENDING, _HOLDING = int(Phase.PENDING), (int(Phase.STARTING), int(Phase.RUNNING))


def check_plan(snapshot: Snapshot, plan: Plan) -> None:
    """Refuse a plan that could not be applied as it stands.

    Checks that frees come before takes, each job is acted on once and in a phase that allows it, epochs are the next
    ones (I4), gangs are whole (I8) on open nodes of the right type, and no GPU, core or MiB is granted twice (I6).

    Raises:
        PlanError: naming the job, and the node or GPU.
    """
    if not plan.actions:
        return
    jobs = snapshot.jobs
    rows = np.searchsorted(jobs.id, [action.job for action in plan.actions]).tolist()
    seen: set[int] = set()
    stopped: set[int] = set()
    starts: list[tuple[int, Start]] = []
    for row, action in zip(rows, plan.actions, strict=True):
        if row == len(jobs) or jobs.id[row] != action.job:
            raise PlanError(f"plan acts on job {action.job}, which is not in the snapshot")
        if action.job in seen:
            raise PlanError(f"plan acts twice on job {action.job}")
        seen.add(action.job)
        phase = jobs.phase[row]
        if isinstance(action, Preempt):
            if starts:
                raise PlanError(f"plan preempts job {action.job} after a start: frees come before takes")
            if phase not in _HOLDING or action.epoch != jobs.epoch[row]:
                raise PlanError(f"plan preempts job {action.job} (epoch {action.epoch}), which is {Phase(phase).name}")
            stopped.add(row)
        else:
            if phase != _PENDING or action.epoch != jobs.epoch[row] + 1:
                raise PlanError(f"plan starts job {action.job} (epoch {action.epoch}), which is {Phase(phase).name}")
            _check_gang(snapshot, row, action)
            starts.append((row, action))
    _check_room(snapshot, stopped, starts)


def _check_gang(snapshot: Snapshot, row: int, start: Start) -> None:
    jobs, nodes = snapshot.jobs, snapshot.nodes
    if len(start.gpus) != jobs.gpus[row] or len(set(start.gpus)) != len(start.gpus):
        raise PlanError(f"job {start.job} asks for a gang of {jobs.gpus[row]} GPUs, plan grants {start.gpus}")
    if list(start.gpus) != sorted(start.gpus):
        raise PlanError(f"grants of job {start.job} are not in increasing order: {start.gpus}")
    types = set()
    for node, gpu in start.gpus:
        if not (0 <= node < len(nodes) and 0 <= gpu < nodes.gpus[node]):
            raise PlanError(f"job {start.job} is granted GPU {gpu} of node {node}, which does not exist")
        if not nodes.is_open[node]:
            raise PlanError(f"job {start.job} is granted a GPU of node {node}, which is down or drains")
        types.add(int(nodes.gpu_type[node]))
    if len(types) > 1 or (jobs.gpu_type[row] != NONE and types != {int(jobs.gpu_type[row])}):
        raise PlanError(f"job {start.job} is granted GPUs of types {sorted(types)}")


def _check_room(snapshot: Snapshot, stopped: set[int], starts: list[tuple[int, Start]]) -> None:
    """Sum what is held after the plan, on the nodes that the plan starts jobs on."""
    if not starts:
        return
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    stays = ~np.isin(held.job, list(stopped)) if stopped else np.ones(len(held), dtype=np.bool_)
    new = np.array([(row, node, gpu) for row, start in starts for node, gpu in start.gpus], dtype=np.int64)
    job = np.concatenate((held.job[stays], new[:, 0]))
    node = np.concatenate((held.node[stays], new[:, 1]))
    gpu = np.concatenate((held.gpu[stays], new[:, 2]))
    width = int(nodes.gpus.max())
    share_milli = np.bincount(node * width + gpu, weights=jobs.share_milli[job])
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
        raise InvariantError("job table is not in order of ids")
    counts = np.bincount(held.job, minlength=len(jobs))
    wrong = np.flatnonzero(counts != np.where(jobs.holds, jobs.gpus, 0))
    if len(wrong):
        row = int(wrong[0])
        raise InvariantError(
            f"job {jobs.id[row]} ({Phase(int(jobs.phase[row])).name}) holds {counts[row]} of {jobs.gpus[row]} GPUs"
        )
    if len(held):
        width = int(nodes.gpus.max())
        share_milli = np.bincount(held.node * width + held.gpu, weights=held.share_milli)
        if share_milli.max() > WHOLE_GPU:
            where = int(share_milli.argmax())
            raise InvariantError(f"GPU {where % width} of node {where // width} is over-granted")
        if not nodes.up[held.node].all():
            raise InvariantError("a node that is down still has grants")
