"""Parts that act when no job waits, and say when only an event can change what they decide."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.interference import DemandRule
from brim.beliefs.measured_sets import MeasuredSet, MeasuredSets
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.trace import JobClass
from brim.engine.journal import Journal, recover
from brim.engine.scheduler import Scheduler
from brim.errors import PlanError
from brim.policies.feed.even import Even
from brim.policies.presets import PRESETS, find_policy
from brim.sim.overheads import Overheads, PaddingCosts
from brim.sim.truth_option import TruthOption
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.sharing import Sharing
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace

MINUTE_MS = 60_000
AT_ONCE = ReplaySettings(overheads=Overheads(save_ms=0, padding=PaddingCosts(grace_ms=0, change_ms=0)))


@dataclass(frozen=True, slots=True)
class Watching(Even):
    """Loader workers as of Even; settled from a time on, or wrong."""

    until_ms: float = 0.0
    acts_when_idle: ClassVar[bool] = True

    def settled(self, snapshot, beliefs):
        if self.until_ms < 0:
            raise ValueError("no time is negative")
        return snapshot.now_ms >= self.until_ms


def watching(until_ms, journal=None):
    policy = replace(PRESETS["fifo"], feed=Watching(until_ms), period_ms=MINUTE_MS)
    scheduler = Scheduler(parse_cluster("1x2xT4"), policy, Beliefs(), users=("ann",), gap_ms=0, journal=journal)
    scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, gpus=1)))
    scheduler.decide(5)
    scheduler.observe(Event(5, Kind.STARTED, 0))
    return scheduler


def test_the_period_causes_rounds_until_one_changes_nothing_and_every_part_is_settled():
    scheduler = watching(3 * MINUTE_MS)
    for minute in (1, 2, 3):
        assert scheduler.due_ms() == 5 + minute * MINUTE_MS
        assert scheduler.decide(5 + minute * MINUTE_MS).settled == (minute == 3)
    assert scheduler.due_ms() is None
    scheduler.observe(Event(9 * MINUTE_MS, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=9, gpus=1)))
    assert scheduler.due_ms() == 9 * MINUTE_MS


def test_a_job_that_waits_has_rounds_although_all_is_settled():
    scheduler = watching(0)
    scheduler.observe(Event(9, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=9, gpus=2)))
    assert not scheduler.decide(9).settled
    assert scheduler.due_ms() == 9 + MINUTE_MS


def test_a_part_that_does_not_say_has_a_round_each_period():
    @dataclass(frozen=True, slots=True)
    class Silent(Even):
        acts_when_idle: ClassVar[bool] = True

    scheduler = watching(0)
    scheduler = Scheduler(
        parse_cluster("1x2xT4"), replace(scheduler.policy, feed=Silent()), Beliefs(), users=("ann",), gap_ms=0
    )
    scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, gpus=1)))
    for minute in range(3):
        assert scheduler.due_ms() == 5 + minute * MINUTE_MS
        scheduler.decide(5 + minute * MINUTE_MS)


def test_a_restored_and_a_recovered_scheduler_have_no_more_rounds_either():
    journal = Journal()
    scheduler = watching(0, journal)
    scheduler.decide(5 + MINUTE_MS)
    restored = Scheduler(scheduler.state.cluster, scheduler.policy, Beliefs(), users=("ann",), gap_ms=0)
    restored.restore(scheduler.save())
    recovered = Scheduler(scheduler.state.cluster, scheduler.policy, Beliefs(), users=("ann",), gap_ms=0)
    recover(journal.lines, recovered)
    assert [each.due_ms() for each in (scheduler, restored, recovered, scheduler.copy())] == [None] * 4


def test_an_error_in_it_names_the_part():
    scheduler = watching(-1.0)
    with pytest.raises(PlanError, match=r"policy 'fifo', feed\.settled: ValueError: no time is negative"):
        scheduler.decide(5 + MINUTE_MS)


ACTING = tuple(name for name, policy in PRESETS.items() if policy.acts_when_idle)
MEASURED = MeasuredSets(rule=DemandRule(per_neighbour=0.0), sets=(
    MeasuredSet("T4", ("a", "b"), (1.05, 1.1)), MeasuredSet("T4", ("a", "c"), (1.8, 2.5)),
))


HUNGRY = ("alexnet", "resnet18", "resnet50")


def jobs_of(models, **more):
    """Eighteen jobs, few of which wait for GPUs."""
    rng = np.random.default_rng(4)
    drawn = zip(np.cumsum(rng.exponential(400, 18)), rng.exponential(1_500, 18), strict=True)
    return small_trace(*(
        job(at=int(at), run=int(run), model=models[k % 3], **more) for k, (at, run) in enumerate(drawn)
    ))


def that_share(policy):
    """Some are to be undone as soon as they report."""
    trace = jobs_of("abc", gpu_util=300, gpu_mem=2_000)
    truth = Sharing(Rigid(trace), trace, MEASURED)
    return replay(trace, parse_cluster("1x4xT4"), policy, ReplaySettings(), truth=truth)


def that_load(policy):
    """Some wait for data, and give workers back some time after they got them."""
    trace, where = jobs_of(HUNGRY), parse_cluster("1x6xT4:cpus=24,mem=64GB")
    truth = TruthOption(loading="synergy").build(trace, where)
    return replay(trace, where, policy, ReplaySettings(library="synergy"), truth=truth)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("replayed", "name"), [
    (replayed, name) for name in ACTING for replayed, asks in ((that_share, "shares_gpus"), (that_load, "asks_loading"))
    if getattr(PRESETS[name], asks)
])
def test_no_round_changes_anything_after_the_policy_said_that_it_is_settled(replayed, name, monkeypatch):
    """Every preset that acts when no job waits, with all the rounds that it says it does not need."""
    seen, said, broken = Counter(), [False], []
    decide, fold = Scheduler.decide, Scheduler.fold

    def decided(self, now_ms, submit=None):
        for_no_event = said[0] and self.trigger.since_ms is None
        result = decide(self, now_ms, submit)
        said[0] = result.settled
        seen[result.settled] += 1
        if for_no_event and (result.plan or result.memory):
            broken.append((now_ms, list(result.plan), result.memory))
        return result

    def folded(self, *given):
        fold(self, *given)
        self._trigger.looks = True

    monkeypatch.setattr(Scheduler, "decide", decided)
    monkeypatch.setattr(Scheduler, "fold", folded)
    replayed(replace(PRESETS[name], period_ms=MINUTE_MS))
    assert not broken
    assert min(seen[True], seen[False]) > 10


@dataclass(frozen=True, slots=True)
class WatchingPadding(Watching):
    """The same, but settled whenever it sees no padding job."""

    def settled(self, snapshot, beliefs):
        return JobClass.PADDING not in snapshot.jobs.job_class or snapshot.now_ms >= self.until_ms


def test_padding_jobs_that_are_not_settled_cause_rounds_for_padding_alone():
    """Both GPUs are taken by then, and no event comes."""
    until_ms = 20 * MINUTE_MS
    policy = replace(find_policy("fifo+padding"), feed=WatchingPadding(until_ms), period_ms=MINUTE_MS)
    scheduler = Scheduler(parse_cluster("1x2xT4"), policy, Beliefs(), users=("ann",), gap_ms=0)
    for row, job_class in enumerate((JobClass.REGULAR, JobClass.PADDING)):
        spec = JobSpec(id=row, user=0, submit_ms=0, gpus=1, job_class=job_class)
        scheduler.observe(Event(0, Kind.SUBMITTED, row, spec=spec))
    scheduler.state.gaps.past_ms[:, :3] = MINUTE_MS * 60
    scheduler.decide(0)
    for row in range(2):
        scheduler.observe(Event(0, Kind.STARTED, row))
    rounds = []
    while (due_ms := scheduler.due_ms()) is not None and due_ms < 2 * until_ms:
        rounds.append((due_ms, scheduler.decide(due_ms).only_fills))
    assert [at_ms for at_ms, only_fills in rounds if not only_fills] == [MINUTE_MS], "the one after the start"
    assert until_ms <= rounds[-1][0] <= until_ms + MINUTE_MS


BESIDE = tuple(range(620, 760, 7))
"""Seconds at which the last job comes: some just after a round that padding could have caused."""


@pytest.mark.cases(3)
@pytest.mark.parametrize("at", BESIDE)
def test_regular_jobs_start_when_they_would_without_padding(at):
    ours = [job(at=0, run=1, name="first"), job(at=1, run=3_000, name="long"), job(at=at, run=50, name="last")]
    theirs = [
        job(at=570, run=900, name="short", model="alexnet", job_class=JobClass.PADDING, user="p"),
        job(at=630, run=900, name="later", model="alexnet", job_class=JobClass.PADDING, user="p"),
    ]
    ours.insert(2, job(at=600, run=20, name="wakes"))
    starts = []
    for jobs in (ours, ours + theirs):
        trace, where = small_trace(*jobs), parse_cluster("1x6xT4:cpus=24,mem=64GB")
        found = replay(trace, where, PRESETS["brim"], AT_ONCE)
        starts.append([int(found.first_start_ms[found.trace.job_id.index(one.name)]) for one in ours])
    assert starts[0] == starts[1]
