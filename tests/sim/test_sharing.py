"""The truth in which jobs that share GPUs slow each other down, with known answers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from brim.beliefs.interference import DemandRule
from brim.beliefs.measured_sets import MeasuredSet, MeasuredSets
from brim.core.cluster import parse_cluster
from brim.core.trace import NONE
from brim.engine.journal import Journal, event_record, read_event
from brim.errors import ConfigError, NotFoundError
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.sim.truth_option import TruthOption
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.sharing import OBSERVATION_MS, Sharing
from brim.sim.truths.truth import Colocation
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))
FREE = ReplaySettings(overheads=Overheads(save_ms=0, restart_ms=0), gap_ms=0)
PAIR = MeasuredSets(rule=DemandRule(per_neighbour=0.0), sets=(MeasuredSet("T4", ("a", "b"), (1.25, 2.0)),))


def halves(*models, run=4000, **more):
    return small_trace(*(job(run=run, share=500, model=model, **more) for model in models))


def outcome_of(trace, measured=PAIR, **more):
    return replay(trace, parse_cluster("1x1xT4"), SKIP, FREE, truth=Sharing(Rigid(trace), trace, measured), **more)


def test_jobs_of_a_measured_set_are_slowed_down_as_they_were_measured():
    found = outcome_of(halves("a", "b"))
    assert found.finish_ms.tolist() == [5_000_000, 5_000_000 + 1_500_000]  # b: 2500 s of work by 5000 s, the rest alone


@pytest.mark.parametrize(("utils", "expected"), [((1000, 1000), 2.0), ((NONE, NONE), 2.0), ((0, 1000), 1.0)])
def test_other_jobs_are_slowed_down_by_demand_and_unknown_demand_is_all_of_it(utils, expected):
    trace = small_trace(*(job(run=4000, share=500, gpu_util=util) for util in utils))
    truth = Sharing(Rigid(trace), trace, PAIR)
    assert truth.slowdown(0, (1,)) == pytest.approx(expected, rel=1e-3)
    assert any("record no utilisation" in said for said in truth.sentences()) == (NONE in utils)


def test_a_job_reports_its_slowdown_only_after_it_could_observe_it():
    journal = Journal()
    outcome_of(halves("a", "b"), journal=journal)
    events = [read_event(record) for record in map(json.loads, journal.lines) if "e" in record]
    told = [(event.time_ms, event.job, event.report.slowdown_ratio) for event in events if event.report is not None]
    known = [one for one in told if not math.isnan(one[2])]
    assert sorted(known) == [(OBSERVATION_MS, 0, 1.25), (OBSERVATION_MS, 1, 2.0)]
    assert all(math.isnan(ratio) for at_ms, _, ratio in told if at_ms < OBSERVATION_MS)
    assert all(event == read_event(event_record(event)) for event in events if event.report is None)


def test_the_observation_begins_anew_when_the_neighbours_change():
    trace = small_trace(*(job(run=4000, at=at, share=300, gpu_util=100) for at in (0, 0, 500)))
    truth = Sharing(Rigid(trace), trace, PAIR)
    early = truth.pace(0, 10.0, (1,), NONE, Colocation(300, (1,), 0, 0.0))
    later = truth.pace(0, 700_000.0, (1,), NONE, Colocation(300, (1, 2), 0, 500_000.0))
    assert math.isnan(early.report.slowdown_ratio)
    assert math.isnan(later.report.slowdown_ratio)
    assert later.until == pytest.approx(500_000 + OBSERVATION_MS * later.per_ms)
    knows = truth.pace(0, later.until, (1,), NONE, Colocation(300, (1, 2), 0, 500_000.0))
    assert knows.report.slowdown_ratio == truth.slowdown(0, (1, 2))
    assert knows.ends


def test_what_was_observed_is_in_the_snapshot_until_the_neighbours_change():
    found = outcome_of(halves("a", "b"))
    assert (found.first_start_ms == 0).all()
    alone = replay(halves("a"), parse_cluster("1x1xT4"), SKIP, FREE)
    trace = halves("a")
    same = replay(trace, parse_cluster("1x1xT4"), SKIP, FREE, truth=Sharing(Rigid(trace), trace, PAIR))
    assert np.array_equal(same.finish_ms, alone.finish_ms)


def test_noise_is_drawn_once_for_each_set_and_nobody_becomes_faster():
    trace = halves("a", "b", "a")
    noisy = Sharing(Rigid(trace), trace, PAIR, noise=0.5, seed=1)
    ratios = [noisy.slowdown(one, (other,)) for one, other in ((0, 1), (1, 0), (0, 2), (2, 1))]
    assert ratios == [noisy.slowdown(one, (other,)) for one, other in ((0, 1), (1, 0), (0, 2), (2, 1))]
    assert min(ratios) >= 1
    assert ratios[:2] != [1.25, 2.0]


def test_the_option_of_the_command_line(tmp_path):
    path = tmp_path / "sets.toml"
    path.write_text('[[set]]\ngpu_type = "T4"\nmodels = ["a", "b"]\nslowdown_ratio = 0.5\n')
    trace, cluster = halves("a", "b"), parse_cluster("1x1xT4")
    truth = TruthOption(sharing="demand").build(trace, cluster)
    assert truth.contended
    with pytest.raises(ConfigError, match=r"sets.toml, set 1: found slowdown_ratio=0.5, expected a number"):
        TruthOption(sharing=str(path)).build(trace, cluster)
    with pytest.raises(NotFoundError, match=r"--sharing: cannot read nowhere\.toml"):
        TruthOption(sharing="nowhere.toml").build(trace, cluster)
