"""What a client sees of jobs: the picture of it, the speeds and costs in it, and the closing table."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from brim.api.client import Listing
from brim.cli.demo import BATCH, POLICY
from brim.cli.demo_replay import LiveAndTwin, SeenCosts, replay_of, seen_costs, seen_rates
from brim.cli.session import Planned, Session
from brim.cli.watch import ClusterView, Row, Stretch, drawn
from brim.core.cluster import parse_cluster
from brim.live.records import JobRecord
from brim.live.requests import JobRequest
from brim.policies.presets import find_policy

ZERO_MS = 5_000
PLAN = tuple(
    Planned(at_ms=at_ms, name=name, gpus=gpus, samples=samples, words=("true",))
    for at_ms, name, gpus, samples in ((0, "ana-1", "1-4", 1_600), (0, "bo-1", "2", 400), (1_000, "cem-1", "1", 100))
)


def request(planned: Planned) -> JobRequest:
    least, most = (int(planned.gpus.split("-")[end]) for end in (0, -1))
    return JobRequest(name=planned.name, capture="0" * 32, digest="0" * 64, gpus=least, gpus_min=least, gpus_max=most,
                      ranks="per-gpu", batch=BATCH, local_batch_max=BATCH)


class Seen:
    """A session that is told how its jobs are."""

    def __init__(self) -> None:
        self.session = Session(PLAN, ZERO_MS)
        self.jobs: dict[int, JobRecord] = {}
        self.at(0)

    def at(self, at_ms: int, **jobs: dict[str, object]) -> None:
        """Look at a time, at which these jobs have changed."""
        for name, fields in jobs.items():
            number = int(name.removeprefix("job"))
            before = self.jobs.get(number) or JobRecord(
                id=number, uid=0, user="root", key="k", request=request(PLAN[number - 1]), submitted_s=0.0,
                submit_ms=ZERO_MS + at_ms, state="pending",
            )
            if number not in self.jobs:
                self.session.ids.append(number)
            self.jobs[number] = replace(before, **fields)  # type: ignore[arg-type]
        self.session.note(Listing(ZERO_MS + at_ms, tuple(self.jobs.values())))


@pytest.fixture
def seen() -> Seen:
    """Ana grows from one slot to two after bo's job was preempted for cem's, and all of them finish."""
    seen = Seen()
    assert seen.session.due() is PLAN[0]
    seen.at(100, job1={}, job2={})
    seen.at(200, job1={"state": "starting", "devices": (0,), "attempt": 1},
            job2={"state": "starting", "devices": (2, 3), "attempt": 1})
    seen.at(1_200, job1={"state": "running"})
    assert seen.session.due() is None
    seen.at(1_500, job2={"state": "running"})
    seen.at(2_200, job1={"samples_done": 100.0}, job2={"samples_done": 100.0})
    assert seen.session.due() is PLAN[2]
    seen.at(2_300, job3={})
    seen.at(2_500, job2={"state": "stopping", "preemptions": 1})
    seen.at(2_800, job2={"state": "pending", "devices": ()})
    seen.at(2_900, job3={"state": "starting", "devices": (3,), "attempt": 1})
    seen.at(3_200, job1={"samples_done": 200.0}, job3={"state": "running"})
    seen.at(3_400, job1={"state": "starting", "devices": (0, 1)})
    seen.at(3_600, job1={"state": "running"})
    seen.at(4_000, job1={"samples_done": 280.0}, job3={"samples_done": 60.0})
    return seen


def finish(seen: Seen) -> Session:
    end = {"state": "finished", "devices": ()}
    seen.at(5_000, job1={"samples_done": 480.0}, job3={**end, "ended_ms": ZERO_MS + 4_950})
    seen.at(5_100, job2={"state": "starting", "devices": (2, 3), "attempt": 2})
    seen.at(5_600, job2={"state": "running"})
    seen.at(6_000, job1={"samples_done": 680.0}, job2={"samples_done": 110.0})
    seen.at(10_000, job1={**end, "ended_ms": ZERO_MS + 9_900}, job2={**end, "ended_ms": ZERO_MS + 9_800})
    return seen.session


def test_speeds_and_costs_are_those_that_were_seen(seen: Seen) -> None:
    session = finish(seen)
    assert session.is_over
    assert not session.failed
    assert [session.resizes(job) for job in session.ids] == [1, 0, 0]
    assert seen_rates(session, 4).tolist() == [100.0, 200.0, 300.0, 400.0]  # those of 3 and 4 in proportion
    assert seen_costs(session) == SeenCosts(start_ms=300, restart_ms=500, save_ms=300, ready_ms=800)


def test_jobs_that_end_before_a_second_sign_of_progress_have_the_speed_of_the_whole() -> None:
    seen = Seen()
    end = {"state": "finished", "devices": ()}
    every = {f"job{n}": {"state": "running", "devices": (0,), "attempt": 1} for n in range(1, len(PLAN) + 1)}
    seen.at(1_000, **every)
    seen.at(2_000, **{job: {**end, "ended_ms": ZERO_MS + 2_000} for job in every})
    total = sum(planned.samples for planned in PLAN)
    assert seen_rates(seen.session, 2).tolist() == pytest.approx([total / len(PLAN), 2 * total / len(PLAN)])


def test_the_picture_says_who_has_which_slot_and_why_others_wait(seen: Seen) -> None:
    class Explaining:
        def explain(self, job: int, *, changes: bool) -> dict[str, str]:
            assert not changes, "which takes rounds"
            return {"text": f"job {job} needs 2 GPUs; 1 are free."}

    session = seen.session
    session.ask_why(Explaining())  # type: ignore[arg-type]
    lines = drawn(session.view(4), 100).plain.split("\n")
    assert lines[0] == "4 s: 3 of 4 slots busy, 1 waiting, 0 of 3 done, 1 preempted, 1 resized"
    assert lines[1] == "slot 0 1━━━━"
    assert lines[2] == "slot 1 ···1━"
    assert lines[4] == "slot 3 2━━3━"
    assert "waiting" in lines[-2]
    assert lines[-2].endswith("needs 2 slots; 1 are free.")
    session = finish(seen)
    assert "done after" in drawn(session.view(4), 100).plain


def test_a_job_that_comes_later_is_announced() -> None:
    view = Seen().session.view(4)
    assert [row.state for row in view.jobs] == ["arrives in 0 s", "arrives in 0 s", "arrives in 1 s"]


def test_the_closing_table_fits_and_says_how_far_the_replay_is_off(seen: Seen) -> None:
    result = replay_of(finish(seen), parse_cluster("1x4xcpu-slot"), find_policy(str(POLICY)), BATCH)
    assert isinstance(result, LiveAndTwin)
    screen = Console(file=io.StringIO(), width=100)
    result.print(screen)
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert "-0.0" not in shown
    rows = result.as_json()["jobs"]
    assert [(row["user"], row["preemptions"], row["resizes"]) for row in rows] == [
        ("ana", 0, 1), ("bo", 1, 0), ("cem", 0, 0),
    ]
    assert [round(row["jct_s"], 1) for row in rows] == [9.8, 9.7, 2.6]
    assert all(row["jct_twin_s"] > 0 for row in rows)
    assert "The times in the replay differ from the measured ones by" in shown


def test_the_board_fits_80_columns_and_names_jobs_by_their_numbers() -> None:
    rows = (Row(user="ana", slots="1-4", state="waiting", style="", fraction=0.0, why="a reason " * 9),) * 12
    bars = tuple(
        Stretch(job=job + 1, slot=job % 4, begin_ms=9_000 * job, running_ms=None, saving_ms=None,
                end_ms=9_000 * (job + 1))
        for job in range(12)
    )
    view = ClusterView(now_ms=120_000, slots=4, busy=4, preemptions=10, resizes=2, stretches=bars, jobs=rows)
    lines = drawn(view, 80).plain.split("\n")
    assert max(map(len, lines)) <= 80
    assert "11━━━━━━━·" in lines[3]
    assert "12━━━━━━━·" in lines[4]
    assert [line.split()[0] for line in lines[-12:]] == [str(job) for job in range(1, 13)]
    assert lines[-1].endswith("…")
