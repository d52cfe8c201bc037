"""One scheduling round: five decisions, their difference from what runs, and the checks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import Undeclared
from brim.core.actions import Plan
from brim.core.arrays import IntArray, frozen, replaced
from brim.core.checks import check_plan
from brim.core.snapshot import Snapshot
from brim.core.tables import EMPTY, Grants
from brim.engine.answers import (
    Seen,
    asking,
    check_grants,
    check_loaders,
    check_permutation,
    check_shares,
    check_sizes,
    check_sizes_kept,
    filled_grants,
    own_column,
    own_grants,
    own_sizes,
)
from brim.engine.declared import are_settled, check_left_alone
from brim.engine.difference import difference
from brim.engine.gate import gated
from brim.engine.memory import remembered, stored
from brim.engine.padding import Hidden, Reasons, as_held, hidden
from brim.engine.rows import reasons
from brim.errors import PlanError
from brim.policies.fill.victims import spare_padding
from brim.policies.place.renaming import renamed
from brim.policies.sockets import Policy, Sizes, WholePlan, Worth
from brim.policies.source_lines import own_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The decisions of a round, what they were made on, and their reasons.

    Attributes:
        plan: The changes, frees before takes.
        snapshot: What the round decided on.
        order: Job rows, first served first, without padding jobs that are hidden; empty if ``only_fills``.
        sizes: Answer of the size part.
        grants: Grants after the plan: those of the place part, and those that the fill part added.
        why: ``Reason`` code per job, 0 for one that has GPUs after the plan (J,).
        blocker: Id of the job that blocks it, -1 for none (J,).
        memory: By socket, what a part stores per job for the next round, (J,) or (J, K); only what changed.
        only_fills: Whether the regular jobs were left as they are, because only padding jobs had a reason for a round.
        settled: Whether only an event can change what is decided about regular jobs: the plan has none of them, none
            waits, and all parts that act when no job waits say so. False if there is no such part, or ``only_fills``.
        settled_padding: The same of padding jobs that the fill part takes, whether or not one waits.
    """

    plan: Plan
    snapshot: Snapshot
    order: IntArray
    sizes: Sizes
    grants: Grants
    why: IntArray
    blocker: IntArray
    memory: Mapping[str, IntArray]
    only_fills: bool = False
    settled: bool = False
    settled_padding: bool = False

    @property
    def job(self) -> IntArray:
        """Ids of the jobs that were in the snapshot (J,)."""
        return self.snapshot.jobs.id

    @property
    def reasons(self) -> Reasons:
        """``why`` and ``blocker`` with the ids of the jobs."""
        return Reasons(self.job, self.why, self.blocker)


def run_round(
    snapshot: Snapshot, beliefs: Beliefs, policy: Policy, reasons_before: Reasons | None = None
) -> RoundResult:
    """Run the five decisions of a policy on a snapshot and return the checked plan with its reasons.

    A policy whose fill part takes padding jobs decides about the others as if these did not exist, their loader workers
    included: Feed is asked about them before Fill, and about padding jobs with the cores that are then left.

    Args:
        snapshot: What to decide on.
        beliefs: Predictions that parts may read.
        policy: The parts.
        reasons_before: To leave regular jobs as they are and only fill what they leave: why each job waited in the
            last round. None to decide about all jobs.

    Raises:
        PlanError: the policy wants something impossible, or a part of it failed.
    """
    size, hides = len(snapshot.jobs), hidden(snapshot, policy)
    withheld = replaced(beliefs, run_times=Undeclared())

    def beliefs_for(socket: str) -> Beliefs:
        return replaced(beliefs) if policy.declares(socket, "asks_run_times") else withheld

    if reasons_before is None:
        memory, sees_regular, order, sizes, placed, loaders = _regular(hides, policy, beliefs_for)
    else:
        memory, sees_regular, order, loaders = {}, {}, EMPTY, hides.view.jobs.loaders_now
        sizes, placed = as_held(hides.view, reasons_before)
    sizes, placed, loaders = hides.sizes(sizes), hides.grants(placed), hides.column(loaders)
    if hides.any and reasons_before is None:
        placed = spare_padding(snapshot, beliefs.joins, placed, hides.padding)
    counts = policy.declares("feed", "counts_cores")
    kept = memory.get("feed")
    sees = remembered(("fill", "feed"), snapshot, policy, memory)
    if hides.any and "feed" in memory:  # of regular jobs, only what rounds about them have noticed
        memory["feed"] = hides.only_padding(memory["feed"], stored(policy, "feed", snapshot) if kept is None else kept)
        sees["feed"] = sees["feed"].with_memo(memory["feed"])
    with asking(policy, "fill", sees["fill"]) as seen:  # 4 which jobs use the remaining GPUs
        taken = frozen(loaders[placed.job]) if hides.any and counts else EMPTY
        filled = policy.fill(seen, beliefs_for("fill"), replaced(placed, loader_workers=taken))
        wanted = filled_grants(filled, placed, snapshot)
        if policy.takes_padding:
            hides.check_filled(placed, wanted)
    feeds = sees["feed"], wanted
    if hides.any and counts:
        feeds = hides.left_to_padding(sees["feed"], wanted, loaders)
    with asking(policy, "feed", feeds[0]) as seen:  # 5 how many loader processes
        others = own_column(policy.feed(seen, beliefs_for("feed"), replaced(feeds[1])), size)
        loaders = hides.only_padding(others, loaders) if hides.any else others
        check_loaders(loaders, snapshot)
    plan = _checked_plan(policy, hides, sizes, wanted, loaders)
    settled = settled_padding = False
    if policy.acts_when_idle:
        changes = np.isin(snapshot.jobs.id, [action.job for action in plan])
        if reasons_before is None and not ((changes | snapshot.jobs.waits) & ~hides.padding).any():
            settled = are_settled(policy, sees_regular if hides.any else {**sees_regular, **sees}, beliefs_for)
        if hides.any and not (changes & hides.padding).any():
            settled_padding = are_settled(policy, {"fill": sees["fill"], "feed": feeds[0]}, beliefs_for)
    why, blocker = reasons(wanted.job, wanted.why, wanted.blocker, snapshot.jobs.id)
    return RoundResult(
        plan=plan, snapshot=snapshot, order=order, sizes=sizes, grants=wanted, why=why, blocker=blocker, memory=memory,
        only_fills=reasons_before is not None,
        settled=settled, settled_padding=settled_padding,
    )


