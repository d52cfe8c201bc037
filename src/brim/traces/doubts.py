"""Check whether a trace can have been recorded on a given cluster, and describe what speaks against it.

A replay on another cluster answers a fair question; a wrong cluster given by mistake makes all policies look alike.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.core.cluster import Cluster
from brim.core.trace import NONE, Trace
from brim.traces.transform import offered_load
from brim.units import MS_PER_MIN, MS_PER_S, WHOLE_GPU, counted

LOAD_MIN: Final = 0.3
"""Offered load below which hardly any job waits under any policy. Our choice."""
OVER_FRACTION: Final = 0.01
"""Share of the time in which more GPUs than the cluster has may be in use, as clocks may disagree. Our choice."""
WAITED_MS: Final = MS_PER_MIN
"""A shorter wait can be the scheduler's own interval."""
ROOM_FRACTION: Final = 0.9
"""A job had room if it and the others filled at most this share; the rest may be fragmented. Our choice."""


def doubts(trace: Trace, cluster: Cluster, load: float = 1) -> list[str]:
    """Describe what in the record speaks against the cluster; empty if nothing does or the record lacks the data.

    Args:
        trace: The recorded trace.
        cluster: The cluster that the user gave.
        load: Largest factor on the arrival rate among the replays.
    """
    return [
        *_of_nodes(trace, cluster), *_of_types(trace, cluster), *_of_use(trace, cluster),
        *_of_load(trace, cluster, load),
    ]  # fmt: skip


def absent_types(trace: Trace, cluster: Cluster) -> str:
    """Name the GPU types that jobs were recorded on and the cluster does not have; empty where either names none.

    One name may be a part of the other: a100 and nvidia_a100_80gb_pcie are one type.
    """
    has = [name.casefold() for name in cluster.gpu_types]
    if trace.synthetic or "" in has:
        return ""
    asked = [trace.gpu_types[code] for code in np.unique(trace.gpu_type[trace.gpu_type != NONE])]
    return ", ".join(
        name for name in asked if not any(name.casefold() in other or other in name.casefold() for other in has)
    )


def _of_nodes(trace: Trace, cluster: Cluster) -> list[str]:
    seen = trace.cluster
    if seen is None:
        return []
    said = []
    if seen.num_nodes > cluster.num_nodes or 2 * seen.num_nodes <= cluster.num_nodes:  # some may never run a GPU job
        said.append(
            f"the record shows {counted(seen.num_nodes, 'node')} with GPUs, but the cluster has {cluster.num_nodes:,}"
        )
    if int(seen.gpus_N.max()) > int(cluster.gpus_N.max()):
        said.append(
            f"the record shows a node with {counted(seen.gpus_N.max(), 'GPU')}, but the largest node of the cluster "
            f"has {cluster.gpus_N.max()}"
        )
    return said


def _of_types(trace: Trace, cluster: Cluster) -> list[str]:
    if not (absent := absent_types(trace, cluster)):
        return []
    has = ", ".join(cluster.gpu_types)
    return [f"the record has jobs on GPUs of type {absent}, but the GPUs of the cluster are {has}"]


def _of_use(trace: Trace, cluster: Cluster) -> list[str]:
    """Compare the GPUs in use. Jobs of several attempts never contradict the cluster: their times are not known."""
    recorded = np.flatnonzero((trace.wait_ms != NONE) & (trace.run_ms > 0))
    if not len(recorded):
        return []
    submit_ms, start_ms = trace.submit_ms[recorded], trace.submit_ms[recorded] + trace.wait_ms[recorded]
    end_ms = submit_ms + trace.jct_ms[recorded]
    gpus = trace.gpus[recorded] * trace.share_milli[recorded] / WHOLE_GPU
    # a run time of one second may be a rounded zero
    whole = (end_ms - start_ms == trace.run_ms[recorded]) & (trace.run_ms[recorded] > MS_PER_S)
    at_ms, in_use = _in_use(start_ms[whole], end_ms[whole], gpus[whole])
    lasts_ms = np.diff(at_ms)
    over = float(lasts_ms[in_use[:-1] > cluster.num_gpus].sum() / max(lasts_ms.sum(), 1))
    if over > OVER_FRACTION:
        return [
            f"the record had up to {counted(round(in_use.max()), 'GPU')} in use at once, and more than the "
            f"{cluster.num_gpus:,} of the cluster for {over:.0%} of the time"
        ]
    at_ms, in_use = _in_use(start_ms, end_ms, gpus)
    lasts_ms, most = np.diff(at_ms), float(in_use.max())
    if trace.cluster is not None:  # the times of attempts are in it
        most = min(most, trace.cluster.num_gpus)
    said = []
    if most <= cluster.num_gpus / 2:
        said.append(
            f"the record never had more than {counted(round(most), 'GPU')} in use at once, but the cluster has "
            f"{cluster.num_gpus:,}"
        )
    used_gpu_ms = np.concatenate(([0.0], np.cumsum(in_use[:-1] * lasts_ms)))
    waited = np.flatnonzero(trace.wait_ms[recorded] >= WAITED_MS)
    until_ms, since_ms = start_ms[waited], submit_ms[waited]
    used = np.interp(until_ms, at_ms, used_gpu_ms) - np.interp(since_ms, at_ms, used_gpu_ms)
    mean_use = used / (until_ms - since_ms)
    would_fit = int((mean_use + gpus[waited] <= ROOM_FRACTION * cluster.num_gpus).sum())
    if would_fit > len(waited) / 2:
        said.append(
            f"{would_fit:,} of the {len(waited):,} jobs that waited a minute or longer would have found enough free "
            "GPUs on it: the recorded cluster was smaller, or limits, quotas or reservations delayed them, which a "
            "replay does not model"
        )
    return said


def _in_use(start_ms: IntArray, end_ms: IntArray, gpus: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the moments at which the number of GPUs in use changes, and the number from each on."""
    at_ms, which = np.unique(np.concatenate((start_ms, end_ms)), return_inverse=True)
    change = np.bincount(which, weights=np.concatenate((gpus, -gpus)), minlength=len(at_ms))
    return at_ms, np.cumsum(change)


def _of_load(trace: Trace, cluster: Cluster, load: float) -> list[str]:
    offered = load * offered_load(trace, cluster)
    if math.isnan(offered) or offered >= LOAD_MIN:
        return []
    return [f"the jobs ask for {offered:.1%} of the cluster's GPU time: hardly any will wait under any policy"]
