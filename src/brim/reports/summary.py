"""Summaries: one line of a comparison, with a replay's names, its metrics and the bounds for them.

The table, the JSON and the page all use summaries, so that no figure is computed twice or in two ways.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from brim.core.prices import Prices
from brim.core.replay import Replay
from brim.reports.bounds import Bounds, bounds, needs_of
from brim.reports.metrics import Metrics, finished, held_ms, measure
from brim.reports.record import Comparison, NoRecord, RecordedMetrics, beside_record
from brim.reports.replay_bill import cost_of_jobs
from brim.units import MS_PER_S, S_PER_H

SCHEMA: Final = 1
"""Version of the result JSON; raised when a key changes its meaning or goes away."""
NO_PRICE: Final = "Cost is not modelled: no --price was given."
NO_POWER: Final = "Energy is not modelled: no --power was given."
CONFIDENCE: Final = 0.95

_RESULT_KEYS: Final = (
    "jobs", "finished", "failed", "rejected", "rejected_fraction", "unfinished", "elastic", "unmeasured", "jct_mean_s",
    "jct_p50_s", "jct_p99_s", "jct_regular_mean_s", "jct_bound_s", "makespan_s", "makespan_bound_s",
    "queue_mean_s", "queue_p50_s", "queue_p99_s", "wait_mean_s", "wait_p50_s", "wait_p99_s", "requeue_mean_s",
    "gpu_allocated_fraction",
    "gpu_busy_fraction", "cpu_busy_fraction", "energy_kwh", "energy_idle_kwh", "energy_bound_kwh", "co2_kg",
    "active_nodes", "cost", "preemptions", "restarts",
    "resizes", "lost_gpu_s", "held_gpu_s", "saved_against", "saved_gpu_s", "saved_wait_s", "saved_cost", "ftf_rho_mean",
    "ftf_rho_p95", "ftf_rho_max", "rounds", "round_p99_ms", "rounds_per_s", "wall_s",
)
_RECORD_KEYS: Final = (
    "jobs", "covered", "jct_mean_s", "jct_p50_s", "jct_p99_s", "queue_mean_s", "queue_p50_s", "queue_p99_s",
    "wait_mean_s", "wait_p50_s", "wait_p99_s", "requeue_mean_s", "held_gpu_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A replay without its columns.

    Attributes:
        policy: Preset name or file.
        seed: Seed of the replay.
        load: Arrival rate relative to the trace.
        oracle: Whether the policy knew true run times.
        estimates: Description of the run times that the policy knew.
        partial: Whether the replay was interrupted.
        assumptions: One sentence each.
        metrics: Figures of the replay.
        bounds: Lower bounds over the jobs that this replay finished; None where it was stopped, which
            is then reported at once, or where jobs ran shorter than they can.
        prices: What GPU time and energy cost; None if not given.
        cost: What the jobs cost: GPU time that they held, and their energy where it has a price; None without prices.
        saved: This replay beside the record, or else beside the first policy's replay of the same load and seed; None
            for that replay itself, and where the two did not finish the same jobs.
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
    prices: Prices | None = None
    cost: float | None = None
    saved: Comparison | None = None

    @property
    def incomplete(self) -> bool:
        """Whether jobs are unfinished, so that means over finished jobs do not compare with those of other replays."""
        return self.partial or self.metrics.unfinished > 0

    @property
    def jct_ratio(self) -> float | None:
        """Mean JCT over its lower bound, 1 or more."""
        return _over(self.metrics.jct_mean_s, self.bounds.jct_mean_s)

    @property
    def energy_ratio(self) -> float | None:
        """Energy over its lower bound, 1 or more."""
        return _over(self.metrics.energy_kwh, self.metrics.energy_bound_kwh)

    @property
    def makespan_ratio(self) -> float | None:
        """Makespan over its lower bound, 1 or more."""
        return _over(self.metrics.makespan_s, self.bounds.makespan_s)

    @property
    def co2_kg(self) -> float | None:
        """CO2 of the energy that all nodes used; None where energy, or CO2 for a kWh, is not given."""
        kwh = self.metrics.energy_kwh
        return None if self.prices is None or kwh is None else self.prices.co2_kg(kwh)

    @property
    def saved_cost(self) -> float | None:
        """How much less the same jobs cost than in the reference; beside the record, without energy."""
        return None if self.saved is None else self.saved.saved_cost

    @property
    def saved_gpu_h(self) -> float | None:
        """How many GPU-hours less the same jobs hold than in the reference."""
        return None if self.saved is None else self.saved.saved_gpu_s / S_PER_H

    @property
    def saved_wait_h(self) -> float | None:
        """How many hours less the same jobs wait than in the reference, summed over the jobs."""
        return None if self.saved is None else self.saved.saved_wait_s / S_PER_H


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over seeds and the half width of its 95 % interval (None with fewer than two seeds)."""

    mean: float
    half_width: float | None


