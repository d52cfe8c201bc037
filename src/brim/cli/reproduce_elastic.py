"""``brim sim reproduce elastic``: the replays of the experiment, and its report."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from brim.cli.options import INTERRUPTED
from brim.cli.outputs import console
from brim.units import counted

if TYPE_CHECKING:
    from brim.cli.replays import Task
    from brim.core.replay import Replay
    from brim.sim.reproduce.elastic import Condition, Outcome, Sustained
    from brim.sim.reproduce.grid import Part
    from brim.sim.reproduce.results import Results
    from brim.sim.twin import ReplaySettings


def reproduce_elastic(*, quick: bool, seeds: int, html: Path | None, output: str) -> None:
    """Run the experiment and report it; an interrupted one is reported as far as it is complete."""
    from brim.sim.reproduce.grid import FULL, QUICK

    began_s = time.monotonic()
    results, asked = elastic_results(QUICK if quick else FULL, seeds)
    _report(results, asked, seeds, html, output)
    minutes, cores = (time.monotonic() - began_s) / 60, os.cpu_count()
    done = len(results.outcomes)
    print(f"brim: {done:,} replays took {minutes:.1f} min on {cores} cores", file=sys.stderr)
    if done < asked:
        print(f"brim: partial: {done} of {asked} replays are complete", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def elastic_results(parts: tuple[Part, ...], seeds: int) -> tuple[Results, int]:
    """Run parts of the elastic experiment: what is complete, and how many replays were asked."""
    from brim.sim.reproduce.results import Results

    capacities = _capacities(parts)
    tasks = list(_tasks(parts, seeds, capacities))
    outcomes = _outcomes(tasks)
    if not outcomes:
        raise typer.Exit(INTERRUPTED)
    return Results(capacities=tuple(capacities), outcomes=tuple(outcomes)), len(tasks)


def _capacities(parts: tuple[Part, ...]) -> list[Sustained]:
    """Measure the throughput that the main policies sustain on backlogs; an interruption ends the command."""
    from brim.cli.replays import Task
    from brim.sim.reproduce.elastic import backlog, policy_for, sustained
    from brim.sim.reproduce.grid import backlogs

    wanted = backlogs(parts)
    drawn = {(condition, per_gpu): backlog(condition, per_gpu) for condition, _, per_gpu in wanted}
    tasks = [
        Task(
            trace=drawn[condition, per_gpu][0], cluster=condition.cluster, policy=policy_for(name, drop=False),
            settings=_settings(condition), truth=drawn[condition, per_gpu][1],
        )
        for condition, name, per_gpu in wanted
    ]
    print(f"brim: measuring the throughput of the baseline: {len(tasks)} replays of a backlog", file=sys.stderr)
    found = [
        sustained(replay, drawn[condition, per_gpu][1].work_h, condition)
        for replay, (condition, _, per_gpu) in zip(_complete(tasks), wanted, strict=False)
    ]
    if len(found) < len(tasks):
        print("brim: stopped before the first result: nothing to report", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    return found


def _tasks(
    parts: tuple[Part, ...], seeds: int, capacities: Sequence[Sustained]
) -> Iterator[tuple[Condition, Task]]:
    from dataclasses import replace
    from functools import lru_cache

    from brim.cli.replays import Task
    from brim.sim.reproduce.elastic import BASELINE, drawn, policy_for
    from brim.sim.reproduce.grid import points

    rate_per_h = {(c.gpus, c.category): c.per_h for c in capacities if c.policy == BASELINE}
    jobs_of = lru_cache(maxsize=1)(drawn)  # the policies of a condition share its jobs
    for condition, name in points(parts, seeds):
        trace, truth = jobs_of(replace(condition, drop=False), rate_per_h[condition.gpus, condition.category])
        yield condition, Task(
            trace=trace, cluster=condition.cluster, policy=policy_for(name, drop=condition.drop),
            settings=_settings(condition), truth=truth,
        )


def _settings(condition: Condition) -> ReplaySettings:
    from brim.sim.overheads import Overheads
    from brim.sim.twin import ReplaySettings

    return ReplaySettings(overheads=Overheads.of_pollux(), seed=condition.seed, load=condition.load)


def _complete(tasks: Sequence[Task]) -> Iterator[Replay]:
    """Run tasks until the first that was interrupted or not begun, so that the replays are those of the first tasks."""
    from brim.cli.replays import run_all

    for replay, task in zip(run_all(tasks), tasks, strict=False):
        if replay.partial or replay.trace is not task.trace:
            return
        yield replay


def _outcomes(tasks: Sequence[tuple[Condition, Task]]) -> list[Outcome]:
    from brim.sim.reproduce.elastic import outcome

    print(f"brim: {counted(len(tasks), 'replay')}", file=sys.stderr)
    replays = _complete([task for _, task in tasks])
    return [outcome(replay, condition) for replay, (condition, _) in zip(replays, tasks, strict=False)]


def _report(results: Results, asked: int, seeds: int, html: Path | None, output: str) -> None:
    from brim.cli.reproduce_pages import experiment_of
    from brim.reports.experiment import terminal, write_experiment
    from brim.reports.files import dump_json
    from brim.sim.reproduce.results import results_json

    complete = len(results.outcomes) == asked
    experiment = experiment_of(
        results, seeds=seeds, missing=asked - len(results.outcomes), command=shlex.join(["brim", *sys.argv[1:]])
    )
    if output == "json":
        print(dump_json(results_json(results, complete=complete)))
    else:
        console().print(terminal(experiment))
    if html:
        write_experiment(experiment, html)
        print(f"page: {html}", file=sys.stderr)
