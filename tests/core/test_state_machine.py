"""The state under every legal story Hypothesis can think of, and the journal's word against it."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brim.core.checks import check_snapshot
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.core.lifecycle import TRANSITIONS, Phase
from brim.core.saved import state_bytes, state_of
from brim.core.setting import Setting, setting_of
from brim.core.state import ClusterState
from brim.core.trace import NONE
from brim.core.usage import USAGE_HALF_LIFE_MS
from brim.errors import InvariantError
from brim.testing.free_lists import FreeLists, PlaceRequest
from tests.sampling import sample


def plain(value: object) -> object:
    """A frozen snapshot as plain data, bit for bit."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


class Stories(RuleBasedStateMachine):
    """Jobs come, start, run, stop, fail and go; nodes break and come back. A plain model keeps count beside it."""

    @initialize()
    def begin(self):
        self.cluster = parse_cluster("2x2xT4+1x3xV100")
        self.state = ClusterState(self.cluster, ("ann", "bob"))
        self.now, self.next_id = 0, 0
        self.phase: dict[int, Phase] = {}
        self.attempt: dict[int, int] = {}
        self.sequence: dict[int, int] = {}
        self.placements: dict[int, int] = {}
        self.setting: dict[int, Setting] = {}
        self.service: dict[int, int] = {}
        self.ran: dict[int, int] = {}
        self.since: dict[int, int] = {}
        self.running_since: dict[int, int] = {}
        self.gpus: dict[int, int] = {}  # held now, as shares of a GPU
        self.share: dict[int, int] = {}  # as asked
        self.tunes: dict[int, int] = {}
        self.told: dict[int, tuple[float, float, int]] = {}  # samples done, samples per second, when
        self.grad: dict[int, tuple[float, float]] = {}
        self.profile: dict[int, int] = {}
        self.steps: dict[int, dict[tuple, list[tuple[float, float]]]] = {}
        self.past: dict[int, dict[tuple, list[tuple[float, float]]]] = {}  # by profile, of jobs that are over

    def _samples(self, job: int) -> float:
        done, rate, since = self.told[job]
        return done + rate * (self.now - since) / 1000 if self.phase[job] is Phase.RUNNING else done

    def _tell(self, kind: Kind, job: int, **more) -> None:
        """Apply the event and follow it in the model."""
        before = self.phase[job]
        done = self._samples(job)
        self.state.apply(Event(self.now, kind, job, **more))
        after = TRANSITIONS[before, kind]
        holding = (Phase.STARTING, Phase.RUNNING)
        if before in holding and (after not in holding or kind is Kind.RESIZE):
            self.service[job] += (self.now - self.since[job]) * self.gpus[job]
            self.gpus[job] = 0
            if before is Phase.RUNNING:
                self.ran[job] += self.now - self.running_since[job]
                self.told[job] = (done, self.told[job][1], self.now)
        if after is Phase.RUNNING and before is Phase.STARTING:
            self.running_since[job] = self.now
            self.told[job] = (done, self.told[job][1], self.now)
        if after is None:
            del self.phase[job]
            steps = self.steps.pop(job, {})
            if self.profile[job] != NONE:
                for key, seen in steps.items():
                    self.past.setdefault(self.profile[job], {}).setdefault(key, []).extend(seen)
        else:
            self.phase[job] = after
        if kind is Kind.TUNE:
            self.service[job] += (self.now - self.since[job]) * self.gpus[job]
            self.tunes[job] += 1
        if kind in (Kind.START, Kind.RESIZE, Kind.TUNE):
            self.gpus[job] = len(more["setting"].gpus) * more["setting"].share_milli / 1000
            self.since[job] = self.now
        if kind in (Kind.START, Kind.RESIZE):
            self.attempt[job] += kind is Kind.START
            self.placements[job] += 1
        if kind in (Kind.START, Kind.RESIZE, Kind.TUNE):
            self.setting[job] = more["setting"]
            self.sequence[job] += 1

    def _some(self, data, *phases: Phase) -> int:
        return data.draw(st.sampled_from(sorted(job for job, phase in self.phase.items() if phase in phases)))

    def _any(self, *phases: Phase) -> bool:
        return any(phase in phases for phase in self.phase.values())

    @rule(step=st.integers(0, 5_000))
    def time_passes(self, step):
        self.now += step

    @rule(gpus=st.integers(1, 4), share=st.sampled_from((1000, 500)), held=st.booleans(), user=st.integers(0, 1),
          profile=st.sampled_from((NONE, 0, 1)))
    def submit(self, gpus, share, held, user, profile):
        job, self.next_id = self.next_id, self.next_id + 1
        spec = JobSpec(id=job, user=user, submit_ms=self.now, gpus=gpus, share_milli=share, gpus_min=1, gpus_max=4,
                       batch=32, batch_min=8, batch_max=64, profile=profile)
        self.state.apply(Event(self.now, Kind.SUBMITTED, job, spec=spec, held=held))
        self.phase[job] = Phase.HELD if held else Phase.PENDING
        self.attempt[job] = self.sequence[job] = self.placements[job] = self.service[job] = self.ran[job] = 0
        self.gpus[job], self.share[job], self.setting[job], self.profile[job] = 0, share, Setting(()), profile
        self.tunes[job] = 0
        self.told[job], self.grad[job] = (0.0, 0.0, self.now), (math.nan, math.nan)

    @precondition(lambda self: self._any(Phase.HELD))
    @rule(data=st.data())
    def become_eligible(self, data):
        self._tell(Kind.ELIGIBLE, self._some(data, Phase.HELD))

    @precondition(lambda self: self._any(Phase.PENDING))
    @rule(data=st.data())
    def hold(self, data):
        self._tell(Kind.HELD, self._some(data, Phase.PENDING))

    @rule()
    def save_and_go_on_from_the_bytes(self):
        before, saved = self.state.freeze(self.now), state_bytes(self.state)
        self.state, _ = state_of(saved, self.cluster)
        assert plain(self.state.freeze(self.now)) == plain(before)
        assert state_bytes(self.state) == saved

    @precondition(lambda self: self._any(Phase.PENDING))
    @rule(data=st.data())
    def start(self, data):
        job = self._some(data, Phase.PENDING)
        pairs = self._gang(data, job)
        if pairs:
            self._tell(Kind.START, job, setting=self._setting(data, job, pairs))

    def _setting(self, data, job: int, pairs) -> Setting:
        """These GPUs, and ranks on CPU beside them."""
        cpu = [(node, NONE) for node in sorted({node for node, _ in pairs}) if data.draw(st.booleans())]
        return setting_of(
            sorted((*pairs, *cpu)), share_milli=self.share[job], batch=data.draw(st.sampled_from((NONE, 8, 64))),
            loader_workers=data.draw(st.integers(0, 3)), revocable=data.draw(st.booleans()),
        )

    def _gang(self, data, job: int) -> tuple[tuple[int, int], ...]:
        """One to four GPUs that are free, or are the job's own; none if there are none."""
        snapshot = self.state.freeze(self.now)
        row = snapshot.jobs.id.tolist().index(job)
        free_lists = FreeLists.of_snapshot(snapshot, gone=[row])
        request = PlaceRequest(snapshot, row, data.draw(st.integers(1, 4)))
        types = [name for name in ("T4", "V100") if free_lists.fits(request, name)]
        if not types:
            return ()
        places = free_lists.places(request, data.draw(st.sampled_from(types)))
        return tuple(sorted(data.draw(st.permutations(places))[: request.gpus]))

    @precondition(lambda self: self._any(Phase.STARTING, Phase.RUNNING))
    @rule(data=st.data())
    def resize(self, data):
        job = self._some(data, Phase.STARTING, Phase.RUNNING)
        pairs = self._gang(data, job)
        if pairs:
            self._tell(Kind.RESIZE, job, setting=self._setting(data, job, pairs))
            assert self.state.gpus_of(job) == pairs

    @precondition(lambda self: self._any(Phase.STARTING, Phase.RUNNING))
    @rule(data=st.data(), batch=st.integers(8, 64), loaders=st.integers(0, 3), revocable=st.booleans(),
          share=st.sampled_from((None, 1000, 500, 333, 250)))
    def tune(self, data, batch, loaders, revocable, share):
        job = self._some(data, Phase.STARTING, Phase.RUNNING)
        has = self.setting[job]
        share = min(share or has.share_milli, *(1000 - self._others(gpu, job) for gpu in has.gpus), 1000)
        ranks = tuple(
            rank._replace(loader_workers=loaders, share_milli=0 if rank.gpu == NONE else share) for rank in has.ranks
        )
        self._tell(Kind.TUNE, job, setting=Setting(ranks, batch, revocable))

    def _others(self, gpu: tuple[int, int], but: int) -> int:
        """Thousandths of a GPU that other jobs hold."""
        holding = (Phase.STARTING, Phase.RUNNING)
        return sum(
            setting.share_milli for job, setting in self.setting.items()
            if job != but and self.phase.get(job) in holding and gpu in setting.gpus
        )

    @precondition(lambda self: self._any(Phase.STARTING, Phase.RUNNING))
    @rule(data=st.data())
    def refuse_a_tune_that_moves(self, data):
        job = self._some(data, Phase.STARTING, Phase.RUNNING)
        has = self.setting[job]
        moved = has.ranks[0]._replace(node=has.ranks[0].node + 1)
        with pytest.raises(InvariantError, match="moves its ranks"):
            self.state.apply(Event(self.now, Kind.TUNE, job, setting=Setting((moved, *has.ranks[1:]), has.batch)))
        assert self.state.setting(job) == has

    @precondition(lambda self: self._any(Phase.STARTING, Phase.RUNNING, Phase.STOPPING))
    @rule(data=st.data(), done=st.integers(0, 400), rate=st.sampled_from((0.0, 0.25, 8.0)), knows=st.booleans(),
          steps=st.lists(st.tuples(st.integers(1, 2), st.integers(2, 4), st.just(4), st.integers(1, 9)), max_size=3))
    def report(self, data, done, rate, knows, steps):
        job = self._some(data, Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
        self.grad[job] = (0.5, 2.0) if knows else (math.nan, math.nan)
        seen = tuple(Sample(nodes, gpus, local, step / 8, step / 64) for nodes, gpus, local, step in steps)
        self._tell(Kind.REPORTED, job, report=Report(
            samples_done=done / 4, samples_per_s=rate, grad_var=self.grad[job][0], grad_sqr=self.grad[job][1],
            seen=seen,
        ))
        self.told[job] = (done / 4, rate, self.now)
        for one in seen:
            self.steps.setdefault(job, {}).setdefault(one[:3], []).append(one[3:])

    @precondition(lambda self: self._any(Phase.HELD, Phase.PENDING))
    @rule(data=st.data())
    def reject(self, data):
        self._tell(Kind.REJECT, self._some(data, Phase.HELD, Phase.PENDING))

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
    @rule(data=st.data(), kind=st.sampled_from(sorted({kind for _, kind in TRANSITIONS})))
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
        for column in ("attempt", "sequence", "placements"):
            numbers = getattr(self, column)
            assert getattr(jobs, column).tolist() == [numbers[job] for job in sorted(self.phase)]
        assert self.state.num_waiting == sum(phase is Phase.PENDING for phase in self.phase.values())
        assert len(self.state) == len(self.phase)
        for row, job in enumerate(sorted(self.phase)):
            holds = self.phase[job] in (Phase.STARTING, Phase.RUNNING)
            held = (self.now - self.since[job]) * self.gpus[job] if holds else 0
            assert (jobs.gpus_now[row] > 0) == holds
            settled = self.placements[job] + self.tunes[job]
            assert abs(jobs.service_gpu_ms[row] - self.service[job] - held) <= settled + 1
            assert jobs.share_now[row] == (self.setting[job].share_milli if holds else 0)
            runs = self.now - self.running_since[job] if self.phase[job] is Phase.RUNNING else 0
            assert jobs.run_ms[row] == self.ran[job] + runs
            assert jobs.gpus_now[row] == len(self.state.gpus_of(job)) == (len(self.setting[job].gpus) if holds else 0)
            assert jobs.batch_now[row] == self.setting[job].batch
            assert snapshot.setting_of(row) == self.state.setting(job) == (self.setting[job] if holds else None)
            assert jobs.loaders_now[row] == (self.setting[job].loader_workers if holds else 0)
            assert jobs.samples_done[row] == pytest.approx(self._samples(job), abs=1e-9)
            assert jobs.samples_per_s[row] == self.told[job][1]
            grad = jobs[row].grad_var, jobs[row].grad_sqr
            assert grad == self.grad[job] or (math.isnan(grad[0]) and math.isnan(self.grad[job][0]))
        assert sum(snapshot.users.usage_gpu_ms.tolist()) <= sum(self.service.values()) + 1e-6

    @invariant()
    def the_table_of_steps_has_the_mean_of_all_that_was_told(self):
        snapshot = self.state.freeze(self.now)
        seen, rows = snapshot.seen, dict(enumerate(snapshot.jobs.id.tolist()))
        expected = [
            (job, self.profile[job], *key, values) for job in sorted(self.steps) for key, values in
            sorted(self.steps[job].items())
        ] + [(NONE, profile, *key, values) for profile in sorted(self.past) for key, values in
             sorted(self.past[profile].items())]
        assert len(seen) == len(expected)
        for row, (job, profile, nodes, gpus, local_batch, values) in enumerate(expected):
            assert (rows.get(int(seen.job[row]), NONE), seen.profile[row]) == (job, profile)
            assert (seen.nodes[row], seen.gpus[row], seen.local_batch[row]) == (nodes, gpus, local_batch)
            assert seen.step_s[row] == pytest.approx(sum(step for step, _ in values) / len(values))
            assert seen.sync_s[row] == pytest.approx(sum(sync for _, sync in values) / len(values))


TestStories = pytest.mark.slow(Stories.TestCase)
TestStories.settings = settings(max_examples=sample(100, 33), stateful_step_count=40, deadline=None, derandomize=True)


def test_more_jobs_than_the_first_block_holds():
    state = ClusterState(parse_cluster("1x1xT4"), ("ann",))
    for job in range(2_000):
        state.apply(Event(job, Kind.SUBMITTED, job, spec=JobSpec(id=job, user=0, submit_ms=job, gpus=1)))
        if job % 3:
            state.apply(Event(job, Kind.CANCELLED, job))
    jobs = state.freeze(2_000).jobs
    assert jobs.id.tolist() == list(range(0, 2_000, 3))
    assert jobs.submit_ms.tolist() == jobs.id.tolist()
    state.apply(Event(2_000, Kind.START, 999, setting=setting_of(((0, 0),))))
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
    state.apply(Event(1, Kind.START, 0, setting=setting_of(((0, 0),))))
    state.apply(Event(1, Kind.NODE_DRAIN, node=0))
    assert before.jobs.phase.tolist() == [Phase.PENDING]
    assert before.nodes.is_open.tolist() == [True]
    with pytest.raises(ValueError, match="read-only"):
        before.jobs.phase[0] = 3


def test_past_usage_is_halved_every_half_life_however_often_it_is_read():
    state = ClusterState(parse_cluster("1x2xT4"), ("ann", "bob"))
    state.apply(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=0, gpus=2)))
    state.apply(Event(0, Kind.START, 0, setting=setting_of(((0, 0), (0, 1)))))
    state.apply(Event(3_000, Kind.FINISHED, 0))
    assert state.freeze(3_000).users.usage_gpu_ms.tolist() == [6_000, 0]
    for part in range(1, 5):
        state.freeze(3_000 + part * USAGE_HALF_LIFE_MS // 4)
    assert state.freeze(3_000 + USAGE_HALF_LIFE_MS).users.usage_gpu_ms[0] == pytest.approx(3_000)
    assert state.freeze(3_000 + 3 * USAGE_HALF_LIFE_MS).users.usage_gpu_ms[0] == pytest.approx(750)


def elastic_state(gpus: int = 2) -> ClusterState:
    """One job of one user, submitted at 0, started at 1 s on one GPU with batch 32, running from 2 s."""
    state = ClusterState(parse_cluster("1x4xT4"), ("ann",))
    spec = JobSpec(id=0, user=0, submit_ms=0, gpus=gpus, gpus_min=1, gpus_max=4, batch=32, batch_min=8, batch_max=64)
    state.apply(Event(0, Kind.SUBMITTED, 0, spec=spec))
    state.apply(Event(1_000, Kind.START, 0, setting=setting_of(((0, 0),), batch=32)))
    state.apply(Event(2_000, Kind.STARTED, 0))
    return state


def test_service_and_usage_count_the_gpus_held_not_those_asked():
    state = elastic_state(gpus=2)
    assert state.freeze(3_000).jobs.service_gpu_ms.tolist() == [2_000]
    state.apply(Event(3_000, Kind.RESIZE, 0, setting=setting_of(((0, 1), (0, 2), (0, 3)), batch=64)))
    now = state.freeze(4_000)
    assert now.jobs.service_gpu_ms.tolist() == [2_000 + 3_000]
    assert (now.jobs.gpus.tolist(), now.jobs.gpus_now.tolist(), now.jobs.placements.tolist()) == ([2], [3], [2])
    assert now.users.usage_gpu_ms.tolist() == pytest.approx([2_000], rel=1e-5)
    state.apply(Event(5_000, Kind.FINISHED, 0))
    assert state.freeze(5_000).users.usage_gpu_ms.tolist() == pytest.approx([8_000], rel=1e-5)


def test_samples_grow_while_a_job_runs_and_stand_still_while_it_starts():
    state = elastic_state()
    state.apply(Event(2_000, Kind.REPORTED, 0, report=Report(samples_done=1, samples_per_s=1)))
    state.apply(Event(3_000, Kind.REPORTED, 0, report=Report(samples_done=110, samples_per_s=10)))
    assert state.freeze(5_000).jobs.samples_done.tolist() == [130]
    state.apply(Event(5_000, Kind.RESIZE, 0, setting=setting_of(((0, 1),), batch=32)))
    assert state.freeze(9_000).jobs.samples_done.tolist() == [130]
    state.apply(Event(9_000, Kind.STARTED, 0))
    assert state.freeze(10_000).jobs.samples_done.tolist() == [140]
    state.apply(Event(10_000, Kind.PREEMPT, 0))
    state.apply(Event(11_000, Kind.STOPPED, 0))
    assert state.freeze(12_000).jobs.samples_done.tolist() == [140]


def test_limits_not_given_are_those_of_a_rigid_job():
    state = ClusterState(parse_cluster("1x4xT4"), ("ann",))
    state.apply(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=0, gpus=3)))
    state.apply(Event(0, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=0, gpus=3, gpus_min=2)))
    jobs = state.freeze(0).jobs
    assert (jobs.gpus_min.tolist(), jobs.gpus_max.tolist(), jobs.elastic.tolist()) == ([3, 2], [3, 3], [False, False])
    assert jobs.batch_now.tolist() == [NONE, NONE]


