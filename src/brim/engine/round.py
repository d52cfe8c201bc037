"""One scheduling round: five decisions, the difference to what runs, the checks. Pure."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Action, Plan, Preempt, Reject, Resize, Start, Tune
from brim.core.arrays import BoolArray, IntArray
from brim.core.checks import check_plan
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants, JobTable
from brim.core.trace import NONE
from brim.errors import BrimError, PlanError
from brim.policies.sockets import Policy, Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round decided, and why.

    Attributes:
        plan: The changes, frees before takes.
        job: Ids of the jobs that were in the snapshot (J,).
        why: ``Why`` code per job, 0 for one that has GPUs after the plan (J,).
        blocker: Id of the job it stands behind, -1 for none (J,).
        memo: What the order part wants to find again, per job (J,), or None if nothing changed.
    """

    plan: Plan
    job: IntArray
    why: IntArray
    blocker: IntArray
    memo: IntArray | None


def run_round(snapshot: Snapshot, beliefs: Beliefs, policy: Policy) -> RoundResult:
    """Run the five decisions of a policy on a snapshot and return the checked plan with its reasons.

    Raises:
        PlanError: the policy wants something impossible, or a part of it failed.
    """
    size = len(snapshot.jobs)
    memo = None
    with _part(policy, "order"):
        remember = getattr(policy.order, "remember", None)  # 0 what the last rounds left behind
        if remember is not None:
            new = remember(snapshot)
            _check_column(new, size)
            if not np.array_equal(new, snapshot.jobs.memo):
                memo = new
                snapshot = replace(snapshot, jobs=replace(snapshot.jobs, memo=memo))
        order = policy.order(snapshot, beliefs)  # 1 who first
        _check_permutation(order, size)
    with _part(policy, "size"):
        sizes = policy.size(snapshot, beliefs, order)  # 2 how many GPUs, what batch
        _check_sizes(sizes, snapshot.jobs)
    with _part(policy, "place"):
        placed = policy.place(snapshot, beliefs, order, sizes)  # 3 which GPUs
    with _part(policy, "feed"):
        loaders = policy.feed(snapshot, beliefs, placed)  # 4 who gets the cores that feed them
        _check_column(loaders, size)
    with _part(policy, "fill"):
        wanted = policy.fill(snapshot, beliefs, placed)  # 5 what uses the rest
    plan = Plan(snapshot.now_ms, difference(snapshot, sizes, wanted, loaders))
    check_plan(snapshot, plan)
    ids = snapshot.jobs.id
    return RoundResult(
        plan=plan, job=ids, why=wanted.why, memo=memo,
        blocker=np.where(wanted.blocker >= 0, ids[wanted.blocker], -1) if size else wanted.blocker,
    )


class _part:  # noqa: N801 - reads as a word in a with statement; a generator would cost microseconds each round
    """Turns whatever a policy's part raises into one line that names the policy, the part and the place."""

    __slots__ = ("_name", "_policy")

    def __init__(self, policy: Policy, name: str) -> None:
        self._policy, self._name = policy, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, BrimError):
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if last.filename == __file__ else f" ({Path(last.filename).name}, line {last.lineno})"
            raise PlanError(
                f"policy {self._policy.name!r}, {self._name}: {type(error).__name__}: {error}{where}"
            ) from error


def _check_permutation(order: IntArray, size: int) -> None:
    """The walk is compiled without bounds checks: a wrong row would be read from anywhere."""
    _check_column(order, size)
    if size and (order.min() < 0 or order.max() >= size or np.bincount(order, minlength=size).max() > 1):
        raise ValueError(f"expected each of the {size} job rows once, found {_short(order)}")


def _check_column(column: IntArray, size: int) -> None:
    if getattr(column, "shape", None) != (size,) or column.dtype.kind != "i":
        raise ValueError(f"expected {size} integers, one per job, found {_short(column)}")


def _check_sizes(sizes: Sizes, jobs: JobTable) -> None:
    """Every size one the job can run on, every column of the right length."""
    size = len(jobs)
    _check_column(sizes.gpus, size)
    if len(sizes.global_batch):
        _check_column(sizes.global_batch, size)
    for column in (sizes.analyse, sizes.reject):
        if len(column) and column.shape != (size,):
            raise ValueError(f"expected {size} truth values, one per job, found {_short(column)}")
    legal = (jobs.gpus_min <= sizes.gpus) & (sizes.gpus <= jobs.gpus_max)
    wrong = np.flatnonzero(~legal & (sizes.gpus != 0) & (sizes.gpus != jobs.gpus))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"job {jobs.id[row]} runs on {jobs.gpus_min[row]} to {jobs.gpus_max[row]} GPUs, found {sizes.gpus[row]}"
        )


