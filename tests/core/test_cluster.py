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
    ('gpus = 8\nnodes = "a"', "group 1: found nodes='a', expected a whole number, 1 to 1000000"),
    ("gpus = 8\nnodes = 0", "group 1: found nodes=0, expected a whole number, 1 to 1000000"),
    ("gpus = -8", "group 1: found gpus=-8, expected a whole number, 1 to 64"),
    ('gpus = 8\ntype = "b d"', "group 1: found type='b d', expected a letter, then letters, digits, _ . or -, such as "
                               "V100"),
    ("gpus = 8\ncpus = -4", "group 1: found cpus=-4, expected a number of cores above zero and below a billion"),
    ('gpus = 8\nmem = "x"', "group 1: found mem='x', expected a size above zero and below a billion GB, such as 192GB "
                            "or 512MiB"),
])  # fmt: skip
def test_a_cluster_file_that_is_wrong_is_named_with_its_group(tmp_path, text, said):
    path = tmp_path / "c.toml"
    path.write_text(f"[[group]]\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        parse_cluster(str(path))
    assert str(caught.value) == f"cluster file {path}, {said}"


@pytest.mark.parametrize(("text", "said"), [
    ("", "nothing"), ("[[groups]]\ngpus = 8\n", "'groups'"), ("group = 3\n", "a 'group' that is none"),
])  # fmt: skip
def test_a_cluster_file_without_groups_is_named_with_what_it_has(tmp_path, text, said):
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        parse_cluster(str(path))
    assert str(caught.value) == f"cluster file {path}: found {said}, expected [[group]] tables"


def test_a_cluster_string_that_is_wrong_is_shown_as_it_was_written():
    with pytest.raises(ConfigError) as caught:
        parse_cluster("8x8xV100:cpus=-4")
    assert str(caught.value) == (
        "cluster '8x8xV100:cpus=-4': found cpus='-4', expected a number of cores above zero and below a billion"
    )
    with pytest.raises(ConfigError, match=r"^cluster '1x8:cpus=4,cpus=5': found cpus twice, expected it once$"):
        parse_cluster("1x8:cpus=4,cpus=5")


def test_a_cluster_file_and_a_string_describe_the_same_cluster(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[[group]]\nnodes = 2\ngpus = 8\ntype = "V100"\ncpus = 96\nmem = "768GB"\n[[group]]\ngpus = 4\n'
                    'type = "T4"\ncpus = 1.5\n')
    assert parse_cluster(str(path)) == parse_cluster("2x8xV100:cpus=96,mem=768GB+1x4xT4:cpus=1.5")
