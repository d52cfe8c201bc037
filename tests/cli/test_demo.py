"""``brim demo``: the controller and the agent of ``brim up``, jobs of its plan, and nothing left at the end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim.cli.demo import JOBS, PADDING, plan, rehearse
from brim.core.trace import JobClass
from tests.cli.commands import brim
from tests.sampling import sample

PATIENCE_S = 240
"""Longest wait for something that must happen; no test waits so long on a machine that works."""
SMALL = ((0.0, "ana-1", "1-4", 120), (0.0, "bo-1", "2", 80))
RUN = """
import sys
import brim.cli.demo as demo
demo.JOBS = {jobs}
from brim.cli.main import main
sys.argv = ["brim", "demo", *sys.argv[1:]]
main()
"""
INTERRUPTIBLE = """
import signal, sys
from pathlib import Path
from rich.console import Console
from brim.cli.demo import prepare, run_jobs
from brim.cli.session import Planned
jobs = [Planned(at_ms=0, name=f"ana-{n}", gpus="1", samples=1, words=("/bin/sh", "-c", sys.argv[2])) for n in range(6)]
prepare()
run_jobs(jobs, Path(sys.argv[1]), Console(stderr=True))
"""
"""Six jobs that would take a minute, of which four can run."""


def of_cluster(folder: Path) -> list[int]:
    """Living processes of a cluster with its state in this folder: controller, agent, zygotes, supervisors, jobs."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"BRIM_STATE={folder}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def sleeping(folder: Path) -> int:
    """How many of its processes are the ``sleep`` of a job."""
    found = 0
    for pid in of_cluster(folder):
        try:
            found += Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0")
        except OSError:
            continue
    return found


# -- what the policy decides about the plan ------------------------------------------------------------------------


@pytest.mark.parametrize("slower", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("start_ms", [200, 3_000])
def test_it_preempts_a_regular_job_and_resizes_two_and_padding_returns(slower: float, start_ms: int) -> None:
    twin = rehearse(slower, start_ms)
    regular = twin.trace.job_class == JobClass.REGULAR
    assert twin.preemptions[regular].sum() >= 1
    assert twin.resizes[regular].sum() >= 2
    assert twin.preemptions[~regular].sum() + twin.resizes[~regular].sum() >= 1
    assert twin.finish_ms[~regular][0] > twin.finish_ms[regular].min(), "the padding job had to wait for others"
    assert twin.finish_ms.max() < 180_000


def test_the_plan_has_eight_regular_jobs_of_three_users_and_a_padding_job() -> None:
    assert len(JOBS) == 8
    assert [job.is_padding for job in plan()] == [True] + 8 * [False]
    assert {job.user for job in plan()} == {"ana", "bo", "cem"}


# -- real processes ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_jobs_finish_and_the_table_has_live_and_replay_side_by_side(tmp_path: Path) -> None:
    out = tmp_path / "kept"
    code = RUN.format(jobs=sample(JOBS, SMALL))
    done = subprocess.run([sys.executable, "-c", code, "--out", str(out), "--json"], capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {job["user"] for job in result["jobs"]} == {"ana", "bo", "cem"}
    assert all(job["jct_s"] > 0 and job["jct_twin_s"] > 0 for job in result["jobs"])
    assert sum(job["preemptions"] for job in result["jobs"]) >= sample(1, 0)
    assert sum(job["resizes"] for job in result["jobs"]) >= sample(2, 0)
    padding = next(job for job in result["jobs"] if job["name"] == PADDING[0])
    assert padding["preemptions"] + padding["resizes"] >= sample(1, 0), "it has given slots away"
    log = (out / "state" / "agent" / "attempts" / "1-1" / "log" / "rank-0.log").read_text()
    assert "accuracy on digits not seen" in log
    assert of_cluster(out) == []
    again = brim("demo", "--out", out)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "give a new or empty folder" in again.stderr


@pytest.mark.slow
def test_a_job_that_fails_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    code = INTERRUPTIBLE.replace("run_jobs(", "session = run_jobs(") + (
        "from brim.cli.demo import say_why\n"
        "say_why(session.failed[0], Path(sys.argv[1]), Console(stderr=True))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), "echo no such file; exit 3"],
                          capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert "job 1 (ana-0) failed: " in done.stderr
    assert "no such file" in done.stderr
    assert of_cluster(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen([sys.executable, "-c", INTERRUPTIBLE, str(tmp_path), "sleep 60 & sleep 60 & wait"],
                            stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: sleeping(tmp_path) == 8, demo)
    demo.send_signal(number)
    demo.send_signal(number)  # whoever is impatient changes nothing
    rest = demo.communicate(timeout=PATIENCE_S)[1]
    assert demo.returncode != 0
    assert "stopped: 0 of 6 jobs had ended; none of their processes is left" in rest
    assert of_cluster(tmp_path) == []


@pytest.mark.slow
def test_a_demo_that_is_killed_leaves_no_process_and_no_temporary_folder(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    code = INTERRUPTIBLE.replace("stderr=True))", "stderr=True), temporary=Path(sys.argv[1]))")
    demo = subprocess.Popen([sys.executable, "-c", code, str(folder), "sleep 60 & sleep 60 & wait"],
                            stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: sleeping(folder) == 8, demo)
    demo.kill()
    demo.wait(PATIENCE_S)
    end_s = time.monotonic() + PATIENCE_S
    while of_cluster(folder) or folder.exists():
        assert time.monotonic() < end_s, (of_cluster(folder), folder.exists())
        time.sleep(0.05)


@pytest.mark.slow
def test_a_demo_whose_terminal_goes_leaves_no_process(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", INTERRUPTIBLE, str(tmp_path), "sleep 60 & sleep 60 & wait"])
    seen = b""
    while b"4 of 4 slots busy" not in seen or sleeping(tmp_path) < 8:
        seen += os.read(terminal, 65_536)
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] != 0
    assert of_cluster(tmp_path) == []


def wait_until(holds, process) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.slow
def test_what_is_missing_is_named_with_the_extras_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['brim', 'demo']; import brim.cli.main as m; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 4
    assert done.stderr == (
        "brim: error: brim demo needs the extras `live` and `train` (torch cannot be found): "
        "pip install -e '.[live,train]'\n"
    )


@pytest.mark.parametrize("kind", ["file", "inside a file", "full"])
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / "taken").touch()
    out = {"file": tmp_path / "taken", "inside a file": tmp_path / "taken" / "x", "full": tmp_path}[kind]
    done = brim("demo", "--out", out)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("brim: error: --out: ")
