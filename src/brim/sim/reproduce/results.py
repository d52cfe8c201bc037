"""Results of the elastic experiment: means over seeds, ratios between policies, the M/M/1 reference, best points."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from brim.sim.reproduce.elastic import BASELINE, OURS, STRONGER, Condition, Outcome, Sustained

SCHEMA: Final = 1
"""Version of the JSON."""
Figure = Literal["completed", "jct_mean_s"]
PUBLISHED: Final[dict[Figure, float]] = {"completed": 2.0, "jct_mean_s": 10.0}
"""Ratios the paper states as "up to about", against elastic GPUs at a fixed batch; its conditions are not public."""
OTHERS: Final = (STRONGER, "elastic-max", "elastic-random")
"""Other baselines with a fixed batch: the one asked for, with accumulation; the largest; a random one."""
_FIGURES: Final[tuple[Figure, ...]] = ("completed", "jct_mean_s")
_WHAT: Final[dict[Figure, str]] = {
    "completed": "times the jobs completed", "jct_mean_s": "times shorter mean completion",
}
DIFFERENCES: Final = (
    "Re-measured under our conditions, not reproduced: the paper publishes neither cluster, models, batch ranges, "
    "arrivals, load nor restart cost.",
    "Ours: jobs scale by formula in four categories of three models each; work is log-normal with a mean of one hour "
    "on one full GPU; the batch asked, which the fixed baselines keep, is log-uniform from an eighth of what one GPU "
    "holds to eight times that; jobs arrive for 8 h (32 h in one panel), then all of them run to their end.",
    "Any batch in a job's range is assumed to be equally good per sample, as in the paper.",
    "Load 1 is the measured rate at which elastic-fixed completes the same jobs while there are always jobs waiting, "
    "on each cluster and for each category.",
    "elastic-fixed cannot accumulate, as the paper describes its baseline: a batch too large for one GPU raises the "
    "least number of GPUs of its job. elastic-fixed-accumulating can, and is the stronger baseline; elastic does not.",
    "Starting and restarting a job takes 30 s, its first start included, and loses no step (Pollux, OSDI 2021: 15 to "
    "120 s measured). The first jobs of each model are measured on the GPUs they hold, and that time counts.",
    "On one GPU a batch that fits is computed in one micro-step. The policies that accumulate expect two there above "
    "the smallest batch (a rule of Pollux, to estimate gradient noise), so they slightly underestimate one GPU.",
    "Where jobs are rejected, the first one is too: no job can start while gradient exchanges are measured.",
    "Sizes are powers of two up to a node of four GPUs and whole nodes above, so that they fit together; rounds are at "
    "least 30 s apart.",
)
"""Assumptions behind the results, and differences from the paper."""


def mm1_ratio(load: float, capacity: float) -> float | None:
    """Return the ratio of mean times in an M/M/1 queue and in one with ``capacity`` times its capacity.

    None at a load of 1 or more, where the first queue grows without bound.
    """
    return (capacity - load) / (1 - load) if load < 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The advantage of one policy over another at one condition.

    Attributes:
        condition: The condition, with the first seed.
        value: Ratio of the means over seeds.
        low: Least ratio of a single seed.
        high: Greatest ratio of a single seed.
        mm1: Ratio of mean times in M/M/1 queues of both capacities; None if the load reaches the other's capacity.
    """

    condition: Condition
    value: float
    low: float
    high: float
    mm1: float | None


