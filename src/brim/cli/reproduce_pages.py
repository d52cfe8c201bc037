"""Lay out the elastic experiment for its report: which figures are in which table and chart."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from brim.reports.charts.lines import Curve, Scale
from brim.reports.charts.svg import COLOURS
from brim.reports.experiment import Chart, Experiment, Panel, TextTable
from brim.sim.reproduce.elastic import BASELINE, OURS, STRONGER, WINDOW_H, Condition
from brim.sim.reproduce.grid import MAIN
from brim.sim.reproduce.results import DIFFERENCES, Ratio, Results, headlines
from brim.units import show_duration

_BRIEF: Final = (*MAIN, "fifo")
"""Policies in the terminal's tables; the page and the JSON show all."""
_HEADINGS: Final = (
    "load", "policy", "jobs", "done", "done x", "mean", "mean x", "M/M/1", "p95", "held", "restarts", "stalled",
    "round ms", "drop: done", "drop: done x", "dropped",
)
_DROPPED_FIRST: Final = ("jobs", "held", "round ms", "stalled", "restarts", "p95", "drop: done", "drop: done x", "done")
_REFERENCE_POINTS: Final = 400
_REFERENCE_MAX: Final = 20.0
"""Value at which the reference curve, which has no bound, is cut."""
_TERMS: Final = (
    ("load", "arrival rate over what elastic-fixed sustains of these jobs on this cluster"),
    ("done", "jobs completed within the hours of arrivals; a job that does not fit waits"),
    ("mean, p95", "completion time of all jobs, waiting included"),
    ("done x, mean x", "elastic over the policy of the row: jobs completed, and mean time the other way round"),
    ("M/M/1", "mean x of two M/M/1 queues with the measured capacities; none from the capacity of the row's policy on"),
    ("held", "share of GPU time held within the hours of arrivals"),
    ("restarts", "starts after a job's first, including resizes and moves, per job"),
    ("stalled", "share of the GPU time held in which jobs did not train but started, restarted or were timed"),
    ("round ms", "wall time of a scheduling round, all of its parts: median / 99th percentile"),
    ("drop", "the same arrivals, if a job that does not fit on arrival is rejected; dropped: share of those"),
)


def experiment_of(results: Results, *, seeds: int, missing: int, command: str) -> Experiment:
    """Return everything that the reports show, as plain data."""
    conditions = [condition for condition in results.conditions() if not condition.drop]
    groups: dict[Condition, list[Condition]] = {}
    for condition in conditions:
        groups.setdefault(replace(condition, load=1.0), []).append(condition)
    sizes = " and ".join(str(gpus) for gpus in dict.fromkeys(condition.gpus for condition in groups))
    alarm = f"{missing:,} replays are missing or were interrupted; best points are over the others." if missing else ""
    return Experiment(
        title="Effective Elastic Scaling, re-measured",
        about=f"GPUs and batch chosen together (elastic) against elastic GPUs at the batch asked ({BASELINE}), on "
        f"clusters of {sizes} GPUs; {WINDOW_H} h of arrivals unless said otherwise, then to the last job.",
        badges=(f"{seeds} seeds" if seeds > 1 else "seed 0", "synthetic jobs", *(["partial"] if missing else [])),
        alarm=alarm, findings=tuple(headlines(results)),
        panels=tuple(_panel(results, group) for group in groups.values()), terms=_TERMS, notes=DIFFERENCES,
        command=command,
    )


def _panel(results: Results, conditions: list[Condition]) -> Panel:
    head = conditions[0]
    pattern = "Poisson" if head.arrivals == "poisson" else "bursts"
    return Panel(
        title=f"{head.gpus} GPUs, {head.category}, {pattern}" + (f", {head.hours} h" if head.hours != WINDOW_H else ""),
        note=_capacity_words(results, head),
        charts=_charts(results, conditions), table=_table(results, conditions),
    )


def _capacity_words(results: Results, condition: Condition) -> str:
    base = results.per_h(condition, BASELINE)
    if base is None:
        return ""
    others = [
        f"{name} sustains {per_h / base:.2f} times as much" for name in (OURS, STRONGER)
        if (per_h := results.per_h(condition, name)) is not None
    ]
    return f"Load 1 is {base:.1f} jobs per hour, what {BASELINE} sustains; " + ", ".join(others) + "."


