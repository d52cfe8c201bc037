"""What limits a start: shares, cores, memory, types, nodes; and what overheads do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.errors import ConfigError
from brim.policies.place.energy_sharing import EnergySharing
from brim.policies.place.packing import PackedPairs, RandomPairs
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.testing import job, small_trace
from brim.testing.rules import check_never_shared, permuted
from brim.testing.strategies import clusters, traces

from .exact import gpus_of, run, starts


def test_shares_fill_a_gpu_to_its_whole_and_no_further():
    """70 % + 25 % fit; another 25 % does not until the 70 % ends at 10."""
    outcome = run(small_trace(job(share=700, run=10), job(share=250, run=30), job(share=250, run=5)), "1x1xT4")
    assert starts(outcome) == [0, 0, 10]
    assert outcome.service_gpu_ms.tolist() == [7_000, 7_500, 1_250]


def test_four_quarters_share_one_gpu_while_the_other_stays_whole():
    outcome = run(small_trace(*(job(share=250, run=10) for _ in range(4)), job(gpus=1, run=10)), "1x2xT4")
    assert starts(outcome) == [0] * 5
    assert [gpus_of(outcome, row)[0] for row in range(5)] == [[0]] * 4 + [[1]]


def test_a_gang_of_shares_takes_that_share_of_each_gpu():
    outcome = run(small_trace(job(gpus=2, share=500, run=10), job(gpus=2, share=500, run=10)), "1x2xT4")
    assert starts(outcome) == [0, 0]
    assert outcome.service_gpu_ms.tolist() == [10_000, 10_000]


def test_cores_bind_before_gpus():
    outcome = run(small_trace(*(job(cpu=3_000, run=10) for _ in range(3))), "1x4xT4:cpus=7")
    assert starts(outcome) == [0, 0, 10]


def test_memory_binds_before_gpus():
    outcome = run(small_trace(*(job(mem=3_000, run=10) for _ in range(3))), "1x4xT4:mem=8GB")
    assert starts(outcome) == [0, 0, 10]


def test_cores_come_back_with_the_job():
    outcome = run(small_trace(*(job(cpu=4_000, run=10) for _ in range(5))), "1x4xT4:cpus=4")
    assert starts(outcome) == [0, 10, 20, 30, 40]


def test_a_gang_never_mixes_types():
    """Two T4 and two V100 are free, none of them has three: the gang of three waits for the third T4."""
    outcome = run(small_trace(job(run=10, gpu_type="T4"), job(gpus=3, run=5)), "3x1xT4+2x1xV100")
    assert starts(outcome) == [0, 10]


def test_a_job_goes_to_the_type_it_asks_for_whoever_waits():
    trace = small_trace(job(run=10, gpu_type="V100"), job(run=10, gpu_type="V100"), job(run=10, gpu_type="T4"))
    outcome = run(trace, "1x1xT4+1x1xV100", "sjf")
    assert starts(outcome) == [0, 10, 0]


def test_types_are_ignored_where_there_is_only_one():
    assert starts(run(small_trace(job(gpu_type="H100")), "1x1xT4")) == [0]


def test_a_gang_larger_than_any_node_spans_nodes():
    outcome = run(small_trace(job(gpus=6, run=10), job(gpus=2, run=5), job(gpus=1, run=5)), "2x4xT4")
    assert gpus_of(outcome, 0)[0] == [0, 1, 2, 3, 4, 5]
    assert starts(outcome) == [0, 0, 5]


@pytest.mark.parametrize(("one", "said"), [
    (job(gpus=9), "needs 9 GPUs"), (job(cpu=9_000), "9 cores"), (job(mem=99_999), "GB each"),
    (job(gpu_type="H100"), "asks? for GPU type 'H100'"), (job(gpus=3, gpu_type="V100"), "of type V100"),
])
def test_a_job_that_could_never_run_is_refused_at_once(one, said):
    with pytest.raises(ConfigError, match=said):
        run(small_trace(one), "1x4xT4:cpus=8,mem=32GB+1x2xV100:cpus=8,mem=32GB")


POLICIES = st.sampled_from(sorted(PRESETS))
WHOLE_GPUS = st.sampled_from(sorted(
    name for name, policy in PRESETS.items() if not isinstance(policy.place, (EnergySharing, PackedPairs, RandomPairs))
))
"""Policies under which no job shares a GPU that asks for a whole one."""


@given(st.data())
def test_without_costs_service_is_exactly_the_work(data):
    """GPU-ms are conserved: held = useful; every job runs for its run time, no sooner over than that."""
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster, jobs_max=14))
    outcome = run(trace, cluster, data.draw(WHOLE_GPUS))
    held = (outcome.runs.end_ms - outcome.runs.start_ms)
    assert np.bincount(outcome.runs.job, held, len(trace)).astype(int).tolist() == trace.run_ms.tolist()
    whole = trace.share_milli == 1000
    for column in (outcome.service_gpu_ms, outcome.useful_gpu_ms):
        assert column[whole].tolist() == trace.gpu_ms[whole].tolist()
    assert (outcome.finish_ms - trace.submit_ms >= trace.run_ms).all()
    assert (outcome.restarts == outcome.preemptions).all() or (trace.run_ms == 0).any()
    check_never_shared(outcome)
    counts = np.diff(outcome.runs.first_gpu)
    assert (counts == trace.gpus[outcome.runs.job]).all()


@given(st.data())
def test_stalls_are_the_costs_of_starts_saves_and_restarts(data):
    """Held - useful of a job: each attempt pays its start, and its save when it had made progress, never more."""
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster, jobs_max=14))
    costs = Overheads(start_ms=2_000, save_ms=5_000, restart_ms=7_000)
    outcome = run(trace, cluster, data.draw(POLICIES), overheads=costs)
    held = np.bincount(outcome.runs.job, outcome.runs.end_ms - outcome.runs.start_ms, len(trace)).astype(int)
    stall = held - trace.run_ms
    most = 2_000 + 7_000 * outcome.restarts + 5_000 * outcome.preemptions
    assert (stall <= most).all()
    calm = outcome.preemptions == 0
    assert (stall[calm] == 2_000).all()


@given(st.data())
def test_doubled_overheads_never_reduce_the_stall_of_who_is_not_preempted(data):
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster))
    costs = Overheads(start_ms=3_000, save_ms=5_000, restart_ms=7_000)
    once, twice = (run(trace, cluster, "backfill", overheads=costs.times(factor)) for factor in (1, 2))
    for outcome, factor in ((once, 1), (twice, 2)):
        stall = outcome.runs.end_ms - outcome.runs.start_ms - trace.run_ms[outcome.runs.job]
        assert stall.tolist() == [3_000 * factor] * len(trace)


def test_doubled_overheads_double_each_stall_of_a_preempted_job():
    trace = small_trace(job(run=100), job(at=10, run=3))
    stalls = []
    for factor in (0, 1, 2):
        costs = Overheads(start_ms=2_000, save_ms=5_000, restart_ms=7_000).times(factor)
        stalls.append(int((run(trace, "1x1xT4", "srtf-oracle", overheads=costs).service_gpu_ms - trace.gpu_ms).sum()))
    assert stalls == [0, 16_000, 32_000]


@given(st.data())
def test_same_seed_same_bytes_and_rows_in_any_order(data):
    from brim.core.trace import trace_of

    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster))
    policy = data.draw(POLICIES)
    one, two = run(trace, cluster, policy), run(trace, cluster, policy)
    other = run(trace_of(**permuted(trace, data.draw(st.integers(0, 9)))), cluster, policy)
    for name in ("first_start_ms", "finish_ms", "service_gpu_ms", "preemptions"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes() == getattr(other, name).tobytes()
    assert one.runs.gpu.tobytes() == two.runs.gpu.tobytes() == other.runs.gpu.tobytes()


def test_an_interrupted_replay_keeps_what_is_done():
    from brim.sim.twin import ReplaySettings, replay

    trace = small_trace(*(job(at=row, run=5) for row in range(3_000)))
    outcome = replay(trace, parse_cluster("1x1xT4"), PRESETS["las"], ReplaySettings(gap_ms=0),
                     on_progress=lambda ended, now_ms: ended < 100)
    assert outcome.partial
    assert 0 < (outcome.finish_ms >= 0).sum() < 3_000
    assert (outcome.runs.end_ms <= outcome.end_ms).all()
    assert (outcome.first_start_ms <= outcome.end_ms).all()
