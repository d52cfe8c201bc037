"""The preset that uses all five decisions, and its objectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.trace import JobClass
from brim.engine.round import run_round
from brim.errors import ConfigError
from brim.policies.factorial import switches
from brim.policies.presets import OBJECTIVES, PRESETS, find_policy, with_objective
from brim.policies.size.candidates import candidates
from brim.testing import job, snapshot_of
from brim.testing.conformance import check_policy

ALL = [with_objective("brim", objective) for objective in OBJECTIVES]
LIGHT = {"gpu_util": 200, "gpu_mem": 3_000}
ELASTIC = {"gpus_min": 1, "gpus_max": 2, "batch": 32, "batch_min": 8, "batch_max": 64, "local_batch_max": 64}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_it_keeps_the_rules_of_policies(name):
    check_policy(find_policy(name), examples=8, seed=1)


def test_an_objective_names_a_preset():
    assert ALL == ["brim", "brim-energy", "brim-cost", "brim-balanced"]
    assert set(ALL) <= set(PRESETS)
    assert with_objective("fifo", None) == "fifo"
    for name, objective, said in (("brim", "joy", "found 'joy', expected"), ("fifo", "jct", "fifo takes no")):
        with pytest.raises(ConfigError, match=said):
            with_objective(name, objective)


def test_the_decisions_that_the_factorial_can_switch():
    assert switches(PRESETS["brim"]) == switches(PRESETS["brim-energy"]) == ("size", "place", "feed", "fill")


@pytest.mark.parametrize(("name", "shares"), [(name, name != "brim") for name in ALL])
def test_light_jobs_share_for_every_objective_but_completion_times(name, shares):
    snapshot = snapshot_of("2x1xV100", job(on=[(0, 0)], **LIGHT), job(**LIGHT), now=10)
    wanted = run_round(snapshot, Beliefs(), PRESETS[name]).grants
    assert (wanted.share_milli == (500 if shares else 1000)).all()
    assert len(wanted) == 2


def test_residents_are_not_resized():
    """Two jobs share a GPU of three; the size part divides the other two among those that do not share."""
    pair = [job(on=[(0, 0)], share=500, **ELASTIC) for _ in range(2)]
    snapshot = snapshot_of("1x3xV100", *pair, job(on=[(0, 1)], **ELASTIC), now=10)
    snapshot = replace(snapshot, jobs=replace(snapshot.jobs, share_milli=np.full(3, 1000)))
    found = candidates(snapshot, Beliefs().speeds.of_jobs(snapshot), gpus_max=2)
    assert (found.stays.tolist(), found.active.tolist(), found.capacity) == ([1, 1, 0], [False, False, True], 2)


@pytest.mark.parametrize("name", ALL)
def test_padding_wakes_no_node_to_save_energy(name):
    padding = job(job_class=JobClass.PADDING, gpus_min=1, gpus_max=2, batch=8)
    snapshot = snapshot_of("2x1xV100", job(on=[(0, 0)]), padding, now=10)
    snapshot = replace(snapshot, nodes=replace(snapshot.nodes, asleep=np.array([False, True])))
    wanted = run_round(snapshot, Beliefs(), PRESETS[name]).grants
    assert wanted.job.tolist() == ([0] if name == "brim-energy" else [0, 1])