def summarise(
    replays: Iterable[Replay], *, record: RecordedMetrics | NoRecord | None = None, prices: Prices | None = None
) -> tuple[Summary, ...]:
    """Measure and bound every replay; bounds of the same jobs on the same cluster are computed once.

    Args:
        replays: May be a generator; only one replay at a time is held.
        record: What the trace recorded: replays at load 1 with seed 0 are compared with the metrics of that.
        prices: What GPU time and energy cost.

    Returns:
        One summary per replay, in order.
    """
    known: dict[bytes, Bounds] = {}
    summaries = []
    for replay in replays:
        found = Bounds(jct_mean_s=None, makespan_s=None)
        if not replay.partial and ran_as_needed(replay):
            key = _bounds_key(replay)
            if key not in known:
                known[key] = bounds(replay.trace, replay.cluster, needs_of(replay), counted=finished(replay))
            found = known[key]
        recorded = isinstance(record, RecordedMetrics) and replay.load == 1 and replay.seed == 0 and not replay.partial
        summaries.append(Summary(
            policy=replay.policy, seed=replay.seed, load=replay.load, oracle=replay.oracle,
            estimates=replay.estimates, partial=replay.partial, assumptions=replay.assumptions,
            metrics=measure(replay), bounds=found, prices=prices,
            cost=None if prices is None else float(cost_of_jobs(replay, prices).sum()),
            saved=beside_record(replay, prices) if recorded else None,
        ))
    return tuple(_beside_first(summaries))


def _beside_first(summaries: Sequence[Summary]) -> Iterator[Summary]:
    """Compare replays that have no record with the first policy's replay of the same load and seed."""
    first: dict[tuple[float, int], Summary] = {}
    for summary in summaries:
        reference = first.setdefault((summary.load, summary.seed), summary)
        alone = summary.saved is not None or reference is summary or reference.saved is not None
        yield summary if alone else dataclasses.replace(summary, saved=_beside(reference, summary))


def _beside(first: Summary, other: Summary) -> Comparison | None:
    """Return totals of two replays that both finished every job."""
    before, after = first.metrics, other.metrics
    if any(m.finished < m.jobs or m.wait_mean_s is None or m.jct_mean_s is None for m in (before, after)):
        return None
    jobs = before.jobs
    return Comparison(
        reference=first.policy, jobs=jobs,
        before_jct_s=jobs * (before.jct_mean_s or 0.0), after_jct_s=jobs * (after.jct_mean_s or 0.0),
        before_wait_s=jobs * (before.wait_mean_s or 0.0), after_wait_s=jobs * (after.wait_mean_s or 0.0),
        before_gpu_s=before.held_gpu_s, after_gpu_s=after.held_gpu_s, before_cost=first.cost, after_cost=other.cost,
    )


def _bounds_key(replay: Replay) -> bytes:
    """Return a digest of everything that the bounds depend on: replays of one trace may hold copies of it."""
    trace, needs = replay.trace, needs_of(replay)
    digest = hashlib.blake2b(str(replay.cluster).encode(), digest_size=16)
    for column in (
        trace.submit_ms, needs.run_ms, needs.gpu_ms, needs.gpus_min, needs.gpus_max, trace.after, trace.after_ms,
    ):
        digest.update(np.ascontiguousarray(column).tobytes())
    digest.update(finished(replay).tobytes())
    return digest.digest()


def short_names(policies: Iterable[str]) -> dict[str, str]:
    """Return the names of policies in a report: a file by its last part, if that is unique."""
    known = list(dict.fromkeys(policies))
    short = {policy: re.split(r"[/\\]", policy)[-1] if ".py" in policy else policy for policy in known}
    return short if len(set(short.values())) == len(known) else {policy: policy for policy in known}


def renamed(summaries: Iterable[Summary], names: Mapping[str, str]) -> list[Summary]:
    """Return the same summaries with other names of policies."""
    return [
        dataclasses.replace(
            s, policy=names[s.policy],
            saved=s.saved and dataclasses.replace(s.saved, reference=names.get(s.saved.reference, s.saved.reference)),
        )
        for s in summaries
    ]


def ran_as_needed(replay: Replay) -> bool:
    """Return whether every finished job held GPUs for at least its least run time; otherwise the bounds do not hold.

    A job that ran on faster GPUs than recorded may end sooner.
    """
    done = finished(replay)
    rounding_ms = 1
    return not len(replay.runs.job) or bool(
        (held_ms(replay)[done] + rounding_ms >= replay.ideal_run_ms[done]).all()
    )


