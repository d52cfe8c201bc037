"""The packing rules that EaCO compares with: pairs of jobs on the same GPUs, only when no GPUs are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brim.policies.place.residents import Gpu, Occupancy, is_known, signature
from brim.policies.place.trials import OnTrial

_PAIR = 2
_MEMORY = 1.0


def _speed(ratios: Sequence[float]) -> float:
    """Sum of the speeds of jobs, each relative to that alone."""
    return sum(1.0 / ratio for ratio in ratios)


@dataclass(frozen=True, slots=True)
class PackedPairs(OnTrial):
    """A job that finds no free GPUs joins the one with which the sum of their speeds is largest, and large enough.

    Attributes:
        speed_min: Sum of the two speeds, relative to those alone, above which a pair is packed.

    Source:
        FIFO_packed in EaCO, arXiv 2412.08294, after Gavel, OSDI 2020: above 1.5. Differs: a set that turns out slower
        than that stays, as there.
    """

    speed_min: float = 1.5

    def serve(self, occupancy: Occupancy, row: int, barred: frozenset[int]) -> bool:
        """See ``OnTrial``."""
        if occupancy.place_alone(row):
            return True
        found = []
        for gpus in occupancy.candidates(row, _PAIR):
            rows = [*occupancy.sets[gpus], row]
            predicted = occupancy.slowdowns(gpus, rows)
            if is_known(predicted) and occupancy.fits_memory(gpus, rows, _MEMORY):
                speed = _speed([one.mean for one in predicted])
                if speed > self.speed_min:
                    found.append((-speed, gpus))
        if not found:
            return False
        occupancy.why[row] = 0
        occupancy.join(row, min(found)[1])
        return True

    def refuses(
        self, occupancy: Occupancy, gpus: tuple[Gpu, ...], rows: Sequence[int], ratios: Sequence[float]
    ) -> bool:
        """See ``OnTrial``: nothing is undone."""
        return False


@dataclass(frozen=True, slots=True)
class RandomPairs(OnTrial):
    """A job that finds no free GPUs joins another of its size at random; slow pairs are separated.

    The draw depends on the GPUs and the time of submission, so that equal snapshots give equal plans.

    Attributes:
        speed_min: Sum of the two speeds, relative to those alone, below which a pair is separated.

    Source:
        Gandiva's packing as EaCO, arXiv 2412.08294, compares with it: only when demand exceeds supply, with a random
        partner of equal size, separated when the sum of normalised throughputs falls below 1.
    """

    speed_min: float = 1.0

    def serve(self, occupancy: Occupancy, row: int, barred: frozenset[int]) -> bool:
        """See ``OnTrial``."""
        if occupancy.place_alone(row):
            return True
        drawn = []
        for gpus in occupancy.candidates(row, _PAIR):
            rows = [*occupancy.sets[gpus], row]
            known = is_known(occupancy.slowdowns(gpus, rows)) and occupancy.fits_memory(gpus, rows, _MEMORY)
            if known and signature(occupancy.snapshot, rows) not in barred:
                drawn.append((_draw(int(occupancy.jobs.submit_ms[row]), gpus), gpus))
        if not drawn:
            return False
        occupancy.why[row] = 0
        occupancy.join(row, min(drawn)[1])
        return True

    def refuses(
        self, occupancy: Occupancy, gpus: tuple[Gpu, ...], rows: Sequence[int], ratios: Sequence[float]
    ) -> bool:
        """See ``OnTrial``."""
        return _speed(ratios) < self.speed_min


def _draw(submit_ms: int, gpus: tuple[Gpu, ...]) -> int:
    """A number that looks random (the finaliser of SplitMix64)."""
    mixed = submit_ms * 0x9E3779B97F4A7C15 + gpus[0][0] * 0xBF58476D1CE4E5B9 + gpus[0][1] * 0x94D049BB133111EB
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = ((mixed ^ (mixed % (1 << 64) >> shift)) * factor) % (1 << 64)
    return mixed
