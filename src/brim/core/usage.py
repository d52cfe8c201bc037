"""What users have used: GPU time, halved every half-life, and the run times of their last jobs."""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.tables import UserTable
from brim.core.trace import NONE
from brim.units import MS_PER_DAY

USAGE_HALF_LIFE_MS: Final = 7 * MS_PER_DAY
"""Half-life of a user's past usage: the default of Slurm's PriorityDecayHalfLife."""


class UsageBook:
    """Users and their usage: part of the mutable state of a cluster, changed only by ``ClusterState``."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._usage_U = np.zeros(0)
        self._at_ms = 0
        self._runs_U2 = np.full((2, 0), NONE, dtype=np.int64)  # last run, the one before

    def code(self, user: str) -> int:
        """Code of a user; a new user gets the next code."""
        code = self._codes.get(user)
        if code is None:
            code = self._codes[user] = len(self._codes)
            self._usage_U = np.append(self._usage_U, 0.0)
            self._runs_U2 = np.concatenate((self._runs_U2, np.full((2, 1), NONE, dtype=np.int64)), axis=1)
        return code

    def add(self, user: IntArray, service_gpu_ms: IntArray, now_ms: int) -> None:
        """Add the GPU time of L placements that have ended, of these users (L,), in turn."""
        if now_ms != self._at_ms:
            self._usage_U, self._at_ms = self._usage_at(now_ms), now_ms
        np.add.at(self._usage_U, user, service_gpu_ms)

    def completed(self, user: int, run_ms: int) -> None:
        """Note the run time of a job that has finished."""
        self._runs_U2[1, user] = self._runs_U2[0, user]
        self._runs_U2[0, user] = run_ms

    def freeze(self, now_ms: int) -> UserTable:
        """Return the table at ``now_ms``."""
        return UserTable(
            name=tuple(self._codes), usage_gpu_ms=frozen(self._usage_at(now_ms)),
            last_run_ms=frozen(self._runs_U2[0].copy()), previous_run_ms=frozen(self._runs_U2[1].copy()),
        )

    def _usage_at(self, now_ms: int) -> FloatArray:
        """Past usage of each user as a new array (U,)."""
        usage: FloatArray = self._usage_U * 0.5 ** (max(now_ms - self._at_ms, 0) / USAGE_HALF_LIFE_MS)
        return usage
