"""The reader of the Standard Workload Format on rows whose result is known by hand."""

from __future__ import annotations

import pytest

from brim import traces
from brim.core.cluster import parse_cluster
from brim.core.trace import NONE
from brim.reports.record import RecordedMetrics, record_of

from .examples import equal, read, save


def test_swf_dependencies_and_unknowns(tmp_path):
    trace, report = read(tmp_path, "swf")
    assert trace.job_id == ("1", "2", "6")
    assert trace.origin_ms == 1_000_000_000_000
    assert trace.after.tolist() == [NONE, 0, NONE]
    assert trace.jct_ms.tolist() == [105_000, NONE, NONE]
    assert trace.after_ms.tolist() == [0, 30_000, 0]
    assert trace.gpus.tolist() == [4, 8, 1]
    assert trace.time_limit_ms.tolist() == [200_000, NONE, NONE]
    assert trace.mem_mib.tolist() == [0, 2, 0]
    assert report.repaired["processors read as GPUs"] == 3
    assert report.repaired["preceding job is not in the trace: starts without it"] == 1
    assert report.dropped == {
        "part of another record": 1,
        "no processors allocated, or none recorded": 1,
        "never started": 1,
    }


def test_swf_without_a_run_time_is_not_said_to_have_never_started(tmp_path):
    rows = [
        "1 0 5 60 4 -1 -1 4 -1 -1 1 3 1 7 -1 -1 -1 -1", "2 0 5 -1 4 -1 -1 4 -1 -1 1 3 1 7 -1 -1 -1 -1",
        "3 0 5 -1 4 -1 -1 4 -1 -1 0 3 1 7 -1 -1 -1 -1", "4 0 5 -1 -1 -1 -1 4 -1 -1 5 3 1 7 -1 -1 -1 -1",
        "5 0 5 0 4 -1 -1 4 -1 -1 5 3 1 7 -1 -1 -1 -1",
    ]  # fmt: skip
    _, report = traces.read(save(tmp_path, "log.swf", "".join(f"{row}\n" for row in rows)))
    assert report.dropped == {"never started": 2, "its run time is not recorded": 2}


def test_swf_dependencies_are_told_and_left_out_where_the_log_contradicts_them(tmp_path):
    """Job 1 ends at 100 s; 30 s later is 130 s. Job 4 has no recorded wait, so nothing contradicts it."""
    rows = [
        "1 0 0 100 8 -1 -1 8 -1 -1 1 1 1 -1 -1 -1 -1 -1", "2 130 20 60 8 -1 -1 8 -1 -1 1 1 1 -1 -1 -1 1 30",
        "3 90 20 60 8 -1 -1 8 -1 -1 1 1 1 -1 -1 -1 1 30", "4 90 -1 60 8 -1 -1 8 -1 -1 1 1 1 -1 -1 -1 1 30",
        "5 90 10 60 8 -1 -1 8 -1 -1 1 1 1 -1 -1 -1 1 -1",
    ]  # fmt: skip
    trace, report = traces.read(save(tmp_path, "log.swf", "".join(f"{row}\n" for row in rows)))
    row = {job: index for index, job in enumerate(trace.job_id)}
    assert [int(trace.after[row[job]]) for job in "12345"] == [NONE, row["1"], NONE, row["1"], row["1"]]
    assert [int(trace.after_ms[row[job]]) for job in "12345"] == [0, 30_000, 0, 30_000, 0]
    told = {reason: rows for reason, rows in report.repaired.items() if "preceding" in reason}
    assert told == {
        "waits for the end of its preceding job, and the think time after it (fields 17 and 18): counts as waiting": 3,
        "started before its preceding job and the think time had ended: replayed without that dependency": 1,
    }


@pytest.mark.parametrize("first", ["; Computer: Universit\xe4t\n", "; Version: 2.2\n; Note: \xe9t\xe9\n"])
def test_swf_comments_are_no_rows_and_need_no_decoding(tmp_path, first):
    log = swf((0, 8, 8), header=("MaxNodes: 1", "MaxProcs: 8"))
    plain, before = traces.read(save(tmp_path, "log.swf", log))
    trace, report = traces.read(save(tmp_path, "log.swf", (first + log + "; \xfc\n").encode("latin-1")))
    assert equal(trace, plain)
    assert (report.rows, report.dropped, report.cluster) == (before.rows, before.dropped, before.cluster)


