"""The ``brim sim`` command as a user meets it: a real process, its exit code, its stdout and its stderr."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import polars as pl
import psutil
import pytest

from brim import traces
from brim.cli import replays
from brim.cli.main import app
from brim.cli.replay_inputs import cluster_of
from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.sim.twin import ReplaySettings
from tests.cli.commands import MINE, brim
from tests.sampling import sample
from tests.sim.test_profiles import written

TRACE = "id,submit_s,gpus,run_s,user\na,0,2,100,ann\nb,10,4,50,bob\nc,20,1,10,ann\n"
RESULT_KEYS = {
    "policy", "seed", "load", "jobs", "finished", "jct_mean_s", "jct_p50_s", "jct_p99_s", "jct_bound_s", "makespan_s",
    "makespan_bound_s", "queue_mean_s", "gpu_allocated_fraction", "gpu_busy_fraction", "cpu_busy_fraction",
    "energy_kwh", "energy_bound_kwh", "cost", "preemptions", "restarts", "lost_gpu_s", "rounds", "round_p99_ms",
    "wall_s",
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Sixty synthetic jobs in brim's own format."""
    path = tmp_path_factory.mktemp("trace") / "small.parquet"
    done = brim("trace", "synth", "philly", path, "--num-jobs", 60, "--seed", 3, "--cluster", "2x8xV100", "--load", 1)
    assert done.returncode == 0, done.stderr
    return path


