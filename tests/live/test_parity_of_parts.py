"""The engine decides again what it decided live, with sharing, padding and loader workers of real processes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.overheads import IN_PLACE_MS
from brim.core.cluster import parse_cluster
from brim.engine.advance import advance
from brim.engine.journal import Journal, read_event
from brim.engine.journal import replay as replay_journal
from brim.engine.scheduler import Scheduler
from brim.live.service import ClusterService
from brim.policies.fill.padding import Padding
from brim.policies.presets import find_policy
from tests.live.box import Box, in_state, running, until
from tests.live.sharing import Together

JOB = Path(__file__).with_name("loading_job.py")
GAP_MS = 10
"""As in ``Box``."""


@dataclass(frozen=True)
class FewerForMore:
    """Loader workers for each rank: six, less one for each job."""

    tunes_running: ClassVar[bool] = True
    acts_when_idle: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, grants):
        jobs = len(snapshot.jobs)
        return np.full(jobs, max(1, 6 - jobs))


POLICY = replace(
    find_policy("fifo"), place=Together(), fill=Padding(join_ratio=0.0), feed=FewerForMore(), period_ms=200,
)


def actions_of(lines: tuple[str, ...], what: str) -> list[dict]:
    """The actions of one kind that were decided."""
    records = (json.loads(line) for line in lines)
    return [action for record in records for action in record.get("d", ()) if action["do"] == what]


@pytest.mark.slow
def test_a_session_with_sharing_padding_and_loader_changes_is_decided_again_byte_for_byte(box: Box) -> None:
    histories = []
    (box.folder / "pad").mkdir()

    def workers() -> list[int]:
        path = box.folder / "pad" / "bounds-0"
        return json.loads(path.read_text() or "[]") if path.exists() else []

    async def scenario(service: ClusterService) -> None:
        words = (sys.executable, str(JOB), str(box.folder / "pad"))
        [pad] = await box.submit(service, box.request(
            *words, gpus=1, gpus_min=1, gpus_max=2, ranks="per-gpu", grace_s=60.0, job_class="padding",
        ))
        await until(lambda: len(service.job(pad).devices) == 2, "the padding job on both devices")
        await until(lambda: workers()[-1:] == [5], "training")
        [first] = await box.submit(service, box.resumable("first"))
        await in_state(service, first, "running")
        assert service.job(pad).devices == (1,)
        [second] = await box.submit(service, box.resumable("second"))
        await in_state(service, second, "running")
        assert service.job(second).devices == service.job(first).devices == (0,)
        await until(lambda: workers()[-1:] == [3], "fewer loader workers")
        for name, job in (("first", first), ("second", second)):
            box.end(name)
            await in_state(service, job, "finished")
        await until(lambda: len(service.job(pad).devices) == 2, "the padding job back on both devices")
        await until(lambda: workers()[-1:] == [5], "more loader workers")
        box.end("pad")
        await in_state(service, pad, "finished")
        histories.append(service.engine.store.reads.history())

    running(box, scenario, POLICY)
    [history] = histories
    assert history.since_ms == 0, "nothing of the journal is gone"
    assert actions_of(history.lines, "resize"), "padding"
    tuned = [rank for action in actions_of(history.lines, "tune") for rank in action["setting"]["ranks"]]
    assert {500, 1000} <= {share for _, _, share, _ in tuned}, "sharing"
    assert {3, 4} <= {loaders for *_, loaders in tuned}, "loader workers"

    def fresh(**more: Journal) -> Scheduler:
        beliefs = Beliefs(in_place_ms=IN_PLACE_MS, judges_steps=True)
        return Scheduler(parse_cluster("1x2xcpu"), POLICY, beliefs, gap_ms=GAP_MS, in_place=True, **more)

    decisions = list(replay_journal(history.lines, fresh()))
    assert len(decisions) > 5
    assert [now for _, now in decisions] == [then for then, _ in decisions]
    journal = Journal()
    events = [read_event(record) for record in map(json.loads, history.lines) if "e" in record]
    advance(fresh(journal=journal), events, json.loads(history.lines[-1])["t"] + 1)
    assert journal.lines == [line.rstrip("\n") for line in history.lines]
