"""The driver's loop, with an executor without processes and a clock without time."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Plan, Preempt
from brim.core.arrays import IntArray
from brim.core.cluster import parse_cluster
from brim.core.events import Event, Kind
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.engine.journal import Journal
from brim.engine.journal import replay as replay_journal
from brim.engine.scheduler import Scheduler
from brim.errors import ConfigError, RefusedError
from brim.live.driver import LiveDriver, LiveJob, Watcher, warm_up
from brim.live.executor import AttemptReport, Command, ReportKind
from brim.live.record import Attempt, MeasuredCosts, measured, preemptions, productive_ms, recorded_trace
from brim.live.world import RealWorld
from brim.policies.place.parts import Consolidate
from brim.policies.place.repack import Repack
from brim.policies.presets import find_policy
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Sizes
from tests.live.conftest import FakeExecutor

FOUR = parse_cluster("1x4xcpu-slot")
NOTHING = Command(argv=("true",))


def job(at_ms: int, gpus: int, limit_ms: int = -1) -> LiveJob:
    return LiveJob(name="j", user="ana", at_ms=at_ms, gpus=gpus, command=NOTHING, time_limit_ms=limit_ms)


def session(
    policy: str, jobs: tuple[LiveJob, ...], executor: FakeExecutor, watcher: Watcher | None = None
) -> tuple[LiveDriver, Journal]:
    journal = Journal()
    driver = LiveDriver(FOUR, find_policy(policy), jobs, executor, gap_ms=100, journal=journal)
    driver.run(executor.clock, watcher)
    return driver, journal


def kinds(journal: Journal, of: int) -> list[str]:
    return [record["e"] for record in map(json.loads, journal.lines) if record.get("job") == of and "e" in record]


def test_a_shorter_job_preempts_and_the_longer_one_goes_on_later() -> None:
    executor = FakeExecutor({0: 5_000, 1: 1_000})
    driver, journal = session("srtf", (job(0, 4, 6_000), job(2_000, 2, 1_200)), executor)
    assert kinds(journal, 0) == ["SUBMITTED", "STARTED", "STOPPED", "STARTED", "FINISHED"]
    assert [(a.job, a.number, a.kind) for a in driver.attempts] == [
        (0, 1, Kind.STOPPED), (1, 1, Kind.FINISHED), (0, 2, Kind.FINISHED),
    ]
    assert preemptions(driver.attempts, 2).tolist() == [1, 0]
    assert driver.ended_ms[1] < driver.ended_ms[0]


def test_scheduled_things_carry_their_own_time_however_late_the_driver_wakes() -> None:
    jobs = tuple(job(300 * row, 1) for row in range(6))
    for late_ms in (0, 70, 1_000):
        executor = FakeExecutor(dict.fromkeys(range(6), 1_000))
        executor.oversleep_ms = late_ms
        driver, journal = session("fifo", jobs, executor)
        records = [json.loads(line) for line in journal.lines]
        assert [r["t"] for r in records if r.get("e") == "SUBMITTED"] == [300 * row for row in range(6)]
        assert [r["t"] for r in records] == sorted(r["t"] for r in records)
        assert len(driver.ended_ms) == 6


def test_a_job_that_keeps_failing_is_given_up_and_the_others_go_on() -> None:
    executor = FakeExecutor({0: 100, 1: 100})
    executor.outcome[0] = ReportKind.FAILED
    told: list[tuple[int, str]] = []

    class Recorder(Watcher):
        def detail(self, job: int, text: str) -> None:
            told.append((job, text))

    driver, journal = session("fifo", (job(0, 4), job(0, 4)), executor, Recorder())
    assert kinds(journal, 0) == ["SUBMITTED", *["STARTED", "FAILED"] * 2, "STARTED", "GAVE_UP"]
    assert kinds(journal, 1)[-1] == "FINISHED"
    assert driver.gave_up == {0}
    assert [number for number, _ in told] == [0, 0, 0]


def test_a_command_that_cannot_start_is_given_up_at_once() -> None:
    executor = FakeExecutor({0: 100})
    executor.outcome[0] = ReportKind.UNUSABLE
    driver, journal = session("fifo", (job(0, 1),), executor)
    assert kinds(journal, 0)[-1] == "GAVE_UP"
    assert driver.gave_up == {0}


def test_a_job_may_start_and_end_in_one_millisecond() -> None:
    executor = FakeExecutor({0: 0}, load_ms=0)
    driver, journal = session("fifo", (job(0, 1),), executor)
    assert kinds(journal, 0) == ["SUBMITTED", "FINISHED"]
    assert driver.ended_ms == {0: 1}  # the round at 0 is run when 0 is over


def test_words_of_an_attempt_that_is_over_change_nothing() -> None:
    executor = FakeExecutor({0: 500})
    executor.coming.append((300, AttemptReport(0, 7, ReportKind.FINISHED)))
    executor.coming.append((300, AttemptReport(3, 1, ReportKind.FAILED)))
    _, journal = session("fifo", (job(0, 1),), executor)
    assert kinds(journal, 0) == ["SUBMITTED", "STARTED", "FINISHED"]


def test_the_watcher_sees_everything_and_can_stop_the_session() -> None:
    class Impatient(Watcher):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def event(self, event: Event) -> None:
            self.seen.append(event.kind.name)

        def planned(self, plan: Plan) -> None:
            self.seen += ["preempt" if isinstance(action, Preempt) else "start" for action in plan]

        def tick(self, now_ms: int) -> bool:
            return now_ms < 1_000

    executor, watcher = FakeExecutor({0: 50_000}), Impatient()
    driver = LiveDriver(FOUR, find_policy("fifo"), (job(0, 1),), executor)
    assert not driver.run(executor.clock, watcher, tick_ms=250)
    assert watcher.seen == ["SUBMITTED", "start", "STARTED"]


def test_progress_of_a_job_is_told_to_the_engine() -> None:
    executor = FakeExecutor({0: 5_000})
    executor.coming += [
        (1_000, AttemptReport(0, 1, ReportKind.PROGRESS, done=10, total=50)),
        (3_000, AttemptReport(0, 1, ReportKind.PROGRESS, done=30, total=50)),
        (9_000, AttemptReport(0, 1, ReportKind.PROGRESS, done=50, total=50)),  # too late
    ]
    seen: list[tuple[float, float]] = []

    class Recorder(Watcher):
        def tick(self, now_ms: int) -> bool:
            if executor.now_ms > 4_000 and len(driver.scheduler.state):
                jobs = driver.scheduler.state.freeze(5_000).jobs
                seen.append((float(jobs.samples_done[0]), float(jobs.samples_per_s[0])))
            return True

    journal = Journal()
    driver = LiveDriver(FOUR, find_policy("fifo"), (job(0, 4),), executor, gap_ms=100, journal=journal)
    assert driver.run(executor.clock, Recorder(), tick_ms=4_500)
    assert kinds(journal, 0) == ["SUBMITTED", "STARTED", "REPORTED", "REPORTED", "FINISHED"]
    assert seen[0] == (50.0, 10.0)  # 30 at 3 s, 10 a second
    assert driver.fractions == [0.6]
    again = Scheduler(FOUR, find_policy("fifo"), Beliefs(), users=driver.users, gap_ms=100)
    assert all(now == then for then, now in replay_journal(journal.lines, again))


def test_a_job_is_told_how_many_loader_workers_it_has() -> None:
    executor = FakeExecutor({0: 10})
    driver = LiveDriver(parse_cluster("1x4xcpu-slot:cpus=16"), find_policy("fifo"), (job(0, 2),), executor)
    assert driver.run(executor.clock)
    assert executor.loader_workers == [3]


@dataclass(frozen=True)
class LentAtFirst(Consolidate):
    """Marks the grants of jobs as revocable in the first second after their submission."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        grants = super().__call__(snapshot, beliefs, order, sizes)
        return replace(grants, revocable=(snapshot.now_ms - snapshot.jobs.submit_ms < 1_000)[grants.job])


