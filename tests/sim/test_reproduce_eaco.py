"""EaCO's measured table from a model fitted on its first rows, and its clusters in small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brim.core.trace import NONE
from brim.sim.reproduce import eaco
from brim.sim.twin import replay


def test_pairs_and_triples_are_met_and_the_four_jobs_too():
    """The condition of the issue; the four jobs were not asked for, and a first fit was 18 to 21 % off in energy."""
    rows = eaco.table_rows()
    assert [row.published for row in rows] == list(eaco.TABLE)
    assert sum(row.is_asked for row in rows) == 5
    assert all(row.is_met for row in rows if row.is_asked)
    assert abs(rows[-1].energy_error) < 0.03
    assert abs(rows[-1].jct_error) < 0.01


def test_with_a_plausible_idle_node_one_pair_is_just_off():
    off = [row.published.jobs for row in eaco.table_rows(eaco.IDLE_W) if row.is_asked and not row.is_met]
    assert off == [(0, 3)]


@pytest.mark.parametrize("slacks", sorted(eaco.SLACKS))
def test_jobs_train_measured_models_and_have_deadlines(slacks):
    trace = eaco.Conditions(jobs=200, slacks=slacks).trace()
    assert (trace.gpus == 8).all()
    assert trace.profiles == eaco.MODELS
    due = trace.relative_deadline_ms
    drawn = np.unique(np.round(due[due != NONE] / trace.run_ms[due != NONE], 1)).tolist()
    assert drawn == sorted(factor for factor, _ in eaco.SLACKS[slacks] if factor)
    assert ((due == NONE).any()) == (0.0 in dict(eaco.SLACKS[slacks]))
    assert trace.run_ms.max() <= eaco.RUN_H_MAX * 3_600_000


def test_sharing_saves_energy_and_costs_time_on_a_small_cluster():
    conditions = eaco.Conditions(nodes=4, jobs=30, busy_nodes=3.0)
    trace = conditions.trace()
    rows = {}
    for variant in (eaco.EXCLUSIVE, eaco.EACO):
        truth = eaco.MeasuredTruth().build(trace, conditions.cluster)
        outcome = replay(trace, conditions.cluster, variant.policy, variant.settings, truth=truth)
        rows[variant.label] = eaco.cluster_row(variant.label, outcome)
    fifo, own = rows["fifo"], rows["eaco"]
    assert 0.0 < eaco.saving(own, fifo) < 1.0
    assert own.active_node_h < fifo.active_node_h
    assert fifo.run_growth == pytest.approx(0.0, abs=1e-9)
    assert own.run_growth > 0
    assert eaco.is_reached(replace(own, kwh=0.5 * fifo.kwh, run_growth=0.03), fifo)
    assert not eaco.is_reached(replace(own, kwh=0.5 * fifo.kwh, run_growth=0.04), fifo)
