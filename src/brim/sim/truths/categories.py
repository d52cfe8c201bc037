"""Which jobs of a trace are elastic, and how they scale: four categories, by request and run time.

===============  ===================  =====  ===================================================================
category         exchange / compute   batch  stands for
===============  ===================  =====  ===================================================================
compute          0.05                 8 x    large models on fast links: ResNet-50 at 224 x 224, BERT
balanced         0.25                 8 x    in between
communication    1.0                  8 x    few operations per parameter, slow links: VGG-16 on small images
small            0.25                 1 x    never fills a second GPU: largest batch half of what one GPU holds
===============  ===================  =====  ===================================================================

"exchange / compute" is the time to exchange gradients over 8 GPUs of one node over the time to compute a full local
batch; "batch" is the largest global batch over the one asked.

**The rule.** A job that asks for one GPU is ``small`` where it ran less than an hour, else ``balanced``. One that asks
for several GPUs of one node is ``communication`` where it ran less than an hour, else ``balanced``. One that asks for
more is ``communication`` where it ran less than an hour, else ``compute``: users who run long on many nodes have
probably found that it pays. Each job draws its own figures around these. Its batch as asked takes half of its GPUs'
memory, its smallest and initial batch is a quarter of that, and any batch in its range is equally good per sample.

Source:
    Categories: ours, made to rebuild the experiment of Effective Elastic Scaling (MASCOTS 2020), which publishes none.
    The rule and the spreads: ours. Where a constant names applications of Pollux, see beliefs/profiles/pollux.toml.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from brim.beliefs.throughput import GAMMA_TYPICAL, PARAMETERS
from brim.core.arrays import FloatArray, IntArray
from brim.core.cluster import Cluster
from brim.core.trace import NONE, Trace
from brim.errors import ConfigError
from brim.sim.feasibility import fits, type_codes
from brim.sim.truths.parametric import ElasticJobs, Parametric
from brim.units import MS_PER_H, WHOLE_GPU

ELASTIC_SHARE: Final = 0.3
"""Default share of elastic jobs; ours. No trace says which jobs could have been resized."""
GPUS_MAX: Final = 64
"""Most GPUs of an elastic job that asked for no more; as many as were measured of Pollux's applications."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """How a kind of job scales.

    Attributes:
        name: Name in reports.
        exchange_ratio: Exchange over 8 GPUs of a node / computing a full local batch.
        batch_ratio: Largest batch / batch asked.
        local_batch_max: Samples that fit one GPU.
        fill_ratio: Share of these samples that the user's batch takes.
    """

    name: str
    exchange_ratio: float
    batch_ratio: int = 8
    local_batch_max: int = 64
    fill_ratio: float = 0.5


COMPUTE = Category(name="compute", exchange_ratio=0.05)
BALANCED = Category(name="balanced", exchange_ratio=0.25)
COMMUNICATION = Category(name="communication", exchange_ratio=1.0)
SMALL = Category(name="small", exchange_ratio=0.25, batch_ratio=1)
CATEGORIES: Final = (COMPUTE, BALANCED, COMMUNICATION, SMALL)
_COMPUTE, _BALANCED, _COMMUNICATION, _SMALL = range(len(CATEGORIES))

SHORT_MS: Final = MS_PER_H
"""Run time below which a job is short; ours."""
STEP_S: Final = 0.3
"""Median time to compute a full local batch, spread by ``STEP_SPREAD``; ours."""
STEP_SPREAD: Final = 0.5
FIXED_SHARE: Final = 0.15
"""Part of that time that does not shrink with the batch; between Pollux's cifar10 (0.02) and yolov3 (0.48)."""
RATIO_SPREAD: Final = 0.3
"""Logarithmic spread of the exchange within a category; ours: less than the distance between categories."""
GROWTH: Final = 0.2
"""Exchange added by a doubling of peers over that of two GPUs, as Pollux's bert, cifar10, imagenet; others to 1.1."""
ACROSS: Final = 3.0
"""Exchange across nodes over exchange inside one; Pollux's six applications have 2.6 to 7."""
OVERLAP_SPREAD: Final = 0.35
"""Logarithmic spread of gamma around its typical value: Pollux's six have 1.0 to 2.6."""
_SEVEN: Final = float(np.log2(7))
"""Doublings of the peers of a GPU among eight."""
BYTES_S: Final = 5e9
"""Bytes per second that two GPUs of a node exchange, to compute gradient sizes from the times above. Ours."""


class _Links:
    """The cluster on which the parameters of this module hold. See ``beliefs.analyser.Exchange``."""

    def all_reduce_s(self, num_bytes: int, gpus: int, nodes: int) -> float:
        """Seconds of one all-reduce."""
        grown = 1 + GROWTH * float(np.log2(max(gpus - 1, 1)))
        return num_bytes / BYTES_S * grown * (ACROSS if nodes > 1 else 1.0)


LINKS: Final = _Links()


