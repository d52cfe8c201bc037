"""What brim reads from a real Slurm is what was submitted to it, with the line of the documents."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from brim import traces
from brim.core.cluster import parse_cluster
from brim.core.trace import NONE, Status

from .slurm import slurm_running, why_not

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]
ROOT = Path(__file__).parents[2]
LINES = [
    re.search(r"^TZ=UTC .*sacct .*$", (ROOT / name).read_text(encoding="utf-8"), re.M)[0]
    for name in ("README.md", "docs/how-to-replay-your-cluster.md")
]  # fmt: skip


def dump(slurm, *, more="", profile=""):
    """Run the documented line behind what a user's profile sets; its dates are an example."""
    line = re.sub(r" -S \S+ -E \S+", "", LINES[0]).replace(" > jobs.txt", "")
    return slurm.shell(profile + line.replace("Partition,", f"Partition,{more}"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Jobs of every kind that can be had on one machine; name -> id, and two dumps of them."""
    folder = tmp_path_factory.mktemp("dump")

    def after(name, script):
        """A script that begins when the file is there: each of these commands may take seconds."""
        return f"until test -e {folder / name}; do sleep 0.1; done; {script}"

    with slurm_running() as slurm:
        ids = {
            "untyped": (first := slurm.submit("--gpus=2", "-t", "30", script=after("submitted", "sleep 2"))),
            "exclusive": slurm.submit("--gpus=1", "--exclusive", "-w", "a3", script="sleep 2"),
            "dependent": slurm.submit("--gpus=1", "-d", f"afterany:{first}"),
            "begin": slurm.submit("--gpus=1", "--begin=now+10"),
            "held": slurm.submit("--gpus=1", "-H"),
            "limited": slurm.submit("--gpus=1", "--array=0-1%1", script="sleep 3"),
            "parts": slurm.run("sbatch", "--parsable", "-o", "/dev/null", "--gpus=1", "--wrap", "sleep 1", ":",
                               "-p", "t", "--gpus=1"),
            "typed": slurm.submit("--gpus=a100:1", "-c", "3", "--mem=6000M", "-t", "1-00:00:00"),
            "gres": slurm.submit("-p", "t", "--gres=gpu:t4:2"),
            "wide": slurm.submit("-N2", "--gpus-per-node=4", "-t", "UNLIMITED", script=after("submitted", "sleep 1")),
            "cpu": slurm.submit("-c", "4"),
            "fails": slurm.submit("--gpus=1", script="exit 3"),
            "cancelled": slurm.submit("-N2", "--gpus-per-node=4"),  # waits for "wide"
            "array": slurm.submit("--gpus=1", "--array=0-19", script="true"),
            "pipe": slurm.submit("--gpus=1", "-J", "a|b"),
            "umlaut": slurm.submit("--gpus=1", "-J", "Kühn"),
            "requeued": slurm.submit("-p", "t", "--gpus=1", "--requeue", script=after("requeued", "sleep 3")),
        }
        slurm.run("scancel", ids["cancelled"])
        (folder / "submitted").touch()
        slurm.wait_until_running(ids["requeued"])
        slurm.run("scontrol", "requeue", ids["requeued"])
        (folder / "requeued").touch()
        time.sleep(4)
        slurm.run("scontrol", "release", ids["held"])
        slurm.wait_until_empty()
        ids["meanwhile"] = slurm.submit("-p", "t", "--gpus=2", script=after("over", "true"))
        slurm.wait_until_running(ids["meanwhile"])
        slurm.run("scontrol", "requeue", ids["gres"])  # it has ended long ago, on the same GPUs
        (folder / "over").touch()
        slurm.wait_until_empty()
        for name, more in (("jobs.txt", ""), ("named.txt", "JobName,")):
            (folder / name).write_bytes(dump(slurm, more=more))
        (folder / "profile.txt").write_bytes(dump(slurm, profile="export SLURM_TIME_FORMAT='%d.%m.%y %H:%M'; "))
    return ids, folder


def test_the_documents_give_one_line():
    assert len(set(LINES)) == 1


def test_what_is_read_is_what_was_submitted(recorded):
    ids, folder = recorded
    trace, report = traces.read(folder / "jobs.txt")
    rows = {job: row for row, job in enumerate(trace.job_id)}
    row = {name: rows.get(job) for name, job in ids.items()}
    assert row["cpu"] is row["cancelled"] is None
    assert len(trace) == 8 + 20 + 9
    assert report.unusable == {}
    assert report.dropped == {
        "asks for no GPU": 1, "never started": 1, "earlier attempt of a requeued job, merged": 2,
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


def waits(trace):
    """Wait in seconds of each job that a fixture's array has or that has an id; name -> s."""
    return dict(zip(trace.job_id, (trace.wait_ms / 1_000).tolist(), strict=True))


def without(folder, column):
    """The dump without one column."""
    rows = [line.split("|") for line in (folder / "jobs.txt").read_text(encoding="utf-8").splitlines()]
    place = rows[0].index(column)
    path = folder / f"without_{column}.txt"
    path.write_text("".join("|".join(row[:place] + row[place + 1 :]) + "\n" for row in rows), encoding="utf-8")
    return traces.read(path)


def test_a_wait_that_the_user_asked_for_is_none_for_the_scheduler(recorded):
    """A dependency, a begin time, a hold and an array's limit: the job arrives when Slurm could start it."""
    ids, folder = recorded
    (trace, report), (sent, before) = traces.read(folder / "jobs.txt"), without(folder, "Eligible")
    after, since_submission = waits(trace), waits(sent)
    for name, least_s in (("dependent", 2), ("begin", 10), ("held", 4), ("limited", 3)):
        assert since_submission[ids[name]] - after[ids[name]] >= least_s - 1, name  # whole seconds
    same = [ids[name] for name in ("untyped", "wide", "requeued")]
    assert {job: after[job] for job in same} == {job: since_submission[job] for job in same}
    assert after[ids["array"]] >= since_submission[ids["array"]] - 2  # Slurm looks at an array a moment later
    (said,) = (rows for reason, rows in report.repaired.items() if "eligible only after its submission" in reason)
    assert said == sum(after[job] < since_submission[job] for job in after) >= 4
    assert before.repaired["no column Eligible: waiting for dependencies, begin times and holds counts as waiting"] > 30
    assert (trace.jct_ms >= trace.wait_ms + trace.run_ms).all()
    once = {job: row for row, job in enumerate(trace.job_id) if job not in (ids["requeued"], ids["gres"])}
    rows = list(once.values())
    assert (trace.jct_ms[rows] == (trace.wait_ms + trace.run_ms)[rows]).all()


def test_what_was_given_beside_the_request_and_parts_of_jobs_are_counted(recorded):
    ids, folder = recorded
    trace, report = traces.read(folder / "jobs.txt")
    assert trace.gpus[trace.job_id.index(ids["exclusive"])] == 2
    said = {reason.partition(":")[0]: rows for reason, rows in report.repaired.items()}
    assert said["allocated GPUs differ from the requested ones (as with --exclusive)"] == 1
    assert said["part of a heterogeneous job"] == 2
    assert said["attempt requeued by hand"] == 2
    assert {ids["parts"], str(int(ids["parts"]) + 1)} <= set(trace.job_id)


def test_a_profile_that_changes_the_times_changes_nothing(recorded):
    _, folder = recorded
    assert (folder / "profile.txt").read_bytes() == (folder / "jobs.txt").read_bytes()


def test_the_cluster_is_the_one_that_ran(recorded):
    _, folder = recorded
    trace, _ = traces.read(folder / "jobs.txt")
    assert trace.cluster is not None
    ran = parse_cluster("2x4xa100+1x2xa100+1x2xt4")
    assert (trace.cluster.gpu_types, trace.cluster.gpus_N.tolist()) == (ran.gpu_types, ran.gpus_N.tolist())
    assert traces.doubts(trace, trace.cluster) == []
    assert any("shows 4 nodes" in sentence for sentence in traces.doubts(trace, parse_cluster("64x8xa100")))


def test_a_job_name_with_a_pipe_costs_its_row_alone(recorded):
    ids, folder = recorded
    plain, _ = traces.read(folder / "jobs.txt")
    named, report = traces.read(folder / "named.txt")
    assert set(plain.job_id) - set(named.job_id) == {ids["pipe"]}
    assert ids["umlaut"] in named.job_id
    (error,) = report.first_unusable(3)
    assert (error.found, error.expected.partition(";")[0]) == ("17 fields", "16 fields")
    assert "a | in a name" in error.expected
    assert report.dropped["cannot be used"] == 1
