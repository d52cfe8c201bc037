"""``python -m brim.train.launch``: unmodified torch scripts, and sessions that are resized and killed by hand."""

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from brim.gang.client import send_request
from brim.gang.messages import PreemptRequest, ResizeRequest, StatusRequest, StopRequest, TuneSettings
from brim.train import launch
from tests import forked
from tests.gang.conftest import PATIENCE_S

REDUCE = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
optimizer = torch.optim.AdamW(torch.nn.Linear(4, 4).parameters())
total = torch.full((3,), float(dist.get_rank() + 1))
dist.all_reduce(total)
found = (dist.get_rank(), total.tolist(), torch.get_num_threads(), sys.argv[1:], torch.rand(1).item())
sys.stdout.write(f"{found}\\n")
dist.destroy_process_group()
"""

SESSION = """
import hashlib, os, sys, time
import torch
import brim.train as bt
from brim.train.run import start

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((8,), i / 64), torch.tensor([i / 32 - 1])

if __name__ == "__main__":
    run = start(logical_workers=4, seed=1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    loader = run.loader(Numbers(), global_batch=8, workers=0)
    for epoch in run.epochs(int(sys.argv[1])):
        for x, y in run.steps(loader):
            run.backward(torch.nn.functional.mse_loss(model(x), y))
            if run.step() and os.path.exists("slow"):
                time.sleep(0.1)
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    sys.stdout.write(f"{run.steps_done} {bits}\\n")
"""

WAITS = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"
"""Before a script: it begins when the test lets it."""


class Launched:
    """The command, in a folder of its own."""

    def __init__(self, folder, *words):
        self.folder, self.control = folder, folder / "s"
        (folder / "slow").touch()
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            command = [sys.executable, "-m", "brim.train.launch", "--control", self.control]
            command += ["--grace", "30", "--term", "27"]
            self.process = subprocess.Popen([*command, *map(str, words)], stdout=out, stderr=err, cwd=folder)

    def ask(self, *words):
        done = subprocess.run([sys.executable, "-m", "brim.train.launch", "--send", self.control, *map(str, words)],
                              capture_output=True, text=True, check=False)  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def status(self):
        with contextlib.suppress(OSError):
            return send_request(str(self.control), StatusRequest()).status

    def until(self, holds):
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            status = self.status()
            if status and holds(status):
                return status
            assert self.process.poll() is None, (self.folder / "err").read_text()
            time.sleep(0.05)
        raise AssertionError(f"{status}\n{(self.folder / 'err').read_text()}")

    def lines(self):
        return sorted((self.folder / "out").read_text().splitlines())


@pytest.fixture
def launched(tmp_path, zygote):
    started = []

    def start(*words):
        folder = tmp_path / f"gang{len(started)}"
        folder.mkdir()
        started.append(Launched(folder, "--zygote", zygote, *words))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait()


def inside(size):
    return lambda status: sum(rank["state"] == "joined" for rank in status["ranks"]) == size == len(status["members"])


def test_a_plain_torch_script_reduces_over_its_gang(tmp_path, launched):
    (tmp_path / "reduce.py").write_text(REDUCE)
    gang = launched("--nproc", 4, tmp_path / "reduce.py", "--lr", "1")
    assert gang.process.wait(PATIENCE_S) == 0
    found = [ast.literal_eval(line) for line in gang.lines()]
    assert [row[:4] for row in found] == [(n, [10.0, 10.0, 10.0], 1, ["--lr", "1"]) for n in range(4)]
    assert len({row[4] for row in found}) in (1, 4)  # torch's constant seed, or one of its own for each rank
    assert "fresh" not in (gang.folder / "err").read_text()


def test_one_that_fails_in_a_collective_ends_all_and_is_named(tmp_path, launched):
    (tmp_path / "fails.py").write_text(REDUCE.replace("total =", "assert dist.get_rank() != 2, 'mine'\ntotal ="))
    gang = launched("--nproc", 3, "--failure-grace", 2, tmp_path / "fails.py")
    assert gang.process.wait(PATIENCE_S) == 1
    text = (gang.folder / "err").read_text()
    assert "AssertionError: mine" in text[: text.index("Traceback") + 300]
    assert text.splitlines()[-1] == "brim: rank 2 failed first: exited with 1"


def test_sessions_are_resized_killed_and_tuned_by_hand_and_the_bits_are_the_same(tmp_path, launched):
    lasting = "0.1 if run.steps_done < 100 else 1.0)"  # also where each of these requests takes long
    (tmp_path / "session.py").write_text(SESSION.replace("0.1)", lasting))
    still = launched("--nproc", 1, tmp_path / "session.py", 30)
    (still.folder / "slow").unlink()
    assert still.process.wait(60) == 0
    gang = launched("--nproc", 2, tmp_path / "session.py", 30)
    gang.until(inside(2))
    assert gang.ask("resize", 3)[0] == 4
    assert gang.ask("resize", 4)[0] == 0
    status = gang.until(inside(4))
    assert gang.ask("kill", status["members"][1])[0] == 0
    gang.until(lambda status: inside(2)(status) and status["generation"] > 2)
    assert gang.ask("resize", 1)[0] == 0
    gang.until(inside(1))
    (gang.folder / "slow").unlink()
    assert gang.process.wait(60) == 0
    assert set(gang.lines()) == set(still.lines())
    assert len(gang.lines()) == 1


PLACES = SESSION.replace("    model =", "    place = (run.rank, run.world_size)\n    model =", 1).replace(
    '"{run.steps_done} {bits}', '"{place} {(run.rank, run.world_size)} {run.steps_done} {bits}'
)


def test_a_rank_knows_its_place_before_the_group_is_formed(tmp_path, launched):
    (tmp_path / "places.py").write_text(PLACES)
    gang = launched("--nproc", 2, tmp_path / "places.py", 1)
    (gang.folder / "slow").unlink()
    assert gang.process.wait(PATIENCE_S) == 0, (gang.folder / "err").read_text()
    assert [line[:15] for line in gang.lines()] == ["(0, 2) (0, 2) 8", "(1, 2) (1, 2) 8"]


@pytest.mark.slow
def test_torchrun_within_a_job_makes_ranks_of_its_own(tmp_path):
    (tmp_path / "places.py").write_text(PLACES)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code = (
        "from brim.gang.supervisor import LaunchConfig, Supervisor\n"
        f"raise SystemExit(Supervisor(LaunchConfig(command={(*torchrun, 'places.py', '1')!r}, nproc=1, is_gang=False, "
        f"control='{tmp_path}/s', cwd='{tmp_path}', log_folder='{tmp_path}')).run().exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    lines = sorted(line for line in said.splitlines() if line[:1] == "(")
    assert [line[:15] for line in lines] == ["(0, 2) (0, 2) 8", "(1, 2) (1, 2) 8"], said


def test_a_job_with_more_devices_than_ranks_is_told(tmp_path, launched):
    (tmp_path / "places.py").write_text(PLACES)
    gang = launched("--nproc", 1, "--devices", "cpu0,cpu1", tmp_path / "places.py", 1)
    (gang.folder / "slow").unlink()
    assert gang.process.wait(PATIENCE_S) == 0, (gang.folder / "err").read_text()
    assert "brim: this job has 2 devices and 1 rank; `--ranks per-gpu` starts" in (gang.folder / "err").read_text()


@pytest.mark.parametrize("order", ["stop", "preempt"])
def test_who_is_on_the_way_when_the_end_is_announced_ends_too(tmp_path, launched, order):
    (tmp_path / "session.py").write_text(SESSION)
    gang = launched("--nproc", 2, tmp_path / "session.py", 800)
    gang.until(inside(2))
    assert send_request(str(gang.control), ResizeRequest(4)).ok
    assert send_request(str(gang.control), StopRequest() if order == "stop" else PreemptRequest()).ok
    assert gang.process.wait(PATIENCE_S) == (0 if order == "stop" else 75), (gang.folder / "err").read_text()
    assert "SIGKILL" not in (gang.folder / "err").read_text()


@pytest.mark.cases(1)
@pytest.mark.parametrize("order", ["stop", "preempt", "tune"])
def test_what_is_asked_between_a_resize_and_the_step_that_takes_it_up_waits_for_the_newcomers(
    tmp_path, launched, order
):
    (tmp_path / "session.py").write_text(SESSION.replace("0.1)", "1.0)"))
    gang = launched("--nproc", 2, tmp_path / "session.py", 4)
    gang.until(inside(2))
    assert send_request(str(gang.control), ResizeRequest(4)).ok
    gang.until(lambda status: status["generation"] == 2)  # said to ranks 0 and 1, which are in a step of a second
    message = {"stop": StopRequest(), "preempt": PreemptRequest(), "tune": TuneSettings(global_batch=16)}[order]
    assert send_request(str(gang.control), message).ok
    (gang.folder / "slow").unlink()
    code, err = gang.process.wait(PATIENCE_S), (gang.folder / "err").read_text()
    assert code == {"stop": 0, "preempt": 75, "tune": 0}[order], err
    assert "SIGKILL" not in err
    assert len(set(gang.lines())) == (1 if order == "tune" else 0)


def test_a_stop_before_anybody_has_connected_is_heard(tmp_path, launched):
    (tmp_path / "session.py").write_text(WAITS + SESSION)
    gang = launched("--nproc", 2, tmp_path / "session.py", 800)
    gang.until(lambda status: status["ranks"])
    assert gang.ask("stop")[0] == 0
    (gang.folder / "go").touch()
    assert gang.process.wait(PATIENCE_S) == 0
    assert gang.lines() == []


def test_who_comes_when_a_job_is_through_does_not_begin_it_anew(tmp_path, launched):
    stays = "    sys.stdout.flush()\n    while not os.path.exists('leave'):\n        time.sleep(0.02)\n"
    (tmp_path / "session.py").write_text(SESSION + stays)
    gang = launched("--nproc", 1, tmp_path / "session.py", 1)
    (gang.folder / "slow").unlink()
    began = lambda rank: rank.get("step", 0) or rank["state"] == "joined"  # noqa: E731
    status = gang.until(lambda status: any(began(rank) for rank in status["ranks"]))
    assert status["members"] == [0]
    while not gang.lines():
        time.sleep(0.01)
    assert send_request(str(gang.control), ResizeRequest(2)).ok
    (gang.folder / "leave").touch()
    assert gang.process.wait(PATIENCE_S) == 0
    assert len(gang.lines()) == 1
    assert "the job is over; rank 1 stopped" in (gang.folder / "err").read_text()


def test_ranks_that_do_not_divide_the_logical_workers_are_said_and_ended(tmp_path, launched):
    (tmp_path / "session.py").write_text(SESSION)
    gang = launched("--nproc", 3, tmp_path / "session.py", 2)
    (gang.folder / "slow").unlink()
    assert gang.process.wait(PATIENCE_S) == 0
    said = (gang.folder / "err").read_text()
    assert "using 2 ranks (1, 2 or 4 are possible); rank 2 stopped" in said
    assert "SIGKILL" not in said


def test_a_tune_that_is_pending_when_a_rank_dies_is_taken_up_by_the_others(tmp_path, launched):
    (tmp_path / "session.py").write_text(SESSION.replace("0.1)", "1.0)"))
    gang = launched("--nproc", 2, tmp_path / "session.py", 4)
    status = gang.until(inside(2))
    assert send_request(str(gang.control), TuneSettings(global_batch=16)).ok
    os.kill(status["ranks"][1]["pid"], signal.SIGKILL)
    gang.until(inside(1))
    (gang.folder / "slow").unlink()
    assert gang.process.wait(PATIENCE_S) == 0
    (line,) = gang.lines()
    assert int(line.split()[0]) < 32


def test_without_a_socket_training_goes_on(tmp_path, launched):
    (tmp_path / "session.py").write_text(SESSION.replace("0.1)", "1.0)"))
    gang = launched("--nproc", 2, tmp_path / "session.py", 4)
    gang.until(inside(2))
    gang.control.unlink()
    (gang.folder / "slow").unlink()
    assert gang.process.wait(PATIENCE_S) == 0
    assert len(gang.lines()) == 2


def test_who_is_through_leaves_at_once_when_asked_by_a_signal(tmp_path, launched):
    (tmp_path / "session.py").write_text(SESSION + "    sys.stdout.flush()\n    time.sleep(60)\n")
    gang = launched("--nproc", 2, tmp_path / "session.py", 1)
    (gang.folder / "slow").unlink()
    status = gang.until(lambda status: len(gang.lines()) == 2)
    os.kill(status["ranks"][1]["pid"], signal.SIGTERM)
    assert gang.process.wait(PATIENCE_S) == 75
    assert "SIGKILL" not in (gang.folder / "err").read_text()


def test_sigterm_to_the_supervisor_preempts_a_session(tmp_path, launched):
    (tmp_path / "session.py").write_text(SESSION)
    gang = launched("--nproc", 2, "--grace", 60, "--term", 5, tmp_path / "session.py", 800)
    gang.until(inside(2))
    code, out, _ = gang.ask("status")
    assert (code, len(json.loads(out)["ranks"])) == (0, 2)
    start_s = time.monotonic()
    gang.process.send_signal(signal.SIGTERM)
    assert gang.process.wait(PATIENCE_S) == 75
    assert time.monotonic() - start_s < 30, "SIGTERM to its ranks would have come after 55 s"


def test_sigterm_to_one_rank_preempts_its_gang(tmp_path, launched):
    """As under torchrun or Slurm: nobody is replaced, and what was trained is not begun anew."""
    (tmp_path / "session.py").write_text(SESSION)
    gang = launched("--nproc", 2, "--replace", 1, tmp_path / "session.py", 800)
    status = gang.until(inside(2))
    os.kill(status["ranks"][1]["pid"], signal.SIGTERM)
    assert gang.process.wait(PATIENCE_S) == 75
    said = (gang.folder / "err").read_text()
    assert "brim: a rank received a signal to leave: asking 2 ranks to save and leave" in said
    assert said.count(": start(checkpoint=...) names no folder to save to") == 1


def test_sigterm_to_one_rank_before_it_has_begun_preempts_its_gang(tmp_path, launched):
    (tmp_path / "session.py").write_text(WAITS + SESSION)
    gang = launched("--nproc", 2, "--replace", 1, tmp_path / "session.py", 800)
    status = gang.until(lambda status: len(status["ranks"]) == 2 and all(rank["pid"] for rank in status["ranks"]))
    os.kill(status["ranks"][1]["pid"], signal.SIGTERM)
    (gang.folder / "go").touch()
    assert gang.process.wait(PATIENCE_S) == 75
    assert "ended by SIGTERM before it was ready: asking all ranks to leave" in (gang.folder / "err").read_text()


def test_without_an_answer_it_says_so(tmp_path):
    done = subprocess.run([sys.executable, "-m", "brim.train.launch", "--send", tmp_path / "nothing", "status"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    why = "No such file or directory; expected the socket of a supervisor"
    assert done.stderr == f"brim: {tmp_path / 'nothing'}: {why}\n"


@pytest.mark.parametrize(("words", "expected"), [
    (["dance"], "found 'dance', expected status"), (["resize"], "expected status"),
    (["resize", "x"], "resize: found 'x', expected a whole number"),
    (["kill", "x"], "kill: found 'x', expected a whole number"),
    (["preempt", "x"], "preempt: found 'x', expected a number of seconds"),
    (["preempt", "-5"], "preempt: found -5 s, expected a finite time of at least 0"),
    (["preempt", "nan"], "preempt: found nan s, expected a finite time of at least 0"),
    (["tune", "prefetch=0"], "tune: found prefetch 0, expected at least 1"),
    (["tune", "colour=3"], "expected NAME=NUMBER"), (["tune"], "expected status"), (["kill"], "expected status"),
])  # fmt: skip
def test_what_cannot_be_asked_is_refused(words, expected, capsys):
    assert launch.main(["--send", "/nowhere", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("words", [["kill", "--help"], ["tune", "-h"]])
def test_help_behind_send_lists_the_requests(capsys, words):
    assert launch.main(["--send", "/nowhere", *words]) == 0
    assert capsys.readouterr().out.startswith("requests: status, resize N, preempt [GRACE_S], stop, kill ID")


@pytest.mark.parametrize(("words", "expected"), [
    ([], "no script given: expected script.py"), (["--nproc", "0", "x.py"], "found 0, expected 1 to 128"),
    (["--nproc", "129", "x.py"], "--nproc: found 129, expected 1 to 128"),
    (["--grace", "-1", "x.py"], "--grace: found -1, expected at least 0"),
    (["--failure-grace", "nan", "x.py"], "--failure-grace: found nan, expected at least 0"),
    (["--replace", "-1", "x.py"], "--replace: found -1, expected at least 0"),
    (["--logs", "/proc/x", "x.py"], "--logs /proc/x: No such file or directory; expected a writable folder"),
    (["--control", "/tmp/" + "x" * 120, "x.py"], "expected at most 107"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(words, expected, capsys):
    assert launch.main(words) != 0
    assert expected in capsys.readouterr().err


def test_arguments_become_requests():
    parse = launch._parse_request
    assert parse(["preempt", "2.5"]) == launch.PreemptRequest(2.5)
    assert parse(["tune", "global_batch=64", "prefetch=2"]) == launch.TuneSettings(global_batch=64, prefetch=2)
    assert parse(["kill", "3"]) == launch.KillRequest(3)


LEAVES = """
import os, sys
import torch
import brim.train as bt

def main():
    run = bt.start(logical_workers=2)
    model = torch.nn.Linear(8, 1)
    run.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
    loader = run.loader(torch.utils.data.TensorDataset(torch.randn(512, 8)), global_batch=8, workers=0)
    for epoch in run.epochs(10):
        for (x,) in run.steps(loader):
            run.backward(model(x).square().mean())
            if run.step() and run.rank == 0 and run.steps_done == 17:
                if sys.argv[1] == "exit":
                    sys.exit(0)
                if sys.argv[1] == "_exit":
                    os._exit(0)
                if sys.argv[1] == "gather":
                    run.gather(1)
                if sys.argv[1] == "finish":
                    run.finish()
                return

main()
"""


@pytest.mark.parametrize(("how", "words"), [
    ("return", "rank 0 left the training loop after step 17 and ended, while rank 1 continues"),
    ("exit", "rank 0 left the training loop after step 17 and ended, while rank 1 continues"),
    ("_exit", "rank 0 left the training loop and ended, while rank 1 continues"),
    ("finish", "rank 0 in the save at the end after step 17, rank 1 in step 18"),
    ("gather", "rank 0 in run.gather, run.broadcast or run.reduce after step 17, rank 1 in step 18"),
])  # fmt: skip
def test_a_rank_that_alone_leaves_the_loop_ends_the_job_by_name(tmp_path, launched, how, words):
    (tmp_path / "leaves.py").write_text(LEAVES)
    gang = launched("--nproc", 2, tmp_path / "leaves.py", how)
    assert gang.process.wait(2 * PATIENCE_S) == 1  # beside all else, ranks that wait for each other do so for 10 s
    last = (gang.folder / "err").read_text().splitlines()[-1]
    assert words in last
    assert "every rank must do the same steps; to end early, use run.epochs(..., steps=N)" in last


SIZE = """
import sys
import torch
import brim.train as bt
run = bt.start()
run.prepare(torch.nn.Linear(1, 1))  # the first optimizer would import the compiler
sys.stdout.write(f"{run.reduce(1)}\\n")
"""
BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_TASK_PID": "99"}
"""What a batch script of four tasks sees: no step."""


def step(tasks, rank=0):
    """What a task that srun started sees, beside the variables of its job."""
    return BATCH_SCRIPT | {
        "SLURM_NTASKS": str(tasks), "SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(tasks)
    }


def sizes(zygote, folder, env, *launcher):
    """Start a script below Slurm; its exit code, the sizes that its ranks print, and its last line on stderr."""
    (folder / "size.py").write_text(SIZE)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = forked.run(*launcher, folder / "size.py", zygote=zygote, cwd=folder, env=clean | env, timeout_s=120)
    return done.returncode, done.stdout.split(), (done.stderr.splitlines() or [""])[-1]


def test_ranks_started_by_srun_are_refused_with_the_way_to_start_them(tmp_path, zygote):
    assert sizes(zygote, tmp_path, step(4, rank=2)) == (
        1, [], "brim.errors.ConfigError: srun started 4 tasks, and WORLD_SIZE is not set: start one task, which "
        "starts all ranks, by srun -n 1 python -m brim.train.launch --nproc 4 SCRIPT, or torchrun; for 4 "
        "separate jobs, set WORLD_SIZE=1; in a batch script that was submitted from within such a task, which has its "
        "variables, unset SLURM_STEP_NUM_TASKS",
    )  # fmt: skip


@pytest.mark.parametrize("env", [BATCH_SCRIPT, step(1), step(4) | {"WORLD_SIZE": "1"}])
def test_a_batch_script_one_task_and_separate_tasks_run_below_slurm(tmp_path, zygote, env):
    assert sizes(zygote, tmp_path, env)[:2] == (0, ["1"])


@pytest.mark.parametrize("launcher", [
    ("torch.distributed.run", "--standalone", "--nproc-per-node"), ("brim.train.launch", "--zygote", "Z", "--nproc"),
])  # fmt: skip
def test_launchers_run_in_a_task_of_slurm(tmp_path, zygote, launcher):
    words = [zygote if word == "Z" else word for word in launcher]
    assert sizes(zygote, tmp_path, step(4), "-m", *words, "2")[:2] == (0, ["2", "2"])
