"""``brim sim reproduce`` as a user meets it."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from brim.cli import replays
from brim.cli.main import app
from brim.errors import ConfigError
from brim.sim.reproduce import grid
from tests.cli.commands import brim

SMALL = (
    grid.Part(
        gpus=8, categories=("communication",), arrivals="poisson", loads=(0.75, 1.5), policies=(*grid.MAIN, "fifo"),
        dropping=grid.MAIN[:2], backlog_per_gpu=5,
    ),
)

KNOWN = {}
"""Replays by task."""


@pytest.fixture
def small(monkeypatch):
    """A grid of seconds, in this process; a task that comes again is not replayed again."""
    monkeypatch.setattr(grid, "QUICK", SMALL)
    monkeypatch.setattr(replays.os, "cpu_count", lambda: 1)
    replay_task = replays.replay_task

    def replay_once(task, *rest):
        key = pickle.dumps(task)
        if key not in KNOWN:
            KNOWN[key] = replay_task(task, *rest)
        return dataclasses.replace(KNOWN[key], trace=task.trace)

    monkeypatch.setattr(replays, "replay_task", replay_once)
    return CliRunner()


@pytest.mark.parametrize("args", [(), ("elastc",), ("nothing-like-it",)])
def test_an_absent_or_unknown_name_lists_what_there_is(args):
    done = brim("sim", "reproduce", *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "elastic - Effective Elastic Scaling" in done.stderr
    assert ("did you mean 'elastic'?" in done.stderr) == (args == ("elastc",))
    assert "Traceback" not in done.stderr


def test_what_cannot_be_written_or_printed_is_found_before_anything_runs(tmp_path):
    for args in (("--html", tmp_path / "absent" / "page.html"), ("-o", "yaml"), ("--seeds", 0)):
        done = brim("sim", "reproduce", "elastic", "--quick", *args)
        assert done.returncode == 2
        assert "measuring" not in done.stderr


@pytest.mark.parametrize(("name", "option", "value", "others"), [
    ("aiturbo", "--seeds", "1", "elastic, adloader, all"), ("padding", "--seeds", "2", "elastic, adloader, all"),
    ("eaco", "--seeds", "1", "elastic, adloader, all"), ("aiturbo", "--html", "a.html", "elastic, padding, adloader"),
    ("all", "--html", "a.html", "elastic, padding, adloader"), ("elastic", "--trace", "a.csv", "padding, all"),
    ("eaco", "--data", "a", "all"),
])  # fmt: skip
def test_an_option_that_an_experiment_does_not_take_is_refused(name, option, value, others):
    done = CliRunner().invoke(app, ["sim", "reproduce", name, option, value])
    assert str(done.exception) == (
        f"{option}: found {value} with the experiment {name}, expected it only with {others}"
    )


def test_tables_json_and_page_tell_the_same(small, tmp_path):
    page = tmp_path / "page.html"
    done = small.invoke(app, ["sim", "reproduce", "elastic", "--quick", "--json", "--html", str(page)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["schema"], found["experiment"], found["complete"]) == (1, "elastic", True)
    assert len(found["outcomes"]) == 2 * (4 + 2)
    assert {row["policy"] for row in found["capacities"]} == set(grid.MAIN)
    best = found["best"]["jct_mean_s against elastic-fixed"]
    means = {(row["load"], row["policy"]): row["jct_mean_s"] for row in found["outcomes"] if not row["drop"]}
    ratios = {load: means[load, "elastic-fixed"] / means[load, "elastic"] for load in (0.75, 1.5)}
    assert best["load"] == max(ratios, key=ratios.get)
    assert best["ratio"] == pytest.approx(max(ratios.values()))
    text = page.read_text()
    assert f"{best['ratio']:.2f} times shorter mean completion" in text
    assert "conditions not published" in text
    assert "M/M/1 against elastic-fixed" in text

    shown = small.invoke(app, ["sim", "reproduce", "elastic", "--quick"])
    assert shown.exit_code == 0
    assert f"{best['ratio']:.2f} times shorter mean completion" in " ".join(shown.stdout.split())
    assert "Re-measured under our conditions, not reproduced" in shown.stdout
    assert "elastic sustains" in shown.stdout


def test_an_interrupted_run_reports_the_complete_replays_and_says_partial(small, monkeypatch):
    run_all, calls = replays.run_all, []

    def until_five(tasks):
        calls.append(len(tasks))
        yield from run_all(tasks if len(calls) == 1 else tasks[:5])

    monkeypatch.setattr(replays, "run_all", until_five)
    done = small.invoke(app, ["sim", "reproduce", "elastic", "--quick", "--json"])
    assert done.exit_code == 130
    found = json.loads(done.stdout)
    assert found["complete"] is False
    assert len(found["outcomes"]) == 5
    assert "partial: 5 of 12" in done.stderr


def test_ctrl_c_before_the_loads_are_known_ends_without_results():
    command = [sys.executable, "-m", "brim.cli.main", "sim", "reproduce", "elastic"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        while "measuring" not in run.stderr.readline():
            assert run.poll() is None
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize(("args", "said"), [
    (("all", "--data", "absent"), "--data: found no folder absent"),
    (("elastic", "--data", "."), "expected it only with all"),
])
def test_options_that_do_not_belong_to_the_table_of_all_are_refused(args, said):
    done = CliRunner().invoke(app, ["sim", "reproduce", *args])
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