def results(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_run_prints_only_json_on_stdout_with_all_the_keys(trace):
    found = results(brim("sim", "run", trace, "-c", "2x8xV100", "--json"))
    assert found["schema"] == 1
    assert found["cluster"] == "2x8xV100"
    assert found["trace"]["synthetic"] is True
    (row,) = found["results"]
    assert set(row) >= RESULT_KEYS
    assert (row["policy"], row["jobs"], row["finished"]) == ("fifo", 60, 60)
    assert row["energy_kwh"] is None
    assert row["cost"] is None
    assert row["jct_mean_s"] >= row["jct_bound_s"] > 0


def test_compare_in_processes_equals_runs_one_by_one(tmp_path):
    """A pool of processes must not change a single figure."""
    trace = tmp_path / "more.parquet"
    jobs = replays.JOBS_HERE // 3 + 1
    brim("trace", "synth", "philly", trace, "-n", jobs, "--seed", 3, "-c", "2x8xV100", "--load", 1)
    together = results(brim("sim", "compare", trace, "-c", "2x8xV100", "-p", "fifo,srtf,las", "--json"))
    measured = {"wall_s", "rounds_per_s", "round_p99_ms"}
    measured |= {"saved_against", "saved_wait_s", "saved_gpu_s", "saved_cost"}  # against the first policy: none alone
    for row in together["results"]:
        (alone,) = results(brim("sim", "run", trace, "-c", "2x8xV100", "-p", row["policy"], "--json"))["results"]
        assert {k: v for k, v in row.items() if k not in measured} == {
            k: v for k, v in alone.items() if k not in measured
        }


def test_compare_writes_a_page_and_a_row_per_job_and_policy(trace, tmp_path):
    page, jobs = tmp_path / "page.html", tmp_path / "jobs.parquet"
    done = brim("sim", "compare", trace, "-c", "2x8xV100", "-p", "fifo,backfill", "--html", page, "--jobs", jobs)
    assert done.returncode == 0, done.stderr
    assert "backfill" in done.stdout
    assert str(page) in done.stderr
    html = page.read_text()
    assert "synthetic" in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    table = pl.read_parquet(jobs)
    assert table.group_by("policy").len().sort("policy").rows() == [("backfill", 60), ("fifo", 60)]


def test_seeds_give_intervals_and_loads_give_rows(trace):
    fifo = ("sim", "compare", trace, "-c", "2x8xV100", "-p", "fifo", "--seeds", 2)
    found = results(brim(*fifo, "--load", "0.5,1", "--json"))
    assert [(row["load"], row["seed"]) for row in found["results"]] == [(0.5, 0), (0.5, 1), (1.0, 0), (1.0, 1)]
    assert "+-" in brim(*fifo).stdout


@pytest.mark.slow
def test_the_file_of_jobs_has_the_rows_of_every_replay_in_order(trace, tmp_path):
    words = ("sim", "compare", trace, "-c", "2x8xV100", "-p", "fifo,sjf", "--seeds", 2, "--load", "0.5,1", "--json")
    for name, read in (("jobs.parquet", pl.read_parquet), ("jobs.csv", partial(pl.read_csv, infer_schema_length=None))):
        found = results(brim(*words, "--jobs", tmp_path / name))["results"]
        rows = read(tmp_path / name).group_by("load", "seed", "policy", maintain_order=True)
        shown = rows.agg(pl.len(), pl.col("jct_s").mean()).rows()
        assert [row[:4] for row in shown] == [(row["load"], row["seed"], row["policy"], row["jobs"]) for row in found]
        assert [row[4] for row in shown] == pytest.approx([row["jct_mean_s"] for row in found])


def test_oracle_and_estimates_are_marked(trace):
    found = results(brim("sim", "compare", trace, "-c", "2x8xV100", "-p", "sjf,sjf-oracle,fifo", "--json"))
    told = {row["policy"]: (row["oracle"], row["estimates"]) for row in found["results"]}
    assert told == {
        "sjf": (False, "time limits, else per-user history"), "sjf-oracle": (True, "true run times (oracle)"),
        "fifo": (False, "none"),
    }
    history = results(brim("sim", "run", trace, "-c", "2x8xV100", "-p", "sjf", "--estimates", "history", "--json"))
    assert history["results"][0]["estimates"].startswith("per-user history")


def test_overheads_and_faults_reach_the_replay(trace):
    plain, doubled, broken = (
        results(brim("sim", "run", trace, "-c", "2x8xV100", "-p", "las", "--json", *extra))["results"][0]
        for extra in ((), ("--overheads", "x2"), ("--node-mtbf", "6h", "--job-mtbf", "10h"))
    )
    assert any("10 s to save" in line for line in doubled["assumptions"])
    assert any("Each node fails" in line for line in broken["assumptions"])
    assert broken["lost_gpu_s"] > plain["lost_gpu_s"] == 0
    drained = results(brim("sim", "run", trace, "-c", "2x8xV100", "--drain", "0@0s+1d", "--json"))["results"][0]
    assert drained["queue_mean_s"] >= plain["queue_mean_s"]


@pytest.mark.cases(22)
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-p", "fifoo"], "unknown policy 'fifoo': did you mean 'fifo'?"),
        (["-p", "nothing.py"], "policy file nothing.py: no such file"),
        (["-c", "4x8x"], "cluster '4x8x' is not understood"),
        (["-c", "2x8+1x4xV100"], "cluster 2x8+1x4xV100: name the GPU type of every group or of no group"),
        (["-c", "0x8xV100"], "found 0 nodes"),
        (["-c", "4x0xV100"], "found 0 GPUs per node"),
        (["-c", "4x8xV100:cpus=many"], "found cpus='many'"),
        (["-c", "4x8xV100:disk=3"], "found 'disk=3'"),
        (["-c", "missing.toml"], "cluster file missing.toml: no such file"),
        (["-c", "1x1xV100"], "GPUs, which cluster 1x1xV100 (1 GPU) could not give it even when empty"),
        (["-c", "1x1xV100:mem=99999999999P"], "found mem='99999999999P', expected a size above zero and below"),
        (["-c", "2x8xV100:cpus=1e30"], "found cpus='1e30', expected a number of cores above zero and below"),
        (["-c", "\u0663x8xV100"], "is not understood"),
        (["--drain", "0@1d+99999999999999d"], "longer than a century"),
        (["--node-mtbf", "0s"], "expected a time above zero"),
        (["--jobs", "/dev/null"], "--jobs: cannot write /dev/null: it is not a regular file"),
        (["--jobs", "jobs.xlsx"], "file of jobs jobs.xlsx: the name must end in .parquet or .csv"),
        (["--html", "a.csv", "--jobs", "a.csv"], "--html and --jobs name the same file, a.csv"),
        (["--load", "0"], "--load: found '0'"),
        (["--load", "nan"], "--load: found 'nan'"),
        (["--load", "1,2"], "expected one number"),
        (["--overheads", "double"], "--overheads: found 'double'"),
        *(
            (["--overheads", f"x{factor}"], f"--overheads: found x{factor}, expected x0 to x10000, at which a restart "
             "of 30 s takes 3.5 d")
            for factor in ("1e+16", "1e+300", "inf", "nan", "-1")
        ),
        (["--estimates", "guess"], "guess"),
        (["--drain", "9@0s+1h"], "cluster 2x8xV100 has nodes 0 to 1"),
        (["--drain", "now"], "--drain: found 'now'"),
        (["--node-mtbf", "often"], "--node-mtbf: duration 'often' is not understood"),
        (["--drain", "0@soon+1h"], "--drain: duration 'soon' is not understood"),
        (["--html", "/no/such/folder/page.html"], "cannot write /no/such/folder/page.html"),
        (["-o", "yaml"], "--output: found 'yaml', expected table or json"),
        (["--from", "2090-01-01"], "--from: philly-60-3: it does not say on which date"),
        (["--from", "yesterday"], "--from: invalid date 'yesterday'"),
        (["--format", "slurmm"], "slurmm"),
        (["--price", "nan"], "--price: found 'nan', expected a price per GPU-hour, such as 2.50"),
        (["--price", "-1"], "--price: found '-1', expected a price per GPU-hour, such as 2.50"),
        (["--truth", "hoped"], "--truth: found 'hoped', expected one of rigid, measured, parametric"),
        (["--truth", "measured"], "found no --profiles"),
        (["--profiles", "."], "--profiles: found . with truth 'rigid', expected --truth measured"),
        (["--truth", "measured", "--profiles", "/no/such/folder"], "/no/such/folder: no such folder"),
        (["--truth", "measured", "--profiles", "tests"], "placements.csv: no such file"),
        (["--elastic-share", "0.5"], "--elastic-share: found 0.5 with truth 'rigid', expected --truth parametric"),
        (["--truth", "parametric", "--elastic-share", "1.5"], "--elastic-share: found 1.5, expected a number from"),
        (["--truth", "parametric", "--elastic-share", "nan"], "--elastic-share: found nan, expected a number from"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trace, args, said):
    cluster = [] if "-c" in args else ["-c", "2x8xV100"]
    done = brim("sim", "run", trace, *cluster, *args)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("brim: error: ")]
    assert said in line
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("option", "name", "kind"), [("-p", "mine.py", "policy"), ("-c", "mine.toml", "cluster")])
def test_a_file_that_cannot_be_read_is_one_line_without_error_numbers(trace, tmp_path, option, name, kind):
    (tmp_path / name).symlink_to("/proc/self/mem")  # a regular file whose first byte nobody can read, not even root
    done = brim("sim", "run", trace, "-c", "2x8xV100", option, tmp_path / name)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"brim: error: {kind} file {tmp_path / name}: cannot be read: Input/output error"
    )