def result_rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return one flat dictionary per replay with the keys of the JSON results; for CSV, join the assumptions."""
    return [_result_row(summary) for summary in summaries]


def results_json(
    replay: Replay, summaries: Sequence[Summary], record: RecordedMetrics | NoRecord | None = None
) -> dict[str, Any]:
    """Return the result JSON of ``brim sim run`` and ``brim sim compare``: no NaN, no infinity, undefined is null.

    ``results`` has one entry per replay. ``recorded`` has the figures of the record under the same keys, over
    ``covered`` of the trace's ``jobs``, or is null with the reason in ``recorded_left_out``. In ``results``,
    ``saved_gpu_s`` and ``saved_wait_s`` say how much less GPU time the same jobs held, and how much less they waited
    (summed over jobs), than in ``saved_against``: the record, or else the first policy. They are negative where a
    policy needs more. ``cost`` is what the jobs cost: the price of a GPU-hour in each job's tier times what it held,
    and that of its energy where it has a price. ``saved_cost`` is how much less that is; beside the record, without
    energy.

    Args:
        replay: Any of the replays, for trace and cluster.
        summaries: Summaries of all replays.
        record: What the trace recorded.
    """
    trace = replay.trace
    return {
        "schema": SCHEMA,
        "trace": {
            "name": trace.name, "format": trace.format, "synthetic": trace.synthetic, "jobs": len(trace),
            "span_s": trace.span_ms / MS_PER_S, "gpu_h": float(replay.asked_gpu_ms.sum()) / MS_PER_S / 3600,
        },
        "cluster": str(replay.cluster),
        "recorded": (
            {key: getattr(record, key) for key in _RECORD_KEYS} if isinstance(record, RecordedMetrics) else None
        ),
        "recorded_left_out": record.reason if isinstance(record, NoRecord) else None,
        "results": result_rows(summaries),
    }


def interval(values: Sequence[float]) -> Interval:
    """Return the mean and Student-t 95 % interval of independent values (one per seed)."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Interval(mean=mean, half_width=None)
    from scipy.special import stdtrit  # noqa: PLC0415 - a seventh of a second that one seed does not need

    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return Interval(mean=mean, half_width=quantile * math.sqrt(variance / count))


def paired_jct(first: Sequence[Summary], other: Sequence[Summary]) -> Interval | None:
    """Return the mean JCT of ``other`` minus ``first`` in seconds over their common seeds; None below two."""
    base = {s.seed: s.metrics.jct_mean_s for s in first}
    pairs = [(s.metrics.jct_mean_s, base[s.seed]) for s in other if s.seed in base]
    differences = [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
    return interval(differences) if len(differences) > 1 else None


def by_policy(summaries: Sequence[Summary]) -> dict[tuple[float, str], list[Summary]]:
    """Group summaries by (load, policy), both in order of appearance, seeds together."""
    grouped: dict[tuple[float, str], list[Summary]] = {}
    for load in dict.fromkeys(summary.load for summary in summaries):
        for summary in summaries:
            if summary.load == load:
                grouped.setdefault((load, summary.policy), []).append(summary)
    return grouped


def all_assumptions(summaries: Sequence[Summary]) -> list[str]:
    """Return every assumption once; one that only some policies make begins with their names."""
    policies = list(dict.fromkeys(summary.policy for summary in summaries))
    makers: dict[str, dict[str, None]] = {}
    for summary in summaries:
        for text in summary.assumptions:
            makers.setdefault(text, {})[summary.policy] = None
    lines = [text if len(who) == len(policies) else f"{', '.join(who)}: {text}" for text, who in makers.items()]
    return [*lines, *_about_cost(summaries[0])]


def _about_cost(summary: Summary) -> list[str]:
    prices, known = summary.prices, summary.metrics.energy_kwh is not None
    cost = NO_PRICE if prices is None else (
        f"Cost is the GPU time that jobs hold, at {prices.words}. Idle GPUs are not charged; where they are paid for "
        "anyway, the saving is capacity, not money."
    )
    if prices is not None and prices.kwh:
        cost += f" It includes the energy of jobs, at {prices.kwh:g} per kWh." if known else " Energy is not in it."
    if known and prices is not None and prices.co2_g_per_kwh:
        cost += f" CO2 is that of all nodes, at {prices.co2_g_per_kwh:g} g per kWh."
    return [cost] if known else [f"{cost} {NO_POWER}"]


def _result_row(summary: Summary) -> dict[str, Any]:
    figures = dataclasses.asdict(summary.metrics) | {
        "jct_bound_s": summary.bounds.jct_mean_s, "makespan_bound_s": summary.bounds.makespan_s,
        "cost": summary.cost, "saved_cost": summary.saved_cost, "co2_kg": summary.co2_kg,
        "saved_against": summary.saved.reference if summary.saved else None,
        "saved_gpu_s": summary.saved.saved_gpu_s if summary.saved else None,
        "saved_wait_s": summary.saved.saved_wait_s if summary.saved else None,
    }
    return {
        "policy": summary.policy, "seed": summary.seed, "load": float(summary.load),
        **{key: figures[key] for key in _RESULT_KEYS},
        "oracle": summary.oracle, "estimates": summary.estimates, "partial": summary.partial,
        "assumptions": [*summary.assumptions, *_about_cost(summary)],
    }


def _over(value: float | None, bound: float | None) -> float | None:
    return value / bound if value is not None and bound else None
