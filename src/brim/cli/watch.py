"""Show a live session on the screen: which job has which slot when, and the state of each job.

A ``Board`` holds what is shown; ``board_of`` makes it from the driver, and ``drawn`` does not depend on drivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from brim.core.lifecycle import Phase
from brim.engine.explain import explain
from brim.live.driver import LiveDriver, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

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
_PHASES: Final = {
    Phase.HELD: ("held", "dim"), Phase.PENDING: ("waiting", "yellow"), Phase.STARTING: ("starting", "cyan"),
    Phase.RUNNING: ("running", "green"), Phase.STOPPING: ("saving", "magenta"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time in which a job had a slot; ``end_ms`` is now if the job still has it."""

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
    slots: int
    state: str
    style: str
    fraction: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The state of a session at one moment."""

    title: str
    now_ms: int
    slots: int
    busy: int
    preemptions: int
    stretches: tuple[Stretch, ...]
    jobs: tuple[Row, ...]

    @property
    def done(self) -> int:
        """Jobs that have ended."""
        return sum(row.state.startswith(("done", "gave up")) for row in self.jobs)

    def in_words(self) -> str:
        """Return the state of the session as one line."""
        waiting = sum(row.state == "waiting" for row in self.jobs)
        return (
            f"{self.now_ms / 1000:.0f} s, {self.busy} of {self.slots} slots busy, {waiting} waiting, "
            f"{self.done} of {len(self.jobs)} done, {self.preemptions} preempted"
        )


def drawn(board: Board, width: int) -> Text:
    """Draw the grid of slots and time, and below it one line per job."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    text.append(f"{board.title}: ", style="bold")
    text.append(f"{board.in_words()}\n")
    columns = max(10, width - 8)
    last = board.now_ms // COLUMN_MS
    first = max(0, last + 1 - columns)
    for slot in range(board.slots):
        text.append(f"slot {slot} ")
        cells = [_cell(board, slot, column * COLUMN_MS) for column in range(first, last + 1)]
        for job, bar in groupby(cells, key=itemgetter(0)):
            styles = [style for _, style in bar]
            for char, style in zip(_bar_of(job, len(styles)), styles, strict=True):
                text.append(char, style)
        text.append("\n")
    text.append("       " + _axis(first, last, columns) + "\n", style="dim")
    legend = "a bar begins with the job's number; dim: starting, underlined: saving"
    text.append(f"       {legend}\n", style="dim")
    text.append("job user  slots  state            progress    why it waits\n", style="bold")
    for job, row in enumerate(board.jobs):
        text.append(f"{job:>3} ", style=_COLOURS[job % len(_COLOURS)])
        why = _cut(row.why, width - 46)
        line = f"{row.user:5} {row.slots:>5}  {row.state:16} {_bar(row.fraction)}  {why}".rstrip()
        text.append(line + ("\n" if job < len(board.jobs) - 1 else ""), style=row.style)
    return text


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def _bar_of(job: int | None, length: int) -> str:
    """Return the job's number, where it fits, and a bar as long as the job had the slot."""
    if job is None:
        return "·" * length
    number = str(job)
    return (number if len(number) <= length else "").ljust(length, "━")


def _cell(board: Board, slot: int, begin_ms: int) -> tuple[int | None, str]:
    """Return the job that had the slot in the middle of a column of time, and its style."""
    at_ms = min(begin_ms + COLUMN_MS // 2, board.now_ms)
    for one in board.stretches:
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


def board_of(driver: LiveDriver, now_ms: int, title: str) -> Board:
    """Return the board of a driver's session."""
    stretches = tuple(
        Stretch(
            job=one.job, slot=slot, begin_ms=one.begin_ms, running_ms=one.from_ms, saving_ms=one.preempt_ms,
            end_ms=now_ms + 1 if one.end_ms is None else one.end_ms,
        )
        for one in driver.attempts if one.begin_ms is not None for slot in one.slots
    )
    present = [a for a in driver.attempts if a.begin_ms is not None and a.end_ms is None]
    return Board(
        title=title, now_ms=now_ms, slots=driver.scheduler.state.cluster.num_gpus,
        busy=sum(len(attempt.slots) for attempt in present),
        preemptions=sum(attempt.preempt_ms is not None for attempt in driver.attempts), stretches=stretches,
        jobs=tuple(_row(driver, job, now_ms) for job in range(len(driver.jobs))),
    )


def _row(driver: LiveDriver, job: int, now_ms: int) -> Row:
    submission = driver.jobs[job]
    state, style, why = _standing(driver, job, now_ms)
    return Row(
        user=submission.user, slots=submission.gpus, state=state, style=style, fraction=driver.fractions[job], why=why
    )


def _standing(driver: LiveDriver, job: int, now_ms: int) -> tuple[str, str, str]:
    """Return the job's state, its style, and why the job waits."""
    submission = driver.jobs[job]
    if job in driver.ended_ms:
        jct_s = (driver.ended_ms[job] - submission.at_ms) / 1000
        return ("gave up", "red", "") if job in driver.gave_up else (f"done after {jct_s:4.1f} s", "dim", "")
    state = driver.scheduler.state
    if job not in state:
        return f"arrives in {max(0, submission.at_ms - now_ms) / 1000:.0f} s", "dim", ""
    phase = state.phase(job)
    word, style = _PHASES[phase]
    attempt = driver.attempt_of(job)
    if phase is Phase.STARTING and attempt and attempt.begin_ms is None:
        return word, style, "another job is leaving its slots"
    return word, style, _why(driver, job) if phase is Phase.PENDING else ""


def _why(driver: LiveDriver, job: int) -> str:
    """Return the engine's reason, with CPU slots instead of GPUs."""
    snapshot, result = driver.last_snapshot, driver.scheduler.last_round
    if snapshot is None or result is None or job not in result.job:
        return "waits for the next round"
    return explain(snapshot, result, job).removeprefix(f"job {job} ").replace("GPU", "slot")


def _bar(fraction: float) -> str:
    full = round(fraction * BAR_WIDTH)
    return "━" * full + "·" * (BAR_WIDTH - full)


class Lines(Watcher):
    """Print a line every ten seconds, for a log."""

    def __init__(self, console: Console, driver: LiveDriver, stopped: Callable[[], bool], title: str) -> None:
        self._console, self._driver, self._stopped, self._title = console, driver, stopped, title
        self._next_ms = QUIET_MS

    def detail(self, job: int, text: str) -> None:
        """See ``Watcher``."""
        self._console.print(f"job {job}: {text}", markup=False, soft_wrap=True)

    def tick(self, now_ms: int) -> bool:
        """See ``Watcher``."""
        if now_ms >= self._next_ms:
            self._next_ms = (now_ms // QUIET_MS + 1) * QUIET_MS
            words = board_of(self._driver, now_ms, self._title).in_words()
            self._console.print(f"{self._title}: {words}", markup=False, soft_wrap=True)
        return not self._stopped()


class View(Watcher):
    """Draw the board on a terminal again at each tick."""

    def __init__(self, live: Live, driver: LiveDriver, stopped: Callable[[], bool], title: str) -> None:
        self._live, self._driver, self._stopped, self._title = live, driver, stopped, title

    def detail(self, job: int, text: str) -> None:
        """See ``Watcher``."""
        self._live.console.print(f"job {job}: {text}", markup=False)

    def tick(self, now_ms: int) -> bool:
        """See ``Watcher``."""
        board = board_of(self._driver, now_ms, self._title)
        self._live.update(drawn(board, self._live.console.width), refresh=True)
        return not self._stopped()
