"""Transforms keep what they promise to keep."""

from __future__ import annotations

import math

import numpy as np
import pytest

from brim import traces
from brim.core.cluster import parse_cluster
from brim.core.trace import NONE, trace_of
from brim.errors import ConfigError
from brim.units import MS_PER_DAY, MS_PER_H

from .examples import equal


def small(origin_ms=None, step_ms=MS_PER_H, jobs=48):
    return trace_of(
        name="small", format="test", job_id=[f"j{row}" for row in range(jobs)], submit_ms=np.arange(jobs) * step_ms,
        gpus=[2] * jobs, run_ms=[MS_PER_H] * jobs, after=[row - 1 for row in range(jobs)], origin_ms=origin_ms,
    )  # fmt: skip


def test_limit_keeps_the_first():
    assert traces.limit(small(), 3).job_id == ("j0", "j1", "j2")
    assert len(traces.limit(small(), 1000)) == 48
    with pytest.raises(ConfigError, match="found 0"):
        traces.limit(small(), 0)


def test_since_starts_at_the_date_and_moves_time_0():
    later = traces.since(small(origin_ms=0), "1970-01-02")
    assert later.job_id[0] == "j24"
    assert (later.submit_ms[0], later.origin_ms) == (0, MS_PER_DAY)
    assert later.after[0] == NONE


@pytest.mark.parametrize(("date", "origin_ms", "expected"), [
    ("soon", 0, "invalid date"), ("1980-01-01", 0, "no job from 1980"), ("1970-01-01", None, "does not say on which"),
])  # fmt: skip
def test_since_says_what_is_wrong(date, origin_ms, expected):
    with pytest.raises(ConfigError, match=expected):
        traces.since(small(origin_ms=origin_ms), date)


def test_load_scales_by_the_factor():
    cluster = parse_cluster("1x2xT4")
    trace = small()
    assert traces.offered_load(trace, cluster) == pytest.approx(48 / 47)
    assert traces.offered_load(traces.scale_load(trace, 2), cluster) == pytest.approx(2 * 48 / 47)
    assert equal(traces.scale_load(trace, 1), trace)
    assert math.isnan(traces.offered_load(traces.limit(trace, 1), cluster))
    for factor in (0, -1, math.nan, math.inf):
        with pytest.raises(ConfigError):
            traces.scale_load(trace, factor)
    with pytest.raises(ConfigError, match=r"found 1e\+07, expected a number from 1e-06 to 1e\+06, such as 1.5"):
        traces.scale_load(trace, 1e7)


def test_resample_is_deterministic_and_seed_0_is_the_trace():
    trace = small()
    assert traces.resample(trace, 0) is trace
    assert equal(traces.resample(trace, 5), traces.resample(trace, 5))
    assert not equal(traces.resample(trace, 5), traces.resample(trace, 6))


def test_resample_of_jobs_that_arrive_together_draws_jobs():
    """A resampled trace that is the trace itself would give intervals of no width."""
    trace = small(step_ms=0, jobs=30)
    other = traces.resample(trace, 1)
    assert len(other) == 30
    assert not equal(other, trace)
    assert other.span_ms == 0


@pytest.mark.parametrize(("step_ms", "block_ms"), [(MS_PER_H // 2, MS_PER_H), (MS_PER_DAY // 3, MS_PER_DAY)])
def test_resample_keeps_the_time_within_the_block(step_ms, block_ms):
    trace = small(step_ms=step_ms, jobs=60)
    other = traces.resample(trace, 3)
    assert len(set(other.job_id)) == len(other) == 60
    assert other.span_ms <= trace.span_ms + block_ms
    by_id = dict(zip(trace.job_id, trace.submit_ms, strict=True))
    first = by_id[other.job_id[0].split("#")[0]]
    for name, submit_ms in zip(other.job_id, other.submit_ms, strict=True):
        assert (by_id[name.split("#")[0]] - first - submit_ms) % block_ms == 0
    linked = other.after != NONE
    assert (other.submit_ms[linked] - other.submit_ms[other.after[linked]] == step_ms).all()
    assert 0 < linked.sum() < 60
