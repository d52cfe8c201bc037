"""Who owns a job where the trace names no users."""

from __future__ import annotations

import numpy as np

from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.policies.presets import PRESETS
from brim.sim.specs import specs_of, user_names
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import replay


def two_groups(**names):
    """Group a submits four jobs at once, group b one right after; one GPU, 1 h each."""
    return trace_of(
        name="groups", format="test", job_id=["a1", "a2", "a3", "a4", "b1"], submit_ms=[0, 0, 0, 0, 1_000],
        gpus=[1] * 5, run_ms=[3_600_000] * 5, groups=("a", "b"), group=[0, 0, 0, 0, 1], **names,
    )


def test_groups_stand_for_users_where_there_are_none():
    trace = two_groups()
    assert user_names(trace) == ("a", "b", "(not recorded)")
    assert [spec.user for spec in specs_of(trace, parse_cluster("1x1xT4"), Rigid(trace))] == [0, 0, 0, 0, 1]
    result = replay(trace, parse_cluster("1x1xT4"), PRESETS["fair"])
    assert result.finish_ms[4] < np.sort(result.finish_ms[:4])[1]  # b's one job is done before a's second
    assert any("use its groups instead" in line for line in result.assumptions)


def test_users_come_before_groups():
    trace = two_groups(users=("ann",), user=[0] * 5)
    assert user_names(trace) == ("ann", "(not recorded)")
    said = replay(trace, parse_cluster("1x1xT4"), PRESETS["fair"]).assumptions
    assert not any("names no users" in line for line in said)
