"""A job that is timed before it trains: what that costs, and when its result is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from brim.beliefs.analyser import STEPS_AT_ONCE, WARM_UP_STEPS, analyse
from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.engine.journal import Journal
from brim.policies.presets import PRESETS
from brim.policies.sockets import Sizes
from brim.sim.overheads import Overheads
from brim.sim.truths.measured import Measured
from brim.sim.truths.profiles import read_applications
from brim.sim.truths.truth import HasStepTimes
from brim.sim.twin import ReplaySettings
from brim.sim.twin import replay as replayed
from brim.testing.elastic import Line, scripted
from tests.sim.test_profiles import written

COSTS = Overheads(start_ms=2_000, save_ms=0, restart_ms=3_000)


@dataclass(frozen=True)
class Analysing:
    """Everyone on one GPU, analysed first until steps were seen; on two GPUs from ``grow_ms`` on."""

    grow_ms: int = 1 << 60
    analyses: bool = True
    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order):
        jobs = snapshot.jobs
        size = 2 if snapshot.now_ms >= self.grow_ms else 1
        unknown = ~np.isin(jobs.profile, snapshot.seen.profile)
        return Sizes(
            gpus=np.full(len(jobs), size), global_batch=jobs.batch, analyse=unknown & self.analyses,
        )


def policy(**size):
    base = PRESETS["fifo"]
    if "grow_ms" in size:
        base = scripted(Line(at=0, has={0: ([(0, 0)], 8)}), Line(at=5, has={0: ([(0, 0), (0, 1)], 8)}))
    return replace(base, name="analysing", size=Analysing(**size), period_ms=1_000)


@pytest.fixture
def toy(tmp_path):
    return read_applications(written(tmp_path))["toy"]


def play(toy, *at_s, gpus=1, **size):
    trace = trace_of(
        name="t", format="test", job_id=[f"j{row}" for row in range(len(at_s))], gpus=[gpus] * len(at_s),
        submit_ms=[at * 1000 for at in at_s], batch=[8] * len(at_s), profile=[0] * len(at_s), profiles=("toy",),
    )
    cluster, journal = parse_cluster("1x2xT4"), Journal()
    truth = Measured(trace, cluster, {"toy": toy})
    outcome = replayed(
        trace, cluster, policy(**size), ReplaySettings(overheads=COSTS, gap_ms=0), truth=truth, journal=journal
    )
    heard = [json.loads(line) for line in journal.lines if '"e":"REPORTED"' in line]
    return outcome, truth, heard


def test_a_job_is_timed_before_it_trains_and_its_first_report_has_the_samples(toy):
    outcome, truth, heard = play(toy, 0)
    assert isinstance(truth, HasStepTimes)
    told = analyse(truth.steps(0), batch_min=8, gpus_max=2, local_batch_max=12, local_batch_min=4)
    assert [sample.local_batch for sample in told.samples] == [4, 5, 6, 8, 10, 12]
    steps_s = sum(toy.times_s((1,), sample.local_batch)[0] for sample in told.samples)
    assert told.seconds == pytest.approx((WARM_UP_STEPS + STEPS_AT_ONCE) * steps_s)
    takes_ms = int(np.ceil(told.seconds * 1000))
    assert outcome.finish_ms[0] == pytest.approx(2_000 + takes_ms + truth.run_ms[0], abs=toy.epochs)
    first = heard[0]
    assert first["t"] == 2_000 + takes_ms
    assert len(first["report"]["seen"]) == 6 + 1  # and of the step it trains with
    assert outcome.useful_gpu_ms[0] == outcome.service_gpu_ms[0] - 2_000 - takes_ms
    assert not outcome.unmeasured.any()


def test_the_second_job_of_a_model_is_not_timed_again(toy):
    outcome, truth, _ = play(toy, 0, 100)
    assert outcome.finish_ms[1] - 100_000 == pytest.approx(2_000 + truth.run_ms[1], abs=toy.epochs)
    assert not outcome.unmeasured.any()


def test_a_job_that_is_moved_before_its_analysis_ended_has_told_nothing(toy):
    outcome, truth, heard = play(toy, 0, grow_ms=5_000)
    assert outcome.resizes.tolist() == [1]
    assert heard[0]["t"] == 5_000 + 3_000
    assert outcome.useful_gpu_ms[0] == 2 * (outcome.finish_ms[0] - 8_000)
    samples = analyse(truth.steps(0), batch_min=8, gpus_max=2, local_batch_max=12, local_batch_min=4).samples
    assert len(samples) == 6
    assert len(heard[0]["report"]["seen"]) == 1


def test_jobs_left_as_asked_of_which_nothing_was_known_are_counted(toy):
    assert play(toy, 0, 100, analyses=False)[0].unmeasured.tolist() == [1, 0]  # the second: of the first it was seen
    assert play(toy, 0, gpus=2, analyses=False)[0].unmeasured.tolist() == [0]  # another size than asked
