"""Show a comparison as a table for the terminal, with notes and assumptions below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from brim.core.prices import Prices
from brim.reports.record import NAME as RECORD_ROW
from brim.reports.record import NoRecord, RecordedMetrics, at_load
from brim.reports.summary import Summary, all_assumptions, by_policy, interval, paired_jct, renamed, short_names
from brim.reports.verdict import times, verdict
from brim.units import S_PER_H, counted, show_duration

PAIRED: Final = "against first"
"""Heading of the column of paired differences."""
_DROPPED_FIRST: Final = (
    "rounds/s", "wall", "rho p95", "busy", "estimates", "makespan x bound", "lost GPU-h", "kWh x bound", "nodes",
    "cost saved", "wait p50", "JCT p50", "makespan", "wait-h saved", "re-wait", "wait p99", "preempt", "resize",
    "CO2 kg", "GPU-h saved", "GPU-h held", PAIRED, "JCT p99", "alloc", "cost",
)


def comparison(summaries: Sequence[Summary], record: RecordedMetrics | NoRecord | None = None) -> RenderableType:
    """One row per policy and load; with several seeds, means with their 95 % interval and paired differences.

    Args:
        summaries: In the order of the rows; others are compared with the first policy.
        record: What the trace recorded; its row is the first in the table of load 1.

    Returns:
        A rich renderable: table, load, bounds, assumptions; a warning first if results are partial.
    """
    names = short_names(s.policy for s in summaries)
    summaries = renamed(summaries, names)
    grouped = by_policy(summaries)
    parts: list[RenderableType] = []
    interrupted = list(dict.fromkeys(s.policy for s in summaries if s.incomplete))
    if interrupted:
        missing = sum(s.metrics.unfinished for s in summaries)
        parts.append(Text(
            f"PARTIAL: {', '.join(interrupted)} stopped before all jobs had ended. {missing} unfinished jobs are left "
            "out of every mean; do not compare with complete replays.", style="bold red",
        ))
    for load in dict.fromkeys(load for load, _ in grouped):
        rows = {policy: group for (at, policy), group in grouped.items() if at == load}
        here = at_load(record, load)
        parts.append(FittingTable(partial(_table, rows, load, here), _headings(rows), _DROPPED_FIRST))
        parts.extend(Text(line) for line in verdict(rows))
        parts.extend(_notes(rows, here))
    parts.extend(Text(f"- {line}") for line in all_assumptions(summaries))
    return Group(*parts)


def paired_difference(first: Sequence[Summary], other: Sequence[Summary]) -> str | None:
    """Show the mean JCT of ``other`` minus ``first`` over their common seeds; None with fewer than two such seeds."""
    found = paired_jct(first, other)
    if found is None:
        return None
    sign = "+" if found.mean >= 0 else "-"
    return f"{sign}{show_duration(abs(found.mean))} +- {show_duration(found.half_width or 0.0)}"


class FittingTable:
    """A table for rich, without its least needed columns if the terminal is too narrow for all, and a note of those.

    Args:
        draw: Returns the table without the columns with these headings.
        headings: All headings, in order.
        dropped_first: Headings of the columns that may be dropped, the least needed first.
    """

    def __init__(
        self, draw: Callable[[set[str]], Table], headings: Sequence[str], dropped_first: Sequence[str]
    ) -> None:
        self._draw, self._headings, self._dropped_first = draw, headings, dropped_first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out: set[str] = set()
        table = self._draw(left_out)
        for heading in self._dropped_first:
            if console.measure(table, options=options.update(max_width=1_000)).maximum <= options.max_width:
                break
            left_out.add(heading)
            table = self._draw(left_out)
        yield table
        if left_out:
            too_wide = ", ".join(heading for heading in self._headings if heading in left_out)
            yield Text(
                f"This terminal is too narrow for: {too_wide}. A wider one, a pipe or --json shows them.", style="dim"
            )


def _headings(rows: dict[str, list[Summary]]) -> list[str]:
    return list(next(iter(cells(rows).values())))


def _table(
    rows: dict[str, list[Summary]], load: float, record: RecordedMetrics | NoRecord | None, left_out: set[str]
) -> Table:
    table = Table(title=f"load {load:g}x", title_justify="left", pad_edge=False, box=None, header_style="bold")
    lines = cells(rows, record)
    for heading in next(iter(lines.values())):
        if heading not in left_out:
            table.add_column(heading, justify="left" if heading in ("policy", "estimates") else "right", no_wrap=True)
    for name, line in lines.items():
        shown = [Text(cell.text) for heading, cell in line.items() if heading not in left_out]
        table.add_row(*shown, style="yellow" if any(s.incomplete for s in rows.get(name, ())) else None)
    return table


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure as text, and as a number to sort by; None where it is not defined or not a number."""

    text: str
    value: float | None = None


