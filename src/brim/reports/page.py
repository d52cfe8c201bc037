"""One self-contained HTML page for a comparison: opens from a file, asks no network, stays below 5 MB.

The distribution charts show one replay per policy: the first seed at the first load. The table shows all of them.
Everything a user named is escaped, and a content security policy lets nothing run but the page's own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Final

from brim.core.replay import Replay
from brim.reports.charts import gantt, lines, waits
from brim.reports.charts.svg import calendar_ticks, escape
from brim.reports.files import replacing
from brim.reports.findings import Change, changes, findings, owner_kind, signed
from brim.reports.metrics import finished, jct_ms, queue_ms
from brim.reports.summary import Summary, all_assumptions, by_policy, interval, short_names, summarise
from brim.reports.table import cells, times
from brim.units import MS_PER_S, show_duration

MAX_BYTES: Final = 5_000_000
"""What a page may weigh; the Gantt's budget is chosen so that it holds for any trace."""
_MAX_CHANGES: Final = 10
_LONGEST_RATIO: Final = 3
"""Bars of the distance to the bound end at this multiple of the median one, so that an outlier hides no difference."""
_LEFT_OUT: Final = ("policy", "told", "rounds/s", "wall")
"""Columns of the terminal's table that the page says elsewhere or not at all."""
_TERMS: Final = {
    "JCT": "Submission to completion, waiting included; mean, median, 99th percentile.",
    "x bound": "Multiple of a value that no schedule can beat.",
    "queue": "Submission to first start.",
    "alloc, busy": "GPU time held, and GPU time that moved a job forward for good, over the time of all GPUs.",
    "rho p95": "Finish-time fairness: JCT over what an equal share of the cluster would have given; 1 is fair.",
}


def write_page(replays: Sequence[Replay], path: Path, *, command: str, summaries: Sequence[Summary] = ()) -> None:
    """Write ``page`` to a file; replaced as a whole."""
    with replacing(path) as part:
        part.write_text(page(replays, command=command, summaries=summaries), encoding="utf-8")