def _regular(
    hides: Hidden, policy: Policy, beliefs_for: Callable[[str], Beliefs]
) -> tuple[dict[str, IntArray], dict[str, Seen], IntArray, Sizes, Grants, IntArray]:
    """Ask for the decisions about all jobs that are not hidden.

    Returns:
        What parts remember (of all jobs), what each part saw, the order in rows of all jobs, sizes, grants, and loader
        workers (V,), 0 if there is nobody to hide.
    """
    snapshot, memory = hides.view, dict[str, IntArray]()
    size = len(snapshot.jobs)
    sees = remembered(("order", "size", "place"), snapshot, policy, memory)  # 0 what they remember of earlier rounds
    with asking(policy, "order", sees["order"]) as seen:
        order = own_column(policy.order(seen, beliefs_for("order")), size)  # 1 which job first
        check_permutation(order, size)
    worth: Worth | None = None
    with asking(policy, "size", sees["size"]) as seen:
        if policy.declares("size", "with_worth"):
            decided, worth = cast("WholePlan", policy.size).with_worth(seen, beliefs_for("size"), order)
        else:
            decided = policy.size(seen, beliefs_for("size"), order)
        sizes = own_sizes(decided, size)  # 2 how many GPUs, which batch
        check_sizes(sizes, snapshot.jobs)
    with asking(policy, "place", sees["place"]) as seen:
        placed = own_grants(policy.place(seen, beliefs_for("place"), order, replaced(sizes)), size)  # 3 which GPUs
        check_grants(placed, snapshot)
        if not policy.shares_gpus:
            check_shares(placed, snapshot.jobs)
        check_sizes_kept(placed, sizes, snapshot.jobs)
    if worth is not None:
        placed = renamed(snapshot, placed)
        with asking(policy, "size", sees["size"]):
            sizes, placed = gated(snapshot, order, sizes, placed, worth)
    loaders: IntArray = np.zeros(size, dtype=np.int64)
    if hides.any:
        sees |= remembered(("feed",), snapshot, policy, memory)
        with asking(policy, "feed", sees["feed"]) as seen:
            loaders = own_column(policy.feed(seen, beliefs_for("feed"), replaced(placed)), size)
            check_loaders(loaders, snapshot)
    memory = {socket: hides.column(values) for socket, values in memory.items()}
    return memory, sees, hides.rows[order], sizes, placed, loaders


def _checked_plan(policy: Policy, hides: Hidden, sizes: Sizes, wanted: Grants, loaders: IntArray) -> Plan:
    """What changes the settings of jobs into those that they are to have; an error names the lines of the policy."""
    plan = difference(hides.snapshot, sizes, wanted, loaders, tunes_loaders=policy.changes_running)
    try:
        if not policy.changes_running:
            check_left_alone(plan, hides.snapshot, hides.padding)
        check_plan(hides.snapshot, plan, count_loaders=policy.declares("feed", "counts_cores"))
    except PlanError as error:  # several parts have made it
        lines = own_lines(policy)
        raise PlanError(f"policy {policy.name!r}: {error}" + (f"; see {lines}" if lines else "")) from error
    return plan
