"""Predictions that a policy may use beside the facts of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

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
from brim.core.arrays import BoolArray, IntArray
from brim.core.lifecycle import Phase
from brim.core.snapshot import Snapshot


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
        saves_unreported: Does a job that has reported no progress save when it is told to leave? In a replay every job
            does (``sim.overheads.Overheads``). Of a live one nobody knows: it is believed to start from zero.
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
    saves_unreported: bool = True

    def starts_over(self, snapshot: Snapshot) -> BoolArray:
        """Whether each job, as believed, would lose its whole run if its GPUs were taken from it (J,)."""
        jobs = snapshot.jobs
        lost: BoolArray = jobs.holds & (jobs.samples_done <= 0) & (not self.saves_unreported)
        return lost

    def unsaved_ms(self, snapshot: Snapshot) -> IntArray:
        """Time for which each job has run for nothing, as believed, if its GPUs are taken from it now, in ms (J,)."""
        jobs = snapshot.jobs
        runs = self.starts_over(snapshot) & (jobs.phase == int(Phase.RUNNING))
        return np.where(runs, snapshot.now_ms - jobs.running_since_ms, 0)
