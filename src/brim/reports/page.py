"""Lay out a comparison as one self-contained HTML page, which opens from a file without a network and is below 5 MB.

The distribution charts show one replay per policy, and say which: the first seed at the first load. The table shows
all of them.
Names that users gave are escaped, and a content security policy lets only the page's own script run.
"""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Final

from brim.core.arrays import FloatArray, IntArray
from brim.core.replay import Replay
from brim.replacing import replacing
from brim.reports.charts import lines, trade, waits
from brim.reports.charts.svg import COLOURS, escape
from brim.reports.findings import (
    findings,
)
from brim.reports.gains import gains_section
from brim.reports.markup import badge, table
from brim.reports.metrics import finished, jct_ms, queue_ms
from brim.reports.record import NoRecord, RecordedMetrics, at_load
from brim.reports.summary import Summary, all_assumptions, by_policy, interval, renamed, short_names, summarise
from brim.reports.table import PAIRED, Cell, against, cells, record_notes, show_hours, show_money
from brim.reports.timeline import gantt_section
from brim.reports.verdict import Groups, mean_of, standing, times
from brim.units import MS_PER_S, counted, show_duration

_LONGEST_RATIO: Final = 3
"""Bars of the distance to the bound are cut at this multiple of the median, so that an outlier hides no difference."""
_LEFT_OUT: Final = ("policy", "makespan x bound", "estimates", "rounds/s", "wall")
"""Columns of the terminal's table that the page shows elsewhere or leaves out."""
_TERMS: Final = {
    "JCT": "Submission to completion, waiting included; mean, median, 99th percentile.",
    "x bound": "Multiple of a value that no schedule can beat.",
    "wait": "All time between submission and completion in which the job holds no GPUs.",
    "queueing delay": "From submission to the first start: the wait without re-wait.",
    "re-wait": "The part of the mean wait after the first start: after preemptions and failures.",
    "preempt": "How many times the scheduler took a job's GPUs.",
    "makespan": "From the first submission to the last completion.",
    "alloc, busy": "GPU time held, and GPU time that moved a job forward for good, over the time of all GPUs.",
    "GPU-h, wait-h": "GPU-hours that jobs hold, stalls and lost work included; hours that jobs wait, in total.",
    "rho p95": "Finish-time fairness: JCT over what an equal share of the cluster would have given; 1 is fair.",
}


def write_page(
    replays: Sequence[Replay], path: Path, *, command: str, summaries: Sequence[Summary] = (),
    record: RecordedMetrics | NoRecord | None = None,
) -> None:
    """Write ``page`` to a file, which is replaced as a whole."""
    text = page(replays, command=command, summaries=summaries, record=record)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def page(
    replays: Sequence[Replay], *, command: str, summaries: Sequence[Summary] = (),
    record: RecordedMetrics | NoRecord | None = None,
) -> str:
    """Lay a comparison out as one HTML page.

    Args:
        replays: At least one, all on the same cluster; others are compared with the policy of the first.
        command: Command line that makes this page again.
        summaries: Summaries of the same replays, if already computed.
        record: What their trace recorded.

    Returns:
        HTML text. Apart from wall times, equal replays give an equal page.
    """
    names = short_names([*(replay.policy for replay in replays), *(summary.policy for summary in summaries)])
    all_summaries = renamed(tuple(summaries) or summarise(replays, record=record), names)
    shown = _one_per_policy([replace(replay, policy=names[replay.policy]) for replay in replays])
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = shown[0]
    groups = {policy: group for (load, policy), group in by_policy(all_summaries).items() if load == head.load}
    here = standing(groups)
    best = None if isinstance(here, str) else here.best
    seeds = max(len(group) for group in groups.values())
    one = f"Seed {head.seed} at load {head.load:g}x. " if len(all_summaries) > len(shown) else ""
    means = f"Means over {seeds} seeds at load {head.load:g}x. " if seeds > 1 else one
    body = [
        _header(head, all_summaries, one),
        _findings(shown, all_summaries, at_load(record, head.load)),
        _summary_section(all_summaries, record),
        _distributions(shown, at_load(record, head.load), one),
        _courses(shown, all_summaries, one),
        _trade_section([summary for summary in all_summaries if summary.load == head.load], means),
        _bounds_section(groups, means),
        gantt_section(shown, one),
        gains_section(shown, best, at_load(record, head.load), one),
        _assumptions(all_summaries, command),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(head.trace.name)} on {escape(head.cluster)} - brim</title>"
        f"<style>{asset('page.css')}</style></head><body><main>"
        + "\n".join(body)
        + f"</main><script>{script}</script></body></html>\n"
    )


