"""Slowdown of jobs that share GPUs: what was reported of exactly these residents, else of pairs, else by demand.

Every answer names its basis, with mean, variance and the number of jobs that were observed. A job of which neither a
history nor its utilisation is known has the basis UNKNOWN: nothing can be said, and a policy should not share its GPUs.

What is known beforehand comes from ``beliefs.measured_sets``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from brim.core.slowdowns import MeanRatio, ResidentKind, ResidentSet
from brim.core.tables import SlowdownTable
from brim.core.trace import NONE
from brim.errors import ConfigError

SEED_DEVIATION: Final = 0.02
"""Relative standard deviation of a slowdown that was published once. Ours: EaCO gives no spread."""
_ROUNDS: Final = 100
_SETTLED: Final = 1e-9


class Basis(IntEnum):
    """On what a slowdown was predicted."""

    ALONE = 0
    HISTORY = 1
    """Jobs of the same models and batches, on GPUs of the same type, in exactly this set."""
    PAIRS = 2
    """The product of what each neighbour does alone."""
    DEMAND = 3
    """The rule, from the utilisation of each resident when it is alone."""
    UNKNOWN = 4


class Slowdown(NamedTuple):
    """Predicted step time beside neighbours, relative to that alone.

    Attributes:
        mean: At least 1; NaN where nothing is known.
        variance: Variance of one job's slowdown around it.
        jobs: How many were observed; 0 for the rule.
        basis: On what it was predicted.
    """

    mean: float
    variance: float
    jobs: int
    basis: Basis


ALONE: Final = Slowdown(1.0, 0.0, 0, Basis.ALONE)
UNKNOWN: Final = Slowdown(math.nan, math.nan, 0, Basis.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRule:
    """Slowdown from demand: the larger of a cost for each neighbour, and of the queue for a time-sliced GPU.

    Attributes:
        per_neighbour: Slowdown that each neighbour causes even where the GPU is hardly used.
        deviation: Relative standard deviation of its answers.

    Raises:
        ConfigError: a parameter is negative or not finite.
    """

    per_neighbour: float = 0.0331
    deviation: float = 0.1

    def __post_init__(self) -> None:
        for name in ("per_neighbour", "deviation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"rule: found {name}={getattr(self, name):g}, expected a number from 0 up")

    def slowdowns(self, demands: Sequence[float]) -> tuple[float, ...]:
        """Return the slowdown of each of R residents, given the part of its time alone in which it uses the GPU.

        A job's time on the GPU is stretched by as many neighbours as use the GPU at that moment, on average; the rest
        of its time is not. The time slices of two jobs that do nothing else thus take twice as long, and those of three
        three times, while jobs that rarely use the GPU rarely meet.

        Source:
            The mean-field answer of the machine-repairman model. Differs from papers of packing (EaCO's table, Gavel),
            which state slowdowns by number of residents or not at all.
        """
        least = 1.0 + self.per_neighbour * (len(demands) - 1)
        return tuple(max(least, ratio) for ratio in queueing(demands))


def queueing(demands: Sequence[float]) -> tuple[float, ...]:
    """Slowdowns of residents that take turns on a GPU, from the part of its time alone that each is busy there.

    Example:
        >>> [round(ratio, 2) for ratio in queueing((1.0, 1.0))]
        [2.0, 2.0]
        >>> [round(ratio, 2) for ratio in queueing((0.6, 0.3))]
        [1.25, 1.2]
    """
    if len(demands) == 2:
        one, other = demands
        return _beside(one, other), _beside(other, one)
    busy, ratios = list(demands), [1.0] * len(demands)
    for _ in range(_ROUNDS):
        total = sum(busy)
        ratios = [1.0 + demand * (total - own) for demand, own in zip(demands, busy, strict=True)]
        newer = [1.0 - (1.0 - demand) / ratio for demand, ratio in zip(demands, ratios, strict=True)]
        settled = max((abs(one - other) for one, other in zip(busy, newer, strict=True)), default=0.0) < _SETTLED
        busy = newer
        if settled:
            break
    return tuple(ratios)


def _beside(demand: float, other: float) -> float:
    """The slowdown of one of two: the larger root of what the fixed point of ``queueing`` is for a pair."""
    middle = 1.0 + 2.0 * other + demand * other
    last = other * (1.0 - demand**2)
    return (middle + math.sqrt(max(middle**2 - 4.0 * (1.0 + other) * last, 0.0))) / (2.0 * (1.0 + other))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """What is believed before anything was reported; ``known`` joins it with what was.

    Attributes:
        seeds: Slowdowns known beforehand, of jobs of any batch.
        rule: The rule for what was never observed.
    """

    seeds: Mapping[ResidentSet, MeanRatio] = field(default_factory=dict)
    rule: DemandRule = field(default_factory=DemandRule)

    def known(self, reported: SlowdownTable) -> KnownSlowdowns:
        """Join the seeds with what jobs have reported (``Snapshot.slowdowns``)."""
        return KnownSlowdowns(self, reported)


class KnownSlowdowns:
    """Predictions of slowdowns at one time; it remembers its answers, so one serves a whole round."""

    def __init__(self, believed: Interference, reported: SlowdownTable) -> None:
        self._seeds, self._rule = believed.seeds, believed.rule
        columns = (reported.profile, reported.batch, reported.gpu_type, reported.others, reported.count,
                   reported.mean_ratio, reported.variance)
        self._reported: dict[ResidentSet, MeanRatio] = {}
        self._any_batch: dict[ResidentSet, MeanRatio] = {}
        for profile, batch, gpu_type, others, count, mean, variance in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            key = ResidentSet(
                ResidentKind(profile, batch), gpu_type, tuple(ResidentKind(*one) for one in others if one[0] != NONE)
            )
            seen = self._reported[key] = MeanRatio(count, mean, variance * max(count - 1, 1))
            any_batch = _of_any_batch(key)
            before = self._any_batch.get(any_batch)
            self._any_batch[any_batch] = seen if before is None else _merged(before, seen)
        self._answers: dict[tuple[object, ...], tuple[Slowdown, ...]] = {}

    def among(
        self, gpu_type: int, residents: tuple[ResidentKind, ...], demands: tuple[float, ...]
    ) -> tuple[Slowdown, ...]:
        """Return the slowdown of each of R residents of the same GPUs.

        Args:
            gpu_type: Code of the GPU type.
            residents: Model and batch of each; a profile of NONE is not known.
            demands: Utilisation of the GPUs by each when it is alone, 0 to 1; NaN where not known.
        """
        key = (gpu_type, residents, tuple(NONE if math.isnan(demand) else demand for demand in demands))
        if key not in self._answers:
            self._answers[key] = self._among(gpu_type, residents, demands)
        return self._answers[key]

    def _among(
        self, gpu_type: int, residents: tuple[ResidentKind, ...], demands: tuple[float, ...]
    ) -> tuple[Slowdown, ...]:
        if len(residents) == 1:
            return (ALONE,)
        by_rule = None if any(math.isnan(demand) for demand in demands) else self._rule.slowdowns(demands)
        answers = []
        for row, who in enumerate(residents):
            others = residents[:row] + residents[row + 1 :]
            answer = self._history(gpu_type, who, others) or self._pairs(gpu_type, who, others)
            if answer is None:
                variance = 0.0 if by_rule is None else (self._rule.deviation * by_rule[row]) ** 2
                answer = UNKNOWN if by_rule is None else Slowdown(by_rule[row], variance, 0, Basis.DEMAND)
            answers.append(answer)
        return tuple(answers)

    def _history(self, gpu_type: int, who: ResidentKind, others: tuple[ResidentKind, ...]) -> Slowdown | None:
        """What was seen of exactly this set: reports count beside the seed. A batch that is not known may be any."""
        if any(one.profile == NONE for one in (who, *others)):
            return None
        exact = ResidentSet(who, gpu_type, tuple(sorted(others)))
        any_batch = _of_any_batch(exact)
        has_all = all(one.batch != NONE for one in (who, *others))
        seen = self._reported.get(exact) if has_all else self._any_batch.get(any_batch)
        seed = self._seeds.get(any_batch)
        if seed is not None:
            seen = seed if seen is None else _merged(seen, seed)
        if seen is None:
            return None
        spread = seen.squares / (seen.jobs - 1) if seen.jobs > 1 else (SEED_DEVIATION * seen.ratio) ** 2
        return Slowdown(seen.ratio, spread, seen.jobs, Basis.HISTORY)

    def _pairs(self, gpu_type: int, who: ResidentKind, others: tuple[ResidentKind, ...]) -> Slowdown | None:
        """The product over pairs; the variances are relative, and add."""
        mean, relative, jobs = 1.0, 0.0, 0
        for other in others:
            pair = self._history(gpu_type, who, (other,))
            if pair is None:
                return None
            mean *= pair.mean
            relative += pair.variance / pair.mean**2
            jobs = min(jobs, pair.jobs) if jobs else pair.jobs
        return Slowdown(mean, relative * mean**2, jobs, Basis.PAIRS)


def _of_any_batch(one: ResidentSet) -> ResidentSet:
    others = tuple(sorted(ResidentKind(other.profile, NONE) for other in one.others))
    return ResidentSet(ResidentKind(one.who.profile, NONE), one.gpu_type, others)


def _merged(one: MeanRatio, other: MeanRatio) -> MeanRatio:
    jobs, off = one.jobs + other.jobs, other.ratio - one.ratio
    return MeanRatio(
        jobs, one.ratio + off * other.jobs / jobs, one.squares + other.squares + off**2 * one.jobs * other.jobs / jobs
    )
