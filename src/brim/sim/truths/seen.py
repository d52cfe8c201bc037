"""Truth ``seen``: the jobs of a live cluster, at the speeds at which they were seen to run on each number of GPUs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.events import Report, Sample
from brim.core.trace import NONE, Trace
from brim.sim.truths.truth import ALONE, Colocation, Pace
from brim.units import MS_PER_S


class SeenRates:
    """Each job trains on a number of samples, with a fixed batch, at a speed that its number of GPUs alone determines.

    Work is counted in samples. See ``sim.truths.truth.Truth``.

    Args:
        trace: The jobs, with their batches; a job without one reports nothing.
        rate_JG: Samples per second of each job on 1 to G GPUs (J, G).
        samples: Samples that each job needs (J,).
        gpus_min: Fewest GPUs of each job (J,).
        gpus_max: Most GPUs of each job (J,).
    """

    name: ClassVar[str] = "seen"
    contended: ClassVar[bool] = False

    def __init__(
        self, trace: Trace, rate_JG: FloatArray, *, samples: IntArray, gpus_min: IntArray, gpus_max: IntArray
    ) -> None:
        self._trace, self._rate_JG, self._samples = trace, rate_JG, samples
        self._limits = {"gpus_min": gpus_min, "gpus_max": gpus_max}
        run_JG = samples[:, None] / rate_JG * MS_PER_S
        gpus_G = np.arange(1, rate_JG.shape[1] + 1)
        allowed_JG = (gpus_G >= gpus_min[:, None]) & (gpus_G <= gpus_max[:, None])
        self.run_ms = _whole(run_JG[np.arange(len(trace)), trace.gpus - 1])
        self.shortest_ms = _whole(np.where(allowed_JG, run_JG, np.inf).min(axis=1))
        self.least_gpu_ms = _whole(np.where(allowed_JG, run_JG * gpus_G, np.inf).min(axis=1))

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``."""
        gpus, own = sum(nodes), int(self._trace.batch[job])
        per_s = float(self._rate_JG[job, gpus - 1])
        if own == NONE:
            return Pace(per_s / MS_PER_S, float(self._samples[job]), True, None)
        seen = Sample(len(nodes), gpus, max(1, own // gpus), own / per_s, 0.0)
        report = Report(samples_done=done, samples_per_s=per_s, seen=(seen,))
        return Pace(per_s / MS_PER_S, float(self._samples[job]), True, report)

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``."""
        batch = self._trace.batch
        limits = {"batch": batch, "batch_min": batch, "batch_max": batch, "local_batch_max": batch}
        return {**self._limits, **limits, "profile": self._trace.profile}

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return self._samples.astype(np.float64)

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        return ["Jobs run at the mean speed that was seen on as many GPUs (truth: seen)."]


def _whole(time_ms: FloatArray) -> IntArray:
    return frozen(np.ceil(time_ms).astype(np.int64))
