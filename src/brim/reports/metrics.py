"""The figures of one replay, each defined once, for the table, the JSON and the page.

A job has *finished* when it completed without exhausting its attempts. JCT, queueing delay, waiting
and fairness are computed over finished jobs; failed, rejected and unfinished jobs are counted and left out. Percentiles
interpolate linearly (NumPy's default). A figure that is not defined for a replay is None, never NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import UNLIMITED
from brim.core.energy import J_PER_KWH, energy_of, least_energy_j
from brim.core.replay import Replay
from brim.core.trace import NONE, JobClass, Trace
from brim.units import MS_PER_S, WHOLE_GPU

SIZE_CLASSES: Final = ("1", "2-4", "5-8", "9-16", "17-64", ">64")
"""Names of the job-size classes, in GPUs."""
_SIZE_CLASS_TOP: Final = np.array([1, 4, 8, 16, 64])


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of one replay. ``None`` where a figure is not defined.

    Attributes:
        jobs: Jobs of the trace.
        finished: Completed without exhausting their attempts.
        failed: Ended by exhausting their attempts.
        rejected: Turned away by the policy.
        rejected_fraction: Of all jobs: the drop rate.
        unfinished: Jobs in none of these states, because the replay was interrupted.
        elastic: Jobs that could run on several numbers of GPUs.
        unmeasured: Elastic jobs that ran as asked because their scaling was not known (``Replay.unmeasured``).
        jct_mean_s: Completion minus submission, waiting included, over finished jobs.
        jct_p50_s: Its median.
        jct_p99_s: Its 99th percentile.
        jct_regular_mean_s: Its mean over jobs that are no padding jobs; None where there are no padding jobs.
        queue_mean_s: Submission to first start, over finished jobs.
        queue_p50_s: Its median.
        queue_p99_s: Its 99th percentile.
        wait_mean_s: JCT minus all time with GPUs: includes waiting after preemptions and failures and for dependencies.
        wait_p50_s: Its median.
        wait_p99_s: Its 99th percentile.
        requeue_mean_s: Part of ``wait_mean_s`` after the first start: waiting after preemptions and failures.
        makespan_s: First submission to last end; None while jobs are unfinished.
        gpu_allocated_fraction: GPU time held / (all GPUs x [first submission, end]).
        gpu_busy_fraction: Useful GPU time / (all GPUs x [first submission, end]).
        cpu_busy_fraction: Cores held by jobs / all cores over the same time; None if no job asks for cores
            or the cluster states none.
        preemptions: How often the scheduler took a job's GPUs away.
        restarts: How often a job started again, resizes included.
        resizes: How often a job that held GPUs was moved to others.
        lost_gpu_s: GPU time whose work was rolled back.
        held_gpu_s: GPU time held by all jobs, including stalls, saves, restarts and lost work.
        energy_kwh: What all nodes used up to the end; None where the replay has no power curves (``core.energy``).
        energy_idle_kwh: Part of that which no job has: of idle GPUs, and of nodes that sleep or wake.
        energy_bound_kwh: What the finished jobs need at least (``core.energy.least_energy_j``).
        active_nodes: Mean number of nodes with a job; None where the replay has no power curves.
        ftf_rho_mean: Finish-time fairness, see ``finish_time_fairness``.
        ftf_rho_p95: Its 95th percentile.
        ftf_rho_max: Its maximum.
        rounds: Scheduling rounds.
        round_p99_ms: 99th percentile of a round's wall time; None where rounds were not timed.
        rounds_per_s: Rounds per second of wall time.
        wall_s: Wall time of the replay.
    """

    jobs: int
    finished: int
    failed: int
    rejected: int
    rejected_fraction: float | None
    unfinished: int
    elastic: int
    unmeasured: int
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p99_s: float | None
    jct_regular_mean_s: float | None
    queue_mean_s: float | None
    queue_p50_s: float | None
    queue_p99_s: float | None
    wait_mean_s: float | None
    wait_p50_s: float | None
    wait_p99_s: float | None
    requeue_mean_s: float | None
    makespan_s: float | None
    gpu_allocated_fraction: float | None
    gpu_busy_fraction: float | None
    cpu_busy_fraction: float | None
    preemptions: int
    restarts: int
    resizes: int
    lost_gpu_s: float
    held_gpu_s: float
    energy_kwh: float | None
    energy_idle_kwh: float | None
    energy_bound_kwh: float | None
    active_nodes: float | None
    ftf_rho_mean: float | None
    ftf_rho_p95: float | None
    ftf_rho_max: float | None
    rounds: int
    round_p99_ms: float | None
    rounds_per_s: float | None
    wall_s: float


