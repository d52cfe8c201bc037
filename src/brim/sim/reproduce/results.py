"""Results of the elastic experiment: means over seeds, ratios of policies, the M/M/1 reference, the best points."""

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
"""Batch fixed as well, in other ways: accumulated where one GPU does not hold it, the largest, any."""
_FIGURES: Final[tuple[Figure, ...]] = ("completed", "jct_mean_s")
_WHAT: Final[dict[Figure, str]] = {
    "completed": "times the jobs completed", "jct_mean_s": "times shorter mean completion",
}
DIFFERENCES: Final = (
    "Re-measured under our conditions, not reproduced: the paper publishes neither cluster, models, batch ranges, "
    "arrivals, load nor restart cost.",
    "Ours: jobs scale by formula in four categories of three models each; work is log-normal with a mean of one hour "
    "on one full GPU; the batch asked, which the fixed baselines keep, is log-uniform from an eighth of what one GPU "
    "holds to eight times that; arrivals last 8 h (32 h in one panel), then all jobs run to their end.",
    "Any batch in a job's range counts as equally good per sample, as the paper assumes: a larger one is never worse "
    "for the result.",
    "Load 1 is what elastic-fixed sustains of the same jobs with an endless line of them, measured, on each cluster "
    "and for each category.",
    "elastic-fixed cannot accumulate, as the paper describes its baseline: a batch that one GPU does not hold raises "
    "the fewest GPUs of its job. elastic-fixed-accumulating may, and is the stronger baseline; elastic does not.",
    "Starting and restarting a job takes 30 s, its first start included, and loses no step (Pollux, OSDI 2021: 15 to "
    "120 s measured). The first jobs of each model are timed on the GPUs they hold, and that time counts.",
    "On one GPU a batch that fits is one micro-step. The policies that accumulate expect two there above the smallest "
    "batch (a rule of Pollux, to estimate gradient noise), so they think a little less of one GPU than it is worth.",
    "Where jobs are turned away, so is the first: the cluster is closed while exchanges of gradients are timed on it.",
    "Sizes are powers of two up to a node of four GPUs and whole nodes above, so that they fit together; rounds at "
    "least 30 s apart.",
)
"""Assumptions behind the results, and differences from the paper."""


def mm1_ratio(load: float, capacity: float) -> float | None:
    """How many times longer a job stays in an M/M/1 queue than in one of so many times its capacity; None from 1 on."""
    return (capacity - load) / (1 - load) if load < 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The advantage of one policy over another at one condition.

    Attributes:
        condition: The condition, with the first seed.
        value: Ratio of the means over seeds.
        low: Least ratio of a single seed.
        high: Greatest ratio of a single seed.
        mm1: Ratio of mean times in M/M/1 queues of both capacities; None from the other's capacity on.
    """

    condition: Condition
    value: float
    low: float
    high: float
    mm1: float | None


@dataclass(frozen=True, kw_only=True)
class Results:
    """Outcomes of complete replays, in the order they were run, and capacities."""

    capacities: tuple[Sustained, ...]
    outcomes: tuple[Outcome, ...]

    def per_h(self, condition: Condition, policy: str) -> float | None:
        """Jobs of mean work per hour that a policy sustains; None where that was not measured."""
        found = (c for c in self.capacities if (c.gpus, c.category, c.policy) == (*_place(condition), policy))
        return next((c.per_h for c in found), None)

    def conditions(self) -> list[Condition]:
        """The conditions that were run, each once for all seeds, in order."""
        return list(dict.fromkeys(_seedless(o.condition) for o in self.outcomes))

    def policies(self) -> list[str]:
        """Those that were run, in order."""
        return list(dict.fromkeys(o.policy for o in self.outcomes))

    def mean(self, condition: Condition, policy: str) -> dict[str, float] | None:
        """Figures of a condition averaged over its seeds, by name; None where none was run."""
        group = self._group(condition, policy)
        names = [field.name for field in fields(Outcome) if field.name not in ("condition", "policy")]
        return {name: float(np.mean([getattr(o, name) for o in group])) for name in names} if group else None

    def ratio(self, condition: Condition, figure: Figure, ours: str = OURS, theirs: str = BASELINE) -> Ratio | None:
        """How much better ``ours`` does: more jobs completed, or a shorter mean time. Only seeds both have count."""
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
        """The M/M/1 reference at one condition; None from the other's capacity on, or where one was not measured."""
        mine, other, base = (self.per_h(condition, name) for name in (ours, theirs, BASELINE))
        if mine is None or other is None or base is None:
            return None
        return mm1_ratio(condition.load * base / other, mine / other)

    def best(self, figure: Figure, ours: str = OURS, theirs: str = BASELINE) -> Ratio | None:
        """The condition at which ``ours`` is ahead most. Mean times count in queue mode only, where all jobs run."""
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
    """Describe a condition for readers."""
    mode = "jobs without room are turned away" if condition.drop else "jobs wait"
    pattern = "Poisson" if condition.arrivals == "poisson" else "bursts"
    where = f"{condition.gpus} GPUs, {condition.category}, {pattern}"
    return f"{where}, {condition.hours} h of arrivals, load {condition.load:g}, {mode}"


def headlines(results: Results) -> list[str]:
    """The claims of the paper, what was measured here under which conditions, and against stronger baselines."""
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
