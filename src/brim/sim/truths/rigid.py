"""Truth ``rigid``: the run times of the trace.

Every job runs on the GPUs it asked for, because its speed on other numbers is unknown; so it supports no claim about
elastic jobs.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.core.trace import NONE, Trace
from brim.errors import ConfigError
from brim.sim.truths.truth import ALONE, Colocation, Pace


class Rigid:
    """The run times of the trace on the GPUs asked for. Work is counted in milliseconds."""

    name: ClassVar[str] = "rigid"
    contended: ClassVar[bool] = False

    def __init__(self, trace: Trace) -> None:
        self.run_ms = self.shortest_ms = rigid_run_ms(trace)
        self.least_gpu_ms = trace.gpu_ms
        self._run_ms: list[int] = self.run_ms.tolist()
        self._num_listed = int((trace.size_list != NONE).sum())

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``."""
        return Pace(1.0, self._run_ms[job], True, None)

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``: every job runs on the GPUs it asks for."""
        return {}

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return np.full(len(self.run_ms), np.nan)

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        said = ["Run times are those of the trace, whatever the placement (truth: rigid)."]
        if self._num_listed:
            said.append(
                f"Jobs that list the sizes they can run on: {self._num_listed:,}. They run on the GPUs they asked for, "
                "because their run times on other numbers are unknown."
            )
        return said


def rigid_run_ms(trace: Trace, truth: str = "rigid") -> IntArray:
    """Return the recorded run time of every job in ms, shape (J,).

    Raises:
        ConfigError: the trace names profiled applications instead of run times.
    """
    unknown = np.flatnonzero(trace.run_ms < 0)
    if len(unknown):
        raise ConfigError(
            f"{trace.name}: {len(unknown)} of {len(trace)} jobs have no recorded run time (first: job "
            f"{trace.job_id[unknown[0]]}), which --truth {truth}{' (the default)' * (truth == 'rigid')} needs; a trace "
            "that names applications runs under --truth measured --profiles DIR"
        )
    return trace.run_ms
