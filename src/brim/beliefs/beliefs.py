"""What a policy believes beyond the facts of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.beliefs.runtime import RunTimes, UserLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """The models a round may ask, one per question.

    Attributes:
        run_times: How long does a job run?
    """

    run_times: RunTimes = field(default_factory=UserLimits)