Row: TypeAlias = dict[str, Cell]
"""Cells by the heading of their column."""


def cells(rows: dict[str, list[Summary]], record: RecordedMetrics | NoRecord | None = None) -> dict[str, Row]:
    """Return the figures of the record, if there is one, and of each policy over its seeds; undefined is a dash."""
    first = next(iter(rows.values()))
    every = [s for group in rows.values() for s in group]
    shown = [heading for heading, (figure, _) in _RARE.items() if any(figure(s) for s in every)]
    priced = first[0].prices is not None
    lines = {policy: _cells(policy, group, shown, priced=priced) for policy, group in rows.items()}
    if max(len(group) for group in rows.values()) > 1:
        for policy, group in rows.items():
            paired = "" if group is first else paired_difference(first, group) or "-"
            line = list(lines[policy].items())
            lines[policy] = dict([*line[:2], (PAIRED, Cell(paired)), *line[2:]])  # next to the mean JCT
    if isinstance(record, RecordedMetrics):
        known = _recorded_cells(record, first[0].prices)
        headings = next(iter(lines.values()))
        lines = {record_name(record): {heading: known.get(heading, Cell("-")) for heading in headings}, **lines}
    return lines


def record_name(record: RecordedMetrics) -> str:
    """Return the name of the record's row, with the number of its jobs if it does not cover all."""
    if record.covered == record.jobs:
        return RECORD_ROW
    return f"{RECORD_ROW} ({record.covered:,} of {record.jobs:,} jobs)"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def show_hours(hours: float) -> str:
    """Show hours, with a decimal if they are few."""
    return f"{hours:,.1f}" if abs(hours) < 1000 else f"{hours:,.0f}"


def show_saved(hours: float) -> str:
    """Show hours saved, which may be a loss too small for one decimal."""
    few = 0 < abs(hours) < 0.05
    return f"{hours:.1g}" if few else show_hours(hours)


_RARE: Final[dict[str, tuple[Callable[[Summary], float], Callable[[float], str]]]] = {
    "JCT regular": (lambda s: s.metrics.jct_regular_mean_s or 0.0, show_duration),
    "resize": (lambda s: s.metrics.resizes, _whole), "rejected": (lambda s: s.metrics.rejected, _whole),
    "unmeasured": (lambda s: s.metrics.unmeasured, _whole),
    "lost GPU-h": (lambda s: s.metrics.lost_gpu_s / S_PER_H, show_hours),
    "kWh": (lambda s: s.metrics.energy_kwh or 0.0, show_hours),
    "kWh x bound": (lambda s: s.energy_ratio or 0.0, times),
    "CO2 kg": (lambda s: s.co2_kg or 0.0, show_hours),
    "nodes": (lambda s: s.metrics.active_nodes or 0.0, show_hours),
}
"""Columns shown only if a policy of the table has a figure for them, and how to show the figures."""


