"""Which points of the elastic experiment are run: clusters, categories, arrivals, loads, policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from brim.sim.reproduce.elastic import (
    BASELINE,
    CATEGORY_NAMES,
    MIX,
    OURS,
    POLICIES,
    STRONGER,
    Arrivals,
    Condition,
    can_drop,
)

MAIN: Final = (OURS, BASELINE, STRONGER)
"""The policies that carry the comparison; their capacity is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Everything run on one cluster.

    Attributes:
        gpus: In the cluster.
        categories: Of jobs.
        arrivals: Patterns.
        loads: Relative to what the baseline sustains.
        policies: By name.
        backlog_per_gpu: Jobs in line when capacity is measured. It ends some 15 % before they do, and a fourth of them
            go before it begins, so there must be several.
    """

    gpus: int
    categories: tuple[str, ...]
    arrivals: tuple[Arrivals, ...]
    loads: tuple[float, ...]
    policies: tuple[str, ...]
    backlog_per_gpu: int


FULL: Final = (
    Part(
        gpus=40, categories=CATEGORY_NAMES, arrivals=("poisson", "burst"),
        loads=(0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0), policies=tuple(POLICIES), backlog_per_gpu=20,
    ),
    Part(
        gpus=400, categories=(MIX, "communication"), arrivals=("poisson",), loads=(0.75, 0.9, 1.0, 1.1, 1.25, 1.5),
        policies=MAIN, backlog_per_gpu=8,
    ),
)
QUICK: Final = (
    Part(
        gpus=40, categories=(MIX, "communication"), arrivals=("poisson",), loads=(0.75, 1.0, 1.5), policies=MAIN,
        backlog_per_gpu=8,
    ),
)


def backlogs(parts: tuple[Part, ...]) -> Iterator[tuple[Condition, str, int]]:
    """Capacities to measure: condition (its load means nothing), policy, jobs per GPU."""
    for part in parts:
        for category in part.categories:
            condition = Condition(gpus=part.gpus, category=category, arrivals="poisson", load=1.0, drop=False)
            for policy in MAIN:
                yield condition, policy, part.backlog_per_gpu


def points(parts: tuple[Part, ...], seeds: int) -> Iterator[tuple[Condition, str]]:
    """Conditions and policies to run, in the order of reports; the smaller cluster first."""
    for part in parts:
        for category in part.categories:
            for arrivals in part.arrivals:
                for load in part.loads:
                    queue = Condition(gpus=part.gpus, category=category, arrivals=arrivals, load=load, drop=False)
                    for seed in range(seeds):
                        for condition in (replace(queue, seed=seed), replace(queue, seed=seed, drop=True)):
                            for policy in part.policies:
                                if can_drop(policy) or not condition.drop:
                                    yield condition, policy
