"""The bill of a live cluster, from what its store recorded of jobs and attempts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from brim.core.arrays import FloatArray, frozen
from brim.core.cluster import Cluster
from brim.core.energy import J_PER_KWH, Energy, meter
from brim.core.power import PowerCurve
from brim.core.prices import Prices, tier_of
from brim.core.replay import Runs
from brim.core.trace import NONE
from brim.gang.messages import RESUME_CODES
from brim.live.recording import Holding, RecordedAttempt, RecordedJob
from brim.reports.bill import Amounts, Bill, BilledJob, Taken
from brim.units import MS_PER_H, MS_PER_S, S_PER_H, WHOLE_GPU, counted


def bill_of(
    jobs: Sequence[RecordedJob], cluster: Cluster, until_ms: int, *, prices: Prices | None = None,
    curves: tuple[PowerCurve, ...] = (),
) -> Bill:
    """Bill recorded jobs.

    Args:
        jobs: The jobs.
        cluster: The cluster on which they ran.
        until_ms: Cluster time up to which nodes are metered.
        prices: Prices; without them no money is billed.
        curves: Power of a node for each GPU type of the cluster; without them no energy is billed.
    """
    runs = runs_of(jobs)
    energy = meter(runs, cluster, _utilisation(jobs), until_ms, curves) if curves else None
    held_ms = gpu_ms_of(runs, len(jobs))
    idle_kwh = None if energy is None else energy.unattributed_j / J_PER_KWH
    taken = [one for job in jobs for one in _taken(job, jobs)]
    lost_s = {str(job.job.id): job.job.lost_gpu_s - _repeated_gpu_s(job) for job in jobs}  # the latter is in taken, too
    for one in taken:
        lost_s[one.job] += one.thrown_away_gpu_s
    return Bill(
        jobs=[_billed(row, job, held_ms[row], lost_s[str(job.job.id)], energy, prices) for row, job in enumerate(jobs)],
        idle_kwh=idle_kwh, idle_co2_kg=None if idle_kwh is None or prices is None else prices.co2_kg(idle_kwh),
        taken=taken,
        basis=_basis(jobs, prices, curves) + _lost_basis(jobs) + _measured_basis(jobs),
    )


def runs_of(jobs: Sequence[RecordedJob]) -> Runs:
    """Return which job (its row) held which GPUs, and when."""
    rows = [
        (row, one) for row, job in enumerate(jobs) for attempt in job.attempts for one in attempt.holdings
        if one.devices
    ]
    rows.sort(key=lambda each: (each[1].from_ms, each[0]))
    counts = [len(one.devices) for _, one in rows]

    def column(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return frozen(np.array(values, dtype=np.int64))

    return Runs(
        job=column([row for row, _ in rows]), start_ms=column([one.from_ms for _, one in rows]),
        end_ms=column([one.until_ms for _, one in rows]), share_milli=column([1000] * len(rows)),
        first_gpu=frozen(np.concatenate(([0], np.cumsum(counts))).astype(np.int64)),
        gpu=column([gpu for _, one in rows for gpu in one.devices]),
    )


def gpu_ms_of(runs: Runs, jobs: int) -> FloatArray:
    """GPU time of each job, in ms (J,): residents of a GPU have equal parts of it, so that nobody pays it twice."""
    changes: dict[int, list[tuple[int, int, int]]] = {}
    held = zip(runs.job.tolist(), runs.start_ms.tolist(), runs.end_ms.tolist(), strict=True)
    for row, (job, start_ms, end_ms) in enumerate(held):
        if start_ms == end_ms:
            continue  # it would leave before it comes
        for gpu in runs.gpu[runs.first_gpu[row] : runs.first_gpu[row + 1]].tolist():
            changes.setdefault(gpu, []).extend(((start_ms, 1, job), (end_ms, -1, job)))
    found = np.zeros(jobs)
    for of_gpu in changes.values():
        residents, since_ms = Counter[int](), 0
        for now_ms, change, job in sorted(of_gpu):
            there = residents.total()
            for resident, times in residents.items():
                found[resident] += (now_ms - since_ms) * times / there
            residents[job] += change
            residents += Counter()  # leaves out who has left
            since_ms = now_ms
    return found


def _utilisation(jobs: Sequence[RecordedJob]) -> FloatArray:
    """How busy each job is expected to keep its GPUs, 0 to 1 (J,): as it said, else wholly."""
    said = np.array([job.job.request.gpu_util_milli for job in jobs], dtype=np.int64)
    return np.where(said == NONE, WHOLE_GPU, said) / WHOLE_GPU


def _billed(
    row: int, job: RecordedJob, held_ms: float, lost_s: float, energy: Energy | None, prices: Prices | None
) -> BilledJob:
    request = job.job.request
    tier = tier_of(padding=request.job_class == "padding", elastic=request.is_elastic)
    gpu_h = float(held_ms) / MS_PER_H
    kwh = None if energy is None else float(energy.job_j[row]) / J_PER_KWH
    co2_kg = None if kwh is None or prices is None else prices.co2_kg(kwh)
    cost = None if prices is None else gpu_h * prices.of(tier) + (kwh or 0.0) * prices.kwh
    return BilledJob(
        job=str(job.job.id), user=job.job.user, tier=tier,
        amounts=Amounts(
            gpu_h=gpu_h, lost_gpu_h=lost_s / S_PER_H, kwh=kwh, gpu_kwh=_measured_kwh(job), co2_kg=co2_kg, cost=cost,
        ),
    )


def _measured_kwh(job: RecordedJob) -> float | None:
    """Energy of its GPUs, if it was measured of all its attempts."""
    joules = [attempt.gpu_energy_j for attempt in job.attempts]
    return None if NONE in joules else sum(joules) / J_PER_KWH


def _taken(job: RecordedJob, jobs: Sequence[RecordedJob]) -> list[Taken]:
    """What was taken from one job: its preemptions, with what saving and starting again cost, or all of the attempt."""
    found = []
    for before, after in pairwise((*job.attempts, None)):
        if before is None or not before.preempted:
            continue
        gpus = before.holdings[-1].devices
        thrown_ms = (before.end_ms - before.stop_ms) * len(gpus)
        if before.starts_over:  # the next start is then the one that counts
            thrown_ms = sum((one.until_ms - one.from_ms) * len(one.devices) for one in before.holdings)
        elif after is not None:
            thrown_ms += (after.from_ms - after.granted_ms) * len(after.holdings[0].devices)
        found.append(Taken(
            job=str(job.job.id), at_ms=before.stop_ms, gpus=len(gpus), thrown_away_gpu_s=thrown_ms / MS_PER_S,
            gained=_next_on(before, job, jobs),
        ))
    return found


def _repeated_gpu_s(job: RecordedJob) -> float:
    """What preemptions after which it started over have added to its record's ``lost_gpu_s``."""
    return sum(
        (one.end_ms - one.from_ms) * len(one.holdings[-1].devices) / MS_PER_S
        for one in job.attempts if one.preempted and one.starts_over
    )