def test_a_library_that_does_not_exist_is_an_error_even_where_no_policy_asks_for_it(trace):
    done = brim("sim", "run", trace, "-c", "2x8xV100", "-p", "fifo", "--library", "nowhere")
    assert done.returncode == 3
    assert "--library: found 'nowhere', expected pollux, gavel, mlperf, synergy or a .toml file" in done.stderr


def test_a_policy_file_that_breaks_says_so_in_one_line(trace, tmp_path):
    policy = tmp_path / "mine.py"
    policy.write_text("import brim.nowhere\n")
    done = brim("sim", "run", trace, "-c", "2x8xV100", "-p", policy)
    assert done.returncode == 2
    assert "ModuleNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr


def test_jobs_too_large_are_left_out_only_when_asked_and_said_so(trace):
    args = ("sim", "run", trace, "-c", "1x2xV100")
    refused = brim(*args)
    assert refused.returncode == 2
    assert "--drop-too-large leaves out such jobs" in refused.stderr
    found = results(brim(*args, "--drop-too-large", "--json"))
    (row,) = found["results"]
    assert 0 < row["jobs"] < 60
    assert row["assumptions"][0] == f"{60 - row['jobs']} jobs too large for the cluster left out."


WRONG = [
    ("np.arange(len(snapshot.jobs)) + 10_000_000", "job rows once"),
    ("-np.arange(len(snapshot.jobs)) - 1", "job rows once"),
    ("np.zeros(len(snapshot.jobs), dtype=int)", "job rows once"),
    ("np.arange(len(snapshot.jobs)).astype(float)", "one per job, found"),
    ("np.arange(0)", "one per job, found"),
    ("list(range(len(snapshot.jobs)))", "one per job, found"),
    ("1 / 0", "wrong.py:13)"),
]
"""What an order gives back, and what is said of it."""


