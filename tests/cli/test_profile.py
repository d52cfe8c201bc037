"""``brim profile`` as a real process: an example's profile, bad input, interruption, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from brim.beliefs.library import load
from brim.sim.twin import _library
from tests.cli.commands import brim

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"
MARK = "BRIM_TEST_PROFILE"


def marked(value):
    """Living processes with this mark in their environment: all that the command has started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def profile(tmp_path, *words):
    mark = str(tmp_path)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", MARK: mark, "TMPDIR": mark}
    done = brim("profile", *words, cwd=tmp_path, env=env)
    assert marked(mark) == []
    assert not list(tmp_path.glob("brim-*"))  # no folder either
    return done


def test_the_profile_of_an_example_is_a_library_for_replays(tmp_path):
    done = profile(tmp_path, "--batch", "16-32", "--ranks", "1", "--", "python", EXAMPLE, "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert "largest local batch: 32 (where the range ended)" in done.stdout
    assert "samples/s by processes: " in done.stdout
    path = tmp_path / "train_digits.toml"
    assert done.stdout.splitlines()[-1] == "train_digits.toml"
    assert load(str(path)).steps["train_digits"].local_batch == (16, 32)
    known = _library(str(path), SimpleNamespace(profiles=("another", "train_digits")))
    assert list(known) == [1]  # what brim sim run --library FILE tells policies


def test_a_script_that_raises_ends_it_with_its_traceback_and_code(tmp_path):
    (tmp_path / "raises.py").write_text("import sys\nraise ValueError(sys.argv[1:])\n")
    done = profile(tmp_path, "raises.py", "--epochs", "3")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ValueError: ['--epochs', '3']" in done.stderr
    assert 'File "raises.py", line 2' in done.stderr
    assert "brim/" not in done.stderr
    assert not (tmp_path / "raises.toml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no.py"], "no.py: no such file"),
        (["--", "python"], "expected a script, found nothing"),
        (["--", "python", "-m", "job"], "expected a script, found '-m'"),
        (["--batch", "32-16", "job.py"], "--batch: found '32-16', expected the smallest and the largest"),
        (["--batch", "x", "job.py"], "--batch: found 'x'"),
        (["--ranks", "1,3", "job.py"], "--ranks: found '1,3', expected powers of two"),
        (["--timeout", "0", "job.py"], "--timeout: found 0"),
        (["--out", "nowhere/p.toml", "job.py"], "--out: cannot write nowhere/p.toml"),
        (["--out", ".", "job.py"], "--out: cannot write .: it is a folder"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path, words, said):
    (tmp_path / "job.py").write_text("raise SystemExit('started')")
    done = profile(tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("brim: error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_the_profile_does_not_replace_the_script(tmp_path):
    (tmp_path / "job.py").write_text("raise SystemExit('started')")
    done = profile(tmp_path, "--out", "job.py", "job.py")
    assert done.returncode == 4
    assert "--out: job.py is a file that this command reads" in done.stderr
    assert (tmp_path / "job.py").read_text() == "raise SystemExit('started')"


def test_an_interpreter_without_torch_is_named_with_what_to_install(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    (tmp_path / "job.py").write_text("raise SystemExit('started')")
    python = tmp_path / "bare" / "bin" / "python"
    done = profile(tmp_path, "--", python, "job.py")
    assert done.returncode == 2
    assert done.stderr == f"brim: error: brim profile needs PyTorch, and {python} has none: pip install 'brim[train]'\n"



@pytest.mark.cases(2)
@pytest.mark.parametrize(("command", "number"), [
    (("brim.cli.main", "profile"), signal.SIGINT), (("brim.cli.main", "profile"), signal.SIGTERM),
    (("brim.cli.main", "profile"), signal.SIGKILL), (("brim.train.check",), signal.SIGTERM),
])
def test_nothing_is_left_when_it_is_ended(tmp_path, command, number):
    mark = str(tmp_path)
    (tmp_path / "job.py").write_text("import time; open('there', 'w').close(); time.sleep(300)")
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", MARK: mark, "TMPDIR": mark}
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "job.py"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509  (a shell may have it ignored)
    )  # fmt: skip
    until_s = time.monotonic() + 240  # on a machine that others keep busy
    while not (tmp_path / "there").exists():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert len(marked(mark)) > 2
    os.killpg(process.pid, number)  # as a terminal does
    _, said = process.communicate(timeout=30)
    assert "Traceback" not in said
    assert process.returncode in (130, -number), said
    until_s = time.monotonic() + 20
    while marked(mark):
        assert time.monotonic() < until_s, marked(mark)
        time.sleep(0.05)
