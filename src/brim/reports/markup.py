"""Pieces of HTML that several sections of a page share."""

from __future__ import annotations

from collections.abc import Sequence

from brim.core.replay import Replay
from brim.reports.charts.svg import escape


def badge(text: str, *, warn: bool = False) -> str:
    """Return a short mark to stand beside a heading or a name."""
    return f'<span class="badge{" warn" if warn else ""}">{escape(text)}</span>'


def button(value: int, text: str, *, pressed: bool) -> str:
    """Return a button of a row in which one is pressed."""
    return f'<button type="button" value="{value}" aria-pressed="{str(pressed).lower()}">{escape(text)}</button>'


def policy_buttons(shown: Sequence[Replay], pressed: int = 0) -> str:
    """Return a button for each policy."""
    return "".join(button(at, replay.policy, pressed=at == pressed) for at, replay in enumerate(shown))


def table(headings: Sequence[str], lines_: Sequence[str], *, label: str, tall: bool = False) -> str:
    """Return a table that the page's script makes sortable, with a hint if it is wider than the screen."""
    top = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    return (
        '<div class="wide"><p class="hint" hidden>Scroll sideways for more columns \u2192</p>'
        f'<div class="scroll{" tall" if tall else ""}" tabindex="0" role="region" aria-label="{escape(label)}">'
        '<table class="sortable"><thead>'
        f'<tr>{top}</tr></thead><tbody>{"".join(lines_)}</tbody></table></div></div>'
    )
