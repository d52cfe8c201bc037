"""What brim reads from a real Slurm is what was submitted to it, with the line of the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brim import traces
from brim.core.cluster import parse_cluster
from brim.core.trace import NONE, Status

from .slurm import slurm_running, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
ROOT = Path(__file__).parents[2]
LINES = [
    re.search(r"^TZ=UTC sacct .*$", (ROOT / name).read_text(encoding="utf-8"), re.M)[0]
    for name in ("README.md", "docs/how-to-replay-your-cluster.md")
]  # fmt: skip


def dump(slurm, *, more=""):
    """Run the documented line; its dates are an example."""
    line = re.sub(r" -S \S+ -E \S+", "", LINES[0]).replace(" > jobs.txt", "")
    return slurm.shell(line.replace("Partition,", f"Partition,{more}"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Jobs of every kind that can be had on one machine; name -> id, and two dumps of them."""
    folder = tmp_path_factory.mktemp("dump")
    with slurm_running() as slurm:
        ids = {
            "untyped": slurm.submit("--gpus=2", "-t", "30", script="sleep 2"),
            "typed": slurm.submit("--gpus=a100:1", "-c", "3", "--mem=6000M", "-t", "1-00:00:00"),
            "gres": slurm.submit("-p", "t", "--gres=gpu:t4:2"),
            "wide": slurm.submit("-N2", "--gpus-per-node=4", "-t", "UNLIMITED"),
            "cpu": slurm.submit("-c", "4"),
            "fails": slurm.submit("--gpus=1", script="exit 3"),
            "cancelled": slurm.submit("-N2", "--gpus-per-node=4"),  # waits for "wide"
            "array": slurm.submit("--gpus=1", "--array=0-19", script="true"),
            "pipe": slurm.submit("--gpus=1", "-J", "a|b"),
            "umlaut": slurm.submit("--gpus=1", "-J", "Kühn"),
            "requeued": slurm.submit("-p", "t", "--gpus=1", "--requeue", script="sleep 3"),
        }
        slurm.run("scancel", ids["cancelled"])
        slurm.wait_until_running(ids["requeued"])
        slurm.run("scontrol", "requeue", ids["requeued"])
        slurm.wait_until_empty()
        for name, more in (("jobs.txt", ""), ("named.txt", "JobName,")):
            (folder / name).write_bytes(dump(slurm, more=more))
    return ids, folder


def test_the_documents_give_one_line():
    assert len(set(LINES)) == 1


def test_what_is_read_is_what_was_submitted(recorded):
    ids, folder = recorded
    trace, report = traces.read(folder / "jobs.txt")
    rows = {job: row for row, job in enumerate(trace.job_id)}
    row = {name: rows.get(job) for name, job in ids.items()}
    assert row["cpu"] is row["cancelled"] is None
    assert len(trace) == 8 + 20
    assert report.unusable == {}
    assert report.dropped == {
        "asks for no GPU": 1, "never started": 1, "earlier attempt of a requeued job, merged": 1,
    }  # fmt: skip
    gpus = {"untyped": 2, "typed": 1, "gres": 2, "wide": 8, "fails": 1, "pipe": 1, "umlaut": 1, "requeued": 1}
    assert {name: int(trace.gpus[row[name]]) for name in gpus} == gpus
    kinds = {name: trace.gpu_types[trace.gpu_type[row[name]]] for name in gpus}
    assert kinds == {**dict.fromkeys(gpus, "a100"), "gres": "t4", "requeued": "t4"}
    assert trace.cpu_milli[row["typed"]] == 3_000
    assert trace.mem_mib[row["typed"]] == 6_000
    limits = {"untyped": 1_800_000, "typed": 86_400_000, "wide": NONE, "gres": 3_600_000}
    assert {name: int(trace.time_limit_ms[row[name]]) for name in limits} == limits
    assert trace.status[row["fails"]] == Status.FAILED
    assert trace.status[row["requeued"]] == trace.status[row["wide"]] == Status.COMPLETED
    assert 2_000 <= trace.run_ms[row["untyped"]] <= 20_000
    # the first attempt was cut short; the second began when the credential had expired and ran for three seconds
    assert trace.run_ms[row["requeued"]] >= 3_000
    assert trace.jct_ms[row["requeued"]] >= trace.run_ms[row["requeued"]] + 4_000
    assert trace.users == ("root",)


def test_the_cluster_is_the_one_that_ran(recorded):
    _, folder = recorded
    trace, _ = traces.read(folder / "jobs.txt")
    assert trace.cluster is not None
    ran = parse_cluster("2x4xa100+1x2xt4")
    assert (trace.cluster.gpu_types, trace.cluster.gpus_N.tolist()) == (ran.gpu_types, ran.gpus_N.tolist())
    assert traces.doubts(trace, trace.cluster) == []
    assert any("shows 3 nodes" in sentence for sentence in traces.doubts(trace, parse_cluster("64x8xa100")))


def test_a_job_name_with_a_pipe_costs_its_row_alone(recorded):
    ids, folder = recorded
    plain, _ = traces.read(folder / "jobs.txt")
    named, report = traces.read(folder / "named.txt")
    assert set(plain.job_id) - set(named.job_id) == {ids["pipe"]}
    assert ids["umlaut"] in named.job_id
    (error,) = report.first_unusable(3)
    assert (error.found, error.expected) == ("15 fields", "14 fields")
    assert report.dropped["cannot be used"] == 1
