"""Several replays: what depends on the trace alone is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from brim import traces
from brim.cli import replays
from brim.core.cluster import parse_cluster
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import BOUNDS, ReplaySettings


class Noted:
    """Rigid jobs, and a file with a line for each time that their bounds are computed."""

    name, contended = "rigid", False

    def __init__(self, rigid: Rigid, log: Path) -> None:
        self._rigid, self._log = rigid, log

    def __getattr__(self, name: str) -> object:
        return getattr(self._rigid, name)

    @property
    def shortest_ms(self):
        with self._log.open("a") as file:
            file.write("bounds\n")
        return self._rigid.shortest_ms


@dataclass(frozen=True)
class Recipe:
    log: Path

    def build(self, trace, cluster, seed=0):
        return Noted(Rigid(trace), self.log)


@pytest.mark.parametrize("cores", [1, 2])
def test_bounds_are_computed_once_for_all_policies_on_a_trace(tmp_path, monkeypatch, cores):
    monkeypatch.setattr(replays.os, "cpu_count", lambda: cores)
    cluster, settings = parse_cluster("2x4xT4"), ReplaySettings()
    drawn = [traces.synthesize("philly", jobs=8, seed=seed) for seed in (1, 2)]
    recipe = Recipe(tmp_path / "log")
    tasks = [
        replays.Task(trace=trace, cluster=cluster, policy=policy, settings=settings, truth=recipe)
        for trace in drawn for policy in ("fifo", "srtf", "las")
    ]
    found = list(replays.run_all(tasks))
    assert recipe.log.read_text().splitlines() == ["bounds"] * len(drawn)
    for task, outcome in zip(tasks, found, strict=True):
        alone = replays.replay_task(task)
        for name in (*BOUNDS, "finish_ms"):
            np.testing.assert_array_equal(getattr(outcome, name), getattr(alone, name), err_msg=name)
