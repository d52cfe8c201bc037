"""Choose GPUs and batch of all jobs jointly by goodput: samples per second, discounted where batches are large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.overheads import Observed, costs
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.policies.size.candidates import Candidates, candidates
from brim.policies.size.knapsack import best_sizes
from brim.policies.sockets import Sizes
from brim.units import MS_PER_S

WITHOUT_GPUS: float = 0.01
"""Speed-up of a job without GPUs, for utilities that need a value above 0. Ours."""
KEPT_LEAST: float = 0.5
"""Share of its speed-up that a job keeps however much a change costs: a costly change may take twice its cost to pay.
Ours; without it, jobs whose starts take as long as the horizon would stay at the size they were first measured on."""


@dataclass(frozen=True, slots=True)
class PolluxFitness:
    """Pollux: maximise the generalised mean of the jobs' speed-ups, with restarts weighed against each job's age.

    With exponent p < 0 the mean is greatest where the sum of ``-speedup ** p`` is, so the search over allocations is a
    knapsack and is solved exactly (the original searches genetically). A job that would change counts
    (T - R d) / (T + d) of its speed-up: T its age, R its restarts so far, d what a restart costs.

    Attributes:
        power: The exponent p.
        gpus_max: Most GPUs of a job.
        growth: A job may get this many times the most GPUs it has reported from.

    Source:
        Qiao et al., Pollux, OSDI 2021, section 4.2; limits of its published simulator. Differs: the search is exact; a
        speed-up is relative to the fewest GPUs the job runs on; sizes fit together on nodes (``candidates``).
    """

    resizes_running: ClassVar[bool] = True
    power: float = -1.0
    gpus_max: int = 64
    growth: int = 2

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        jobs = snapshot.jobs
        found = candidates(snapshot, beliefs.speeds.of_jobs(snapshot), gpus_max=self.gpus_max, growth=self.growth)
        age_ms, cost_ms = snapshot.now_ms - jobs.submit_ms, restart_ms(snapshot, beliefs)
        restarts = np.maximum(jobs.placements - 1, 0)
        kept = np.maximum((age_ms - restarts * cost_ms) / np.maximum(age_ms + cost_ms, 1.0), 0.0)
        utility = np.power(WITHOUT_GPUS, self.power) / self.power
        with np.errstate(divide="ignore"):
            value = np.power(_after_change(found, snapshot, kept), self.power) / self.power
        return best_values(snapshot, beliefs, found, value, np.full(len(jobs), utility))


@dataclass(frozen=True, slots=True)
class Goodput:
    """Proportional fairness of speed-ups: young jobs weigh more, and a change must pay soon.

    The part chooses the sizes with the greatest sum of ``weight * log(speedup)``. A job's weight falls with the work it
    has done, because a job that has done more can be expected to have more ahead. A job that would start or change
    loses the share of ``horizon_ms`` that this takes.

    Attributes:
        gpus_max: Most GPUs of a job.
        growth: A job may get this many times the most GPUs it has reported from.
        horizon_ms: Time within which a change must pay, or twice its cost if that is longer.
        young_ms: Work, as time on the fewest GPUs, up to which a job counts as young.
        ageing: Exponent of work with which the weight of old jobs falls.

    Source:
        Ours. Goodput comes from Pollux (OSDI 2021), the exact search over GPUs and batch from Effective Elastic Scaling
        (MASCOTS 2020), and less weight for jobs that have received more from Tiresias (NSDI 2019). The constants were
        chosen on the six workloads of Pollux (docs/decisions/0009).
    """

    resizes_running: ClassVar[bool] = True
    gpus_max: int = 64
    growth: int = 4
    horizon_ms: int = 120 * MS_PER_S
    young_ms: int = 1_800 * MS_PER_S
    ageing: float = 0.25

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        found = candidates(snapshot, beliefs.speeds.of_jobs(snapshot), gpus_max=self.gpus_max, growth=self.growth)
        kept = np.maximum(1.0 - restart_ms(snapshot, beliefs) / self.horizon_ms, KEPT_LEAST)
        weight = (1.0 + work_ms(snapshot, found) / self.young_ms) ** -self.ageing
        value = weight[found.possible[0]] * np.log(_after_change(found, snapshot, kept, starts=True))
        return best_values(snapshot, beliefs, found, value, weight * np.log(WITHOUT_GPUS))


def restart_ms(snapshot: Snapshot, beliefs: Beliefs) -> FloatArray:
    """Expected cost of a start or change of GPUs for each job (J,).

    That is as long as its starts have taken so far; for a job with GPUs, the cost of a change in place if such exist.
    """
    jobs = snapshot.jobs
    began = jobs.starts > 0  # a job whose share changes while it waits to start has stalled, and not started yet
    starts = Observed(count=jobs.starts, total_ms=np.where(began, jobs.stalled_ms, 0))
    nothing = Observed(count=np.zeros_like(jobs.starts), total_ms=np.zeros_like(jobs.starts))
    through_checkpoint = costs(start=nothing, save=nothing, restart=starts).restart_ms
    if beliefs.in_place_ms is None:
        return through_checkpoint
    return np.where(jobs.holds, beliefs.in_place_ms, through_checkpoint)


def work_ms(snapshot: Snapshot, found: Candidates) -> FloatArray:
    """Work done so far, as time on the fewest GPUs the job may run on; GPU time if no rate is known (J,)."""
    jobs = snapshot.jobs
    rate = np.take_along_axis(found.rate_JG, found.least[:, None], axis=1)[:, 0]
    known = found.fitted & (found.least > 0)
    return np.where(known, jobs.samples_done / np.where(known, rate, 1.0) * MS_PER_S, jobs.service_gpu_ms)


def best_values(
    snapshot: Snapshot, beliefs: Beliefs, found: Candidates, value_F: FloatArray, value_none: FloatArray
) -> Sizes:
    """The sizes of greatest total value, of values (F,) of the possible ones and ``value_none`` (J,) of no GPUs.

    No job that would start over (``Beliefs.starts_over``) makes room for one that came later, nor for one that grows:
    each newcomer may be worth what is lost, and together they would keep the job from ever ending.
    """
    value = np.full(found.rate_JG.shape, -np.inf)
    value[found.possible] = value_F
    value[:, 0] = np.where(found.active, value_none, 0.0)
    starts_over = beliefs.starts_over(snapshot) & found.active
    gpus = best_sizes(value, found.capacity)
    assert gpus is not None  # no GPUs for any job is always allowed
    while (kept := starts_over & _makes_room(snapshot, gpus)).any():
        value[kept, 0] = -np.inf
        without = best_sizes(value, found.capacity)
        if without is None:
            break  # fewer GPUs are open than these jobs hold
        gpus = without
    return found.sizes(gpus, snapshot)


def _makes_room(snapshot: Snapshot, gpus: IntArray) -> BoolArray:
    """Which jobs are to have no GPUs, while one that came later starts or any job grows (J,)."""
    jobs = snapshot.jobs
    more = gpus > jobs.gpus_now
    latest = len(jobs) if (more & jobs.holds).any() else np.flatnonzero(more).max(initial=-1)
    makes_room: BoolArray = (gpus == 0) & (np.arange(len(jobs)) < latest)
    return makes_room


def _after_change(found: Candidates, snapshot: Snapshot, kept: FloatArray, *, starts: bool = False) -> FloatArray:
    """Speed-ups of the possible sizes (F,).

    A running job keeps only the share ``kept`` (J,) of the speed-ups of other sizes; with ``starts``, a waiting job
    keeps only that share of all its speed-ups.
    """
    jobs, (job, gpus) = snapshot.jobs, found.possible
    changes = gpus != jobs.gpus_now[job]
    if not starts:
        changes &= jobs.holds[job]
    return found.speedup * np.where(changes, kept[job], 1.0)