def test_a_grant_that_is_no_longer_revocable_changes_nothing_for_the_job() -> None:
    executor = FakeExecutor({0: 5_000, 1: 1_000})
    journal = Journal()
    policy = replace(find_policy("fifo"), place=LentAtFirst("skip"))
    driver = LiveDriver(FOUR, policy, (job(0, 2), job(2_000, 1)), executor, gap_ms=100, journal=journal)
    assert driver.run(executor.clock)
    assert sum('"do":"tune"' in line for line in journal.lines) == 1
    assert [attempt.number for attempt in driver.attempts if attempt.job == 0] == [1]


@dataclass(frozen=True)
class Picky(AsAsked):
    """Rejects jobs of more than two devices."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        return replace(super().__call__(snapshot, beliefs, order), gpus=np.where(snapshot.jobs.gpus > 2, 0, 1),
                       reject=snapshot.jobs.gpus > 2)


def test_a_job_that_is_rejected_is_over() -> None:
    executor = FakeExecutor({0: 10, 1: 10})
    driver = LiveDriver(FOUR, replace(find_policy("fifo"), size=Picky()), (job(0, 1), job(0, 3)), executor)
    assert driver.run(executor.clock)
    assert driver.gave_up == {1}
    assert sorted(driver.ended_ms) == [0, 1]


@pytest.mark.parametrize("name", ["goodput", "pollux", "elastic"])
def test_a_policy_that_changes_running_jobs_is_refused_before_the_session(name: str) -> None:
    with pytest.raises(RefusedError, match=f"policy {name} resizes or moves jobs while they run"):
        LiveDriver(FOUR, find_policy(name), (job(0, 1),), FakeExecutor({0: 10}))


def test_what_the_live_mode_refuses() -> None:
    executor = FakeExecutor({})
    with pytest.raises(RefusedError, match="resizes or moves jobs"):
        LiveDriver(FOUR, replace(find_policy("fifo"), place=Repack()), (job(0, 1),), executor)
    with pytest.raises(RefusedError, match="needs true run times"):
        LiveDriver(FOUR, find_policy("srtf-oracle"), (), executor)
    with pytest.raises(ConfigError, match="asks for 5 devices, this machine has 4"):
        LiveDriver(FOUR, find_policy("fifo"), (job(0, 5),), executor)
    with pytest.raises(ConfigError, match="one machine, found a cluster of 2 nodes"):
        LiveDriver(parse_cluster("2x4xT4"), find_policy("fifo"), (), executor)


def test_a_session_without_jobs_is_over() -> None:
    executor = FakeExecutor({})
    assert LiveDriver(FOUR, find_policy("fifo"), (), executor).run(executor.clock)


def test_the_clock_of_this_machine_starts_at_zero_and_never_goes_back() -> None:
    world = RealWorld(FakeExecutor({}), io.StringIO())
    times = [world.now_ms() for _ in range(1_000)]
    assert times[0] < 100
    assert times == sorted(times)
    warm_up(FOUR, find_policy("fifo"))


def test_the_record_splits_productive_time_from_overheads() -> None:
    first = Attempt(job=0, number=1, slots=(0,), begin_ms=10, from_ms=110, preempt_ms=1_110, end_ms=1_160,
                    kind=Kind.STOPPED)
    never_ran = replace(first, number=2, begin_ms=1_200, from_ms=None, preempt_ms=1_300, end_ms=1_301)
    second = Attempt(job=0, number=3, slots=(0,), begin_ms=2_000, from_ms=2_200, end_ms=2_700,
                     kind=Kind.FINISHED)
    failed = Attempt(job=1, number=1, slots=(1,), begin_ms=0, from_ms=50, end_ms=900, kind=Kind.GAVE_UP)
    attempts = (first, never_ran, second, failed)
    assert productive_ms(attempts, 2).tolist() == [1_500, 0]
    assert measured(attempts) == MeasuredCosts(start_ms=75, restart_ms=200, save_ms=50)
    assert measured(()) == MeasuredCosts(start_ms=0, restart_ms=0, save_ms=0)
    driver = LiveDriver(FOUR, find_policy("fifo"), (job(0, 1, 2_000), job(5, 2)), FakeExecutor({}))
    trace = recorded_trace("kept", driver.specs, driver.users, attempts)
    assert trace.run_ms.tolist() == [1_500, 0]
    assert trace.time_limit_ms.tolist() == [2_000, -1]
    assert (trace.users, trace.submit_ms.tolist()) == (("ana",), [0, 5])