@pytest.mark.cases(1)
@pytest.mark.parametrize(("body", "said"), WRONG)
def test_a_wrong_answer_of_a_policy_is_one_line_not_a_crash(trace, tmp_path, body, said):
    """The walk is compiled without bounds checks: an order that is no permutation must not reach it."""
    policy = tmp_path / "wrong.py"
    policy.write_text(MINE.format(name="Wrong", body=f"return {body}"))
    compared = (body, said) in WRONG[-sample(len(WRONG), 2) :]  # what is wrong does not change how it leaves a process
    for verb in (("run", "-p", policy), ("compare", "-p", f"fifo,{policy}"))[: 1 + compared]:
        done = brim("sim", verb[0], trace, "-c", "2x8xV100", *verb[1:])
        assert done.returncode == 1
        assert "policy 'mine', order: " in done.stderr
        assert said in done.stderr
        assert f"({policy}:1" in done.stderr
        assert "Traceback" not in done.stderr


def test_two_policies_of_one_name_are_refused(trace, tmp_path):
    policies = [tmp_path / "one.py", tmp_path / "two.py"]
    for policy in policies:
        policy.write_text(MINE.format(name="Same", body="return np.arange(0)"))
    done = brim("sim", "compare", trace, "-c", "2x8xV100", "-p", ",".join(map(str, policies)))
    assert done.returncode == 2
    assert "both called 'mine'" in done.stderr


def test_jobs_of_applications_that_were_not_measured_are_refused_before_any_replay(trace, tmp_path):
    done = brim("sim", "compare", trace, "-c", "2x8xV100", "-p", "fifo,las", "--truth", "measured", "--profiles",
                written(tmp_path))
    assert done.returncode == 2
    assert "names no application, expected one that was measured: toy" in done.stderr
    assert "Traceback" not in done.stderr


def test_measured_jobs_replay_alike_in_processes_and_pay_thirty_seconds_for_each_change(tmp_path):
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("name,time,application,num_replicas,batch_size\na,0,toy,2,16\nb,1,toy,1,8\nc,2,toy,2,16\n")
    args = ("-c", "1x2xT4", "--truth", "measured", "--profiles", written(tmp_path / "profiles"), "--json")
    (alone,) = results(brim("sim", "run", jobs, "-p", "fifo", *args))["results"]
    (doubled,) = results(brim("sim", "run", jobs, "-p", "fifo", "--overheads", "x2", *args))["results"]
    together = results(brim("sim", "compare", jobs, "-p", "fifo,pollux", *args))["results"]
    assert alone["jct_mean_s"] == together[0]["jct_mean_s"] > 0
    assert any("0 s to save" in line and "a restart takes 30 s" in line for line in alone["assumptions"])
    assert any("truth: measured" in line for line in alone["assumptions"])
    assert doubled["makespan_s"] == pytest.approx(alone["makespan_s"] + 3 * 30)


def test_a_share_of_the_jobs_is_elastic_the_same_under_every_policy(trace):
    args = ("-c", "2x8xV100", "--truth", "parametric", "--elastic-share", "0.5", "--json")
    rows = results(brim("sim", "compare", trace, "-p", "fifo,las", *args))["results"]
    assert 20 < rows[0]["elastic"] == rows[1]["elastic"] < 40
    assert rows[0]["jct_bound_s"] == rows[1]["jct_bound_s"] <= min(row["jct_mean_s"] for row in rows)
    assert rows[0]["resizes"] == rows[0]["rejected"] == rows[0]["unmeasured"] == 0
    (rigid,) = results(brim("sim", "run", trace, "-c", "2x8xV100", "--json"))["results"]
    assert rigid["elastic"] == 0
    assert rigid["jct_bound_s"] > rows[0]["jct_bound_s"]
    assert any("elastic jobs were drawn at random (share 0.5, seed 0)" in line for line in rows[0]["assumptions"])


