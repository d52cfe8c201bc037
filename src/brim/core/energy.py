"""The meter: from which job held which GPUs, and when, to joules per node and job. A pure function of the record.

Source of the split: EaCO (arXiv 2412.08294) leaves open how the power of a node is divided among the jobs on it; ours:
docs/decisions/0018. What a node uses when all its GPUs are idle is divided equally among its GPUs, and a GPU's part
equally among its residents; what it uses beyond that is divided in proportion to the utilisation that each job causes.
What no job has is unattributed, so that jobs and unattributed energy sum to what the nodes used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.compiled import internal, njit
from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.cluster import Cluster
from brim.core.power import PowerCurve
from brim.core.replay import NO_SLEEPS, Replay, Runs, Sleeps
from brim.core.trace import NONE, Trace
from brim.units import MS_PER_S, WHOLE_GPU

BUSIEST: Final = 0.97
"""Utilisation that residents of one GPU reach together at most; up to there, utilisations add up. EaCO, measured
table: 96.6 % with four jobs, ratio to the sum of the single jobs 0.96 to 1.05."""
J_PER_KWH: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What nodes used, and for which job.

    Attributes:
        node_j: Joules of each node (N,).
        job_j: Joules of each job (J,).
        unattributed_j: Joules that no job has: of idle GPUs and sleeping nodes.
        active_ms: Time in which each node had a job (N,).
        asleep_ms: Time in which each node slept (N,).
    """

    node_j: FloatArray
    job_j: FloatArray
    unattributed_j: float
    active_ms: IntArray
    asleep_ms: IntArray

    @property
    def total_j(self) -> float:
        """Joules of all nodes."""
        return float(self.node_j.sum())


def utilisations(trace: Trace) -> FloatArray:
    """How busy each job keeps its GPUs, 0 to 1 (J,); not known, it counts as keeping the share it asked for busy."""
    known: FloatArray = np.where(trace.gpu_util_milli == NONE, trace.share_milli, trace.gpu_util_milli) / WHOLE_GPU
    return known


def meter(
    runs: Runs, cluster: Cluster, utilisation: FloatArray, end_ms: int, curves: Sequence[PowerCurve],
    sleeps: Sleeps = NO_SLEEPS,
) -> Energy:
    """Meter the nodes of a cluster from time 0 to ``end_ms``.

    Args:
        runs: Which job held which GPUs, and when; a run without an end lasts to ``end_ms``.
        cluster: N nodes.
        utilisation: How busy each job keeps its GPUs when it has them alone, 0 to 1 (J,).
        end_ms: End of the metered time.
        curves: Power of a node for each GPU type of the cluster, in their order.
        sleeps: Which nodes slept, and when; they had no job then.

    Returns:
        Joules; those of jobs and the unattributed ones sum to those of the nodes.
    """
    run = np.repeat(np.arange(len(runs.job)), np.diff(runs.first_gpu))
    node = np.searchsorted(cluster.gpu_offset_N, runs.gpu, side="right") - 1
    start, stop = runs.start_ms[run], np.where(runs.end_ms >= 0, runs.end_ms, end_ms)[run]
    lasted = np.flatnonzero(start < stop)
    row, begins = np.tile(lasted, 2), np.repeat((1, 0), len(lasted))  # each begins once and ends once
    time_ms = np.concatenate((start[lasted], stop[lasted]))
    order = np.lexsort((row, begins, time_ms, node[row]))
    scale = cluster.gpus_N / np.array([curves[code].gpus for code in cluster.gpu_type_N])
    shape = np.array([
        (curves[code].idle_w, curves[code].full_w, curves[code].exponent, curves[code].asleep_w)
        for code in cluster.gpu_type_N
    ]).reshape(-1, 4)
    shape[:, [0, 1, 3]] *= scale[:, None]
    node_j, job_j, unattributed_j, active_ms = _sweep(
        node[row][order], time_ms[order], row[order], begins[order] == 1, runs.job[run],
        runs.gpu - cluster.gpu_offset_N[node], utilisation, cluster.gpus_N, shape, end_ms,
    )
    slept_ms = np.bincount(sleeps.node, weights=sleeps.end_ms - sleeps.start_ms, minlength=cluster.num_nodes)
    saved_j = (shape[:, 0] - shape[:, 3]) * slept_ms / MS_PER_S
    return Energy(
        node_j=frozen(node_j - saved_j), job_j=frozen(job_j), unattributed_j=unattributed_j - float(saved_j.sum()),
        active_ms=frozen(active_ms), asleep_ms=frozen(slept_ms.astype(np.int64)),
    )