def _cells(policy: str, group: Sequence[Summary], rare: Sequence[str], *, priced: bool) -> Row:
    head = group[0]
    oracle = " (oracle)" if head.oracle and "oracle" not in policy else ""
    marks = oracle + (" (partial)" if any(s.incomplete for s in group) else "")
    money = {
        "cost": _mean(group, lambda s: s.cost, show_money),
        "cost saved": _mean(group, lambda s: s.saved_cost, show_money),
    }
    return {
        "policy": Cell(policy + marks),
        "JCT mean": _spread(group, lambda s: s.metrics.jct_mean_s, show_duration),
        "x bound": _mean(group, lambda s: s.jct_ratio, times),
        "JCT p50": _mean(group, lambda s: s.metrics.jct_p50_s, show_duration),
        "JCT p99": _mean(group, lambda s: s.metrics.jct_p99_s, show_duration),
        "wait mean": _mean(group, lambda s: s.metrics.wait_mean_s, show_duration),
        "wait p50": _mean(group, lambda s: s.metrics.wait_p50_s, show_duration),
        "wait p99": _mean(group, lambda s: s.metrics.wait_p99_s, show_duration),
        "re-wait": _mean(group, lambda s: s.metrics.requeue_mean_s, show_duration),
        "preempt": _mean(group, lambda s: s.metrics.preemptions, _whole),
        **{heading: _mean(group, figure, show) for heading, (figure, show) in _RARE.items() if heading in rare},
        "wait-h saved": _mean(group, lambda s: s.saved_wait_h, show_saved),
        "GPU-h saved": _mean(group, lambda s: s.saved_gpu_h, show_saved),
        **(money if priced else {}),
        "GPU-h held": _mean(group, lambda s: s.metrics.held_gpu_s / S_PER_H, show_hours),
        "alloc": _mean(group, lambda s: s.metrics.gpu_allocated_fraction, lambda x: f"{x:.1%}"),
        "busy": _mean(group, lambda s: s.metrics.gpu_busy_fraction, lambda x: f"{x:.1%}"),
        "rho p95": _mean(group, lambda s: s.metrics.ftf_rho_p95, times),
        "makespan": _mean(group, lambda s: s.metrics.makespan_s, show_duration),
        "makespan x bound": _mean(group, lambda s: s.makespan_ratio, times),
        "estimates": Cell(head.estimates),
        "rounds/s": _mean(group, lambda s: s.metrics.rounds_per_s, _whole),
        "wall": _mean(group, lambda s: s.metrics.wall_s, show_duration),
    }


def _recorded_cells(record: RecordedMetrics, prices: Prices | None) -> Row:
    durations = {
        "JCT mean": record.jct_mean_s, "JCT p50": record.jct_p50_s, "JCT p99": record.jct_p99_s,
        "wait mean": record.wait_mean_s, "re-wait": record.requeue_mean_s, "wait p50": record.wait_p50_s,
        "wait p99": record.wait_p99_s,
    }
    held_h = record.held_gpu_s / S_PER_H
    line = {heading: Cell(_show(value), value) for heading, value in durations.items()}
    line |= {"policy": Cell(record_name(record)), "GPU-h held": Cell(show_hours(held_h), held_h)}
    if prices is not None:
        line["cost"] = Cell(show_money(record.cost(prices)), record.cost(prices))
    return line


def _notes(rows: dict[str, list[Summary]], record: RecordedMetrics | NoRecord | None) -> list[Text]:
    every = [s for group in rows.values() for s in group]
    few, many = _least_and_most(s.metrics.jobs for s in every)  # resampling changes how many there are
    lines = [f"{few}{counted(many, 'job')}. {_bound_in_words(rows)}"]
    lines += record_notes(record)
    reference = next((s.saved.reference for s in every if s.saved), None)
    if reference is not None:
        lines.append(
            f"GPU-h saved: how many GPU-hours less the same jobs hold than {against(reference)}; wait-h saved: how "
            "many hours less they wait, summed over the jobs. Below zero, they need more."
        )
    few, many = _least_and_most(s.metrics.elastic for s in every)
    if many:
        are = "is" if many == 1 else "are"
        lines.append(f"{few}{many:,} of the jobs {are} elastic: a policy may choose the GPUs and batch of such jobs.")
    seeds = max(len(group) for group in rows.values())
    if seeds > 1:
        lines.append(f"{seeds} seeds: mean +- 95 % interval (Student t); differences are paired by seed.")
    failed = {policy: sum(s.metrics.failed for s in group) for policy, group in rows.items()}
    if any(failed.values()):
        counts = ", ".join(f"{policy} {count}" for policy, count in failed.items() if count)
        of_all = " of all seeds" if seeds > 1 else ""
        lines.append(f"Failed jobs{of_all}, left out of every mean: {counts}.")
    if any(s.metrics.rejected for s in every):
        lines.append("Rejected jobs are left out of every mean: compare only policies that reject the same ones.")
    if any(s.metrics.unmeasured for s in every):
        lines.append(
            "Unmeasured jobs are elastic but ran as asked, because their scaling was not known when they started."
        )
    return [Text(line, style="dim") for line in lines]