@pytest.mark.parametrize(("cluster", "types", "said"), [
    ("8x8xv1000", (), "brim: cluster 8x8xv1000: neither brim nor the trace knows GPUs of type v1000 (nearest: V100)\n"),
    ("8x8xQ7", (), "brim: cluster 8x8xQ7: neither brim nor the trace knows GPUs of type Q7\n"),
    ("8x8xa100+1x8xNVIDIA-H100-80GB", (), ""), ("8x8", (), ""), ("8x8xQ7", ("q7",), ""), ("8x8xRTX4090", (), ""),
])  # fmt: skip
def test_a_gpu_type_that_nothing_knows_is_told(capsys, cluster, types, said):
    jobs = trace_of(name="x", format="test", job_id=["a"], submit_ms=[0], gpus=[1], run_ms=[1000], gpu_types=types,
                    gpu_type=[0 if types else -1])  # fmt: skip
    cluster_of(jobs, parse_cluster(cluster), 1.0, ["rtx4090"])
    assert capsys.readouterr().err == said


@pytest.mark.slow
def test_what_a_policy_is_for_and_cannot_do_is_pointed_out(trace):
    """No job can be resized, none records what it uses, and nothing shows energy."""
    resizes = "brim: optimus: no job of this trace can change its number of GPUs (--truth rigid)"
    shares = "brim: eaco, brim-energy: nobody shares GPUs, because no job of this trace records gpu_util_milli and"
    energy = "brim: brim-energy: without --power the replay shows no energy"
    words = ("sim", "compare", trace, "-c", "2x8xV100", "--limit", 3, "-p")
    assert resizes in brim(*words, "optimus").stderr
    assert resizes not in brim(*words, "optimus", "--truth", "parametric").stderr
    assert not {"elastic", "shares", "energy"} & set(brim(*words, "fifo").stderr.split())
    said = brim(*words, "fifo,eaco,brim-energy").stderr
    assert shares in said
    assert energy in said
    assert energy not in brim(*words, "brim-energy", "--power", "builtin").stderr
    assert "nobody shares" in brim("sim", "factorial", trace, "-c", "2x8xV100", "--limit", 3, "-p", "eaco").stderr


def test_what_sharing_costs_is_modelled_wherever_a_policy_shares(tmp_path):
    """Two busy jobs of one hour that fit one GPU: together they take longer, and nobody says that this was left out."""
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_ms,run_ms,gpus,gpu_util_milli,gpu_mem_mib\n"
                    "a,0,3600000,1,400,2000\nb,60000,3600000,1,400,2000\n")
    fifo, eaco = results(brim("sim", "compare", path, "-c", "1x1xV100", "-p", "fifo,eaco", "--json"))["results"]
    assert fifo["jct_mean_s"] - fifo["wait_mean_s"] == 3600
    assert eaco["wait_mean_s"] == 0
    assert 1.1 * 3600 < eaco["jct_mean_s"] < 1.3 * 3600
    assert not any("what sharing costs is not modelled" in line for line in eaco["assumptions"])


