"""Jobs whose speed is known exactly, and the formulas written out once more: nothing here uses ``beliefs.batching``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.speeds import Speeds
from brim.core.arrays import frozen
from brim.testing import job

UNKNOWN = (math.nan,) * 7
PERFECT = (0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0)
"""10 ms per sample, nothing to exchange: speed is proportional to GPUs."""


@dataclass(frozen=True)
class KnownSpeeds:
    """Speeds as given, whatever was reported: one row of seven parameters per job, NaN for a job nobody knows."""

    parameters: tuple[tuple[float, ...], ...]
    seen: tuple[int, ...] = ()

    def of_jobs(self, snapshot, exchange=None) -> Speeds:
        table = np.array(self.parameters, dtype=np.float64).reshape(-1, 7)
        known = ~np.isnan(table[:, 0])
        seen = np.array(self.seen, dtype=np.int64) if self.seen else np.where(known, 64, 0)
        return Speeds(parameters=table, known=known, failed=np.zeros_like(known), gpus_seen=seen)

    of_models = of_jobs


@dataclass(frozen=True)
class KnownWork:
    """Samples left, as given."""

    left: tuple[float, ...]

    def left_gpu_ms(self, snapshot, per_sample):
        return (np.array(self.left) * per_sample)[:, None]


def beliefs(*parameters, seen=(), left=None) -> Beliefs:
    known = Beliefs(speeds=KnownSpeeds(parameters, tuple(seen)))
    return known if left is None else replace(known, work=KnownWork(tuple(left)))


def elastic(**changes):
    """An elastic job of batches 64 to 512, at most 64 on a GPU."""
    limits = {"gpus": 1, "gpus_min": 1, "gpus_max": 8, "batch": 64, "batch_min": 64, "batch_max": 512,
              "local_batch_min": 1, "local_batch_max": 64, "model": "m"}
    return job(**(limits | changes))


def one_batch(**changes):
    """An elastic job of one batch, 64: with ``PERFECT``, twice as fast on twice the GPUs."""
    return elastic(**({"batch_max": 64} | changes))


def with_columns(snapshot, **columns):
    """The same snapshot with other columns of the job table."""
    jobs = snapshot.jobs
    return replace(snapshot, jobs=replace(jobs, **{
        name: frozen(np.array(values, dtype=getattr(jobs, name).dtype)) for name, values in columns.items()
    }))


def step_s(p, gpus, local, extra, width):
    """Section 3.2 of Pollux, with the exchange growing by doublings of peers."""
    grad = p[0] + p[1] * local
    if gpus == 1:
        return (extra + 1) * grad
    alpha, beta = (p[2], p[3]) if gpus <= width else (p[4], p[5])
    sync = alpha + beta * math.log2(max(gpus - 1, 1))
    return extra * grad + (grad ** p[6] + sync ** p[6]) ** (1 / p[6])


def rate(p, one, gpus, batch, width, *, accumulation, var=math.nan, sqr=math.nan):
    """Samples of the initial batch per second with one batch on so many GPUs; -inf where it cannot be split."""
    share = -(-batch // gpus)
    extra = -(-share // one.local_batch_max) - 1
    if not accumulation and extra:
        return -math.inf
    if accumulation and gpus == 1 and batch > one.batch_min:
        extra = max(extra, 1)
    local = min(-(-share // (extra + 1)), one.batch_max // (gpus * (extra + 1)))
    if local < one.local_batch_min:
        return -math.inf
    scale = gpus * local * (extra + 1) / one.batch_min
    gain = scale if math.isnan(var) else (var + sqr) / (var / scale + sqr)
    return gain * one.batch_min / step_s(p, gpus, local, extra, width)


def best_rate(p, one, gpus, width, **how):
    """The best over every batch of the range."""
    return max(rate(p, one, gpus, batch, width, **how) for batch in range(one.batch_min, one.batch_max + 1))


def choices(options, capacity):
    """Every way to take one of each job's sizes with at most ``capacity`` GPUs in all."""
    return (sizes for sizes in product(*options) if sum(sizes) <= capacity)
