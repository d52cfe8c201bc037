"""Speeds of a snapshot's jobs: exact where reports are, shared by jobs of one model, or kept apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.speeds import SeenSpeeds
from brim.beliefs.throughput import step_s, sync_s
from brim.core.arrays import frozen
from brim.core.tables import SeenSteps
from brim.testing import job, snapshot_of
from brim.testing.strategies import snapshots

RESNET = np.array([0.02, 0.004, 0.03, 0.01, 0.1, 0.03, 1.0])
BERT = np.array([0.05, 0.01, 0.06, 0.02, 0.3, 0.05, 1.0])
CONFIGURATIONS = [
    (nodes, gpus, local) for nodes, gpus in ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16)) for local in (8, 32, 64)
]
ENDED = -1


def steps(row, profile, parameters, configurations=CONFIGURATIONS):
    """What a job of these parameters would report; with an overlap of 1, all of the exchange is waited for."""
    return [
        (row, profile, nodes, gpus, local, float(step_s(parameters, nodes, gpus, local)),
         float(sync_s(parameters, nodes, gpus)))
        for nodes, gpus, local in configurations
    ]


def saw(snapshot, *rows):
    """The snapshot after reports, as (row, model, nodes, gpus, local batch, step, exchange)."""
    columns = list(zip(*rows, strict=True))
    names = ("job", "profile", "nodes", "gpus", "local_batch", "step_s", "sync_s")
    kinds = (np.int64,) * 5 + (np.float64,) * 2
    return replace(snapshot, seen=SeenSteps(**{
        name: frozen(np.array(column, dtype=kind)) for name, column, kind in zip(names, columns, kinds, strict=True)
    }))


def three_jobs():
    return snapshot_of("4x4xT4", job(model="resnet"), job(at=1, model="bert"), job(at=2, model="resnet"), now=3)


def test_what_is_believed_explains_what_was_reported():
    found = SeenSpeeds().of_jobs(saw(three_jobs(), *steps(0, 0, RESNET), *steps(1, 1, BERT)))
    for row, truth in enumerate((RESNET, BERT)):
        for nodes, gpus, local in CONFIGURATIONS:
            believed = step_s(found.parameters[row], nodes, gpus, local)
            assert believed == pytest.approx(step_s(truth, nodes, gpus, local), rel=0.05)


def test_each_job_knows_what_it_told_itself():
    mine = steps(0, 0, RESNET, CONFIGURATIONS[5::-1])
    found = SeenSpeeds().of_jobs(saw(three_jobs(), *mine, *steps(ENDED, 0, RESNET)))
    assert found.known.tolist() == [True, False, False]
    assert found.gpus_seen.tolist() == [2, 0, 0]
    assert np.isnan(found.parameters[1:]).all()
    assert np.isfinite(found.parameters[0]).all()


@pytest.mark.parametrize("teller", [0, 2, ENDED])
def test_jobs_of_one_model_know_what_any_of_them_told_those_that_are_over_included(teller):
    found = SeenSpeeds().of_models(saw(three_jobs(), *steps(teller, 0, RESNET, CONFIGURATIONS[:9])))
    assert found.known.tolist() == [True, False, True]
    assert found.gpus_seen.tolist() == [4, 0, 4]
    assert found.parameters[0].tolist() == found.parameters[2].tolist()


def test_what_several_jobs_of_a_model_told_is_one_fit():
    alone = SeenSpeeds().of_jobs(saw(three_jobs(), *steps(0, 0, RESNET)))
    shared = SeenSpeeds().of_models(
        saw(three_jobs(), *steps(0, 0, RESNET, CONFIGURATIONS[:6]), *steps(2, 0, RESNET, CONFIGURATIONS[6:])),
    )
    assert shared.parameters[0].tolist() == alone.parameters[0].tolist()


def test_jobs_of_no_known_model_keep_to_themselves():
    snapshot = saw(snapshot_of("4x4xT4", job(), job(at=1), now=3), *steps(0, -1, RESNET), *steps(ENDED, -1, BERT))
    assert SeenSpeeds().of_models(snapshot).known.tolist() == [True, False]


def test_what_cannot_be_fitted_is_not_known_but_was_seen():
    """A step that takes no longer than its exchange."""
    found = SeenSpeeds().of_jobs(saw(three_jobs(), (1, 1, 1, 4, 8, 0.5, 0.5)))
    assert (found.known.tolist(), found.failed.tolist()) == ([False] * 3, [False, True, False])
    assert found.gpus_seen.tolist() == [0, 4, 0]
    assert np.isnan(found.parameters).all()


@given(st.lists(snapshots(elastic_too=True), min_size=1, max_size=4))
def test_what_is_remembered_of_other_snapshots_changes_nothing(several):
    old = SeenSpeeds()
    for snapshot in several:
        for ask in ("of_jobs", "of_models"):
            one, other = getattr(old, ask)(snapshot), getattr(SeenSpeeds(), ask)(snapshot)
            assert one.known.tolist() == other.known.tolist()
            assert one.gpus_seen.tolist() == other.gpus_seen.tolist()
            assert np.array_equal(one.parameters, other.parameters, equal_nan=True)


def test_forgetting_changes_nothing(monkeypatch):
    monkeypatch.setattr("brim.beliefs.speeds._FITS_KEPT", 1)
    snapshot = saw(three_jobs(), *steps(0, 0, RESNET), *steps(1, 1, BERT), *steps(2, 0, BERT))
    speeds = SeenSpeeds()
    first, again = speeds.of_jobs(snapshot), speeds.of_jobs(snapshot)
    assert first.parameters.tolist() == again.parameters.tolist()
    assert len(speeds._fits) == 2  # two jobs report the same; those of one snapshot are kept however many they are
    speeds.of_jobs(saw(three_jobs(), *steps(0, 0, BERT * 2)))
    assert len(speeds._fits) == 1