def _short(value: object) -> str:
    words = f"{getattr(value, 'dtype', type(value).__name__)} {value}".replace("\n", "")
    return words if len(words) <= 60 else words[:57] + "..."


def difference(snapshot: Snapshot, sizes: Sizes, wanted: Grants, loaders: IntArray) -> tuple[Action, ...]:
    """Turn wanted grants into actions.

    Who holds GPUs and is not wanted is preempted, who holds others than wanted is resized, who is wanted and holds
    none is started; who keeps its GPUs and gets another batch is tuned.
    """
    jobs = snapshot.jobs
    has = np.zeros(len(jobs), dtype=np.bool_)
    has[wanted.job] = True
    holds = jobs.holds
    keeps, coming = has & holds, has & ~holds
    moved = _moved(snapshot, wanted, keeps)
    batch = _batches(sizes, jobs)
    tuned = keeps & ~moved & (batch != jobs.batch_now)
    actions: list[Action] = [
        Preempt(int(jobs.id[row]), int(jobs.epoch[row])) for row in np.flatnonzero(holds & ~has)
    ]
    if len(sizes.reject):
        out = np.flatnonzero(sizes.reject & ~holds & ~has)
        actions += [Reject(int(jobs.id[row]), int(jobs.epoch[row])) for row in out]
    gangs = _gangs(wanted, moved | coming)
    actions += [
        Resize(int(jobs.id[row]), int(jobs.epoch[row]) + 1, tuple(sorted(gpus)), int(batch[row]), int(loaders[row]))
        for row, gpus in gangs.items() if moved[row]
    ]
    analyse = sizes.analyse if len(sizes.analyse) else np.zeros(len(jobs), dtype=np.bool_)
    actions += [
        Start(int(jobs.id[row]), int(jobs.epoch[row]) + 1, tuple(gpus), int(loaders[row]), int(batch[row]),
              bool(analyse[row]))
        for row, gpus in gangs.items() if coming[row]
    ]
    actions += [Tune(int(jobs.id[row]), int(jobs.epoch[row]), int(batch[row])) for row in np.flatnonzero(tuned)]
    return tuple(actions)


def _moved(snapshot: Snapshot, wanted: Grants, keeps: BoolArray) -> BoolArray:
    """Which of the jobs that keep GPUs are to have others than they hold (J,)."""
    moved = np.zeros(len(keeps), dtype=np.bool_)
    held = snapshot.grants
    before, after = keeps[held.job], keeps[wanted.job]
    columns = ((held.job, wanted.job), (held.node, wanted.node), (held.gpu, wanted.gpu))
    if all(np.array_equal(was[before], will[after]) for was, will in columns):
        return moved  # the walk hands back what it was given, in the same order
    span = int(snapshot.nodes.gpus.max())
    nowhere = (wanted.node < 0) | (wanted.node >= len(snapshot.nodes)) | (wanted.gpu < 0) | (wanted.gpu >= span)
    if nowhere.any():
        row = int(np.argmax(nowhere))
        raise PlanError(
            f"job {snapshot.jobs.id[wanted.job[row]]} is granted GPU {wanted.gpu[row]} of node {wanted.node[row]}, "
            "which does not exist"
        )
    was, will = (
        (grants.job[rows] * len(snapshot.nodes) + grants.node[rows]) * span + grants.gpu[rows]
        for grants, rows in ((held, before), (wanted, after))
    )
    moved[np.setxor1d(was, will) // (span * len(snapshot.nodes))] = True
    return moved


def _batches(sizes: Sizes, jobs: JobTable) -> IntArray:
    """The batch of each job from now on (J,)."""
    if len(sizes.global_batch):
        return sizes.global_batch
    return np.where(jobs.batch_now == NONE, jobs.batch, jobs.batch_now)


def _gangs(wanted: Grants, rows: BoolArray) -> dict[int, list[tuple[int, int]]]:
    """GPUs wanted for some of the jobs, in the order of the grants."""
    gangs: dict[int, list[tuple[int, int]]] = {}
    if rows.any():
        new = rows[wanted.job]
        for row, node, gpu in zip(
            wanted.job[new].tolist(), wanted.node[new].tolist(), wanted.gpu[new].tolist(), strict=True
        ):
            gangs.setdefault(row, []).append((node, gpu))
    return gangs
