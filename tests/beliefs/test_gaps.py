"""The residual life of gaps, and the account that the state keeps of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from brim.beliefs.gaps import PastGaps
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.gaps import GAPS_KEPT, IdleGaps
from brim.core.saved import state_bytes, state_of
from brim.core.setting import setting_of
from brim.core.state import ClusterState
from brim.core.trace import NONE, JobClass
from brim.errors import ConfigError


def gaps(*columns: tuple[int, tuple[int, ...]]) -> IdleGaps:
    """Gaps of GPUs: idle since when, and past lengths."""
    past = [[*lengths, *[NONE] * (GAPS_KEPT - len(lengths))] for _, lengths in columns]
    return IdleGaps(since_ms=np.array([since for since, _ in columns]), past_ms=np.array(past))


def test_the_rest_is_the_median_of_what_was_left_of_gaps_that_lasted_as_long():
    found = PastGaps().rest_ms(gaps((100, (10, 50, 90, 130)), (100, (10, 50, 90)), (NONE, (10, 20, 30))), 120)
    assert found[0] == 70.0  # 30, 70 and 110 were left of gaps above 20 ms
    assert found[1] == 50.0  # two of its own are too few: of all, 50, 50, 90, 90, 130 and 30 lasted longer
    assert found[2] == 0.0


def test_without_a_gap_that_lasted_so_long_as_much_is_expected_again_and_without_any_gap_no_end():
    assert PastGaps().rest_ms(gaps((0, (10,))), 500).tolist() == [500.0]
    assert PastGaps().rest_ms(gaps((0, ())), 500).tolist() == [math.inf]
    with pytest.raises(ConfigError, match="gaps_min is 0, expected at least 1"):
        PastGaps(0)


def test_the_state_notes_gaps_between_regular_jobs_only_and_keeps_them_when_saved():
    cluster = parse_cluster("1x2xT4")
    state = ClusterState(cluster, ("ann",), padding_apart=True)
    for number, job_class in enumerate((JobClass.REGULAR, JobClass.PADDING, JobClass.REGULAR)):
        spec = JobSpec(id=number, user=0, submit_ms=0, gpus=1, job_class=job_class)
        state.apply(Event(0, Kind.SUBMITTED, number, spec=spec))
    state.apply(Event(2000, Kind.START, 0, setting=setting_of([(0, 0)])))
    state.apply(Event(5000, Kind.FINISHED, 0))
    state.apply(Event(6000, Kind.START, 1, setting=setting_of([(0, 0)], revocable=True)))
    state.apply(Event(9000, Kind.PREEMPT, 1))
    state.apply(Event(9000, Kind.START, 2, setting=setting_of([(0, 0)])))
    frozen = state.freeze(9000)
    assert frozen.gaps.since_ms.tolist() == [NONE, 0]
    assert frozen.gaps.past_ms[0, :3].tolist() == [4000, 2000, NONE]
    assert frozen.users.usage_gpu_ms[0] == pytest.approx(3000, rel=1e-3), "what padding used is nobody's usage"
    again, _ = state_of(state_bytes(state), cluster)
    assert again.freeze(9000).gaps.past_ms.tolist() == frozen.gaps.past_ms.tolist()