def test_in_a_pipe_long_replays_write_lines_of_progress(monkeypatch, capsys):
    monkeypatch.setattr(replays, "REPORT_S", 0.0)
    cluster = parse_cluster("2x4xT4")
    trace = traces.synthesize("philly", jobs=5, seed=1)
    task = replays.Task(trace=trace, cluster=cluster, policy="srtf", settings=ReplaySettings())
    (replay,) = replays.run_all([task])
    assert replay.finish_ms.min() > 0
    assert capsys.readouterr().err.splitlines()[-1] == "brim: 5 of 5 jobs have ended"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Three jobs of a cluster of four GPUs that ran them one after the other."""
    path = tmp_path_factory.mktemp("recorded") / "jobs.csv"
    path.write_text(
        "job_id,submit_ms,gpus,run_ms,wait_ms\na,0,2,100000,0\nb,10000,2,50000,90000\nc,20000,1,10000,130000\n"
    )
    return path


def test_the_record_stands_beside_the_policies(recorded):
    args = ("sim", "compare", recorded, "-c", "1x4xV100", "-p", "fifo,srtf")
    found = results(brim(*args, "--json", "--price", "2.5"))
    assert found["recorded"]["jobs"] == found["recorded"]["covered"] == 3
    assert found["recorded"]["jct_mean_s"] == pytest.approx((100 + 140 + 140) / 3)
    assert found["recorded"]["wait_mean_s"] == pytest.approx((0 + 90 + 130) / 3)
    for row in found["results"]:
        assert row["saved_against"] == "as recorded"
        assert row["saved_wait_s"] == pytest.approx(220 - 3 * row["wait_mean_s"])
        assert row["cost"] == pytest.approx(2.5 * row["held_gpu_s"] / 3600)
    shown = brim(*args).stdout
    assert any(line.startswith("as recorded") for line in shown.splitlines())
    assert "(as recorded) to " in " ".join(shown.split())


@pytest.mark.parametrize(
    ("verb", "args", "said"),
    [
        ("run", ["--load", "2"], "with --load, jobs do not arrive at their recorded times"),
        ("run", ["--seed", "1"], "with --seed or --seeds, jobs do not arrive at their recorded times"),
        ("compare", ["--seeds", "2"], "with --seed or --seeds, jobs do not arrive at their recorded times"),
        ("run", ["--limit", "2"], "--limit and --from replay only some of the jobs"),
        ("run", ["--truth", "parametric", "--elastic-share", "0.5"], "with --truth parametric, jobs do not run for"),
    ],
)
def test_the_record_is_left_out_with_the_reason_where_the_replay_is_of_something_else(recorded, verb, args, said):
    found = results(brim("sim", verb, recorded, "-c", "1x4xV100", "-p", "fifo", "--json", *args))
    assert found["recorded"] is None
    assert said in found["recorded_left_out"]
    assert all(row["saved_against"] in (None, "fifo") for row in found["results"])


def test_a_trace_that_records_no_starts_has_no_row_as_recorded(trace):
    found = results(brim("sim", "run", trace, "-c", "2x8xV100", "--json"))
    assert found["recorded_left_out"] == "the trace records no start times"
    found = results(brim("sim", "run", trace, "-c", "2x8xV100", "--json", "--limit", 2))
    assert found["recorded_left_out"] == "the trace records no start times"


@pytest.mark.parametrize("args", [("--limit", "3"), ("--limit", "100")])
def test_a_choice_of_all_jobs_keeps_the_record(recorded, args):
    found = results(brim("sim", "run", recorded, "-c", "1x4xV100", "--json", *args))
    assert found["recorded"]["jobs"] == 3


HALTS = """
import os, signal
from dataclasses import replace
from multiprocessing import parent_process
from brim.cli import replays
from brim.policies.presets import find_policy

def halting(*args, on_progress, run=replays.replay, **more):
    left = [signal.SIGSTOP]
    def halt(ended, now_ms):
        if left:
            os.kill(os.getpid(), left.pop())
        return on_progress(ended, now_ms)
    return run(*args, on_progress=halt, **more)

if parent_process() is not None:
    replays.replay = halting
