"""Settings, their differences, the ledger of cores, and what parts remember and declare."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import ACTIONS, Preempt, Reject, plan_of, setting_in
from brim.core.changes import RULES, needs_beyond, stages
from brim.core.checks import check_plan
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report
from brim.core.saved import state_bytes
from brim.core.setting import Rank, Setting, setting_of
from brim.core.state import ClusterState
from brim.core.tables import NOBODY
from brim.core.trace import NONE
from brim.engine.journal import Journal
from brim.engine.journal import replay as replay_journal
from brim.engine.round import run_round
from brim.engine.scheduler import Scheduler
from brim.errors import ConfigError, InvariantError, PlanError
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import WAKES
from brim.sim.twin import replay
from brim.testing import job, small_trace, snapshot_of, state_with

from .plans import resize, start, tune

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))

settings_ = st.builds(
    Setting,
    st.lists(
        st.builds(Rank, st.integers(0, 2), st.integers(-1, 2), st.sampled_from((500, 1000)), st.integers(0, 3)),
        max_size=4,
    ).map(tuple),
    st.sampled_from((NONE, 8, 16)), st.booleans(),
)


def _ranks(setting):
    return np.array(setting.ranks, dtype=np.int64).reshape(-1, 4)


def _stage(action, *ranks, batch=NONE):
    """The stage of an action on job 0, which has these ranks and this batch."""
    before = Setting(ranks, batch)
    held = np.column_stack((np.zeros(len(before.ranks), dtype=np.int64), _ranks(before))).T
    rows, batch_now = np.zeros(1, dtype=np.int64), np.array([before.batch])
    stage, _ = stages(plan_of(0, (action,)).bookings, rows, tuple(np.ascontiguousarray(held)), batch_now, RULES)
    return stage[0]


@given(settings_, settings_)
def test_a_setting_needs_something_beyond_another_if_a_count_of_it_is_larger(one, other):
    def places(setting):
        return Counter(rank[:2] for rank in setting.ranks)

    def shares(setting):
        return sum((Counter({rank[:2]: rank.share_milli}) for rank in setting.ranks), Counter())

    def loaders(setting):
        return sum((Counter({rank.node: rank.loader_workers}) for rank in setting.ranks), Counter())

    more = any(bool(count(one) - count(other)) for count in (places, shares, loaders))
    assert needs_beyond(_ranks(one), _ranks(other)) == more
    assert not needs_beyond(_ranks(one), _ranks(one))
    assert one.keeps_ranks_of(one)


# -- the plan ------------------------------------------------------------------------------------------------------


@given(settings_.filter(lambda setting: setting.ranks), settings_)
def test_a_change_that_only_gives_back_comes_before_one_that_takes(before, after):
    stage = _stage(replace(tune(0, 1, [(0, 0)]), setting=after), *before.ranks, batch=before.batch)
    gives = needs_beyond(_ranks(before), _ranks(after))
    takes = needs_beyond(_ranks(after), _ranks(before)) or after.batch != before.batch
    assert stage == {(True, False): 0, (False, False): 1, (True, True): 2, (False, True): 3}[gives, takes]


def test_the_stages_of_the_kinds():
    assert _stage(Preempt(0, 1)) == 0
    assert _stage(Reject(0, 1)) == 1
    assert _stage(start(0, 1, [(0, 0)])) == 3


FED = snapshot_of("1x2xT4:cpus=8", job(on=[(0, 0)], loaders=6), job(cpu=4_000), now=5)
"""Job 0 has six loader workers of eight cores, job 1 needs four cores."""
LESS, MORE = tune(0, 1, ((0, 0),), loaders=4), tune(0, 1, ((0, 0),), loaders=8)
START = start(1, 1, ((0, 1),))


@pytest.mark.parametrize(("actions", "said"), [
    ((LESS, START), ""), ((START, LESS), "tunes job 0 after a later kind of action"), ((MORE,), ""),
    ((START,), r"cores of node 0: 10000 granted of 8000"), ((START, MORE), "cores of node 0: 12000 granted of 8000"),
    ((Preempt(0, 1), START), ""),
], ids=["gives back first", "gives back last", "takes more", "beside all loaders", "both take", "after a preemption"])
def test_loader_workers_count_in_the_ledger_of_cores_if_the_policy_says_so(actions, said):
    plan = plan_of(5_000, actions)
    if not said:
        check_plan(FED, plan, count_loaders=True)
    else:
        with pytest.raises(PlanError, match=said):
            check_plan(FED, plan, count_loaders=True)
    if START not in actions or LESS not in actions:
        check_plan(FED, plan)  # today's presets divide the cores of their ranks: nothing is refused


HALF, REST = tune(0, 1, ((0, 0),), share=500), tune(0, 1, ((0, 0),), share=700)
BESIDE = start(1, 1, ((0, 0),), share=500)


@pytest.mark.parametrize(("actions", "said"), [
    ((HALF, BESIDE), ""), ((BESIDE, HALF), "tunes job 0 after a later kind of action"), ((HALF,), ""),
    ((BESIDE,), "GPU 0 of node 0 is granted 150 % of itself"),
    ((REST, BESIDE), "GPU 0 of node 0 is granted 120 % of itself"),
], ids=["room is made first", "room is made last", "less", "beside the whole", "beside too much"])
def test_a_job_gives_up_a_share_of_its_gpu_before_another_takes_it(actions, said):
    snapshot = snapshot_of("1x1xT4", job(on=[(0, 0)]), job(), now=5)
    if not said:
        check_plan(snapshot, plan_of(5_000, actions))
    else:
        with pytest.raises(PlanError, match=said):
            check_plan(snapshot, plan_of(5_000, actions))


def test_service_is_counted_with_the_share_that_a_job_had_at_each_time():
    state = state_with("1x1xT4", job(on=[(0, 0)], at=0), now=0)
    for at_s, share in ((10, 500), (14, 250), (18, 1000)):
        state.apply_plan(plan_of(1000 * at_s, (replace(
            tune(0, state.attempt(0), ((0, 0),), share=share), sequence=state.sequence(0) + 1,
        ),)))
    service_s = 10 + 4 * 0.5 + 4 * 0.25 + 2
    snapshot = state.freeze(20_000)
    assert snapshot.jobs.service_gpu_ms.tolist() == [1000 * service_s]
    assert (snapshot.jobs.attempt[0], snapshot.jobs.placements[0], snapshot.jobs.share_now[0]) == (1, 1, 1000)
    state.apply(Event(20_000, Kind.FAILED, 0))
    assert state.freeze(20_000).jobs.service_gpu_ms.tolist() == [1000 * service_s]
    assert state.freeze(20_000).users.usage_gpu_ms.sum() == pytest.approx(1000 * service_s, rel=1e-3)  # it fades


@pytest.mark.parametrize("action", [
    start(1, 1, ((0, 1),), 2, 16, share=500), resize(0, 2, ((0, 0), (0, 1)), 8, 1), LESS, HALF,
], ids=["Start", "Resize", "Tune", "Tune of the share"])
def test_a_setting_goes_through_plan_event_and_state_unchanged(action):
    state = ClusterState(parse_cluster("1x2xT4"), ("ann",))
    for number in range(2):
        spec = JobSpec(id=number, user=0, submit_ms=0, gpus=1, gpus_min=1, gpus_max=2)
        state.apply(Event(0, Kind.SUBMITTED, number, spec=spec))
    state.apply(Event(0, Kind.START, 0, setting=setting_of([(0, 0)])))
    state.apply_plan(plan_of(5, (action,)))
    assert state.setting(action.job) == action.setting
    snapshot = state.freeze(5)
    assert snapshot.setting_of(action.job) == action.setting
    assert (snapshot.jobs.attempt[action.job], snapshot.jobs.sequence[action.job]) == (1, action.sequence)


ALL_KINDS = (
    Preempt(0, 1), Reject(3, 0), resize(1, 2, ((0, 0), (1, 0)), 8), start(4, 1, ((0, 1),), loaders=2, share=500),
    tune(2, 1, ((0, 2),), loaders=3, revocable=True),
)


def with_jobs():
    """A state at 5 s in which these actions can be booked."""
    return state_with(
        "2x4xT4", job(on=[(0, 0)], user="bob"), job(on=[(0, 1)], gpus_max=2, gpus_min=1), job(on=[(0, 2)]), job(),
        job(share=500), now=5,
    )


def test_a_plan_is_booked_as_its_actions_would_be_one_after_the_other():
    together, in_turn = with_jobs(), with_jobs()
    together.apply_plan(plan_of(9_000, ALL_KINDS))
    for action in ALL_KINDS:
        in_turn.apply(Event(9_000, action.rule.books, action.job, setting=setting_in(action)))
    assert state_bytes(together) == state_bytes(in_turn) != state_bytes(with_jobs())
    assert (together.num_waiting, together.setting(1)) == (in_turn.num_waiting, ALL_KINDS[2].setting)


@pytest.mark.parametrize(("wrong", "said"), [
    (Preempt(0, 1), "acts twice on job 0"), (Preempt(9, 1), "job 9 is not in the tables"),
    (Preempt(10**14, 1), f"job {10**14} is not in the tables"),
    (Reject(2, 1), "job 2 cannot go through REJECT while RUNNING"),
    (tune(2, 1, ((0, 3),)), "TUNE of job 2 moves its ranks"),
])
def test_a_plan_of_which_one_action_cannot_be_booked_changes_nothing(wrong, said):
    state = with_jobs()
    before = state_bytes(state)
    with pytest.raises(InvariantError, match=said):
        state.apply_plan(plan_of(9_000, (*ALL_KINDS[:-1], wrong)))
    assert state_bytes(state) == before


def test_every_action_has_a_rule_and_an_event_of_its_own():
    assert len({kind.rule.books for kind in ACTIONS}) == len({kind.rule.verb for kind in ACTIONS}) == len(ACTIONS)
    assert all(kind.rule.phases for kind in ACTIONS)
    assert [kind.__name__ for kind in ACTIONS if kind.rule.begins_attempt] == ["Start"]


def test_the_twin_refuses_to_begin_with_a_kind_of_action_that_it_cannot_carry_out(monkeypatch):
    """The controller's ``match`` is complete, which the type checker sees."""
    monkeypatch.setattr("brim.sim.plan_executor.ACTIONS", (*ACTIONS, type("Suspend", (), {})))
    with pytest.raises(InvariantError, match="no function for Suspend"):
        replay(small_trace(job()), parse_cluster("1x1"), SKIP, journal=Journal())


