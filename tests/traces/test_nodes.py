"""The cluster behind a record is a lower bound: what its jobs held at once on the nodes that they ran on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim import traces
from brim.core.cluster import parse_cluster
from brim.sim.feasibility import fits, type_codes
from brim.traces.nodes import node_names

from .examples import save

HEAD = "JobID|Submit|Start|End|State|ReqTRES|AllocTRES|NodeList\n"


def row(job, start, end, gpus, nodes, *, kind="a100", cpu=4, mem="10G"):
    """One job that starts and ends at these minutes of an hour."""
    asked = f"cpu={cpu},gres/gpu={gpus},mem={mem}"
    given = f"cpu={cpu},gres/gpu:{kind}={gpus},gres/gpu={gpus},mem={mem}" if kind else asked
    finish = "Unknown" if end is None else f"2026-05-01T08:{end:02}:00"
    state = "RUNNING" if end is None else "COMPLETED"
    return f"{job}|2026-05-01T08:00:00|2026-05-01T08:{start:02}:00|{finish}|{state}|{asked}|{given}|{nodes}\n"


def seen(folder, *rows):
    trace, report = traces.read(save(folder, "s", HEAD + "".join(rows)))
    return trace, report.cluster


@pytest.mark.parametrize(("text", "names"), [
    ("n1", ["n1"]), ("n[1-3]", ["n1", "n2", "n3"]), ("gpu[08-10,12],a", ["gpu08", "gpu09", "gpu10", "gpu12", "a"]),
    ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]), ("None assigned", []),
    ("n[3-1]", []), ("n[1-", ["n", "1-"]), ("n[1-9999999]", []), ("", []),
])  # fmt: skip
def test_node_lists_of_slurm(text, names):
    assert node_names(text) == names


@given(text=st.text(st.sampled_from("n1-3[],"), max_size=12))
def test_any_text_gives_names_without_failing(text):
    assert all(isinstance(name, str) for name in node_names(text))


def test_jobs_that_overlap_add_up_and_jobs_that_follow_each_other_do_not(tmp_path):
    trace, said = seen(
        tmp_path, row(1, 1, 10, 4, "n1"), row(2, 5, 20, 4, "n1"), row(3, 10, 30, 4, "n1"), row(4, 1, 59, 8, "n[2-3]")
    )
    assert str(trace.cluster) == "3x8xa100:cpus=8,mem=20GB"
    assert "24 GPUs on the nodes that jobs ran on" in said
    assert "nodes that never ran a GPU job are not seen" in said
    assert "2 never held as many GPUs as others with like names, and 8 of these GPUs are only assumed" in said


def whole(job, node, gpus, cpu=64):
    """A job on a node of its own that asked for one GPU and one core."""
    given = row(job, 40, 50, gpus, node, cpu=cpu)
    return given.replace(f"cpu={cpu},gres/gpu={gpus},mem=10G", "cpu=1,gres/gpu=1,mem=10G")


def test_a_node_that_was_given_whole_has_the_gpus_that_were_given(tmp_path):
    large = [row(1, 1, 10, 8, "n1", cpu=64), row(2, 1, 10, 8, "n2"), row(3, 1, 10, 2, "n4")]
    trace, said = seen(tmp_path, *large, whole(4, "n1", 8), whole(5, "n4", 4))
    assert trace.cluster is not None
    assert trace.cluster.gpus_N.tolist() == [8, 8, 4]
    assert "only assumed" not in said
    fewer_cores, _ = seen(tmp_path, *large, whole(5, "n4", 4, cpu=63))
    more_seen, _ = seen(tmp_path, *large, row(6, 1, 10, 5, "n4"), whole(5, "n4", 4))
    for trace in (fewer_cores, more_seen):
        assert trace.cluster is not None
        assert trace.cluster.gpus_N.tolist() == [8, 8, 8]


def test_a_running_job_counts_and_kinds_of_nodes_are_kept_apart(tmp_path):
    trace, _ = seen(
        tmp_path, row(1, 1, None, 4, "gpu01"), row(2, 5, 20, 4, "gpu01"), row(3, 1, 2, 4, "t4-[1-2]", kind="T4", cpu=2),
        row(4, 3, 4, 1, "gpu02", kind="A100"), row(5, 3, 4, 2, "old9", kind=None),
    )  # fmt: skip
    assert str(trace.cluster) == "2x8xA100:cpus=8,mem=20GB+1x2xGPU:cpus=4,mem=10GB+2x2xT4:cpus=1,mem=5GB"


def test_gpus_that_are_not_spread_evenly_are_not_counted_twice(tmp_path):
    """Eight GPUs on three nodes: one of each is certain, and three on one of them."""
    trace, _ = seen(tmp_path, row(1, 1, 9, 8, "n[1-3]"), row(2, 1, 9, 1, "n1"))
    assert trace.cluster == parse_cluster("3x3xa100:cpus=5,mem=12GB")


def test_slices_of_gpus_make_up_whole_ones(tmp_path):
    trace, _ = seen(tmp_path, *(row(job, 1, 9, 1, "n1", kind="a100_1g.5gb") for job in range(1, 15)))
    assert trace.cluster is not None
    assert (trace.cluster.gpu_types, trace.cluster.num_gpus) == (("a100",), 2)


def test_a_requeued_job_counts_on_the_nodes_of_each_attempt(tmp_path):
    trace, _ = seen(tmp_path, row(1, 1, 5, 8, "n1"), row(1, 6, 9, 8, "n2"), row(1, 6, 9, 8, "n2"))
    assert trace.cluster == parse_cluster("2x8xa100:cpus=4,mem=10GB")


def test_a_node_with_more_gpus_than_a_node_can_have_is_not_believed(tmp_path):
    trace, said = seen(tmp_path, *(row(job, 1, 9, 8, "n1") for job in range(1, 10)))
    assert trace.cluster is None
    assert said == "72 GPUs in use at once on one node, so no cluster is inferred"


def test_record_without_nodes_has_no_cluster(tmp_path):
    text = HEAD + row(1, 1, 5, 8, "n1")
    trace, report = traces.read(save(tmp_path, "s", text.replace("|NodeList", "").replace("|n1", "")))
    assert (trace.cluster, report.cluster) == (None, "")


@given(data=st.data())
def test_every_job_of_a_record_fits_the_cluster_that_is_seen_in_it(tmp_path_factory, data):
    """Jobs placed on nodes of 8 GPUs as Slurm may do it: what is inferred has room for each, and is no larger."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    free_at = np.zeros((3, 8), dtype=int)  # minute at which each GPU is free
    rows = []
    for job in range(1, int(rng.integers(2, 12))):
        begin = int(rng.integers(0, 50))
        node, length = int(rng.integers(0, 3)), int(rng.integers(1, 9))
        nodes = [node] if rng.random() < 0.7 or node == 2 else [node, node + 1]
        each = int(rng.integers(1, 9))
        free = [np.flatnonzero(free_at[n] <= begin)[:each] for n in nodes]
        if any(len(gpus) < each for gpus in free):
            continue
        for n, gpus in zip(nodes, free, strict=True):
            free_at[n, gpus] = begin + length
        name = f"n{nodes[0]}" if len(nodes) == 1 else f"n[{nodes[0]}-{nodes[1]}]"
        rows.append((begin, row(job, begin, begin + length, each * len(nodes), name, cpu=int(rng.integers(1, 40)))))
    if not rows:
        return
    trace, _ = traces.read(save(tmp_path_factory.mktemp("n"), "s", HEAD + "".join(text for _, text in rows)))
    assert trace.cluster is not None
    assert fits(trace, trace.cluster, type_codes(trace, trace.cluster)[trace.gpu_type]).all()
    assert trace.cluster.gpus_N.max() <= 8
    assert trace.cluster.num_nodes <= 3


