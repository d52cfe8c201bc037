"""Time the exact sizing of all jobs of a round beside the recurrence as a plain NumPy loop, on several kinds of values.

Prints median milliseconds, the speed-up over the loop of the same run, and whether the totals agree. The loop is
timed once per line; it keeps its choices, because an answer needs them.

    python benchmarks/best_sizes.py [--repeats N] [--large]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from brim.policies.size.knapsack import best_sizes

INSTANCES = ((20, 40, 8), (100, 400, 32), (400, 400, 32), (1_000, 2_000, 64))
LARGE = ((5_000, 10_000, 64),)
"""Jobs, GPUs, largest size."""


def power_law(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    return rng.uniform(0.5, 2, (jobs, 1)) * sizes ** rng.uniform(0.3, 0.98, (jobs, 1))


def amdahl(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    serial = rng.uniform(0.001, 0.3, (jobs, 1))
    return 1 / (serial + (1 - serial) / np.maximum(sizes, 0.5))


def powers_of_two(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    value = power_law(rng, jobs, sizes)
    value[:, (sizes & (sizes - 1)) != 0] = -np.inf
    return value


def dips(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    """Crossing nodes of eight GPUs costs up to a third, and some sizes run badly."""
    value = power_law(rng, jobs, sizes) * np.where(sizes > 8, rng.uniform(0.66, 1, (jobs, 1)), 1)
    return value * np.where(rng.random(value.shape) < 0.2, 0.8, 1)


def minimum_sizes(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    value = dips(rng, jobs, sizes)
    value[sizes < rng.choice([1, 1, 1, 2, 3], (jobs, 1))] = -np.inf
    return value


def uniform(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    return rng.random((jobs, len(sizes)))


def alike(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    """Eight kinds of jobs with sizes in powers of two, which give many ties."""
    return powers_of_two(rng, 8, sizes)[rng.integers(8, size=jobs)]


def odd_sizes(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    """Perfect speed-up in odd sizes only, and one GPU too many, which ties nearly everything."""
    value = np.where(sizes % 2, sizes * 1.0, -np.inf) + np.zeros((jobs, 1))
    value[0, ::2] = np.where(sizes[::2] > 0, 0.5, -np.inf)
    value[0, 1::2] = -np.inf
    return value


def convex(rng: np.random.Generator, jobs: int, sizes: np.ndarray) -> np.ndarray:
    """Equal jobs with growing value per GPU, the slowest instance found."""
    return np.tile(sizes**2.0, (jobs, 1))


FAMILIES: tuple[Callable[[np.random.Generator, int, np.ndarray], np.ndarray], ...] = (
    power_law, amdahl, powers_of_two, dips, minimum_sizes, uniform, alike, odd_sizes, convex,
)


def plain_loop(value: np.ndarray, capacity: int) -> np.ndarray:
    """The paper's recurrence, one vector operation per job and size."""
    best_before = np.zeros(capacity + 1)
    choices = []
    for row in value:
        best = np.full(capacity + 1, -np.inf)
        choice = np.zeros(capacity + 1, np.int64)
        for g in np.flatnonzero(row[: capacity + 1] > -np.inf):
            candidate = best_before[: capacity + 1 - g] + row[g]
            better = candidate > best[g:]
            best[g:][better] = candidate[better]
            choice[g:][better] = g
        best_before = best
        choices.append(choice)
    left, sizes = capacity, np.zeros(len(value), np.int64)
    for j in range(len(value) - 1, -1, -1):
        sizes[j] = choices[j][left]
        left -= sizes[j]
    return sizes


def timed(call: Callable[..., np.ndarray | None], value: np.ndarray, capacity: int) -> tuple[float, float]:
    """Return the milliseconds of one call, and the total value of its answer."""
    begin = time.perf_counter()
    sizes = call(value, capacity)
    taken = (time.perf_counter() - begin) * 1e3
    return taken, float(value[np.arange(len(value)), sizes].sum())


def main() -> None:
    """Print one line per instance and family."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--large", action="store_true", help="5,000 jobs on 10,000 GPUs too; a minute or two")
    options = parser.parse_args()
    best_sizes(uniform(np.random.default_rng(0), 5, np.arange(5)), 7)  # compile once
    for jobs, capacity, largest in INSTANCES + (LARGE if options.large else ()):
        for family in FAMILIES:
            value = family(np.random.default_rng(1), jobs, np.arange(largest + 1)).astype(np.float64)
            if family is not uniform:
                value[:, 0] = -np.inf  # every admitted job gets at least one GPU
            if np.argmax(value > -np.inf, axis=1).sum() > capacity:
                value = value[: jobs // 2]
            runs = [timed(best_sizes, value, capacity) for _ in range(options.repeats)]
            loop_ms, loop_total = timed(plain_loop, value, capacity)
            median = statistics.median(each for each, _ in runs)
            agree = abs(runs[0][1] - loop_total) <= 1e-9 * abs(loop_total)
            print(f"{len(value):5} jobs {capacity:6} GPUs, up to {largest:2}  {family.__name__:13} "
                  f"{median:9.3f} ms  {loop_ms / median:8.1f} x the loop  {'equal' if agree else 'TOTALS DIFFER'}")


if __name__ == "__main__":
    main()
