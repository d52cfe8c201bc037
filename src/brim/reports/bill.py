"""The bill: what each job held, used, cost and lost, by job or user; its sums equal those of the meter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What one job, one user or everybody is billed.

    Attributes:
        gpu_h: GPU-hours held, those lost included.
        lost_gpu_h: Of these, GPU-hours of work that was repeated, and of saving and starting again because of it.
        kwh: Energy of nodes, modelled; None where it is not known.
        gpu_kwh: Energy of GPUs alone, measured by their driver; None where no part of it was.
        co2_kg: CO2; None where it is not known.
        cost: Money; None where no price is known.
    """

    gpu_h: float = 0.0
    lost_gpu_h: float = 0.0
    kwh: float | None = None
    gpu_kwh: float | None = None
    co2_kg: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledJob:
    """One job of a bill."""

    job: str
    user: str
    tier: str
    amounts: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """GPUs that were taken from a job by decision.

    Attributes:
        job: The job.
        at_ms: When it was told to leave.
        gpus: GPUs that it held.
        thrown_away_gpu_s: GPU-seconds of saving and of starting again, in which it made no progress; of a job that did
            not save, all since it was granted them.
        gained: The jobs that had these GPUs next.
        times: How often; with more than once, time and GPUs are those of the first, and the rest is of all together.
    """

    job: str
    at_ms: int
    gpus: int
    thrown_away_gpu_s: float
    gained: tuple[str, ...]
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A bill.

    Attributes:
        jobs: The jobs.
        idle_kwh: Energy that no job is billed: of idle GPUs. None where it is not known.
        idle_co2_kg: CO2 of that; None where it is not known.
        taken: What was taken from jobs.
        basis: On what it rests, one sentence each.
    """

    jobs: Sequence[BilledJob]
    idle_kwh: float | None = None
    idle_co2_kg: float | None = None
    taken: Sequence[Taken] = ()
    basis: Sequence[str] = ()

    @property
    def total(self) -> Amounts:
        """Sums over all jobs."""
        return summed(one.amounts for one in self.jobs)

    def by_user(self) -> dict[str, Amounts]:
        """Sums by user, the one with most GPU-hours first."""
        users: dict[str, list[Amounts]] = {}
        for one in self.jobs:
            users.setdefault(one.user, []).append(one.amounts)
        sums = {user: summed(amounts) for user, amounts in users.items()}
        return dict(sorted(sums.items(), key=lambda item: (-item[1].gpu_h, item[0])))

    def as_json(self) -> dict[str, Any]:
        """Return the bill as plain data."""
        return {
            "users": [{"user": user, **plain(amounts)} for user, amounts in self.by_user().items()],
            "jobs": [{"job": one.job, "user": one.user, "tier": one.tier, **plain(one.amounts)} for one in self.jobs],
            "idle_kwh": self.idle_kwh, "idle_co2_kg": self.idle_co2_kg, "total": plain(self.total),
            "preemptions": [
                {"job": one.job, "at_ms": one.at_ms, "gpus": one.gpus, "times": one.times,
                 "gained": list(one.gained), "thrown_away_gpu_s": one.thrown_away_gpu_s} for one in self.taken
            ],
            "basis": list(self.basis),
        }


def summed(amounts: Iterable[Amounts]) -> Amounts:
    """Sum amounts; what is not known of one of them is not known of the sum."""
    every = list(amounts)
    return Amounts(
        gpu_h=sum(one.gpu_h for one in every), lost_gpu_h=sum(one.lost_gpu_h for one in every),
        kwh=_sum(one.kwh for one in every), gpu_kwh=_measured(one.gpu_kwh for one in every),
        co2_kg=_sum(one.co2_kg for one in every),
        cost=_sum(one.cost for one in every),
    )


def _measured(values: Iterable[float | None]) -> float | None:
    """Sum what was measured; None if nothing was."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def plain(amounts: Amounts) -> dict[str, float | None]:
    """Return amounts as plain data."""
    return {each.name: getattr(amounts, each.name) for each in fields(Amounts)}


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
