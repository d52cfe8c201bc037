"""Lower bounds that no schedule of these jobs on this many GPUs can beat.

Job j is released at r_j and ends at C_j. It needs at least p_j of running time and g_j of GPU time, and holds at most
s_j GPUs (times share) at once; the cluster has m GPUs. A rigid job holds s_j for p_j, whenever it runs: g_j = s_j p_j.
An elastic one may change its GPUs and batch at any time; p_j is the time of its work if every piece runs at its fastest
size, g_j the GPU time if every piece runs at its most frugal one (``sim.truths.truth.Truth``). Preemption is free and
placement does not matter, which only lowers the optimum. Then

    w_j = g_j / m                                      its work, in time of the whole cluster
    q_j = g_j / s_j <= p_j                             time its work takes on all GPUs it may hold
    C_j >= r_j + p_j                                   (run)   it needs its own run time

Count a piece of an elastic job's work as the GPU time it needs at least; then at each instant it is worked on at a
speed of at most the GPUs the job holds, which are at most s_j, and g_j is all its work.

**A, fast machine.** Replace the cluster by one machine of speed m which may split its speed at will. Every schedule of
the cluster is one of it (job j at a speed of at most its GPUs, in sum <= m), with the same C_j. On one preemptive
machine the shortest remaining processing time first (SRPT) minimises the sum of C_j (Schrage 1968). So
sum C_j >= sum C_j(SRPT on w).

**B, mean busy time.** Let M_j be the mean of the instants at which j is worked on, each weighed by its speed. In a
schedule of the cluster that speed is at most s_j, and all of it lies before C_j; the latest such instants are
[C_j - q_j, C_j], so M_j <= C_j - q_j / 2, or C_j >= M_j + q_j / 2. Any convex combination with (run) holds too: for
every l_j in [0, 1]

    sum C_j >= sum l_j M_j + sum l_j q_j / 2 + (1 - l_j)(r_j + p_j).

Over the fast machine, sum l_j M_j is a linear function of the schedule and is least where at each instant the released,
unfinished job with the largest l_j / w_j runs (Goemans et al. 2002, after Goemans 1997: the preemptive LP schedule).
Every choice of l gives a valid bound; l = 1 is the bound of Eastman, Even and Isaacs (1964) with release dates, l = 0
is (run). The right-hand side, minimised over schedules, is concave in l, with supergradient
M_j + q_j / 2 - r_j - p_j, so moving l_j towards 1 where that is positive and towards 0 elsewhere, by ever smaller
steps, makes it larger.

**C.** A and (run) on two disjoint sets of jobs: leaving jobs out of A is a relaxation, so for every set S
sum C_j >= sum over S of C_j(SRPT on S) + sum over the rest of r_j + p_j. S drops the jobs for which (run) is stronger.

The bound on the sum is the largest of A, B, C. With one GPU, A is the optimum.

**Makespan.** With everything released at or after t: t + work / m, t + the runs of the gangs of never less than more
than half the cluster (no two overlap), and r_j + p_j.

``after``: r_j is also at least the earliest end of the job it waits for plus the delay, where that job is counted.

The bounds do not cover GPUs whose co-located jobs together do more than one GPU's work.

Source:
    Schrage, Oper. Res. 16 (1968); Eastman, Even, Isaacs, Management Science 11 (1964); Goemans, Queyranne, Schulz,
    Skutella, Wang, SIAM J. Discrete Math. 15 (2002), section 2. Differs from B's sources: weights l_j chosen per job.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.compiled import njit
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import Cluster
from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.units import MS_PER_S, WHOLE_GPU

_ASCENT_JOBS: Final = 20_000_000
"""Jobs scheduled over all steps of the ascent: about two seconds on one core for any trace."""
_ASCENT_STEPS: Final = (8, 60)
"""Fewest and most steps; on drawn traces, sixty steps give under 1 % more than twenty."""
_DROP_STEPS: Final = 4
_CHAIN_PASSES: Final = 50
"""Passes over ``after``; one resolves every chain in row order, and with too few the bound stays valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower bounds, seconds; None where no job was counted.

    Attributes:
        jct_mean_s: No schedule has a smaller mean JCT.
        makespan_s: No schedule ends all jobs sooner after time 0.
    """

    jct_mean_s: float | None
    makespan_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What each job needs at least under any policy, shape (J,).

    Attributes:
        run_ms: Running time; a value below 0 means unknown and counts as 0.
        gpu_ms: GPU time, shares counted as shares.
        gpus_min: Fewest GPUs it holds while it runs, times share.
        gpus_max: Most GPUs it holds, times share.
    """

    run_ms: IntArray
    gpu_ms: FloatArray
    gpus_min: FloatArray
    gpus_max: FloatArray


def as_recorded(trace: Trace) -> Needs:
    """Return the needs of rigid jobs with the run times of the trace."""
    gpus = (trace.gpus * trace.share_milli) / WHOLE_GPU
    return Needs(run_ms=trace.run_ms, gpu_ms=np.maximum(trace.run_ms, 0) * gpus, gpus_min=gpus, gpus_max=gpus)


