"""The parts that let jobs share GPUs: who joins whom, on what basis, trials, undoing, and their limits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.interference import DemandRule
from brim.beliefs.measured_sets import MeasuredSet, MeasuredSets
from brim.core.cluster import parse_cluster
from brim.core.events import Event, Kind
from brim.core.reasons import Reason
from brim.core.trace import NONE
from brim.engine.explain import explain
from brim.engine.journal import Journal
from brim.engine.round import run_round
from brim.errors import ConfigError
from brim.policies.place.energy_sharing import BestPartners, EnergySharing
from brim.policies.place.residents import energy_and_time
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.sim.sleepers import Sleep
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.sharing import DEMAND, OBSERVATION_MS, Sharing
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace, snapshot_of, state_with
from brim.testing.rules import check_never_shared, check_one_place

EACO = PRESETS["eaco"]
FREE = ReplaySettings(overheads=Overheads(save_ms=0, restart_ms=0), gap_ms=0)
LIGHT = {"gpu_util": 200, "gpu_mem": 3_000}


def eaco(**constants):
    return replace(EACO, place=EnergySharing(**constants))


def decided(cluster, *jobs, policy=EACO, **more):
    snapshot = snapshot_of(cluster, *jobs, now=10, **more)
    return run_round(snapshot, Beliefs(), policy)


def shared_by(result):
    """GPUs of each job after the round, and its share."""
    wanted = result.grants
    return {
        row: (tuple(zip(wanted.node[wanted.job == row].tolist(), wanted.gpu[wanted.job == row].tolist(), strict=True)),
              int(wanted.share_milli[wanted.job == row][0])) for row in np.unique(wanted.job).tolist()
    }


def outcome_of(trace, policy, cluster="2x2xV100", truth=DEMAND, settings=FREE, **more):
    return replay(trace, parse_cluster(cluster), policy, settings, truth=Sharing(Rigid(trace), trace, truth), **more)


def test_a_job_joins_the_busiest_gpus_below_the_limit():
    busy, idle = {"gpu_util": 500, "gpu_mem": 3_000}, {"gpu_util": 100, "gpu_mem": 3_000}
    result = decided(
        "4x1xV100", job(on=[(0, 0)], **idle), job(on=[(1, 0)], **busy), job(on=[(2, 0)], **{**busy, "gpu_util": 900}),
        job(**LIGHT),
    )
    assert shared_by(result)[3] == shared_by(result)[1] == (((1, 0),), 500)
    assert shared_by(result)[0] == (((0, 0),), 1000)
    assert result.why.tolist() == [0, Reason.SHARES_BY_DEMAND, 0, Reason.SHARES_BY_DEMAND]
    assert "such a set was not observed before" in explain(result.snapshot, result, 3)


@pytest.mark.parametrize("place", [EnergySharing(), BestPartners()])
def test_jobs_of_which_nothing_is_known_do_not_change_whom_others_join(place):
    """Wherever they run among the others: an unknown use is neither more nor less than another."""
    joined = set()
    for order in permutations((400, 300, 200, None)):
        uses = ({} if use is None else LIGHT | {"gpu_util": use} for use in order)
        jobs = [job(on=[(node, 0)], **use) for node, use in enumerate(uses)]
        shared = shared_by(decided("4x1xV100", *jobs, job(**LIGHT), policy=replace(EACO, place=place)))
        joined.add(order[shared[4][0][0][0]])
    assert joined == {400 if type(place) is EnergySharing else 200}


def test_a_job_joins_those_beside_whom_energy_and_time_fall_most():
    """``EnergySharing`` takes the busiest; beside 700 with 900, either would run too long."""
    jobs = (job(on=[(0, 0)], **LIGHT | {"gpu_util": 400}), job(on=[(1, 0)], **LIGHT | {"gpu_util": 700}), job(**LIGHT))
    best = replace(EACO, place=BestPartners())
    assert shared_by(decided("3x1xV100", *jobs))[2][0] == ((1, 0),)
    assert shared_by(decided("3x1xV100", *jobs, policy=best))[2] == (((0, 0),), 500)
    assert shared_by(decided("3x1xV100", jobs[1], job(**{**LIGHT, "gpu_util": 900}), policy=best))[1][1] == 1000


@pytest.mark.parametrize("other", [
    {"gpu_mem": 3_000}, {"gpu_util": 200}, {"gpu_util": 200, "gpu_mem": 12_000}, {**LIGHT, "share": 500},
    {**LIGHT, "gpus": 2}, {**LIGHT, "cpu": 9_000}, {**LIGHT, "gpu_type": "T4"},
], ids=["unknown utilisation", "unknown memory", "memory", "a share of its own", "another size", "cores", "GPU type"])
def test_a_job_is_never_shared_with_one_of_which_too_little_is_known_or_that_does_not_fit(other):
    result = decided("1x1xV100:cpus=8+1x1xT4:cpus=16", job(on=[(0, 0)], **LIGHT), job(**other))
    assert all(share == 1000 or other.get("share") for _, share in shared_by(result).values())
    assert shared_by(result)[0] == (((0, 0),), 1000)


def test_gpus_of_a_draining_node_or_of_an_unknown_type_are_not_joined():
    for cluster, draining in (("2x1xV100", (0,)), ("2x1xMYGPU", ())):
        result = decided(cluster, job(on=[(0, 0)], **LIGHT), job(**LIGHT), draining=draining)
        assert shared_by(result) == {0: (((0, 0),), 1000), 1: (((1, 0),), 1000)}


def test_free_gpus_are_taken_where_nobody_can_be_joined_and_sleeping_nodes_come_last():
    state = state_with("3x1xV100", job(), now=10)
    for node in (0, 2):
        state.apply(Event(10_000, Kind.NODE_SLEEP, node=node))
    assert shared_by(run_round(state.freeze(10_000), Beliefs(), EACO)) == {0: (((1, 0),), 1000)}
    state.apply(Event(10_000, Kind.NODE_SLEEP, node=1))
    assert shared_by(run_round(state.freeze(10_000), Beliefs(), EACO)) == {0: (((0, 0),), 1000)}


@pytest.mark.parametrize(("deadline", "joins"), [(None, True), (200, True), (115, False)])
def test_a_job_is_joined_only_if_all_keep_their_deadlines_in_the_prediction(deadline, joins):
    """100 s of work from 10 s on, slowed down by 8 %, and 10 % uncertain."""
    both = {**LIGHT, "limit": 100}
    for first, second in ((deadline, None), (None, deadline)):
        result = decided(
            "2x1xV100", job(on=[(0, 0)], start=10, deadline=first, **both), job(deadline=second, at=9, **both),
        )
        assert (shared_by(result)[1][1] == 500) == joins


@pytest.mark.parametrize(("alpha", "joins"), [(0.0, False), (0.5, True), (1.0, True)])
def test_the_weight_of_energy_against_time_decides(alpha, joins):
    result = decided("2x1xV100", job(on=[(0, 0)], **LIGHT), job(**LIGHT), policy=eaco(alpha=alpha))
    assert (shared_by(result)[1][1] == 500) == joins


def test_energy_and_time_of_two_jobs_by_hand():
    energy, time = energy_and_time(0.5, 1.0, (0.4, 0.2), (1.0, 1.0), (1.25, 1.0))
    assert time == pytest.approx(1.125)
    assert energy == pytest.approx((0.5 + 0.5 * 0.6) / ((0.5 + 0.5 * 0.4) / 1.25 + 0.5 + 0.5 * 0.2))


def test_at_most_as_many_residents_as_are_allowed():
    trace = small_trace(*(job(run=3000, gpu_util=50, gpu_mem=1_000) for _ in range(5)))
    for most in (1, 2, 3, 4):
        runs = outcome_of(trace, eaco(residents=most), "2x1xV100").runs
        assert runs.share_milli.min() == 1000 // most


SHARED = st.lists(st.tuples(
    st.integers(0, 900), st.integers(1, 2000), st.integers(1, 3), st.sampled_from((NONE, 100, 400, 900)),
    st.sampled_from((NONE, 2_000, 7_000)), st.sampled_from((None, 1.1, 2.0)), st.sampled_from(("", "a", "b")),
), min_size=1, max_size=9)


def trace_of_shared(jobs):
    return small_trace(*(
        job(at=at, run=run, gpus=gpus, gpu_util=util, gpu_mem=mem, model=model, limit=run,
            deadline=None if slack is None else at + slack * run)
        for at, run, gpus, util, mem, slack, model in sorted(jobs, key=lambda one: one[0])
    ))


@given(SHARED, st.booleans())
def test_without_sharing_the_result_is_that_of_exclusive_fifo(jobs, sleeps):
    trace = trace_of_shared(jobs)
    settings = replace(FREE, sleep=None if not sleeps else Sleep(after_ms=10**9))
    never = outcome_of(trace, eaco(utilisation_limit=0.0), settings=settings)
    fifo = outcome_of(trace, PRESETS["fifo"], settings=settings)
    for column in ("first_start_ms", "finish_ms", "service_gpu_ms", "useful_gpu_ms", "preemptions", "restarts"):
        assert np.array_equal(getattr(never, column), getattr(fifo, column)), column
    for column in ("job", "start_ms", "end_ms", "share_milli", "first_gpu", "gpu"):
        assert np.array_equal(getattr(never.runs, column), getattr(fifo.runs, column)), column


@given(SHARED, st.sampled_from(("eaco", "gandiva-pack", "fifo-packed")), st.sampled_from((0.0, 0.5)))
def test_memory_and_gpus_are_never_exceeded_and_every_job_ends(jobs, name, noise):
    trace = trace_of_shared(jobs)
    truth = Sharing(Rigid(trace), trace, DEMAND, noise=noise)
    outcome = replay(trace, parse_cluster("2x2xV100"), PRESETS[name], ReplaySettings(gap_ms=0), truth=truth)
    check_never_shared(outcome)
    check_one_place(outcome)
    assert (outcome.finish_ms != NONE).all()
    runs = outcome.runs
    counts = np.diff(runs.first_gpu)
    memory = np.repeat(np.maximum(trace.gpu_mem_mib[runs.job], 0), counts)
    unknown = np.repeat((trace.gpu_mem_mib[runs.job] == NONE) | (trace.gpu_util_milli[runs.job] == NONE), counts)
    start, end = np.repeat(runs.start_ms, counts), np.repeat(runs.end_ms, counts)
    for row in range(len(runs.gpu)):
        together = (runs.gpu == runs.gpu[row]) & (start <= start[row]) & (start[row] < end)
        assert memory[together].sum() <= 16_384
        assert together.sum() == 1 or not unknown[together].any()


WORSE = MeasuredSets(rule=DemandRule(per_neighbour=0.9))


def test_an_undone_trial_leaves_the_others_as_they_were_and_is_not_tried_again():
    """The truth is worse than believed: 1.9 instead of 1.08. Two jobs meet, report, and part; both run on alone."""
    trace = small_trace(job(run=8000, model="a", **LIGHT), job(at=100, run=8000, model="b", **LIGHT))
    journal = Journal()
    outcome = outcome_of(trace, EACO, "2x1xV100", truth=WORSE, journal=journal)
    parted_ms = 100_000 + OBSERVATION_MS
    runs = list(zip(*(column.tolist() for column in (
        outcome.runs.job, outcome.runs.start_ms, outcome.runs.share_milli, outcome.runs.gpu)), strict=True))
    assert runs == [
        (0, 0, 1000, 0), (0, 100_000, 500, 0), (1, 100_000, 500, 0), (0, parted_ms, 1000, 0), (1, parted_ms, 1000, 1),
    ]
    assert (outcome.preemptions.tolist(), outcome.restarts.tolist()) == ([0, 1], [0, 1])
    assert outcome.useful_gpu_ms.sum() == outcome.service_gpu_ms.sum()  # no work was lost


@dataclass(frozen=True)
class Watched(EnergySharing):
    """Notes what it decides, by job id."""

    seen: list[dict[int, tuple[int, int, int]]] = field(default_factory=list)

    def __call__(self, snapshot, beliefs, order, sizes):
        grants = EnergySharing.__call__(self, snapshot, beliefs, order, sizes)
        columns = (snapshot.jobs.id[grants.job], grants.node, grants.gpu, grants.share_milli)
        self.seen.append({job_: rest for job_, *rest in zip(*(column.tolist() for column in columns), strict=True)})
        return grants


def test_an_undo_restores_the_setting_that_the_others_had():
    place = Watched()
    trace = small_trace(job(run=8000, **LIGHT), job(at=100, run=8000, **LIGHT))
    outcome = outcome_of(trace, replace(EACO, place=place), "1x1xV100", truth=WORSE)
    alone, together, after = {0: [0, 0, 1000]}, {0: [0, 0, 500], 1: [0, 0, 500]}, {1: [0, 0, 1000]}
    decided_in_turn = [one for at, one in enumerate(place.seen) if not at or one != place.seen[at - 1]]
    assert decided_in_turn == [alone, together, alone, after]  # once parted, they are not joined again
    assert outcome.preemptions.tolist() == [0, 1]


def test_what_was_observed_decides_for_the_next_jobs_of_the_same_models():
    """Models a and b were undone; the next pair of them is not tried, although its figures differ."""
    pair = ({"model": "a", **LIGHT}, {"model": "b", **LIGHT})
    trace = small_trace(
        job(run=3000, **pair[0]), job(at=10, run=3000, **pair[1]),
        job(at=9000, run=3000, **{**pair[0], "gpu_util": 210}), job(at=9010, run=3000, **{**pair[1], "gpu_util": 210}),
    )
    outcome = outcome_of(trace, EACO, "2x1xV100", truth=WORSE)
    assert outcome.preemptions.tolist() == [0, 1, 0, 0]
    assert outcome.runs.share_milli[outcome.runs.start_ms >= 9_000_000].tolist() == [1000, 1000]


def test_the_baselines_pack_only_when_no_gpus_are_free():
    light = [job(run=1000, gpu_util=200, gpu_mem=1_000) for _ in range(3)]
    for name in ("gandiva-pack", "fifo-packed"):
        runs = outcome_of(small_trace(*light[:2]), PRESETS[name], "2x1xV100").runs
        assert runs.share_milli.tolist() == [1000, 1000]
        runs = outcome_of(small_trace(*light), PRESETS[name], "2x1xV100").runs
        assert sorted(runs.share_milli[runs.start_ms == 0].tolist()) == [500, 500, 1000]


def test_pairs_that_are_too_slow_are_not_packed_or_separated():
    heavy = small_trace(*(job(run=4000, gpu_util=900, gpu_mem=1_000) for _ in range(2)))
    packed = outcome_of(heavy, PRESETS["fifo-packed"], "1x1xV100")
    assert packed.runs.share_milli.tolist() == [1000, 1000]  # 2 / 1.85 is below 1.5
    apart = outcome_of(
        heavy, PRESETS["gandiva-pack"], "1x1xV100", truth=MeasuredSets(rule=DemandRule(per_neighbour=1.5)),
    )
    assert apart.preemptions.tolist() == [0, 1]  # 2 / 2.5 is below 1


@pytest.mark.parametrize("constants", [{"alpha": 1.5}, {"residents": 5}, {"exponent": 0.0}, {"memory_limit": -1.0}])
def test_impossible_constants_are_refused(constants):
    with pytest.raises(ConfigError, match=f"found {next(iter(constants))}="):
        EnergySharing(**constants)


def test_measured_sets_are_the_basis_where_there_are_any():
    sets = MeasuredSets(sets=(MeasuredSet("V100", ("alexnet", "resnet50"), (1.0352, 1.0352)),))
    trace = small_trace(*(job(run=5000, model=model, **LIGHT) for model in ("alexnet", "resnet50")))
    journal = Journal()
    outcome = outcome_of(trace, EACO, "1x1xV100", truth=sets, journal=journal)
    assert any("2 by what was observed of exactly such jobs" in said for said in outcome.assumptions)
    waits = [line for line in journal.lines if f"[{int(Reason.SHARES_BY_HISTORY)},-1]" in line]
    assert waits
    assert not [line for line in journal.lines if f"[{int(Reason.SHARES_BY_DEMAND)},-1]" in line]
