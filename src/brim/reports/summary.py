"""One line of a comparison: a replay's names, its metrics and the bounds they are measured against.

The table, the JSON and the page are all made from summaries, so that no figure is computed twice or in two ways.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.special import stdtrit

from brim.core.replay import Replay
from brim.reports.bounds import Bounds, bounds, needs_of
from brim.reports.metrics import Metrics, finished, held_ms, measure
from brim.units import MS_PER_S

SCHEMA: Final = 1
"""Version of the result JSON; raised when a key changes its meaning or goes away."""
NO_POWER: Final = "Energy and cost are not modelled: no power or price was given."
CONFIDENCE: Final = 0.95

_RESULT_KEYS: Final = (
    "jobs", "finished", "failed", "rejected", "rejected_fraction", "unfinished", "elastic", "unmeasured", "jct_mean_s",
    "jct_p50_s", "jct_p99_s", "jct_bound_s", "makespan_s", "makespan_bound_s", "queue_mean_s", "queue_p50_s",
    "queue_p99_s", "wait_mean_s", "gpu_allocated_fraction", "gpu_busy_fraction", "cpu_busy_fraction", "energy_kwh",
    "energy_bound_kwh", "cost", "preemptions", "restarts", "resizes", "lost_gpu_s", "ftf_rho_mean", "ftf_rho_p95",
    "ftf_rho_max", "rounds", "round_p99_ms", "rounds_per_s", "wall_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A replay without its columns.

    Attributes:
        policy: Preset name or file.
        seed: Seed of the replay.
        load: Arrival rate relative to the trace.
        oracle: The policy was told true run times.
        estimates: What it was told, in words.
        partial: The replay was interrupted.
        assumptions: One sentence each.
        metrics: Figures.
        bounds: Lower bounds over the jobs this replay finished; None where jobs ran shorter than they can.
    """

    policy: str
    seed: int
    load: float
    oracle: bool
    estimates: str
    partial: bool
    assumptions: tuple[str, ...]
    metrics: Metrics
    bounds: Bounds

    @property
    def incomplete(self) -> bool:
        """Jobs are unfinished, so that means over finished jobs do not compare with those of other replays."""
        return self.partial or self.metrics.unfinished > 0

    @property
    def jct_ratio(self) -> float | None:
        """Mean JCT over its lower bound, 1 or more."""
        return _over(self.metrics.jct_mean_s, self.bounds.jct_mean_s)

    @property
    def makespan_ratio(self) -> float | None:
        """Makespan over its lower bound, 1 or more."""
        return _over(self.metrics.makespan_s, self.bounds.makespan_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over seeds and the half width of its 95 % interval (None with fewer than two seeds)."""

    mean: float
    half_width: float | None


def summarise(replays: Iterable[Replay]) -> tuple[Summary, ...]:
    """Measure and bound every replay; bounds of the same jobs on the same cluster are computed once.

    Args:
        replays: May be a generator: one replay at a time is held.

    Returns:
        One summary per replay, in order.
    """
    known: dict[bytes, Bounds] = {}
    summaries = []
    for replay in replays:
        done = finished(replay)
        key = _bounds_key(replay)
        if key not in known:
            known[key] = bounds(replay.trace, replay.cluster, needs_of(replay), counted=done)
        found = known[key] if ran_as_needed(replay) else Bounds(jct_mean_s=None, makespan_s=None)
        summaries.append(Summary(
            policy=replay.policy, seed=replay.seed, load=replay.load, oracle=replay.oracle,
            estimates=replay.estimates, partial=replay.partial, assumptions=replay.assumptions,
            metrics=measure(replay), bounds=found,
        ))
    return tuple(summaries)


def _bounds_key(replay: Replay) -> bytes:
    """Digest of everything the bounds depend on: replays of one trace may hold copies of it."""
    trace, needs = replay.trace, needs_of(replay)
    digest = hashlib.blake2b(str(replay.cluster).encode(), digest_size=16)
    for column in (
        trace.submit_ms, needs.run_ms, needs.gpu_ms, needs.gpus_min, needs.gpus_max, trace.after, trace.after_ms,
    ):
        digest.update(np.ascontiguousarray(column).tobytes())
    digest.update(finished(replay).tobytes())
    return digest.digest()


def short_names(policies: Iterable[str]) -> dict[str, str]:
    """What to call policies in a report: a file by its last part, where that stays unique."""
    known = list(dict.fromkeys(policies))
    short = {policy: re.split(r"[/\\]", policy)[-1] if ".py" in policy else policy for policy in known}
    return short if len(set(short.values())) == len(known) else {policy: policy for policy in known}


def ran_as_needed(replay: Replay) -> bool:
    """Whether every finished job held GPUs for at least its least run time: without that the bounds do not hold.

    A job that ran on faster GPUs than recorded may end sooner.
    """
    done = finished(replay)
    rounding_ms = 1
    return not len(replay.runs.job) or bool(
        (held_ms(replay)[done] + rounding_ms >= replay.ideal_run_ms[done]).all()
    )


def result_rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """One flat dictionary per replay with the keys of the JSON results; fit for CSV once assumptions are joined."""
    return [_result_row(summary) for summary in summaries]


def results_json(replay: Replay, summaries: Sequence[Summary]) -> dict[str, Any]:
    """The result JSON of ``brim sim run`` and ``brim sim compare``: no NaN, no infinity, undefined is null.

    Args:
        replay: Any of the replays, for trace and cluster.
        summaries: All of them.
    """
    trace = replay.trace
    return {
        "schema": SCHEMA,
        "trace": {
            "name": trace.name, "format": trace.format, "synthetic": trace.synthetic, "jobs": len(trace),
            "span_s": trace.span_ms / MS_PER_S, "gpu_h": float(replay.asked_gpu_ms.sum()) / MS_PER_S / 3600,
        },
        "cluster": str(replay.cluster),
        "results": result_rows(summaries),
    }


def interval(values: Sequence[float]) -> Interval:
    """Mean and Student-t 95 % interval of independent values (one per seed)."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Interval(mean=mean, half_width=None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return Interval(mean=mean, half_width=quantile * math.sqrt(variance / count))


def by_policy(summaries: Sequence[Summary]) -> dict[tuple[float, str], list[Summary]]:
    """Summaries by (load, policy), both in order of appearance, seeds together."""
    grouped: dict[tuple[float, str], list[Summary]] = {}
    for load in dict.fromkeys(summary.load for summary in summaries):
        for summary in summaries:
            if summary.load == load:
                grouped.setdefault((load, summary.policy), []).append(summary)
    return grouped


def all_assumptions(summaries: Sequence[Summary]) -> list[str]:
    """Every assumption once; one that only some policies make is led by their names."""
    policies = list(dict.fromkeys(summary.policy for summary in summaries))
    makers: dict[str, dict[str, None]] = {}
    for summary in summaries:
        for text in summary.assumptions:
            makers.setdefault(text, {})[summary.policy] = None
    lines = [text if len(who) == len(policies) else f"{', '.join(who)}: {text}" for text, who in makers.items()]
    return [*lines, NO_POWER]


def _result_row(summary: Summary) -> dict[str, Any]:
    figures = dataclasses.asdict(summary.metrics) | {
        "jct_bound_s": summary.bounds.jct_mean_s, "makespan_bound_s": summary.bounds.makespan_s,
        "energy_kwh": None, "energy_bound_kwh": None, "cost": None,
    }
    return {
        "policy": summary.policy, "seed": summary.seed, "load": float(summary.load),
        **{key: figures[key] for key in _RESULT_KEYS},
        "oracle": summary.oracle, "estimates": summary.estimates, "partial": summary.partial,
        "assumptions": [*summary.assumptions, NO_POWER],
    }


def _over(value: float | None, bound: float | None) -> float | None:
    return value / bound if value is not None and bound else None
