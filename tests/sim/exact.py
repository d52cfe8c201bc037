"""Replays without costs or gaps, so that answers can be worked out by hand."""

from __future__ import annotations

import numpy as np

from brim.core.cluster import Cluster, parse_cluster
from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.engine.journal import Journal
from brim.policies.presets import PRESETS
from brim.policies.sockets import Policy
from brim.sim.faults import Faults
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay

FREE = Overheads(start_ms=0, save_ms=0, restart_ms=0)
NO_FAULTS = Faults()


def run(
    trace: Trace, cluster: Cluster | str, policy: Policy | str = "fifo", *, overheads: Overheads = FREE,
    faults: Faults = NO_FAULTS, seed: int = 0, compiled: bool = True, gap_ms: int = 0,
) -> Replay:
    """Replay with every round at once; ``compiled=False`` keeps to the general loop."""
    return replay(
        trace, parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        PRESETS[policy] if isinstance(policy, str) else policy,
        ReplaySettings(overheads=overheads, faults=faults, gap_ms=gap_ms, seed=seed),
        journal=None if compiled else Journal(),
    )


def starts(outcome: Replay) -> list[float]:
    """First starts in seconds."""
    return (outcome.first_start_ms / 1000).tolist()


def ends(outcome: Replay) -> list[float]:
    """Ends in seconds."""
    return (outcome.finish_ms / 1000).tolist()


def stretches(outcome: Replay, job: int) -> list[tuple[float, float]]:
    """(start, end) in seconds of every stretch in which a job held GPUs."""
    rows = np.flatnonzero(outcome.runs.job == job)
    return [(outcome.runs.start_ms[r] / 1000, outcome.runs.end_ms[r] / 1000) for r in rows]


def gpus_of(outcome: Replay, job: int) -> list[list[int]]:
    """Global GPU indices of every stretch of a job."""
    runs = outcome.runs
    return [runs.gpu[runs.first_gpu[r] : runs.first_gpu[r + 1]].tolist() for r in np.flatnonzero(runs.job == job)]
