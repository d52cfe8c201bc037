"""When rounds are due, and what a plan may not do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Preempt, Reject, Resize, Start, Tune, plan_of
from brim.core.checks import check_plan
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.setting import Rank, Setting, setting_of
from brim.engine.explain import explain
from brim.engine.round import run_round
from brim.engine.scheduler import Scheduler
from brim.engine.trigger import Trigger
from brim.errors import ConfigError, PlanError
from brim.policies.presets import PRESETS
from brim.testing import job, snapshot_of
from brim.testing.elastic import Line, scripted

from .plans import resize, start, tune

BUSY = snapshot_of(
    "1x2xT4:cpus=4,mem=8GB+1x2xV100", job(on=[(0, 0)], cpu=3_000), job(at=1), job(at=1, gpus=2),
    job(at=1, gpu_type="V100"), job(at=1, cpu=2_000), job(at=1, after="j0"), job(at=1, share=700), job(at=1, share=700),
    job(at=1, mem=9_000), now=5, draining=[],
)
DRAINING = snapshot_of("2x1xT4", job(at=1), now=5, draining=[0])

ELASTIC = snapshot_of(
    "2x4xT4",
    job(name="runs", on=[(0, 0), (0, 1)], gpus=1, gpus_min=1, gpus_max=4, batch=32, batch_min=8, batch_max=64),
    job(name="rigid", on=[(0, 2)]), job(name="batch", on=[(0, 3)], batch=32),
    job(name="waits", gpus=2, gpus_min=1, gpus_max=3, batch=128, batch_min=8, batch_max=64),
    job(name="loads", on=[(1, 0)], gpus=2, gpus_min=1, gpus_max=3, phase=Phase.STARTING),
    job(name="stops", on=[(1, 1)], gpus=1, gpus_min=1, gpus_max=3, phase=Phase.STOPPING), job(after="waits"),
    job(gpus=4, gpus_min=3, gpus_max=4), now=5,
)
"""Jobs 0 to 7; node 0 is full, of node 1 GPU 0 is held and GPU 1 is being left."""
LEAVING = snapshot_of(
    "2x2xT4", job(on=[(0, 0), (1, 0)], gpus=1, gpus_min=1, gpus_max=4), now=5, draining=[0],
)
CPU_RANKS = snapshot_of(
    "1x2xT4:cpus=3", job(on=[(0, -1), (0, 0)], cpu=1_000, cpu_ranks=1), job(gpus=1), job(gpus=1, cpu_ranks=2), now=5,
)
"""Job 0 holds GPU 0 and two of three cores: one for the rank on the GPU, one for the rank on CPU."""
ONE_GPU, TWO_GPUS = setting_of([(0, 0)], batch=32), setting_of([(0, 0), (0, 1)], batch=16)

REFUSED = {
    "resize of a stranger": (ELASTIC, (resize(9, 2, ((1, 2),)),), "not in the snapshot"),
    "resize and preempt": (ELASTIC, (Preempt(0, 1), resize(0, 2, ((0, 0),), 32)), "acts twice"),
    "resize and tune": (ELASTIC, (resize(0, 2, ((0, 0),), 32), tune(0, 1, ((0, 0), (0, 1)), 16)), "acts twice"),
    "start before resize": (
        ELASTIC, (start(3, 1, ((1, 2), (1, 3)), batch=8), resize(0, 2, ((0, 0),), 32)), "frees come before takes",
    ),
    "a move before reject": (ELASTIC, (resize(0, 2, ((1, 2),), 32), Reject(3, 0)), "frees come before takes"),
    "a move before preempt": (ELASTIC, (resize(0, 2, ((1, 2),), 32), Preempt(1, 1)), "frees come before takes"),
    "a growth before what it grows onto is left": (
        ELASTIC, (resize(0, 2, ((0, 0), (0, 1), (0, 2)), 64), resize(1, 2, ((1, 3),))), "frees come before takes",
    ),
    "resize of an older attempt": (ELASTIC, (Resize(0, 0, 2, ONE_GPU),), "attempt 0"),
    "resize that begins an attempt": (ELASTIC, (Resize(0, 2, 2, ONE_GPU),), "attempt 2"),
    "resize with the old number": (ELASTIC, (Resize(0, 1, 1, ONE_GPU),), "setting 1"),
    "resize with a number left out": (ELASTIC, (Resize(0, 1, 3, ONE_GPU),), "setting 3"),
    "resizes who waits": (ELASTIC, (resize(3, 1, ((1, 2),), 8),), "PENDING"),
    "resizes who stops": (ELASTIC, (resize(5, 2, ((1, 2),)),), "STOPPING"),
    "resizes who is held": (ELASTIC, (resize(6, 1, ((1, 2),)),), "HELD"),
    "a rigid job grows": (ELASTIC, (resize(1, 2, ((0, 2), (1, 2))),), "gang of 1 GPU"),
    "too many GPUs": (ELASTIC, (start(3, 1, ((1, 0), (1, 1), (1, 2), (1, 3)), batch=8),), "gang of 1 to 3"),
    "too few GPUs": (ELASTIC, (start(7, 1, ((1, 2), (1, 3))),), "gang of 3 to 4"),
    "no GPUs at all": (ELASTIC, (resize(0, 2, (), 32),), "gang of 1 to 4"),
    "resize to the same GPU twice": (ELASTIC, (resize(0, 2, ((0, 0), (0, 0)), 32),), "gang of 1 to 4"),
    "resize not in order": (ELASTIC, (resize(0, 2, ((0, 1), (0, 0)), 32),), "increasing order"),
    "resize to what another holds": (ELASTIC, (resize(0, 2, ((0, 1), (0, 2)), 32),), "200 %"),
    "two resized to one GPU": (
        ELASTIC, (resize(0, 2, ((1, 2),), 32), resize(1, 2, ((1, 2),))), "200 %",
    ),
    "resize beyond the cores": (
        snapshot_of("1x2xT4:cpus=3", job(on=[(0, 0)], gpus=1, gpus_min=1, gpus_max=2, cpu=2_000), now=5),
        (resize(0, 2, ((0, 0), (0, 1))),), "cores of node 0",
    ),
    "resize below the batches": (ELASTIC, (resize(0, 2, ((0, 0),), 7),), "8 to 64"),
    "start above the batches": (ELASTIC, (start(3, 1, ((1, 2),), batch=127),), "8 to 64"),
    "start without its batch": (ELASTIC, (start(3, 1, ((1, 2),)),), "8 to 64"),
    "tune above the batches": (ELASTIC, (tune(0, 1, ((0, 0), (0, 1)), 65),), "8 to 64"),
    "tune to no batch": (ELASTIC, (tune(0, 1, ((0, 0), (0, 1)), -1),), "8 to 64"),
    "tune to nothing": (ELASTIC, (tune(0, 1, ((0, 0), (0, 1)), 0),), "8 to 64"),
    "tunes who has no batch": (ELASTIC, (tune(1, 1, ((0, 2),), 16),), "no size of its own"),
    "tunes who has no range": (ELASTIC, (tune(2, 1, ((0, 3),), 16),), "32 to 32"),
    "tune with the next attempt": (ELASTIC, (tune(0, 2, ((0, 0), (0, 1)), 16),), "attempt 2"),
    "tune with the old number": (ELASTIC, (Tune(0, 1, 1, TWO_GPUS),), "setting 1"),
    "tune that moves": (ELASTIC, (tune(0, 1, ((0, 0), (1, 2)), 16),), "moves its ranks"),
    "tune that leaves a GPU": (ELASTIC, (tune(0, 1, ((0, 0),), 16),), "moves its ranks"),
    "tunes who waits": (ELASTIC, (tune(3, 0, ((1, 2),), 16),), "PENDING"),
    "tunes who stops": (ELASTIC, (tune(5, 1, ((1, 1),), 16),), "STOPPING"),
    "rejects who runs": (ELASTIC, (Reject(0, 1),), "RUNNING"),
    "rejects who starts": (ELASTIC, (Reject(4, 1),), "STARTING"),
    "rejects who stops": (ELASTIC, (Reject(5, 1),), "STOPPING"),
    "rejects with another attempt": (ELASTIC, (Reject(3, 1),), "attempt 1"),
    "rejects and starts": (ELASTIC, (Reject(3, 0), start(3, 1, ((1, 2), (1, 3)), batch=8)), "acts twice"),
    "grows on a draining node": (LEAVING, (resize(0, 2, ((0, 0), (0, 1))),), "down or draining"),
    "moves to a draining node": (LEAVING, (resize(0, 2, ((0, 1), (1, 0))),), "down or draining"),
    "unknown job": (BUSY, (start(99, 1, ((0, 1),)),), "not in the snapshot"),
    "twice": (BUSY, (start(1, 1, ((0, 1),)), start(1, 1, ((1, 0),))), "acts twice"),
    "take before free": (BUSY, (start(1, 1, ((0, 1),)), Preempt(0, 1)), "frees come before takes"),
    "stale preemption": (BUSY, (Preempt(0, 0),), "attempt 0"),
    "preempts who waits": (BUSY, (Preempt(1, 0),), "PENDING"),
    "starts who runs": (BUSY, (start(0, 2, ((0, 1),)),), "RUNNING"),
    "starts who is held": (BUSY, (start(5, 1, ((0, 1),)),), "HELD"),
    "stale start": (BUSY, (start(1, 2, ((0, 1),)),), "attempt 2"),
    "half a gang": (BUSY, (start(2, 1, ((1, 0),)),), "gang of 2"),
    "the same GPU twice": (BUSY, (start(2, 1, ((1, 0), (1, 0))),), "gang of 2"),
    "not in order": (BUSY, (start(2, 1, ((1, 1), (1, 0))),), "increasing order"),
    "no such GPU": (BUSY, (start(1, 1, ((0, 2),)),), "does not exist"),
    "no such node": (BUSY, (start(1, 1, ((2, 0),)),), "does not exist"),
    "mixed types": (BUSY, (start(2, 1, ((0, 1), (1, 0))),), "types"),
    "wrong type": (BUSY, (start(3, 1, ((0, 1),)),), "types"),
    "taken GPU": (BUSY, (start(1, 1, ((0, 0),)),), "200 %"),
    "shares above the whole": (BUSY, tuple(start(job, 1, ((1, 0),), share=700) for job in (6, 7)), "140 %"),
    "no share": (BUSY, (start(6, 1, ((1, 0),), share=0),), "0 % of its GPUs"),
    "two shares in a gang": (
        BUSY, (Start(2, 1, 1, Setting((Rank(1, 0, 500), Rank(1, 1, 700)))),), "50 and 70 % of its GPUs",
    ),
    "a rank on CPU that the job may not have": (CPU_RANKS, (start(1, 1, ((0, -1), (0, 1))),), "0 ranks on CPU"),
    "a rank on CPU too many": (CPU_RANKS, (start(2, 1, ((0, -1),) * 3 + ((0, 1),)),), "2 ranks on CPU, plan grants 3"),
    "ranks on CPU beyond the cores": (CPU_RANKS, (start(2, 1, ((0, -1), (0, -1), (0, 1))),), "cores of node 0"),
    "a rank on CPU of no node": (CPU_RANKS, (start(2, 1, ((0, 1), (7, -1))),), "node 7, which does not exist"),

    "cores": (BUSY, (start(4, 1, ((0, 1),)),), "cores of node 0"),
    "memory": (BUSY, (start(8, 1, ((0, 1),)),), "memory of node 0"),
    "draining node": (DRAINING, (start(0, 1, ((0, 0),)),), "down or draining"),
}
ALLOWED = {
    "a job shrinks": (ELASTIC, (resize(0, 2, ((0, 1),), 32),)),
    "a job grows on what another leaves": (ELASTIC, (Preempt(1, 1), resize(0, 2, ((0, 0), (0, 1), (0, 2)), 8))),
    "two swap": (ELASTIC, (resize(1, 2, ((0, 3),)), resize(2, 2, ((0, 2),), 32))),
    "one grows onto what the last one leaves": (
        ELASTIC, (resize(1, 2, ((1, 3),)), resize(0, 2, ((0, 0), (0, 1), (0, 2)), 64)),
    ),
    "a tune beside a start": (ELASTIC, (tune(0, 1, ((0, 0), (0, 1)), 8), start(3, 1, ((1, 2), (1, 3)), batch=8))),
    "a job shrinks before a preemption": (ELASTIC, (resize(0, 2, ((0, 0),), 32), Preempt(1, 1))),
    "ranks on CPU": (CPU_RANKS, (start(2, 1, ((0, -1), (0, 1))),)),
    "ranks on CPU only": (CPU_RANKS, (start(2, 1, ((0, -1),)),)),
    "ranks on CPU after one is given back": (
        CPU_RANKS, (resize(0, 2, ((0, 0),)), start(2, 1, ((0, -1), (0, -1), (0, 1)))),
    ),
    "a loading job moves": (ELASTIC, (resize(4, 2, ((1, 1), (1, 2))),)),
    "a start on the GPUs asked": (ELASTIC, (start(3, 1, ((1, 2), (1, 3)), batch=64),)),
    "a start with the batch asked, above the range": (ELASTIC, (start(3, 1, ((1, 2),), batch=128),)),
    "a tune": (ELASTIC, (tune(0, 1, ((0, 0), (0, 1)), 64),)),
    "the waiting rejected": (ELASTIC, (Reject(3, 0), Reject(6, 0))),
    "all kinds in order": (
        ELASTIC, (Preempt(1, 1), Reject(6, 0), resize(4, 2, ((0, 2),)), start(3, 1, ((1, 0),), batch=8),
                  tune(0, 1, ((0, 0), (0, 1)), 8)),
    ),
    "shrinks on a draining node": (LEAVING, (resize(0, 2, ((0, 0),)),)),
    "leaves a draining node": (LEAVING, (resize(0, 2, ((1, 0), (1, 1))),)),
    "nothing": (BUSY, ()),
    "a start": (BUSY, (start(1, 1, ((0, 1),)),)),
    "a gang": (BUSY, (start(2, 1, ((1, 0), (1, 1))),)),
    "after a preemption": (BUSY, (Preempt(0, 1), start(1, 1, ((0, 0),)))),
    "its cores after a preemption": (BUSY, (Preempt(0, 1), start(4, 1, ((0, 0),)))),
    "a share": (BUSY, (start(6, 1, ((1, 0),), share=700), start(7, 1, ((1, 1),), share=700))),
    "an open node": (DRAINING, (start(0, 1, ((1, 0),)),)),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_plan_that_could_not_be_applied_is_refused(case):
    snapshot, actions, said = REFUSED[case]
    with pytest.raises(PlanError, match=said):
        check_plan(snapshot, plan_of(5_000, actions))


@pytest.mark.parametrize("case", sorted(ALLOWED))
def test_a_plan_that_can_be_applied_is_not(case):
    snapshot, actions = ALLOWED[case]
    check_plan(snapshot, plan_of(5_000, actions))


def test_rounds_wait_for_the_gap_and_come_with_the_period():
    trigger = Trigger(gap_ms=1_000, period_ms=60_000)
    assert trigger.due_ms() is None
    trigger.note(Kind.SUBMITTED, 500)
    trigger.note(Kind.SUBMITTED, 700)
    assert trigger.due_ms() == 500
    trigger.done(500)
    assert trigger.due_ms() == 60_500
    trigger.note(Kind.FINISHED, 900)
    assert trigger.due_ms() == 1_500
    trigger.done(1_500)
    trigger.note(Kind.FINISHED, 9_000)
    assert trigger.due_ms() == 9_000


def test_a_period_shorter_than_the_gap_does_not_undercut_it():
    trigger = Trigger(gap_ms=1_000, period_ms=300)
    trigger.note(Kind.SUBMITTED, 0)
    trigger.done(0)
    assert trigger.due_ms() == 1_000


def test_the_gap_grows_with_the_waiting_jobs_up_to_its_bound():
    trigger = Trigger(gap_ms=1_000, period_ms=0, gap_job_us=100)
    trigger.note(Kind.SUBMITTED, 0)
    trigger.done(0)
    trigger.note(Kind.FINISHED, 3)
    assert [trigger.due_ms(waiting) for waiting in (1, 100, 1_000, 9_900, 50_000)] == [10, 20, 110, 1_000, 1_000]
    assert trigger.due_ms() == 1_000


@pytest.mark.parametrize(("policy", "gpus_max", "due_ms"), [
    (PRESETS["goodput"], 2, 1_000), (PRESETS["goodput"], 1, 10), (PRESETS["fifo"], 2, 10),
])
def test_a_policy_that_resizes_is_not_asked_more_often_while_there_is_a_job_to_resize(policy, gpus_max, due_ms):
    scheduler = Scheduler(parse_cluster("1x2xT4"), policy, Beliefs(), users=("ann",), gap_job_us=100, in_place=True)
    spec = JobSpec(id=0, user=0, submit_ms=0, gpus=1, gpus_min=1, gpus_max=gpus_max)
    scheduler.observe(Event(0, Kind.SUBMITTED, 0, spec=spec))
    scheduler.decide(0)
    scheduler.observe(Event(3, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=3, gpus=1)))
    assert scheduler.due_ms() == due_ms


def test_a_policy_may_want_a_longer_gap_than_the_driver():
    policy = replace(PRESETS["fifo"], gap_ms=5_000)
    for gap_ms, gap_job_us, due_ms in ((1_000, 0, 5_000), (1_000, 100, 5_000), (9_000, 0, 9_000)):
        scheduler = Scheduler(
            parse_cluster("1x1xT4"), policy, Beliefs(), users=("ann",), gap_ms=gap_ms, gap_job_us=gap_job_us
        )
        scheduler.observe(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=0, gpus=1)))
        scheduler.decide(0)
        scheduler.observe(Event(2, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=2, gpus=1)))
        assert scheduler.due_ms() == due_ms


def test_fixed_rounds_fall_on_whole_multiples_of_the_period():
    policy = replace(PRESETS["fifo"], period_ms=60_000, fixed_rounds=True)
    scheduler = Scheduler(parse_cluster("1x1xT4"), policy, Beliefs(), users=("ann",))
    for row, (at_ms, due_ms) in enumerate(((60_000, 60_000), (60_001, 120_000), (300_001, 360_000))):
        scheduler.observe(Event(at_ms, Kind.SUBMITTED, row, spec=JobSpec(id=row, user=0, submit_ms=at_ms, gpus=1)))
        assert scheduler.due_ms() == due_ms
        scheduler.decide(due_ms)


ONE_OR_TWO = {"gpus": 1, "gpus_min": 1, "gpus_max": 2}


def test_the_first_times_on_a_number_of_gpus_cause_a_round_where_jobs_change_in_place():
    policy = scripted(Line(at=0, has={0: (((0, 0),), -1)}), period_ms=60_000)

    def due_after(in_place, *gpus):
        scheduler = Scheduler(parse_cluster("1x2xT4"), policy, Beliefs(), users=("ann",), gap_ms=10, in_place=in_place)
        scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, **ONE_OR_TWO)))
        scheduler.decide(5)
        scheduler.observe(Event(5, Kind.STARTED, 0))
        for seen in gpus:
            before_ms = scheduler.state.now_ms + 100
            report = Report(samples_done=1, samples_per_s=1, seen=(Sample(1, seen, 8, 0.5, 0.0),) if seen else ())
            scheduler.observe(Event(before_ms, Kind.REPORTED, 0, report=report))
            due_ms = scheduler.due_ms()
            if due_ms == before_ms:
                scheduler.decide(due_ms)
        return due_ms

    assert due_after(False, 1) == 60_005
    assert due_after(True, 1) == 105
    assert due_after(True, 0) == 60_005
    assert due_after(True, 1, 1) == 60_105
    assert due_after(True, 1, 2) == 205


def test_a_policys_own_gap_is_not_kept_where_jobs_change_in_place():
    for fixed_rounds, due_ms in ((False, 12), (True, 10_000)):
        policy = replace(PRESETS["fifo"], gap_ms=5_000, period_ms=5_000, fixed_rounds=fixed_rounds)
        scheduler = Scheduler(parse_cluster("1x1xT4"), policy, Beliefs(), users=("ann",), gap_ms=10, in_place=True)
        scheduler.observe(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=0, gpus=1)))
        scheduler.decide(2)
        scheduler.observe(Event(12, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=12, gpus=1)))
        assert scheduler.due_ms() == due_ms


def test_fixed_rounds_without_a_period_are_refused():
    with pytest.raises(ConfigError, match="fixed_rounds needs a period_ms above 0, found 0"):
        replace(PRESETS["fifo"], fixed_rounds=True)


def test_a_policy_that_resizes_has_rounds_while_somebody_runs_and_nobody_waits():
    policy = scripted(Line(at=0, has={0: (((0, 0),), -1)}), period_ms=700)
    scheduler = Scheduler(parse_cluster("1x2xT4"), policy, Beliefs(), users=("ann",), gap_ms=0)
    assert scheduler.due_ms() is None
    scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, **ONE_OR_TWO)))
    scheduler.decide(5)
    scheduler.observe(Event(5, Kind.STARTED, 0))
    assert scheduler.due_ms() == 705
    scheduler.observe(Event(9, Kind.REPORTED, 0, report=Report(samples_done=1, samples_per_s=1)))
    assert scheduler.due_ms() == 705
    scheduler.observe(Event(600, Kind.FINISHED, 0))
    assert scheduler.due_ms() is None


@pytest.mark.parametrize("kind", [
    Kind.REPORTED, Kind.RESIZE, Kind.TUNE, Kind.REJECT, Kind.STARTED, Kind.NODE_DRAIN, Kind.NODE_DOWN, Kind.PREEMPT,
    Kind.START,
])
def test_what_cannot_change_a_decision_is_no_cause_for_a_round(kind):
    trigger = Trigger(gap_ms=0, period_ms=0)
    trigger.note(kind, 5)
    assert trigger.due_ms() is None


def test_no_round_while_nobody_waits():
    scheduler = Scheduler(parse_cluster("1x1xT4"), PRESETS["las"], Beliefs(), users=("ann",), gap_ms=0)
    assert scheduler.due_ms() is None
    scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, gpus=1)))
    assert scheduler.due_ms() == 5
    scheduler.decide(5)
    scheduler.observe(Event(5, Kind.STARTED, 0))
    assert scheduler.due_ms() is None
    scheduler.observe(Event(9, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=9, gpus=1)))
    assert scheduler.due_ms() == 9
    scheduler.decide(9)
    assert scheduler.due_ms() == 9 + PRESETS["las"].period_ms


def test_a_policy_that_resizes_has_no_rounds_while_nobody_waits_and_all_jobs_have_one_size():
    scheduler = Scheduler(parse_cluster("1x4xT4"), PRESETS["pollux"], Beliefs(), users=("ann",), gap_ms=0)
    period_ms = PRESETS["pollux"].period_ms

    def come(job, now_ms, **sizes):
        spec = JobSpec(id=job, user=0, submit_ms=now_ms, **sizes)
        scheduler.observe(Event(now_ms, Kind.SUBMITTED, job, spec=spec))
        due_ms = scheduler.due_ms()
        scheduler.decide(due_ms)
        scheduler.observe(Event(due_ms, Kind.STARTED, job))
        return due_ms

    assert come(0, 5, gpus=1) == 5
    assert scheduler.due_ms() is None
    now_ms = come(1, 70_000, **ONE_OR_TWO)
    assert scheduler.due_ms() == now_ms + period_ms
    scheduler.observe(Event(now_ms + 1, Kind.FINISHED, 1))
    assert scheduler.due_ms() is None


WORDS = {
    0: "has its 1 GPU", 1: "has its 1 GPU", 5: "waits for job 0 to end", 2: "needs 2 GPUs",
}


def test_every_job_is_explained_in_words():
    result = run_round(BUSY, Beliefs(), PRESETS["sjf"])
    for number in BUSY.jobs.id.tolist():
        said = explain(BUSY, result, number)
        assert said.startswith(f"job {number} ")
        assert WORDS.get(number, "") in said or result.why[number] == 0


def test_a_resized_job_is_explained_with_the_gpus_it_has_after_the_plan():
    """Job 0 shrinks from two GPUs to one of node 1; so 1 of 4 is left on node 0 and none is left of the 4 of node 1."""
    snapshot = snapshot_of(
        "2x2xT4", job(on=[(0, 0), (0, 1)], gpus=1, gpus_min=1, gpus_max=4), job(gpus=4), now=5,
    )
    policy = scripted(Line(at=0, has={0: (((1, 0),), -1)}))
    result = run_round(snapshot, Beliefs(), policy)
    assert result.plan.actions == (resize(0, 2, ((1, 0),), -1, 0),)
    assert explain(snapshot, result, 0) == "job 0 has its 1 GPU."
    waiting = replace(result, why=np.array([0, int(Reason.TOO_FEW_FREE)]))
    assert explain(snapshot, waiting, 1) == "job 1 needs 4 GPUs; 3 are free; it would start with 1 more."


# -- what a plan is made of ---------------------------------------------------------------------------------------


def round_of(**jobs):
    return run_round(ELASTIC, Beliefs(), scripted(Line(at=0, has={int(n[1:]): want for n, want in jobs.items()})))


NOW = {"j0": (((0, 0), (0, 1)), 32), "j1": (((0, 2),), -1), "j2": (((0, 3),), 32), "j4": (((1, 0),), -1)}
"""What runs in ELASTIC, as it is."""


def test_a_round_that_wants_what_is_there_does_nothing():
    assert round_of(**NOW).plan.actions == ()


@pytest.mark.parametrize(("changed", "actions"), [
    ({"j0": (((0, 0),), 32)}, (resize(0, 2, ((0, 0),), 32),)),
    ({"j0": (((1, 2), (1, 3)), 32)}, (resize(0, 2, ((1, 2), (1, 3)), 32),)),
    ({"j0": (((0, 0), (0, 1)), 64)}, (tune(0, 1, ((0, 0), (0, 1)), 64),)),
    ({"j0": (((0, 0),), 64)}, (resize(0, 2, ((0, 0),), 64),)),
    ({"j1": (((1, 2),), -1), "j0": (((0, 0), (0, 1), (0, 2)), 32)},
     (resize(1, 2, ((1, 2),)), resize(0, 2, ((0, 0), (0, 1), (0, 2)), 32))),
    ({"j3": (((1, 1), (1, 2)), 8)}, (start(3, 1, ((1, 1), (1, 2)), 0, 8),)),
], ids=["shrinks", "moves", "tunes", "shrinks and tunes", "grows onto what another leaves", "starts"])
def test_a_plan_is_the_difference_between_what_is_wanted_and_what_is_there(changed, actions):
    assert round_of(**NOW | changed).plan.actions == actions


def test_who_is_not_wanted_is_preempted():
    assert round_of(j0=NOW["j0"]).plan.actions == (Preempt(1, 1), Preempt(2, 1), Preempt(4, 1))


def test_only_who_waits_and_gets_nothing_is_rejected():
    """Said of all: of job 0, which runs, of 3, which is started, and of 6 and 7, which are held and wait."""
    has = {int(name[1:]): want for name, want in (NOW | {"j3": (((1, 1), (1, 2)), 8)}).items()}
    result = run_round(ELASTIC, Beliefs(), scripted(Line(at=0, has=has, reject=(0, 3, 6, 7))))
    assert result.plan.actions == (Reject(6, 0), Reject(7, 0), start(3, 1, ((1, 1), (1, 2)), 0, 8))


def test_a_size_the_job_cannot_run_on_is_refused():
    with pytest.raises(PlanError, match=r"job 0 runs on 1 to 4 GPUs, found 5"):
        round_of(**NOW | {"j0": (((0, 0), (0, 1), (1, 1), (1, 2), (1, 3)), 32)})


def test_a_trigger_that_backs_off_looks_when_gaps_are_twice_as_old_and_soon_after_an_event():
    trigger = Trigger(gap_ms=100, period_ms=10_000, backs_off=True)
    trigger.note(Kind.FINISHED, 5_000)
    looks = []
    for _ in range(7):
        looks.append(trigger.due_ms())
        trigger.done(looks[-1])
    assert looks == [5_000, 6_000, 7_000, 9_000, 13_000, 21_000, 31_000]
    trigger.note(Kind.FINISHED, 31_500)
    trigger.done(trigger.due_ms())
    assert trigger.due_ms() == 32_500
