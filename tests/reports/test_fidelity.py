"""The comparison of a replay with the record, on jobs whose errors are known."""

from __future__ import annotations

import numpy as np
import pytest

from brim.core.trace import trace_of
from brim.errors import ConfigError
from brim.reports.fidelity import Total, fidelity

from .fakes import replay_of, runs_of

S = 1000


def replay():
    """Recorded: a 0-4 s, b waits 4 s and ends at 8 s, c ends at 10 s. Replayed: b begins and ends 1 s later."""
    trace = trace_of(
        name="t", format="test", job_id=["a", "b", "c"], submit_ms=[0, 0, 2 * S], gpus=[1, 2, 1],
        run_ms=[4 * S, 4 * S, 2 * S], wait_ms=[0, 4 * S, 6 * S], jct_ms=[4 * S, 8 * S, 8 * S],
    )
    runs = runs_of([(0, 0, 4 * S, [0]), (1, 5 * S, 9 * S, [0, 1]), (2, 9 * S, 11 * S, [0])])
    return replay_of(trace, "1x2xT4", runs, [4 * S, 9 * S, 11 * S], preemptions=np.array([0, 0, 2]))


HELD = np.array([4 * S, 8 * S, 2 * S])


def test_known_errors_of_totals_and_jobs():
    found = fidelity(replay(), HELD, np.ones(3, dtype=np.bool_))
    assert found.totals["jct_mean_s"] == Total(pytest.approx(20 / 3), pytest.approx(22 / 3))
    assert found.totals["jct_mean_s"].error_ratio == pytest.approx(0.1)
    assert found.totals["queue_mean_s"] == Total(pytest.approx(10 / 3), pytest.approx(12 / 3))
    assert found.totals["makespan_s"] == Total(10.0, 11.0)
    assert found.totals["allocated_gpu_s"] == Total(14.0, 14.0)
    jct = found.per_job["jct_s"]
    assert jct.error_C.tolist() == [0.0, 1.0, 1.0]
    assert (jct.percentile(50), jct.percentile(100)) == (1.0, 1.0)
    assert found.per_job["allocated_gpu_s"].error_C.tolist() == [0.0, 0.0, 0.0]
    assert found.worst.tolist() == [1, 2, 0]
    assert found.preemptions == 2


def test_jobs_that_are_not_compared_count_nowhere():
    found = fidelity(replay(), HELD, np.array([True, False, False]))
    assert found.rows.tolist() == [0]
    assert [total.error_ratio for total in found.totals.values()] == [0.0] * 4
    assert found.as_json()["per_job"]["jct_s"] == {"p50": 0.0, "p90": 0.0, "max": 0.0, "mean_error": 0.0}
    with pytest.raises(ConfigError, match="no job to compare"):
        fidelity(replay(), HELD, np.zeros(3, dtype=np.bool_))


def test_an_error_beside_nothing_recorded_is_no_number():
    assert Total(0.0, 1.0).error_ratio is None
    assert Total(0.0, 0.0).error_ratio == 0.0
