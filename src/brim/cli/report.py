"""``brim report``: how far the twin is from what this cluster recorded."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final

import typer

from brim.agent.protocol import ON_CPU
from brim.cli.options import JsonOption, OutputOption, complete_policy, output_of
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import BrimError, ConfigError, NotFoundError, shown
from brim.units import parse_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brim.cli.fidelity import ReplaySetup
    from brim.live.recording import RecordedJob
    from brim.live.store.reading import History

SCHEMA: Final = 1
_OWN: Final = "Replayed with the run times measured in these jobs themselves, which checks only how the twin queues:"

app = typer.Typer()


@app.command(cls=UnconvertedCommand)
def report(
    fidelity: Annotated[
        bool, typer.Option("--fidelity", help="Simulate what was recorded, and show how far off that is.")
    ] = False,
    jobs: Annotated[
        str | None, typer.Option("--jobs", metavar="IDS", help="Compare these, such as 41-80; else the later half.")
    ] = None,
    learn: Annotated[
        str | None,
        typer.Option("--learn", metavar="IDS", help="Learn from these; by default, from all that ended before."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="FILE", help="File of the policy that decided, if it is no preset.",
                     autocompletion=complete_policy),
    ] = None,
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Compare the twin, which simulates this cluster, with what this user's controller recorded."""
    wanted = output_of(output, as_json)
    if not fidelity:
        raise ConfigError("which report? There is one so far: `brim report --fidelity` replays in the twin what this "
                          "cluster recorded, and shows how far the twin is off")
    from brim.cli import fidelity as twin
    from brim.live.recording import recorded_jobs

    history = read_history()
    recorded = recorded_jobs(history.jobs, history.attempts, history.lines, history.seen_ms)
    found = [one for one in recorded if not _was_on_cpu(one)]
    on_cpu = frozenset(one.job.id for one in recorded if _was_on_cpu(one))
    if not any(one.undisturbed for one in found):
        but = " but on CPU, where the replay has no ranks" if on_cpu else ""
        raise NotFoundError(f"no job has finished yet{but}: there is nothing to compare the twin with")
    compared, learned = _chosen(found, on_cpu, jobs, learn)
    which = "the later half of the jobs" if jobs is None else "--jobs"
    setup, rows = _setup_of(history, found, compared, policy, which)
    own = twin.with_own_run_times(rows, compared, setup)
    beliefs = twin.learn(learned) if learned else None
    prediction = None if beliefs is None else twin.predicted(rows, compared, setup, beliefs)
    cut = frozenset(one.job.id for one in found if one.job.id in compared and one.ready_ms < history.since_ms)
    if wanted == "json":
        print(json.dumps({
            "schema": SCHEMA, "before_journal": sorted(cut), "on_cpu": sorted(on_cpu), "policy": setup.policy.name,
            "cluster": str(setup.cluster), "compared": sorted(compared), "learned": [one.job.id for one in learned],
            "own_run_times": own.as_json(), "predicted": None if prediction is None else prediction.as_json(),
        }))
        return
    left_out = len(compared) - len(own.fidelity.rows)
    print(f"{_ids(compared)} under {setup.policy.name} on {setup.cluster}" + (
        f"; {left_out} of them did not run undisturbed to the end, and only load the cluster" if left_out else ""
    ))
    if on_cpu:
        print(f"{_ids(on_cpu)} ran on CPU, if only for a time; left out, because the replay has no ranks there")
    if cut:
        print(f"The journal begins after {_ids(cut)} could run: earlier resizes and reported speeds are not in it, and "
              "such jobs count with the devices of their end")
    if prediction is not None:
        from_jobs = ", ".join(f"{count} by {basis}" for basis, count in prediction.bases.items())
        print(f"\nPredicted from {_ids({one.job.id for one in learned})} (run times: {from_jobs}):")
        print(*twin.in_words(prediction), sep="\n")
    else:
        print("\nNo job ended before them: there is nothing to learn from, and so no prediction.")
    print(f"\n{_OWN}")
    print(*twin.in_words(own), sep="\n")


def read_history() -> History:
    """Read what this user's controller has stored; it may run meanwhile.

    Raises:
        NotFoundError: this user never ran a controller here.
        BrimError: the store cannot be read.
    """
    from brim.agent.folders import state_folder
    from brim.live.store.reading import Reader
    from brim.live.store.state_folder import DATABASE

    database = state_folder() / "controller" / DATABASE
    if not database.is_file():
        raise NotFoundError(
            f"no history yet: there is no {database}, as `brim up` makes it; for a cluster that you joined, "
            "only the user who runs its controller can make this report"
        )
    try:
        reader = Reader(database)
        try:
            return reader.history()
        finally:
            reader.close()
    except sqlite3.Error as error:
        raise BrimError(f"{database} cannot be read: {error}; `brim up` brings it to this version") from None


