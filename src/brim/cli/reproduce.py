"""``brim sim reproduce``: the main experiment of a paper, run again under stated conditions."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.outputs import check_outputs, console
from brim.errors import ConfigError
from brim.units import counted

if TYPE_CHECKING:
    from brim.cli.replays import Task
    from brim.core.replay import Replay
    from brim.sim.reproduce.elastic import Condition, Outcome, Sustained
    from brim.sim.reproduce.grid import Part
    from brim.sim.reproduce.results import Results
    from brim.sim.twin import ReplaySettings

EXPERIMENTS: Final = {
    "elastic": "Effective Elastic Scaling (MASCOTS 2020): GPUs and batch chosen together, against a fixed batch",
    "padding": "PaddingTorch (Computer Science 51(9), 2024): training on GPUs while other jobs leave them idle",
    "adloader": "A-Dloader (IEEE CLOUD 2022): cores for data loaders by what they bring, against equal cores",
    "eaco": "EaCO (arXiv 2412.08294): jobs that share GPUs to save energy, its measured sets and clusters",
    "aiturbo": "AITurbo (HPDC 2021): parameter servers; only some jobs can be predicted (an hour of CPU time)",
    "all": "every headline number of the papers, published and measured here, in one table",
}
TAKEN_BY: Final = {
    "--seeds": ("elastic", "adloader", "all"), "--trace": ("padding", "all"), "--data": ("all",),
    "--html": ("elastic", "padding", "adloader"),
}  # fmt: skip
"""The experiments that take an option."""
SEEDS_MAX: Final = 100
INTERRUPTED: Final = 130


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="elastic, padding (PaddingTorch), adloader, eaco, aiturbo (about an hour of CPU time, 20 seeds a "
            "share) or all.",
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points or jobs: minutes, and other figures than those of a full run.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", metavar="N", min=1, max=SEEDS_MAX,
            help="elastic, adloader, all: to average over; 1 by default. The others have seeds of their own.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="PATH", help="padding, all: PAI trace; else jobs are drawn.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="all: folder with profiles/pollux and traces/pollux.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="elastic, padding, adloader: write a page.")
    ] = None,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Run the main experiment of a paper again.

    Published results stand beside those measured here.
    """
    _check_name(name)
    wanted = output_of(output, as_json)
    check_outputs({"--html": html})
    _check_taken(name, {"--seeds": seeds, "--trace": trace, "--data": data, "--html": html})
    seeds = seeds or 1
    if name == "all":
        from brim.cli.reproduce_all import reproduce_all

        if data is not None and not data.is_dir():
            raise ConfigError(f"--data: found no folder {data}, expected one with profiles/pollux and traces/pollux")
        reproduce_all(quick=quick, seeds=seeds, trace=trace, data=data, output=wanted)
        return
    if name == "padding":
        _padding(trace, quick, html, wanted)
        return
    if name == "adloader":
        _adloader(quick, seeds, html, wanted)
        return
    if name == "eaco":
        from brim.cli.reproduce_eaco import reproduce_eaco

        reproduce_eaco(quick=quick, output=wanted)
        return
    if name == "aiturbo":
        from brim.cli.reproduce_aiturbo import reproduce_aiturbo

        reproduce_aiturbo(quick=quick, output=wanted)
        return
    from brim.sim.reproduce.grid import FULL, QUICK

    began_s = time.monotonic()
    results, asked = elastic_results(QUICK if quick else FULL, seeds)
    _report(results, asked, seeds, html, wanted)
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


def _padding(trace: Path | None, quick: bool, html: Path | None, output: str) -> None:
    """Run the experiment on padding jobs."""
    from brim.cli.reproduce_padding import experiment_of, measure, outcomes_json
    from brim.reports.experiment import terminal, write_experiment
    from brim.reports.files import dump_json

    windows, jobs, ways, grid = measure(trace, quick=quick)
    experiment = experiment_of(windows, jobs, ways, grid, shlex.join(["brim", *sys.argv[1:]]))
    if output == "json":
        print(dump_json(outcomes_json(ways, grid, windows)))
    else:
        console().print(terminal(experiment))
    if html:
        write_experiment(experiment, html)
        print(f"page: {html}", file=sys.stderr)


def _check_name(name: str) -> None:
    if name in EXPERIMENTS:
        return
    known = "; ".join(f"{known} - {what}" for known, what in EXPERIMENTS.items())
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    found = f"unknown experiment {name!r}" if name else "no experiment was named"
    raise ConfigError(f"{found}: {hint}the experiments are: {known}")


def _check_taken(name: str, given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value is not None and name not in TAKEN_BY[option]:
            others = ", ".join(TAKEN_BY[option])
            raise ConfigError(f"{option}: found {value} with the experiment {name}, expected it only with {others}")


def _adloader(quick: bool, seeds: int, html: Path | None, output: str) -> None:
    """Run the experiment on cores for data loaders."""
    from brim.cli.reproduce_adloader import experiment_of, measure, outcomes_json
    from brim.reports.experiment import terminal, write_experiment
    from brim.reports.files import dump_json

    found = measure(quick=quick, seeds=seeds)
    experiment = experiment_of(found, shlex.join(["brim", *sys.argv[1:]]))
    print(dump_json(outcomes_json(found))) if output == "json" else console().print(terminal(experiment))
    if html:
        write_experiment(experiment, html)
        print(f"page: {html}", file=sys.stderr)


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