def _one_per_policy(replays: Sequence[Replay]) -> list[Replay]:
    """Return the first seed at the first load of each policy, in order of appearance."""
    kept: dict[str, Replay] = {}
    for replay in replays:
        if replay.load == replays[0].load:
            kept.setdefault(replay.policy, replay)
    return list(kept.values())


def _header(replay: Replay, summaries: Sequence[Summary], one: str) -> str:
    trace, cluster = replay.trace, replay.cluster
    span_s = trace.span_ms / MS_PER_S
    loads = ", ".join(f"{load:g}x" for load in dict.fromkeys(s.load for s in summaries))
    seeds = len(dict.fromkeys(s.seed for s in summaries))
    asked = float(replay.asked_gpu_ms.sum()) / (cluster.num_gpus * trace.span_ms) if trace.span_ms else 0.0
    facts = [
        f"{counted(len(trace), 'job')} over {show_duration(span_s)}",
        f"{counted(cluster.num_gpus, 'GPU')} ({cluster})",
    ]
    if asked:
        facts.append(
            f"offered load {asked:.2f}: the GPU time of all jobs, over the cluster's from first to last submission"
        )
    badges = [badge(f"load {loads}"), badge(f"{seeds} seeds" if seeds > 1 else f"seed {summaries[0].seed}")]
    badges += [badge(f"format {trace.format}")]
    elastic = int((replay.gpus_min < replay.gpus_max).sum())
    if elastic:
        facts.append(f"elastic jobs: {elastic:,}")
    if trace.synthetic:
        badges.append(badge("synthetic trace", warn=True))
    badges += [badge(f"oracle: {p}", warn=True) for p in dict.fromkeys(s.policy for s in summaries if s.oracle)]
    interrupted = list(dict.fromkeys(s.policy for s in summaries if s.incomplete))
    badges += [badge("partial", warn=True)] if interrupted else []
    alarm = (
        f'<p class="alarm" role="alert"><b>Partial.</b> {escape(", ".join(interrupted))} stopped before all jobs had '
        "ended. Unfinished jobs are left out of every mean; do not compare with complete replays.</p>"
        if interrupted else ""
    )
    return (
        f'<header><h1>{escape(trace.name)} under {_policies(summaries)}</h1>'
        f'<p class="soft">{one}{escape("; ".join(facts))}.</p>'
        f'<div class="badges">{"".join(badges)}</div>{alarm}</header>'
    )


def _policies(summaries: Sequence[Summary]) -> str:
    policies = list(dict.fromkeys(s.policy for s in summaries))
    return f"{len(policies)} policies" if len(policies) > 1 else escape(policies[0])


def _findings(shown: Sequence[Replay], summaries: Sequence[Summary], record: RecordedMetrics | NoRecord | None) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(shown, summaries, record))
    loads = len({summary.load for summary in summaries})
    load = f'<p class="note">At load {shown[0].load:g}x:</p>' if loads > 1 else ""
    return f'{load}<ul class="findings" aria-label="Findings">{items}</ul>'


