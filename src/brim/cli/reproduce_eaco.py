"""``brim sim reproduce eaco``: EaCO's measured table, and clusters with its frontier of energy against run time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from brim.cli.options import INTERRUPTED
from brim.cli.outputs import console
from brim.reports.experiment import TextTable, fitting_table

if TYPE_CHECKING:
    from brim.sim.reproduce.eaco import ClusterRow, Conditions, TableRow, Variant

QUICK_JOBS = 60


def reproduce_eaco(*, quick: bool, output: str) -> None:
    """Run the experiment and print it; with ``quick`` fewer jobs, variants and conditions."""
    from brim.reports.files import dump_json
    from brim.sim.reproduce import eaco

    table, at_idle = eaco.table_rows(), eaco.table_rows(eaco.IDLE_W)
    jobs = QUICK_JOBS if quick else eaco.Conditions().jobs
    clusters = [eaco.Conditions(nodes=nodes, jobs=jobs) for nodes in (64, 28)]
    variants = [*eaco.BASELINES, eaco.EACO] if quick else [*eaco.BASELINES, *eaco.FRONTIER]
    changed = () if quick else eaco.SENSITIVITY
    wanted = [(one, variant) for one in clusters for variant in variants]
    wanted += [(one, variant) for one in changed for variant in (eaco.EXCLUSIVE, eaco.EACO)]
    rows = list(_rows(wanted))
    if len(rows) < len(wanted):
        print(f"brim: partial: {len(rows)} of {len(wanted)} replays are complete: nothing to report", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    found = {(one, variant.label): row for (one, variant), row in zip(wanted, rows, strict=True)}
    if output == "json":
        print(dump_json(_as_json(table, found)))
        return
    shown: list[RenderableType] = [*_measured(table, at_idle)]
    if quick:
        shown.append(Text(f"--quick: {jobs} of {eaco.Conditions().jobs} jobs; the full run gives other figures."))
    for one in clusters:
        shown += _cluster(one, {label: row for (where, label), row in found.items() if where == one})
    if changed:
        shown += _sensitivity(changed, found)
    console().print(Group(*shown))


def baselines(*, quick: bool) -> tuple[int, dict[int, dict[str, ClusterRow]]]:
    """Replay ``eaco`` and its baselines: the number of jobs, and rows by number of nodes and policy."""
    from brim.sim.reproduce import eaco

    jobs = QUICK_JOBS if quick else eaco.Conditions().jobs
    wanted = [
        (eaco.Conditions(nodes=nodes, jobs=jobs), variant)
        for nodes in (64, 28) for variant in (*eaco.BASELINES, eaco.EACO)
    ]
    rows = list(_rows(wanted))
    if len(rows) < len(wanted):
        print(f"brim: partial: {len(rows)} of {len(wanted)} replays are complete: nothing to report", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    found: dict[int, dict[str, ClusterRow]] = {}
    for (one, variant), row in zip(wanted, rows, strict=True):
        found.setdefault(one.nodes, {})[variant.label] = row
    return jobs, found


def _rows(wanted: Sequence[tuple[Conditions, Variant]]) -> Iterator[ClusterRow]:
    from brim.cli.replays import Task, run_all
    from brim.sim.reproduce.eaco import MeasuredTruth, cluster_row

    traces = {one: one.trace() for one, _ in wanted}
    tasks = [
        Task(trace=traces[one], cluster=one.cluster, policy=variant.policy, settings=variant.settings,
             truth=MeasuredTruth())
        for one, variant in wanted
    ]
    print(f"brim: {len(tasks)} replays", file=sys.stderr)
    for outcome, task, (_, variant) in zip(run_all(tasks), tasks, wanted, strict=False):
        if outcome.partial or outcome.trace is not task.trace:
            return
        yield cluster_row(variant.label, outcome)


def _measured(table: Sequence[TableRow], at_idle: Sequence[TableRow]) -> Iterator[RenderableType]:
    from brim.sim.reproduce.eaco import ENERGY_WITHIN, FITTED_ON, IDLE_W, JCT_WITHIN, MODELS

    asked = [row for row in table if row.is_asked]
    met = sum(row.is_met for row in asked)
    word = "reproduced" if met == len(asked) else "re-measured"
    told = {True: "fitted", False: "predicted"}
    counts = ", ".join(
        f"{sum(row.is_met for row in rows)} of {len(rows)} that were {told[fitted]}"
        for fitted in told if (rows := [row for row in asked if (row.published in FITTED_ON) is fitted])
    )
    yield Text(f"EaCO's measured pairs and triples on a node of 8 V100: {word}; condition met by {counts}", "bold")
    yield Text(
        f"Power and slowdown fitted on the first {len(FITTED_ON)} rows. Condition: energy within {ENERGY_WITHIN:.0%} "
        f"and mean JCT within {JCT_WITHIN:.0%}."
    )
    yield fitting_table(TextTable(
        headings=(
            "Set", "kWh published", "ours", "error", "JCT h published", "ours", "error", f"kWh, idle {IDLE_W:g} W",
            "condition",
        ),
        rows=tuple((
            " + ".join(MODELS[job] for job in row.published.jobs), f"{row.published.kwh:.2f}", f"{row.kwh:.2f}",
            f"{row.energy_error:+.1%}", f"{row.published.jct_h:.2f}", f"{row.jct_h:.2f}", f"{row.jct_error:+.1%}",
            f"{other.energy_error:+.1%}",
            ("met" if row.is_met else "not met") if row.is_asked else "shown only",
        ) for row, other in zip(table, at_idle, strict=True)),
    ))


def _cluster(conditions: Conditions, rows: dict[str, ClusterRow]) -> Iterator[RenderableType]:
    from brim.sim.reproduce import eaco

    fifo, awake = rows[eaco.EXCLUSIVE.label], rows["fifo, nodes never sleep"]
    ours = [row for label, row in rows.items() if label.startswith("eaco")]
    reached = [row.label for row in ours if eaco.is_reached(row, fifo)]
    word = "reproduced" if reached else "re-measured"
    yield Text(f"\n{conditions.nodes} nodes of 8 V100, {conditions.jobs} jobs of 8 GPUs: {word}", "bold")
    yield Text(
        "The paper's trace, load and deadlines are not published; here nodes sleep after 5 min without jobs under "
        "every policy but one. Published point: "
        f"energy {eaco.PUBLISHED_SAVING:.0%} below exclusive FIFO at {eaco.PUBLISHED_GROWTH:.1%} more run time; "
        + (f"reached by {', '.join(reached)}." if reached else "not reached.")
    )
    published = (
        "EaCO, published", f"{eaco.PUBLISHED_SAVING:.0%}", "", f"{eaco.ACTIVE_SAVINGS[conditions.nodes]:.0%}",
        f"+{eaco.PUBLISHED_GROWTH:.1%}", "", "", "", "",
    )
    ordered = sorted(rows.values(), key=lambda row: (row.label.startswith("eaco"), row.run_growth))
    yield fitting_table(TextTable(
        headings=("Policy", "energy below fifo", "below fifo without sleep", "active nodes below", "run time",
                  "time in system h", "late", "undone", "point"),
        rows=(published, *((
            row.label, f"{eaco.saving(row, fifo):.1%}", f"{eaco.saving(row, awake):.1%}",
            f"{1 - row.active_node_h / fifo.active_node_h:.1%}", f"{row.run_growth:+.1%}", f"{row.total_h:.2f}",
            f"{row.late:.1%}", str(row.undone),
            "" if not row.label.startswith("eaco") else "reached" if eaco.is_reached(row, fifo) else "not reached",
        ) for row in ordered)),
    ))
    own = rows[eaco.EACO.label]
    beside = ", ".join(
        f"{eaco.saving(own, rows[name]):.1%} less than {name} (published: {figure:.1%})"
        for name, figure in eaco.CLUSTER_SAVINGS[conditions.nodes].items()
    )
    yield Text(f"Energy that eaco uses: {beside}.")


def _sensitivity(
    changed: Sequence[Conditions], found: dict[tuple[Conditions, str], ClusterRow]
) -> Iterator[RenderableType]:
    from brim.sim.reproduce import eaco

    yield Text("\nSensitivity of eaco, 64 nodes", "bold")
    pairs = [(one, found[one, eaco.EACO.label], found[one, eaco.EXCLUSIVE.label]) for one in changed]
    yield fitting_table(TextTable(
        headings=("Changed", "energy below fifo", "active nodes below", "run time", "late", "late under fifo"),
        rows=tuple((
            one.label, f"{eaco.saving(own, fifo):.1%}", f"{1 - own.active_node_h / fifo.active_node_h:.1%}",
            f"{own.run_growth:+.1%}", f"{own.late:.1%}", f"{fifo.late:.1%}",
        ) for one, own, fifo in pairs),
    ))


def _as_json(table: Sequence[TableRow], found: dict[tuple[Conditions, str], ClusterRow]) -> dict[str, Any]:
    return {
        "table": [
            {**asdict(row.published), "kwh_ours": row.kwh, "jct_h_ours": row.jct_h, "met": row.is_met} for row in table
        ],
        "clusters": [{**asdict(replace(one)), **asdict(row)} for (one, _), row in found.items()],
    }
