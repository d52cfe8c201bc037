"""The comparison as a table for the terminal, with what carries it in words below."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from brim.reports.summary import Summary, all_assumptions, by_policy, interval, short_names
from brim.units import show_duration

_PAIRED: Final = "against first"
_DROPPED_FIRST: Final = (
    "rounds/s", "wall", "rho p95", "busy", "told", "makespan x bound", "lost GPU-h", "p50", "makespan",
    "queue mean", "preempt", "resize", _PAIRED, "p99", "alloc",
)


def comparison(summaries: Sequence[Summary]) -> RenderableType:
    """One row per policy and load; with several seeds, means with their 95 % interval and paired differences.

    Args:
        summaries: In the order in which policies should stand; the first policy is the one others are compared with.

    Returns:
        A rich renderable: table, load, bounds, assumptions; "partial" first and loud.
    """
    names = short_names(s.policy for s in summaries)
    summaries = [dataclasses.replace(s, policy=names[s.policy]) for s in summaries]
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
        parts.append(_Fitting(rows, load))
        parts.extend(_notes(rows))
    parts.extend(Text(f"- {line}") for line in all_assumptions(summaries))
    return Group(*parts)


def paired_difference(first: Sequence[Summary], other: Sequence[Summary]) -> str | None:
    """Mean JCT of ``other`` minus ``first`` over the seeds both have, in words; None with fewer than two such seeds."""
    base = {s.seed: s.metrics.jct_mean_s for s in first}
    pairs = [(s.metrics.jct_mean_s, base[s.seed]) for s in other if s.seed in base]
    differences = [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
    if len(differences) < 2:
        return None
    found = interval(differences)
    sign = "+" if found.mean >= 0 else "-"
    return f"{sign}{show_duration(abs(found.mean))} +- {show_duration(found.half_width or 0.0)}"


class _Fitting:
    """The table, without its least needed columns where the terminal is too narrow for all of them."""

    def __init__(self, rows: dict[str, list[Summary]], load: float) -> None:
        self.rows, self.load = rows, load

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out: set[str] = set()
        table = _table(self.rows, self.load, left_out)
        for heading in _DROPPED_FIRST:
            if console.measure(table, options=options.update(max_width=1_000)).maximum <= options.max_width:
                break
            left_out.add(heading)
            table = _table(self.rows, self.load, left_out)
        yield table


def _table(rows: dict[str, list[Summary]], load: float, left_out: set[str]) -> Table:
    table = Table(title=f"load {load:g}", title_justify="left", pad_edge=False, box=None, header_style="bold")
    texts = cells(rows)
    for heading in next(iter(texts.values())):
        if heading not in left_out:
            table.add_column(heading, justify="left" if heading in ("policy", "told") else "right", no_wrap=True)
    for policy, group in rows.items():
        shown = [Text(cell) for heading, cell in texts[policy].items() if heading not in left_out]
        table.add_row(*shown, style="yellow" if any(s.incomplete for s in group) else None)
    return table


def cells(rows: dict[str, list[Summary]]) -> dict[str, dict[str, str]]:
    """Figures of each policy over its seeds as text, by column heading; undefined is a dash."""
    first = next(iter(rows.values()))
    rare = [heading for heading, figure in _RARE.items() if any(figure(s) for group in rows.values() for s in group)]
    texts = {policy: _cells(policy, group, rare) for policy, group in rows.items()}
    if max(len(group) for group in rows.values()) > 1:
        for policy, group in rows.items():
            paired = "" if group is first else paired_difference(first, group) or "-"
            row = list(texts[policy].items())
            texts[policy] = dict([*row[:2], (_PAIRED, paired), *row[2:]])  # next to the mean JCT
    return texts


_RARE: Final[dict[str, Callable[[Summary], float]]] = {
    "resize": lambda s: s.metrics.resizes, "rejected": lambda s: s.metrics.rejected,
    "unmeasured": lambda s: s.metrics.unmeasured,
}
"""Columns that are there only where a policy of the table has something in them."""


def _cells(policy: str, group: Sequence[Summary], rare: Sequence[str]) -> dict[str, str]:
    head = group[0]
    oracle = " (oracle)" if head.oracle and "oracle" not in policy else ""
    marks = oracle + (" (partial)" if any(s.incomplete for s in group) else "")
    return {
        "policy": policy + marks,
        "JCT mean": _spread(group, lambda s: s.metrics.jct_mean_s, show_duration),
        "x bound": _mean(group, lambda s: s.jct_ratio, times),
        "p50": _mean(group, lambda s: s.metrics.jct_p50_s, show_duration),
        "p99": _mean(group, lambda s: s.metrics.jct_p99_s, show_duration),
        "queue mean": _mean(group, lambda s: s.metrics.queue_mean_s, show_duration),
        "makespan": _mean(group, lambda s: s.metrics.makespan_s, show_duration),
        "makespan x bound": _mean(group, lambda s: s.makespan_ratio, times),
        "alloc": _mean(group, lambda s: s.metrics.gpu_allocated_fraction, lambda x: f"{x:.1%}"),
        "busy": _mean(group, lambda s: s.metrics.gpu_busy_fraction, lambda x: f"{x:.1%}"),
        "rho p95": _mean(group, lambda s: s.metrics.ftf_rho_p95, times),
        "preempt": _mean(group, lambda s: s.metrics.preemptions, lambda x: f"{x:,.0f}"),
        **{heading: _mean(group, _RARE[heading], lambda x: f"{x:,.0f}") for heading in rare},
        "lost GPU-h": _mean(group, lambda s: s.metrics.lost_gpu_s / 3600, lambda x: f"{x:,.1f}"),
        "told": head.estimates,
        "rounds/s": _mean(group, lambda s: s.metrics.rounds_per_s, lambda x: f"{x:,.0f}"),
        "wall": _mean(group, lambda s: s.metrics.wall_s, show_duration),
    }


def _notes(rows: dict[str, list[Summary]]) -> list[Text]:
    first = next(iter(rows.values()))[0]
    lines = [f"{first.metrics.jobs:,} jobs. {_bound_in_words(rows)}"]
    if first.metrics.elastic:
        lines.append(f"{first.metrics.elastic:,} of the jobs are elastic: a policy may choose their GPUs and batch.")
    seeds = max(len(group) for group in rows.values())
    if seeds > 1:
        lines.append(f"{seeds} seeds: mean +- 95 % interval (Student t); differences are paired by seed.")
    failed = {policy: sum(s.metrics.failed for s in group) for policy, group in rows.items()}
    if any(failed.values()):
        counts = ", ".join(f"{policy} {count}" for policy, count in failed.items() if count)
        lines.append(f"Failed jobs, left out of every mean: {counts}.")
    if any(s.metrics.rejected for group in rows.values() for s in group):
        lines.append("Rejected jobs are left out of every mean: compare only policies that reject the same ones.")
    if any(s.metrics.unmeasured for group in rows.values() for s in group):
        lines.append(
            "Unmeasured jobs are elastic and ran as asked: when they started, nothing was known of how they scale."
        )
    return [Text(line, style="dim") for line in lines]


def _bound_in_words(rows: dict[str, list[Summary]]) -> str:
    bounded = next((s for group in rows.values() for s in group if s.bounds.jct_mean_s is not None), None)
    if bounded is None:
        return "No lower bound: no job finished, or jobs ran shorter than they can."
    group = rows[bounded.policy]
    jct_s, makespan_s = (
        _mean(group, figure, show_duration)
        for figure in (lambda s: s.bounds.jct_mean_s, lambda s: s.bounds.makespan_s)
    )
    seeds = ", on average over the seeds" if len(group) > 1 else ""
    what = "these jobs, at any size and batch they may have," if bounded.metrics.elastic else "rigid jobs"
    return (
        f"No schedule of {what} on these GPUs has a mean JCT below {jct_s} or a makespan below {makespan_s}{seeds} "
        f"(finished jobs of {bounded.policy}; preemption and placement free)."
    )


def _values(group: Sequence[Summary], figure: Callable[[Summary], float | None]) -> list[float]:
    return [value for value in map(figure, group) if value is not None]


def _mean(group: Sequence[Summary], figure: Callable[[Summary], float | None], show: Callable[[float], str]) -> str:
    values = _values(group, figure)
    return show(interval(values).mean) if values else "-"


def _spread(group: Sequence[Summary], figure: Callable[[Summary], float | None], show: Callable[[float], str]) -> str:
    values = _values(group, figure)
    if not values:
        return "-"
    found = interval(values)
    return show(found.mean) + (f" +- {show(found.half_width)}" if found.half_width is not None else "")


def times(ratio: float) -> str:
    """A multiple with as many digits as matter."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _show(seconds: float | None) -> str:
    return "-" if seconds is None else show_duration(seconds)
