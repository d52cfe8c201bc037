"""What starts and growths of padding jobs are expected to cost, and the account that the state keeps of them."""

from __future__ import annotations

import numpy as np
import pytest

from brim.beliefs.joins import PastJoins
from brim.beliefs.overheads import RESTART_MS
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.joins import OF_JOB, JoinTimes
from brim.core.saved import state_bytes, state_of
from brim.core.setting import setting_of
from brim.core.state import ClusterState
from brim.core.trace import NONE, JobClass
from brim.errors import ConfigError

FIRST = np.zeros(1, dtype=np.int64)


def joins(starts: tuple[int, ...] = (), cluster: tuple[int, ...] = (), growths: tuple[int, ...] = ()) -> JoinTimes:
    """One padding job with these changes, on a cluster with these starts and no other growths."""
    own = [np.array([[*found, *[NONE] * (OF_JOB - len(found))]]) for found in (starts, growths)]
    return JoinTimes(starts_ms=own[0], growths_ms=own[1], cluster_starts_ms=np.array(cluster),
                     cluster_growths_ms=np.array(growths))


def test_one_slow_start_does_not_make_joining_dear():
    belief = PastJoins()
    assert belief.start_ms(joins((9_400,), (300, 300, 9_400)), FIRST) == 300.0
    assert belief.start_ms(joins((9_400, 1_200, 1_300), (300, 300, 9_400, 1_200, 1_300)), FIRST) == 1_300.0


def test_a_job_that_really_starts_slowly_is_believed_from_its_third_start():
    assert PastJoins().start_ms(joins((9_400, 9_000, 9_200), (300,) * 13), FIRST) == 9_200.0


def test_a_growth_is_judged_by_growths_and_the_first_by_starts():
    assert PastJoins().growth_ms(joins((1_200,), (1_200,)), FIRST) == 1_200.0
    assert PastJoins().growth_ms(joins((1_200,), (1_200,), growths=(200,)), FIRST) == 200.0


def test_before_any_start_it_is_the_usual_restart_and_nobody_needs_to_keep_account():
    assert PastJoins().start_ms(joins(), FIRST) == RESTART_MS
    assert PastJoins().growth_ms(JoinTimes(), FIRST) == RESTART_MS
    with pytest.raises(ConfigError, match="own_min is 0, expected at least 1"):
        PastJoins(0)


def test_the_state_tells_starts_from_growths_and_keeps_both_when_saved():
    cluster = parse_cluster("1x3xT4")
    state = ClusterState(cluster, ("ann",), padding_apart=True)
    one, two = (setting_of([(0, gpu) for gpu in range(count)], revocable=True) for count in (1, 2))
    for number, job_class in enumerate((JobClass.REGULAR, JobClass.PADDING)):
        spec = JobSpec(id=number, user=0, submit_ms=0, gpus=1, gpus_max=2, gpus_min=1, job_class=job_class)
        state.apply(Event(0, Kind.SUBMITTED, number, spec=spec))
    happened = (
        (0, Kind.START, 0, setting_of([(0, 2)])), (300, Kind.STARTED, 0, None),  # a regular job
        (1000, Kind.START, 1, one), (3000, Kind.STARTED, 1, None),
        (4000, Kind.RESIZE, 1, two), (4200, Kind.STARTED, 1, None),
        (5000, Kind.RESIZE, 1, one), (5100, Kind.STARTED, 1, None),  # it shrinks: nobody joins
        (6000, Kind.PREEMPT, 1, None), (6500, Kind.EVICTED, 1, None),
        (7000, Kind.START, 1, two), (8500, Kind.STARTED, 1, None),
    )
    for time_ms, kind, number, setting in happened:
        state.apply(Event(time_ms, kind, number, setting=setting))
    for seen in (state, state.copy(), state.renumbered()[0], state_of(state_bytes(state), cluster)[0]):
        found = seen.freeze(8500).joins
        assert found.starts_ms.tolist() == [[NONE] * OF_JOB, [2000, 1500, *[NONE] * (OF_JOB - 2)]]
        assert found.growths_ms[1].tolist() == [200, *[NONE] * (OF_JOB - 1)]
        assert found.cluster_starts_ms.tolist() == [300, 2000, 1500]
        assert found.cluster_growths_ms.tolist() == [200]
    state.apply(Event(9000, Kind.FINISHED, 1))
    found = state.freeze(9000).joins
    assert found.cluster_starts_ms.tolist() == [300, 2000, 1500], "the cluster remembers"
    assert len(found.starts_ms) == 1
