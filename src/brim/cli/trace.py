"""``brim trace``: describe a trace, convert it to brim's own format, or generate one from published statistics."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brim.cli.options import AnonymiseOption, JsonOption, OutputOption, output_of
from brim.cli.outputs import check_outputs
from brim.cli.outputs import console as console_for
from brim.cli.unconverted import UnconvertedGroup
from brim.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from brim.core.cluster import Cluster
    from brim.core.trace import Trace
    from brim.traces import ReadReport, TraceSummary

SCHEMA: Final = 1
BAR_WIDTH: Final = 40
SPARK_WIDTH: Final = 60
MAX_SIZE_BARS: Final = 16
SHOWN_UNUSABLE: Final = 3
"""How many of the rows that cannot be used are shown; all are counted."""
_BARS: Final = " ▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = " .:-=+*#@"

app = typer.Typer(
    name="trace", cls=UnconvertedGroup, help="Describe, convert and generate traces.", no_args_is_help=True
)

_FormatOption = Annotated[
    str | None,
    typer.Option("--format", "-f", metavar="FORMAT", help="Trace format; detected from the content by default."),
]
_Target = Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .parquet, .csv or .csv.gz.")]


@app.command()
def info(
    path: Annotated[str, typer.Argument(metavar="TRACE", help="Trace file, or the folder of the PAI tables; - reads "
                                                              "standard input.")],
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", "-c", metavar="CLUSTER", help="Also show the load of this cluster, such as 64x8xH100."
        ),
    ] = None,
    format: _FormatOption = None,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show what is in a trace: arrivals, sizes, run times, load."""
    from brim.traces import read, summary

    wanted = output_of(output, as_json)
    machines = _cluster(cluster)
    trace, report = read(path, format)
    print_reading(report)
    figures = summary(trace, machines)
    if wanted == "json":
        named = None if machines is None else str(machines)
        _print_json({**_info_json(figures), "cluster": named, "read": _counts(report)})
    else:
        _print_table(figures, machines)


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="Trace in any known format; - reads standard input.")],
    target: _Target,
    format: _FormatOption = None,
    anonymise: AnonymiseOption = False,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Write a trace in brim's own format.

    It loads fastest and loses nothing.
    """
    from brim import traces
    from brim.traces import read, write

    wanted = output_of(output, as_json)
    check_outputs({"OUT": target}, [source])
    trace, report = read(source, format)
    print_reading(report)
    if anonymise:
        trace = traces.anonymise(trace, traces.own_key())
    write(trace, target)
    _print_written(target, trace, wanted, read=_counts(report))


@app.command()
def synth(
    shape: Annotated[str, typer.Argument(metavar="SHAPE", help="philly, helios, acme or pai.")],
    target: _Target,
    *,
    num_jobs: Annotated[int, typer.Option("--num-jobs", "-n", metavar="N", help="Number of jobs.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Equal seeds give equal traces.")] = 0,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", "-c", metavar="CLUSTER", help="Cluster to load with the jobs; needs --load."),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option("--load", metavar="X", help="Offered load of that cluster, such as 0.9; needs --cluster.")
    ] = None,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Generate a trace like those of a published cluster.

    Its jobs follow the published statistics of the cluster.
    """
    from brim.traces import synthesize, write

    wanted = output_of(output, as_json)
    check_outputs({"OUT": target}, [cluster if cluster and cluster.endswith(".toml") else None])
    trace = synthesize(shape, num_jobs, seed, _cluster(cluster), load)  # type: ignore[arg-type] # it checks the name
    write(trace, target)
    _say(
        f"synthetic trace of {counted(len(trace), 'job')} over {_span(trace)}, drawn from published statistics of "
        f"{shape}"
    )
    _print_written(target, trace, wanted)


def _print_written(target: Path, trace: Trace, output: str, **more: object) -> None:
    """Print the path of the file, for the next command; with -o json, also its summary."""
    if output == "json":
        _print_json({"schema": SCHEMA, "file": str(target), "jobs": len(trace), **more})
    else:
        print(target)


