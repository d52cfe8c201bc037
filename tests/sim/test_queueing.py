"""Waiting times that queueing theory knows exactly, met by the twin within a confidence interval from batch means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from brim.core.replay import Replay
from brim.core.trace import trace_of

from .exact import run

JOBS, BATCHES, WARM_UP = 120_000, 30, 6_000
MEAN_MS = 100_000


def stream(rho: float, servers: int, seed: int, *, fixed: bool = False) -> dict[str, object]:
    """Poisson arrivals; exponential or fixed run times of ``MEAN_MS``."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(MEAN_MS / rho / servers, JOBS)
    runs = np.full(JOBS, MEAN_MS) if fixed else np.maximum(1, np.rint(rng.exponential(MEAN_MS, JOBS)))
    return {
        "name": "stream", "format": "test", "job_id": [f"{row}" for row in range(JOBS)],
        "submit_ms": np.cumsum(gaps).astype(np.int64), "gpus": np.ones(JOBS, dtype=np.int64),
        "run_ms": runs.astype(np.int64),
    }


def waits_ms(outcome: Replay) -> np.ndarray:
    return (outcome.first_start_ms - outcome.trace.submit_ms)[WARM_UP:]


def interval(values: np.ndarray, confidence: float = 0.999) -> tuple[float, float]:
    """Mean and half-width from batch means: waits of neighbours are dependent, those of batches hardly."""
    batches = np.array([batch.mean() for batch in np.array_split(values, BATCHES)])
    half = student.ppf((1 + confidence) / 2, BATCHES - 1) * batches.std(ddof=1) / math.sqrt(BATCHES)
    return float(batches.mean()), float(half)


def erlang_c(servers: int, offered: float) -> float:
    """Probability of waiting in M/M/k."""
    last = offered**servers / math.factorial(servers) / (1 - offered / servers)
    return last / (sum(offered**n / math.factorial(n) for n in range(servers)) + last)


def assert_within(outcome: Replay, theory_ms: float) -> None:
    mean, half = interval(waits_ms(outcome))
    assert half < 0.2 * theory_ms, "the interval is too wide to prove anything"
    assert abs(mean - theory_ms) < half


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_mm1(rho):
    """W = rho / (mu - lambda)."""
    assert_within(run(trace_of(**stream(rho, 1, seed=11)), "1x1xT4"), rho / (1 - rho) * MEAN_MS)


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_md1(rho):
    """W = rho / (2 mu (1 - rho)), half of M/M/1 (Pollaczek-Khinchine)."""
    assert_within(run(trace_of(**stream(rho, 1, seed=12, fixed=True)), "1x1xT4"), rho / (1 - rho) / 2 * MEAN_MS)


@pytest.mark.parametrize(("cluster", "servers"), [("1x4xT4", 4), ("8x1xT4", 8)])
def test_mmk(cluster, servers):
    """W = C(k, a) / (k mu - lambda), with Erlang's C."""
    rho = 0.8
    theory_ms = erlang_c(servers, rho * servers) * MEAN_MS / servers / (1 - rho)
    assert_within(run(trace_of(**stream(rho, servers, seed=13)), cluster), theory_ms)


def test_mm1_with_preemption_has_the_time_in_system_of_srpt():
    """Schrage and Miller 1966: E[T] of M/M/1-SRPT at load 0.6 by numerical integration of their formula."""
    rho, jobs = 0.6, 12_000
    x = np.linspace(1e-6, 40, 400_001)
    density, tail = np.exp(-x), np.exp(-x)
    lam = rho
    load = lam * _integral(x * density, x)
    second = lam * _integral(x * x * density, x) + lam * x * x * tail
    residence = _integral(1 / (1 - load), x)
    theory = np.trapezoid((second / 2 / (1 - load) ** 2 + residence) * density, x) * MEAN_MS
    rng = np.random.default_rng(15)
    trace = trace_of(
        name="srpt", format="test", job_id=[str(row) for row in range(jobs)], gpus=np.ones(jobs, dtype=np.int64),
        submit_ms=np.cumsum(rng.exponential(MEAN_MS / rho, jobs)).astype(np.int64),
        run_ms=np.maximum(1, np.rint(rng.exponential(MEAN_MS, jobs))).astype(np.int64),
    )
    outcome = run(trace, "1x1xT4", "srtf-oracle")
    mean, half = interval((outcome.finish_ms - trace.submit_ms)[1_000:].astype(float))
    assert half < 0.2 * theory
    assert abs(mean - theory) < half


def _integral(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Running trapezoid from the first point."""
    steps = (values[1:] + values[:-1]) / 2 * np.diff(x)
    return np.concatenate(([0.0], np.cumsum(steps)))


@pytest.mark.parametrize("policy", ["fifo", "backfill", "srtf-oracle", "las", "fair"])
def test_littles_law(policy):
    """Mean number in the system x time = sum of the times in the system, counted from the events."""
    trace = trace_of(**{name: column[:800] if name in ("job_id", "submit_ms", "gpus", "run_ms") else column
                        for name, column in stream(0.9, 4, seed=16).items()})
    outcome = run(trace, "1x4xT4", policy)
    changes = np.concatenate((np.stack((trace.submit_ms, np.ones(800, dtype=np.int64))),
                              np.stack((outcome.finish_ms, -np.ones(800, dtype=np.int64)))), axis=1)
    changes = changes[:, np.argsort(changes[0], kind="stable")]
    area = (np.cumsum(changes[1])[:-1] * np.diff(changes[0])).sum()
    assert area == (outcome.finish_ms - trace.submit_ms).sum()
    busy = np.zeros(outcome.end_ms // 1000 + 2)
    runs = outcome.runs
    np.add.at(busy, runs.start_ms // 1000, 1)
    np.add.at(busy, runs.end_ms // 1000, -1)
    assert np.cumsum(busy).max() <= 4
    assert (runs.end_ms - runs.start_ms).sum() == trace.run_ms.sum()