def _summary_section(summaries: Sequence[Summary], record: RecordedMetrics | NoRecord | None) -> str:
    grouped = by_policy(summaries)
    policies = list(dict.fromkeys(policy for _, policy in grouped))
    parts = []
    for load in dict.fromkeys(load for load, _ in grouped):
        rows = {policy: group for (at, policy), group in grouped.items() if at == load}
        title = f"<h3>Load {load:g}x</h3>" if len(grouped) > len(rows) else ""
        parts.append(title + _summary_table(rows, policies, at_load(record, load)))
    seeds = max(len(group) for group in grouped.values())
    notes = [f"Mean \u00b1 95 % interval over {seeds} seeds (Student t), paired by seed."] if seeds > 1 else []
    notes += ["Best mean JCT in bold, not counting oracles (policies that know the truth).", *record_notes(record)]
    paired = {PAIRED: "Difference in mean JCT from the first policy, paired by seed."} if seeds > 1 else {}
    terms = _TERMS | paired | _terms_of_money(summaries[0])
    reference = next((s.saved.reference for s in summaries if s.saved), None)
    if reference is not None:
        terms["saved"] = f"Less than {against(reference)}, over the same jobs; below zero, more."
    words = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in terms.items())
    return (
        f'<section><h2>Summary</h2><p class="note">{escape(" ".join(notes))}</p>{"".join(parts)}'
        f'<details class="terms" open><summary>What the columns mean</summary><dl>{words}</dl></details></section>'
    )


def _terms_of_money(summary: Summary) -> dict[str, str]:
    """What the columns of cost and energy mean, if they are there."""
    terms = {} if summary.prices is None else {"cost": f"GPU-hours held, at {summary.prices.words}."}
    if summary.metrics.energy_kwh is not None:
        terms["kWh"] = "What all nodes used, modelled from the utilisation of GPUs, and that over the least jobs need."
        terms["nodes"] = "Mean number of nodes with a job."
    return terms


def _summary_table(
    rows: dict[str, list[Summary]], policies: Sequence[str], record: RecordedMetrics | NoRecord | None
) -> str:
    means = {
        policy: interval([s.metrics.jct_mean_s for s in group if s.metrics.jct_mean_s is not None]).mean
        for policy, group in rows.items()
        if not group[0].oracle and not any(s.incomplete for s in group)
        and any(s.metrics.jct_mean_s is not None for s in group)
    }
    best = min(means, key=lambda policy: means[policy]) if means else None
    lines_: list[str] = []
    shown = cells(rows, record)
    for name, row in shown.items():
        group = rows.get(name, ())
        marks = (" " + badge("oracle", warn=True) if group and group[0].oracle else "") + (
            " " + badge("partial", warn=True) if any(s.incomplete for s in group) else ""
        )
        chip = f'<span class="chip {_colour(policies.index(name)) if group else "pr"}"></span>'
        style = "best" if name == best else "" if group else "record"
        values = "".join(_figure(heading, cell) for heading, cell in row.items() if heading not in _LEFT_OUT)
        lines_.append(
            f'<tr{f" class={style}" if style else ""}><th scope="row" data-v="{escape(name)}">{chip}{escape(name)}'
            f"{marks}</th>{values}</tr>"
        )
    headings = ["policy", *(heading for heading in next(iter(shown.values())) if heading not in _LEFT_OUT)]
    return table(headings, lines_, label="Policies")


def _figure(heading: str, cell: Cell) -> str:
    """Return a cell with the number by which its column is sorted."""
    kind = " class=main" if heading == "JCT mean" else ""
    value = "" if cell.value is None else f' data-v="{cell.value:.6g}"'
    return f"<td{kind}{value}>{escape(cell.text).replace('+-', chr(0xB1))}</td>"


def _colour(index: int) -> str:
    return f"p{index % COLOURS}"


def _distributions(shown: Sequence[Replay], record: RecordedMetrics | NoRecord | None, one: str) -> str:
    done = [finished(replay) for replay in shown]
    jct = [(r.policy, jct_ms(r)[mask] / MS_PER_S) for r, mask in zip(shown, done, strict=True)]
    queue = [(r.policy, queue_ms(r)[mask] / MS_PER_S) for r, mask in zip(shown, done, strict=True)]
    known = record if isinstance(record, RecordedMetrics) else None
    return _pair(
        _chart("Job completion time",
               f"{one}Share of jobs completed within a time after submission. Medians are beside the names.",
               lines.cdf(jct, what="completion time", recorded=_seconds(known.jct_ms) if known else None)),
        _chart("Queueing delay",
               f"{one}Share of jobs started within a time after submission. Medians are beside the names.",
               lines.cdf(queue, what="queueing delay", recorded=_seconds(known.queue_ms) if known else None)),
    )


