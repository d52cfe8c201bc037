"""Clusters as people write them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.errors import ConfigError
from brim.sim.feasibility import type_codes
from tests.reports.fakes import drawn_replay, drawn_trace


def test_types_that_differ_in_case_alone_are_one_type():
    cluster = parse_cluster("2x4xA100+3x8xa100+1x2xT4")
    assert cluster.gpu_types == ("A100", "T4")
    assert cluster.gpu_type_N.tolist() == [0, 0, 0, 0, 0, 1]


def test_types_of_a_trace_are_found_without_regard_to_case():
    trace = trace_of(
        name="x", format="test", job_id=["1", "2", "3"], submit_ms=[0, 0, 0], gpus=[1, 1, 1],
        gpu_types=("a100", "t4"), gpu_type=[0, 1, -1],
    )  # fmt: skip
    assert type_codes(trace, parse_cluster("2x4xA100+1x2xT4")).tolist() == [0, 1, -1]
    with pytest.raises(ConfigError, match="jobs ask for GPU type 't4', but the cluster has A100, V100"):
        type_codes(trace, parse_cluster("2x4xA100+1x2xV100"))


def test_clusters_of_equal_groups_are_equal():
    assert parse_cluster("2x4xT4") == parse_cluster("2x4xT4")
    assert parse_cluster("2x4xT4") != parse_cluster("4x2xT4")
    assert len({parse_cluster("2x4xT4"), parse_cluster("2x4xT4")}) == 1


def test_columns_are_read_only_in_another_process_too():
    replay = drawn_replay(drawn_trace(20, seed=1, load_gpus=8), "2x4xT4", "fifo")
    replay = pickle.loads(pickle.dumps(replay))
    for table in (replay, replay.trace, replay.cluster, replay.runs):
        columns = [value for name in table.__slots__ if isinstance(value := getattr(table, name), np.ndarray)]
        assert columns
        assert not any(column.flags.writeable for column in columns)


@pytest.mark.parametrize(("text", "said"), [
    ("gpus = 8\nnode = 4", "group 1: found 'node', expected gpus and any of nodes, type, cpus, mem"),
    ("nodes = 4", "group 1: found no gpus, expected gpus and any of nodes, type, cpus, mem"),
    ('gpus = 8\nnodes = "a"', "group 1: found nodes='a', expected a whole number"),
])  # fmt: skip
def test_a_cluster_file_that_is_wrong_is_named_with_its_group(tmp_path, text, said):
    path = tmp_path / "c.toml"
    path.write_text(f"[[group]]\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        parse_cluster(str(path))
    assert str(caught.value) == f"cluster file {path}, {said}"
