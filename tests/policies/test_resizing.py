"""Place parts that walk honour a new size of a running job: they keep as many of its GPUs as they can."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.reasons import Reason
from brim.errors import ConfigError
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate, Fragmentation, Spread
from brim.policies.sockets import Sizes
from brim.testing import job, snapshot_of
from brim.testing.free_lists import pairs_by_job
from brim.testing.rules import check_grants
from brim.testing.strategies import snapshots
from tests.sampling import sample


def elastic(**changes):
    return job(**({"gpus": 1, "gpus_min": 1, "gpus_max": 64, "batch": 8, "batch_min": 8, "batch_max": 512,
                   "local_batch_min": 1, "local_batch_max": 64} | changes))


def placed(snapshot, place, *gpus):
    """Where each row stands, and the grants."""
    sizes = Sizes(gpus=np.array(gpus, dtype=np.int64))
    grants = place(snapshot, Beliefs(), Arrival()(snapshot, Beliefs()), sizes)
    check_grants(snapshot, grants, resizes=True)
    return pairs_by_job(grants.job, grants.node, grants.gpu), grants


THREE_NODES = [(0, 0), (1, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize(("place", "left"), [
    (Consolidate(), [(1, 0), (1, 1)]), (Fragmentation(), [(1, 0), (1, 1)]), (Spread(), [(0, 0), (1, 0)]),
])
def test_a_job_that_shrinks_keeps_some_of_its_gpus(place, left):
    found, _ = placed(snapshot_of("3x2xT4", elastic(on=THREE_NODES), now=5), place, 2)
    assert found[0] == left


def test_what_is_given_back_is_there_for_a_job_before_it_in_the_order():
    snapshot = snapshot_of("1x4xT4", elastic(on=[(0, 0)]), elastic(on=[(0, 1), (0, 2), (0, 3)]), now=5)
    found, _ = placed(snapshot, Consolidate(), 3, 1)
    assert found == {0: [(0, 0), (0, 2), (0, 3)], 1: [(0, 1)]}


@pytest.mark.parametrize("place", [Consolidate(), Fragmentation(), Spread()])
def test_a_job_that_grows_keeps_its_gpus_and_is_given_more(place):
    snapshot = snapshot_of("2x4xT4", elastic(on=[(1, 2)]), job(on=[(1, 0)]), now=5)
    found, _ = placed(snapshot, place, 3, 1)
    assert (1, 2) in found[0]
    assert len(found[0]) == 3
    assert (len({node for node, _ in found[0]}) == 1) == (not isinstance(place, Spread))


def test_a_job_that_grows_does_not_get_the_rest_of_a_gpu_that_it_shares():
    snapshot = snapshot_of("1x2xT4", elastic(on=[(0, 0)], share=500), now=5)
    assert placed(snapshot, Consolidate(), 2)[0] == {0: [(0, 0), (0, 1)]}
    assert placed(snapshot, Consolidate(), 3)[0] == {0: [(0, 0)]}


@pytest.mark.parametrize("place", [Consolidate(), Fragmentation(), Spread()])
def test_a_job_that_cannot_grow_keeps_what_it_has_and_makes_nobody_leave(place):
    snapshot = snapshot_of("1x4xT4+1x4xV100", elastic(on=[(0, 0), (0, 1)]), job(on=[(0, 2), (0, 3)]), now=5)
    found, grants = placed(snapshot, place, 3, 2)
    assert found == {0: [(0, 0), (0, 1)], 1: [(0, 2), (0, 3)]}
    assert grants.why.tolist() == [Reason.RUNS, Reason.RUNS]


@pytest.mark.parametrize("misfit", ["wait", ["x"], None])
def test_an_unknown_misfit_is_named_whatever_its_type(misfit):
    with pytest.raises(ConfigError, match=re.escape(f"misfit {misfit!r}: expected one of stop, skip, reserve")):
        Consolidate(misfit)


@pytest.mark.parametrize(("misfit", "gpus"), [("stop", 1), ("reserve", 1), ("skip", 2)])
def test_a_job_does_not_grow_past_one_that_is_waited_for(misfit, gpus):
    snapshot = snapshot_of("1x4xT4", job(gpus=4), elastic(at=1, on=[(0, 0)]), job(at=2, on=[(0, 1)]), now=5)
    order, sizes = np.array([2, 0, 1]), Sizes(gpus=np.array([4, 2, 1]))
    grants = Consolidate(misfit)(snapshot, Beliefs(), order, sizes)
    assert len(pairs_by_job(grants.job, grants.node, grants.gpu).get(1, ())) == gpus


@settings(max_examples=sample(60, 20))
@given(st.data(), st.sampled_from((Consolidate, Spread, Fragmentation)), st.sampled_from(("stop", "skip", "reserve")))
def test_a_resized_job_keeps_as_many_of_its_gpus_as_it_can(data, kind, misfit):
    snapshot = data.draw(snapshots(elastic_too=True))
    jobs = snapshot.jobs
    sizes = [data.draw(st.integers(int(least), int(most))) for least, most in zip(
        jobs.gpus_min, jobs.gpus_max, strict=True)]
    found, _ = placed(snapshot, kind(misfit), *sizes)
    held = pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)
    for row, pairs in found.items():
        if row in held:
            assert len(pairs) in (sizes[row], min(sizes[row], len(held[row])))
            assert len(set(pairs) & set(held[row])) == min(len(pairs), len(held[row]))
            assert pairs == sorted(pairs)
        else:
            assert len(pairs) == sizes[row]
