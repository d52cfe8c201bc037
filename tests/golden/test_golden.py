"""The same bytes as yesterday. After a change that is meant: ``python -m tests.golden.regold``."""

from __future__ import annotations

import numpy as np
import pytest

from brim.core.trace import NONE, trace_of
from brim.policies.presets import PRESETS
from brim.testing.rules import permuted
from tests.sampling import sample

from .cases import CLUSTERS, JOBS, TABLES, TRACES, load, names, path_of, table

CHANGING = [name for name, policy in PRESETS.items() if policy.changes_running]
"""Policies that resize, tune or move jobs that run: nine tenths of the time that all tables take."""
IN_TURN = [
    (trace, name) for trace, name in names()
    if name not in CHANGING or CHANGING.index(name) % len(TRACES) == TRACES.index(trace)
]
"""Each of them on one trace, on the traces in turn, and all others on every trace."""


@pytest.mark.cases(3)
@pytest.mark.parametrize(("trace", "policy"), sample(names(), IN_TURN))
def test_the_table_is_that_of_the_repository(trace, policy):
    assert table(load(trace), CLUSTERS[trace], policy) == path_of(trace, policy).read_text(encoding="ascii")


def test_the_tables_are_those_of_the_presets():
    assert {path.relative_to(TABLES) for path in TABLES.rglob("*.txt")} == {
        path_of(*name).relative_to(TABLES) for name in names()}


@pytest.mark.parametrize("policy", ["backfill", "tiresias", "fair"])
def test_the_rows_of_the_trace_may_come_in_any_order(policy):
    for name in TRACES:
        other = trace_of(**permuted(load(name), seed=4))
        assert table(other, CLUSTERS[name], policy) == path_of(name, policy).read_text(encoding="ascii")


def test_the_traces_are_what_they_are_meant_to_be():
    shares, gangs, users = map(load, TRACES)
    assert all(len(trace) == JOBS for trace in (shares, gangs, users))
    assert len(np.unique(shares.share_milli)) == 4
    assert gangs.gpus.max() > 8
    assert len(np.unique(gangs.gpu_type)) == 3
    assert (users.after != NONE).sum() > 5
    assert (users.time_limit_ms < users.run_ms).any()


def test_the_policies_differ_on_every_trace():
    for name in TRACES:
        said = {path.read_text(encoding="ascii").split("\n", 1)[1] for path in (TABLES / name).glob("*.txt")}
        assert len(said) >= 6