def page(replays: Sequence[Replay], *, command: str, summaries: Sequence[Summary] = ()) -> str:
    """Lay a comparison out as one HTML page.

    Args:
        replays: At least one; the policy of the first is the one others are compared with. Same cluster throughout.
        command: Command line that makes this page again.
        summaries: Of the same replays, where already computed.

    Returns:
        HTML text. Apart from wall times, equal replays give an equal page.
    """
    names = short_names([*(replay.policy for replay in replays), *(summary.policy for summary in summaries)])
    all_summaries = [
        replace(summary, policy=names[summary.policy]) for summary in tuple(summaries) or summarise(replays)
    ]
    shown = _one_per_policy([replace(replay, policy=names[replay.policy]) for replay in replays])
    owners = gantt.owners_of(shown[0])
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = shown[0]
    body = [
        _header(head, all_summaries),
        _findings(shown, all_summaries),
        _summary_section(all_summaries),
        _distributions(shown),
        _courses(shown, all_summaries),
        _bounds_section(shown, all_summaries),
        _gantt_section(shown, owners),
        _changes_section(shown),
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
    """First seed at the first load of each policy, in order of appearance."""
    kept: dict[str, Replay] = {}
    for replay in replays:
        if replay.load == replays[0].load:
            kept.setdefault(replay.policy, replay)
    return list(kept.values())


def _header(replay: Replay, summaries: Sequence[Summary]) -> str:
    trace, cluster = replay.trace, replay.cluster
    span_s = trace.span_ms / MS_PER_S
    loads = ", ".join(f"{load:g}x" for load in dict.fromkeys(s.load for s in summaries))
    seeds = len(dict.fromkeys(s.seed for s in summaries))
    asked = float(replay.asked_gpu_ms.sum()) / (cluster.num_gpus * trace.span_ms) if trace.span_ms else 0.0
    facts = [f"{len(trace):,} jobs over {show_duration(span_s)}", f"{cluster.num_gpus:,} GPUs ({cluster})"]
    if asked:
        facts.append(f"jobs ask for {asked:.0%} of the GPU time until the last submission")
    badges = [_badge(f"load {loads}"), _badge(f"{seeds} seeds" if seeds > 1 else f"seed {summaries[0].seed}")]
    badges += [_badge(f"format {trace.format}")]
    elastic = int((replay.gpus_min < replay.gpus_max).sum())
    if elastic:
        facts.append(f"{elastic:,} jobs are elastic")
    if trace.synthetic:
        badges.append(_badge("synthetic trace", warn=True))
    badges += [_badge(f"oracle: {p}", warn=True) for p in dict.fromkeys(s.policy for s in summaries if s.oracle)]
    interrupted = list(dict.fromkeys(s.policy for s in summaries if s.incomplete))
    badges += [_badge("partial", warn=True)] if interrupted else []
    alarm = (
        f'<p class="alarm" role="alert"><b>Partial.</b> {escape(", ".join(interrupted))} stopped before all jobs had '
        "ended. Unfinished jobs are left out of every mean; do not compare with complete replays.</p>"
        if interrupted else ""
    )
    return (
        f'<header><h1>{escape(trace.name)} under {_policies(summaries)}</h1>'
        f'<p class="soft">{escape("; ".join(facts))}.</p><div class="badges">{"".join(badges)}</div>{alarm}</header>'
    )


def _policies(summaries: Sequence[Summary]) -> str:
    policies = list(dict.fromkeys(s.policy for s in summaries))
    return f"{len(policies)} policies" if len(policies) > 1 else escape(policies[0])


def _badge(text: str, *, warn: bool = False) -> str:
    return f'<span class="badge{" warn" if warn else ""}">{escape(text)}</span>'


def _findings(shown: Sequence[Replay], summaries: Sequence[Summary]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(shown, summaries))
    return f'<ul class="findings" aria-label="Findings">{items}</ul>'


def _summary_section(summaries: Sequence[Summary]) -> str:
    grouped = by_policy(summaries)
    policies = list(dict.fromkeys(policy for _, policy in grouped))
    parts = []
    for load in dict.fromkeys(load for load, _ in grouped):
        rows = {policy: group for (at, policy), group in grouped.items() if at == load}
        title = f"<h3>Load {load:g}x</h3>" if len(grouped) > len(rows) else ""
        parts.append(title + _summary_table(rows, policies))
    seeds = max(len(group) for group in grouped.values())
    note = f"Mean \u00b1 95 % interval over {seeds} seeds (Student t), paired by seed. " if seeds > 1 else ""
    if len(summaries) > len(policies):
        note += f"The charts show seed {summaries[0].seed} at load {summaries[0].load:g}x. "
    words = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in _TERMS.items())
    return (
        f'<section><h2>Summary</h2><p class="note">{note}Best mean JCT in bold, oracles aside.</p>{"".join(parts)}'
        f"<dl>{words}</dl></section>"
    )


def _summary_table(rows: dict[str, list[Summary]], policies: Sequence[str]) -> str:
    means = {
        policy: interval([s.metrics.jct_mean_s for s in group if s.metrics.jct_mean_s is not None]).mean
        for policy, group in rows.items()
        if not group[0].oracle and not any(s.incomplete for s in group)
        and any(s.metrics.jct_mean_s is not None for s in group)
    }
    best = min(means, key=lambda policy: means[policy]) if means else None
    lines_: list[str] = []
    headings: list[str] = []
    texts = cells(rows)
    for policy, group in rows.items():
        row = texts[policy]
        headings = ["policy", *(heading for heading in row if heading not in _LEFT_OUT)]
        chip = f'<span class="chip p{policies.index(policy) % 8}"></span>'
        marks = (" " + _badge("oracle", warn=True) if group[0].oracle else "") + (
            " " + _badge("partial", warn=True) if any(s.incomplete for s in group) else ""
        )
        values = "".join(
            f'<td{" class=main" if heading == "JCT mean" else ""}>{escape(value).replace("+-", chr(0xB1))}</td>'
            for heading, value in row.items() if heading not in _LEFT_OUT
        )
        lines_.append(
            f'<tr{" class=best" if policy == best else ""}><th scope="row">{chip}{escape(policy)}{marks}</th>'
            f"{values}</tr>"
        )
    top = "".join(
        f'<th scope="col">{escape(heading.removeprefix("makespan "))}</th>' for heading in headings
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines_)}</tbody></table></div>'


