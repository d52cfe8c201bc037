"""Changes of running jobs are made only if they pay for the restarts of everybody they touch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Resize, Start
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.engine.round import run_round
from brim.errors import ConfigError
from brim.policies.place.repack import Repack
from brim.policies.presets import PRESETS
from brim.policies.sockets import Sizes
from brim.testing import job, snapshot_of

HORIZON_MS = 300_000
LIMITS = {"gpus_min": 1, "gpus_max": 4, "batch": 32, "batch_min": 8, "batch_max": 64, "local_batch_max": 64}
FIFO = PRESETS["fifo"]


@dataclass(frozen=True)
class Give:
    """A size part that gives these sizes, with the batch that each job has."""

    gpus: tuple[int, ...]
    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        return Sizes(gpus=np.array(self.gpus))


@dataclass(frozen=True)
class PutOn:
    """A place part that puts each job on one GPU of a node."""

    nodes: tuple[int, ...]
    moves_running: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """See ``Place``."""
        size = len(self.nodes)
        return Grants(
            job=np.arange(size), node=np.array(self.nodes), gpu=np.zeros(size, dtype=np.int64),
            share_milli=np.full(size, 1000), why=np.zeros(size, dtype=np.int64), blocker=np.full(size, -1),
        )


def decided(snapshot, size=FIFO.size, place=FIFO.place, horizon_ms=HORIZON_MS):
    policy = replace(FIFO, size=size, place=place, restart_horizon_ms=horizon_ms)
    return [(type(action), action.job) for action in run_round(snapshot, Beliefs(), policy).plan.actions]


@pytest.mark.parametrize(("horizon_ms", "moves"), [(0, True), (HORIZON_MS, False)])
def test_a_move_that_gains_nothing_is_not_made(horizon_ms, moves):
    snapshot = snapshot_of("1x1xT4+1x1xV100", job(on=[(0, 0)], start=10), now=100)
    found = decided(snapshot, place=PutOn((1,)), horizon_ms=horizon_ms)
    assert found == ([(Resize, 0)] if moves else [])


def test_an_exchange_of_equal_nodes_is_no_move():
    snapshot = snapshot_of("2x1xT4", job(on=[(0, 0)], start=10), job(on=[(1, 0)], start=10), now=100)
    assert decided(snapshot, place=PutOn((1, 0))) == []


def test_who_waits_is_started_where_nobody_has_to_move():
    """The plan would exchange two GPUs for nothing, and start a job on a third."""
    running = [job(on=[(0, 0)], start=10), job(on=[(1, 0)], start=10)]
    snapshot = snapshot_of("1x1xT4+1x1xV100+1x1xA100", *running, job(at=20), now=100)
    assert decided(snapshot, place=PutOn((1, 0, 2))) == [(Start, 2)]


def test_a_smaller_size_that_lets_another_job_start_pays():
    """No speeds are known, so that a running job is believed to lose nothing but its restart."""
    snapshot = snapshot_of("1x4xT4", job(on=[(0, gpu) for gpu in range(4)], gpus=4, **LIMITS), job(at=20), now=100)
    assert decided(snapshot, Give((2, 1)), Repack()) == [(Resize, 0), (Start, 1)]
    assert decided(snapshot, Give((2, 0)), Repack()) == []


def test_a_horizon_is_a_time():
    with pytest.raises(ConfigError, match="restart_horizon_ms is -1, expected"):
        replace(FIFO, restart_horizon_ms=-1)
