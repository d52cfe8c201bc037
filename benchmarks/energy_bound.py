"""The least energy that a schedule of the jobs of ``brim sim reproduce eaco`` can use, by growth of the mean run time.

A linear program: hours that nodes spend with each set of up to four jobs, so that every model's work gets done and the
job-hours are at most (1 + growth) times those alone; power and slowdowns as in the replays. Idle and waking nodes,
arrivals, deadlines and memory are left out, so no schedule that shares by whole nodes can use less.

    python benchmarks/energy_bound.py
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
from scipy.optimize import linprog

from brim.beliefs.measured_sets import BUILTIN, load_sets
from brim.core.energy import BUSIEST, J_PER_KWH, energy_of
from brim.sim.reproduce.eaco import (
    ALONE,
    BASELINES,
    IDLE_W,
    MODELS,
    Conditions,
    MeasuredTruth,
    fitted_curve,
    fitted_rule,
)
from brim.sim.twin import replay
from brim.units import MS_PER_H

GROWTHS = (0.02, 0.032, 0.042, 0.064, 0.089, 0.166, 1.0)
RESIDENTS = 4


def least_kwh() -> dict[float, float]:
    """The bound for each growth."""
    trace, curve, rule = Conditions().trace(), fitted_curve(IDLE_W), fitted_rule()
    measured = {tuple(sorted(MODELS.index(name) for name in one.models)): one for one in load_sets(BUILTIN, "").sets}
    jobs = range(len(MODELS))
    sets = [found for count in range(1, RESIDENTS + 1) for found in combinations_with_replacement(jobs, count)]
    power_kw, pace = [], np.zeros((len(MODELS), len(sets)))
    for column, found in enumerate(sets):
        busy = min(BUSIEST, sum(ALONE[job].busy for job in found))
        power_kw.append((curve.idle_w + (curve.full_w - curve.idle_w) * busy**curve.exponent) / 1000)
        ratios = dict(zip((MODELS.index(name) for name in measured[found].models), measured[found].ratios, strict=True)
                      ) if found in measured else {}
        slowed = rule.slowdowns([ALONE[job].busy for job in found])
        for job, ratio in zip(found, slowed, strict=True):
            pace[job, column] += 1 / ratios.get(job, ratio)
    work_h = np.bincount(trace.profile, trace.run_ms, len(MODELS)) / MS_PER_H
    limits = np.vstack([-pace, [len(found) for found in sets]])
    return {
        growth: float(linprog(power_kw, A_ub=limits, b_ub=[*-work_h, (1 + growth) * work_h.sum()]).fun)
        for growth in GROWTHS
    }


def main() -> None:
    """Print the savings that the bound allows against exclusive FIFO, with and without sleeping nodes."""
    bound = least_kwh()
    for nodes in (64, 28):
        conditions = Conditions(nodes=nodes)
        trace, cluster = conditions.trace(), conditions.cluster
        for variant in BASELINES[:2]:
            energy = energy_of(replay(trace, cluster, variant.policy, variant.settings,
                                      truth=MeasuredTruth().build(trace, cluster)))
            assert energy is not None
            base = energy.total_j / J_PER_KWH
            allowed = ", ".join(f"{growth:+.1%}: {1 - kwh / base:.1%}" for growth, kwh in bound.items())
            print(f"{nodes} nodes, {variant.label}, {base:,.0f} kWh; most that any schedule saves: {allowed}")


if __name__ == "__main__":
    main()