def _cluster(text: str | None) -> Cluster | None:
    from brim.core.cluster import parse_cluster

    return None if text is None else parse_cluster(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def print_reading(report: ReadReport) -> None:
    """Print on stderr how many rows were used, adjusted and dropped."""
    from brim.traces.report import UNUSABLE

    name = f"read {Path(report.file).name} as {report.format}"
    _say(f"{name}: {counted(report.rows, 'row')}, {counted(report.used, 'job')}")
    for verb, reasons in (("adjusted", report.repaired), ("dropped", report.dropped)):
        for reason, rows in reasons.items():
            share = f" ({rows / (rows + report.used):.1%} of the jobs)" if reason == UNUSABLE else ""
            first = ""
            if reason == UNUSABLE:
                first = "; the first:" if len(report.unusable) > SHOWN_UNUSABLE else ":" if report.unusable else ""
            _say(f"  {verb} {rows:,}{share}: {reason}{first}")
    for error in report.first_unusable(SHOWN_UNUSABLE):
        _say(f"    {str(error).removeprefix(f'{error.file}, ')}")
    if report.cluster:
        _say(f"  the record shows {report.cluster}")


def _span(trace: Trace) -> str:
    from brim.units import MS_PER_S, show_duration

    return show_duration(trace.span_ms / MS_PER_S)


def _counts(report: ReadReport) -> dict[str, object]:
    return {"rows": report.rows, "used": report.used, "repaired": report.repaired, "dropped": report.dropped,
            "unusable": [str(error) for error in report.first_unusable(SHOWN_UNUSABLE)]}


def _info_json(figures: TraceSummary) -> dict[str, Any]:
    from dataclasses import asdict

    facts = asdict(figures)
    facts["duration_s"] = {f"p{100 * q:g}": seconds for q, seconds in figures.duration_s.items()}
    facts["duration_by_decade"] = [{"up_to_s": top, "jobs": jobs} for top, jobs in figures.duration_by_decade.items()]
    return {"schema": SCHEMA, **facts}


def _print_json(facts: dict[str, Any]) -> None:
    def without_nan(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_nan(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [without_nan(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    print(json.dumps(without_nan(facts), indent=2))


def _print_table(figures: TraceSummary, cluster: Cluster | None) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    console = console_for()
    blocks = console.encoding.lower().startswith("utf")
    title = f"{escape(figures.name)} ({figures.format}{', synthetic' if figures.synthetic else ''})"
    table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE)
    for label, value in _facts(figures, cluster):
        table.add_row(label, escape(value))
    console.print(table)
    levels = _BARS if blocks else _PLAIN_BARS
    _plot(console, "arrivals per hour, first to last", [_sparkline(figures.arrivals_by_hour, levels)])
    _plot(console, "jobs by number of GPUs", _bars(_size_counts(figures), blocks=blocks))
    decades = [(f"to {_seconds(top)}", jobs) for top, jobs in figures.duration_by_decade.items()]
    _plot(console, "jobs by run time (log axis)", _bars(decades, blocks=blocks))


def _facts(figures: TraceSummary, cluster: Cluster | None) -> list[tuple[str, str]]:
    from datetime import UTC, datetime

    from brim.units import MS_PER_S

    known = figures.duration_s
    with_hours = [size for size in figures.sizes if not math.isnan(size.gpu_hours)]
    states = ", ".join(f"{state} {share:.0%}" for state, share in figures.status_fraction.items() if share)
    facts = [
        ("jobs", f"{figures.jobs:,}"),
        ("span", _seconds(figures.span_h * 3_600)),
        ("users, accounts" if figures.format == "sacct" else "users, groups",
         f"{figures.users or '-'}, {figures.groups or '-'}"),
        ("arrivals per hour", f"mean {_number(figures.arrivals_per_hour_mean)}, "
                              f"peak {figures.arrivals_per_hour_peak:,}"),
        ("run time", f"mean {_seconds(figures.duration_mean_s)}, median {_seconds(known[0.5])}, "
                     f"p95 {_seconds(known[0.95])}, p99 {_seconds(known[0.99])}"),
        ("GPU-hours", "-" if math.isnan(figures.gpu_hours) else _three_digits(figures.gpu_hours) + "".join(
            f", {size.gpu_hours / figures.gpu_hours:.0%} by {f'{size.gpus}-GPU jobs' if size.gpus else 'shares'}"
            for size in sorted(with_hours, key=lambda size: -size.gpu_hours)[:3] if figures.gpu_hours)),
        ("ended", states),
        ("recorded wait", "not recorded" if math.isnan(figures.wait_mean_s)
         else f"mean {_seconds(figures.wait_mean_s)}, median {_seconds(figures.wait_median_s)}"),
        ("with a time limit", f"{figures.with_limit_fraction:.0%}"),
    ]  # fmt: skip
    if figures.origin_ms is not None:
        first = datetime.fromtimestamp(figures.origin_ms / MS_PER_S, tz=UTC)
        facts.insert(1, ("first submission", f"{first:%Y-%m-%d %H:%M:%S}"))
    if cluster is not None:
        facts.append((f"offered load of {cluster}", _number(figures.load)))
    return facts


def _seconds(seconds: float) -> str:
    from brim.units import show_duration

    return show_duration(seconds)


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float) -> str:
    return f"{value:,.2f}" if math.isfinite(value) else "-"


def _size_counts(figures: TraceSummary) -> list[tuple[str, int]]:
    """Count jobs by gang size, joined up to powers of two if there are many sizes."""
    if len(figures.sizes) <= MAX_SIZE_BARS:
        return [(f"{size.gpus} GPU" if size.gpus else "share", size.jobs) for size in figures.sizes]
    joined: dict[str, int] = {}
    for size in figures.sizes:
        label = f"to {1 << (size.gpus - 1).bit_length()} GPU" if size.gpus else "share"
        joined[label] = joined.get(label, 0) + size.jobs
    return list(joined.items())


def _plot(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(f"[bold]{title}[/bold]")
        for line in lines:
            console.print(f"  {line}", markup=False, soft_wrap=True)
        console.print()


def _sparkline(counts: Sequence[int], levels: str) -> str:
    """Draw counts over time as one line; each character is the mean over its part of the time."""
    width = min(len(counts), SPARK_WIDTH)
    edges = [len(counts) * part // width for part in range(width + 1)]
    means = [sum(counts[begin:end]) / (end - begin) for begin, end in itertools.pairwise(edges)]
    top = max(means)
    return "".join(levels[math.ceil(mean / top * (len(levels) - 1))] for mean in means) + f"  peak {max(counts):,}"


def _bars(counts: Sequence[tuple[str, int]], *, blocks: bool) -> list[str]:
    """Draw each count as a bar on its own line."""
    top = max((count for _, count in counts), default=0)
    label_width = max((len(label) for label, _ in counts), default=0)
    full, some = ("█", "▏") if blocks else ("#", "|")
    return [
        f"{label:>{label_width}} {full * round(count / top * BAR_WIDTH) or (some if count else '')} {count:,}"
        for label, count in counts
        if top
    ]
