"""Continuations from the middle of a replay: the compiled loop takes the course of the general one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import UserLimits
from brim.core.cluster import parse_cluster
from brim.core.trace import NONE, trace_of
from brim.engine.journal import Journal, recover
from brim.engine.scheduler import Scheduler
from brim.policies.presets import find_policy
from brim.sim.compiled.continuation import Continuation
from brim.sim.continuation import InitialState, continued, continued_by_draw
from brim.sim.overheads import Overheads
from brim.sim.specs import specs_of, user_names
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import replay

S = 1_000
CLUSTER = parse_cluster("2x4xV100")


def queue(policy: str, seed: int, gap_job_us: int = 0) -> tuple[InitialState, random.Random]:
    """What a continuation begins from: random jobs of three users, stopped somewhere in the middle."""
    draw = random.Random(seed)
    jobs = 30
    trace = trace_of(
        name="t", format="t", job_id=[str(job) for job in range(jobs)], users=("a", "b", "c"),
        user=[draw.randrange(3) for _ in range(jobs)], submit_ms=sorted(draw.randrange(4_000 * S) for _ in range(jobs)),
        gpus=[draw.choice((1, 1, 2, 4, 8)) for _ in range(jobs)],
        run_ms=[draw.randrange(1, 2_000 * S) for _ in range(jobs)],
        time_limit_ms=[draw.choice((NONE, 900 * S, 3_000 * S)) for _ in range(jobs)],
    )
    journal, chosen = Journal(), find_policy(policy)
    replay(trace, CLUSTER, chosen, journal=journal)
    lines = journal.lines[: draw.randrange(len(journal.lines) // 4, len(journal.lines) * 3 // 4)]
    scheduler = Scheduler(
        CLUSTER, chosen, Beliefs(run_times=UserLimits()), users=user_names(trace), gap_job_us=gap_job_us
    )
    recover(lines, scheduler)
    specs = specs_of(trace, CLUSTER, Rigid(trace))
    scheduler.state, ids = scheduler.state.renumbered()
    now_ms = scheduler.horizon_ms
    return InitialState(
        now_ms=now_ms, scheduler=scheduler, overheads=Overheads(), waits={}, begin_ms={},
        specs=[replace(specs[job], id=row) for row, job in enumerate(ids.tolist())],
    ), draw


@pytest.mark.cases(1)
@pytest.mark.parametrize("policy", ["fifo", "backfill", "sjf", "srtf", "las", "gittins", "tiresias", "fair"])
def test_the_compiled_loop_takes_the_course_of_the_general_one(policy):
    compared = 0
    for seed in range(5):
        initial, draw = queue(policy, seed)
        state, now_ms = initial.scheduler.state, initial.now_ms
        jobs = len(initial.specs)
        run_ms = [state.run_ms(row, now_ms) + draw.randrange(1, 3_000 * S) for row in range(jobs)]
        assert Continuation.of(initial.scheduler, initial.overheads, now_ms) is not None
        before = initial.scheduler.save()
        general = continued(initial, run_ms)
        (compiled,) = continued_by_draw(initial, [run_ms])
        assert initial.scheduler.save() == before
        assert compiled.start_ms.tolist() == general.start_ms.tolist()
        assert compiled.end_ms.tolist() == general.end_ms.tolist()
        waiting = [row for row in range(jobs) if not state.gpus_of(row)]
        for row in waiting[-1:]:
            both = (continued(initial, run_ms, [row]), *continued_by_draw(initial, [run_ms], [row]))
            assert [one.start_ms[row] for one in both] == [general.start_ms[row]] * 2, "it may end with that"
        compared += len(waiting)
    assert compared > 15


@pytest.mark.slow
@pytest.mark.parametrize("gap_job_us", [100, 3_000])
@pytest.mark.parametrize("policy", ["fifo", "backfill", "srtf"])
def test_rounds_are_as_close_together_as_those_of_a_live_cluster(policy, gap_job_us):
    """Jobs of half a second, of which rounds a second apart would start a few at a time."""
    differ = 0
    for seed in range(3):
        initial, draw = queue(policy, seed, gap_job_us)
        state = initial.scheduler.state
        run_ms = [state.run_ms(row, initial.now_ms) + draw.randrange(1, 500) for row in range(len(initial.specs))]
        initial = replace(initial, overheads=Overheads(start_ms=0, save_ms=0, restart_ms=0))
        general = continued(initial, run_ms)
        (compiled,) = continued_by_draw(initial, [run_ms])
        assert compiled.start_ms.tolist() == general.start_ms.tolist()
        assert compiled.end_ms.tolist() == general.end_ms.tolist()
        apart = queue(policy, seed)[0]
        (far,) = continued_by_draw(replace(apart, overheads=initial.overheads), [run_ms])
        differ += far.end_ms.max() > compiled.end_ms.max()
    assert differ == 3


def test_a_preempted_job_goes_on_from_what_it_has_done():
    """It had run for 30 of its 40 s when a shorter one took its place; that one ends, and it needs 10 s more."""
    trace = trace_of(name="t", format="t", job_id=["a", "b"], submit_ms=[0, 30 * S], gpus=[8, 8],
                     run_ms=[40 * S, 20 * S], time_limit_ms=[900 * S, 60 * S])
    journal, policy = Journal(), find_policy("srtf")
    replay(trace, CLUSTER, policy, journal=journal)
    lines = [line for line in journal.lines if int(line.partition('"t":')[2].split(",")[0].rstrip("}")) < 40 * S]
    scheduler = Scheduler(CLUSTER, policy, Beliefs(run_times=UserLimits()), users=user_names(trace))
    recover(lines, scheduler)
    initial = InitialState(now_ms=40 * S, scheduler=scheduler, overheads=Overheads(), waits={}, begin_ms={},
                    specs=specs_of(trace, CLUSTER, Rigid(trace)))
    for course in (continued(initial, [40 * S, 20 * S]), *continued_by_draw(initial, [[40 * S, 20 * S]])):
        end_ms, restart_ms = course.end_ms.tolist(), initial.overheads.restart_ms
        assert end_ms[0] - end_ms[1] == restart_ms + 10 * S