def _distributions(shown: Sequence[Replay]) -> str:
    done = [finished(replay) for replay in shown]
    jct = [(r.policy, jct_ms(r)[mask] / MS_PER_S) for r, mask in zip(shown, done, strict=True)]
    queue = [(r.policy, queue_ms(r)[mask] / MS_PER_S) for r, mask in zip(shown, done, strict=True)]
    return _pair(
        _chart("Job completion time",
               "Share of jobs complete within a time of their submission. Medians beside the names.",
               lines.cdf(jct, what="completion time")),
        _chart("Queueing delay", "Share of jobs started within a time of their submission. Medians beside the names.",
               lines.cdf(queue, what="queueing delay")),
    )


def _courses(shown: Sequence[Replay], summaries: Sequence[Summary]) -> str:
    left = _chart("Waiting jobs over time", "Time means beside the names.", lines.queue_length(shown))
    left += _chart("GPUs held over time", "Full height is the whole cluster.", lines.allocated_gpus(shown))
    right = _chart(
        "Who waits, by job size", "Queueing delay: dot at the median, end of the bar at the 90th percentile.",
        waits.waits_by_size(shown),
    )
    by_load = _load_points(summaries)
    if by_load:
        right += _chart("Mean JCT by load", "Arrival rate relative to the trace.", lines.jct_by_load(by_load))
    return _pair(f"<div>{left}</div>", f"<div>{right}</div>")


def _load_points(summaries: Sequence[Summary]) -> list[tuple[str, list[tuple[float, float]]]]:
    grouped = by_policy(summaries)
    points: dict[str, list[tuple[float, float]]] = {}
    for (load, policy), group in sorted(grouped.items(), key=lambda item: item[0][0]):
        values = [s.metrics.jct_mean_s for s in group if s.metrics.jct_mean_s is not None]
        if values:
            points.setdefault(policy, []).append((load, interval(values).mean))
    order = dict.fromkeys(s.policy for s in summaries)
    return [(policy, points[policy]) for policy in order if len(points.get(policy, ())) > 1]