def measure(replay: Replay) -> Metrics:
    """Reduce a replay to its figures.

    Args:
        replay: Complete or partial; J jobs.

    Returns:
        Metrics over the finished jobs, seconds and fractions.
    """
    done = finished(replay)
    jct_s = jct_ms(replay)[done] / MS_PER_S
    padding = replay.trace.job_class[done] == JobClass.PADDING
    queue_s = queue_ms(replay)[done] / MS_PER_S
    ran = len(replay.runs.job) > 0
    wait_s = wait_ms(replay)[done] / MS_PER_S
    rho = finish_time_fairness(replay)
    failed, rejected, num_done = (int(column.sum()) for column in (replay.failed, replay.rejected, done))
    unfinished = len(replay.trace) - num_done - failed - rejected
    capacity_ms = replay.cluster.num_gpus * replay.end_ms
    energy, least_j = energy_of(replay), least_energy_j(replay)
    return Metrics(
        jobs=len(replay.trace),
        finished=num_done,
        failed=failed,
        rejected=rejected,
        rejected_fraction=_ratio(rejected, len(replay.trace)),
        unfinished=unfinished,
        elastic=int((replay.gpus_min < replay.gpus_max).sum()),
        unmeasured=int(replay.unmeasured.sum()),
        jct_mean_s=_mean(jct_s),
        jct_p50_s=percentile(jct_s, 50),
        jct_p99_s=percentile(jct_s, 99),
        jct_regular_mean_s=_mean(jct_s[~padding]) if padding.any() else None,
        queue_mean_s=_mean(queue_s),
        queue_p50_s=percentile(queue_s, 50),
        queue_p99_s=percentile(queue_s, 99),
        wait_mean_s=_mean(wait_s) if ran else None,
        wait_p50_s=percentile(wait_s, 50) if ran else None,
        wait_p99_s=percentile(wait_s, 99) if ran else None,
        requeue_mean_s=_mean((wait_ms(replay) - queue_ms(replay))[done] / MS_PER_S) if ran else None,
        makespan_s=_makespan_s(replay) if num_done and not unfinished else None,
        gpu_allocated_fraction=_ratio(float(replay.service_gpu_ms.sum()), capacity_ms),
        gpu_busy_fraction=_ratio(float(replay.useful_gpu_ms.sum()), capacity_ms),
        cpu_busy_fraction=_cpu_busy_fraction(replay),
        preemptions=int(replay.preemptions.sum()),
        restarts=int(replay.restarts.sum()),
        resizes=int(replay.resizes.sum()),
        lost_gpu_s=float(replay.lost_gpu_ms.sum()) / MS_PER_S,
        held_gpu_s=float(replay.service_gpu_ms.sum()) / MS_PER_S,
        energy_kwh=None if energy is None else energy.total_j / J_PER_KWH,
        energy_idle_kwh=None if energy is None else energy.unattributed_j / J_PER_KWH,
        energy_bound_kwh=None if least_j is None else least_j / J_PER_KWH,
        active_nodes=None if energy is None else _ratio(float(energy.active_ms.sum()), replay.end_ms),
        ftf_rho_mean=_mean(rho),
        ftf_rho_p95=percentile(rho, 95),
        ftf_rho_max=percentile(rho, 100),
        rounds=replay.rounds,
        round_p99_ms=percentile(replay.round_s * MS_PER_S, 99),
        rounds_per_s=_ratio(replay.rounds, replay.wall_s),
        wall_s=float(replay.wall_s),
    )


def finished(replay: Replay) -> BoolArray:
    """Return whether each job completed without exhausting its attempts, shape (J,)."""
    done: BoolArray = (replay.finish_ms >= 0) & (replay.failed == 0)
    return done


def jct_ms(replay: Replay) -> IntArray:
    """Return completion minus submission, ms, shape (J,); NONE where the job did not complete."""
    return np.where(replay.finish_ms >= 0, replay.finish_ms - replay.trace.submit_ms, NONE)


def queue_ms(replay: Replay) -> IntArray:
    """Return the time from submission to first start, ms, shape (J,); NONE where the job never started."""
    return np.where(replay.first_start_ms >= 0, replay.first_start_ms - replay.trace.submit_ms, NONE)


def wait_ms(replay: Replay) -> IntArray:
    """Return completion minus submission minus time with GPUs, ms, shape (J,); NONE if the job did not complete."""
    jct = jct_ms(replay)
    return np.where(jct >= 0, jct - held_ms(replay), NONE)