def _seconds(column_ms: IntArray) -> FloatArray:
    return column_ms[column_ms >= 0] / MS_PER_S


def _courses(shown: Sequence[Replay], summaries: Sequence[Summary], one: str) -> str:
    left = _chart(
        "Waiting jobs over time", f"{one}The number beside a name is its average over time.", lines.queue_length(shown)
    )
    left += _chart("GPUs held over time", f"{one}The full height is the whole cluster.", lines.allocated_gpus(shown))
    right = _chart(
        "Waiting by job size", f"{one}Queueing delay: the dot is the median, the end of the bar the 90th percentile.",
        waits.waits_by_size(shown),
    )
    by_load = _load_points(summaries)
    if by_load:
        seeds = len({summary.seed for summary in summaries})
        means = f"Means over {seeds} seeds. " if seeds > 1 else ""
        note = f"{means}Arrival rate relative to the trace."
        right += _chart("Mean JCT by load", note, lines.jct_by_load(by_load))
    return _pair(f"<div>{left}</div>", f"<div>{right}</div>")


def _trade_section(summaries: Sequence[Summary], means: str) -> str:
    """Completion time, energy and cost of several policies together; nothing where energy is not known."""
    points = _trades(summaries)
    if len(points) < 2:
        return ""
    priced = points[0].cost is not None
    headings, rows = ["policy", "JCT mean", "kWh", *(["cost"] if priced else []), "beaten by"], []
    for point in points:
        better = "not compared: oracle" if point.is_oracle else trade.beaten_by(point, points)
        cost = "" if point.cost is None else f'<td data-v="{point.cost:.6g}">{escape(show_money(point.cost))}</td>'
        rows.append(
            f'<tr{"" if better else " class=best"}><th scope="row" data-v="{point.number}">{point.number} '
            f'{escape(point.policy)}</th><td class=main data-v="{point.jct_s:.6g}">{show_duration(point.jct_s)}</td>'
            f'<td data-v="{point.kwh:.6g}">{show_hours(point.kwh)}</td>{cost}'
            f'<td>{escape(better or "none")}</td></tr>'
        )
    what, title = ("mean JCT, kWh and cost", "Completion time, energy and cost") if priced else (
        "mean JCT and kWh", "Completion time and energy"
    )
    note = (
        f"{means}kWh over mean JCT, both logarithmic and not from 0; down and to the left is better. Numbers are those "
        f"of the table. Filled: no other policy is as good in {what} and better in one (to three digits; oracles, "
        "which know the truth, beat nobody). Joined: those that would be so by mean JCT and kWh alone."
        + (" A larger dot costs more." if priced else "")
    )
    return _chart(title, note, trade.trade_off(points) + table(headings, rows, label=title))


def _trades(summaries: Sequence[Summary]) -> list[trade.Trade]:
    """Means over seeds of every policy that ended all jobs, those of the shortest mean completion time first."""
    grouped: dict[str, list[Summary]] = {}
    for summary in summaries:
        grouped.setdefault(summary.policy, []).append(summary)
    found = []
    for policy, group in grouped.items():
        jct = [s.metrics.jct_mean_s for s in group if s.metrics.jct_mean_s]
        kwh = [s.metrics.energy_kwh for s in group if s.metrics.energy_kwh]
        cost = [s.cost for s in group if s.cost is not None]
        if len(jct) == len(kwh) == len(group) and not any(s.incomplete for s in group):
            found.append(trade.Trade(
                number=0, policy=policy, jct_s=statistics.fmean(jct), kwh=statistics.fmean(kwh),
                cost=statistics.fmean(cost) if len(cost) == len(group) else None, is_oracle=group[0].oracle,
            ))
    found.sort(key=lambda point: point.jct_s)
    return [replace(point, number=number) for number, point in enumerate(found, 1)]