def test_reports_of_more_jobs_than_the_first_block_holds():
    state = ClusterState(parse_cluster("1x1xT4"), ("ann",))
    for job in range(1_000):
        state.apply(Event(job, Kind.SUBMITTED, job, spec=JobSpec(id=job, user=0, submit_ms=job, gpus=1, profile=0)))
        state.apply(Event(job, Kind.START, job, setting=setting_of(((0, 0),))))
        sample = Sample(1, 1, job % 2, float(job % 2 + 1), 0.0)
        state.apply(Event(job, Kind.REPORTED, job, report=Report(samples_done=job, samples_per_s=1, seen=(sample,))))
        state.apply(Event(job, Kind.PREEMPT if job % 5 == 0 else Kind.FINISHED, job))
    snapshot = state.freeze(1_000)
    assert snapshot.jobs.id.tolist() == list(range(0, 1_000, 5))
    assert snapshot.jobs.samples_done.tolist() == snapshot.jobs.id.tolist()
    assert snapshot.seen.job.tolist() == [*range(200), NONE, NONE]
    assert snapshot.seen.step_s.tolist() == pytest.approx([1, 2] * 101)


def test_a_saved_state_of_another_cluster_is_refused():
    saved = state_bytes(ClusterState(parse_cluster("1x1xT4")))
    with pytest.raises(InvariantError, match="has cluster '1x1xT4', expected '1x2xT4'"):
        state_of(saved, parse_cluster("1x2xT4"))
    for broken in (b"", b"PK", saved[:-40], saved[: len(saved) // 2]):
        with pytest.raises(InvariantError, match="cannot be read"):
            state_of(broken, parse_cluster("1x1xT4"))


def test_a_saved_state_with_one_wrong_byte_is_refused_in_a_line():
    saved = state_bytes(ClusterState(parse_cluster("1x1xT4")))
    for at in range(len(saved)):
        broken = saved[:at] + bytes([saved[at] ^ 255]) + saved[at + 1 :]
        with pytest.raises(InvariantError, match="cannot be read"):
            state_of(broken, parse_cluster("1x1xT4"))
