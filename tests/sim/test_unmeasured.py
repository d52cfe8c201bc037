"""Truth ``measured`` beyond the measurements: nodes of 8 GPUs, sizes nobody measured, and jobs that cannot run."""

from __future__ import annotations

import json

import pytest

from brim import traces
from brim.beliefs.throughput import grad_s, step_s
from brim.core.cluster import parse_cluster
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.sim.truths.measured import Measured, without_unmeasured
from brim.sim.truths.profiles import read_applications
from brim.sim.twin import ReplaySettings, replay
from tests.cli.commands import brim
from tests.sim.test_profiles import written

PARAMETERS = (0.02, 0.01, 0.01, 0.004, 0.05, 0.02, 1.5)
"""Of a made-up application, see ``beliefs.throughput.PARAMETERS``."""
EIGHT = ("1", "2", "4", "8", "88", "8888")
"""Placements measured on nodes of 8 GPUs."""
VALIDATION = {
    batch: [(20.0 * (epoch + 1), 1.0, 9.0) for epoch in range(3)] for batch in (32, 512, 8_192)
}
HEADER = "name,time,application,num_replicas,batch_size"


def times_s(placement: str, local_batch: int) -> tuple[float, float]:
    import numpy as np

    parameters, gpus = np.array(PARAMETERS), sum(map(int, placement))
    step = float(step_s(parameters, len(placement), gpus, local_batch))
    return step, step - float(grad_s(parameters, local_batch))


def profiles(tmp_path, placements=EIGHT, local_batches=(8, 32, 128)):
    """A folder of one application measured on nodes of 8 GPUs, with no measurement of scalability."""
    table = {(place, local): times_s(place, local) for place in placements for local in local_batches}
    return written(tmp_path / "profiles", placements=table, scalability=None, validation=VALIDATION)


def job_list(tmp_path, *rows: str):
    file = tmp_path / "list.csv"
    file.write_text("\n".join((HEADER, *rows, "")), encoding="ascii")
    return file


@pytest.mark.parametrize("placement", [(8,), (8, 8), (8,) * 4, (4,)])
def test_profiles_of_nodes_with_eight_gpus_load(tmp_path, placement):
    app = read_applications(profiles(tmp_path))["toy"]
    assert app.times_s(placement, 32) == pytest.approx(times_s("".join(map(str, placement)), 32))
    assert app.measured(placement, 32)


@pytest.mark.parametrize("placement", ["3", "7", "35", "888", "11118888", "88888888"])
def test_sizes_that_were_not_measured_follow_the_fitted_model(tmp_path, placement):
    """The made-up times are exactly of the model's form; the fit's priors pull them by some per cent."""
    app = read_applications(profiles(tmp_path))["toy"]
    step, sync = app.times_s(tuple(map(int, placement)), 32)
    want_step, want_sync = times_s(placement, 32)
    assert step == pytest.approx(want_step, rel=0.15)
    assert step - sync == pytest.approx(want_step - want_sync, rel=0.1)


@pytest.mark.parametrize("name", ["fifo", "pollux", "goodput"])
def test_a_job_that_asks_an_unmeasured_size_runs_and_is_counted(tmp_path, name):
    cluster = parse_cluster("8x8xT4")
    trace = traces.read(str(job_list(tmp_path, "a,0,toy,8,512", "b,10,toy,56,8192")))[0]
    truth = Measured(trace, cluster, read_applications(profiles(tmp_path)))
    outcome = replay(trace, cluster, PRESETS[name], ReplaySettings(overheads=Overheads.of_pollux()), truth=truth)
    assert (outcome.finish_ms > 0).all()
    assert (outcome.finish_ms - trace.submit_ms >= truth.shortest_ms).all()
    said = [line for line in outcome.assumptions if "not measured" in line]
    if name == "fifo":
        assert said == [
            "1 of 2 jobs ran at times on GPUs or batches that were not measured (first: job b); step times there are "
            "extrapolated by the fitted throughput model."
        ]


def test_where_everything_was_measured_nothing_is_counted(tmp_path):
    cluster = parse_cluster("4x8xT4")
    trace = traces.read(str(job_list(tmp_path, "a,0,toy,8,512", "b,10,toy,16,512")))[0]
    truth = Measured(trace, cluster, read_applications(profiles(tmp_path)))
    outcome = replay(trace, cluster, PRESETS["fifo"], ReplaySettings(overheads=Overheads.of_pollux()), truth=truth)
    assert not [line for line in outcome.assumptions if "not measured" in line]


def test_jobs_that_cannot_run_are_left_out_by_name(tmp_path):
    cluster = parse_cluster("4x8xT4")
    trace = traces.read(str(job_list(tmp_path, "a,0,toy,8,512", "b,10,other,8,512", "c,20,toy,8,9000")))[0]
    kept, notes = without_unmeasured(trace, cluster, read_applications(profiles(tmp_path)))
    assert kept.job_id == ("a",)
    assert notes == (
        "2 of 3 jobs are left out: what they need was not measured. job b names application 'other', expected one "
        "that was measured: toy.",
    )


def test_the_command_replays_the_rest(tmp_path):
    trace = job_list(tmp_path, "a,0,toy,8,512", "b,10,other,8,512", "c,20,toy,24,512")
    done = brim("sim", "compare", trace, "--cluster", "4x8xT4", "--truth", "measured", "--profiles", profiles(tmp_path),
                "--policies", "fifo,goodput", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "1 of 3 jobs are left out" in done.stderr
    assert [row["jobs"] for row in json.loads(done.stdout)["results"]] == [2, 2]