@dataclass(frozen=True, kw_only=True)
class Results:
    """Measured capacities, and the outcomes of complete replays in the order they were run."""

    capacities: tuple[Sustained, ...]
    outcomes: tuple[Outcome, ...]

    def per_h(self, condition: Condition, policy: str) -> float | None:
        """Return the jobs of mean work per hour that a policy sustains; None if that was not measured."""
        found = (c for c in self.capacities if (c.gpus, c.category, c.policy) == (*_place(condition), policy))
        return next((c.per_h for c in found), None)

    def conditions(self) -> list[Condition]:
        """Return the conditions that were run, each once for all seeds, in order."""
        return list(dict.fromkeys(_seedless(o.condition) for o in self.outcomes))

    def policies(self) -> list[str]:
        """Return the names of the policies that were run, in order."""
        return list(dict.fromkeys(o.policy for o in self.outcomes))

    def mean(self, condition: Condition, policy: str) -> dict[str, float] | None:
        """Return the figures of a condition, averaged over its seeds, by name; None if it was not run.

        A figure that was not measured is left out.
        """
        group = self._group(condition, policy)
        names = [field.name for field in fields(Outcome) if field.name not in ("condition", "policy")]
        found = {name: [getattr(o, name) for o in group] for name in names}
        return {name: float(np.mean(of)) for name, of in found.items() if None not in of} if group else None

    def ratio(self, condition: Condition, figure: Figure, ours: str = OURS, theirs: str = BASELINE) -> Ratio | None:
        """Return the advantage of ``ours``: more completed jobs, or a shorter mean time. Uses the seeds of both."""
        mine, other = ({o.condition.seed: o for o in self._group(condition, name)} for name in (ours, theirs))
        seeds = [seed for seed in mine if seed in other]
        if not seeds:
            return None
        a, b = (np.array([float(getattr(group[seed], figure)) for seed in seeds]) for group in (mine, other))
        if figure == "jct_mean_s":
            a, b = b, a
        b = np.maximum(b, 1e-9)
        return Ratio(
            condition=condition, value=float(a.mean() / b.mean()), low=float((a / b).min()),
            high=float((a / b).max()), mm1=self.mm1(condition, ours, theirs),
        )

    def mm1(self, condition: Condition, ours: str = OURS, theirs: str = BASELINE) -> float | None:
        """Return the M/M/1 reference; None if the load reaches the other's capacity, or a capacity is unknown."""
        mine, other, base = (self.per_h(condition, name) for name in (ours, theirs, BASELINE))
        if mine is None or other is None or base is None:
            return None
        return mm1_ratio(condition.load * base / other, mine / other)

    def best(self, figure: Figure, ours: str = OURS, theirs: str = BASELINE) -> Ratio | None:
        """Return the largest ratio over all conditions; for mean times, only over those that reject no jobs."""
        ratios = (
            self.ratio(condition, figure, ours, theirs) for condition in self.conditions()
            if figure == "completed" or not condition.drop
        )
        return max(filter(None, ratios), key=lambda ratio: ratio.value, default=None)

    def _group(self, condition: Condition, policy: str) -> list[Outcome]:
        return self._groups.get((_seedless(condition), policy), [])

    @cached_property
    def _groups(self) -> dict[tuple[Condition, str], list[Outcome]]:
        groups: dict[tuple[Condition, str], list[Outcome]] = {}
        for o in self.outcomes:
            groups.setdefault((_seedless(o.condition), o.policy), []).append(o)
        return groups


def words(condition: Condition) -> str:
    """Describe a condition in words."""
    mode = "jobs that do not fit are rejected" if condition.drop else "jobs wait"
    pattern = "Poisson" if condition.arrivals == "poisson" else "bursts"
    where = f"{condition.gpus} GPUs, {condition.category}, {pattern}"
    return f"{where}, {condition.hours} h of arrivals, load {condition.load:g}, {mode}"


def headlines(results: Results) -> list[str]:
    """Return sentences with the paper's claims, and what was measured here against its baseline and stronger ones."""
    said = []
    for figure, what in _WHAT.items():
        best = results.best(figure)
        if best is None:
            continue
        at = best.condition
        beside = []
        for name, note in ((STRONGER, "the same with accumulation"), ("fifo", "rigid, as asked")):
            ratio = results.ratio(at, figure, OURS, name)
            if ratio:
                beside.append(f"{ratio.value:.2f} against {name} ({note})")
        reference = f" (M/M/1: {best.mm1:.1f})" if best.mm1 and figure == "jct_mean_s" else ""
        there = "; there also " + ", ".join(beside) if beside else ""
        said.append(
            f"{OURS} against {BASELINE}, best point: {best.value:.2f} {what}{reference}, at {words(at)}{there}. "
            f"Published: up to about {PUBLISHED[figure]:g}, conditions not published."
        )
        said += [
            f"Best point against {name}: {other.value:.2f} {what}, at {words(other.condition)}."
            for name in OTHERS if (other := results.best(figure, OURS, name))
        ]
    return said


def results_json(results: Results, *, complete: bool) -> dict[str, Any]:
    """Return all results as plain data."""
    capacities = [asdict(capacity) for capacity in results.capacities]
    outcomes = []
    for outcome in results.outcomes:
        row = asdict(outcome)
        condition = row.pop("condition")
        base = results.per_h(outcome.condition, BASELINE)
        outcomes.append(
            condition | {"rate_per_h": None if base is None else base * outcome.condition.load} | row
        )
    ratios = [
        asdict(replace(ratio.condition, seed=0)) | {
            "figure": figure, "policy": OURS, "against": theirs, "ratio": ratio.value, "ratio_low": ratio.low,
            "ratio_high": ratio.high, "mm1_ratio": ratio.mm1,
        }
        for condition in results.conditions() for theirs in (BASELINE, STRONGER, "fifo")
        for figure in _FIGURES if (ratio := results.ratio(condition, figure, OURS, theirs))
    ]
    best = {
        f"{figure} against {theirs}": None if found is None else asdict(found.condition) | {"ratio": found.value}
        for figure in _FIGURES for theirs in (BASELINE, *OTHERS) for found in [results.best(figure, OURS, theirs)]
    }
    return {
        "schema": SCHEMA, "experiment": "elastic", "complete": complete, "published": PUBLISHED, "best": best,
        "capacities": capacities, "ratios": ratios, "outcomes": outcomes,
    }


def _seedless(condition: Condition) -> Condition:
    return replace(condition, seed=0)


def _place(condition: Condition) -> tuple[int, str]:
    return condition.gpus, condition.category
