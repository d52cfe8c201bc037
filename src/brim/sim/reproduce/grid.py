"""Which points of the elastic experiment are run: clusters, categories, arrivals, loads, policies.

The full grid was reduced where it shows least, so that it ends in less than 20 minutes on two cores: under bursts and
on the large cluster fewer policies and loads run, on the large cluster jobs only wait, and the weaker baselines never
reject jobs.
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
"""The policies that carry the comparison; their capacity is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Everything run on one cluster with one pattern of arrivals.

    Attributes:
        gpus: GPUs of the cluster.
        categories: Categories of jobs.
        arrivals: Pattern of arrivals.
        loads: Relative to what the baseline sustains.
        policies: Names of policies under which jobs that do not fit wait.
        dropping: Names of policies under which they are rejected.
        backlog_per_gpu: Jobs in line when capacity is measured. It ends some 15 % before they do, and a fourth of them
            go before it begins, so there must be several.
        hours: Hours of arrivals.
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
    Part(  # a growing queue has no mean: the ratio depends on how long it grows
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


def backlogs(parts: Iterable[Part]) -> list[tuple[Condition, str, int]]:
    """Capacities to measure, each once: condition (its load means nothing), policy, jobs per GPU."""
    wanted = [
        (Condition(gpus=part.gpus, category=category, arrivals="poisson", load=1.0, drop=False), policy,
         part.backlog_per_gpu)
        for part in parts for category in part.categories for policy in MAIN
    ]
    return list(dict.fromkeys(wanted))


def points(parts: Iterable[Part], seeds: int) -> Iterator[tuple[Condition, str]]:
    """Conditions and policies to run, in the order of reports."""
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
