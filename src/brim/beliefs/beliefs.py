"""Predictions that a policy may use beside the facts of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.beliefs.analyser import ExchangeTimes
from brim.beliefs.gaps import PastGaps
from brim.beliefs.interference import Interference
from brim.beliefs.joins import PastJoins
from brim.beliefs.loading import Loading
from brim.beliefs.parameter_servers import StepModels
from brim.beliefs.progress import SeenProgress
from brim.beliefs.runtime import RunTimes, UserLimits
from brim.beliefs.speeds import SeenSpeeds
from brim.beliefs.work import EndedJobs, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """The models that a round may use, one per question.

    Attributes:
        run_times: How long does a job run?
        speeds: How fast is a job on any number of GPUs?
        work: How much of a job is left?
        in_place_ms: What does a job lose when its size changes and its processes stay? None where they never stay: a
            change then costs as much as a start.
        exchange: How long does an exchange of gradients take on this cluster? None if not measured.
        interference: How much do jobs slow each other down that share GPUs?
        judges_steps: Is what neighbours cost found out only by comparing step times with those alone? Jobs of which
            these are not known then share nothing, since nobody would find out that it hurts.
        loading: How fast does the loader of a job deliver samples?
        gaps: How long will a GPU that no regular job holds stay so?
        joins: What will it cost a padding job to start, or to grow?
        steps: How long does a step take with parameter servers, by model? None where no model was profiled.
        progress: How far is a job from its target loss?
        restart_ms: What does a job lose that restarts on other devices?
    """

    run_times: RunTimes = field(default_factory=UserLimits)
    speeds: SeenSpeeds = field(default_factory=SeenSpeeds)
    work: Work = field(default_factory=EndedJobs)
    in_place_ms: float | None = None
    exchange: ExchangeTimes | None = None
    interference: Interference = field(default_factory=Interference)
    judges_steps: bool = False
    loading: Loading = field(default_factory=Loading)
    gaps: PastGaps = field(default_factory=PastGaps)
    joins: PastJoins = field(default_factory=PastJoins)
    steps: StepModels | None = None
    progress: SeenProgress = field(default_factory=SeenProgress)
    restart_ms: float = 30_000.0
