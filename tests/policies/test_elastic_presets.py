"""The elastic presets as wholes: a round that changes nothing restarts nobody, contention ends, drains are harmless."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.core.actions import Preempt, Resize, Start, Tune
from brim.core.arrays import frozen
from brim.core.cluster import parse_cluster
from brim.core.lifecycle import Phase
from brim.engine.round import run_round
from brim.policies.presets import PRESETS
from brim.policies.size.dynamic_program import DynamicProgram
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace, snapshot_of
from brim.testing.conformance import check_replays
from brim.testing.elastic import ToyTruth
from brim.testing.rules import check_grants, watched
from brim.testing.strategies import clusters, placed_jobs, snapshots
from tests.policies.size.known import KnownSpeeds, KnownWork, beliefs, elastic, one_batch
from tests.sampling import sample

ROUNDS = {"pollux": 3, "brim-energy": 3, "brim-cost": 3, "aiturbo-borda": 2}
ELASTIC = [name for name, policy in PRESETS.items() if policy.size.resizes_running]
ONE_OF_A_KIND = [*{type(PRESETS[name].size): name for name in reversed(ELASTIC)}.values()]


def decided(snapshot, policy, known):
    """The plan, what the policy wanted, and what its parts remember of it."""
    wanted = []
    result = run_round(snapshot, known, watched(policy, lambda _, grants: wanted.append(grants)))
    return result.plan.actions, wanted[0], result.memory


def carried_out(snapshot, actions, wanted, memory):
    """The snapshot a moment later: who started runs, who was preempted waits, nothing else happened."""
    jobs = snapshot.jobs
    changes = ("phase", "placements", "gpus_now", "share_now", "batch_now", "since_ms")
    columns = {name: getattr(jobs, name).copy() for name in changes}
    row_of = {int(name): row for row, name in enumerate(jobs.id)}
    for action in actions:
        row = row_of[action.job]
        if isinstance(action, Start | Resize):
            columns["placements"][row] += 1
            columns["gpus_now"][row], columns["share_now"][row] = len(action.setting.gpus), jobs.share_milli[row]
        if isinstance(action, Start | Preempt):
            columns["since_ms"][row] = snapshot.now_ms
        if isinstance(action, Start | Resize | Tune):
            columns["batch_now"][row] = action.setting.batch
            columns["phase"][row] = Phase.RUNNING
        if isinstance(action, Preempt):
            columns["gpus_now"][row], columns["phase"][row] = 0, Phase.PENDING
    return replace(
        snapshot, grants=wanted, memory=replace(snapshot.memory, **memory),
        jobs=replace(jobs, **{name: frozen(column) for name, column in columns.items()}),
    )


@st.composite
def cases(draw):
    """Equal nodes, jobs in every phase that hold sizes of all kinds, speeds known of some."""
    count, width = draw(st.sampled_from(((1, 4), (2, 4), (3, 2), (2, 8))))
    cluster = parse_cluster(f"{count}x{width}xT4")
    jobs = [replace(one, share=1000) for one in draw(placed_jobs(cluster, elastic_too=True))]
    taken: set[tuple[int, int]] = set()
    for row, one in enumerate(jobs):
        if taken & set(one.on):  # they shared it
            jobs[row] = replace(one, on=(), phase=None, report=None)
        taken |= set(jobs[row].on)
    snapshot = snapshot_of(cluster, *jobs, now=100)
    speeds = tuple(
        (*(draw(st.floats(0.001, 0.1)) for _ in range(6)), draw(st.floats(1, 4))) if draw(st.booleans())
        else (np.nan,) * 7 for _ in range(len(snapshot.jobs))
    )
    left = tuple(draw(st.floats(1, 1e5)) for _ in speeds)
    return snapshot, replace(beliefs(), speeds=KnownSpeeds(speeds), work=KnownWork(left))


def of_unknown_speed(cluster, *jobs):
    """Jobs on a cluster, of whose speed nothing is known."""
    known = replace(beliefs(), speeds=KnownSpeeds(((np.nan,) * 7,) * len(jobs)), work=KnownWork((1.0,) * len(jobs)))
    return snapshot_of(cluster, *jobs, now=100), known


GROWN = of_unknown_speed("2x4xT4", job(gpus=3), elastic(gpus=6, gpus_min=1, gpus_max=6, on=[(0, 0)], start=21))
"""Service is counted for the size that a job had before."""
TAKEN_OFF = of_unknown_speed(
    "3x2xT4", job(gpus=3), job(gpus=2, gpu_util=100, gpu_mem=1_000),
    elastic(gpus=3, gpus_min=2, gpus_max=3, on=[(0, 0), (0, 1), (1, 0)], start=21, gpu_util=100, gpu_mem=1_000),
)
"""The third job has more than its size; when it shares the GPUs of the second, there are three for the first."""


@pytest.mark.cases(2)
@pytest.mark.parametrize(("name", "rounds"), [(name, ROUNDS.get(name, 1)) for name in ELASTIC])
@settings(max_examples=sample(30, 10))
@given(case=cases())
@example(case=GROWN)
@example(case=TAKEN_OFF)
def test_a_plan_carried_out_leaves_nothing_to_do(name, rounds, case):
    """With pollux a start costs nothing, so that ties between who runs and who waits are settled one by one.

    The part for sharing takes jobs off that have more GPUs than their size, and starts them in the next round, where
    they may share; the size part counts a GPU for each job, so that what is free because they share is given out in the
    third. AITurbo's published sizes begin with what jobs have: one for whose GPUs there is no room is taken off, and
    asks for fewer in the next round.
    """
    snapshot, known = case
    for _ in range(rounds):
        actions, wanted, memory = decided(snapshot, PRESETS[name], known)
        check_grants(snapshot, wanted, resizes=True)
        snapshot = carried_out(snapshot, actions, wanted, memory)
    assert decided(snapshot, PRESETS[name], known)[0] == ()


@pytest.mark.parametrize("name", ELASTIC)
def test_jobs_of_two_kinds_settle_within_a_round(name):
    snapshot = snapshot_of("2x4xT4", elastic(), one_batch(at=1), job(at=2, gpus=2), elastic(at=3), now=200)
    p = (0.02, 0.004, 0.03, 0.01, 0.1, 0.03, 1.5)
    known = beliefs(p, p, (np.nan,) * 7, p, left=[1e5] * 4)
    plan = decided(snapshot, PRESETS[name], known)
    assert any(isinstance(action, Start) for action in plan[0])
    assert decided(carried_out(snapshot, *plan), PRESETS[name], known)[0] == ()


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ELASTIC)
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_contention_of_two_ends_with_few_restarts(name, gpus):
    """Two jobs of two hours each want the whole cluster: they may take turns, but no turn is short."""
    jobs = [job(run=7200, gpus=gpus, name="a"), job(at=60, run=7200, gpus=gpus, name="b")]
    overheads = Overheads(start_ms=30_000, save_ms=5_000, restart_ms=30_000, checkpoint_ms=60_000)
    settings = ReplaySettings(overheads=overheads)
    found = replay(small_trace(*jobs), parse_cluster(f"1x{gpus}xT4"), PRESETS[name], settings)
    assert (found.finish_ms > 0).all()
    assert found.finish_ms.max() < 16_000_000
    assert found.restarts.sum() <= 12


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ELASTIC)
def test_jobs_that_contend_for_a_node_they_could_each_fill_keep_it_busy(name):
    limits = {"gpus_max": 4, "batch": 32, "batch_min": 8, "batch_max": 64, "local_batch_min": 1, "local_batch_max": 64}
    jobs = [job(at=60 * row, run=3600, gpus=1, gpus_min=1, name=f"j{row}", **limits) for row in range(3)]
    trace = small_trace(*jobs)
    truth = ToyTruth(trace, {one.name: one for one in jobs})
    overheads = Overheads(start_ms=30_000, save_ms=5_000, restart_ms=30_000, checkpoint_ms=60_000)
    found = replay(trace, parse_cluster("1x4xT4"), PRESETS[name], ReplaySettings(overheads=overheads), truth=truth)
    assert (found.finish_ms > 0).all()
    assert name == "optimus" or found.restarts.max() <= 12  # which does not count what a change costs


@pytest.mark.parametrize("name", ELASTIC)
@pytest.mark.parametrize("one", [job(gpus=4), one_batch(gpus=4)])
def test_who_runs_on_a_node_that_drains_runs_on(name, one):
    snapshot = snapshot_of("1x4xT4", replace(one, on=[(0, gpu) for gpu in range(4)]), job(at=1), now=2, draining=[0])
    p = (0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0)
    assert decided(snapshot, PRESETS[name], beliefs(p, p, left=[1e5] * 2))[0] == ()


class FastForAll:
    """Whoever asks is told that the job is fast and has been seen on many GPUs."""

    def of_jobs(self, snapshot, exchange=None):
        return KnownSpeeds(((0.01, 0.002, 0.01, 0.01, 0.02, 0.01, 1.5),) * len(snapshot.jobs)).of_jobs(snapshot)

    of_models = of_jobs


class SomeWork:
    """All have some work left, later jobs more."""

    def left_gpu_ms(self, snapshot, per_sample):
        return np.linspace(1e3, 1e6, len(snapshot.jobs))[:, None] * per_sample[:, None]


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ELASTIC)
@settings(max_examples=sample(40, 13))
@given(data=st.data())
def test_plans_are_sound_on_clusters_of_mixed_nodes(name, data):
    cluster = data.draw(clusters(groups_max=3, nodes_max=3, gpus_max=8))
    snapshot = data.draw(snapshots(cluster=cluster, jobs_max=12, elastic_too=True))
    _, wanted, _ = decided(snapshot, PRESETS[name], replace(beliefs(), speeds=FastForAll(), work=SomeWork()))
    check_grants(snapshot, wanted, resizes=True)


def test_drop_ends_every_replay_too():
    policy = replace(PRESETS["elastic"], size=DynamicProgram(mode="drop"))
    jobs = [elastic(at=row, run=5, gpus_max=4, batch_max=128) for row in range(6)]
    trace = small_trace(*jobs)
    truth = ToyTruth(trace, dict(zip(trace.job_id, jobs, strict=True)))
    found = replay(trace, parse_cluster("1x2xT4"), policy, ReplaySettings(), truth=truth)
    assert (found.rejected | (found.finish_ms > 0)).all()
    assert found.rejected.any()


def test_the_presets_keep_the_rules_where_starts_take_longer_than_the_horizon():
    """Goodput once never started such a job again. One preset of each kind of size part, and all with ``--full``."""
    overheads = Overheads(start_ms=300_000, save_ms=1_000, restart_ms=300_000, checkpoint_ms=10_000)
    trace = small_trace(*[job(at=row, run=2_000, gpus=1 + row % 2) for row in range(4)])
    for name in sample(ELASTIC, ONE_OF_A_KIND):
        check_replays(PRESETS[name], parse_cluster("1x2xT4"), trace, overheads)
