"""Section of gains and losses under each policy: bars of the largest changes, and a table of all owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.reports.charts import gantt
from brim.reports.charts.svg import escape
from brim.reports.findings import (
    Change,
    CompletionTimes,
    Kind,
    changes,
    outcome_of,
    owner_kind,
    owners_by,
    reference_of,
    signed,
)
from brim.reports.markup import policy_buttons, table
from brim.reports.record import NAME as RECORDED
from brim.reports.record import NoRecord, RecordedMetrics
from brim.units import counted, show_duration

_MAX_CHANGES: Final = 10
_MAX_OWNERS: Final = 100
_PLURAL: Final[dict[Kind, str]] = {"group": "groups", "user": "users", "size": "size classes"}


def gains_section(
    shown: Sequence[Replay], best: str | None, record: RecordedMetrics | NoRecord | None, one: str
) -> str:
    """Return the section of a page, best policy first; empty if there is nothing to compare with.

    Args:
        shown: One replay per policy.
        best: The policy whose panel is shown first.
        record: What the trace recorded.
        one: Says of which seed the replays are, if there are others.
    """
    before = reference_of(shown[0], record)
    others = [replay for replay in shown if replay.policy != before.name]
    if not others:
        return ""
    trace = shown[0].trace
    kind = owner_kind(trace)
    panels = []
    against_ = "the record" if before.name == RECORDED else before.name
    for replay in others:
        found = changes(trace, before, outcome_of(replay), kind)
        better = [change for change in found if change.fraction < 0]
        worse = [change for change in reversed(found) if change.fraction > 0]
        shared = max((abs(change.fraction) for change in found), default=0.0) or 1.0
        panels.append(
            f"<div data-panel><h3>{escape(replay.policy)} against {escape(against_)}</h3>"
            f'<div class="halves"><div>{_change_rows("Sooner", better, "good", shared)}</div>'
            f'<div>{_change_rows("Later", worse, "bad", shared)}</div></div></div>'
        )
    pressed = next((at for at, replay in enumerate(others) if replay.policy == best), 0)
    why = "job-size class (the trace names neither groups nor users)" if kind == "size" else kind
    return (
        f'<section><h2>Gains and losses</h2><p class="note">{one}Change of the mean JCT against '
        f"{escape(against_)}, by {why}, over jobs that finished in both. The {_MAX_CHANGES} largest gains and losses; "
        f"{_PLURAL[kind]} with fewer than {Change.LEAST_JOBS} jobs are shown only if none has {Change.LEAST_JOBS}.</p>"
        "<div data-panels>"
        f'<div class="tabs" hidden><span class="soft">policy</span>{policy_buttons(others, pressed)}</div>'
        f"{''.join(panels)}</div>{_gains_table(trace, before, others, kind)}</section>"
    )


def _gains_table(trace: Trace, before: CompletionTimes, others: Sequence[Replay], kind: Kind) -> str:
    """Return the table of all owners under every policy, those with most jobs first."""
    _, place = gantt.people(trace)
    code, owners = owners_by(trace, kind)
    counted = before.jct_ms >= 0
    jobs = np.bincount(code[counted & (code >= 0)], minlength=len(owners))
    order = np.argsort(-jobs, kind="stable")
    order = order[jobs[order] > 0]
    found = [
        {change.name: change for change in changes(trace, before, outcome_of(replay), kind, least_jobs=1)}
        for replay in others
    ]
    lines_ = []
    for owner in order[:_MAX_OWNERS]:
        name = owners[owner]
        known = next((by_name[name] for by_name in found if name in by_name), None)
        if known is None:
            continue
        cells_ = "".join(_change_cell(by_name.get(name)) for by_name in found)
        person = "" if kind == "size" else f' data-person="{int(place[owner])}"'
        lines_.append(
            f'<tr{person}><th scope="row" data-v="{escape(name)}">{escape(name)}</th>'
            f'<td data-v="{jobs[owner]}">{jobs[owner]:,}</td>'
            f'<td data-v="{known.before_s:.6g}">{show_duration(known.before_s)}</td>{cells_}</tr>'
        )
    title = f"Every {kind}" if len(order) <= _MAX_OWNERS else f"{_MAX_OWNERS} {kind}s with most jobs, of {len(order):,}"
    headings = [kind, "jobs", f"JCT {before.name}", *(replay.policy for replay in others)]
    return f"<h3>{title}</h3>" + table(headings, lines_, label=title, tall=True)


def _change_cell(change: Change | None) -> str:
    if change is None:
        return "<td>-</td>"
    tone = "" if round(change.fraction, 2) == 0 else " class=good" if change.fraction < 0 else " class=bad"
    return f'<td{tone} data-v="{change.fraction:.4f}">{signed(change.fraction)}</td>'


def _change_rows(title: str, found: Sequence[Change], tone: str, longest: float) -> str:
    if not found:
        return f"<h3>{title}: none</h3>"
    title = f"{title}: {len(found):,}"
    rows = "".join(
        f'<span class="name">{escape(change.name)}'
        f'<small>{counted(change.jobs, "job")}</small></span>'
        f'<span class="track"><i class="{tone}" style="width:{100 * abs(change.fraction) / longest:.1f}%"></i></span>'
        f'<span class="value">{signed(change.fraction)}<br><small>{show_duration(change.before_s)} \u2192 '
        f"{show_duration(change.after_s)}</small></span>"
        for change in found[:_MAX_CHANGES]
    )
    return f'<h3>{title}</h3><div class="rows">{rows}</div>'