def held_ms(replay: Replay) -> IntArray:
    """Return the time each job held GPUs, ms, shape (J,)."""
    runs = replay.runs
    time_ms = run_end_ms(replay) - runs.start_ms
    held = np.bincount(runs.job, weights=time_ms.astype(np.float64), minlength=len(replay.trace))
    return held.astype(np.int64)


def run_end_ms(replay: Replay) -> IntArray:
    """Return the end of each run, ms, shape (R,); the end of the replay for a run that is still open then."""
    return np.where(replay.runs.end_ms >= 0, replay.runs.end_ms, replay.end_ms)


def size_class(trace: Trace) -> IntArray:
    """Return the code of each job's size class in ``SIZE_CLASSES``, shape (J,)."""
    return np.searchsorted(_SIZE_CLASS_TOP, trace.gpus, side="left").astype(np.int64)


def percentile(values: FloatArray, percent: float) -> float | None:
    """Return a percentile by linear interpolation; None without values."""
    return float(np.percentile(values, percent)) if len(values) else None


def finish_time_fairness(replay: Replay) -> FloatArray:
    """Return the finish-time fairness rho of the finished jobs whose run time as asked is known.

    rho = JCT / JCT on an equal share of the cluster. The equal share of a job is (all GPUs / n), n the users active at
    its submission; a job that asks for more GPUs than that takes turns: ideal = run x max(1, gpus x n / all GPUs). An
    elastic job counts with the size its user asked for, so that a rho below 1 is a gain from the policy's sizes.
    A user is active from a submission until that job would end had it started at once, so n and the ideal are the
    same under every policy. Owners are users, else groups where no user is recorded, else everybody is one owner.

    Returns:
        One ratio per such job; above 1 is worse than the equal share.

    Source:
        Mahajan et al., Themis, NSDI 2020, section 3. Differs: n comes from the trace's demand, not from the policy's
        own queue, which would forgive a slow policy for being slow.
    """
    trace = replay.trace
    counted = finished(replay) & (replay.run_ms > 0)
    active = active_owners(trace, replay.run_ms)[counted]
    gpus = trace.gpus[counted] * trace.share_milli[counted] / WHOLE_GPU
    ideal_ms = replay.run_ms[counted] * np.maximum(1.0, gpus * active / replay.cluster.num_gpus)
    rho: FloatArray = jct_ms(replay)[counted] / ideal_ms
    return rho


def active_owners(trace: Trace, run_ms: IntArray) -> IntArray:
    """Count owners with a job in [submission, submission + run) when each job is submitted, shape (J,), >= 1."""
    owner = trace.user if (trace.user >= 0).any() else trace.group
    order = np.lexsort((trace.submit_ms, owner))
    start, end = trace.submit_ms[order], (trace.submit_ms + np.maximum(run_ms, 0))[order]
    if not len(start):
        return np.zeros(0, dtype=np.int64)
    lift = (owner[order] - owner.min()) * (int(end.max()) + 1)  # keeps the running maximum inside one owner
    reach = np.maximum.accumulate(end + lift) - lift
    opens = np.concatenate(([True], (owner[order][1:] != owner[order][:-1]) | (start[1:] > reach[:-1])))
    closes = np.concatenate((opens[1:], [True]))
    opened = np.searchsorted(np.sort(start[opens]), trace.submit_ms, side="right")
    closed = np.searchsorted(np.sort(reach[closes]), trace.submit_ms, side="right")
    active: IntArray = np.maximum(opened - closed, 1).astype(np.int64)
    return active


def _makespan_s(replay: Replay) -> float:
    """Return the time from the first submission (time 0) to the last end of a job, failed jobs that ran included."""
    last_run_ms = int(run_end_ms(replay).max(initial=0))
    last_ms = max(int(replay.finish_ms.max()), last_run_ms if replay.failed.any() else 0)
    return (last_ms - int(replay.trace.submit_ms[0])) / MS_PER_S


def _cpu_busy_fraction(replay: Replay) -> float | None:
    cluster, trace, runs = replay.cluster, replay.trace, replay.runs
    if not trace.cpu_milli.any() or (cluster.cpu_milli_N >= UNLIMITED).any() or not len(runs.job):
        return None
    cores = runs.cores_milli if len(runs.cores_milli) else np.diff(runs.first_gpu) * trace.cpu_milli[runs.job]
    core_ms = float((cores.astype(np.float64) * (run_end_ms(replay) - runs.start_ms)).sum())
    return _ratio(core_ms, float(cluster.cpu_milli_N.sum()) * replay.end_ms)


def _mean(values: FloatArray) -> float | None:
    return float(values.mean()) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None
