"""One scheduling round: five decisions, the difference to what runs, the checks. Pure."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Action, Plan, Preempt, Start
from brim.core.arrays import IntArray
from brim.core.checks import check_plan
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.errors import BrimError, PlanError
from brim.policies.sockets import Policy


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
        sizes = policy.size(snapshot, beliefs, order)  # 2 how many GPUs
        _check_column(sizes.gpus, size)
        if size and (sizes.gpus.min() < 0 or (sizes.gpus > snapshot.jobs.gpus).any()):
            raise ValueError("expected sizes from 0 to the GPUs asked")
    with _part(policy, "place"):
        placed = policy.place(snapshot, beliefs, order, sizes)  # 3 which GPUs
    with _part(policy, "feed"):
        loaders = policy.feed(snapshot, beliefs, placed)  # 4 who gets the cores that feed them
        _check_column(loaders, size)
    with _part(policy, "fill"):
        wanted = policy.fill(snapshot, beliefs, placed)  # 5 what uses the rest
    plan = Plan(snapshot.now_ms, difference(snapshot, wanted, loaders))
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


def _short(value: object) -> str:
    words = f"{getattr(value, 'dtype', type(value).__name__)} {value}".replace("\n", "")
    return words if len(words) <= 60 else words[:57] + "..."


def difference(snapshot: Snapshot, wanted: Grants, loaders: IntArray) -> tuple[Action, ...]:
    """Turn wanted grants into actions: preempt who holds and is not wanted, start who is wanted and does not hold."""
    jobs = snapshot.jobs
    has = np.zeros(len(jobs), dtype=np.bool_)
    has[wanted.job] = True
    holds = jobs.holds
    leaving = np.flatnonzero(holds & ~has)
    coming = has & ~holds
    actions: list[Action] = [Preempt(int(jobs.id[row]), int(jobs.epoch[row])) for row in leaving]
    if coming.any():
        pairs: dict[int, list[tuple[int, int]]] = {}
        new = coming[wanted.job]
        for row, node, gpu in zip(
            wanted.job[new].tolist(), wanted.node[new].tolist(), wanted.gpu[new].tolist(), strict=True
        ):
            pairs.setdefault(row, []).append((node, gpu))
        actions += [
            Start(int(jobs.id[row]), int(jobs.epoch[row]) + 1, tuple(gpus), int(loaders[row]))
            for row, gpus in pairs.items()
        ]
    return tuple(actions)
