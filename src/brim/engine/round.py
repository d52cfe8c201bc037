"""One scheduling round: five decisions, their difference from what runs, and the checks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import Undeclared
from brim.core.actions import Plan, Resize, Tune
from brim.core.arrays import IntArray, replaced
from brim.core.changes import RULES
from brim.core.checks import check_plan
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.engine.answers import (
    Seen,
    asking,
    check_grants,
    check_loaders,
    check_permutation,
    check_sizes,
    check_sizes_kept,
    filled_grants,
    own_column,
    own_grants,
    own_memory,
    own_sizes,
)
from brim.engine.difference import difference
from brim.engine.rows import reasons
from brim.errors import PlanError
from brim.policies.sockets import SOCKETS, Policy, Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The decisions of a round, what they were made on, and their reasons.

    Attributes:
        plan: The changes, frees before takes.
        snapshot: What the round decided on.
        sizes: Answer of the size part.
        grants: Grants after the plan: those of the place part, and those that the fill part added.
        why: ``Why`` code per job, 0 for one that has GPUs after the plan (J,).
        blocker: Id of the job that blocks it, -1 for none (J,).
        memory: By socket, what a part stores per job for the next round, (J,) or (J, K); only what changed.
    """

    plan: Plan
    snapshot: Snapshot
    sizes: Sizes
    grants: Grants
    why: IntArray
    blocker: IntArray
    memory: Mapping[str, IntArray]

    @property
    def job(self) -> IntArray:
        """Ids of the jobs that were in the snapshot (J,)."""
        return self.snapshot.jobs.id


def run_round(snapshot: Snapshot, beliefs: Beliefs, policy: Policy) -> RoundResult:
    """Run the five decisions of a policy on a snapshot and return the checked plan with its reasons.

    Raises:
        PlanError: the policy wants something impossible, or a part of it failed.
    """
    size = len(snapshot.jobs)
    memory, sees = _remembered(snapshot, policy)  # 0 what the parts remember of earlier rounds
    withheld = replaced(beliefs, run_times=Undeclared())

    def beliefs_for(socket: str) -> Beliefs:
        return replaced(beliefs) if policy.declares(socket, "asks_run_times") else withheld

    with asking(policy, "order", sees["order"]) as seen:
        order = own_column(policy.order(seen, beliefs_for("order")), size)  # 1 which job first
        check_permutation(order, size)
    with asking(policy, "size", sees["size"]) as seen:
        sizes = own_sizes(policy.size(seen, beliefs_for("size"), order), size)  # 2 how many GPUs, which batch
        check_sizes(sizes, snapshot.jobs)
    with asking(policy, "place", sees["place"]) as seen:
        placed = own_grants(policy.place(seen, beliefs_for("place"), order, replaced(sizes)), size)  # 3 which GPUs
        check_grants(placed, snapshot)
        check_sizes_kept(placed, sizes, snapshot.jobs)
    with asking(policy, "fill", sees["fill"]) as seen:  # 4 which jobs use the remaining GPUs
        wanted = filled_grants(policy.fill(seen, beliefs_for("fill"), replaced(placed)), placed, snapshot)
    with asking(policy, "feed", sees["feed"]) as seen:
        # 5 how many loader processes
        loaders = own_column(policy.feed(seen, beliefs_for("feed"), replaced(wanted)), size)
        check_loaders(loaders, snapshot)
    plan = difference(snapshot, sizes, wanted, loaders, tunes_loaders=policy.changes_running)
    if not policy.changes_running and (RULES.frees & RULES.gives)[plan.bookings.kind].any():
        _check_left_alone(plan, snapshot, policy)
    try:
        check_plan(snapshot, plan, count_loaders=policy.declares("feed", "counts_cores"))
    except PlanError as error:  # several parts have made it
        raise PlanError(f"policy {policy.name!r}: {error}") from error
    why, blocker = reasons(wanted.job, wanted.why, wanted.blocker, snapshot.jobs.id)
    return RoundResult(
        plan=plan, snapshot=snapshot, sizes=sizes, grants=wanted, why=why, blocker=blocker, memory=memory
    )


def _remembered(snapshot: Snapshot, policy: Policy) -> tuple[dict[str, IntArray], dict[str, Seen]]:
    """What parts newly remember, and the snapshot that each part sees.

    A part with ``remember`` sees in ``memo`` what it has just remembered. The others see what the order part has just
    remembered, (J,) or (J, K) if it remembers K integers per job; 0 if the order part has no ``remember``.
    """
    new: dict[str, IntArray] = {}
    given = Seen(snapshot)
    sees = dict.fromkeys(SOCKETS, given)
    for socket in SOCKETS:
        if not policy.declares(socket, "remember"):
            continue
        part = getattr(policy, socket)
        with asking(policy, socket, given):
            columns = int(getattr(part, "memory_columns", 1))
            if columns < 1:
                raise PlanError(f"memory_columns is {columns}, expected at least 1")
        before = snapshot.memory.of(socket, len(snapshot.jobs), columns)
        sees[socket] = given if before is snapshot.jobs.memo else given.with_memo(before)
        with asking(policy, socket, sees[socket]) as seen:
            after = own_memory(part.remember(seen), len(snapshot.jobs), columns)
        if not np.array_equal(after, before):
            new[socket] = after
            sees[socket] = given.with_memo(after)
        if socket == "order":  # the first of SOCKETS
            sees.update(dict.fromkeys(SOCKETS, sees[socket]))
    return new, sees


def _check_left_alone(plan: Plan, snapshot: Snapshot, policy: Policy) -> None:
    """Check that no running job is changed by a policy whose parts do not declare that they change running jobs.

    Whether its grants are revocable may change, and so may its share of GPUs that it keeps: no process notices.
    """
    for action in plan:
        if isinstance(action, Resize | Tune):
            has = snapshot.setting_of(int(np.searchsorted(snapshot.jobs.id, action.job)))
            if has is not None and action.setting.same_for_processes_as(has):
                continue
            changed = "other GPUs" if isinstance(action, Resize) else "another batch"
            raise PlanError(
                f"policy {policy.name!r} gives job {action.job} {changed} while it runs, but none of its parts "
                "declares this: set resizes_running = True in the size part or moves_running = True in the place part"
            )
