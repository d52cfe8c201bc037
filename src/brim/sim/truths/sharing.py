"""Jobs that share GPUs slow each other down: a truth around any other.

Of a set of models that was measured, each job is slowed down as it was there; of any other set, by the demand of its
jobs. The parameters are those of the truth: policies believe what ``beliefs.interference`` says. A job notices its
slowdown only after it has trained for some time beside the same neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.interference import DemandRule
from brim.beliefs.measured_sets import MeasuredSets
from brim.core.arrays import FloatArray, IntArray
from brim.core.events import Report
from brim.core.gpu_names import is_of_type
from brim.core.trace import NONE, Trace
from brim.sim.truths.truth import ALONE, Colocation, Pace, Truth
from brim.units import MS_PER_MIN, WHOLE_GPU, counted

DEMAND: Final = MeasuredSets(rule=DemandRule(per_neighbour=0.035))
"""The rule alone. 3.5 % for a neighbour: the mean of EaCO's three pairs (arXiv 2412.08294)."""
OBSERVATION_MS: Final = 10 * MS_PER_MIN
"""Time beside the same neighbours after which a job knows its slowdown: ours, for EaCO's epoch of at most an hour."""
BUSY: Final = 1.0
"""Demand of a job whose trace records no utilisation: the worst that it may be to its neighbours."""
_NOTHING: Final = Report(samples_done=0.0, samples_per_s=0.0)


class Sharing:
    """A truth in which neighbours cost time. See ``sim.truths.truth.Truth``.

    Args:
        alone: How the jobs run without neighbours.
        trace: The jobs.
        measured: Measured sets, and the rule for all others.
        gpu_types: Types of the cluster's GPUs; sets on other types are not used.
        noise: Standard deviation of the logarithm of slowdowns, drawn once for each set; 0 for none.
        seed: Seed of the draws.
    """

    name: ClassVar[str] = "sharing"
    contended: ClassVar[bool] = True

    def __init__(
        self, alone: Truth, trace: Trace, measured: MeasuredSets, gpu_types: Sequence[str] = (), *,
        noise: float = 0.0, seed: int = 0,
    ) -> None:
        self._alone, self._rule, self._noise, self._seed = alone, measured.rule, noise, seed
        self._given, present = len(measured.sets), {name.lower() for name in trace.profiles}
        self._sets: dict[tuple[str, ...], dict[str, float]] = {}
        for one in measured.sets:
            models = [model.lower() for model in one.models]
            on_these = not gpu_types or any(is_of_type(one.gpu_type, name) for name in gpu_types)
            if on_these and present.issuperset(models):
                self._sets[tuple(sorted(models))] = dict(zip(models, one.ratios, strict=True))
        self._profile = trace.profile
        self._model = [trace.profiles[code].lower() if code != NONE else "" for code in trace.profile.tolist()]
        util = trace.gpu_util_milli
        self._demand: list[float] = np.where(util == NONE, BUSY, util / WHOLE_GPU).tolist()
        self._num_unknown = int((util == NONE).sum())
        self._jobs = len(trace)
        self._known: dict[tuple[int, ...], dict[int, float]] = {}

    @property
    def run_ms(self) -> IntArray:
        """See ``Truth``."""
        return self._alone.run_ms

    @property
    def shortest_ms(self) -> IntArray:
        """See ``Truth``: nobody is faster for having neighbours."""
        return self._alone.shortest_ms

    @property
    def least_gpu_ms(self) -> IntArray:
        """See ``Truth``: the GPU time in which a job is busy, which neighbours cannot use."""
        busy_ms: IntArray = (self._alone.least_gpu_ms * np.array(self._demand)).astype(np.int64)
        return busy_ms

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``."""
        pace = self._alone.pace(job, done, nodes, batch, colocation)
        if not colocation.neighbours:
            return pace
        slowdown = self.slowdown(job, colocation.neighbours)
        per_ms, until, ends = pace.per_ms / slowdown, pace.until, pace.ends
        noticed = colocation.met + per_ms * OBSERVATION_MS
        knows = done >= noticed
        if not knows and noticed < until:
            until, ends = noticed, False
        told = _NOTHING if pace.report is None else pace.report
        seen = tuple(one._replace(step_s=one.step_s * slowdown, sync_s=one.sync_s * slowdown) for one in told.seen)
        rate, known = told.samples_per_s / slowdown, slowdown if knows else math.nan
        return Pace(per_ms, until, ends, replace(told, samples_per_s=rate, seen=seen, slowdown_ratio=known))

    def slowdown(self, job: int, neighbours: tuple[int, ...]) -> float:
        """Step time of a job beside these neighbours, relative to that alone."""
        everyone = tuple(sorted((job, *neighbours)))
        if everyone not in self._known:
            self._known[everyone] = self._among(everyone)
        return self._known[everyone][job]

    def _among(self, jobs: tuple[int, ...]) -> dict[int, float]:
        models = tuple(sorted(self._model[job] for job in jobs))
        measured = self._sets.get(models)
        ratios = (
            tuple(measured[self._model[job]] for job in jobs) if measured is not None
            else self._rule.slowdowns([self._demand[job] for job in jobs])
        )
        if not self._noise:
            return dict(zip(jobs, ratios, strict=True))
        draws = np.random.default_rng((self._seed, *jobs)).normal(0.0, self._noise, len(jobs))
        return {
            job: max(1.0, ratio * math.exp(draw)) for job, ratio, draw in zip(jobs, ratios, draws.tolist(), strict=True)
        }

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``: the models of the trace, by which slowdowns are known."""
        return {"profile": self._profile} | self._alone.columns()

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return self._alone.total_samples()

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        some = f"{len(self._sets)} of {counted(self._given, 'measured set')}"
        sets = f"as those {some} say whose models and GPU type are here, else " if self._given else ""
        said = [
            f"Jobs that share GPUs slow each other down {sets}by the part of its time in which each uses the GPU. A "
            f"job knows its slowdown after {OBSERVATION_MS // MS_PER_MIN} min beside the same neighbours."
        ]
        if self._num_unknown:
            said.append(
                f"Jobs that record no utilisation of their GPUs: {self._num_unknown:,} of {self._jobs:,}. They count "
                "as busy all the time."
            )
        return self._alone.sentences() + said
