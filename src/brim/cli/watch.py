"""How a live session looks while it runs: a table on a terminal, one line per event elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brim.core.events import Event, Kind
from brim.core.lifecycle import Phase
from brim.engine.explain import explain
from brim.live.driver import LiveDriver, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from brim.core.actions import Plan

BAR_WIDTH: Final = 10
_PHASES: Final = {
    Phase.HELD: ("held", "dim"), Phase.PENDING: ("waits", "yellow"), Phase.STARTING: ("loads", "cyan"),
    Phase.RUNNING: ("runs", "green"), Phase.STOPPING: ("saves", "magenta"),
}
_ENDS: Final = {
    Kind.FINISHED: "finished", Kind.GAVE_UP: "gave up", Kind.FAILED: "failed", Kind.STOPPED: "saved and left its slots",
    Kind.STARTED: "makes progress",
}


class Lines(Watcher):
    """One line per event and action."""

    def __init__(self, console: Console, driver: LiveDriver, stopped: Callable[[], bool]) -> None:
        self._console, self._driver, self._stopped = console, driver, stopped

    def _line(self, time_ms: int, job: int, text: str) -> None:
        policy = self._driver.scheduler.policy.name
        self._console.print(f"{policy:>6} {time_ms / 1000:7.2f} s  job {job:<2} {text}", highlight=False, markup=False)

    def event(self, event: Event) -> None:
        """See ``Watcher``."""
        text = _ENDS.get(event.kind, event.kind.name.lower())
        if event.spec is not None:
            job = self._driver.jobs[event.job]
            text = f"submitted by {job.user}: {_slots(job.gpus)}"
        elif event.job in self._driver.ended_ms:
            text += f", JCT {(event.time_ms - self._driver.jobs[event.job].at_ms) / 1000:.1f} s"
        self._line(event.time_ms, event.job, text)

    def planned(self, plan: Plan) -> None:
        """See ``Watcher``."""
        for action in plan.actions:
            gpus = getattr(action, "gpus", None)
            where = "" if gpus is None else "start on slots " + ",".join(str(gpu) for _, gpu in gpus)
            self._line(plan.time_ms, action.job, where or "preempt")

    def detail(self, job: int, text: str) -> None:
        """See ``Watcher``."""
        self._console.print(f"       job {job}: {text}", highlight=False, markup=False)

    def tick(self, now_ms: int) -> bool:
        """See ``Watcher``."""
        return not self._stopped()


class View(Watcher):
    """A table of the jobs, redrawn at each tick."""

    def __init__(self, live: Live, driver: LiveDriver, stopped: Callable[[], bool], words: str) -> None:
        self._live, self._driver, self._stopped, self._words = live, driver, stopped, words

    def detail(self, job: int, text: str) -> None:
        """See ``Watcher``."""
        self._live.console.print(f"job {job}: {text}", highlight=False, markup=False)

    def tick(self, now_ms: int) -> bool:
        """See ``Watcher``."""
        self._live.update(session_table(self._driver, now_ms, self._words), refresh=True)
        return not self._stopped()


def session_table(driver: LiveDriver, now_ms: int, words: str) -> Table:
    """The jobs of a session as they stand now."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=words, title_justify="left", title_style="bold")
    for column, width in (("job", 3), ("user", 5), ("gang", 4), ("state", 16), ("slots", 7), ("progress", BAR_WIDTH)):
        table.add_column(
            column, no_wrap=True, min_width=width, justify="right" if column in ("job", "gang") else "left"
        )
    table.add_column("waits because")
    for job, submission in enumerate(driver.jobs):
        state, style, slots, why = _standing(driver, job, now_ms)
        table.add_row(
            str(job), submission.user, str(submission.gpus), state, slots, _bar(driver.fractions[job]),
            Text(why, no_wrap=True, overflow="ellipsis"), style=style,
        )
    present = [a for a in driver.attempts if a.begin_ms is not None and a.end_ms is None]
    preempted = sum(attempt.preempt_ms is not None for attempt in driver.attempts)
    table.caption = (
        f"{now_ms / 1000:.1f} s   {sum(len(a.slots) for a in present)} of {driver.scheduler.state.cluster.num_gpus} "
        f"slots busy   {driver.rounds} rounds   {preempted} preemptions   "
        f"{len(driver.ended_ms)} of {len(driver.jobs)} jobs over"
    )
    table.caption_justify = "left"
    return table


def _standing(driver: LiveDriver, job: int, now_ms: int) -> tuple[str, str, str, str]:
    """State, its style, slots, and why it waits."""
    submission = driver.jobs[job]
    if job in driver.ended_ms:
        jct_s = (driver.ended_ms[job] - submission.at_ms) / 1000
        return ("gave up", "red", "", "") if job in driver.gave_up else (f"done, JCT {jct_s:.1f} s", "dim", "", "")
    state = driver.scheduler.state
    if job not in state:
        return f"comes in {max(0, submission.at_ms - now_ms) / 1000:.0f} s", "dim", "", ""
    phase = state.phase(job)
    word, style = _PHASES[phase]
    attempt = driver.attempt_of(job)
    slots = ",".join(map(str, attempt.slots)) if attempt else ""
    if phase is Phase.STARTING and attempt and attempt.begin_ms is None:
        return word, style, slots, "another job is leaving its slots"
    return word, style, slots, _why(driver, job) if phase is Phase.PENDING else ""


def _why(driver: LiveDriver, job: int) -> str:
    """The engine's reason, in its words; what it calls GPUs are CPU slots here."""
    snapshot, result = driver.last_snapshot, driver.scheduler.last_round
    if snapshot is None or result is None or job not in result.job:
        return "the next round will tell"
    return explain(snapshot, result, job).removeprefix(f"job {job} ").replace("GPU", "slot")


def _bar(fraction: float) -> str:
    full = round(fraction * BAR_WIDTH)
    return "━" * full + "·" * (BAR_WIDTH - full)


def _slots(count: int) -> str:
    return f"{count} slot{'s' if count != 1 else ''}"
