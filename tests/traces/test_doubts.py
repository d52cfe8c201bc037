"""A cluster that cannot be the recorded one is told at once; the one that was recorded is not doubted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brim import traces
from brim.core.arrays import frozen
from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.policies.presets import PRESETS
from brim.sim.twin import replay
from tests.cli.commands import brim

from .examples import EXAMPLES, save

RIGHT = parse_cluster("16x4xT4")


@pytest.fixture(scope="module")
def record():
    """What 16 nodes of 4 GPUs under backfill would have recorded."""
    trace = traces.synthesize("philly", jobs=800, seed=4, cluster=RIGHT, load=0.8)
    trace = trace.take(np.flatnonzero(trace.gpus <= RIGHT.num_gpus))
    done = replay(trace, RIGHT, PRESETS["backfill"])
    wait_ms = done.first_start_ms - trace.submit_ms
    return replace(trace, wait_ms=frozen(wait_ms), jct_ms=frozen(wait_ms + trace.run_ms))


def test_the_recorded_cluster_is_not_doubted(record):
    assert traces.doubts(record, RIGHT) == []


def test_a_larger_cluster_is_doubted_for_use_waits_and_load(record):
    said = traces.doubts(record, parse_cluster("64x8xT4"))
    assert [sentence.partition(",")[0] for sentence in said[:1]] == [
        "the record never had more than 64 GPUs in use at once"
    ]
    assert "would have found enough free GPUs" in said[1]
    assert "hardly any will wait" in said[2]
    assert len(said) == 3


def test_a_load_that_is_raised_by_the_user_is_not_doubted(record):
    said = traces.doubts(record, parse_cluster("64x8xT4"), load=8)
    assert not any("hardly any" in sentence for sentence in said)


def test_a_smaller_cluster_is_doubted_for_use(record):
    (said,) = traces.doubts(record, parse_cluster("8x4xT4"))
    assert "the record had up to 64 GPUs in use at once, and more than the 32 of the cluster for" in said


def test_a_slightly_larger_cluster_is_doubted_for_the_waits_alone(record):
    (said,) = traces.doubts(record, parse_cluster("28x4xT4"))
    assert "would have found enough free GPUs" in said


def test_a_job_that_was_requeued_is_held_against_no_cluster():
    """Two GPUs; the second job ran for a minute, was requeued when the first came, and ended an hour later."""
    jobs = {"job_id": ["a", "b"], "submit_ms": [0, 0], "gpus": [2, 2], "wait_ms": [60_000, 0], "run_ms": [600_000] * 2}
    apart = trace_of(name="x", format="test", **jobs, jct_ms=[660_000, 3_600_000])
    assert not any("more than the 2" in said for said in traces.doubts(apart, parse_cluster("1x2xT4")))
    together = trace_of(name="x", format="test", **jobs)
    assert any("more than the 2" in said for said in traces.doubts(together, parse_cluster("1x2xT4")))


def test_nodes_are_compared_by_number_and_size(record):
    seen = replace(record, cluster=RIGHT)
    assert traces.doubts(seen, RIGHT) == []
    assert traces.doubts(seen, parse_cluster("32x2xT4"))[:2] == [
        "the record shows 16 nodes with GPUs, but the cluster has 32",
        "the record shows a node with 4 GPUs, but the largest node of the cluster has 2",
    ]


def test_a_trace_without_waits_or_run_times_is_not_doubted():
    trace = traces.synthesize("philly", jobs=50, seed=1, cluster=RIGHT, load=0.8)
    assert traces.doubts(trace, RIGHT) == []
    assert traces.doubts(replace(trace, run_ms=frozen(np.full(50, -1))), parse_cluster("64x8xT4")) == []


SACCT = "JobID|User|Submit|Start|End|Timelimit|State|AllocTRES|NodeList\n" + "".join(
    f"{job}|ana|2026-05-01T08:{job:02}:00|2026-05-01T08:{job:02}:30|2026-05-01T09:{job:02}:00|01:00:00|COMPLETED|"
    f"cpu=8,gres/gpu:a100=4,mem=32G|n{job % 4}\n"
    for job in range(20)
)


def test_sim_takes_the_cluster_from_the_record_and_says_so(tmp_path):
    path = save(tmp_path, "jobs.txt", SACCT)
    done = brim("sim", "run", path, "--json")
    assert done.returncode == 0, done.stderr
    assert '"cluster": "4x20xa100:cpus=40,mem=160GB"' in done.stdout
    assert "replaying on 4x20xa100:cpus=40,mem=160GB, which the record shows" in done.stderr
    assert "nodes that never ran a GPU job are not seen" in done.stderr
    other = brim("sim", "run", path, "--json", "-c", "64x8xT4")
    assert other.returncode == 0, other.stderr
    assert "brim: cluster 64x8xT4 may not be the recorded one:\n  the record shows 4 nodes with GPUs" in other.stderr
    assert "without --cluster, the replay is on 4x20xa100" in other.stderr


@pytest.mark.slow
def test_gpus_of_another_type_than_recorded_are_said_beside_the_record(tmp_path):
    path = save(tmp_path, "jobs.txt", SACCT)
    other = brim("sim", "run", path, "-c", "4x20xh100")
    assert other.returncode == 0, other.stderr
    assert "  the record has jobs on GPUs of type a100, but the GPUs of the cluster are h100\n" in other.stderr
    assert 'The row "as recorded" has jobs on GPUs of type a100, which the cluster' in " ".join(other.stdout.split())
    for same in ("4x20xA100", "4x20xnvidia_a100-sxm4", "4x20", "2x20xa100+2x20xh100"):
        done = brim("sim", "run", path, "-c", same)
        assert done.returncode == 0, done.stderr
        assert "of type a100" not in done.stderr + done.stdout


def test_sim_takes_the_cluster_from_the_header_of_a_log_and_says_so(tmp_path):
    path = save(tmp_path, "log.swf", "; MaxNodes: 4\n; MaxProcs: 16\n" + EXAMPLES["swf"][1])
    done = brim("sim", "run", path, "--json")
    assert done.returncode == 0, done.stderr
    assert '"cluster": "4x4xGPU"' in done.stdout
    assert "  the record shows 4x4xGPU, 16 GPUs: MaxNodes 4 and MaxProcs 16 in its header\n" in done.stderr
    assert "brim: replaying on 4x4xGPU, which the record shows; --cluster gives another\n" in done.stderr


def test_a_header_that_its_own_log_contradicts_is_doubted_and_not_advised(tmp_path):
    """Two jobs of 8 processors at a time, on a machine of 8 as the header has it."""
    jobs = "".join(f"{job} {job // 2 * 600} 0 600 8 -1 -1 8 -1 -1 1 3 1 7 -1 -1 -1 -1\n" for job in range(2, 22))
    path = save(tmp_path, "log.swf", "; MaxNodes: 1\n; MaxProcs: 8\n" + jobs)
    done = brim("sim", "run", path, "--json")
    assert done.returncode == 0, done.stderr
    assert "brim: cluster 1x8xGPU may not be the recorded one:\n  the record had up to 16 GPUs in use" in done.stderr
    assert "without --cluster" not in done.stderr
    other = brim("sim", "run", path, "--json", "-c", "1x9xGPU")
    assert "brim: cluster 1x9xGPU may not be the recorded one:\n  the record had up to 16 GPUs in use" in other.stderr
    assert "without --cluster" not in other.stderr


def test_sim_asks_for_a_cluster_where_the_record_names_no_nodes(tmp_path):
    done = brim("sim", "compare", save(tmp_path, "a.csv", "job_id,submit_ms,gpus,run_ms\na,0,1,60000\n"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "a.csv does not show its cluster; give one, such as --cluster 64x8xH100" in done.stderr


def test_sim_says_that_there_are_no_run_times_before_it_asks_for_a_cluster(tmp_path):
    done = brim("sim", "compare", save(tmp_path, *EXAMPLES["pollux"]))
    assert done.returncode == 2
    assert "no recorded run time" in done.stderr
    assert "--truth rigid (the default) needs; a trace that names applications runs under --truth" in done.stderr


def test_rows_that_cannot_be_used_are_shown_with_their_share(tmp_path):
    rows = SACCT.replace("|ana|2026-05-01T08:19:00", "|a|na|2026-05-01T08:19:00")
    done = brim("trace", "info", save(tmp_path, "jobs.txt", rows), "--json")
    assert done.returncode == 0, done.stderr
    assert "dropped 1 (5.0% of the jobs): cannot be used:\n" in done.stderr
    assert "    row 21: found 10 fields, expected 9 fields; a | in a name makes one more" in done.stderr
