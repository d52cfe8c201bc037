"""``brim sim reproduce``: the main experiment of a paper, run again under stated conditions."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.outputs import check_outputs, console
from brim.errors import ConfigError

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
    from brim.cli.reproduce_elastic import reproduce_elastic

    reproduce_elastic(quick=quick, seeds=seeds, html=html, output=wanted)


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
