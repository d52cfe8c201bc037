"""The verbs over a real controller and agent: a cluster of four slots that stays between the tests of this module."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import sqlite3
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import pytest

from brim.api.client import Client
from brim.api.serve import SOCKET
from brim.cli.locks import is_locked
from brim.cli.up import _pairs, _up_again
from tests.cli.commands import brim
from tests.ports import free_port


class Box:
    """A state and a runtime folder of their own, and the commands that use them."""

    def __init__(self, folder):
        self.state, self.run_folder, self.work = folder / "state", folder / "run", folder / "work"
        self.work.mkdir()
        self.port = free_port()
        self.env = {**os.environ, "BRIM_STATE": str(self.state), "BRIM_RUNTIME": str(self.run_folder)}

    def __call__(self, *words, code=0, timeout_s=60, **env):
        done = brim(*words, cwd=self.work, env={**self.env, **env}, timeout_s=timeout_s)
        assert code in (None, done.returncode), (words, done.stdout, done.stderr)
        return done

    def start(self):
        return self("up", "--devices", "4", "--tcp", self.port, timeout_s=240)

    def ended(self, *words):
        """Id of a job that was submitted and has ended."""
        return int(self("submit", "--wait", *words).stdout)

    def pid(self, what):
        return int(re.search(r"\d+", (self.state / what / "lock").read_text())[0])

    def job(self, job):
        """The job as the controller has it, which costs less than to read what ``brim ps`` says."""
        return Client(self.run_folder / SOCKET).job(int(job))


def until(holds):
    """Wait until something holds, at most four minutes; pauses, since others need the processor for it."""
    end_s = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def until_running(box, job):
    """Wait until a job runs; another one may, of a test before."""
    until(lambda: box.job(job).state == "running")


@pytest.fixture(scope="module")
def up():
    folder = Path(tempfile.mkdtemp(prefix="brim-"))  # pytest's own is too long for a socket
    box = Box(folder)
    try:
        assert "4 devices, 0 jobs run, 0 wait" in box.start().stdout
        yield box
    finally:
        brim("down", "--stop", cwd=folder, env=box.env)
        shutil.rmtree(folder)


@pytest.fixture
def restarted(up):
    """The cluster, for a test that stops its controller: the next test, in random order, finds it as it was."""
    yield up
    up("down", code=None)
    up.start()


def test_run_passes_output_and_exit_code_on(up):
    done = up("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
    assert sorted(done.stdout.split()) == ["err", "out"]
    assert re.match(r"brim: job \d+; Ctrl-C detaches", done.stderr)
    assert "failed" in done.stderr


def test_a_command_has_the_environment_and_folder_of_its_user(up):
    job = up.ended("--env", "MODE=fast", "-n", "where", "--", "sh", "-c", "echo $MODE $BRIM_STATE; pwd")
    assert up("logs", job).stdout == f"fast {up.state}\n{up.work}\n"
    job = up.ended("--chdir", "/", "pwd")
    assert up("logs").stdout == "/\n"
    assert up("logs", "where").stdout.startswith("fast")


def test_a_log_is_that_of_all_attempts(up):
    job = up.ended("--", "sh", "-c", 'echo "attempt $BRIM_ATTEMPT"; test $BRIM_ATTEMPT = 2 || exit 75')
    for options in ((), ("-f",), ("--tail", "9")):
        assert up("logs", *options, job).stdout == "attempt 1\nattempt 2\n"


@pytest.mark.slow
def test_a_script_is_copied_and_its_headers_count(up):
    script = up.work / "job.sh"
    headers = "#SBATCH -J resnet --partition=x\n#BRIM --env A=1 -g 2\n"
    script.write_text(f"#!/bin/bash\n{headers}echo $A $1\n", encoding="utf-8")
    done = up("submit", "--begin", "now+2s", script, "word")
    script.write_text("exit 9\n", encoding="utf-8")
    assert "ignored #SBATCH --partition=x: there is one queue" in done.stderr
    job = int(done.stdout)
    assert up("logs", "-f", job).stdout == "1 word\n"
    (shown,) = json.loads(up("history", "-n", "1", "--json").stdout)["jobs"]
    assert (shown["id"], shown["request"]["name"], shown["request"]["gpus"]) == (job, "resnet", 2)


def test_a_script_for_slurm_finds_its_variables(up):
    script = up.work / "slurm.sh"
    names = ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "JOB_ID", "JOB_NAME", "CPUS_PER_TASK", "SUBMIT_DIR")
    show = "echo " + " ".join(f"$SLURM_{name}" for name in names)
    script.write_text(f"#!/bin/sh\n#SBATCH -J net -c 1 --array 4,6\n{show}\n", encoding="utf-8")
    first, last = map(int, up("submit", "--wait", script).stdout.split("-"))
    assert up("logs", first).stdout == f"{first} 4 {first} net 1 {up.work}\n"
    assert up("logs", last).stdout == f"{first} 6 {last} net 1 {up.work}\n"


def test_an_array_and_a_yaml_file(up):
    (up.work / "job.yaml").write_text("run: echo $BRIM_ARRAY_INDEX\narray: 3-5\nname: sweep\n", encoding="utf-8")
    first, last = map(int, up("submit", "--wait", "job.yaml").stdout.split("-"))
    assert last - first == 2
    assert [up("logs", job).stdout for job in range(first, last + 1)] == ["3\n", "4\n", "5\n"]


def test_an_array_with_a_limit_and_slurms_dependencies(up):
    one_of_two = "place=a; mkdir a || { place=b; mkdir b; } || exit 1; echo $BRIM_ARRAY_INDEX >> witness; rmdir $place"
    script = up.work / "limited.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH --array=0-4%2\n{one_of_two}\n", encoding="utf-8")
    first, last = map(int, up("submit", script).stdout.split("-"))
    after = up.ended("--dependency", "afterok:" + ":".join(map(str, range(first, last + 1))), "cat", "witness")
    assert sorted(up("logs", after).stdout.split()) == list("01234")
    failed = up("submit", "--", "false").stdout.strip()
    both = f"afternotok:{failed},afterany:{after}"
    assert up("run", "--dependency", both, "--", "echo", "cleanup").stdout == "cleanup\n"
    assert "after_any: " in up("submit", "--dry-run", "--depends-on", f"afterany:{after}", "true").stdout


@pytest.mark.slow
def test_words_that_name_an_array_name_all_its_jobs(up):
    many = up("submit", "--hold", "-n", "many", "--array", "0-2", "true").stdout.strip()
    low, high = map(int, many.split("-"))
    for words in ("@", "many", many, f"{low}_0-2", low):  # @ is the newest at first only
        waiting = up("submit", "--hold", "--depends-on", f"afterany:{words}", "-n", "waiting", "true").stdout.strip()
        assert up.job(waiting).request.after_any == tuple(range(low, high + 1)), words
    one = up("submit", "--hold", "--depends-on", f"{low}_1", "true").stdout.strip()
    assert up.job(one).request.after == (low + 1,)
    up("cancel", f"{high + 1}-{one}")
    assert up("release", "many").stdout.count("\n") == 3


def test_a_job_is_held_released_explained_and_cancelled(up):
    job = up("submit", "--hold", "-n", "held", "sleep", "60").stdout.strip()
    assert re.search(rf"^{job} +held +\S+ +held ", up("ps").stdout, re.M)
    assert f"release it: brim release {job}\n" in up("explain", job).stdout
    assert [each["kind"] for each in json.loads(up("explain", job, "--json").stdout)["remedies"]] == ["release"]
    assert up("release", "@").stdout.startswith(f"job {job}: ")
    assert up("cancel", "held").stdout.startswith(f"job {job}: ")
    after = up("submit", "--depends-on", job, "true").stdout.strip()
    until(lambda: any("cancelled" in hold for hold in up.job(after).holds))
    waits = up("ps").stdout
    assert re.search(rf"^{after} .* held .*after {job} cancelled", waits, re.M)
    up("cancel", after)
    assert up("run", "--depends-on", up.ended("true"), "--", "true").returncode == 0
    (shown,) = [each for each in json.loads(up("history", "--json").stdout)["jobs"] if each["id"] == int(job)]
    assert shown["state"] == "cancelled"
    assert "there is nothing to cancel" in up("cancel", job, code=4).stderr
    assert f"there is nothing to requeue; `brim redo {job}` submits it" in up("requeue", job, code=4).stderr


def test_what_is_old_is_removed_and_said_to_be(up):
    old, young = up.ended("-n", "old", "echo", "old"), up.ended("echo", "young")
    agent = up.state / "agent"
    for path in (*agent.glob(f"attempts/{old}-*/end.json"), agent / "cleaned"):
        os.utime(path, (0, 0))
    last = up.ended("true")
    assert "its log was removed: logs are kept for 30 days" in up("logs", old, code=3).stderr
    assert "its command was removed" in up("redo", old, code=3).stderr
    assert up("logs", young).stdout == "young\n"
    lines = {int(line.split()[0]): line for line in up("history").stdout.splitlines()[1:]}
    assert [job for job, line in lines.items() if line.endswith("; its log was removed")] == [old]
    assert last in lines


def test_the_shell_completes_job_ids(up):
    job = up("submit", "--hold", "-n", "offered", "true").stdout.strip()

    def offered(words, shell="bash"):
        env = {"_BRIM_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        return up(**env, _TYPER_COMPLETE_ARGS=words).stdout

    assert job in offered("brim cancel ").split()
    assert f'"{job}":"offered, held"' in offered("brim hold ", "zsh")
    assert f"afterany:{job}" in offered("brim submit --depends-on afterany:").split()
    up("cancel", job)
    assert job not in offered("brim cancel ").split()
    assert job in offered(f"brim logs {job[0]}").split()


def test_a_job_that_can_never_run_is_submitted_and_said_to_be_so(up):
    done = up("submit", "-g", "9", "true")
    assert done.stdout.strip().isdigit()
    assert done.stderr == f"brim: job {done.stdout.strip()} is held and can never run here: it needs 9 GPUs, the " \
        "cluster has 4\n"
    up("cancel", done.stdout.strip())
    on_cpu = up("submit", "--devices", "cpu", "true")
    assert "held and can never run here: policy backfill runs no job on CPU" in on_cpu.stderr
    assert "policy backfill runs no job on CPU" in up("explain", on_cpu.stdout.strip()).stdout
    up("cancel", on_cpu.stdout.strip())


@pytest.mark.parametrize("words", [("run",), ("submit", "--wait"), ("submit", "--wait", "--array", "0-1")])
def test_nobody_waits_for_a_job_that_can_never_run(up, words):
    done = up(*words, "-g", "9", "true", code=4)
    more = " and 1 more" if "--array" in words else ""
    job = int(re.search(rf"job (\d+){more} can never run here, cancelled: it needs 9 GPUs", done.stderr)[1])
    assert up.job(job).state == "cancelled"


def test_eta_says_when_or_that_there_is_no_basis_yet(up):
    for _ in range(3):
        up.ended("-n", "quick", "true")
    job = up("submit", "--hold", "-n", "quick", "true").stdout.strip()
    assert f"job {job}: it is held: user" in up("eta").stdout
    up("release", job)
    long = up("submit", "-n", "unheard-of", "-g", "4", "-t", "1h", "sleep", "600").stdout.strip()
    until_running(up, long)
    assert re.search(rf"^job {long}: ends in \S+ to \S+ \S+ \(from .*\)$", up("eta", long).stdout, re.M)
    waits = up("submit", "-n", "quick", "true").stdout.strip()
    answer = json.loads(up("eta", long, waits, "--json").stdout)
    (runs, its), before = answer["forecasts"], answer["hits"]
    assert (runs["job"], runs["start_s"], its["job"]) == (int(long), None, int(waits))
    assert its["start_s"][0] <= its["expected_s"] <= its["start_s"][1] <= 3_602
    up("cancel", long)
    until(lambda: up.job(waits).state == "finished")
    after = json.loads(up("eta", "--json").stdout)["hits"]
    assert after["jobs"] > before["jobs"]
    assert before["hits"] <= after["hits"] <= after["jobs"]
    said = f"so far {after['hits']} of {after['jobs']} jobs started within their first forecast; four of five should"
    assert said in up("eta").stdout


def test_redo_runs_a_job_again(up):
    up.ended("--array", "3", "--env", "A=7", "--", "sh", "-c", "echo $A $BRIM_ARRAY_INDEX")
    job = up("redo").stdout.strip()
    assert up("logs", "-f", job).stdout == "7 3\n"


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["redo", "submit", "release"])
def test_an_agent_that_died_is_started_again_by_what_needs_it(up, verb):
    job = up("submit", "--hold", "-n", "again", "echo", "again").stdout.strip()
    before = up.pid("agent")
    os.kill(before, signal.SIGKILL)
    until(lambda: not is_locked(up.state / "agent" / "lock"))
    if verb == "release":
        up("release", job)
    else:
        up("cancel", job)
        job = up(*(["redo", job] if verb == "redo" else ["submit", "echo", "again"])).stdout.strip()
    assert up("logs", "-f", job).stdout == "again\n"
    assert up.pid("agent") != before


def test_a_dry_run_submits_nothing(up):
    def newest():
        shown = [job for verb in ("ps", "history") for job in json.loads(up(verb, "--json").stdout)["jobs"]]
        return max((job["id"] for job in shown), default=0)

    before = newest()
    uses = ("--gpu-mem", "10GB", "--gpu-util", "60%", "--deadline", "2030-01-02T03:04:05")
    shown = up("submit", "--dry-run", "-g", "2", "-t", "1h", *uses, "sleep", "5").stdout
    for line in ("command: sleep 5", "time_limit: 3600 s", "gpu_util: 60%", "deadline: 2030-01-02 03:04:05"):
        assert f"{line}\n" in shown
    assert re.search(r"^gpu_mem: \d+ MiB$", shown, re.M)
    assert re.search(r"^it would (start now, on devices|wait:)", shown, re.M)
    assert newest() == before


@pytest.mark.parametrize(("words", "code", "said"), [
    (["submit", "no-such-command"], 2, "no command 'no-such-command'"),
    (["submit", "--chdir", "/no/such", "true"], 2, "--chdir: found '/no/such'"),
    (["submit", "-g", "x:y", "true"], 2, "--gpus: found 'x:y'"),
    (["submit", "-n", "a/b", "true"], 2, "name: found 'a/b'"),
    (["submit", "--class", "vip", "true"], 2, "--class: found 'vip'"), (["submit"], 2, "brim submit -h"),
    (["submit", "--dry-run", "-g", "9", "true"], 2, "could never run: it needs 9 GPUs, the cluster has 4"),
    (["eta", "9999"], 3, "there is no job 9999 of yours"),
    (["explain", "9999"], 3, "there is no job 9999 of yours"),
    (["submit", "--env", "A", "true"], 2, "--env: found 'A'"), (["submit", "--gpu", "1", "true"], 2, "--gpu"),
    (["submit", "--depends-on", "nobody", "true"], 3, "you have no job 'nobody'"), (["logs", "9999"], 3, "no job 9999"),
    (["cancel", "9999"], 3, "there is no job 9999 of yours"), (["cancel", "9-5"], 2, "range 9-5"),
    (["ps", "-o", "xml"], 2, "--output: found 'xml'"), (["history", "-n", "0"], 2, "--limit: found '0'"),
    (["logs", "--rank", "-1"], 2, "--rank: found '-1'"), (["up", "--devices", "9"], 4, "with --devices 4, not 9"),
    (["join", "no-such-user"], 3, "no user 'no-such-user'"), (["submit", "job.bin"], 2, "neither text nor a program"),
])  # fmt: skip
def test_what_cannot_be_is_one_line_and_an_exit_code(up, words, code, said):
    (up.work / "job.bin").write_bytes(b"\0" * 100)
    done = up(*words, code=code)
    assert said in done.stderr
    assert done.stderr.startswith("brim: error: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout or words[0] == "up"


def test_more_devices_than_there_are_is_held_with_the_reason(up):
    job = up("submit", "-g", "5", "true").stdout.strip()
    until(lambda: up.job(job).state != "pending")
    (shown,) = [each for each in json.loads(up("ps", "--json").stdout)["jobs"] if each["id"] == int(job)]
    assert shown["state"] == "held"
    assert any(hold.startswith("impossible") for hold in shown["holds"])
    up("cancel", job)


@pytest.mark.slow
@pytest.mark.usefixtures("restarted")
def test_up_again_says_so_and_a_killed_controller_takes_its_jobs_back(up):
    job = up("submit", "--", "sh", "-c", "echo one; while ! test -e go; do sleep 0.05; done; echo two").stdout.strip()
    until_running(up, job)
    before = up.pid("controller")
    for words in ([], ["--devices", "4"], ["--policy", "backfill", "--devices", "4"]):
        assert up("up", *words).stdout.startswith(f"already up: process {before}, policy backfill, 4 devices")
    own = up.work / "own.toml"
    own.write_text(files("brim.beliefs").joinpath("profiles", "predictability.toml").read_text("utf-8"), "utf-8")
    for words, said in (
        (["--policy", "srtf", "--devices", "4"], "it runs with --policy backfill, not srtf: to change"),
        (["--policy", "backfill.py"], f"it runs with --policy backfill, not {up.work}/backfill.py: to change"),
        (["--user-jobs", "9"], "it runs without --user-jobs, not 9: to change"),
        (["--predictability", "own.toml"], f"it runs without --predictability, not {own}: to change"),
        (["--allow", "daemon"], "it runs without --allow, not daemon: to change"),
    ):
        assert said in up("up", *words, code=4).stderr
    other = up.work / "other"
    up("up", "--devices", "3", code=4, BRIM_STATE=str(other))
    assert not (other / "agent").exists(), "an agent of a state folder whose controller was refused"
    os.kill(before, signal.SIGKILL)
    assert "no controller answers" in up("ps", code=1).stderr  # its socket is still there
    mine = up.work / "mine.py"
    text = "from brim.policies.presets import find_policy\npolicy = find_policy('backfill')\n"
    mine.write_text(text, encoding="utf-8")
    assert "cannot read" in up("up", "--devices", "4", "--predictability", "nowhere.toml", code=3).stderr
    up("up", "--devices", "4", "--policy", mine, "--predictability", own)
    assert up.pid("controller") != before
    mine.write_text(f"{text}# edited\n", encoding="utf-8")
    changed = up("up", "--policy", mine, code=4).stderr
    assert f"it runs {mine} as that was when it was started, and the file has changed since: to change" in changed
    mine.write_text(text, encoding="utf-8")
    assert up("up", "--policy", mine, "--predictability", own).stdout.startswith("already up")
    (up.work / "go").touch()
    assert up("logs", "-f", job).stdout == "one\ntwo\n"
    (up.work / "go").unlink()
    assert re.search(rf"^{job} .* finished +0 ", up("history").stdout, re.M)


@pytest.mark.parametrize(("words", "again"), [
    ("--gpus 8 --gpu-type V100 --policy backfill --allow", "brim up"),
    ("--devices 4 --policy srtf --allow 0,1 --user-gpus 2", "brim up --devices 4 --policy srtf --allow root,daemon "
     "--user-gpus 2"),
])
def test_the_same_service_is_started_again_by(words, again):
    words = [*words.split(), *[""] * (len(words.split()) % 2)]
    assert _up_again(_pairs(words)) == again


@pytest.mark.slow
@pytest.mark.usefixtures("restarted")
def test_down_leaves_jobs_running_and_says_which(up):
    job = up("submit", "--", "sh", "-c", "while ! test -e go; do sleep 0.05; done; exit 5").stdout.strip()
    until_running(up, job)
    done = up("down")
    said = done.stdout
    assert done.stderr.startswith("next: brim up --devices 4 --tcp ")
    assert f"the agent (process {up.pid('agent')}) stays" in said
    assert f"job {job} goes on, on 1 device\n" in said
    assert "no controller of" in up("down", code=3).stderr
    up("up", "--devices", "4")
    (up.work / "go").touch()
    done = up("logs", "-f", job)
    (up.work / "go").unlink()
    assert done.stdout == ""
    assert re.search(rf"^{job} .* failed +5 ", up("history").stdout, re.M)


@pytest.mark.slow
def test_tcp_wants_a_token_that_can_be_revoked(up):
    def ask(secret, method="GET", path="/v1/status"):
        connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=30)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
            connection.request(method, path, '{"label": "x"}' if method == "POST" else None, headers)
            return connection.getresponse().status

    secret = up("token", "new", "notebook", "--days", "1").stdout.strip()
    assert secret.startswith("brim_")
    assert ask(secret) == 200
    assert ask(secret, "POST", "/v1/tokens") == 403
    assert [ask(wrong) for wrong in (secret[:-1], secret[5:], "", "brim_")] == [401] * 4
    (listed,) = json.loads(up("token", "list", "--json").stdout)["tokens"]
    assert listed["label"] == "notebook"
    assert secret not in json.dumps(listed)
    assert secret.encode() not in b"".join(path.read_bytes() for path in (up.state / "controller").iterdir())
    up("token", "revoke", listed["id"])
    assert ask(secret) == 401
    assert "token 99" in up("token", "revoke", "99", code=3).stderr


def attempts_of(up, job):
    """What the store has of a job and its attempts: why the report leaves it out."""
    with contextlib.closing(sqlite3.connect(up.state / "controller" / "brim.db")) as store:
        return str([store.execute(f"SELECT * FROM {table} WHERE {key} = ?", (job,)).fetchall()
                for table, key in (("jobs", "id"), ("attempts", "job"))])


@pytest.mark.slow
def test_the_report_compares_the_twin_with_what_ran(up):
    """After all that the tests before did: jobs that failed, were cancelled, and one that still runs."""
    first = int(up("submit", "-n", "step", "-g", "2", "sleep", "0.3").stdout)
    for _ in range(4):
        last = up.ended("-n", "step", "-g", "2", "sleep", "0.3")
    cancelled = up("submit", "-n", "step", "sleep", "600").stdout.strip()
    until_running(up, cancelled)
    (up.work / "go").unlink(missing_ok=True)
    runs = int(up("submit", "-n", "long", "--", "sh", "-c", "while ! test -e go; do sleep 0.05; done").stdout)
    until_running(up, runs)  # before it holds devices, no report knows it
    up("cancel", cancelled)
    words = ("report", "--fidelity", "--jobs", f"{first + 2}-{runs}")
    result = json.loads(up(*words, "--json").stdout)
    for mode in ("own_run_times", "predicted"):
        found = result[mode]
        assert [row["job"] for row in found["errors"]] == [first + 2, first + 3, last], attempts_of(up, first + 2)
        assert found["totals"]["makespan_s"]["live"] > 0.6
        assert abs(found["totals"]["makespan_s"]["error_ratio"]) < 10
        assert found["costs"]["starts"] > 0
    assert result["predicted"]["run_times_from"] == {"name and size": 3}
    assert {first, first + 1} <= set(result["learned"])
    shown = up(*words).stdout
    assert f" jobs from {first + 2} to {runs} under backfill on 1x4xcpu:" in shown
    assert "of them did not run undisturbed to the end, and only load the cluster" in shown
    assert "checks only how the twin queues" in shown
    assert re.search(r"^furthest off: job \d+ \([-+]", shown, re.M)
    assert up("report", "--fidelity").stdout
    assert "--jobs: found '9-5'" in up("report", "--fidelity", "--jobs", "9-5", code=2).stderr
    assert "no job has finished" in up("report", "--fidelity", "--jobs", "99999", code=2).stderr
    assert "must not know its answer" in up(*words, "--learn", last, code=2).stderr
    (up.work / "go").touch()
    assert not up("logs", "-f", runs).stdout
    (up.work / "go").unlink()


def test_jobs_of_somebody_who_does_not_exist_are_not_awaited(up):
    for verb in ("ps", "history"):
        assert up(verb, "-u", "nobody-here", code=3).stderr == (
            "brim: error: there is no user 'nobody-here' on this machine\n"
        )
    assert up("history", "-u", "daemon").stdout == "no job of daemon has ended yet\n"


def test_without_a_history_there_is_no_report(up, tmp_path):
    assert "no history yet" in up("report", "--fidelity", BRIM_STATE=str(tmp_path), code=3).stderr
    assert "brim report --fidelity" in up("report", code=2).stderr


def test_secrets_are_this_users_alone(up):
    up.ended("true")
    for folder in ("controller", "agent"):
        for path in (up.state / folder).rglob("*"):
            if not path.is_socket():
                top = (up.state / folder).stat().st_mode & 0o077
                assert not top
    for path in (up.state / "agent" / "captures").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert (up.run_folder / "api.sock").stat().st_mode & 0o777 == 0o600
