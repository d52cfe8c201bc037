"""The section of the page that draws every GPU over time, with buttons to zoom and to choose users."""

from __future__ import annotations

from collections.abc import Sequence

from brim.core.replay import Replay
from brim.reports.charts import gantt
from brim.reports.charts.svg import escape
from brim.reports.markup import button, policy_buttons


def gantt_section(shown: Sequence[Replay], one: str) -> str:
    """Return the section with its data; the page's script draws it. ``one`` says of which seed it is, among several."""
    owners = gantt.owners_of(shown[0])
    data = gantt.packed(gantt.gantt_data(shown, owners))
    colours = button(1, "job size", pressed=owners.kind == "size")
    if owners.kind != "size":
        colours = button(0, owners.kind, pressed=True) + colours
    end_ms = max(replay.end_ms for replay in shown)
    zoom = "".join(
        f'<button type="button" value="{what}" aria-label="{label}" title="{label}">{sign}</button>'
        for what, label, sign in (
            ("in", "Zoom in", "+"), ("out", "Zoom out", "\u2212"), ("back", "Earlier", "\u2190"),
            ("on", "Later", "\u2192"), ("all", "Show the whole time", "all"),
        )
    )
    return (
        f'<section><h2>Every GPU over time</h2><p class="note">{one}{escape(gantt.caption(shown[0].cluster, end_ms))} '
        "Point at a job for its name. To zoom, drag over a stretch of time, or use Ctrl and the wheel, two fingers, or "
        "the keys + \u2212 \u2190 \u2192 0.</p>"
        f'<div class="tabs" id="gantt-policies"><span class="soft">policy</span>{policy_buttons(shown)}</div>'
        f'<div class="tabs" id="gantt-colours"><span class="soft">colour by</span>{colours}</div>'
        f"{_people_filter(shown[0])}"
        f'<div class="tabs" id="gantt-zoom"><span class="soft">zoom</span>{zoom}'
        '<span class="soft" id="gantt-range" role="status"></span></div>'
        f'<div class="stage"><canvas id="gantt" role="img" tabindex="0" data-owner="{owners.kind}" '
        'aria-label="GPUs over time" aria-keyshortcuts="+ - ArrowLeft ArrowRight 0"></canvas>'
        '<div class="drag" id="gantt-drag" hidden></div><div class="tip" id="gantt-tip" hidden></div></div>'
        '<div class="axis" id="gantt-axis" aria-hidden="true"></div>'
        '<ul class="legend" id="gantt-key"></ul><noscript><p class="note">This chart needs JavaScript; all others do '
        f'not.</p></noscript><script type="application/octet-stream" id="gantt-data">{data}</script></section>'
    )


def _people_filter(replay: Replay) -> str:
    """Return the list to choose users from (groups, if no users are recorded); the page's script fills it."""
    names, _ = gantt.people(replay.trace)
    if len(names) < 2:
        return ""
    word = "users" if (replay.trace.user >= 0).any() else "groups"
    return (
        f'<details class="people" id="people" data-word="{word}"><summary><span class="soft">{word}</span> '
        f'<b id="people-chosen">all {len(names):,}</b></summary>'
        f'<div class="tabs"><input type="search" id="people-find" placeholder="find {word}" aria-label="Find {word}">'
        f'<button type="button" id="people-clear">show all</button></div>'
        f'<div class="list" id="people-list" role="group" aria-label="Show only these {word}"></div></details>'
    )