def _load_points(summaries: Sequence[Summary]) -> list[tuple[str, list[tuple[float, float]]]]:
    grouped = by_policy(summaries)
    points: dict[str, list[tuple[float, float]]] = {}
    for (load, policy), group in sorted(grouped.items(), key=lambda item: item[0][0]):
        values = [s.metrics.jct_mean_s for s in group if s.metrics.jct_mean_s is not None]
        if values:
            points.setdefault(policy, []).append((load, interval(values).mean))
    order = dict.fromkeys(s.policy for s in summaries)
    return [(policy, points[policy]) for policy in order if len(points.get(policy, ())) > 1]


def _bounds_section(groups: Groups, means: str) -> str:
    jct = [
        (policy, mean_of([s.jct_ratio for s in group]), mean_of([s.bounds.jct_mean_s for s in group]))
        for policy, group in groups.items()
    ]
    span = [
        (policy, mean_of([s.makespan_ratio for s in group]), mean_of([s.bounds.makespan_s for s in group]))
        for policy, group in groups.items()
    ]
    is_elastic = any(s.metrics.elastic for group in groups.values() for s in group)
    what = "jobs, at any size and batch they may have," if is_elastic else "rigid jobs"
    return (
        f'<section><h2>Distance to the lower bound</h2><p class="note">{means}Multiples of a value that no schedule of '
        f"these {what} on these GPUs can beat (the line at 1x). The bound assumes that preemption costs nothing and a "
        "job may use any GPUs. Bars that fade out are cut.</p>"
        f'<div class="halves"><div>{_ratio_rows("Mean JCT", jct)}</div><div>{_ratio_rows("Makespan", span)}</div></div>'
        "</section>"
    )


def _ratio_rows(title: str, values: Sequence[tuple[str, float | None, float | None]]) -> str:
    known = [ratio for _, ratio, _ in values if ratio is not None]
    if not known:
        why = "Not defined: jobs are unfinished, have no known run time, or ran shorter than they can."
        return f'<h3>{title}</h3><p class="note">{why}</p>'
    longest = min(max(known), _LONGEST_RATIO * statistics.median_low(known))
    bound = next(bound for _, ratio, bound in values if ratio is not None and bound is not None)
    parts = [f"<h3>{title}, bound {show_duration(bound)}</h3>", '<div class="rows">']
    for index, (policy, ratio, _) in enumerate(values):
        wide = 0.0 if ratio is None else 100 * min(ratio / longest, 1.0)
        cut = " cut" if ratio is not None and ratio > longest else ""
        parts.append(
            f'<span class="name">{escape(policy)}</span><span class="track"><i class="p{index % 8}{cut}" '
            f'style="width:{wide:.1f}%"></i><i class="floor" style="width:{100 / longest:.1f}%"></i></span>'
            f'<span class="value">{"-" if ratio is None else f"{times(ratio)}x"}</span>'
        )
    return "".join(parts) + "</div>"


def _assumptions(summaries: Sequence[Summary], command: str) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in all_assumptions(summaries))
    estimates_of = {s.policy: s.estimates for s in summaries}
    words = "; ".join(f"{policy}: {estimates}" for policy, estimates in estimates_of.items())
    return (
        f'<section><h2>Assumptions</h2><ul class="assumptions">{items}'
        f"<li>Run times that policies knew: {escape(words)}.</li></ul></section>"
        f"<section><h2>Make this page again</h2><pre>{escape(command)}</pre></section>"
    )


def _chart(title: str, note: str, inner: str) -> str:
    return f'<section class="chart"><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{inner}</section>'


def _pair(left: str, right: str) -> str:
    return f'<div class="pair">{left}{right}</div>'


def asset(name: str) -> str:
    """Return the text of a file that is embedded in pages."""
    return (files("brim.reports") / "assets" / name).read_text(encoding="utf-8")