def _next_on(left: RecordedAttempt, job: RecordedJob, jobs: Sequence[RecordedJob]) -> tuple[str, ...]:
    """The jobs that had the GPUs of an attempt next, each GPU's first."""
    later: list[tuple[Holding, int]] = sorted(
        (one, other.job.id) for other in jobs if other is not job for attempt in other.attempts
        for one in attempt.holdings if one.from_ms >= left.stop_ms
    )
    gained: dict[int, None] = {}
    for gpu in left.holdings[-1].devices:
        gained.update((by, None) for _, by in [each for each in later if gpu in each[0].devices][:1])
    return tuple(str(by) for by in sorted(gained))


def _basis(jobs: Sequence[RecordedJob], prices: Prices | None, curves: tuple[PowerCurve, ...]) -> list[str]:
    said = [
        "GPU-hours are those held, from the decision to start a job until its processes are gone; jobs that share a "
        "GPU have equal parts."
    ]
    if prices is None:
        said.append("No --price: no money.")
    else:
        said.append(f"Cost is {prices.words}, work that was lost included.")
        if prices.kwh:
            said.append(f"A kWh of a job costs {prices.kwh:g}." if curves else "Energy is not in the cost.")
    if curves and (prices is None or not prices.co2_g_per_kwh):
        said.append("No co2_g_per_kwh in a --price file: no CO2.")
    if curves:
        silent = sum(job.job.request.gpu_util_milli == NONE for job in jobs)
        said.append(
            "Energy is modelled, not measured, from the utilisation that jobs were submitted with"
            + (f"; {silent:,} of {counted(len(jobs), 'job')} said none and count as busy." if silent else ".")
        )
    else:
        said.append("No --power: no energy.")
    return said


def _lost_basis(jobs: Sequence[RecordedJob]) -> list[str]:
    times = sum(one.preempted and one.starts_over for job in jobs for one in job.attempts)
    if not times:
        return []
    return [
        f"{counted(times, 'preemption')} of jobs that reported no progress and did not exit with "
        f"{', '.join(map(str, RESUME_CODES[:-1]))} or {RESUME_CODES[-1]}: all of the attempt counts as thrown away, "
        "since what such a job saved by itself is not known."
    ]


def _measured_basis(jobs: Sequence[RecordedJob]) -> list[str]:
    measured = sum(_measured_kwh(job) is not None for job in jobs)
    if not measured:
        return []
    return [f"GPU kWh are of GPUs alone, measured by their driver, of {measured:,} of {counted(len(jobs), 'job')}."]
