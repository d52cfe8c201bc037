"""``brim policy``: listing, showing, and checking a user's own file."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brim.cli.options import LISTING, complete_policies, complete_policy
from brim.cli.policy import listed
from brim.policies.presets import PARTS, PRESETS
from tests.cli.commands import MINE, brim

ROOT = Path(__file__).parents[2]


def test_list_and_show():
    found = json.loads(brim("policy", "list", "--json").stdout)
    assert {"fifo", "backfill", "tiresias", "fair"} <= {row["name"] for row in found["policies"]}
    assert "brim.policies.place.parts.Fragmentation" in found["parts"]["place"]
    assert json.loads(brim("policy", "show", "fifo", "--json").stdout)["policy"]["order"] == "Arrival()"
    shown = brim("policy", "show", "tiresias").stdout
    assert "ServiceQueues" in shown
    assert "promote_ratio" in shown


def test_a_good_policy_of_ones_own_passes(tmp_path):
    path = tmp_path / "small_first.py"
    body = "return np.lexsort((snapshot.jobs.gpus, ~snapshot.jobs.holds))"
    path.write_text(MINE.format(name="SmallFirst", body=body))
    done = subprocess.run(
        [sys.executable, "-m", "brim", "policy", "check", path, "--examples", "5"], capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "kept all rules" in done.stdout


def test_a_policy_that_gambles_is_caught_with_its_rule(tmp_path):
    path = tmp_path / "gambler.py"
    body = "return np.random.default_rng().permutation(len(snapshot.jobs))"
    path.write_text(MINE.format(name="Gambler", body=body))
    done = brim("policy", "check", path, "--examples", "20")
    assert done.returncode != 0
    assert "breaks the rule" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("body", "code", "said"), [
    ("def __repr__(self): raise SystemExit(0)", 1, "mine.py:3: SystemExit: 0"),
    ("asks_run_times = property(lambda self: exit())", 2, "policy 'mine', order: asks_run_times raises SystemExit"),
    ("asks_run_times = property(lambda self: end())", 130, "brim: interrupted (policy 'mine', order)"),
    ("def __repr__(self): sys.stdout.close(); return ''", 1, "standard output was closed while the command ran"),
])
def test_a_part_does_not_end_the_command_unnoticed(tmp_path, body, code, said):
    path = tmp_path / "mine.py"
    path.write_text(
        f"import sys; from dataclasses import replace; from brim.policies.presets import *\nclass Mine(Arrival):\n"
        f"    {body}\ndef end(): raise KeyboardInterrupt\n"
        "policy = replace(find_policy('fifo'), name='mine', order=Mine())\n"
    )
    done = brim("policy", "show", path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_after_ctrl_c_python_does_not_finalize_and_takes_no_second_one(tmp_path):
    """While it finalized, a thread that still read a Parquet file aborted the process with a core dump (3 of 60)."""
    path = tmp_path / "mine.py"
    path.write_text(
        "import atexit, os, signal, sys\nfrom brim.policies.presets import *\n"
        "atexit.register(lambda: print('finalized', file=sys.stderr))\n"
        "class Tee:\n    def write(self, text):\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "        return sys.__stderr__.write(text)\n    def flush(self): sys.__stderr__.flush()\n"
        "sys.stderr = Tee()\nraise KeyboardInterrupt\n"
    )
    done = brim("policy", "show", path)
    assert (done.returncode, done.stderr) == (130, "brim: interrupted\n")


@pytest.mark.parametrize("body", ["raise SystemExit(0)", "import sys; sys.exit()"])
def test_a_part_cannot_end_the_program_unseen(tmp_path, body):
    path, trace = tmp_path / "ends.py", tmp_path / "t.parquet"
    path.write_text(MINE.format(name="Ends", body=body))
    brim("trace", "synth", "philly", trace, "--num-jobs", 5, "--seed", 1, "--cluster", "2x8xV100", "--load", 1)
    for command in (("policy", "check", path, "--examples", "5"), ("sim", "run", trace, "-c", "2x8xV100", "-p", path)):
        done = brim(*command)
        assert done.returncode == 1, done.stdout
        assert "policy 'mine', order: SystemExit" in done.stderr
        assert "ends.py:13)" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_interrupt_from_a_part_ends_a_comparison_in_processes_with_a_line(tmp_path):
    path, trace = tmp_path / "ends.py", tmp_path / "t.parquet"
    path.write_text(MINE.format(name="Ends", body="raise KeyboardInterrupt"))
    brim("trace", "synth", "philly", trace, "--num-jobs", 5, "--seed", 1, "--cluster", "2x8xV100", "--load", 1)
    done = brim("sim", "compare", trace, "-c", "2x8xV100", "-p", f"fifo,{path}")
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == "brim: interrupted (policy 'mine', order)"
    assert "Traceback" not in done.stderr


def test_failures_that_leave_no_time_end_with_a_line(tmp_path):
    trace = tmp_path / "t.parquet"
    brim("trace", "synth", "philly", trace, "--num-jobs", 5, "--seed", 1, "--cluster", "2x8xV100", "--load", 1)
    done = brim("sim", "run", trace, "-c", "2x8xV100", "-p", "fifo", "--node-mtbf", "1s")
    assert done.returncode == 2, done.stdout
    assert "has made no lasting progress for" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_policy_of_ones_own_is_compared_with_others(tmp_path):
    """Comparing uses several processes, to which the parts of a user's file cannot be sent."""
    path, trace = tmp_path / "small_first.py", tmp_path / "t.parquet"
    path.write_text(MINE.format(name="SmallFirst", body="return np.argsort(~snapshot.jobs.holds, kind='stable')"))
    brim("trace", "synth", "philly", trace, "--num-jobs", 50, "--seed", 1, "--cluster", "2x8xV100", "--load", 1)
    done = brim("sim", "compare", trace, "-c", "2x8xV100", "-p", f"fifo,{path}", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["policy"] for row in json.loads(done.stdout)["results"]] == ["fifo", "mine"]


