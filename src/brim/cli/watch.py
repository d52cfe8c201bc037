"""Show a cluster at work on the screen: which job has which slot when, and the state of each job.

A ``ClusterView`` holds what is shown; ``drawn`` draws it. What it shows comes from ``cli/session.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

BAR_WIDTH: Final = 10
COLUMN_MS: Final = 1_000
"""Time that one column of the grid stands for."""
QUIET_MS: Final = 10_000
"""Time between two lines if there is no terminal."""
_COLOURS: Final = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow", "bright_green",
                   "bright_magenta", "bright_blue", "bright_red")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time in which a job, of a number from 1, had a slot; ``end_ms`` is now if the job still has it."""

    job: int
    slot: int
    begin_ms: int
    running_ms: int | None
    saving_ms: int | None
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The state of a job."""

    user: str
    slots: str
    state: str
    style: str
    fraction: float
    why: str
    has_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The state of a cluster at one moment; times in ms since it was first looked at."""

    now_ms: int
    slots: int
    busy: int
    preemptions: int
    resizes: int
    stretches: tuple[Stretch, ...]
    jobs: tuple[Row, ...]

    @property
    def done(self) -> int:
        """Jobs that have ended."""
        return sum(row.has_ended for row in self.jobs)

    def in_words(self) -> str:
        """Return the state as one line."""
        waiting = sum(row.state == "waiting" for row in self.jobs)
        return (
            f"{self.now_ms / 1000:.0f} s: {self.busy} of {self.slots} slots busy, {waiting} waiting, "
            f"{self.done} of {len(self.jobs)} done, {self.preemptions} preempted, {self.resizes} resized"
        )


def drawn(view: ClusterView, width: int) -> Text:
    """Draw the grid of slots and time, and below it one line per job."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    text.append(f"{view.in_words()}\n", style="bold")
    columns = max(10, width - 8)
    last = view.now_ms // COLUMN_MS
    first = max(0, last + 1 - columns)
    for slot in range(view.slots):
        text.append(f"slot {slot} ")
        cells = [_cell(view, slot, column * COLUMN_MS) for column in range(first, last + 1)]
        for job, bar in groupby(cells, key=itemgetter(0)):
            styles = [style for _, style in bar]
            for char, style in zip(_bar_of(job, len(styles)), styles, strict=True):
                text.append(char, style)
        text.append("\n")
    text.append("       " + _axis(first, last, columns) + "\n", style="dim")
    legend = "a bar begins with the job's number; dim: starting, underlined: saving"
    text.append(f"       {legend}\n", style="dim")
    text.append("job user  slots  state            progress    why it waits\n", style="bold")
    for job, row in enumerate(view.jobs, 1):
        text.append(f"{job:>3} ", style=_COLOURS[job % len(_COLOURS)])
        why = _cut(row.why, width - 46)
        line = f"{row.user:5} {row.slots:>5}  {row.state:16} {_bar(row.fraction)}  {why}".rstrip()
        text.append(line + ("\n" if job < len(view.jobs) else ""), style=row.style)
    return text


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def _bar_of(job: int | None, length: int) -> str:
    """Return the job's number, where it fits, and a bar as long as the job had the slot."""
    if job is None:
        return "·" * length
    number = str(job)
    return (number if len(number) <= length else "").ljust(length, "━")


def _cell(view: ClusterView, slot: int, begin_ms: int) -> tuple[int | None, str]:
    """Return the job that had the slot in the middle of a column of time, and its style."""
    at_ms = min(begin_ms + COLUMN_MS // 2, view.now_ms)
    for one in view.stretches:
        if one.slot == slot and one.begin_ms <= at_ms < max(one.end_ms, one.begin_ms + 1):
            style = _COLOURS[one.job % len(_COLOURS)]
            if one.running_ms is None or at_ms < one.running_ms:
                style = f"dim {style}"
            elif one.saving_ms is not None and at_ms >= one.saving_ms:
                style = f"underline {style}"
            return one.job, style
    return None, "dim"


def _axis(first: int, last: int, columns: int) -> str:
    """Draw a label below the grid every ten seconds."""
    line = ""
    for column in range(first, last + 1):
        if column % 10 == 0 and column - first + len(f"{column} s") <= columns:
            line = line.ljust(column - first) + f"{column} s"
    return line


def _bar(fraction: float) -> str:
    full = round(fraction * BAR_WIDTH)
    return "━" * full + "·" * (BAR_WIDTH - full)


class Lines:
    """Print a line every ten seconds, for a log."""

    def __init__(self, console: Console) -> None:
        self._console, self._next_ms = console, 0

    def show(self, view: ClusterView) -> None:
        """Print the state, if the last line is old enough or every job has ended."""
        if view.now_ms >= self._next_ms or view.done == len(view.jobs):
            self._next_ms = (view.now_ms // QUIET_MS + 1) * QUIET_MS
            self._console.print(view.in_words(), markup=False, soft_wrap=True)


class View:
    """Draw the view on a terminal, in place of the one before."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, view: ClusterView) -> None:
        """Draw the state."""
        self._live.update(drawn(view, self._live.console.width), refresh=True)
