"""Derive a trace from a trace: its first jobs, its jobs from a date on, another load, or a resample."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from brim.core.arrays import IntArray
from brim.core.cluster import Cluster
from brim.core.trace import INT_COLUMNS, NONE, Trace, trace_of
from brim.errors import ConfigError
from brim.units import MS_PER_DAY, MS_PER_H, MS_PER_S

MIN_DAYS: Final = 7
"""Traces of at least this many days are resampled by days, shorter ones by hours."""
MAX_LOAD_FACTOR: Final = 1e6


def limit(trace: Trace, count: int) -> Trace:
    """Keep the first jobs.

    Raises:
        ConfigError: fewer than one is asked for.
    """
    if count < 1:
        raise ConfigError(f"limit: found {count}, expected 1 or more jobs")
    return trace.take(np.arange(min(count, len(trace))))


def since(trace: Trace, date: str) -> Trace:
    """Keep jobs submitted at or after a date (``2017-10-01`` or ``2017-10-01T12:00``, in the trace's own clock).

    Raises:
        ConfigError: the date is invalid, the trace has no wall clock, or no job is left.
    """
    try:
        parsed = datetime.fromisoformat(date)
    except ValueError:
        raise ConfigError(f"invalid date {date!r}: expected a date such as 2017-10-01") from None
    if trace.origin_ms is None:
        raise ConfigError(f"{trace.name}: it does not say on which date its time 0 is, so it cannot start at {date}")
    moment = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    rows = np.flatnonzero(trace.submit_ms + trace.origin_ms >= round(moment.timestamp() * MS_PER_S))
    if not len(rows):
        last = datetime.fromtimestamp((trace.origin_ms + trace.span_ms) / MS_PER_S, tz=UTC)
        raise ConfigError(f"{trace.name}: no job from {date} on; the last was submitted {last:%Y-%m-%d %H:%M}")
    return trace.take(rows)


def scale_load(trace: Trace, factor: float) -> Trace:
    """Divide the submission times by the factor: 2 gives twice the load, with the same jobs.

    Raises:
        ConfigError: the factor is not a number between a millionth and a million.
    """
    if not (math.isfinite(factor) and 1 / MAX_LOAD_FACTOR <= factor <= MAX_LOAD_FACTOR):
        raise ConfigError(
            f"load factor: found {factor:g}, expected a number from {1 / MAX_LOAD_FACTOR:g} to "
            f"{MAX_LOAD_FACTOR:g}, such as 1.5"
        )
    if factor == 1:
        return trace
    return _rebuilt(trace, np.arange(len(trace)), np.rint(trace.submit_ms / factor).astype(np.int64))


def offered_load(trace: Trace, cluster: Cluster) -> float:
    """Return the requested GPU time divided by the cluster's GPU time between first and last submission.

    NaN where all jobs arrive together or no run time is recorded.
    """
    capacity_ms = cluster.num_gpus * trace.span_ms
    gpu_ms = float(trace.gpu_ms.sum(dtype=np.float64))
    return gpu_ms / capacity_ms if capacity_ms and gpu_ms else math.nan


def resample(trace: Trace, seed: int) -> Trace:
    """Resample a trace, for intervals over seeds; seed 0 returns the trace as recorded.

    Block bootstrap: the function cuts the trace into blocks from its first submission, draws as many blocks with
    replacement, and puts them one after the other. A block is a day; an hour if the trace is shorter than a week; a
    24th of the trace if it is shorter than a day; a single job if all jobs arrive together. A job keeps its time within
    the block, so daily (hourly) patterns and bursts stay; the order of blocks, such as weekends, does not. Copies of a
    job get ``#2``, ``#3`` after their id. A dependency is kept if its predecessor is in the same copy of a block. The
    span stays the same up to a block.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"seed: found {seed}, expected 0 or more")
    if seed == 0 or not len(trace):
        return trace
    rng = np.random.default_rng(seed)
    block_ms = _block_ms(trace.span_ms)
    num_blocks = trace.span_ms // block_ms + 1 if block_ms else len(trace)
    edges = np.arange(num_blocks + 1)
    if block_ms:
        edges = np.searchsorted(trace.submit_ms, edges * block_ms)
    counts = np.diff(edges)
    drawn = rng.integers(num_blocks, size=num_blocks)
    while not counts[drawn].any():
        drawn = rng.integers(num_blocks, size=num_blocks)
    copies = np.repeat(np.arange(num_blocks), counts[drawn])
    first = np.concatenate(([0], np.cumsum(counts[drawn])))[:-1]
    rows = edges[drawn][copies] + np.arange(len(copies)) - first[copies]
    submit_ms = trace.submit_ms[rows] + (copies - drawn[copies]) * block_ms
    after = trace.after[rows]
    same_block = (after != NONE) & (after >= edges[drawn][copies]) & (after < edges[drawn + 1][copies])
    after = np.where(same_block, after - edges[drawn][copies] + first[copies], NONE)
    return _rebuilt(trace, rows, submit_ms, after)


def _block_ms(span_ms: int) -> int:
    """Length of a block, 0 for one job each."""
    if span_ms >= MIN_DAYS * MS_PER_DAY:
        return MS_PER_DAY
    return MS_PER_H if span_ms >= MS_PER_DAY else -(-span_ms // 24)


def _rebuilt(trace: Trace, rows: IntArray, submit_ms: IntArray, after: IntArray | None = None) -> Trace:
    """Build a trace of these rows (repeats allowed), submitted at these times."""
    columns: dict[str, Any] = {name: getattr(trace, name)[rows] for name in INT_COLUMNS}
    columns |= {"submit_ms": submit_ms, "after": trace.after if after is None else after}
    return trace_of(
        name=trace.name, format=trace.format, synthetic=trace.synthetic, origin_ms=trace.origin_ms,
        cluster=trace.cluster, job_id=_distinct_ids(trace, rows), users=trace.users, groups=trace.groups,
        gpu_types=trace.gpu_types, profiles=trace.profiles, size_lists=trace.size_lists, **columns,
    )  # fmt: skip


def _distinct_ids(trace: Trace, rows: IntArray) -> list[str]:
    seen: dict[str, int] = {}
    taken = set(trace.job_id)
    ids = []
    for row in rows.tolist():
        name = trace.job_id[row]
        copy = seen[name] = seen.get(name, 0) + 1
        distinct = name if copy == 1 else f"{name}#{copy}"
        while copy > 1 and distinct in taken:  # an id of the trace that looks like a copy
            distinct += "#"
        ids.append(distinct)
    return ids
