"""Lay out an experiment over loads as one HTML page and as text for the terminal; nothing is computed here.

The page is as self-contained as that of a comparison: it loads nothing from the network, escapes names, and has a
content security policy that lets only the page's own script run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from brim.replacing import replacing
from brim.reports.charts.lines import Curve, Scale, by_load
from brim.reports.charts.svg import escape
from brim.reports.page import asset
from brim.reports.table import FittingTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over loads.

    Attributes:
        title: Heading.
        note: Describes what is drawn.
        scale: Scale of the values.
        curves: None is empty; a chart without curves is left out.
    """

    title: str
    note: str
    scale: Scale
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of text.

    Attributes:
        headings: Headings of the columns.
        rows: Each row has as many cells as there are headings.
        text_columns: How many of the first columns hold text, not figures.
        dropped_first: Headings of the columns to drop on a narrow terminal, the least needed first.
        brief: Numbers of the rows for the terminal; None for all.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    dropped_first: tuple[str, ...] = ()
    brief: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart that is drawn already.

    Attributes:
        title: Heading.
        note: Describes what is drawn.
        svg: The drawing, whose texts are escaped.
    """

    title: str
    note: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Charts and table of one group of conditions."""

    title: str
    note: str
    charts: tuple[Chart, ...]
    table: TextTable
    drawings: tuple[Drawing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Contents of a report.

    Attributes:
        title: Heading.
        about: What was run, in one line.
        badges: Short marks; those that begin with "partial" are highlighted.
        alarm: Why the results must not be compared; empty if they may be.
        findings: Sentences, the most important first.
        panels: Conditions.
        terms: Headings of the tables and their meaning.
        notes: Assumptions, one sentence each.
        command: Command line that makes this report again.
    """

    title: str
    about: str
    badges: tuple[str, ...]
    alarm: str
    findings: tuple[str, ...]
    panels: tuple[Panel, ...]
    terms: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    command: str


# -- the terminal ------------------------------------------------------------------------------------------------------


def terminal(experiment: Experiment) -> RenderableType:
    """Print the tables, then the findings, then the assumptions."""
    parts: list[RenderableType] = [Text(experiment.title, style="bold"), Text(experiment.about)]
    if experiment.alarm:
        parts.append(Text(f"PARTIAL: {experiment.alarm}", style="bold red"))
    for panel in experiment.panels:
        parts += [Text(f"\n{panel.title}", style="bold"), Text(panel.note, style="dim"), fitting_table(panel.table)]
    parts.append(Text())
    parts += [Text(f"{term}: {meaning}", style="dim") for term, meaning in experiment.terms]
    parts.append(Text())
    parts += [Text(line) for line in experiment.findings]
    parts.append(Text())
    parts += [Text(f"- {line}") for line in experiment.notes]
    return Group(*parts)


def fitting_table(table: TextTable) -> FittingTable:
    """A table for the terminal, which drops columns where it is narrow."""
    return FittingTable(partial(_drawn, table), table.headings, table.dropped_first)


def _drawn(table: TextTable, left_out: set[str]) -> RichTable:
    drawn = RichTable(pad_edge=False, box=None, header_style="bold")
    kept = [at for at, heading in enumerate(table.headings) if heading not in left_out]
    for at in kept:
        drawn.add_column(table.headings[at], justify="left" if at < table.text_columns else "right", no_wrap=True)
    numbers = range(len(table.rows)) if table.brief is None else table.brief
    for number in numbers:
        drawn.add_row(*(Text(table.rows[number][at]) for at in kept))
    return drawn


# -- the page ----------------------------------------------------------------------------------------------------------


def write_experiment(experiment: Experiment, path: Path) -> None:
    """Write ``experiment_page`` to a file, which is replaced as a whole."""
    with replacing(path) as part:
        part.write_text(experiment_page(experiment), encoding="utf-8")


def experiment_page(experiment: Experiment) -> str:
    """Lay an experiment out as one HTML page."""
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    body = [_header(experiment), _findings(experiment), _panels(experiment.panels), _carries(experiment)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(experiment.title)} - brim</title><style>{asset('page.css')}</style></head><body><main>"
        + "\n".join(body)
        + f"</main><script>{script}</script></body></html>\n"
    )


def _header(experiment: Experiment) -> str:
    badges = "".join(
        f'<span class="badge{" warn" if badge.startswith("partial") else ""}">{escape(badge)}</span>'
        for badge in experiment.badges
    )
    alarm = f'<p class="alarm" role="alert"><b>Partial.</b> {escape(experiment.alarm)}</p>' if experiment.alarm else ""
    return (
        f'<header><h1>{escape(experiment.title)}</h1><p class="soft">{escape(experiment.about)}</p>'
        f'<div class="badges">{badges}</div>{alarm}</header>'
    )


def _findings(experiment: Experiment) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in experiment.findings)
    return f'<ul class="findings" aria-label="Findings">{items}</ul>'


def _panels(panels: Sequence[Panel]) -> str:
    buttons = "".join(
        f'<button type="button" value="{at}" aria-pressed="{str(at == 0).lower()}">{escape(panel.title)}</button>'
        for at, panel in enumerate(panels)
    )
    shown = "".join(
        f"<div data-panel><h2>{escape(panel.title)}</h2>"
        f'<p class="note">{escape(panel.note)}</p>{_charts(panel)}'
        f"<section><h2>All figures</h2>{_table(panel.table)}</section></div>"
        for panel in panels
    )
    return f'<div data-panels><div class="tabs" hidden><span class="soft">conditions</span>{buttons}</div>{shown}</div>'


def _charts(panel: Panel) -> str:
    drawings = [
        *(Drawing(title=one.title, note=one.note, svg=by_load(one.curves, scale=one.scale, label=one.title))
          for one in panel.charts if one.curves),
        *panel.drawings,
    ]
    drawn = [
        f'<section class="chart"><h2>{escape(one.title)}</h2><p class="note">{escape(one.note)}</p>{one.svg}</section>'
        for one in drawings
    ]
    return "".join(f'<div class="pair">{"".join(drawn[at:at + 2])}</div>' for at in range(0, len(drawn), 2))


def _table(table: TextTable) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        parts = []
        for at, cell in enumerate(cells):
            kind = ' class="text"' if at < table.text_columns else ""
            parts.append(f"<{tag}{kind}>{escape(cell)}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(row(cells, "td") for cells in table.rows)
    return (
        '<div class="wide"><p class="hint" hidden>Scroll sideways for more columns \u2192</p><div class="scroll" '
        f'tabindex="0" role="region" aria-label="All figures"><table><thead>{row(table.headings, "th")}</thead>'
        f"<tbody>{body}</tbody></table></div></div>"
    )


def _carries(experiment: Experiment) -> str:
    words = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in experiment.terms)
    items = "".join(f"<li>{escape(line)}</li>" for line in experiment.notes)
    return (
        f"<section><h2>The columns</h2><dl>{words}</dl></section>"
        f'<section><h2>Assumptions</h2><ul class="assumptions">{items}</ul></section>'
        f"<section><h2>Make this page again</h2><pre>{escape(experiment.command)}</pre></section>"
    )
