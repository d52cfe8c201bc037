"""``brim eta``: when jobs will start and end, and how good earlier forecasts were."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from brim.api.client import PAGE_MAX
from brim.cli.controller import client, find_ids
from brim.cli.job_table import printable
from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.unconverted import UnconvertedCommand
from brim.units import show_durations

app = typer.Typer()


@app.command(cls=UnconvertedCommand)
def eta(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="Ids, ranges of ids, names, or @ for the last one; else all of yours."),
    ] = None,
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Forecast when jobs start and end, as intervals: the queue is simulated with run times of jobs like them.

    Four of five starts should lie in theirs; intervals of ends hold at least nine of ten simulations.
    """
    wanted = output_of(output, as_json)
    at = client()
    answer = at.eta(find_ids(at, jobs or [], most=PAGE_MAX))
    if wanted == "json":
        print(json.dumps(answer))
        return
    for forecast in answer["forecasts"]:
        print(printable(f"job {forecast['job']}: {_said(forecast)}"))
    if not answer["forecasts"]:
        print("you have no job that has not ended")
    tested, hits = answer["hits"]["jobs"], answer["hits"]["hits"]
    if tested:
        print(f"so far {hits} of {tested} jobs started within their first forecast; four of five should")
    else:
        print("no job has started after a forecast yet, so how good they are is not known")


def _said(forecast: dict[str, Any]) -> str:
    parts = [
        f"{verb} in {_interval(*forecast[name])}" for verb, name in (("starts", "start_s"), ("ends", "end_s"))
        if forecast[name]
    ]
    if forecast["missing"]:
        return "; ".join([*parts, forecast["missing"]])
    return f"{', '.join(parts)} (from {forecast['basis']})"


def _interval(low_s: float, high_s: float) -> str:
    low, high = show_durations(low_s, high_s)
    return low if low == high else f"{low.rpartition(' ')[0]} to {high}"
