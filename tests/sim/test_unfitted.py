"""A job whose reported step times fit no model keeps what its user asked; the replay goes on and says so."""

from dataclasses import replace

import pytest

from brim.core.cluster import parse_cluster
from brim.core.events import Sample
from brim.policies.presets import PRESETS
from brim.sim.twin import replay
from brim.testing import job, small_trace
from brim.testing.elastic import ToyTruth

JOBS = {
    "sound": job(name="sound", run=4000, gpus=2, gpus_min=1, gpus_max=4, batch=32, batch_min=8, batch_max=64,
                 local_batch_max=32),
    "odd": job(name="odd", run=4000, gpus=3, gpus_min=1, gpus_max=4, batch=32, batch_min=8, batch_max=64,
               local_batch_max=32),
}


class OddReports(ToyTruth):
    """One job says that a step takes less time than the exchange in it."""

    odd = 0  # row of "odd": of equal times the ids decide

    def pace(self, number, done, nodes, batch, colocation):
        pace = super().pace(number, done, nodes, batch, colocation)
        if self.odd == number and pace.report is not None:
            odd = (Sample(len(nodes), sum(nodes), 8, 1.0, 2.0),)
            pace = pace._replace(report=replace(pace.report, seen=odd))
        return pace


@pytest.mark.cases(2)
@pytest.mark.parametrize("policy", ["goodput", "pollux", "elastic", "optimus"])
def test_it_is_rigid_and_the_report_says_why(policy):
    trace = small_trace(*JOBS.values())
    outcome = replay(trace, parse_cluster("2x4xT4"), PRESETS[policy], truth=OddReports(trace, JOBS))
    assert (outcome.finish_ms > 0).all()
    sentence = next(line for line in outcome.assumptions if "fit no model" in line)
    assert sentence.startswith("1 job kept what was asked")
    assert "job odd: observations hold a step that takes no time or no longer than its exchange" in sentence
    runs = outcome.runs
    sizes = [int(stop - start) for job_, start, stop in zip(
        runs.job, runs.first_gpu[:-1], runs.first_gpu[1:], strict=True,
    ) if trace.job_id[job_] == "odd"]
    assert sizes[-1] == 3


def test_sound_reports_say_nothing():
    trace = small_trace(*JOBS.values())
    outcome = replay(trace, parse_cluster("2x4xT4"), PRESETS["goodput"], truth=ToyTruth(trace, JOBS))
    assert not any("fit no model" in line for line in outcome.assumptions)