def _table(results: Results, conditions: list[Condition]) -> TextTable:
    rows: list[tuple[str, ...]] = []
    brief: list[int] = []
    for condition in conditions:
        for policy in results.policies():
            row = _row(results, condition, policy)
            if row is not None:
                if policy in _BRIEF:
                    brief.append(len(rows))
                rows.append(row)
    return TextTable(
        headings=_HEADINGS, rows=tuple(rows), text_columns=2, dropped_first=_DROPPED_FIRST, brief=tuple(brief)
    )


def _row(results: Results, condition: Condition, policy: str) -> tuple[str, ...] | None:
    mean = results.mean(condition, policy)
    if mean is None:
        return None
    turned = _dropping(condition)
    dropped = results.mean(turned, policy)
    other = policy != OURS
    done = results.ratio(condition, "completed", OURS, policy) if other else None
    sooner = results.ratio(condition, "jct_mean_s", OURS, policy) if other else None
    turned_done = results.ratio(turned, "completed", OURS, policy) if other else None
    return (
        f"{condition.load:g}", policy, f"{mean['submitted']:,.0f}", f"{mean['completed']:,.0f}",
        _value(done), show_duration(mean["jct_mean_s"]), _value(sooner),
        _times(sooner.mm1 if sooner else None), show_duration(mean["jct_p95_s"]), f"{mean['allocated_fraction']:.0%}",
        f"{mean['restarts_per_job']:.2f}", f"{mean['stalled_fraction']:.1%}",
        f"{mean['round_median_ms']:.1f}/{mean['round_p99_ms']:.0f}" if "round_p99_ms" in mean else "-",
        f"{dropped['completed']:,.0f}" if dropped else "", _value(turned_done),
        f"{dropped['dropped_fraction']:.0%}" if dropped else "",
    )


def _value(ratio: Ratio | None) -> str:
    return _times(ratio.value if ratio else None)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _charts(results: Results, conditions: list[Condition]) -> tuple[Chart, ...]:
    def chart(title: str, note: str, scale: Scale, name: str, *, drop: bool = False) -> Chart:
        curves = []
        for index, policy in enumerate(results.policies()):
            found = [(c.load, results.mean(_dropping(c) if drop else c, policy)) for c in conditions]
            points = tuple((load, mean[name]) for load, mean in found if mean is not None)
            if points:
                curves.append(Curve(policy, index, points))
        return Chart(title=title, note=note, scale=scale, curves=tuple(curves))

    return (
        chart("Mean completion time", "Waiting included; jobs that do not fit wait.", "time", "jct_mean_s"),
        _ratio_chart(results, conditions),
        chart("Jobs completed", "Within the hours of arrivals; jobs that do not fit wait.", "count",
              "completed"),
        chart("Jobs completed, others rejected", "Jobs that do not fit on arrival are rejected.", "count",
              "completed", drop=True),
        chart("Jobs rejected", "Share of the arriving jobs, if those that do not fit are rejected.",
              "fraction", "dropped_fraction", drop=True),
        chart("GPUs held", "Share of GPU time within the hours of arrivals; jobs that do not fit wait.", "fraction",
              "allocated_fraction"),
    )


def _ratio_chart(results: Results, conditions: list[Condition]) -> Chart:
    """Chart how many times sooner jobs complete; the reference of a line has the same colour, dotted."""
    curves = []
    policies = results.policies()
    for theirs in (name for name in (BASELINE, STRONGER) if name in policies):
        index = policies.index(theirs)
        ratios = [r for c in conditions if (r := results.ratio(c, "jct_mean_s", OURS, theirs))]
        measured = tuple((r.condition.load, r.value) for r in ratios)
        loads = np.linspace(conditions[0].load, conditions[-1].load, _REFERENCE_POINTS).tolist()
        at = [(load, results.mm1(replace(conditions[0], load=load), OURS, theirs)) for load in loads]
        reference = tuple((load, ratio) for load, ratio in at if ratio is not None and ratio <= _REFERENCE_MAX)
        if measured:
            curves.append(Curve(f"against {theirs}", index, measured))
        if reference:
            curves.append(Curve(f"M/M/1 against {theirs}", index + COLOURS, reference))
    return Chart(
        title="How many times sooner elastic completes", scale="ratio", curves=tuple(curves),
        note="Mean completion time of the other over that of elastic; the reference ends at the other's capacity.",
    )


def _dropping(condition: Condition) -> Condition:
    return replace(condition, drop=True)
