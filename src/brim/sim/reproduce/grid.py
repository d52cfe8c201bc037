"""Which points of the elastic experiment are run: clusters, categories, arrivals, loads, policies.

To finish in less than 20 minutes on two cores, the grid leaves out the points that show least: bursts and the large
cluster have fewer policies and loads, the large cluster has no variant that rejects jobs, and the weaker baselines
never reject jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from brim.sim.reproduce.elastic import (
    BASELINE,
    CATEGORY_NAMES,
    MIX,
    OURS,
    POLICIES,
    STRONGER,
    WINDOW_H,
    Arrivals,
    Condition,
)

MAIN: Final = (OURS, BASELINE, STRONGER)
"""The main policies of the comparison, whose capacity is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Everything run on one cluster with one pattern of arrivals.

    Attributes:
        gpus: GPUs of the cluster.
        categories: Categories of jobs.
        arrivals: Pattern of arrivals.
        loads: Arrival rates relative to what the baseline sustains.
        policies: Names of policies under which jobs that do not fit wait.
        dropping: Names of policies under which such jobs are rejected.
        backlog_per_gpu: Waiting jobs per GPU when capacity is measured; several, because the first quarter and the last
            15 % are not counted.
        hours: Hours during which jobs arrive.
    """

    gpus: int
    categories: tuple[str, ...]
    arrivals: Arrivals
    loads: tuple[float, ...]
    policies: tuple[str, ...]
    dropping: tuple[str, ...]
    backlog_per_gpu: int
    hours: int = WINDOW_H


FULL: Final = (
    Part(
        gpus=40, categories=CATEGORY_NAMES, arrivals="poisson", loads=(0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0),
        policies=tuple(POLICIES), dropping=MAIN, backlog_per_gpu=15,
    ),
    Part(
        gpus=400, categories=(MIX, "communication"), arrivals="poisson", loads=(0.75, 1.0, 1.5), policies=MAIN,
        dropping=(), backlog_per_gpu=5,
    ),
    Part(
        gpus=40, categories=CATEGORY_NAMES, arrivals="burst", loads=(0.5, 0.75, 1.0, 1.25, 1.5),
        policies=(*MAIN, "fifo"), dropping=(OURS, BASELINE), backlog_per_gpu=15,
    ),
    Part(  # above capacity the queue keeps growing, so the ratio depends on the number of hours
        gpus=40, categories=("communication",), arrivals="poisson", loads=(0.9, 1.0, 1.25, 1.5, 1.75),
        policies=(*MAIN, "fifo"), dropping=(OURS, BASELINE), backlog_per_gpu=15, hours=32,
    ),
)
QUICK: Final = (
    Part(
        gpus=40, categories=(MIX, "communication"), arrivals="poisson", loads=(0.75, 1.0, 1.5), policies=MAIN,
        dropping=(OURS, BASELINE), backlog_per_gpu=8,
    ),
)


def headline(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Leave out the policies that the headline numbers, ``OURS`` against ``BASELINE``, do not depend on."""
    both = (OURS, BASELINE)
    return tuple(
        replace(part, policies=both, dropping=tuple(policy for policy in part.dropping if policy in both))
        for part in parts
    )


def backlogs(parts: Iterable[Part]) -> list[tuple[Condition, str, int]]:
    """Return the capacities to measure, each once: condition (its load is not used), policy, jobs per GPU."""
    wanted = [
        (Condition(gpus=part.gpus, category=category, arrivals="poisson", load=1.0, drop=False), policy,
         part.backlog_per_gpu)
        for part in parts for category in part.categories for policy in MAIN if policy in part.policies
    ]
    return list(dict.fromkeys(wanted))


def points(parts: Iterable[Part], seeds: int) -> Iterator[tuple[Condition, str]]:
    """Yield the conditions and policies to run, in the order of reports."""
    for part in parts:
        for category in part.categories:
            for load in part.loads:
                for seed in range(seeds):
                    waiting = Condition(
                        gpus=part.gpus, category=category, arrivals=part.arrivals, load=load, drop=False,
                        hours=part.hours, seed=seed,
                    )
                    yield from ((waiting, policy) for policy in part.policies)
                    yield from ((replace(waiting, drop=True), policy) for policy in part.dropping)