def _chosen(
    found: Sequence[RecordedJob], on_cpu: frozenset[int], jobs: str | None, learn: str | None
) -> tuple[frozenset[int], list[RecordedJob]]:
    """The jobs to compare, and those to learn from; jobs on CPU, which are not among those found, are neither.

    Raises:
        ConfigError: the options name no jobs that ran, or the same jobs.
    """
    whole = [one for one in found if one.undisturbed]
    if jobs is None:
        later = whole[len(whole) // 2 :]
        compared = frozenset(one.job.id for one in later)
    else:
        first, last = _range("--jobs", jobs)
        compared = frozenset(one.job.id for one in found if first <= one.job.id <= last)
        if not any(one.job.id in compared for one in whole):
            raise _none_of("--jobs", range(first, last + 1), on_cpu)
    if learn is None:
        begin_ms = min(one.job.submit_ms for one in found if one.job.id in compared)
        learned = [one for one in found if one.job.has_ended and one.end_ms <= begin_ms and one.job.id not in compared]
        return compared, learned if any(one.undisturbed for one in learned) else []
    first, last = _range("--learn", learn)
    learned = [one for one in found if first <= one.job.id <= last]
    both = [one.job.id for one in learned if one.job.id in compared]
    if both:
        raise ConfigError(f"--learn: found job {both[0]}, which is compared: a prediction must not know its answer")
    if not any(one.undisturbed for one in learned):
        raise _none_of("--learn", range(first, last + 1), on_cpu)
    return compared, learned


def _none_of(option: str, asked: range, on_cpu: frozenset[int]) -> ConfigError:
    """The error for a range in which no job can be used; it names those that were on CPU."""
    left_out = frozenset(job for job in on_cpu if job in asked)
    but = f"; {_ids(left_out)} ran on CPU, where the replay has no ranks" if left_out else ""
    which = f"{asked[0]}-{asked[-1]}" if len(asked) > 1 else f"{asked[0]}"
    return ConfigError(f"{option}: found {which}, of which no job has finished undisturbed{but}")


def _was_on_cpu(recorded: RecordedJob) -> bool:
    return any(ON_CPU in held.devices for attempt in recorded.attempts for held in attempt.holdings)


def _range(option: str, text: str) -> tuple[int, int]:
    begin, _, end = text.partition("-")
    try:
        first = parse_whole(begin)
        return first, parse_whole(end or begin, first)
    except ConfigError:
        raise ConfigError(f"{option}: found {shown(text)}, expected ids of jobs, such as 41-80") from None


def _setup_of(
    history: History, found: Sequence[RecordedJob], compared: frozenset[int], policy: str | None, which: str
) -> tuple[ReplaySetup, list[RecordedJob]]:
    """Under what the compared jobs ran, and all jobs since then: those before them only load the cluster.

    ``which`` jobs are compared is said in errors.

    Raises:
        ConfigError: the setting changed between them, was not recorded, or its policy is no preset.
    """
    from brim.cli.fidelity import ReplaySetup
    from brim.core.cluster import parse_cluster
    from brim.policies.presets import find_policy

    begin_ms = min(one.job.submit_ms for one in found if one.job.id in compared)
    end_ms = max(one.end_ms for one in found if one.job.id in compared)
    before = [(at_ms, setting) for at_ms, setting in history.settings if at_ms <= begin_ms]
    if not before:
        raise NotFoundError("these jobs ran under an earlier brim, which did not record policy and cluster")
    setting = before[-1][1]
    for at_ms, other in history.settings:
        if begin_ms < at_ms < end_ms and other != setting:
            same = _under_one(history, found)
            raise ConfigError(
                f"{which}: {other.policy} on {other.cluster} took the place of {setting.policy} on {setting.cluster} "
                "while they ran, expected jobs under one policy on one cluster"
                + (f", such as --jobs {min(same)}-{max(same)}" if same else "")
            )
    since_ms = begin_ms
    for at_ms, other in reversed(before):
        if other != setting:
            break
        since_ms = at_ms
    try:
        rule = find_policy(policy or setting.policy)
    except ConfigError:
        if policy is not None:
            raise
        raise ConfigError(f"policy {setting.policy} decided, which is no preset: give its file with --policy") from None
    rows = [one for one in found if one.ready_ms >= since_ms and one.ready_ms <= end_ms]
    return ReplaySetup(
        cluster=parse_cluster(setting.cluster), policy=rule, gap_ms=setting.gap_ms, gap_job_us=setting.gap_job_us
    ), rows


def _under_one(history: History, found: Sequence[RecordedJob]) -> list[int]:
    """Jobs, one after the other by id, that ran under one setting: the most undisturbed ones, and the newest of these.

    Empty if there are none.
    """
    changes = [at_ms for (_, old), (at_ms, new) in pairwise(history.settings) if old != new]
    best: list[int] = []
    row: list[int] = []
    undisturbed = most = 0
    before = -1
    for one in sorted(found, key=lambda one: one.job.id):
        at = bisect_right(changes, one.job.submit_ms)
        whole = at == bisect_left(changes, one.end_ms)
        if at != before or not whole:
            row, undisturbed = [], 0
        if whole:
            row, undisturbed = [*row, one.job.id], undisturbed + one.undisturbed
        if undisturbed and undisturbed >= most:
            best, most = row, undisturbed
        before = at
    return best


def _ids(jobs: set[int] | frozenset[int]) -> str:
    """Jobs in words: ``job 3`` or ``40 jobs from 41 to 80``."""
    return f"job {min(jobs)}" if len(jobs) == 1 else f"{len(jobs)} jobs from {min(jobs)} to {max(jobs)}"