# -- what parts declare --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fed(Even):
    """As many loader workers for every job as the clock says."""

    def __call__(self, snapshot, beliefs, grants):
        return np.full(len(snapshot.jobs), snapshot.now_ms // 1000)


class Tuning(Fed):
    tunes_running: ClassVar[bool] = True


def test_running_jobs_get_other_loader_workers_only_from_a_policy_that_says_so():
    snapshot = snapshot_of("1x2xT4", job(on=[(0, 0)], loaders=2), job(), now=5)
    (begins,) = run_round(snapshot, Beliefs(), replace(SKIP, feed=Fed())).plan.actions
    assert begins == start(1, 1, ((0, 1),), 5)
    tuned, begins = run_round(snapshot, Beliefs(), replace(SKIP, feed=Tuning())).plan.actions
    assert {tuned, begins} == {tune(0, 1, ((0, 0),), loaders=5), start(1, 1, ((0, 1),), 5)}
    fewer = snapshot_of("1x2xT4", job(on=[(0, 0)], loaders=7), job(), now=5)
    assert run_round(fewer, Beliefs(), replace(SKIP, feed=Tuning())).plan.actions == (
        tune(0, 1, ((0, 0),), loaders=5), start(1, 1, ((0, 1),), 5),
    )


@dataclass(frozen=True)
class Lends(NoFill):
    """Marks every grant of the first job as revocable, on GPUs that nobody else has."""

    def __call__(self, snapshot, beliefs, grants):
        first = np.flatnonzero(~np.isin(np.arange(len(snapshot.jobs)), grants.job))[:1]
        if not len(first):
            return grants
        columns = {"job": first, "node": [0], "gpu": [1], "share_milli": [1000]}
        added = {name: np.append(getattr(grants, name), values).astype(np.int64) for name, values in columns.items()}
        return replace(grants, **added, revocable=np.append(np.zeros(len(grants), dtype=bool), True))


@dataclass(frozen=True)
class OnlyFirst(AsAsked):
    """The first job, nobody else."""

    resizes_running: ClassVar[bool] = False

    def __call__(self, snapshot, beliefs, order):
        sizes = super().__call__(snapshot, beliefs, order)
        return replace(sizes, gpus=np.where(np.arange(len(snapshot.jobs)) == 0, sizes.gpus, 0))


@dataclass(frozen=True)
class Regular(Consolidate):
    """Marks no grant as revocable."""

    def __call__(self, snapshot, beliefs, order, sizes):
        return replace(super().__call__(snapshot, beliefs, order, sizes), revocable=NOBODY)


def test_a_revocable_grant_stays_so_until_a_place_part_makes_it_regular_without_a_stop():
    state = ClusterState(parse_cluster("1x2xT4"), ("ann",))
    for number in range(2):
        state.apply(Event(0, Kind.SUBMITTED, number, spec=JobSpec(id=number, user=0, submit_ms=0, gpus=1)))
    result = run_round(state.freeze(0), Beliefs(), replace(SKIP, size=OnlyFirst(), fill=Lends()))
    assert [action.setting.revocable for action in result.plan.actions] == [False, True]
    state.apply_plan(result.plan)
    assert state.freeze(0).grants.revocable.tolist() == [False, True]
    assert run_round(state.freeze(5), Beliefs(), SKIP).plan.actions == ()
    again = run_round(state.freeze(5), Beliefs(), replace(SKIP, place=Regular("skip")))
    assert again.plan.actions == (tune(1, 1, ((0, 1),)),)
    check_plan(state.freeze(5), again.plan)
    state.apply_plan(again.plan)
    assert not len(state.freeze(5).grants.revocable)


@dataclass(frozen=True)
class Counts(Arrival):
    """Counts rounds, and the rounds in which a job waited."""

    memory_columns: ClassVar[int] = 2

    def remember(self, snapshot):
        return snapshot.jobs.memo + np.stack((np.ones(len(snapshot.jobs), dtype=np.int64), snapshot.jobs.waits), axis=1)

    def __call__(self, snapshot, beliefs):
        assert snapshot.jobs.memo.shape == (len(snapshot.jobs), 2)
        return super().__call__(snapshot, beliefs)


@dataclass(frozen=True)
class Adds(Consolidate):
    """Adds ten in every round, and sees its own count only."""

    def remember(self, snapshot):
        return snapshot.jobs.memo + 10

    def __call__(self, snapshot, beliefs, order, sizes):
        assert (snapshot.jobs.memo % 10 == 0).all()
        return super().__call__(snapshot, beliefs, order, sizes)


def test_every_part_has_a_memory_of_its_own_that_the_journal_replays():
    policy = replace(SKIP, order=Counts(), place=Adds("skip"))
    trace = small_trace(job(run=10), job(run=5), job(at=2, run=1), job(at=3, run=40))
    journal = Journal()
    replay(trace, parse_cluster("1x1xT4"), policy, journal=journal)
    again = Scheduler(parse_cluster("1x1xT4"), policy, Beliefs(), users=trace.users)
    seen = []
    for line, now in replay_journal(journal.lines, again):
        assert line == now
        memory = json.loads(line)["memory"]
        assert sorted(memory) == ["order", "place"]
        seen.append(memory)
    assert seen[0]["order"]["0"] == [1, 1]
    assert [memory["place"]["3"] for memory in seen if "3" in memory["place"]] == [
        10 * (n + 1) for n in range(sum("3" in memory["place"] for memory in seen))
    ]


@dataclass(frozen=True)
class Remembers(Arrival):
    """Counts rounds in each of its columns."""

    memory_columns: int = 1

    def remember(self, snapshot):
        shape = (len(snapshot.jobs),) if self.memory_columns == 1 else (len(snapshot.jobs), self.memory_columns)
        return snapshot.jobs.memo.reshape(shape) + 1


@dataclass(frozen=True)
class SizesByMemo(AsAsked):
    """Keeps the memos that it sees."""

    seen: list = field(default_factory=list)

    def __call__(self, snapshot, beliefs, order):
        self.seen.append(snapshot.jobs.memo.tolist())
        return super().__call__(snapshot, beliefs, order)


@pytest.mark.parametrize(("columns", "seen"), [(1, [[1], [2]]), (2, [[[1, 1]], [[2, 2]]])])
def test_a_part_that_remembers_nothing_sees_what_the_order_part_remembers_in_this_round(columns, seen):
    size = SizesByMemo()
    scheduler = Scheduler(
        parse_cluster("1x1xT4"), replace(SKIP, order=Remembers(columns), size=size), Beliefs(), users=("ann",), gap_ms=0
    )
    scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, gpus=1)))
    scheduler.decide(5)
    scheduler.decide(6)
    assert size.seen == seen


