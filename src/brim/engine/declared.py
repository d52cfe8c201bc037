"""What the parts of a policy declare, held against what a round decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Plan, Resize, Tune
from brim.core.arrays import BoolArray
from brim.core.changes import RULES
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE
from brim.engine.answers import Seen, asking
from brim.errors import PlanError
from brim.policies.sockets import Policy


def are_settled(policy: Policy, sees: Mapping[str, Seen], beliefs_for: Callable[[str], Beliefs]) -> bool:
    """Whether the parts of these sockets that act when no job waits say that they are settled."""
    for socket, seen_by in sees.items():
        if not policy.declares(socket, "acts_when_idle"):
            continue
        if not policy.declares(socket, "settled"):
            return False
        with asking(policy, socket, seen_by, "settled") as seen:
            if not getattr(policy, socket).settled(seen, beliefs_for(socket)):
                return False
    return True


def check_left_alone(plan: Plan, snapshot: Snapshot, padding: BoolArray) -> None:
    """Check that no running job is changed by a policy whose parts do not declare that they change running jobs.

    Whether its grants are revocable may change, and so may its share of GPUs that it keeps: no process notices. Padding
    jobs that are taken as such may be changed.

    Raises:
        PlanError: a job is changed.
    """
    if not (RULES.frees & RULES.gives)[plan.bookings.kind].any():
        return
    for action in plan:
        if isinstance(action, Resize | Tune):
            row = int(np.searchsorted(snapshot.jobs.id, action.job))
            has = snapshot.setting_of(row)
            if padding[row]:
                continue
            if has is not None and has.batch == NONE:  # it trains with a batch of its own, which it has reported since
                has = replace(has, batch=action.setting.batch)
            if has is not None and action.setting.same_for_processes_as(has):
                continue
            changed = "other GPUs" if isinstance(action, Resize) else "another batch"
            raise PlanError(
                f"plan gives job {action.job} {changed} while it runs, but none of the policy's parts declares "
                "this: set resizes_running = True in the size part or moves_running = True in the place part"
            )