def _least_and_most(counts: Iterable[int]) -> tuple[str, int]:
    """Return what to write before the largest number, if another is smaller, and the largest."""
    known = sorted(counts)
    return (f"{known[0]:,} to " if known[0] < known[-1] else "", known[-1])


def record_notes(record: RecordedMetrics | NoRecord | None) -> list[str]:
    """Say why the row of the record is missing, or that it is of other GPUs or of some of the jobs only."""
    if record is None:
        return []
    if isinstance(record, NoRecord):
        return [f'No row "{RECORD_ROW}": {record.reason}.']
    said = []
    if record.absent_types:
        said.append(
            f'The row "{RECORD_ROW}" has jobs on GPUs of type {record.absent_types}, which the cluster of the replays '
            "does not have: on its GPUs they run as long as recorded."
        )
    if record.covered < record.jobs:
        said.append(
            f'The row "{RECORD_ROW}" covers {record.covered:,} of {record.jobs:,} jobs, those whose start and end were '
            "recorded. Savings against it are over the same jobs; the other columns of the policies are over all jobs."
        )
    return said


def against(reference: str) -> str:
    """Name what savings are measured against, to follow "less than"."""
    return "recorded" if reference == RECORD_ROW else f"under {reference}"


def _bound_in_words(rows: dict[str, list[Summary]]) -> str:
    bounded = next((s for group in rows.values() for s in group if s.bounds.jct_mean_s is not None), None)
    if bounded is None:
        return "No lower bound: the replay was stopped, no job finished, or jobs ran shorter than they can."
    group = rows[bounded.policy]
    jct_s, makespan_s = (
        _mean(group, figure, show_duration).text
        for figure in (lambda s: s.bounds.jct_mean_s, lambda s: s.bounds.makespan_s)
    )
    seeds = ", on average over the seeds" if len(group) > 1 else ""
    what = "these jobs, at any size and batch they may have," if bounded.metrics.elastic else "rigid jobs"
    return (
        f"No schedule of {what} on these GPUs has a mean JCT below {jct_s} or a makespan below {makespan_s}{seeds}"
        f". The bounds count the jobs that {bounded.policy} finished, and assume that preemption costs nothing and a "
        "job may use any GPUs."
    )


def _values(group: Sequence[Summary], figure: Callable[[Summary], float | None]) -> list[float]:
    return [value for value in map(figure, group) if value is not None]


def _mean(group: Sequence[Summary], figure: Callable[[Summary], float | None], show: Callable[[float], str]) -> Cell:
    values = _values(group, figure)
    if not values:
        return Cell("-")
    mean = interval(values).mean
    return Cell(show(mean), mean)


def _spread(group: Sequence[Summary], figure: Callable[[Summary], float | None], show: Callable[[float], str]) -> Cell:
    values = _values(group, figure)
    if not values:
        return Cell("-")
    found = interval(values)
    text = show(found.mean) + (f" +- {show(found.half_width)}" if found.half_width is not None else "")
    return Cell(text, found.mean)


def show_money(amount: float) -> str:
    """Show an amount in the user's currency, with two decimals if it is small."""
    return f"{amount:,.2f}" if abs(amount) < 1000 else f"{amount:,.0f}"


def _show(seconds: float | None) -> str:
    return "-" if seconds is None else show_duration(seconds)