def test_the_listing_is_that_of_the_presets():
    """It is kept in a file so that `brim policy list` and completion need not import the presets: `make regold`."""
    assert json.loads(LISTING.read_text(encoding="utf-8")) == listed(list(PRESETS.values()), PARTS)


def test_the_shell_completes_policies_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "first.py").touch()
    assert complete_policy("srtf") == ["srtf", "srtf-oracle"]
    assert complete_policy("mine/f") == ["mine/first.py"]
    assert complete_policies("fifo,gi") == ["fifo,gittins"]
    assert "fifo,fifo" not in complete_policies("fifo,f")
    words = {"_BRIM_COMPLETE": "complete_bash", "COMP_WORDS": "brim sim run x -p tires", "COMP_CWORD": "5"}
    assert brim(env={**os.environ, **words}).stdout.split() == ["tiresias", "tiresias-pollux", "tiresias-servers"]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("return 1 / 0", 13),  # raised in its own line
        ("return np.zeros(3).reshape(2, 2)", 13),  # raised in NumPy, called from there
        ("return np.zeros(len(snapshot.jobs) + 1, dtype=int)", 12),  # a wrong value: where the part stands
        ("return np.random.default_rng().permutation(len(snapshot.jobs))", 12),  # breaks a rule
    ],
)
def test_a_failed_check_points_at_the_line_of_the_user(tmp_path, body, line):
    path = tmp_path / "wrong.py"
    path.write_text(MINE.format(name="Wrong", body=body))
    done = brim("policy", "check", path, "--examples", "20")
    assert done.returncode == 1
    assert f"{path}:{line}" in done.stderr.splitlines()[0], done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_imported_points_at_its_line(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("import numpy\n\nimport brim.nowhere\n")
    done = brim("policy", "show", path)
    assert done.returncode == 2
    assert f"policy file {path}:3: ModuleNotFoundError" in done.stderr


def test_a_new_policy_passes_its_check_and_its_test_at_once(tmp_path):
    done = brim("policy", "new", "short-first", cwd=tmp_path)
    assert done.stdout.split() == ["short_first.py", "test_short_first.py"]
    checked = brim("policy", "check", "short_first.py", "--examples", "10", cwd=tmp_path)
    assert checked.stdout == "short-first: kept all rules in 10 random cases per rule\n", checked.stderr
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout
    before = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    again = brim("policy", "new", "short_first", cwd=tmp_path)
    assert again.returncode == 4
    assert "short_first.py exists already" in again.stderr
    assert {path.name: path.read_text() for path in tmp_path.glob("*.py")} == before


def test_the_example_is_what_policy_new_writes(tmp_path):
    brim("policy", "new", "my-policy", cwd=tmp_path)
    assert (tmp_path / "my_policy.py").read_text() == (ROOT / "examples" / "my_policy.py").read_text()
    ast.parse((tmp_path / "test_my_policy.py").read_text())


@pytest.mark.parametrize("name", ["numpy", "fifo", "Foo", "../x", "1a", "class", "", "a--b", "test_x", "x" * 200])
def test_a_policy_gets_no_name_that_means_something_else(tmp_path, name):
    done = brim("policy", "new", "--", name, cwd=tmp_path)
    assert done.returncode == 2
    assert "policy name" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_policy_file_may_postpone_its_annotations(tmp_path):
    path = tmp_path / "numpy.py"  # a name that must not stand in for the library
    path.write_text(
        "from __future__ import annotations\n\nfrom dataclasses import dataclass, replace\n"
        "from typing import ClassVar\n\n"
        "import numpy as np\n\nfrom brim.policies.presets import PRESETS\n\n\n"
        "@dataclass(frozen=True)\nclass Mine:\n    asks_run_times: ClassVar[bool] = False\n\n"
        "    def __call__(self, snapshot, beliefs):\n        return np.arange(len(snapshot.jobs))\n\n\n"
        "policy = replace(PRESETS['fifo'], name='mine', order=Mine())\n"
    )
    done = brim("policy", "show", path, cwd=tmp_path.parent)
    assert done.returncode == 0, done.stderr
    assert "Mine" in done.stdout