def energy_of(replay: Replay) -> Energy | None:
    """Meter a replay; None if it has no power curves."""
    if not replay.power:
        return None
    return meter(
        replay.runs, replay.cluster, utilisations(replay.trace), replay.end_ms, replay.power,
        replay.sleeps,
    )


def least_energy_j(replay: Replay) -> float | None:
    """Joules that the finished jobs need at least under any policy, or None if the replay has no power curves.

    Each job needs its least GPU time at its own utilisation. No node does that for less than one whose GPUs are all
    busy, of the most efficient type of the cluster. Waiting and idle nodes cost nothing. Jobs that share a GPU are
    assumed to slow each other by what their utilisations sum to beyond ``BUSIEST``, at least.
    """
    if not replay.power:
        return None
    least = min(curve.least_j for curve in replay.power)
    done = replay.finish_ms >= 0
    busy_ms = replay.ideal_gpu_ms * WHOLE_GPU / replay.trace.share_milli * utilisations(replay.trace)
    return least * float(busy_ms[done].sum()) / MS_PER_S


@njit
def _sweep(
    node_E: IntArray, time_E: IntArray, row_E: IntArray, begins_E: IntArray, job_R: IntArray, gpu_R: IntArray,
    utilisation_J: FloatArray, gpus_N: IntArray, shape_N4: FloatArray, end_ms: int,
) -> tuple[FloatArray, FloatArray, float, IntArray]:
    """Sweep the events of each node in order of time; see ``meter``. R rows of a run and GPU, E = 2 R events."""
    node_j, job_j = np.zeros(len(gpus_N)), np.zeros(len(utilisation_J))
    active_ms, unattributed = np.zeros(len(gpus_N), np.int64), np.zeros(1)
    present = np.empty(len(job_R) + 1, np.int64)  # rows whose GPUs are held
    at = 0
    for node in range(len(gpus_N)):
        now_ms, count = 0, 0
        while at < len(node_E) and node_E[at] == node:
            until_ms = time_E[at]
            _hold(
                node, until_ms - now_ms, present[:count], job_R, gpu_R, utilisation_J, gpus_N[node], shape_N4[node],
                node_j, job_j, unattributed, active_ms,
            )
            now_ms = until_ms
            if begins_E[at]:
                present[count] = row_E[at]
                count += 1
            else:
                k = 0
                while present[k] != row_E[at]:
                    k += 1
                count -= 1
                present[k] = present[count]
            at += 1
        _hold(
            node, end_ms - now_ms, present[:count], job_R, gpu_R, utilisation_J, gpus_N[node], shape_N4[node], node_j,
            job_j, unattributed, active_ms,
        )
    return node_j, job_j, unattributed[0], active_ms


@njit
def _hold(
    node: int, ms: int, present: IntArray, job_R: IntArray, gpu_R: IntArray, utilisation_J: FloatArray, gpus: int,
    shape: FloatArray, node_j: FloatArray, job_j: FloatArray, unattributed: FloatArray, active_ms: IntArray,
) -> None:
    """Add an interval in which the same rows are present on a node that is awake."""
    if ms <= 0:
        return
    idle_w, full_w, exponent = shape[0], shape[1], shape[2]
    busy, residents = np.zeros(gpus), np.zeros(gpus)
    for row in present:
        busy[gpu_R[row]] += utilisation_J[job_R[row]]
        residents[gpu_R[row]] += 1
    total, held = 0.0, 0
    for gpu in range(gpus):
        total += _reached(busy[gpu], residents[gpu])
        held += residents[gpu] > 0
    seconds = ms / MS_PER_S
    dynamic_w = (full_w - idle_w) * min(1.0, total / gpus) ** exponent if total > 0 else 0.0
    node_j[node] += (idle_w + dynamic_w) * seconds
    unattributed[0] += idle_w * (gpus - held) / gpus * seconds
    for row in present:
        gpu, job = gpu_R[row], job_R[row]
        watts = idle_w / gpus / residents[gpu]
        if busy[gpu] > 0:
            watts += dynamic_w * _reached(busy[gpu], residents[gpu]) / total * utilisation_J[job] / busy[gpu]
        job_j[job] += watts * seconds
    if len(present):
        active_ms[node] += ms


@internal
def _reached(busy: float, residents: float) -> float:
    """Utilisation of a GPU whose residents, each alone, would keep it busy for this sum."""
    return busy if residents <= 1 else min(busy, BUSIEST)
