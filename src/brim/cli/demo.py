"""``brim demo``: twelve real training jobs on four CPU slots of this machine, under two policies in turn.

The engine, events, actions and checks are those of the twin. At the end the twin replays the recorded session, and the
closing table shows both side by side.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brim.cli.options import JsonOption, OutputOption, output_of, waiting
from brim.cli.outputs import console
from brim.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from brim.core.replay import Replay
    from brim.live.driver import LiveDriver, LiveJob
    from brim.live.local import LocalExecutor
    from brim.live.record import MeasuredCosts

SCHEMA: Final = 1
SLOTS: Final = 4
CLUSTER: Final = f"1x{SLOTS}xcpu-slot"
POLICIES: Final = ("fifo", "srtf")
"""The first never preempts; the second preempts whenever a shorter job arrives."""
GAP_MS: Final = 150
"""Shortest time between two rounds: small against jobs of a few seconds."""
TICK_MS: Final = 250
EPOCH_MS: Final = 200
LIMIT_RATIO: Final = 1.25
"""Time limit over run time: the estimates of ``srtf`` are roughly right, as limits are at best."""
JOBS: Final = (  # seconds after the start, user, slots, epochs, hidden units
    (0.0, "ana", 4, 34, 256), (5.0, "bo", 2, 9, 64), (5.1, "cem", 1, 10, 32), (5.2, "dia", 1, 8, 32),
    (15.0, "ana", 4, 30, 256), (20.0, "eve", 1, 9, 64), (20.1, "cem", 1, 8, 32), (20.2, "bo", 2, 9, 128),
    (20.3, "dia", 1, 8, 32), (21.0, "eve", 1, 8, 64), (29.0, "cem", 1, 8, 32), (30.0, "bo", 2, 8, 128),
)
"""Chosen in the twin: gangs of four are well under way when small jobs arrive, so that preempted jobs have something to
save, whether a start takes one second or three; and all jobs end soon after the last submission."""

app = typer.Typer()


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="New folder to keep the journals, logs and checkpoints in."),
    ] = None,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Run twelve real training jobs on four CPU slots under two policies, and compare: 70 s on four free cores."""
    from rich.console import Console

    from brim.cli.compiling import compile_first, kernels

    wanted = output_of(output, as_json)
    screen = Console(stderr=True, highlight=False)
    folder = _folder(out)
    try:
        compile_first(kernels())
        began_s = time.perf_counter()
        results = [run_and_replay(name, digits_jobs(), folder / name, screen) for name in POLICIES]
    finally:
        if out is None:
            for name in POLICIES:
                shutil.rmtree(folder / name, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
    wall_s = time.perf_counter() - began_s
    with waiting("writing the page"):  # the first page on a machine compiles more: seconds
        page = _write_page(results, folder)
    if wanted == "json":
        print(json.dumps({"schema": SCHEMA, "slots": SLOTS, "wall_s": round(wall_s, 1), "page": str(page),
                          "results": [result.as_json() for result in results]}))
    else:
        print_closing(console(), results, wall_s)
        console().print(verdict(results), markup=False)
        print(f"Queues, slot use and completion times of both policies, as the twin replayed them: {page}")
    if any(result.driver.gave_up for result in results):
        raise typer.Exit(1)


def _warm_up(name: str) -> None:
    """Compile or load what a session under the policy calls, so that none of its rounds waits for that."""
    from brim.core.cluster import parse_cluster
    from brim.live.driver import warm_up
    from brim.policies.presets import find_policy

    warm_up(parse_cluster(CLUSTER), find_policy(name))


def _folder(out: Path | None) -> Path:
    """Return the folder that the sessions write to; a new one in the temporary folder if none was given.

    Raises:
        ConfigError: the folder is not empty (old checkpoints would be taken for new ones) or cannot be made.
    """
    from brim.errors import ConfigError

    if out is None:
        return Path(tempfile.mkdtemp(prefix="brim-demo-"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = any(out.iterdir())
        (out / POLICIES[0]).mkdir()
        (out / POLICIES[0]).rmdir()
    except FileExistsError:
        taken = True
    except OSError as error:
        raise ConfigError(f"--out: cannot write to folder {out}: {error.strerror}") from None
    if taken:
        raise ConfigError(f"--out: {out} exists already; give a new or empty folder")
    return out


def _write_page(results: list[Result], folder: Path) -> Path:
    from brim.reports.page import write_page

    folder.mkdir(exist_ok=True)
    page = folder / "page.html"
    write_page([result.twin for result in results], page, command="brim demo")
    return page


def verdict(results: list[Result]) -> str:
    """Say what the second policy changed against the first, as measured."""
    first, second = results
    names = first.twin.policy, second.twin.policy
    means = _mean(first.live_s), _mean(second.live_s)
    sooner = sum(new < old for old, new in zip(first.live_s, second.live_s, strict=True))
    worst = max(range(len(first.live_s)), key=lambda job: second.live_s[job] - first.live_s[job])
    later_s = second.live_s[worst] - first.live_s[worst]
    change = f"{abs(1 - means[1] / means[0]):.0%} {'less' if means[1] < means[0] else 'more'}"
    preempted = sum(second.preempted)
    were_sooner = f"{sooner} {'was' if sooner == 1 else 'were'} done sooner"
    user = first.driver.jobs[worst].user
    cost = f" Job {worst} of {user} lost most: it took {later_s:.1f} s longer." if later_s > 0 else ""
    return (
        f"Under {names[1]}, jobs were done {means[1]:.1f} s after their submission on average, {change} than the "
        f"{means[0]:.1f} s under {names[0]}. Of {counted(len(first.live_s), 'job')}, {were_sooner}, with "
        f"{counted(preempted, 'preemption')}.{cost}"
    )


def digits_jobs() -> tuple[LiveJob, ...]:
    """The twelve submissions."""
    from brim.live.driver import LiveJob
    from brim.live.executor import Command

    return tuple(
        LiveJob(
            name=str(row), user=user, at_ms=round(at_s * 1000), gpus=gpus,
            time_limit_ms=round(epochs * EPOCH_MS * LIMIT_RATIO),
            command=Command(
                argv=(sys.executable, "-m", "brim.live.digits", "--epochs", str(epochs), "--hidden", str(hidden),
                      "--seed", str(row), "--epoch-ms", str(EPOCH_MS)),
                reports=True,
            ),
        )
        for row, (at_s, user, gpus, epochs, hidden) in enumerate(JOBS)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The session of one policy, and the twin's replay of it."""

    driver: LiveDriver
    twin: Replay
    measured: MeasuredCosts

    @property
    def live_s(self) -> list[float]:
        """JCT of each job in the live session."""
        return [(self.driver.ended_ms[job] - spec.submit_ms) / 1000 for job, spec in enumerate(self.driver.specs)]

    @property
    def twin_s(self) -> list[float]:
        """JCT of each job in the replay."""
        jct_ms = self.twin.finish_ms - self.twin.trace.submit_ms
        return [float(value) / 1000 for value in jct_ms]

    @property
    def preempted(self) -> list[int]:
        """Preemptions of each job in the live session."""
        from brim.live.record import preemptions

        counts: list[int] = preemptions(self.driver.attempts, len(self.driver.jobs)).tolist()
        return counts

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``-o json``."""
        rows = zip(self.driver.jobs, self.live_s, self.twin_s, self.preempted, self.twin.preemptions.tolist(),
                   strict=True)
        return {
            "policy": self.twin.policy, "rounds": self.driver.rounds, "rounds_twin": self.twin.rounds,
            "start_ms": self.measured.start_ms, "restart_ms": self.measured.restart_ms,
            "save_ms": self.measured.save_ms,
            "jobs": [
                {"job": job.name, "user": job.user, "gpus": job.gpus, "jct_s": live_s, "jct_twin_s": twin_s,
                 "preemptions": live, "preemptions_twin": twin}
                for job, live_s, twin_s, live, twin in rows
            ],
        }


def run_and_replay(name: str, jobs: tuple[LiveJob, ...], folder: Path, screen: Console) -> Result:
    """Run the jobs under a policy, then replay the record in the twin.

    Raises:
        KeyboardInterrupt: a signal stopped the session, and every process is gone.
    """
    from brim.core.cluster import parse_cluster
    from brim.live.local import LocalExecutor
    from brim.live.world import RealWorld, driver_in
    from brim.policies.presets import find_policy

    cluster, policy = parse_cluster(CLUSTER), find_policy(name)
    folder.mkdir()
    _warm_up(name)
    with (
        (folder / "journal.jsonl").open("w", encoding="utf-8", buffering=1) as sink,
        LocalExecutor(SLOTS, folder) as executor,
        _signals(executor) as stopped,
    ):
        world = RealWorld(executor, sink)
        driver = driver_in(world, cluster, policy, jobs, gap_ms=GAP_MS)
        over = _watch(driver, screen, stopped, world.now_ms)
        executor.close()  # while this function still handles the signals
    if not over:
        screen.print(f"stopped: {len(driver.ended_ms)} of {len(jobs)} jobs had ended; none of their processes is left")
        raise KeyboardInterrupt
    return replayed(driver)


def _watch(driver: LiveDriver, screen: Console, stopped: Callable[[], bool], clock: Callable[[], int]) -> bool:
    """Run the session, displayed as the console allows."""
    from brim.cli.watch import Lines, View, board_of

    title = f"policy {driver.scheduler.policy.name}"
    if screen.is_terminal:
        from rich.live import Live

        with Live(console=screen, auto_refresh=False) as live:
            return driver.run(clock, View(live, driver, stopped, title), tick_ms=TICK_MS)
    screen.print(f"{title}: {len(driver.jobs)} training jobs on {SLOTS} CPU slots", soft_wrap=True)
    over = driver.run(clock, Lines(screen, driver, stopped, title), tick_ms=TICK_MS)
    screen.print(f"{title}: {board_of(driver, clock(), title).in_words()}", soft_wrap=True)
    return over


@contextlib.contextmanager
def _signals(executor: LocalExecutor) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into an orderly end; a second one does not wait for saving."""
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        executor.wake()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def replayed(driver: LiveDriver) -> Result:
    """Replay a session in the twin: same submissions, the run times and median overheads measured."""
    from brim.engine.journal import Journal
    from brim.live.record import measured, recorded_trace
    from brim.sim.overheads import Overheads
    from brim.sim.twin import ReplaySettings, replay

    costs = measured(driver.attempts)
    policy = driver.scheduler.policy
    twin = replay(
        recorded_trace(f"demo under {policy.name}", driver.specs, driver.users, driver.attempts),
        driver.scheduler.state.cluster, policy,
        ReplaySettings(
            overheads=Overheads(start_ms=costs.start_ms, restart_ms=costs.restart_ms, save_ms=costs.save_ms),
            gap_ms=GAP_MS,
        ),
        journal=Journal(),  # for twelve jobs the general loop is faster than loading a compiled one
    )
    return Result(driver=driver, twin=twin, measured=costs)


def print_closing(screen: Console, results: list[Result], wall_s: float) -> None:
    """Print the JCT per job and policy, live beside the twin, and how far the two differ."""
    from rich import box
    from rich.table import Table

    title = "Completion times in seconds: live, in the replay, and replay minus live"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for column in ("job", "user", "slots"):
        table.add_column(column, justify="right" if column != "user" else "left")
    for result in results:
        for column in (f"{result.twin.policy}\nlive", "\nreplay", "\ndiff."):
            table.add_column(column, justify="right")
    for job, submission in enumerate(results[0].driver.jobs):
        cells = [cell for result in results for cell in _cells(result.live_s[job], result.twin_s[job])]
        last = job == len(results[0].driver.jobs) - 1
        table.add_row(str(job), submission.user, str(submission.gpus), *cells, end_section=last)
    means = [cell for r in results for cell in _cells(_mean(r.live_s), _mean(r.twin_s))]
    table.add_row("mean", "", "", *means, style="bold")
    counts = [cell for r in results for cell in (str(sum(r.preempted)), str(int(r.twin.preemptions.sum())), "")]
    table.add_row("preemptions", "", "", *counts)
    screen.print(table)
    for result in results:
        screen.print(accuracy(result), highlight=False, markup=False)
    screen.print(f"The two sessions and their replays took {wall_s:.0f} s.", highlight=False)


def accuracy(result: Result) -> str:
    """Say how far the replay is from the session, and which of its overheads the session measured."""
    costs = result.measured
    off_s = _mean([abs(live - twin) for live, twin in zip(result.live_s, result.twin_s, strict=True)])
    used = f"{costs.start_ms} ms to start a job"
    if any(result.preempted):
        used += f", {costs.save_ms} ms to save a preempted job, {costs.restart_ms} ms to restart it"
    return (
        f"{result.twin.policy}: the times in the replay differ from the measured ones by {off_s:.2f} s on average. The "
        f"replay uses medians of the session: {used}."
    )


def _cells(live_s: float, twin_s: float) -> tuple[str, str, str]:
    difference = round(twin_s - live_s, 1)
    return f"{live_s:.1f}", f"{twin_s:.1f}", f"{difference:+.1f}" if difference else "0.0"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
