"""Truth ``parametric``: the formulas of the beliefs, exact where the trace says something, never beyond its bounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.batching import GradientStatistics, gain, split
from brim.beliefs.throughput import step_s
from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.errors import ConfigError
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.sim.truths.categories import CATEGORIES, category_of, drawn_jobs, jobs_of
from brim.sim.truths.parametric import ElasticJobs, Parametric
from brim.sim.truths.truth import HasStepTimes, Pace, packed
from brim.sim.twin import ReplaySettings, replay

CLUSTER = parse_cluster("4x4xT4")
H = 3_600_000


def trace_with(gpus, run_ms, **columns):
    size = len(gpus)
    return trace_of(
        name="t", format="test", job_id=[f"job-{row}" for row in range(size)], gpus=gpus, run_ms=run_ms,
        **({"submit_ms": [0] * size} | columns),
    )


@st.composite
def traces(draw):
    size = draw(st.integers(1, 12))
    gpus = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=size, max_size=size))
    run_ms = draw(st.lists(st.integers(0, 40 * 24 * H), min_size=size, max_size=size))
    return trace_with(gpus, run_ms)


@st.composite
def truths(draw, share=1.0):
    return drawn_jobs(draw(traces()), CLUSTER, share, draw(st.integers(0, 5)))


def as_asked(truth, job):
    limits = {name: int(column[job]) for name, column in truth.columns().items()}
    gpus = int(truth._trace.gpus[job])
    return packed(gpus, 4), limits["batch"]


@settings(deadline=None)
@given(truths())
def test_run_times_as_asked_are_those_of_the_trace_to_the_millisecond(truth):
    assert truth.run_ms.tolist() == truth._trace.run_ms.tolist()
    for job, run_ms in enumerate(truth.run_ms.tolist()):
        pace = truth.pace(job, 0.0, *as_asked(truth, job))
        assert int(np.ceil(pace.until / pace.per_ms)) == run_ms


@settings(deadline=None)
@given(truths(), st.data())
def test_work_is_conserved_over_any_sequence_of_stretches(truth, data):
    """Whatever is done in between, the job ends when its work is done, and the work is the same."""
    columns, job = truth.columns(), data.draw(st.integers(0, len(truth.run_ms) - 1))
    total = truth.pace(job, 0.0, *as_asked(truth, job)).until
    done, left = 0.0, total
    for _ in range(data.draw(st.integers(1, 5))):
        gpus = data.draw(st.integers(int(columns["gpus_min"][job]), int(columns["gpus_max"][job])))
        least, most = int(columns["batch_min"][job]), int(columns["batch_max"][job])
        batch = data.draw(st.integers(least, most)) if least > 0 else -1
        pace = truth.pace(job, done, packed(gpus, 4), batch)
        assert (pace.until, pace.ends) == (total, True)
        piece = left * data.draw(st.floats(0, 0.9))
        done += pace.per_ms * (piece / pace.per_ms)
        left -= piece
        assert pace.until - done == pytest.approx(left, rel=1e-9, abs=1e-6 * total)


@settings(deadline=None)
@given(truths(), st.data())
def test_no_configuration_beats_the_least_run_and_gpu_time(truth, data):
    columns, job = truth.columns(), data.draw(st.integers(0, len(truth.run_ms) - 1))
    gpus = data.draw(st.integers(int(columns["gpus_min"][job]), int(columns["gpus_max"][job])))
    least, most = int(columns["batch_min"][job]), int(columns["batch_max"][job])
    batch = data.draw(st.integers(least, most)) if least > 0 else -1
    nodes = data.draw(st.sampled_from([packed(gpus, 4), packed(gpus, 2), packed(gpus, 1)]))
    pace = truth.pace(job, 0.0, nodes, batch)
    run_ms = pace.until / pace.per_ms
    assert truth.shortest_ms[job] <= run_ms
    assert truth.least_gpu_ms[job] <= run_ms * gpus


@settings(deadline=None)
@given(truths(), st.data())
def test_pace_rises_with_the_batch_and_falls_with_the_nodes(truth, data):
    columns, job = truth.columns(), data.draw(st.integers(0, len(truth.run_ms) - 1))
    if columns["batch_min"][job] < 0:
        return
    gpus = data.draw(st.integers(2, max(2, int(columns["gpus_max"][job]))))
    full = int(columns["local_batch_max"][job])
    paces = [truth.pace(job, 0.0, packed(gpus, 4), gpus * local).per_ms for local in range(1, full + 1)
             if columns["batch_min"][job] <= gpus * local <= columns["batch_max"][job]]
    assert all(one <= other * (1 + 1e-12) for one, other in pairwise(paces))
    batch = min(gpus * full, int(columns["batch_max"][job]))
    assert truth.pace(job, 0.0, (1,) * gpus, batch).per_ms <= truth.pace(job, 0.0, packed(gpus, 4), batch).per_ms


def test_on_one_node_the_same_local_batch_on_more_gpus_is_faster():
    truth = drawn_jobs(trace_with([4], [2 * H]), parse_cluster("1x64xT4"), 1.0)
    paces = [truth.pace(0, 0.0, (gpus,), 16 * gpus).per_ms for gpus in range(2, 9)]
    assert all(one < other for one, other in pairwise(paces))


def given_jobs(**changes):
    columns = {
        "row": np.array([0, 2]), "parameters": np.array([[0.1, 0.01, 0.05, 0.01, 0.1, 0.02, 1.0]] * 2),
        "batch": np.array([32, 64]), "batch_min": np.array([16, 32]), "batch_max": np.array([256, 512]),
        "local_batch_min": np.array([4, 4]), "local_batch_max": np.array([64, 64]), "gpus_min": np.array([1, 1]),
        "gpus_max": np.array([8, 16]), "samples": np.array([1e6, 2e6]),
    }
    return ElasticJobs(**(columns | changes))


def test_jobs_given_outright_follow_the_formulas_of_the_beliefs():
    trace = trace_with([1, 4, 2], [-1, 5_000, -1])
    noise = GradientStatistics(np.array([np.nan, 30.0]), np.array([np.nan, 2.0]))
    truth = Parametric(trace, CLUSTER, given_jobs(noise=noise, profile=np.array([0, 1])))
    assert isinstance(truth, HasStepTimes)
    assert truth.pace(1, 0.0, (4,), -1) == Pace(1.0, 5_000.0, True, None)
    pace = truth.pace(2, 1e6, (4, 4), 512)
    local, extra = split(8, 512, 32, 512, 64)
    assert (int(local), int(extra)) == (64, 0)
    whole = float(step_s(given_jobs().parameters[1], 2, 8, 64))
    worth = float(gain(np.array(512), np.array(32), GradientStatistics(np.array(30.0), np.array(2.0))))
    assert pace.per_ms == pytest.approx(worth * 32 / whole / 1000)
    assert pace.report is not None
    assert (pace.report.samples_done, pace.report.grad_var, pace.report.grad_sqr) == (1e6, 30.0, 2.0)
    (sample,) = pace.report.seen
    assert (sample.nodes, sample.gpus, sample.local_batch) == (2, 8, 64)
    assert sample.step_s == pytest.approx(whole, rel=0.25)
    once_more = float(step_s(given_jobs().parameters[0], 1, 1, 16, 1))  # one GPU accumulates above the initial batch
    assert truth.run_ms[0] == pytest.approx(1e6 / (32 / once_more / 1000), abs=1)
    assert np.isnan(truth.total_samples()[1])
    assert truth.total_samples()[[0, 2]].tolist() == [1e6, 2e6]
    assert truth.columns()["profile"].tolist() == [0, -1, 1]


def test_reported_steps_are_noisy_by_job_and_configuration_and_the_seed_draws_them():
    trace = trace_with([1, 4, 2], [-1, 5_000, -1])
    one, same, other = (Parametric(trace, CLUSTER, given_jobs(), seed=seed) for seed in (1, 1, 2))
    steps = [[truth.pace(job, 0.0, (gpus,), 64).report.seen[0].step_s for job in (0, 2) for gpus in (1, 2)]
             for truth in (one, same, other)]
    assert steps[0] == steps[1] != steps[2]
    assert len(set(steps[0])) == 4
    silent = Parametric(trace, CLUSTER, given_jobs(), step_noise=0.0).pace(0, 0.0, (1,), 64).report.seen[0]
    assert silent.step_s == pytest.approx(0.1 + 0.01 * 64 if silent.local_batch == 64 else 0.1 + 0.01 * 32)
    assert one.steps(0).step_s(65, 3) is None
    assert one.steps(0).step_s(64, 3) == pytest.approx([0.74] * 3, rel=0.3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": np.array([32])}, "batch has shape (1,), expected (2,)"),
        ({"parameters": np.zeros((2, 6))}, "parameters has shape (2, 6), expected (2, 7)"),
        ({"parameters": np.zeros((2, 7))}, "row 0: expected parameters"),
        ({"gpus_min": np.array([1, 17])}, "row 1: expected 1 <= gpus_min <= gpus_max"),
        ({"batch": np.array([32, 1_000])}, "row 1: expected a batch in its range"),
        ({"samples": np.array([0.0, 1.0])}, "row 0: expected samples above 0"),
        ({"row": np.array([2, 0])}, "row 1: expected increasing rows"),
        ({"local_batch_max": np.array([2, 64])}, "local_batch_min=4 and local_batch_max=2"),
        ({"noise": GradientStatistics(np.zeros(1), np.zeros(2))}, "noise has shape (1,)"),
    ],
)
def test_jobs_that_cannot_be_are_refused(changes, said):
    with pytest.raises(ConfigError) as error:
        given_jobs(**changes)
    assert said in str(error.value)


def test_jobs_that_do_not_go_with_the_trace_are_refused():
    run_ms = [-1, 5_000, -1]
    with pytest.raises(ConfigError, match="job-2 asks for GPUs outside its own limits"):
        Parametric(trace_with([1, 4, 16], run_ms), CLUSTER, given_jobs(gpus_max=np.array([8, 8])))
    with pytest.raises(ConfigError, match="row 2 does not exist, the trace has 2 jobs"):
        Parametric(trace_with([1, 4], [-1, 5_000]), CLUSTER, given_jobs())
    with pytest.raises(ConfigError, match="job-0 asks for a share"):
        Parametric(trace_with([1, 4, 2], run_ms, share_milli=[500, 1000, 1000]), CLUSTER, given_jobs())
    with pytest.raises(ConfigError, match="job-0\\), which --truth parametric needs"):
        Parametric(trace_with([1, 4, 2], run_ms), CLUSTER, given_jobs(samples=None))
    with pytest.raises(ConfigError, match="elastic share: found 2"):
        drawn_jobs(trace_with([1], [1]), CLUSTER, 2)


def test_who_is_elastic_depends_on_the_id_alone_and_grows_with_the_share():
    trace = trace_with([1, 2, 4, 8] * 50, [H] * 200)
    rows = {share: set(drawn_jobs(trace, CLUSTER, share)._jobs.row.tolist()) for share in (0.0, 0.3, 0.6, 1.0)}
    assert rows[0.0] == set()
    assert rows[0.3] < rows[0.6] < rows[1.0] == set(range(200))
    assert 40 <= len(rows[0.3]) <= 80
    kept = np.arange(0, 200, 2)
    assert {2 * row for row in drawn_jobs(trace.take(kept), CLUSTER, 0.3)._jobs.row.tolist()} == {
        row for row in rows[0.3] if row % 2 == 0
    }
    assert set(drawn_jobs(trace, CLUSTER, 0.3, seed=1)._jobs.row.tolist()) != rows[0.3]


def test_categories_follow_what_was_asked_and_how_long_it_ran():
    gpus, run_ms = np.array([1, 1, 2, 4, 8, 8]), np.array([H - 1, H, H - 1, H, H - 1, H])
    names = [CATEGORIES[code].name for code in category_of(gpus, run_ms, 4)]
    assert names == ["small", "balanced", "communication", "balanced", "communication", "compute"]


def test_each_category_has_the_exchange_it_says():
    """A job whose draws are all one half is the category itself."""
    size = len(CATEGORIES)
    jobs = jobs_of(np.arange(size), np.arange(size), np.ones(size, dtype=np.int64), np.full(size, 64),
                   np.full((size, 3), 0.5))
    for kind, p in zip(CATEGORIES, jobs.parameters, strict=True):
        compute = p[0] + p[1] * kind.local_batch_max
        assert (p[2] + p[3] * np.log2(7)) / compute == pytest.approx(kind.exchange_ratio)
    assert jobs.batch_max[3] <= CATEGORIES[3].local_batch_max / 2


def test_larger_gangs_are_allowed_only_where_they_fit():
    trace = trace_with([1, 1, 16], [H] * 3, cpu_milli=[0, 8_000, 0])
    truth = drawn_jobs(trace, parse_cluster("4x4xT4:cpus=16"), 1.0)
    assert truth.columns()["gpus_max"].tolist() == [16, 8, 16]
    small = drawn_jobs(trace_with([1], [H - 1]), CLUSTER, 1.0)
    assert small.columns()["gpus_max"].tolist() == [8]  # its largest batch, 32, has 8 times the fewest samples, 4
    wide = drawn_jobs(trace_with([4, 4], [2 * H] * 2, cpu_milli=[0, 8_000]), parse_cluster("2x8xT4:cpus=32"), 1.0)
    assert wide.columns()["gpus_max"].tolist() == [16, 8]


def test_a_replay_of_jobs_as_asked_takes_what_the_trace_says_and_never_less_than_the_bounds():
    rng = np.random.default_rng(3)
    trace = trace_with(rng.choice([1, 2, 4], 40), rng.integers(1_000, 3 * H, 40),
                       submit_ms=np.sort(rng.integers(0, 10 * H, 40)))
    cluster = parse_cluster("1x8xT4")  # on several nodes fifo may spread a gang, which then takes longer
    truth = drawn_jobs(trace, cluster, 0.5)
    still = ReplaySettings(overheads=Overheads(save_ms=0, restart_ms=0), gap_ms=0)
    outcome = replay(trace, cluster, PRESETS["fifo"], still, truth=truth)
    rigid = replay(trace, cluster, PRESETS["fifo"], still)
    assert outcome.finish_ms.tolist() == rigid.finish_ms.tolist()
    assert (outcome.ideal_run_ms <= trace.run_ms).all()
    assert (outcome.ideal_gpu_ms <= trace.gpu_ms).all()
    assert (outcome.gpus_max > outcome.gpus_min).sum() == len(truth._jobs)
    assert outcome.run_ms.tolist() == trace.run_ms.tolist()
