"""``brim demo``: its words, on small jobs."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from brim.cli import demo as demo_file
from brim.cli.main import app
from brim.cli.watch import Board, Row, Stretch, board_of, drawn
from brim.core.cluster import parse_cluster
from brim.live.driver import LiveDriver, LiveJob, Watcher
from brim.live.executor import Command
from brim.policies.presets import find_policy
from tests.cli.commands import brim
from tests.live.conftest import FakeExecutor, sleeper

SMALL = (
    LiveJob(name="0", user="ana", at_ms=0, gpus=4, command=sleeper(1.0), time_limit_ms=1_200),
    LiveJob(name="1", user="bo", at_ms=400, gpus=1, command=sleeper(0.2), time_limit_ms=300),
)


def test_the_twelve_jobs_are_submitted_over_half_a_minute_to_four_slots() -> None:
    jobs = demo_file.digits_jobs()
    assert len(jobs) == 12
    assert (jobs[0].at_ms, jobs[-1].at_ms) == (0, 30_000)
    assert {job.gpus for job in jobs} == {1, 2, 4}
    assert len({job.user for job in jobs}) > 3


@pytest.mark.timing
def test_the_closing_table_has_live_and_twin_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_file, "digits_jobs", lambda: SMALL)
    ran = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "kept"), "--json"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    result = json.loads(ran.stdout.splitlines()[-1])
    fifo, srtf = result["results"]
    assert [job["preemptions"] for job in fifo["jobs"]] == [0, 0]
    assert [job["preemptions"] for job in srtf["jobs"]] == [1, 0]
    assert [job["preemptions_twin"] for job in srtf["jobs"]] == [1, 0]
    assert all(abs(job["jct_s"] - job["jct_twin_s"]) < 1 for run in (fifo, srtf) for job in run["jobs"])
    for name in ("fifo", "srtf"):
        lines = (tmp_path / "kept" / name / "journal.jsonl").read_text().splitlines()
        assert sum('"e":"FINISHED"' in line for line in lines) == 2
    assert "fifo" in ran.stderr
    assert "preempt" in ran.stderr
    assert result["page"] == str(tmp_path / "kept" / "page.html")
    assert "srtf" in (tmp_path / "kept" / "page.html").read_text()

    again = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "kept")])
    assert "give a new or empty folder" in str(again.exception)


def test_the_verdict_is_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_file, "digits_jobs", lambda: SMALL)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    narrow, whole = Console(file=io.StringIO(), width=80), demo_file.print_closing

    def print_closing(screen: Console, results: list[demo_file.Result], wall_s: float) -> None:
        whole(screen, results, wall_s)
        whole(narrow, results, wall_s)

    monkeypatch.setattr(demo_file, "print_closing", print_closing)
    ran = CliRunner().invoke(app, ["demo"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert "…" not in narrow.file.getvalue()  # type: ignore[attr-defined]
    assert "-0.0" not in ran.stdout
    fifo, srtf, took, said, page = ran.stdout.splitlines()[-5:]
    differ = r": the times in the replay differ from the measured ones by \d\.\d\d s on average\. "
    start = r"The replay uses medians of the session: \d+ ms to start a job"
    assert re.fullmatch("fifo" + differ + start + r"\.", fifo)  # nothing was preempted, so no such cost was measured
    preempted = r", \d+ ms to save a preempted job, \d+ ms to restart it\."
    assert re.fullmatch("srtf" + differ + start + preempted, srtf)
    assert re.fullmatch(r"The two sessions and their replays took \d+ s\.", took)
    assert said.startswith("Under srtf, jobs were done ")
    assert ". Of 2 jobs, 1 was done sooner, with 1 preemption. Job 0 of ana lost most: it took " in said
    assert said.endswith(" s longer.")
    (kept,) = tmp_path.glob("brim-demo-*")
    assert page.endswith(f" as the twin replayed them: {kept / 'page.html'}")
    assert [path.name for path in kept.iterdir()] == ["page.html"]
    assert len(ran.stderr.splitlines()) < 10


@pytest.mark.parametrize("kind", ["file", "inside a file", "full"])
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / "taken").touch()
    out = {"file": tmp_path / "taken", "inside a file": tmp_path / "taken" / "x", "full": tmp_path}[kind]
    done = brim("demo", "--out", out)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("brim: error: --out: ")


def test_the_live_table_says_who_waits_and_why() -> None:
    executor = FakeExecutor({0: 5_000, 1: 500, 2: 500})
    jobs = tuple(
        LiveJob(name=str(row), user="ana", at_ms=at_ms, gpus=gpus, command=Command(argv=("true",)))
        for row, (at_ms, gpus) in enumerate(((0, 3), (0, 2), (20_000, 1)))
    )
    driver = LiveDriver(parse_cluster("1x4xcpu-slot"), find_policy("fifo"), jobs, executor, gap_ms=100)
    shown: dict[int, str] = {}
    console = Console(width=140)

    class Photographer(Watcher):
        def tick(self, now_ms: int) -> bool:
            with console.capture() as capture:
                console.print(drawn(board_of(driver, now_ms, "policy fifo"), console.width))
            shown[now_ms] = capture.get()
            return True

    driver.run(executor.clock, Photographer(), tick_ms=250)
    early = next(text for now_ms, text in shown.items() if now_ms > 1_000)
    assert "running" in early
    assert "needs 2 slots; 1 are free; it would start with 1 more." in early
    assert "arrives in" in early
    assert "3 of 4 slots busy" in early
    assert "slot 0 0━" in early
    assert "done after" in list(shown.values())[-1]


def test_the_board_fits_80_columns_and_names_jobs_by_their_numbers() -> None:
    rows = (Row(user="ana", slots=1, state="waiting", style="", fraction=0.0, why="a reason " * 9),) * 12
    bars = tuple(
        Stretch(job=job, slot=job % 4, begin_ms=9_000 * job, running_ms=None, saving_ms=None, end_ms=9_000 * (job + 1))
        for job in range(12)
    )
    board = Board(title="policy srtf", now_ms=120_000, slots=4, busy=4, preemptions=10, stretches=bars, jobs=rows)
    lines = drawn(board, 80).plain.split("\n")
    assert max(map(len, lines)) <= 80
    assert "10━━━━━━━·" in lines[3]
    assert "11━━━━━━━·" in lines[4]
    assert [line.split()[0] for line in lines[-12:]] == [str(job) for job in range(12)]
    assert lines[-1].endswith("…")
