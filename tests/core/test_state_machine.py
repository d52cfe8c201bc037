"""The state under every legal story Hypothesis can think of, and the journal's word against it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brim.core.checks import check_snapshot
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.lifecycle import TRANSITIONS, Phase
from brim.core.state import USAGE_HALF_LIFE_MS, ClusterState
from brim.errors import InvariantError
from brim.testing.room import Ask, FreeRoom


class Stories(RuleBasedStateMachine):
    """Jobs come, start, run, stop, fail and go; nodes break and come back. A plain model keeps count beside it."""

    @initialize()
    def begin(self):
        self.cluster = parse_cluster("2x2xT4+1x3xV100")
        self.state = ClusterState(self.cluster, ("ann", "bob"))
        self.now, self.next_id = 0, 0
        self.phase: dict[int, Phase] = {}
        self.epoch: dict[int, int] = {}
        self.service: dict[int, int] = {}
        self.ran: dict[int, int] = {}
        self.since: dict[int, int] = {}
        self.running_since: dict[int, int] = {}
        self.gpus: dict[int, int] = {}

    def _tell(self, kind: Kind, job: int, **more) -> None:
        """Apply the event and follow it in the model."""
        before = self.phase[job]
        self.state.apply(Event(self.now, kind, job, **more))
        after = TRANSITIONS[before, kind]
        if before in (Phase.STARTING, Phase.RUNNING) and after not in (Phase.STARTING, Phase.RUNNING):
            self.service[job] += (self.now - self.since[job]) * self.gpus[job]
            if before is Phase.RUNNING:
                self.ran[job] += self.now - self.running_since[job]
        if after is Phase.RUNNING and before is Phase.STARTING:
            self.running_since[job] = self.now
        if after is None:
            del self.phase[job]
        else:
            self.phase[job] = after

    def _some(self, data, *phases: Phase) -> int:
        return data.draw(st.sampled_from(sorted(job for job, phase in self.phase.items() if phase in phases)))

    def _any(self, *phases: Phase) -> bool:
        return any(phase in phases for phase in self.phase.values())

    @rule(step=st.integers(0, 5_000))
    def time_passes(self, step):
        self.now += step

    @rule(gpus=st.integers(1, 4), share=st.sampled_from((1000, 500)), held=st.booleans(), user=st.integers(0, 1))
    def submit(self, gpus, share, held, user):
        job, self.next_id = self.next_id, self.next_id + 1
        spec = JobSpec(id=job, user=user, submit_ms=self.now, gpus=gpus, share_milli=share)
        self.state.apply(Event(self.now, Kind.SUBMITTED, job, spec=spec, held=held))
        self.phase[job] = Phase.HELD if held else Phase.PENDING
        self.epoch[job] = self.service[job] = self.ran[job] = 0
        self.gpus[job] = gpus * share / 1000

    @precondition(lambda self: self._any(Phase.HELD))
    @rule(data=st.data())
    def become_eligible(self, data):
        self._tell(Kind.ELIGIBLE, self._some(data, Phase.HELD))

    @precondition(lambda self: self._any(Phase.PENDING))
    @rule(data=st.data())
    def start(self, data):
        job = self._some(data, Phase.PENDING)
        snapshot = self.state.freeze(self.now)
        row = snapshot.jobs.id.tolist().index(job)
        room, ask = FreeRoom.of_snapshot(snapshot), Ask(snapshot, row)
        types = [name for name in ("T4", "V100") if room.fits(ask, name)]
        if not types:
            return
        pairs = room.places(ask, data.draw(st.sampled_from(types)))[: ask.gpus]
        self._tell(Kind.START, job, gpus=tuple(sorted(pairs)))
        self.epoch[job] += 1
        self.since[job] = self.now

    @precondition(lambda self: self._any(Phase.STARTING, Phase.STOPPING))
    @rule(data=st.data())
    def report_started(self, data):
        self._tell(Kind.STARTED, self._some(data, Phase.STARTING, Phase.STOPPING))

    @precondition(lambda self: self._any(Phase.STARTING, Phase.RUNNING))
    @rule(data=st.data())
    def preempt(self, data):
        self._tell(Kind.PREEMPT, self._some(data, Phase.STARTING, Phase.RUNNING))

    @precondition(lambda self: self._any(Phase.STOPPING))
    @rule(data=st.data())
    def stopped(self, data):
        self._tell(Kind.STOPPED, self._some(data, Phase.STOPPING))

    @precondition(lambda self: self._any(Phase.STARTING, Phase.RUNNING, Phase.STOPPING))
    @rule(data=st.data(), kind=st.sampled_from((Kind.FINISHED, Kind.FAILED, Kind.GAVE_UP, Kind.EVICTED)))
    def leave(self, data, kind):
        self._tell(kind, self._some(data, Phase.STARTING, Phase.RUNNING, Phase.STOPPING))

    @precondition(lambda self: self.phase)
    @rule(data=st.data())
    def cancel(self, data):
        self._tell(Kind.CANCELLED, self._some(data, *Phase))

    @rule(node=st.integers(0, 2))
    def lose_a_node(self, node):
        self.state.apply(Event(self.now, Kind.NODE_DOWN, node=node))
        for job in sorted(self.phase):
            if any(where == node for where, _ in self.state.gpus_of(job)):
                self._tell(Kind.EVICTED, job)

    @rule(node=st.integers(0, 2), kind=st.sampled_from((Kind.NODE_UP, Kind.NODE_DRAIN)))
    def change_a_node(self, node, kind):
        self.state.apply(Event(self.now, kind, node=node))

    @precondition(lambda self: self.phase)
    @rule(data=st.data(), kind=st.sampled_from(sorted(set(Kind) - {Kind.SUBMITTED, Kind.NODE_DOWN, Kind.NODE_UP,
                                                                   Kind.NODE_DRAIN})))
    def refuse_what_the_lifecycle_has_not(self, data, kind):
        job = self._some(data, *Phase)
        if (self.phase[job], kind) in TRANSITIONS:
            return
        before = self.state.freeze(self.now)
        with pytest.raises(InvariantError, match=f"job {job} cannot go through {kind.name}"):
            self.state.apply(Event(self.now, kind, job))
        after = self.state.freeze(self.now)
        assert after.jobs.phase.tolist() == before.jobs.phase.tolist()
        assert after.grants.job.tolist() == before.grants.job.tolist()

    @invariant()
    def the_snapshot_is_sound_and_agrees_with_the_model(self):
        snapshot = self.state.freeze(self.now)
        check_snapshot(snapshot)
        jobs = snapshot.jobs
        assert jobs.id.tolist() == sorted(self.phase)
        assert jobs.phase.tolist() == [self.phase[job] for job in sorted(self.phase)]
        assert jobs.epoch.tolist() == [self.epoch[job] for job in sorted(self.phase)]
        assert self.state.num_waiting == sum(phase is Phase.PENDING for phase in self.phase.values())
        assert len(self.state) == len(self.phase)
        for row, job in enumerate(sorted(self.phase)):
            holds = self.phase[job] in (Phase.STARTING, Phase.RUNNING)
            held = (self.now - self.since[job]) * self.gpus[job] if holds else 0
            assert abs(jobs.service_gpu_ms[row] - self.service[job] - held) <= self.epoch[job] + 1
            runs = self.now - self.running_since[job] if self.phase[job] is Phase.RUNNING else 0
            assert jobs.run_ms[row] == self.ran[job] + runs


TestStories = Stories.TestCase
TestStories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_more_jobs_than_the_first_block_holds():
    state = ClusterState(parse_cluster("1x1xT4"), ("ann",))
    for job in range(2_000):
        state.apply(Event(job, Kind.SUBMITTED, job, spec=JobSpec(id=job, user=0, submit_ms=job, gpus=1)))
        if job % 3:
            state.apply(Event(job, Kind.CANCELLED, job))
    jobs = state.freeze(2_000).jobs
    assert jobs.id.tolist() == list(range(0, 2_000, 3))
    assert jobs.submit_ms.tolist() == jobs.id.tolist()
    state.apply(Event(2_000, Kind.START, 999, gpus=((0, 0),)))
    assert state.gpus_of(999) == ((0, 0),)


def test_time_does_not_run_backwards():
    state = ClusterState(parse_cluster("1x1xT4"))
    state.apply(Event(10, Kind.NODE_DRAIN, node=0))
    with pytest.raises(InvariantError, match="comes after"):
        state.apply(Event(9, Kind.NODE_UP, node=0))


def test_a_job_is_submitted_once_and_in_order():
    state = ClusterState(parse_cluster("1x1xT4"), ("ann",))
    spec = JobSpec(id=5, user=0, submit_ms=0, gpus=1)
    state.apply(Event(0, Kind.SUBMITTED, 5, spec=spec))
    for again in (5, 4):
        with pytest.raises(InvariantError):
            state.apply(Event(0, Kind.SUBMITTED, again, spec=JobSpec(id=again, user=0, submit_ms=0, gpus=1)))


def test_a_snapshot_does_not_change_when_the_state_does():
    state = ClusterState(parse_cluster("1x1xT4"), ("ann",))
    state.apply(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=0, gpus=1)))
    before = state.freeze(0)
    state.apply(Event(1, Kind.START, 0, gpus=((0, 0),)))
    state.apply(Event(1, Kind.NODE_DRAIN, node=0))
    assert before.jobs.phase.tolist() == [Phase.PENDING]
    assert before.nodes.is_open.tolist() == [True]
    with pytest.raises(ValueError, match="read-only"):
        before.jobs.phase[0] = 3


def test_past_usage_is_halved_every_half_life_however_often_it_is_read():
    state = ClusterState(parse_cluster("1x2xT4"), ("ann", "bob"))
    state.apply(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=0, gpus=2)))
    state.apply(Event(0, Kind.START, 0, gpus=((0, 0), (0, 1))))
    state.apply(Event(3_000, Kind.FINISHED, 0))
    assert state.freeze(3_000).users.usage_gpu_ms.tolist() == [6_000, 0]
    for part in range(1, 5):
        state.freeze(3_000 + part * USAGE_HALF_LIFE_MS // 4)
    assert state.freeze(3_000 + USAGE_HALF_LIFE_MS).users.usage_gpu_ms[0] == pytest.approx(3_000)
    assert state.freeze(3_000 + 3 * USAGE_HALF_LIFE_MS).users.usage_gpu_ms[0] == pytest.approx(750)
