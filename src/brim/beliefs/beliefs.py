"""What a policy believes beyond the facts of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.beliefs.analyser import ExchangeTimes
from brim.beliefs.runtime import RunTimes, UserLimits
from brim.beliefs.speeds import SeenSpeeds
from brim.beliefs.work import AsMuchAgain, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """The models a round may ask, one per question.

    Attributes:
        run_times: How long does a job run?
        speeds: How fast is it, on any number of GPUs?
        work: How much of it is left?
        exchange: How long do gradients take to exchange on this cluster? None where nobody measured.
    """

    run_times: RunTimes = field(default_factory=UserLimits)
    speeds: SeenSpeeds = field(default_factory=SeenSpeeds)
    work: Work = field(default_factory=AsMuchAgain)
    exchange: ExchangeTimes | None = None