def drawn_jobs(trace: Trace, cluster: Cluster, share: float = ELASTIC_SHARE, seed: int = 0) -> Parametric:
    """Make a share of a trace's jobs elastic. Draws depend on the seed and the job's id only.

    Jobs with a share of a GPU stay rigid. Jobs that are elastic at one share are so at every larger one.

    Raises:
        ConfigError: the share is not from 0 to 1, or jobs have no recorded run time.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"elastic share: found {share}, expected a number from 0 to 1")
    draws = _draws(trace, seed)
    rows = np.flatnonzero((draws[:, 0] < share) & (trace.share_milli == WHOLE_GPU) & (trace.run_ms > 0))
    category = category_of(trace.gpus[rows], trace.run_ms[rows], int(cluster.gpus_N.max()))
    jobs = jobs_of(rows, category, trace.gpus[rows], _most_gpus(trace, cluster, rows), draws[rows, 1:])
    counts = np.bincount(category, minlength=len(CATEGORIES)).tolist()
    kinds = ", ".join(f"{count:,} {kind.name}" for kind, count in zip(CATEGORIES, counts, strict=True) if count)
    said = [
        f"The elastic jobs were drawn at random (share {share:g}, seed {seed}): {kinds or 'none'}. The trace does not "
        "say which jobs could have been resized, nor how they would have scaled.",
        "As its user asked for it, on the fewest nodes, an elastic job takes exactly as long as recorded.",
    ]
    return Parametric(trace, cluster, jobs, seed=seed, said=said, exchange=LINKS)


def category_of(gpus: IntArray, run_ms: IntArray, width: int) -> IntArray:
    """Index into ``CATEGORIES`` by the rule of this module (E,)."""
    short = run_ms < SHORT_MS
    return np.select(
        [(gpus == 1) & short, (gpus > 1) & short, gpus <= width], [_SMALL, _COMMUNICATION, _BALANCED], _COMPUTE
    ).astype(np.int64)


def jobs_of(row: IntArray, category: IntArray, gpus: IntArray, gpus_max: IntArray, uniform: FloatArray) -> ElasticJobs:
    """Jobs of given categories; each with its own figures.

    Args:
        row: Trace rows (E,).
        category: Index into ``CATEGORIES`` (E,).
        gpus: GPUs asked (E,).
        gpus_max: GPUs it could have at most (E,).
        uniform: Draws from (0, 1) (E, 3 or more); one half each is the category's own figures.
    """
    from scipy.special import ndtri  # noqa: PLC0415

    normal = ndtri(uniform[:, :3])
    ratio, more, full, fill = (
        np.array([getattr(kind, name) for kind in CATEGORIES])[category]
        for name in ("exchange_ratio", "batch_ratio", "local_batch_max", "fill_ratio")
    )
    compute_s = STEP_S * np.exp(STEP_SPREAD * normal[:, 0])
    exchange_s = ratio * compute_s * np.exp(RATIO_SPREAD * normal[:, 1])
    alpha_r = exchange_s / (1 + GROWTH * _SEVEN)
    parameters = np.empty((len(row), len(PARAMETERS)))
    parameters.T[:] = (
        FIXED_SHARE * compute_s, (1 - FIXED_SHARE) * compute_s / full, alpha_r, GROWTH * alpha_r, ACROSS * alpha_r,
        ACROSS * GROWTH * alpha_r, np.clip(GAMMA_TYPICAL * np.exp(OVERLAP_SPREAD * normal[:, 2]), 1.0, 10.0),
    )
    asked = np.maximum(gpus * (full * fill).astype(np.int64), 1)
    batch_max = asked * more
    local_min = np.maximum(full // 16, 1)
    return ElasticJobs(
        row=row, parameters=parameters, batch=asked, batch_min=np.maximum(asked // 4, 1), batch_max=batch_max,
        local_batch_min=local_min, local_batch_max=full, gpus_min=np.ones_like(gpus),
        gpus_max=np.maximum(gpus, np.minimum(gpus_max, batch_max // local_min)),
        gradient_bytes=np.rint(alpha_r * BYTES_S).astype(np.int64),
    )


def _draws(trace: Trace, seed: int) -> FloatArray:
    """Four numbers from (0, 1) for each job, from its id (J, 4)."""
    raw = b"".join(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=32).digest() for name in trace.job_id)
    whole = np.frombuffer(raw, dtype="<u8").reshape(-1, 4)
    return ((whole >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


def _most_gpus(trace: Trace, cluster: Cluster, rows: IntArray) -> IntArray:
    """Most GPUs of each job that the empty cluster could give it, by powers of two above what it asked."""
    codes = type_codes(trace, cluster)
    most = trace.gpus[rows].copy()
    size = 1
    while (size := 2 * size) <= min(GPUS_MAX, cluster.num_gpus):
        larger = np.flatnonzero(trace.gpus[rows] < size)
        if len(larger):
            part = trace.take(rows[larger])
            asks = _with_gpus(part, size)
            most[larger] = np.where(fits(asks, cluster, codes[asks.gpu_type]), size, most[larger])
    return most


def _with_gpus(trace: Trace, gpus: int) -> Trace:
    return replace(trace, gpus=np.full(len(trace), gpus, dtype=np.int64), after=np.full(len(trace), NONE))