def swf(*rows, header=()):
    """A log; of each row, submission, allocated and requested processors are given, and it ran for a minute."""
    text = "".join(f"; {line}\n" for line in ("Version: 2.2", *header))
    for job, (submit_s, allocated, requested) in enumerate(rows, 1):
        text += f"{job} {submit_s} 5 60 {allocated} -1 -1 {requested} -1 -1 1 3 1 7 -1 -1 -1 -1\n"
    return text


def test_swf_counts_allocated_processors_and_requested_ones_where_that_is_unknown(tmp_path):
    trace, report = traces.read(save(tmp_path, "log.swf", swf((0, 8, 5), (1, 2, 4), (2, -1, 3), (3, 6, -1), (4, 0, 4))))
    assert trace.gpus.tolist() == [8, 2, 3, 6]
    assert report.repaired == {
        "processors read as GPUs": 4, "allocated processors differ from the requested ones: the allocated are used": 2,
        "allocated processors not recorded: the requested are used": 1,
    }  # fmt: skip
    assert report.dropped == {"no processors allocated, or none recorded": 1}
    record = record_of(trace)
    assert isinstance(record, RecordedMetrics)
    assert record.held_gpu_s == 60 * (8 + 2 + 3 + 6)


@pytest.mark.parametrize("header", [
    ("MaxNodes: 4", "MaxProcs: 32"), ("MaxProcs:32 (24 batch, 8 login)", "MaxNodes:   4 (3 batch, 1 login)"),
    ("MaxNodes : 4", "MaxProcs\t: 32"),
])  # fmt: skip
def test_swf_header_gives_the_cluster(tmp_path, header):
    trace, report = traces.read(save(tmp_path, "log.swf", swf((0, 32, 32), header=header)))
    assert trace.cluster == parse_cluster("4x8xGPU")
    assert report.cluster == "4x8xGPU, 32 GPUs: MaxNodes 4 and MaxProcs 32 in its header"


@pytest.mark.parametrize(("header", "why"), [
    (("MaxNodes: 3", "MaxProcs: 32"), "MaxNodes 3 and MaxProcs 32 in its header, but 32 processors cannot be divided "
                                      "evenly over 3 nodes"),
    (("MaxNodes: 2", "MaxProcs: 512"), "MaxNodes 2 and MaxProcs 512 in its header, but a node can have at most 64 "
                                       "GPUs"),
    (("MaxNodes: 0", "MaxProcs: 32"), "MaxNodes 0 and MaxProcs 32 in its header, but the number of nodes must be 1 to "
                                      "1,000,000"),
    (("MaxNodes: 2", "MaxProcs: 4"), "MaxNodes 2 and MaxProcs 4 in its header, but a job has 8 processors"),
    (("MaxProcs: 32",), "MaxProcs 32 but no MaxNodes in its header"),
    (("MaxNodes: 32", "MaxProcs: unknown"), "MaxNodes 32 but an unreadable MaxProcs, 'unknown', in its header"),
    (("MaxNodes: 4x8",), "an unreadable MaxNodes, '4x8', but no MaxProcs in its header"),
    (("MaxNodes: 32", "MaxProcs:"), "MaxNodes 32 but no MaxProcs in its header"),
])  # fmt: skip
def test_swf_header_that_gives_no_cluster_says_why(tmp_path, header, why):
    trace, report = traces.read(save(tmp_path, "log.swf", swf((0, 8, 8), header=header)))
    assert trace.cluster is None
    assert report.cluster == f"{why}, so no cluster is inferred"


def test_swf_without_header_numbers_says_nothing_of_a_cluster(tmp_path):
    trace, report = traces.read(save(tmp_path, "log.swf", swf((0, 8, 8))))
    assert (trace.cluster, report.cluster) == (None, "")
