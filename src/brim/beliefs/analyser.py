"""The job scalability analyser: it measures a job before it trains, and the cluster once.

It times a job's steps on one device at a few local batches. The time of an exchange of gradients is a property of the
cluster, not of the job. Both procedures work on real measurements and on the twin's truth.

Source:
    Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020, arXiv:2006.13878, and US patent 11,586,475: run
    times on many devices are estimated from steps on one and a communication value of the cluster. How many batches and
    steps, and when to stop, is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.events import Sample
from brim.errors import ConfigError, InvariantError

POINTS: Final = 6
"""Local batches tried, if the range has that many; ours, from 5 to 7, with which an affine fit shows its error."""
MORE_POINTS: Final = 2
"""Batches tried beyond these to close in on the memory limit; ours."""
WARM_UP_STEPS: Final = 10
"""Steps before timing starts, in which allocators, autotuners and caches settle. Ours."""
TIMED_STEPS: Final = 30
"""Most timed steps of one batch; ours."""
STEPS_AT_ONCE: Final = 10
"""Timed steps between two checks of their spread, and the fewest; ours."""
SPREAD_SMALL: Final = 0.05
"""Inter-quartile range over median below which no more steps are timed; ours."""
REPETITIONS: Final = 5
"""All-reduces for each figure of the cluster, including one warm-up; ours."""
BYTES_MIN_EXP, BYTES_MAX_EXP = 20, 31
"""Exchanges measured: 1 MiB to 2 GiB, the gradients of a million to half a billion parameters."""


class Steps(Protocol):
    """Times steps of one job on one device."""

    def step_s(self, local_batch: int, steps: int) -> Sequence[float] | None:
        """Run this many training steps and return the seconds of each; None if the batch does not fit the memory."""
        ...


class Exchange(Protocol):
    """Times exchanges of gradients on the cluster."""

    def all_reduce_s(self, num_bytes: int, gpus: int, nodes: int) -> float:
        """Seconds of one all-reduce of this many bytes over GPUs spread evenly over nodes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The measurements of one job.

    Attributes:
        samples: Median step times by local batch, ascending, on one device; empty where not even the smallest fits.
        local_batch_max: Largest batch that ran, 0 for none.
        seconds: Time of all steps, warm-up included.
    """

    samples: tuple[Sample, ...]
    local_batch_max: int
    seconds: float


def batches_to_try(batch_min: int, gpus_max: int, local_batch_max: int, local_batch_min: int = 1) -> list[int]:
    """Local batches spaced geometrically from a share of the smallest global batch to the limit, ascending.

    Raises:
        ConfigError: an argument is below 1, or the limit below ``local_batch_min``.
    """
    if min(batch_min, gpus_max, local_batch_min) < 1 or local_batch_max < local_batch_min:
        raise ConfigError(
            f"analysis: found batch_min={batch_min}, gpus_max={gpus_max} and local batches of {local_batch_min} to "
            f"{local_batch_max}, expected numbers from 1 up and a range that is not empty"
        )
    low = min(max(-(-batch_min // gpus_max), local_batch_min), local_batch_max)
    points = np.geomspace(low, local_batch_max, POINTS).round().astype(np.int64)
    return sorted(set(points.tolist()))


def analyse(
    measure: Steps, *, batch_min: int, gpus_max: int, local_batch_max: int, local_batch_min: int = 1
) -> Analysis:
    """Time a job's steps on one device at several local batches, smallest first.

    A batch that does not fit ends the list; the limit is then looked for between it and the last one that did.

    Raises:
        ConfigError: see ``batches_to_try``.
        InvariantError: a measured time is not a positive number, or times are missing.
    """
    waiting = batches_to_try(batch_min, gpus_max, local_batch_max, local_batch_min)
    times: dict[int, float] = {}
    seconds, too_large, more = 0.0, 0, MORE_POINTS
    while waiting:
        local_batch = waiting.pop(0)
        found = _median_s(measure, local_batch)
        if found is None:
            too_large = local_batch
        else:
            times[local_batch] = found[0]
            seconds += found[1]
        if too_large:
            largest = max(times, default=0)
            between = math.isqrt(largest * too_large)
            waiting = [between] if more and largest < between else []
            more -= 1
    samples = tuple(Sample(1, 1, local_batch, step_s, 0.0) for local_batch, step_s in sorted(times.items()))
    return Analysis(samples=samples, local_batch_max=max(times, default=0), seconds=seconds)


def _median_s(measure: Steps, local_batch: int) -> tuple[float, float] | None:
    """Median of the timed steps and the sum of all; None where the batch does not fit."""
    warm_up = _times(measure, local_batch, WARM_UP_STEPS)
    if warm_up is None:
        return None
    timed = np.zeros(0)
    while len(timed) < TIMED_STEPS:
        part = _times(measure, local_batch, STEPS_AT_ONCE)
        if part is None:  # the batch fitted before: it is too close to the limit
            return None
        timed = np.concatenate((timed, part))
        low, median, high = np.percentile(timed, (25, 50, 75)).tolist()
        if high - low <= SPREAD_SMALL * median:
            break
    return median, float(warm_up.sum() + timed.sum())


def _times(measure: Steps, local_batch: int, steps: int) -> FloatArray | None:
    found = measure.step_s(local_batch, steps)
    if found is None:
        return None
    times = np.asarray(found, dtype=np.float64)
    if times.shape != (steps,) or not (np.isfinite(times).all() and (times > 0).all()):
        raise InvariantError(f"analysis: found step times {times.tolist()}, expected {steps} positive numbers")
    return times


# --- the cluster


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangeTimes:
    """All-reduce times of a cluster: K numbers of GPUs, S sizes.

    Attributes:
        gpus_per_node: GPUs per node of the cluster.
        gpus_K: Numbers of GPUs, ascending from 2.
        bytes_S: Sizes, ascending.
        packed_s_KS: Seconds on as few nodes as hold the GPUs.
        spread_s_KS: Seconds on as many nodes as possible.
        seconds: Time of the measurement, all repetitions.
    """

    gpus_per_node: int
    gpus_K: IntArray
    bytes_S: FloatArray
    packed_s_KS: FloatArray
    spread_s_KS: FloatArray
    seconds: float

    def all_reduce_s(self, num_bytes: float, gpus: int, nodes: int) -> float:
        """Interpolate: linear in the logarithms of bytes and GPUs; 0 on one GPU.

        More nodes than needed count as spread. Fewer bytes than measured take as long as the fewest, more in proportion
        to the most; more GPUs than measured follow the last two.
        """
        if gpus <= 1:
            return 0.0
        table = self.packed_s_KS if nodes <= -(-gpus // self.gpus_per_node) else self.spread_s_KS
        size = min(max(num_bytes, self.bytes_S[0]), self.bytes_S[-1])
        by_gpus = [float(np.interp(math.log2(size), np.log2(self.bytes_S), row)) for row in table]
        beyond = max(num_bytes / float(self.bytes_S[-1]), 1.0)
        return beyond * _along(np.log2(self.gpus_K), by_gpus, math.log2(gpus))


def _along(x: FloatArray, y: Sequence[float], at: float) -> float:
    """Linear between the points and, with the last two, beyond them; never below the last there."""
    if at <= x[-1] or len(x) == 1:
        return float(np.interp(at, x, y))
    slope = (y[-1] - y[-2]) / float(x[-1] - x[-2])
    return y[-1] + max(slope, 0.0) * (at - float(x[-1]))


def exchange_sizes(bytes_max_exp: int = BYTES_MAX_EXP) -> list[int]:
    """Bytes of the exchanges that are measured, ascending: powers of two."""
    return [2**power for power in range(BYTES_MIN_EXP, bytes_max_exp + 1)]


def measure_exchange(
    measure: Exchange, *, num_nodes: int, gpus_per_node: int, bytes_max_exp: int = BYTES_MAX_EXP
) -> ExchangeTimes:
    """Time all-reduces on the cluster, once: powers of two of GPUs and of bytes, packed and spread.

    ``bytes_max_exp`` ends the sizes earlier, where 2 GiB would take too long or too much memory.

    Raises:
        ConfigError: the cluster has fewer than two GPUs.
        InvariantError: a measured time is not a positive number.
    """
    most = num_nodes * gpus_per_node
    if most < 2:
        raise ConfigError(f"exchange of gradients: found {num_nodes} nodes of {gpus_per_node} GPUs, expected 2 GPUs")
    gpus_K = sorted({min(2**power, most) for power in range(1, most.bit_length() + 1)})
    bytes_S = exchange_sizes(bytes_max_exp)
    packed, spread = (
        np.array([[measure.all_reduce_s(size, gpus, nodes) for size in bytes_S]
                  for gpus in gpus_K for nodes in [-(-gpus // gpus_per_node) if close else min(gpus, num_nodes)]])
        for close in (True, False)
    )  # fmt: skip
    for table in (packed, spread):
        if not (np.isfinite(table).all() and (table > 0).all()):
            raise InvariantError(f"exchange of gradients: found times {table.tolist()}, expected positive numbers")
    return ExchangeTimes(
        gpus_per_node=gpus_per_node, gpus_K=frozen(np.array(gpus_K, dtype=np.int64)),
        bytes_S=frozen(np.array(bytes_S, dtype=np.float64)), packed_s_KS=frozen(packed), spread_s_KS=frozen(spread),
        seconds=REPETITIONS * float(packed.sum() + spread.sum()),
    )