def test_a_job_may_divide_its_gpus_unevenly_among_its_nodes(tmp_path):
    """Six GPUs on two nodes beside jobs of six and four: two on the one node, four on the other."""
    trace, said = seen(tmp_path, row(1, 0, 9, 6, "n[1-2]"), row(2, 0, 9, 6, "n1"), row(3, 0, 9, 4, "n2"))
    assert trace.cluster is not None
    assert trace.cluster.gpus_N.tolist() == [8, 8]
    assert "how many GPUs each node gave is not recorded for runs on several nodes (1 of them)" in said
    assert traces.doubts(trace, parse_cluster("2x8xa100")) == []


def test_a_job_on_several_nodes_fits_the_cluster_that_only_it_shows(tmp_path):
    trace, _ = seen(tmp_path, row(1, 1, 9, 8, "n[1-3]", cpu=8))
    assert trace.cluster is not None
    assert fits(trace, trace.cluster, type_codes(trace, trace.cluster)[trace.gpu_type]).all()


def test_what_jobs_surely_held_is_counted_and_no_more(tmp_path):
    """An attempt of 0 s, a suspended job and an attempt without an end hold nothing for sure beside other jobs."""
    head = HEAD.replace("|NodeList", "|NodeList|Suspended")
    rows = [
        row(1, 1, 1, 4, "n1"), row(2, 1, 9, 8, "n1"), row(3, 3, 8, 8, "n1"), row(4, 1, None, 8, "n2"),
        row(4, 5, 9, 8, "n2"),
    ]  # fmt: skip
    paused = ["00:00:00", "00:00:00", "00:05:00", "00:00:00", "00:00:00"]
    text = head + "".join(f"{text[:-1]}|{time}\n" for text, time in zip(rows, paused, strict=True))
    trace, _ = traces.read(save(tmp_path, "s", text.replace("08:03:00|2026-05-01T08:08", "08:02:00|2026-05-01T08:08")))
    assert trace.cluster is not None
    assert trace.cluster.gpus_N.tolist() == [8, 8]


def test_a_job_requeued_by_hand_after_it_had_ended_does_not_enlarge_the_cluster(tmp_path):
    """Slurm 22.05 writes the time of the requeue over the end: job 1 ended before job 2 started on its GPUs."""
    ended = row(1, 1, 20, 8, "n1").replace("COMPLETED", "REQUEUED")
    trace, report = traces.read(save(tmp_path, "s", HEAD + ended + row(2, 5, 30, 8, "n1") + row(1, 31, 40, 8, "n1")))
    assert trace.cluster is not None
    assert trace.cluster.gpus_N.tolist() == [8]
    (counted,) = (rows for reason, rows in report.repaired.items() if reason.startswith("attempt requeued by hand"))
    assert counted == 1


def test_a_job_that_ended_at_an_unknown_time_does_not_hold_its_gpus_for_ever(tmp_path):
    ended = row(1, 1, None, 8, "n1").replace("RUNNING", "COMPLETED")
    trace, _ = seen(tmp_path, ended, row(2, 5, 30, 8, "n1"))
    assert trace.cluster is not None
    assert trace.cluster.gpus_N.tolist() == [8]


def test_a_node_that_never_ran_a_job_does_not_make_the_cluster_wrong(tmp_path):
    trace, _ = seen(tmp_path, row(1, 0, 30, 8, "n1"), row(2, 0, 30, 8, "n2"), row(3, 0, 30, 8, "n3"))
    assert traces.doubts(trace, parse_cluster("4x8xa100")) == []