policy = replace(find_policy("{shipped}"), name="{shipped}-halts")
"""
"""A policy file: the process that replays it stops when it first tells how far it is."""


def test_ctrl_c_reports_what_is_done_and_says_partial(tmp_path):
    path = tmp_path / "big.parquet"
    brim("trace", "synth", "philly", path, "--num-jobs", 40_000, "--seed", 3, "--cluster", "16x8xV100", "--load", 1)
    for shipped in ("srtf", "las"):
        (tmp_path / f"{shipped}.py").write_text(HALTS.format(shipped=shipped))
    brim_sim = [sys.executable, "-m", "brim.cli.main", "sim"]
    args = [*brim_sim, "compare", path, "-c", "16x8xV100", "-p", "./srtf.py,./las.py", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(args, **pipes, cwd=tmp_path, text=True, start_new_session=True) as run:
        try:
            while len(halted := _halted(run.pid)) < 2:
                assert run.poll() is None, run.stderr.read()
                time.sleep(0.02)
            os.killpg(run.pid, signal.SIGINT)
            while "stopping" not in run.stderr.readline():
                assert run.poll() is None
            for child in halted:
                child.resume()
            out, err = run.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 130, err
    found = json.loads(out)
    assert found["results"]
    assert all(row["partial"] for row in found["results"])
    assert all(row["finished"] < row["jobs"] for row in found["results"])
    assert "partial" in err
    assert "Traceback" not in err


def _halted(pid):
    """Children of a process that are stopped."""
    return [child for child in psutil.Process(pid).children() if child.status() == psutil.STATUS_STOPPED]


def comparison(tmp_path):
    """Compare two policies that sleep in each round, so that no replay ends before a test has done what it does."""
    path = tmp_path / "big.parquet"
    brim("trace", "synth", "philly", path, "-n", 40_000, "--seed", 3, "--cluster", "16x8xV100", "--load", 1)
    slow = MINE.format(name="Slow", body="import time; time.sleep(0.002); return np.arange(len(snapshot.jobs))")
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text(slow.replace('"mine"', f'"{name}"'))
    args = [sys.executable, "-m", "brim.cli.main", "sim", "compare", path, "-c", "16x8xV100"]
    return subprocess.Popen(
        [*args, "-p", "./one.py,./other.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def test_ctrl_c_while_the_worker_processes_start_ends_the_comparison(tmp_path):
    """A worker that Ctrl-C ended while it started left its parent writing the trace to a pipe without a reader."""
    with comparison(tmp_path) as run:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        while not any("spawn_main" in _command(pid) for pid in children.read_text().split()):
            assert run.poll() is None
            time.sleep(0.002)
        os.killpg(run.pid, signal.SIGINT)
        try:
            _, err = run.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 130, err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_worker_process_that_is_killed_while_it_starts_ends_the_comparison_with_one_line(tmp_path):
    """Its parent wrote the trace to a pipe of which it held both ends itself, for ever."""
    with comparison(tmp_path) as run:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        while not (workers := [pid for pid in children.read_text().split() if "spawn_main" in _command(pid)]):
            assert run.poll() is None
            time.sleep(0.002)
        os.kill(int(workers[0]), signal.SIGKILL)
        try:
            _, err = run.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 1
    assert err.splitlines()[-1].startswith("brim: error: the process of a replay died;")
    assert "Traceback" not in err


def _command(pid):
    """The command line of a process; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate"], "there is no command 'brim simulate': did you mean 'brim sim'?"),
        (["top"], "there is no command 'brim top': expected one of up, down, status, join, run, submit, redo"),
        (["policy", "chekc"], "there is no command 'brim policy chekc': did you mean 'brim policy check'?"),
        (["sim", "run"], "missing argument 'TRACE'; see `brim sim run -h`"),
        (["trace", "synth", "philly", "a.csv", "--jobs", "9"], "no such option: --jobs"),
        (["trace", "synth", "foo", "a.csv"], "unknown shape 'foo': expected one of philly, helios, acme, pai"),
        (["--bogus"], "no such option: --bogus; see `brim -h`"),
        (["sim", "run", "a", "--seed", "-1"], "--seed: found '-1', expected 0 or more; see `brim sim run -h`"),
        (["sim", "run", "a", "--limit", "x"], "--limit: found 'x', expected a whole number; see `brim sim run -h`"),
        (["sim", "compare", "a", "--seeds", "2000"], "--seeds: found '2000', expected at most 1000; see"),
        (["policy", "check", "fifo", "--examples", "1.5"], "--examples: found '1.5', expected a whole number; see"),
        (["trace", "synth", "philly", "a.csv", "-n", "x"], "--num-jobs: found 'x', expected a whole number; see"),
    ],
)
def test_wrong_usage_is_one_line_in_the_style_of_other_errors(words, said):
    done = brim(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"brim: error: {said}")


def test_a_price_that_is_no_number_and_no_file_is_not_found():
    done = brim("sim", "run", "a", "--price", "x")
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("brim: error: --price: cannot read x: No such file or directory; expected a price per GPU-")


