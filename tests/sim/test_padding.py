"""Padding jobs in the twin: they shrink and leave within their grace, come back, and lose at most what was unsaved."""

from __future__ import annotations

import pytest

from brim.beliefs.checkpoints import young_ms
from brim.core.cluster import parse_cluster
from brim.core.replay import Replay
from brim.core.trace import JobClass
from brim.errors import ConfigError
from brim.policies.presets import find_policy
from brim.sim.overheads import Overheads, PaddingCosts
from brim.sim.twin import ReplaySettings, replay
from brim.testing.builders import Job, job, small_trace
from brim.train.checkpoint.intervals import interval_s

PADDING = JobClass.PADDING


def replayed(*jobs: Job, cluster: str = "1x2xT4", **costs: int | bool) -> Replay:
    """A replay of jobs under fifo with padding; a save takes 4 s and a restart 30 s."""
    overheads = Overheads(save_ms=4_000, padding=PaddingCosts(**costs))
    return replay(small_trace(*jobs), parse_cluster(cluster), find_policy("fifo+padding"),
                  ReplaySettings(overheads=overheads))


def row(found: Replay, name: str) -> int:
    """Row of a job."""
    return found.trace.job_id.index(name)


def test_a_padding_job_leaves_within_its_grace_comes_back_and_loses_nothing():
    """It runs from 0 to 100 s, saves until 104 s, and comes back when the regular job has ended at 204 s."""
    found = replayed(
        job(run=300, job_class=PADDING, name="pad"), job(at=100, run=100, name="regular"), cluster="1x1xT4",
    )
    pad, regular = row(found, "pad"), row(found, "regular")
    assert found.first_start_ms[regular] == 104_000
    assert found.finish_ms[regular] == 204_000
    assert found.finish_ms[pad] == 204_000 + 30_000 + 200_000
    assert (found.lost_gpu_ms[pad], found.preemptions[pad], found.useful_gpu_ms[pad]) == (0, 1, 300_000)


def test_what_cannot_be_saved_within_the_grace_is_lost_back_to_the_last_checkpoint():
    """With a checkpoint that costs 1 s and a loss expected every 600 + 100 s, it saves every 37.4 s: last at 74.8 s."""
    found = replayed(
        job(run=300, job_class=PADDING, name="pad"), job(at=100, run=100, name="regular"), cluster="1x1xT4",
        grace_ms=1_000,
    )
    pad, regular = row(found, "pad"), row(found, "regular")
    interval_ms = round(young_ms(1_000, 700_000))
    assert interval_ms == 37_417
    assert found.first_start_ms[regular] == 101_000
    assert found.lost_gpu_ms[pad] == 100_000 - 2 * interval_ms
    assert found.finish_ms[pad] == 201_000 + 30_000 + 300_000 - 2 * interval_ms


def test_the_interval_is_the_first_order_of_that_which_jobs_choose():
    assert young_ms(1_000, 3_600_000) / 1_000 == pytest.approx(interval_s(1.0, 3_600.0), rel=0.02)


def test_regular_jobs_never_wait_longer_for_padding_than_its_grace():
    """I9: each regular job starts within the grace of the time at which it starts without padding that has to save."""
    regular = [job(at=50 * number, run=40, gpus=1 + number % 2, name=f"r{number}") for number in range(10)]
    padding = [job(run=2_000, gpus=1, job_class=PADDING, name=f"p{number}") for number in range(3)]
    beside = replayed(*regular, *padding, grace_ms=3_000)
    alone = replayed(*regular)
    for one in regular:
        late_ms = beside.first_start_ms[row(beside, one.name)] - alone.first_start_ms[row(alone, one.name)]
        assert 0 <= late_ms <= 3_000, one.name
    assert beside.preemptions.sum() >= 10


def test_negative_costs_are_refused():
    with pytest.raises(ConfigError, match="found grace_ms=-1, expected at least 0"):
        PaddingCosts(grace_ms=-1)
