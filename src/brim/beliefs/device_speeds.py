"""How long a step takes on GPU and on CPU, of jobs whose ranks exchange gradients among themselves: as they reported.

Shapes: J jobs, S reported configurations, two kinds of device: GPU, then CPU.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.beliefs.parameter_servers import CPU_SLOWER
from brim.core.arrays import FloatArray
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE

GPU, CPU = range(2)
_KINDS: Final = 2


def rank_seconds(snapshot: Snapshot, cpu_slower: float = CPU_SLOWER) -> FloatArray:
    """Seconds of a step, times its ranks, on each kind of device (J, 2); NaN where no step was reported on either.

    They are those of the job itself, or else of the jobs of its name that have ended. On a kind on which no step was
    seen, a step takes ``cpu_slower`` times as long as on GPU: a guess, and gone with the first step there. With another
    number of ranks than was seen, time is in proportion to the batch of a rank.

    Args:
        snapshot: The jobs and their reports.
        cpu_slower: Times that a rank on CPU takes longer than one on GPU.
    """
    jobs = snapshot.jobs
    found = np.full((len(jobs), _KINDS), np.nan)
    rows = np.flatnonzero((jobs.cpu_ranks_max > 0) & (jobs.servers == 0) & (jobs.batch > 0))
    if len(rows):
        of_job, of_model = _sample_seconds(snapshot)
        for row in rows.tolist():
            for kind in (GPU, CPU):
                of_name = of_model.get((int(jobs.profile[row]), kind), np.nan)
                found[row, kind] = of_job.get((row, kind), of_name) * float(jobs.batch[row])
    gpu, cpu = found.T
    return np.column_stack((
        np.where(np.isnan(gpu), cpu / cpu_slower, gpu), np.where(np.isnan(cpu), gpu * cpu_slower, cpu),
    ))


_Means = dict[tuple[int, int], float]


def _sample_seconds(snapshot: Snapshot) -> tuple[_Means, _Means]:
    """Mean seconds that a rank takes for a sample, by job row and kind of device, and by model and kind."""
    seen = snapshot.seen
    of_job: dict[tuple[int, int], list[float]] = {}
    of_model: dict[tuple[int, int], list[float]] = {}
    columns = (seen.job, seen.profile, seen.gpus, seen.local_batch, seen.step_s)
    for job, profile, gpus, local_batch, step_s in zip(*(column.tolist() for column in columns), strict=True):
        table, key = (of_job, job) if job != NONE else (of_model, profile)
        table.setdefault((key, CPU if gpus == 0 else GPU), []).append(step_s / local_batch)
    of_job_mean, of_model_mean = (
        {key: sum(told) / len(told) for key, told in table.items()} for table in (of_job, of_model)
    )
    return of_job_mean, of_model_mean
