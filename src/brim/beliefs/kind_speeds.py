"""How fast jobs of a name train on each number of GPUs, and on how many samples: believed from what others reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brim.beliefs.change_costs import trimmed_mean
from brim.core.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class KindSpeeds:
    """What is known of the jobs of one name.

    Attributes:
        per_s: Samples per second by number of GPUs, trimmed means.
        samples: Samples on which such a job trains.
    """

    per_s: Mapping[int, float]
    samples: float

    def rates(self, gpus_max: int) -> FloatArray:
        """Samples per second on 1 to G GPUs (G,).

        Between two numbers that were seen, the logarithm of the speed is linear in that of the number; beyond them,
        speed is in proportion to the number.
        """
        seen = sorted(self.per_s)
        log_n, log_rate = np.log(seen), np.log([self.per_s[gpus] for gpus in seen])
        log_G = np.log(np.arange(1, gpus_max + 1))
        beyond_G = np.minimum(log_G - log_n[0], 0) + np.maximum(log_G - log_n[-1], 0)
        rate: FloatArray = np.exp(np.interp(log_G, log_n, log_rate) + beyond_G)
        return rate


def learn_speeds(
    names: Sequence[str], speeds: Sequence[Iterable[tuple[int, float]]], samples: Sequence[float]
) -> dict[str, KindSpeeds]:
    """Learn speeds by name, of jobs that reported any.

    Args:
        names: Names of the jobs.
        speeds: What each reported: pairs of a number of GPUs and samples per second; those on CPU, 0, do not count.
        samples: Samples on which each trained to its end.
    """
    rates: dict[str, dict[int, list[float]]] = {}
    work: dict[str, list[float]] = {}
    for name, told, done in zip(names, speeds, samples, strict=True):
        for gpus, per_s in told:
            if not gpus:
                continue
            rates.setdefault(name, {}).setdefault(gpus, []).append(per_s)
        if done > 0:
            work.setdefault(name, []).append(done)
    return {
        name: KindSpeeds({gpus: trimmed_mean(told) for gpus, told in of.items()}, trimmed_mean(work[name]))
        for name, of in rates.items() if name in work
    }