def test_help_names_every_verb():
    done = brim("--help")
    assert done.returncode == 0
    for verb in ("demo", "sim", "trace", "policy"):
        assert verb in done.stdout
    assert brim("sim").returncode == 2  # no verb: the help, and usage
    assert brim("--version").stdout.startswith("brim 0.")


@pytest.mark.slow
def test_factorial_switches_the_decisions_of_a_preset(trace, tmp_path):
    page = tmp_path / "page.html"

    done = brim("sim", "factorial", trace, "-c", "2x8xV100", "-p", "tiresias", "--power", "builtin", "--json",
                "--html", page)  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["on"] for one in found["combinations"]] == [[], ["order"]]
    plain, tiresias = (one["mean JCT"] for one in found["combinations"])
    change = {one["figure"]: one["change"] for one in found["effects"]}
    assert change["mean JCT"] == pytest.approx(tiresias / plain - 1)
    assert change.keys() == {"mean JCT", "p99 JCT", "GPU-h held", "kWh"}
    assert "Effects on mean JCT" in page.read_text()


@pytest.mark.slow
def test_factorial_switches_the_parts_that_a_file_combines_and_tells_regular_jobs_from_padding(tmp_path):
    trace, policy = tmp_path / "trace.csv", tmp_path / "mine.py"
    trace.write_text("job_id,submit_ms,gpus,run_ms,job_class\na,0,8,60000,padding\nb,0,8,30000,regular\n")
    policy.write_text("""from dataclasses import replace
from brim.policies.presets import find_policy
policy = replace(find_policy("sjf"), name="mine", fill=find_policy("fifo+padding").fill)
""")

    done = brim("sim", "factorial", trace, "-c", "1x8xV100", "-p", policy, "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    regular = {tuple(one["on"]): one["mean JCT, regular jobs"] for one in found["combinations"]}
    assert regular[()] == pytest.approx(90)  # in the order of arrival, behind the padding job
    assert regular["order", "fill"] == pytest.approx(30, abs=1)


@pytest.mark.parametrize(("words", "said"), [
    (["-p", "examples/my_policy.py"], "found SmallestWork as order part, which is not brim's; expected a preset"),
    (["-p", "nosuch"], "unknown policy 'nosuch'"), (["--load", "1,2"], "--load: found '1,2', expected one number"),
])
def test_factorial_refuses_what_it_cannot_switch(trace, words, said):
    done = brim("sim", "factorial", trace, "-c", "2x8xV100", *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_factorial_that_is_interrupted_ends_with_the_code_of_ctrl_c(trace, monkeypatch, capsys):
    monkeypatch.setattr("brim.cli.replays.run_all", lambda tasks: iter(()))
    with pytest.raises(SystemExit) as ended:
        app(["sim", "factorial", str(trace), "-c", "2x8xV100", "--limit", "3", "-p", "tiresias"], prog_name="brim")
    assert ended.value.code == 130
    assert "brim: interrupted: 0 of " in capsys.readouterr().err


def test_jobs_of_a_type_that_the_cluster_lacks_are_left_out_only_when_asked_and_said_so(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("job_id,submit_ms,gpus,run_ms,gpu_type\na,0,1,1000,T4\nb,0,1,1000,V100\nc,0,9,1000,A100\nd,0,1,9,\n")
    args = ("sim", "run", path, "-c", "1x2xA100+1x2xV100", "--json")
    assert "--drop-too-large leaves out jobs of types that it lacks (1 of 4)" in brim(*args).stderr
    done = brim(*args, "--drop-too-large")
    assert "brim: 1 job of a GPU type that the cluster lacks left out.\n" in done.stderr
    (row,) = results(done)["results"]
    assert (row["jobs"], row["assumptions"][0]) == (2, "1 job too large for the cluster left out.")
    path.write_text("job_id,submit_ms,gpus,run_ms,gpu_type\na,0,1,1000,T4\n")
    nothing_left = brim(*args, "--drop-too-large")
    assert (nothing_left.returncode, nothing_left.stdout) == (2, "")
    assert "every job is too large for cluster 1x2xA100+1x2xV100, or of a GPU type that it lacks" in nothing_left.stderr