@pytest.mark.parametrize("columns", [0, -1])
def test_a_part_that_remembers_in_less_than_one_column_is_named(columns):
    policy = replace(SKIP, order=Remembers(columns))
    with pytest.raises(PlanError, match=f"'mine', order: memory_columns is {columns}, expected at least 1"):
        run_round(snapshot_of("1x1xT4", job(run=1)), Beliefs(), policy)


@dataclass(frozen=True)
class WatchesReports(NoFill):
    wakes_on: ClassVar[frozenset[Kind]] = frozenset({Kind.REPORTED})
    acts_when_idle: ClassVar[bool] = True


def test_a_part_may_be_woken_by_other_events_and_when_nobody_waits():
    for fill, due_ms in ((NoFill(), None), (WatchesReports(), 9)):
        policy = replace(SKIP, fill=fill)
        scheduler = Scheduler(parse_cluster("1x1xT4"), policy, Beliefs(), users=("ann",), gap_ms=0)
        scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, gpus=1)))
        scheduler.decide(5)
        scheduler.observe(Event(9, Kind.REPORTED, 0, report=Report(samples_done=1, samples_per_s=1)))
        assert scheduler.due_ms() == due_ms
    assert SKIP.wakes_on == WAKES
    assert replace(SKIP, fill=WatchesReports()).wakes_on == WAKES | {Kind.REPORTED}


def test_what_is_no_kind_of_event_wakes_nobody():
    with pytest.raises(ConfigError, match="wakes_on has 'report', expected kinds of event"):
        replace(SKIP, fill=type("Mine", (NoFill,), {"wakes_on": ("report",)})())
