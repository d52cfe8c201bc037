"""One scheduling round: five decisions, the difference to what runs, the checks. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Action, Plan, Preempt, Start
from brim.core.arrays import IntArray
from brim.core.checks import check_plan
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
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
        PlanError: the policy wants something impossible.
    """
    memo = None
    remember = getattr(policy.order, "remember", None)  # 0 what the last rounds left behind
    if remember is not None:
        new = remember(snapshot)
        if not np.array_equal(new, snapshot.jobs.memo):
            memo = new
            snapshot = _with_memo(snapshot, new)
    order = policy.order(snapshot, beliefs)  # 1 who first
    sizes = policy.size(snapshot, beliefs, order)  # 2 how many GPUs
    placed = policy.place(snapshot, beliefs, order, sizes)  # 3 which GPUs
    loaders = policy.feed(snapshot, beliefs, placed)  # 4 who gets the cores that feed them
    wanted = policy.fill(snapshot, beliefs, placed)  # 5 what uses the rest
    plan = Plan(snapshot.now_ms, difference(snapshot, wanted, loaders))
    check_plan(snapshot, plan)
    ids = snapshot.jobs.id
    return RoundResult(
        plan=plan, job=ids, why=wanted.why, memo=memo,
        blocker=np.where(wanted.blocker >= 0, ids[wanted.blocker], -1) if len(ids) else wanted.blocker,
    )


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


def _with_memo(snapshot: Snapshot, memo: IntArray) -> Snapshot:
    return replace(snapshot, jobs=replace(snapshot.jobs, memo=memo))
