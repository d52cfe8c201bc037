"""Changes of running jobs are made only if they pay for the restarts of everybody they touch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Resize, Start
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.engine.round import run_round
from brim.errors import PlanError
from brim.policies.place.repack import Repack
from brim.policies.presets import PRESETS
from brim.policies.sockets import Sizes, Worth
from brim.testing import job, snapshot_of

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
class GiveIfPaid(Give):
    """The same, where each job that runs is worth 1 and each restart costs ``cost``."""

    cost: float = 0.5

    def with_worth(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> tuple[Sizes, Worth]:
        """See ``WholePlan``."""
        return self(snapshot, beliefs, order), self._worth

    def _worth(self, gpus: IntArray, restarts: BoolArray) -> FloatArray:
        total: FloatArray = (gpus > 0).sum(axis=1) - self.cost * restarts.sum(axis=1)
        return total


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


def decided(snapshot, size, place=FIFO.place):
    policy = replace(FIFO, size=size, place=place)
    return [(type(action), action.job) for action in run_round(snapshot, Beliefs(), policy).plan.actions]


@pytest.mark.parametrize(("size", "moves"), [(Give((1,)), True), (GiveIfPaid((1,)), False)])
def test_a_move_that_gains_nothing_is_not_made(size, moves):
    snapshot = snapshot_of("1x1xT4+1x1xV100", job(on=[(0, 0)], start=10), now=100)
    assert decided(snapshot, size, PutOn((1,))) == ([(Resize, 0)] if moves else [])


def test_an_exchange_of_equal_nodes_is_no_move():
    snapshot = snapshot_of("2x1xT4", job(on=[(0, 0)], start=10), job(on=[(1, 0)], start=10), now=100)
    assert decided(snapshot, GiveIfPaid((1, 1)), PutOn((1, 0))) == []


def test_who_waits_is_started_where_nobody_has_to_move():
    """The plan would exchange two GPUs for nothing, and start a job on a third."""
    running = [job(on=[(0, 0)], start=10), job(on=[(1, 0)], start=10)]
    snapshot = snapshot_of("1x1xT4+1x1xV100+1x1xA100", *running, job(at=20), now=100)
    assert decided(snapshot, GiveIfPaid((1, 1, 1)), PutOn((1, 0, 2))) == [(Start, 2)]


@pytest.mark.parametrize(("cost", "plan"), [(0.4, [(Resize, 0), (Start, 1)]), (0.6, [])])
def test_a_smaller_size_that_lets_another_job_start_is_taken_if_it_pays_for_two_starts(cost, plan):
    snapshot = snapshot_of("1x4xT4", job(on=[(0, gpu) for gpu in range(4)], gpus=4, **LIMITS), job(at=20), now=100)
    assert decided(snapshot, GiveIfPaid((2, 1), cost), Repack()) == plan


def test_a_job_that_is_only_stopped_does_not_restart():
    snapshot = snapshot_of("1x1xT4", job(on=[(0, 0)], start=10), job(at=20), now=100)
    assert decided(snapshot, GiveIfPaid((0, 1), 0.5)) == []  # the other plan has as many jobs, and starts none


def test_the_worth_of_a_plan_is_a_number():
    snapshot = snapshot_of("1x1xT4+1x1xV100", job(on=[(0, 0)], start=10), now=100)
    with pytest.raises(PlanError, match=r"worth of two plans: found .*, expected two"):
        decided(snapshot, GiveIfPaid((1,), math.nan), PutOn((1,)))
