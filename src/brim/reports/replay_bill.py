"""The bill of a replay: the same rows as for a live cluster, from the record of who held which GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.energy import J_PER_KWH, Energy, energy_of
from brim.core.prices import TIERS, Prices, tiers
from brim.core.replay import Replay
from brim.reports.bill import Amounts, Bill, BilledJob, Taken
from brim.units import MS_PER_H, MS_PER_S

_NO_USER = "-"


def cost_of_jobs(replay: Replay, prices: Prices, energy: Energy | None = None) -> FloatArray:
    """Return what each job of a replay costs (J,): the GPU time that it held, and its energy where that has a price.

    Args:
        replay: The replay.
        prices: The prices.
        energy: What the jobs used; metered here if not given.
    """
    held: FloatArray = prices.of_jobs(tiers(replay)) * replay.service_gpu_ms / MS_PER_H
    if not prices.kwh:
        return held
    energy = energy or energy_of(replay)
    return held if energy is None else held + prices.kwh * energy.job_j / J_PER_KWH


def lost_gpu_ms(replay: Replay) -> IntArray:
    """Return GPU time without progress that was kept, of each job that had to start again (J,)."""
    lost: IntArray = np.where(replay.restarts > 0, replay.service_gpu_ms - replay.useful_gpu_ms, 0)
    return lost


def bill_of_replay(replay: Replay, prices: Prices | None = None) -> Bill:
    """Bill the jobs of a replay, by user of the trace. Its sums are those of the meter, and of the summary's cost."""
    trace, energy = replay.trace, energy_of(replay)
    cost = None if prices is None else cost_of_jobs(replay, prices, energy)
    kwh = None if energy is None else energy.job_j / J_PER_KWH
    held_h, lost_h, tier = replay.service_gpu_ms / MS_PER_H, lost_gpu_ms(replay) / MS_PER_H, tiers(replay)
    jobs = []
    for row in range(len(trace)):
        used = None if kwh is None else float(kwh[row])
        user = int(trace.user[row])
        jobs.append(BilledJob(
            job=trace.job_id[row], user=trace.users[user] if user >= 0 else _NO_USER, tier=TIERS[tier[row]],
            amounts=Amounts(
                gpu_h=float(held_h[row]), lost_gpu_h=float(lost_h[row]), kwh=used,
                co2_kg=None if used is None or prices is None else prices.co2_kg(used),
                cost=None if cost is None else float(cost[row]),
            ),
        ))
    idle_kwh = None if energy is None else energy.unattributed_j / J_PER_KWH
    return Bill(
        jobs=jobs, idle_kwh=idle_kwh,
        idle_co2_kg=None if idle_kwh is None or prices is None else prices.co2_kg(idle_kwh),
        taken=list(_taken(replay)), basis=_basis(replay, prices),
    )


def _taken(replay: Replay) -> Iterator[Taken]:
    """What was taken from each job that was preempted, in the order of the trace, all times together."""
    runs, lost = replay.runs, lost_gpu_ms(replay)
    if not len(runs.job):
        return
    last = np.full(len(replay.trace), -1)
    last[runs.job] = np.arange(len(runs.job))
    left = (replay.preemptions[runs.job] > 0) & (
        (np.arange(len(runs.job)) != last[runs.job]) | (replay.finish_ms[runs.job] < 0)
    )
    first: dict[int, int] = {}
    for run in np.flatnonzero(left).tolist():
        first.setdefault(int(runs.job[run]), run)
    gained: dict[int, set[int]] = {}
    for job, other in _next_holders(replay, left):
        gained.setdefault(job, set()).add(other)
    for job, run in sorted(first.items()):
        yield Taken(
            job=replay.trace.job_id[job], at_ms=int(runs.end_ms[run]),
            gpus=int(runs.first_gpu[run + 1] - runs.first_gpu[run]), times=int(replay.preemptions[job]),
            thrown_away_gpu_s=float(lost[job]) / MS_PER_S,
            gained=tuple(replay.trace.job_id[other] for other in sorted(gained.get(job, ()))),
        )


def _next_holders(replay: Replay, left: BoolArray) -> Iterator[tuple[int, int]]:
    """For each GPU of these runs: the run's job, and the job that had the GPU next, if it is another one."""
    runs = replay.runs
    run = np.repeat(np.arange(len(runs.job)), np.diff(runs.first_gpu))
    end_ms = np.where(runs.end_ms >= 0, runs.end_ms, replay.end_ms)
    span = int(max(end_ms.max(), runs.start_ms.max())) + 1
    key = runs.gpu * span + runs.start_ms[run]
    order = np.argsort(key, kind="stable")
    rows = np.flatnonzero(left[run])
    at = np.searchsorted(key[order], runs.gpu[rows] * span + end_ms[run[rows]])
    rows, at = rows[at < len(order)], at[at < len(order)]
    after = order[at]
    job, other = runs.job[run[rows]], runs.job[run[after]]
    is_gain = (runs.gpu[rows] == runs.gpu[after]) & (job != other)
    yield from sorted(set(zip(job[is_gain].tolist(), other[is_gain].tolist(), strict=True)))


def _basis(replay: Replay, prices: Prices | None) -> list[str]:
    said = [
        "GPU-hours are those held, shares of GPUs as shares. Lost are those without progress that was kept, of jobs "
        "that started again."
    ]
    said.append("No --price: no money." if prices is None else f"Cost is {prices.words}, work that was lost included.")
    if not replay.power:
        said.append("No --power: no energy.")
    elif prices is not None and prices.kwh:
        said.append(f"Energy is modelled, and costs {prices.kwh:g} per kWh; that of idle GPUs is billed to nobody.")
    else:
        said.append("Energy is modelled; that of idle GPUs is billed to nobody.")
    return said
