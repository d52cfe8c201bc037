"""Options of the commands that replay a trace. Light: imported at every start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Trace = Annotated[
    str, typer.Argument(metavar="TRACE", help="Trace file in any known format; - reads standard input.")
]
Format = Annotated[
    str | None, typer.Option("--format", "-f", metavar="FORMAT", help="Trace format; detected by default.")
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N jobs.")]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="DATE", help="Only jobs submitted from then on: 2017-10-01 or 2017-10-01T12:00."),
]
Load = Annotated[str, typer.Option("--load", metavar="X", help="Arrival rate relative to that of the trace.")]
Truth = Annotated[
    str,
    typer.Option(
        "--truth", metavar="NAME", help="How jobs run: rigid (as recorded), measured, or parametric (elastic)."
    ),
]
Profiles = Annotated[
    Path | None, typer.Option("--profiles", metavar="DIR", help="Measured applications, for --truth measured.")
]
ElasticShare = Annotated[
    float | None,
    typer.Option(
        "--elastic-share", metavar="X",
        help="Share of jobs that may be resized, for --truth parametric; 0.3 by default.",
    ),
]
Sharing = Annotated[
    str,
    typer.Option(
        "--sharing", metavar="demand|FILE",
        help="How jobs that share GPUs slow each other down: demand (by their utilisation), or a TOML file of "
        "measured sets. By default demand, if a policy lets jobs share.",
    ),
]
Loading = Annotated[
    str,
    typer.Option(
        "--loading", metavar="LIBRARY",
        help="How fast jobs really load their data, by model: synergy, or a file of brim profile. Data is always there "
        "by default.",
    ),
]
Overheads = Annotated[str, typer.Option("--overheads", metavar="xF", help="Scale the cost of changes, such as x2.")]
Estimates = Annotated[
    str,
    typer.Option(
        "--estimates", metavar="NAME", help="Run-time estimates of policies: limits (the users' own) or history."
    ),
]
Library = Annotated[
    str,
    typer.Option(
        "--library", metavar="LIBRARY",
        help="What policies know of models in advance: pollux, gavel, mlperf, synergy, or a file of brim profile.",
    ),
]
NodeMtbf = Annotated[
    str,
    typer.Option(
        "--node-mtbf", metavar="TIME", help="Mean time between failures of a node, such as 30d; no failures by default."
    ),
]
JobMtbf = Annotated[
    str,
    typer.Option(
        "--job-mtbf", metavar="TIME",
        help="Mean running time between failures of a job, such as 10d; no failures by default.",
    ),
]
Drain = Annotated[
    list[str] | None,
    typer.Option("--drain", metavar="NODES@START+LENGTH", help="Close nodes, such as 0-3@2d+12h; may be repeated."),
]
SuspendTime = Annotated[
    str,
    typer.Option(
        "--suspend-time", metavar="TIME",
        help="Let nodes without jobs sleep after this time, such as 5m; waking takes 60 s. Never by default.",
    ),
]
DropTooLarge = Annotated[
    bool, typer.Option("--drop-too-large", help="Leave out jobs that the cluster could never run.")
]
Price = Annotated[
    str | None,
    typer.Option(
        "--price", metavar="X", help="Price of a GPU-hour, or a TOML file with prices by tier, to show what jobs cost."
    ),
]
Power = Annotated[
    str,
    typer.Option("--power", metavar="CURVES", help="Power of nodes, to show energy: builtin, or a TOML file."),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained page.")]
Jobs = Annotated[
    Path | None, typer.Option("--jobs", metavar="FILE", help="Write one row per job and replay, as .parquet or .csv.")
]
