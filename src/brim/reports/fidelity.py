"""How far a replay is from what was recorded: totals, and the distribution of the error per job.

The errors are those of the replay: positive where it takes longer than the cluster did. A trace that records waits and
completion times is compared with any replay of it; which run times the replay had is the caller's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.replay import Replay
from brim.core.trace import NONE
from brim.errors import ConfigError
from brim.reports.metrics import finished
from brim.units import MS_PER_S

WORST_SHOWN: Final = 3
"""Jobs that are named because they are furthest off; ours."""


@dataclass(frozen=True, slots=True)
class Total:
    """One figure of the whole cluster, recorded and replayed."""

    recorded: float
    replayed: float

    @property
    def error_ratio(self) -> float | None:
        """Error as a part of what was recorded; None where that is 0 and the replay is not."""
        if self.recorded == self.replayed:
            return 0.0
        return (self.replayed - self.recorded) / self.recorded if self.recorded else None


@dataclass(frozen=True, slots=True)
class JobErrors:
    """The error of one figure per compared job (C,), in seconds or GPU seconds."""

    error_C: FloatArray

    def percentile(self, percent: float) -> float:
        """Percentile of the absolute error; the 100th is the largest."""
        return float(np.percentile(np.abs(self.error_C), percent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How far a replay is from the record, over the jobs compared (C).

    Attributes:
        rows: Rows of these jobs in the trace (C,).
        totals: Mean JCT, mean queueing delay, makespan in s, and allocated GPU time in GPU s, by name.
        per_job: Errors of JCT, queueing delay and allocated GPU time of each job, by name.
        preemptions: Preemptions of these jobs in the replay.
    """

    rows: IntArray
    totals: dict[str, Total]
    per_job: dict[str, JobErrors]
    preemptions: int

    @property
    def worst(self) -> IntArray:
        """Rows of the jobs whose JCT is furthest off, the worst first."""
        order = np.argsort(-np.abs(self.per_job["jct_s"].error_C), kind="stable")
        return self.rows[order[:WORST_SHOWN]]

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {
            "jobs": len(self.rows),
            "totals": {
                name: {"live": total.recorded, "twin": total.replayed, "error_ratio": total.error_ratio}
                for name, total in self.totals.items()
            },
            "per_job": {
                name: {"p50": errors.percentile(50), "p90": errors.percentile(90), "max": errors.percentile(100),
                       "mean_error": float(errors.error_C.mean())}
                for name, errors in self.per_job.items()
            },
            "preemptions_twin": self.preemptions,
        }  # fmt: skip


def fidelity(replay: Replay, held_gpu_ms: IntArray, compared: BoolArray) -> Fidelity:
    """Compare a replay with the record of its trace.

    Args:
        replay: The replay of a trace that records waits and completion times.
        held_gpu_ms: GPU time that each job was recorded to hold, shape (J,).
        compared: Which jobs are compared, shape (J,); the others only load the cluster.

    Raises:
        ConfigError: none of the jobs that are to be compared was recorded and finished in the replay.
    """
    trace = replay.trace
    rows = np.flatnonzero(compared & finished(replay) & (trace.jct_ms != NONE) & (trace.wait_ms != NONE))
    if not len(rows):
        raise ConfigError(f"{trace.name}: no job to compare has finished both in the record and in the replay")
    submit_ms = trace.submit_ms[rows]
    end_ms, replayed_end_ms = submit_ms + trace.jct_ms[rows], replay.finish_ms[rows]
    jct_s, replayed_jct_s = trace.jct_ms[rows] / MS_PER_S, (replayed_end_ms - submit_ms) / MS_PER_S
    queue_s, replayed_queue_s = trace.wait_ms[rows] / MS_PER_S, (replay.first_start_ms[rows] - submit_ms) / MS_PER_S
    gpu_s, replayed_gpu_s = held_gpu_ms[rows] / MS_PER_S, replay.service_gpu_ms[rows] / MS_PER_S
    first_ms = int(submit_ms.min())
    return Fidelity(
        rows=rows, preemptions=int(replay.preemptions[rows].sum()),
        totals={
            "jct_mean_s": Total(float(jct_s.mean()), float(replayed_jct_s.mean())),
            "queue_mean_s": Total(float(queue_s.mean()), float(replayed_queue_s.mean())),
            "makespan_s": Total(
                (int(end_ms.max()) - first_ms) / MS_PER_S, (int(replayed_end_ms.max()) - first_ms) / MS_PER_S
            ),
            "allocated_gpu_s": Total(float(gpu_s.sum()), float(replayed_gpu_s.sum())),
        },
        per_job={
            "jct_s": JobErrors(replayed_jct_s - jct_s), "queue_s": JobErrors(replayed_queue_s - queue_s),
            "allocated_gpu_s": JobErrors(replayed_gpu_s - gpu_s),
        },
    )
