"""``brim sim reproduce all``: every headline number of the papers, published and measured here, in one table."""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from rich.table import Table

from brim.cli.outputs import console

if TYPE_CHECKING:
    from brim.sim.reproduce.master import Headline

WORKLOADS: Final = (6, 3, 1, 2, 4, 5)
SIZING_REPEATS: Final = 5
REACHED: Final = {True: "reached", False: "missed", None: "-"}
"""Whether ours is as good as the published number, in words."""


def reproduce_all(*, quick: bool, seeds: int, trace: Path | None, data: Path | None, output: str) -> None:
    """Run the experiments and print the table; with ``quick``, few points of each."""
    from brim.reports.files import dump_json
    from brim.sim.reproduce.master import complete

    began_s = time.monotonic()
    rows = complete(list(_rows(quick, seeds, trace, data)))
    print(f"brim: all experiments took {(time.monotonic() - began_s) / 60:.1f} min", file=sys.stderr)
    if output == "json":
        print(dump_json({"schema": 1, "experiment": "all", "quick": quick, "headlines": [asdict(row) for row in rows]}))
        return
    table = Table(title="Headline numbers" + (", few points of each experiment" if quick else ""))
    for heading in ("", "System", "Published", "Ours", "Conditions", "Verdict", "Number"):
        table.add_column(heading)
    for row in rows:
        table.add_row(str(row.number), row.system, row.published, row.ours or "-", row.conditions, row.verdict,
                      REACHED[row.is_reached])
    console().print(table)
    reached = Counter(row.is_reached for row in rows)
    console().print(
        ", ".join(f"{count} {verdict}" for verdict, count in Counter(row.verdict for row in rows).items())
        + f"; of the {reached[True] + reached[False]} measured, {reached[True]} are as good as published"
    )


def _rows(quick: bool, seeds: int, trace: Path | None, data: Path | None) -> Iterator[Headline]:
    from brim.cli import reproduce_adloader, reproduce_aiturbo, reproduce_eaco, reproduce_padding
    from brim.cli.reproduce_elastic import elastic_results
    from brim.sim.reproduce import aiturbo_sweep, eaco, master
    from brim.sim.reproduce.grid import FULL, QUICK, headline

    results, asked = elastic_results(headline(QUICK if quick else FULL), seeds)
    if len(results.outcomes) < asked:
        print("brim: stopped: nothing to report", file=sys.stderr)
        raise typer.Exit(130)
    points = f"{len(results.conditions())} conditions, {seeds} seed" + "s" * (seeds > 1)
    yield from master.elastic_rows(results.best("completed"), results.best("jct_mean_s"), points, _sizing_ms())
    planned = [one for one in aiturbo_sweep.plan(quick=quick) if one.group == "sweep"]
    swept = reproduce_aiturbo.Findings(planned, reproduce_aiturbo.run(planned))
    yield from reproduce_aiturbo.headlines(swept, len({one.point.seed for one in planned}))
    fed = reproduce_adloader.measure(quick=True, seeds=seeds)  # other ratios have no headline
    yield from master.adloader_rows(fed.divided(4), *fed.gains(4), seeds)
    yield from master.table_rows(eaco.table_rows())
    jobs, found = reproduce_eaco.baselines(quick=quick)
    yield from master.cluster_rows({nodes: found[nodes][eaco.EACO.label] for nodes in found}, found, jobs)
    yield from master.padding_rows(reproduce_padding.measure_headline(trace), drawn=trace is None)
    if data is not None:
        yield _pollux(data, WORKLOADS[:1] if quick else WORKLOADS)


def _sizing_ms() -> list[float]:
    """Median time to size the jobs of each instance, without compiling."""
    import numpy as np

    from brim.policies.size.knapsack import best_sizes
    from brim.sim.reproduce.master import SIZED

    rng, medians_ms = np.random.default_rng(0), []
    for jobs, gpus, largest in SIZED:
        value = rng.uniform(0.5, 2, (jobs, 1)) * np.arange(largest + 1) ** rng.uniform(0.3, 0.98, (jobs, 1))
        value[:, 0] = -np.inf
        best_sizes(value, gpus)
        times_ms = []
        for _ in range(SIZING_REPEATS):
            began_s = time.perf_counter()
            best_sizes(value, gpus)
            times_ms.append(1000 * (time.perf_counter() - began_s))
        medians_ms.append(statistics.median(times_ms))
    return medians_ms


def _pollux(data: Path, numbers: tuple[int, ...]) -> Headline:
    """Replay Pollux's workloads on 16 nodes of 4 T4, truth measured."""
    from brim.cli.replays import Task, run_all
    from brim.core.cluster import parse_cluster
    from brim.reports.metrics import measure
    from brim.sim.reproduce.master import pollux_row
    from brim.sim.truth_option import TruthOption
    from brim.sim.twin import ReplaySettings
    from brim.traces import read

    truth = TruthOption(name="measured", profiles=data / "profiles" / "pollux")
    traces = [read(str(data / "traces" / "pollux" / "workloads" / f"workload-{n}.csv"), None)[0] for n in numbers]
    tasks = [
        Task(trace=trace, cluster=parse_cluster("16x4xT4"), policy=policy, truth=truth,
             settings=ReplaySettings(overheads=truth.overheads()))
        for policy in ("pollux", "tiresias-pollux") for trace in traces
    ]
    found = [measure(outcome).jct_mean_s for outcome in run_all(tasks) if not outcome.partial]
    mean_s = [one for one in found if one is not None]
    if len(mean_s) < len(tasks):
        print("brim: stopped: nothing to report", file=sys.stderr)
        raise typer.Exit(130)
    return pollux_row(mean_s[: len(traces)], mean_s[len(traces) :])
