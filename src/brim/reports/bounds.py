"""Lower bounds: what no schedule of these jobs on this many GPUs can beat.

The jobs are rigid: job j is released at r_j, holds s_j GPUs (gang x share) for p_j in all, whenever it runs, and ends
at C_j; the cluster has m GPUs. Preemption is free and placement does not matter, which only lowers the optimum. Then

    w_j = s_j p_j / m                                  its work, in time of the whole cluster
    C_j >= r_j + p_j                                   (run)   it needs its own run time

**A, fast machine.** Replace the cluster by one machine of speed m which may split its speed at will. Every schedule of
the cluster is one of it (job j at speed s_j, sum of s_j <= m), with the same C_j. On one preemptive machine the
shortest remaining processing time first (SRPT) minimises the sum of C_j (Schrage 1968). So
sum C_j >= sum C_j(SRPT on w).

**B, mean busy time.** Let M_j be the mean of the instants at which j runs, each weighed by its speed. In a schedule of
the cluster j runs at one speed for p_j in all, and all of it before C_j; the latest such instants are [C_j - p_j, C_j],
so M_j <= C_j - p_j / 2, or C_j >= M_j + p_j / 2. Any convex combination with (run) holds too: for every l_j in [0, 1]

    sum C_j >= sum l_j M_j + sum l_j p_j / 2 + (1 - l_j)(r_j + p_j).

Over the fast machine, sum l_j M_j is a linear function of the schedule and is least where at each instant the released,
unfinished job with the largest l_j / w_j runs (Goemans et al. 2002, after Goemans 1997: the preemptive LP schedule).
Every choice of l gives a valid bound; l = 1 is the bound of Eastman, Even and Isaacs (1964) with release dates, l = 0
is (run). The right-hand side, minimised over schedules, is concave in l, with supergradient M_j - r_j - p_j / 2, so
moving l_j towards 1 where that is positive and towards 0 elsewhere, by ever smaller steps, makes it larger.

**C.** A and (run) on two disjoint sets of jobs: leaving jobs out of A is a relaxation, so for every set S
sum C_j >= sum over S of C_j(SRPT on S) + sum over the rest of r_j + p_j. S drops the jobs for which (run) is stronger.

The bound on the sum is the largest of A, B, C. With one GPU, A is the optimum.

**Makespan.** With everything released at or after t: t + work / m, t + the runs of the gangs of more than half the
cluster (no two overlap), and r_j + p_j.

``after``: r_j is also at least the earliest end of the job it waits for plus the delay, where that job is counted.

What the bounds do not cover: jobs that resize, or GPUs whose co-located jobs together do more than one GPU's work.

Source:
    Schrage, Oper. Res. 16 (1968); Eastman, Even, Isaacs, Management Science 11 (1964); Goemans, Queyranne, Schulz,
    Skutella, Wang, SIAM J. Discrete Math. 15 (2002), section 2. Differs from B's sources: weights l_j chosen per job.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from brim.compiled import njit
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import Cluster
from brim.core.trace import Trace
from brim.units import MS_PER_S, WHOLE_GPU

_F = TypeVar("_F", bound=Callable[..., Any])
_ASCENT_JOBS: Final = 20_000_000
"""Jobs scheduled over all steps of the ascent: about two seconds on one core, whatever the trace."""
_ASCENT_STEPS: Final = (8, 60)
"""Fewest and most steps; on drawn traces the sixtieth still adds under 1 % to the twentieth."""
_DROP_STEPS: Final = 4
_CHAIN_PASSES: Final = 50
"""Passes over ``after``; one resolves every chain in row order, and fewer than needed stays valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower bounds, seconds; None where no job was counted.

    Attributes:
        jct_mean_s: No schedule has a smaller mean JCT.
        makespan_s: No schedule ends everything sooner after time 0.
    """

    jct_mean_s: float | None
    makespan_s: float | None


def bounds(trace: Trace, cluster: Cluster, *, counted: BoolArray | None = None) -> Bounds:
    """Lower bounds over the counted jobs; a job without recorded run time counts with none.

    O(n log n) per step. Leaving jobs out is a relaxation, so the bounds of the finished jobs of a replay also hold
    where other jobs ran beside them.

    Args:
        trace: J jobs.
        cluster: All GPUs count, of whatever type.
        counted: Jobs the mean is over, shape (J,); all by default.

    Returns:
        Bounds in seconds.
    """
    kept = np.ones(len(trace), dtype=np.bool_) if counted is None else counted
    if not kept.any():
        return Bounds(jct_mean_s=None, makespan_s=None)
    run_ms = np.where(kept, np.maximum(trace.run_ms, 0), 0)
    release_ms = _earliest_ms(trace.submit_ms, run_ms, trace.after, np.maximum(trace.after_ms, 0))
    order = np.flatnonzero(kept)[np.argsort(release_ms[kept], kind="stable")]
    release = release_ms[order].astype(np.float64)
    run = run_ms[order].astype(np.float64)
    gpus = (trace.gpus[order] * trace.share_milli[order]) / WHOLE_GPU
    total = sum_of_completions(release, run, gpus, cluster.num_gpus)
    jct_ms = (total - float(trace.submit_ms[order].sum())) / len(order)
    return Bounds(
        jct_mean_s=max(math.floor(jct_ms * 1000), 0) / 1000 / MS_PER_S,  # whole microseconds: below is float noise
        makespan_s=last_completion(release, run, gpus, cluster.num_gpus) / MS_PER_S,
    )


def sum_of_completions(release: FloatArray, run: FloatArray, gpus: FloatArray, num_gpus: int) -> float:
    """Lower bound on the sum of completion times; the module's docstring has the proof.

    Args:
        release: Sorted release times, shape (n,), any unit.
        run: Time each job must run, same unit.
        gpus: GPUs it holds while it runs.
        num_gpus: GPUs of the cluster.

    Returns:
        A sum no schedule is below, same unit.
    """
    alone = release + run
    work = run * gpus / num_gpus
    busy = work > 0  # the others end at release + run in the relaxation, and get in nobody's way
    rest = float(alone[~busy].sum())
    release, run, work, alone = release[busy], run[busy], work[busy], alone[busy]
    if not len(work):
        return rest
    return rest + max(_fast_machine(release, work, alone), _mean_busy(release, run, work))


def last_completion(release: FloatArray, run: FloatArray, gpus: FloatArray, num_gpus: int) -> float:
    """Lower bound on the last completion; arguments as ``sum_of_completions``."""
    work_after = np.cumsum((run * gpus / num_gpus)[::-1])[::-1]
    wide_after = np.cumsum(np.where(2 * gpus > num_gpus, run, 0.0)[::-1])[::-1]
    return float(np.max(release + np.maximum(np.maximum(work_after, wide_after), run)))


def _fast_machine(release: FloatArray, work: FloatArray, alone: FloatArray) -> float:
    """Bounds A and C: SRPT on the jobs it says more about than their own run time does."""
    on_machine = np.ones(len(work), dtype=np.bool_)
    best = float(alone.sum())
    for _ in range(_DROP_STEPS):
        ends = _srpt_ends(release[on_machine], work[on_machine])
        best = max(best, float(ends.sum()) + float(alone[~on_machine].sum()))
        stay = ends >= alone[on_machine]
        if stay.all():
            break
        on_machine[on_machine] = stay
    return best


def _mean_busy(release: FloatArray, run: FloatArray, work: FloatArray) -> float:
    """Bound B, from l = 1 (all mean busy time) by steps of 1/2, 1/3, ... towards the sign of the supergradient."""
    steps = int(np.clip(_ASCENT_JOBS // len(work), *_ASCENT_STEPS))
    weight = np.ones(len(work))
    best = -np.inf
    for step in range(steps):
        with np.errstate(divide="ignore"):
            priority = work / weight
        middle = _busy_means(release, work, priority)
        bound = weight * (middle + run / 2) + (1 - weight) * (release + run)
        best = max(best, float(bound.sum()))
        weight += ((middle - release - run / 2 > 0) - weight) / (2 + step)
    return best


@njit
def _earliest_ms(submit_ms: IntArray, run_ms: IntArray, after: IntArray, after_ms: IntArray) -> IntArray:
    """Earliest instant at which each job may start, the job it waits for taken at its own earliest end."""
    earliest = submit_ms.copy()
    for _ in range(_CHAIN_PASSES):
        changed = False
        for row in range(len(submit_ms)):
            if after[row] >= 0:
                ready = earliest[after[row]] + run_ms[after[row]] + after_ms[row]
                if ready > earliest[row]:
                    earliest[row] = ready
                    changed = True
        if not changed:
            break
    return earliest


@njit
def _srpt_ends(release: FloatArray, work: FloatArray) -> FloatArray:
    """Completion times under preemptive SRPT on one machine of speed 1; ``release`` sorted."""
    ends = np.empty(len(work))
    heap = [(0.0, 0) for _ in range(0)]
    now, row = 0.0, 0
    while row < len(work) or len(heap) > 0:
        if len(heap) == 0:
            now = max(now, release[row])
        while row < len(work) and release[row] <= now:
            heapq.heappush(heap, (work[row], row))
            row += 1
        left, job = heapq.heappop(heap)
        if row < len(work) and now + left > release[row]:
            heapq.heappush(heap, (left - (release[row] - now), job))
            now = release[row]
        else:
            now += left
            ends[job] = now
    return ends


@njit
def _busy_means(release: FloatArray, work: FloatArray, priority: FloatArray) -> FloatArray:
    """Mean busy times where the released job of least ``priority`` runs at each instant; ``release`` sorted."""
    left = work.copy()
    moment = np.zeros(len(work))
    heap = [(0.0, 0) for _ in range(0)]
    now, row = 0.0, 0
    while row < len(work) or len(heap) > 0:
        if len(heap) == 0:
            now = max(now, release[row])
        while row < len(work) and release[row] <= now:
            heapq.heappush(heap, (priority[row], row))
            row += 1
        job = heap[0][1]
        if row < len(work) and now + left[job] > release[row]:
            piece = release[row] - now
            left[job] -= piece
            after_piece = release[row]
        else:
            piece = left[job]
            heapq.heappop(heap)
            after_piece = now + piece
        moment[job] += piece * (now + after_piece) / 2
        now = after_piece
    return moment / work