def _bounds_section(shown: Sequence[Replay], summaries: Sequence[Summary]) -> str:
    found = {(s.policy, s.seed, s.load): s for s in reversed(summaries)}
    mine = [found[replay.policy, replay.seed, replay.load] for replay in shown]
    jct = [(s.policy, s.jct_ratio, s.bounds.jct_mean_s) for s in mine]
    span = [(s.policy, s.makespan_ratio, s.bounds.makespan_s) for s in mine]
    what = "jobs, at any size and batch they may have," if mine[0].metrics.elastic else "rigid jobs"
    return (
        '<section><h2>Distance to the lower bound</h2><p class="note">Multiples of a value that no schedule of these '
        f"{what} on these GPUs can beat (the line at 1x), preemption and placement being free. "
        "Bars that fade go on.</p>"
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


def _gantt_section(shown: Sequence[Replay], owners: gantt.Owners) -> str:
    data = json.dumps(gantt.gantt_data(shown, owners), separators=(",", ":"))
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policies = "".join(
        f'<button type="button" value="{i}" aria-pressed="{str(i == 0).lower()}">{escape(r.policy)}</button>'
        for i, r in enumerate(shown)
    )
    colours = '<button type="button" value="1" aria-pressed="true">job size</button>'
    if owners.kind != "size":
        colours = f'<button type="button" value="0" aria-pressed="true">{owners.kind}</button>' + colours.replace(
            'aria-pressed="true"', 'aria-pressed="false"'
        )
    end_ms = max(replay.end_ms for replay in shown)
    ticks = "".join(
        f'<span{" class=end" if tick.at > 0.95 else ""} style="left:{100 * tick.at:.2f}%">{escape(tick.label)}</span>'
        for tick in calendar_ticks(end_ms, shown[0].trace.origin_ms)
    )
    return (
        f'<section><h2>Every GPU over time</h2><p class="note">{escape(gantt.caption(shown[0].cluster, end_ms))} Point '
        'at a job for its name.</p>'
        f'<div class="tabs" id="gantt-policies"><span class="soft">policy</span>{policies}</div>'
        f'<div class="tabs" id="gantt-colours"><span class="soft">colour by</span>{colours}</div>'
        f'<div class="stage"><canvas id="gantt" role="img" data-owner="{owners.kind}" aria-label="GPUs over time">'
        '</canvas><div class="tip" id="gantt-tip" hidden></div></div>'
        f'<div class="axis" aria-hidden="true">{ticks}</div>'
        '<ul class="legend" id="gantt-key"></ul><noscript><p class="note">This chart needs JavaScript; all others do '
        f'not.</p></noscript><script type="application/json" id="gantt-data">{data}</script></section>'
    )


def _changes_section(shown: Sequence[Replay]) -> str:
    if len(shown) < 2:
        return ""
    first = shown[0]
    panels, buttons = [], []
    kind = owner_kind(first.trace)
    for at, replay in enumerate(shown[1:]):
        found = changes(first, replay, kind)
        buttons.append(
            f'<button type="button" value="{at}" aria-pressed="{str(at == 0).lower()}">{escape(replay.policy)}</button>'
        )
        better = [change for change in found if change.fraction < 0][:_MAX_CHANGES]
        worse = [change for change in reversed(found) if change.fraction > 0][:_MAX_CHANGES]
        shared = max((abs(change.fraction) for change in (*better, *worse)), default=1.0)
        panels.append(
            f"<div data-panel><h3>{escape(replay.policy)} against {escape(first.policy)}</h3>"
            f'<div class="halves"><div>{_change_rows("Sooner", better, "good", shared)}</div>'
            f'<div>{_change_rows("Later", worse, "bad", shared)}</div></div></div>'
        )
    why = "job-size class (the trace names neither groups nor users)" if kind == "size" else kind
    return (
        f'<section data-panels><h2>Who wins and who loses</h2><p class="note">Change of the mean JCT against '
        f"{escape(first.policy)} by {why}, over jobs that finished under both; at most ten each way, those with fewer "
        f'than {Change.LEAST_JOBS} jobs left out where others exist.</p><div class="tabs" hidden>'
        f'<span class="soft">policy</span>{"".join(buttons)}</div>{"".join(panels)}</section>'
    )


def _change_rows(title: str, found: Sequence[Change], tone: str, longest: float) -> str:
    if not found:
        return f"<h3>{title}: nobody</h3>"
    rows = "".join(
        f'<span class="name">{escape(change.name)}<small>{change.jobs:,} jobs</small></span>'
        f'<span class="track"><i class="{tone}" style="width:{100 * abs(change.fraction) / longest:.1f}%"></i></span>'
        f'<span class="value">{signed(change.fraction)}<br><small>{show_duration(change.before_s)} \u2192 '
        f"{show_duration(change.after_s)}</small></span>"
        for change in found
    )
    return f'<h3>{title}</h3><div class="rows">{rows}</div>'


def _assumptions(summaries: Sequence[Summary], command: str) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in all_assumptions(summaries))
    told = {s.policy: s.estimates for s in summaries}
    words = "; ".join(f"{policy}: {estimates}" for policy, estimates in told.items())
    return (
        f'<section><h2>What carries these results</h2><ul class="assumptions">{items}'
        f"<li>What policies were told of run times: {escape(words)}.</li></ul></section>"
        f"<section><h2>Make this page again</h2><pre>{escape(command)}</pre></section>"
    )


def _chart(title: str, note: str, inner: str) -> str:
    return f'<section class="chart"><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{inner}</section>'


def _pair(left: str, right: str) -> str:
    return f'<div class="pair">{left}{right}</div>'


def asset(name: str) -> str:
    """The text of a file that pages carry."""
    return (files("brim.reports") / "assets" / name).read_text(encoding="utf-8")