def needs_of(replay: Replay) -> Needs:
    """Return the needs of the jobs of a replay."""
    share = replay.trace.share_milli / WHOLE_GPU
    gpus_min, gpus_max = replay.gpus_min * share, replay.gpus_max * share
    rigid = gpus_min == gpus_max  # not rounded down to whole GPU milliseconds
    gpu_ms = np.where(rigid, np.maximum(replay.ideal_run_ms, 0) * gpus_max, replay.ideal_gpu_ms)
    return Needs(run_ms=replay.ideal_run_ms, gpu_ms=gpu_ms, gpus_min=gpus_min, gpus_max=gpus_max)


def bounds(
    trace: Trace, cluster: Cluster, needs: Needs | None = None, *, counted: BoolArray | None = None
) -> Bounds:
    """Return lower bounds over the counted jobs; a job without a recorded run time counts as one of 0 s.

    O(n log n) per step. Leaving jobs out is a relaxation, so the bounds of the finished jobs of a replay also hold
    where other jobs ran beside them.

    Args:
        trace: J jobs.
        cluster: GPUs of all types count.
        needs: What the jobs need; by default, as recorded.
        counted: Jobs that the mean covers, shape (J,); all by default.

    Returns:
        Bounds in seconds.
    """
    kept = np.ones(len(trace), dtype=np.bool_) if counted is None else counted
    if not kept.any():
        return Bounds(jct_mean_s=None, makespan_s=None)
    needs = needs or as_recorded(trace)
    run_ms = np.where(kept, np.maximum(needs.run_ms, 0), 0)
    release_ms = _earliest_ms(trace.submit_ms, run_ms, trace.after, np.maximum(trace.after_ms, 0))
    order = np.flatnonzero(kept)[np.argsort(release_ms[kept], kind="stable")]
    release = release_ms[order].astype(np.float64)
    run = run_ms[order].astype(np.float64)
    gpu_time, most = needs.gpu_ms[order], needs.gpus_max[order]
    total = sum_of_completions(release, run, most, cluster.num_gpus, gpu_time)
    jct_ms = (total - float(trace.submit_ms[order].sum())) / len(order)
    return Bounds(
        jct_mean_s=max(math.floor(jct_ms * 1000), 0) / 1000 / MS_PER_S,  # whole microseconds: the rest is float noise
        makespan_s=last_completion(release, run, needs.gpus_min[order], cluster.num_gpus, gpu_time) / MS_PER_S,
    )


def sum_of_completions(
    release: FloatArray, run: FloatArray, gpus: FloatArray, num_gpus: int, gpu_time: FloatArray | None = None
) -> float:
    """Return a lower bound on the sum of completion times; the module's docstring has the proof.

    Args:
        release: Sorted release times, shape (n,), any unit.
        run: Time each job must run, same unit.
        gpus: Most GPUs it holds while it runs.
        num_gpus: GPUs of the cluster.
        gpu_time: GPU time each job must have; for rigid jobs, by default, ``run`` times ``gpus``.

    Returns:
        A sum that no schedule can beat, same unit.
    """
    alone = release + run
    work = (run * gpus if gpu_time is None else gpu_time) / num_gpus
    whole = run if gpu_time is None else np.minimum(gpu_time / gpus, run)
    busy = work > 0  # in the relaxation the others end at release + run and delay no other job
    rest = float(alone[~busy].sum())
    release, whole, work, alone = release[busy], whole[busy], work[busy], alone[busy]
    if not len(work):
        return rest
    return rest + max(_fast_machine(release, work, alone), _mean_busy(release, whole, work, alone))


def last_completion(
    release: FloatArray, run: FloatArray, gpus: FloatArray, num_gpus: int, gpu_time: FloatArray | None = None
) -> float:
    """Return a lower bound on the last completion. As ``sum_of_completions``, but ``gpus`` is the fewest held."""
    work = (run * gpus if gpu_time is None else gpu_time) / num_gpus
    work_after = np.cumsum(work[::-1])[::-1]
    wide_after = np.cumsum(np.where(2 * gpus > num_gpus, run, 0.0)[::-1])[::-1]
    return float(np.max(release + np.maximum(np.maximum(work_after, wide_after), run)))


def _fast_machine(release: FloatArray, work: FloatArray, alone: FloatArray) -> float:
    """Return bounds A and C: SRPT on the jobs for which it is stronger than their own run time."""
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


def _mean_busy(release: FloatArray, whole: FloatArray, work: FloatArray, alone: FloatArray) -> float:
    """Return bound B: from l = 1 (all mean busy time), step by 1/2, 1/3, ... along the sign of the supergradient."""
    steps = int(np.clip(_ASCENT_JOBS // len(work), *_ASCENT_STEPS))
    weight = np.ones(len(work))
    best = -np.inf
    for step in range(steps):
        with np.errstate(divide="ignore"):
            priority = work / weight
        middle = _busy_means(release, work, priority)
        bound = weight * (middle + whole / 2) + (1 - weight) * alone
        best = max(best, float(bound.sum()))
        weight += ((middle + whole / 2 - alone > 0) - weight) / (2 + step)
    return best


@njit
def _earliest_ms(submit_ms: IntArray, run_ms: IntArray, after: IntArray, after_ms: IntArray) -> IntArray:
    """Return the earliest start of each job, if the job it waits for ends as early as it can."""
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
    """Return completion times under preemptive SRPT on one machine of speed 1; ``release`` is sorted."""
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
    """Return mean busy times if the released job of least ``priority`` runs at each instant; ``release`` is sorted."""
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
