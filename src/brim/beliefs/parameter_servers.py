"""How long a training step takes with parameter servers, by workers, servers and the cores of both.

    step_s = (t0 m + t1) / eta(cores of a worker) + t2 w/p + t3 (w/p) / eta(cores of a server) + t4 w + t5 p + t6 g

m = batch / w samples per worker, w workers, p servers, g workers on GPU; all t >= 0. The first term is the forward and
the backward pass (t0 in s a sample, t1 in s), the second pushes gradients and pulls parameters, the third updates them
(both in s), and t4 to t6 are what each worker, server and worker on GPU adds (s). ``eta(c)`` is the speed
with c cores over that with many, ``1 - drop exp(-rate c)``; of a worker on GPU it is 1. There are two sets of t for
each model, of workers on GPU and of workers on CPU. All workers of a job are on devices of one kind, because each step
waits for the slowest.

Shapes: M models, J jobs, S measured steps; the last axis of ``times`` is t0 to t6.

Source: AITurbo, HPDC 2021 (forward, backward, push, update, pull), and the code of its successor,
github.com/MaoZzzzz/Aiturbo-vGPU (the form). Ours: t >= 0, and that t3 is fitted only where the cores of servers differ,
because t2 and t3 cannot be told apart otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.toml_files import parse_toml
from brim.core.arrays import BoolArray, FloatArray, IntArray, frozen
from brim.core.sums import CORE_MILLI

_FILE: Final = "parameter_servers.toml"
TIMES: Final = 7
"""Times of a step: t0 to t6."""
SERVER_CURVE: Final = (0.27, 1.0)
"""Drop and rate of a server: 0.90 with one core; published are 0.82 to 0.97 (successor of AITurbo)."""
CPU_SLOWER: Final = 8.0
"""Times that a worker on CPU with many cores takes longer than one on a K80. Ours, no figure is published: 30 GFLOP/s
of each of five cores for training with three passes, against what a K80 reaches with the same models."""
NETWORK_BYTES_PER_S: Final = 1.25e9
"""Of a server: 10 Gb/s. Ours."""
UPDATE_BYTES_PER_S: Final = 10e9
"""Memory that a server reads and writes, of four values per parameter. Ours."""
FIXED_S, WORKER_S, SERVER_S, GPU_S = 5e-3, 2e-3, 2e-3, 1e-3
"""Ours: the orders of magnitude of starting a step and of a connection."""


class Allocation(NamedTuple):
    """What jobs have; each column (J,).

    Attributes:
        workers: Workers, 0 for a job that has nothing.
        on_gpu: Whether they are on GPU.
        worker_milli: Milli-cores of each worker; without effect on GPU.
        servers: Parameter servers.
        server_milli: Milli-cores of each server.
    """

    workers: IntArray
    on_gpu: BoolArray
    worker_milli: IntArray
    servers: IntArray
    server_milli: IntArray


class Phases(NamedTuple):
    """Seconds of a step (J,): the passes, push and pull, and update of the five phases, and what each rank adds.

    Attributes:
        compute_s: Forward and backward pass.
        transfer_s: Push of gradients and pull of parameters.
        update_s: Update of parameters on a server.
        connect_s: What each worker and server adds.
    """

    compute_s: FloatArray
    transfer_s: FloatArray
    update_s: FloatArray
    connect_s: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """The whole step."""
        return self.compute_s + self.transfer_s + self.update_s + self.connect_s


@dataclass(frozen=True, slots=True)
class StepModels:
    """Step times of models.

    Attributes:
        times: t0 to t6 of workers on GPU, then of workers on CPU, NaN for a model that is not known (M, 2, 7).
        curves: Drop and rate of a worker on CPU, then of a server (M, 2, 2).
    """

    times: FloatArray
    curves: FloatArray

    def phases(self, model: IntArray, batch: IntArray, has: Allocation) -> Phases:
        """Phases of a step of each job, with any number of allocations.

        Args:
            model: Row of the model of each job (J,), or (J, 1) for allocations (J, K).
            batch: Global batch in samples, in the same shape.
            has: What they have; at least one worker and one server each.
        """
        t = np.moveaxis(self.times[model, np.where(has.on_gpu, 0, 1)], -1, 0)
        drop, rate = np.moveaxis(self.curves[model, 0], -1, 0)
        eta = np.where(has.on_gpu, 1.0, _eta(drop, rate, has.worker_milli))
        drop, rate = np.moveaxis(self.curves[model, 1], -1, 0)
        server_eta = _eta(drop, rate, has.server_milli)
        workers, ratio = has.workers.astype(np.float64), has.workers / has.servers
        return Phases(
            compute_s=(t[0] * batch / workers + t[1]) / eta, transfer_s=t[2] * ratio,
            update_s=t[3] * ratio / server_eta,
            connect_s=t[4] * workers + t[5] * has.servers + t[6] * np.where(has.on_gpu, workers, 0.0),
        )


def _eta(drop: FloatArray, rate: FloatArray, milli: IntArray) -> FloatArray:
    return 1.0 - drop * np.exp(-rate * milli / CORE_MILLI)


def fitted(batch: IntArray, has: Allocation, curves: FloatArray, step_s: FloatArray) -> FloatArray:
    """Fit t0 to t6 to measured steps of one model on one kind of device, by least squared relative error.

    Args:
        batch: Global batch of each step (S,).
        has: What it was measured with (S,).
        curves: Drop and rate of a worker on CPU and of a server (2, 2).
        step_s: Measured seconds (S,).

    Returns:
        Times >= 0 (7,). With one number of cores per server, the update is part of the transfer.
    """
    from scipy.optimize import nnls  # noqa: PLC0415 - half a second that replays and services do not need

    one = np.tile(np.arange(TIMES) == 0, (1, 1, 1))
    rows = np.empty((len(step_s), TIMES))
    for each in range(TIMES):  # a step is linear in its times: its time with one of them 1 and the others 0
        unit = StepModels(np.repeat(np.roll(one, each, axis=2), 2, axis=1).astype(np.float64), curves[None])
        rows[:, each] = unit.phases(np.zeros(len(step_s), dtype=np.int64), batch, has).step_s
    if len(np.unique(has.server_milli)) < 2:
        rows[:, 3] = 0.0
    found, _ = nnls(rows / step_s[:, None], np.ones(len(step_s)))
    return np.asarray(found, dtype=np.float64)


class DefaultModel(NamedTuple):
    """A model of the table that comes with brim."""

    name: str
    batch: int
    times: FloatArray
    curves: FloatArray


@cache
def default_models(cpu_slower: float = CPU_SLOWER) -> tuple[DefaultModel, ...]:
    """The fourteen models of the successor's experiments, with workers on K80 and on CPU.

    Args:
        cpu_slower: Times that a worker on CPU with many cores takes longer.
    """
    text = files("brim.beliefs").joinpath("profiles", _FILE).read_text("utf-8")
    found = []
    for row in parse_toml(text, _FILE)["model"]:
        per_sample, weights = 1.0 / row["gpu_per_s"], 4e6 * row["parameters_m"]
        shared = [2 * weights / NETWORK_BYTES_PER_S, 4 * weights / UPDATE_BYTES_PER_S, WORKER_S, SERVER_S]
        times = [[per_sample, FIXED_S, *shared, GPU_S], [per_sample * cpu_slower, FIXED_S, *shared, 0.0]]
        curves = [[row["worker_drop"], row["worker_rate"]], SERVER_CURVE]
        found.append(DefaultModel(row["name"], row["batch"], frozen(np.array(times)), frozen(np.array(curves))))
    return tuple(found)


def models_of(models: Sequence[DefaultModel]) -> StepModels:
    """Step models by row of these models."""
    return StepModels(
        frozen(np.stack([one.times for one in models])), frozen(np.stack([one.curves for one in models]))
    )
