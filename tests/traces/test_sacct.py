"""The reader of sacct exports on rows whose result is known by hand."""

from __future__ import annotations

import re

import pytest

from brim import traces
from brim.core.trace import NONE, Status
from brim.errors import TraceError

from .examples import EXAMPLES, equal, read, save


def test_sacct(tmp_path):
    trace, report = read(tmp_path, "sacct")
    assert trace.job_id == ("101", "104", "107_4")
    assert trace.submit_ms.tolist() == [0, 7_000, 9_000]
    assert trace.run_ms.tolist() == [3_000_000, 1_800_000, 1_000]  # less ten minutes suspended; two attempts; 0 s
    assert trace.wait_ms.tolist() == [10_000, 293_000, 0]
    assert trace.jct_ms.tolist() == [3_610_000, 2_393_000, 1_000]  # the requeued job waited between its attempts
    assert trace.gpus.tolist() == [4, 2, 1]
    assert trace.cpu_milli.tolist() == [8_000, 1_500, 4_000]
    assert trace.mem_mib.tolist() == [30_720, 2_500, 4_096]
    assert trace.time_limit_ms.tolist() == [7_200_000, NONE, 1_800_000]
    assert trace.status.tolist() == [Status.COMPLETED, Status.COMPLETED, Status.FAILED]
    assert [trace.gpu_types[code] if code >= 0 else None for code in trace.gpu_type] == ["a100", None, "t4"]
    assert [trace.users[code] for code in trace.user] == ["ana", "cy", "ana"]
    assert [trace.groups[code] for code in trace.group] == ["vision"] * 3
    assert trace.origin_ms == 1_777_622_400_000  # 2026-05-01 08:00:00
    assert report.dropped == {
        "a job step, not a job": 1, "earlier attempt of a requeued job, merged": 1, "asks for no GPU": 1,
        "never started": 2, "still running when the record ends": 1,
    }  # fmt: skip


@pytest.mark.parametrize("last", [
    "Unknown|Unknown|Partition_Limit|PENDING", "2026-05-01T08:20:00|2026-05-01T08:40:00|Partition_Limit|REQUEUED",
])  # fmt: skip
def test_sacct_requeued_job_that_waits_again_has_not_finished(tmp_path, last):
    text = EXAMPLES["sacct"][1].replace("2026-05-01T08:20:00|2026-05-01T08:40:00|Partition_Limit|COMPLETED", last)
    trace, report = traces.read(save(tmp_path, "s", text))
    assert "104" not in trace.job_id
    assert report.dropped["requeued, and waiting again when the record ends"] == 1
    assert report.dropped["still running when the record ends"] == 1


TIMED = "JobID|User|Submit|Eligible|Start|End|State|AllocTRES|Suspended|NodeList"


def timed(job, user, submit, start, end, state, gpus, nodes="n1"):
    times = "|".join(f"2026-05-01T{clock}" for clock in (submit, submit, start, end))
    return f"{job}|{user}|{times}|{state}|cpu=1,gres/gpu={gpus}|00:00:00|{nodes}\n"


@pytest.mark.parametrize(("second", "ids"), [
    (timed(4, "ann", "09:00:00", "09:00:00", "09:30:00", "COMPLETED", 2), ("4", "4#2")),  # after it had ended
    (timed(4, "bob", "08:00:10", "08:00:10", "08:30:00", "COMPLETED", 2), ("4", "4#2")),  # of another user
    (timed(4, "ann", "08:00:00", "08:05:00", "08:30:00", "COMPLETED", 2), ("4", "4#2")),  # at the same time
    (timed(4, "ann", "08:10:01", "08:12:00", "08:30:00", "COMPLETED", 2), ("4",)),  # requeued when it ended
])
def test_sacct_jobs_of_one_id_are_told_apart(tmp_path, second, ids):
    first = timed(4, "ann", "08:00:00", "08:00:00", "08:10:00", "COMPLETED", 8)
    trace, report = traces.read(save(tmp_path, "s", f"{TIMED}\n{first}{second}{second}"))
    assert trace.job_id == ids
    assert report.repaired.get("has the id of an earlier job (of another user or cluster, or that had ended before): "
                               "told apart", 0) == len(ids) - 1
    if len(ids) == 2:
        assert trace.gpus.tolist() == [8, 2]
        assert trace.run_ms[0] == 600_000
        assert trace.jct_ms[0] == 600_000


@pytest.mark.parametrize(("rows", "gpu_s"), [
    # a user whose job was requeued while another user's had its id; a record that does not know its user
    ([("ann", "08:00:00", "08:00:00", "09:00:00", "NODE_FAIL", 4),
      ("bob", "08:30:00", "08:30:00", "09:30:00", "COMPLETED", 2),
      ("ann", "09:00:00", "09:10:00", "09:30:00", "COMPLETED", 4)], {"4": 4 * 4_800, "4#2": 2 * 3_600}),
    ([("ann", "08:00:00", "08:00:00", "09:00:00", "NODE_FAIL", 4),
      ("", "09:00:00", "09:10:00", "09:30:00", "COMPLETED", 4)],
     {"4": 4 * 4_800}),
    # clocks that differ by hours do not make two jobs of a requeued one; preempted and not requeued, it had ended
    ([("ann", "01:00:00", "01:00:00", "02:50:00", "NODE_FAIL", 8),
      ("ann", "02:01:00", "02:05:00", "03:30:00", "COMPLETED", 8)],
     {"4": 8 * 11_700}),
    ([("ann", "08:00:00", "08:00:00", "09:00:00", "PREEMPTED", 4),
      ("ann", "12:00:00", "12:00:00", "13:00:00", "COMPLETED", 2)],
     {"4": 4 * 3_600, "4#2": 2 * 3_600}),
    # what it asked for when it was cancelled, waiting again, it never had
    ([("ann", "08:00:00", "08:00:00", "09:00:00", "NODE_FAIL", 4),
      ("ann", "09:00:00", "Unknown", "09:30:00", "CANCELLED", 8)],
     {"4": 4 * 3_600}),
])  # fmt: skip
def test_sacct_attempts_of_one_job_stay_together(tmp_path, rows, gpu_s):
    text = "".join(timed(4, *row).replace("2026-05-01TUnknown", "Unknown") for row in rows)
    trace, _ = traces.read(save(tmp_path, "s", f"{TIMED}\n{text}"))
    assert dict(zip(trace.job_id, (trace.gpus * trace.run_ms // 1_000).tolist(), strict=True)) == gpu_s


def test_sacct_jobs_of_two_clusters_are_told_apart(tmp_path):
    """East's job 7 was requeued, while west had a job of this id."""
    rows = [timed(7, "ann", "08:00:00", "08:00:00", "08:10:00", "REQUEUED", 8),
            timed(7, "ann", "08:10:00", "08:12:00", "08:20:00", "COMPLETED", 8),
            timed(7, "ann", "08:01:00", "08:02:00", "08:30:00", "COMPLETED", 2)]
    text = "".join(f"{cluster}|{row}" for cluster, row in zip(("east", "east", "west"), rows, strict=True))
    trace, _ = traces.read(save(tmp_path, "s", f"Cluster|{TIMED}\n{text}"))
    assert dict(zip(trace.job_id, (trace.gpus * trace.run_ms).tolist(), strict=True)) == {
        "7@east": 8 * 18 * 60_000, "7@west": 2 * 28 * 60_000,
    }


def test_sacct_a_resized_job_has_the_gpu_time_of_its_sizes(tmp_path):
    """Slurm writes the start of the job in the record of each size, and the time of the resize as its submission."""
    rows = (timed(34, "ann", "08:00:00", "08:00:00", "08:00:09", "RESIZING", 8, "n[1-2]"),
            timed(34, "ann", "08:00:09", "08:00:00", "08:00:40", "COMPLETED", 4),
            timed(35, "ann", "08:00:00", "08:00:00", "08:00:08", "REQUEUED", 4, "n3"),
            timed(35, "ann", "08:00:08", "08:01:00", "08:01:15", "COMPLETED", 1, "n3"))
    trace, report = traces.read(save(tmp_path, "s", f"{TIMED}\n{''.join(rows)}"))
    assert trace.gpus.tolist() == [8, 4]
    assert (trace.gpus * trace.run_ms).tolist() == [(8 * 9 + 4 * 31) * 1_000, (4 * 8 + 15) * 1_000]
    assert trace.jct_ms.tolist() == [40_000, 75_000]
    assert report.dropped == {
        "earlier size of a resized job, merged": 1, "earlier attempt of a requeued job, merged": 1,
    }  # fmt: skip
    assert not any("as with --exclusive" in reason for reason in report.repaired)
    assert trace.cluster.num_gpus == 12  # two nodes for the first job, one for the second


def test_sacct_header_that_is_repeated_is_no_unusable_row(tmp_path):
    head = "JobID|Submit|Start|End|State|AllocTRES\n"
    trace, report = traces.read(save(tmp_path, "s", head + sacct_rows(1, 2) + head + sacct_rows(3, 3)))
    assert trace.job_id == ("1", "2", "3")
    assert (report.dropped, report.unusable) == ({"header line, repeated": 1}, {})


def test_sacct_only_attempt_that_was_requeued_has_not_finished(tmp_path):
    head = "JobID|Submit|Start|End|State|AllocTRES\n"
    text = head + sacct_rows(1, 2) + sacct_rows(3, 3).replace("COMPLETED", "REQUEUED")
    trace, report = traces.read(save(tmp_path, "s", text))
    assert trace.job_id == ("1", "2")
    assert report.dropped == {"requeued, and waiting again when the record ends": 1}


def test_sacct_without_requests_does_not_show_what_a_job_that_never_started_asked_for(tmp_path):
    head = "JobID|Submit|Start|End|State|AllocTRES\n"
    pending = "{}|2026-10-25T12:30:00|Unknown|Unknown|PENDING|\n"
    rows = sacct_rows(1, 2) + sacct_rows(3, 3, "cpu=1,mem=1G") + pending.format(4) + pending.format(2)
    trace, report = traces.read(save(tmp_path, "s", head + rows))
    assert trace.job_id == ("1",)
    assert report.dropped == {
        "asks for no GPU": 1, "never started": 1, "earlier attempt of a requeued job, merged": 1,
        "requeued, and waiting again when the record ends": 1,
    }  # fmt: skip


def test_sacct_attempt_without_an_end_is_counted(tmp_path):
    text = EXAMPLES["sacct"][1].replace("2026-05-01T08:05:00|2026-05-01T08:15:00", "2026-05-01T08:05:00|Unknown")
    trace, report = traces.read(save(tmp_path, "s", text))
    assert trace.run_ms[trace.job_id.index("104")] == 20 * 60_000
    assert report.repaired["earlier attempt without an end left out of the run time"] == 1


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED by 1000", "TIMEOUT"])
def test_sacct_job_that_ended_at_an_unknown_time_is_not_called_running(tmp_path, state):
    text = EXAMPLES["sacct"][1].replace("Unknown|12:00:00|RUNNING", f"Unknown|12:00:00|{state}")
    trace, report = traces.read(save(tmp_path, "s", text))
    assert "105" not in trace.job_id
    assert report.dropped["has ended, but its end is not in the record"] == 1
    assert "still running when the record ends" not in report.dropped


def test_sacct_export_written_twice_counts_each_record_once(tmp_path):
    text = EXAMPLES["sacct"][1]
    twice = text + "".join(text.splitlines(keepends=True)[1:])
    trace, report = traces.read(save(tmp_path, "sacct.txt", twice))
    assert equal(trace, read(tmp_path, "sacct")[0], but=("name",))
    assert report.rows == report.used + sum(report.dropped.values())


def test_sacct_job_during_which_the_clock_was_set_back_is_left_out_and_no_hour_invented(tmp_path):
    head = "JobID|Submit|Start|End|State|AllocTRES\n"
    row = "1|2026-10-25T02:00:00|2026-10-25T02:50:00|2026-10-25T02:10:00|COMPLETED|gres/gpu=1\n"
    with pytest.raises(TraceError, match="row 2, column 'End': found a run time of -2400 s"):
        traces.read(save(tmp_path, "s", head + row))
    trace, report = traces.read(save(tmp_path, "s", head + row + sacct_rows(2, 20)))
    assert "1" not in trace.job_id
    assert len(trace) == 19
    assert list(report.unusable) == [2]
    assert report.dropped == {"cannot be used": 1}
    assert set(report.repaired) == {
        "no column Suspended: suspended time counted as run time", "no column Timelimit: no time limit",
        "no column Eligible: waiting for dependencies, begin times and holds counts as waiting",
    }  # fmt: skip


ELIGIBLE = """\
JobID|JobIDRaw|Submit|Eligible|Start|End|State|ReqTRES|AllocTRES
7|7|2026-05-01T08:00:00|2026-05-01T08:00:00|2026-05-01T08:00:30|2026-05-01T08:01:30|COMPLETED|gres/gpu=1|gres/gpu=1
8|8|2026-05-01T08:00:00|2026-05-01T08:01:20|2026-05-01T08:01:30|2026-05-01T08:02:30|COMPLETED|gres/gpu=1|gres/gpu=4
9|9|2026-05-01T08:00:00|2026-05-01T09:00:00|2026-05-01T08:00:50|2026-05-01T08:01:50|COMPLETED||gres/gpu=1
10|10|2026-05-01T08:00:00|Unknown|2026-05-01T08:00:50|2026-05-01T08:01:50|COMPLETED|gres/gpu=1|gres/gpu=1
11|11|2026-05-01T08:00:10|2026-05-01T08:00:20|2026-05-01T08:01:00|2026-05-01T08:02:00|REQUEUED|gres/gpu=1|gres/gpu=1
11|11|2026-05-01T08:02:00|2026-05-01T08:04:01|2026-05-01T08:05:00|2026-05-01T08:06:00|COMPLETED|gres/gpu=1|gres/gpu=1
12+0|12|2026-05-01T08:00:00|2026-05-01T08:00:00|2026-05-01T08:00:30|2026-05-01T08:01:30|COMPLETED|gres/gpu=1|gres/gpu=1
12+1|13|2026-05-01T08:00:00|2026-05-01T08:00:00|2026-05-01T08:00:30|2026-05-01T08:01:30|COMPLETED|gres/gpu=1|gres/gpu=1
"""


def test_sacct_job_arrives_when_it_became_eligible(tmp_path):
    """Also a requeued one, whose later attempts have times of their own; never after its start."""
    trace, report = traces.read(save(tmp_path, "s", ELIGIBLE))
    row = {job: index for index, job in enumerate(trace.job_id)}
    assert [int(trace.submit_ms[row[job]]) // 1_000 for job in ("7", "8", "9", "10", "11")] == [0, 80, 50, 0, 20]
    assert [int(trace.wait_ms[row[job]]) // 1_000 for job in ("7", "8", "9", "10", "11")] == [30, 10, 0, 50, 40]
    assert [int(trace.jct_ms[row[job]]) // 1_000 for job in ("7", "8", "9", "10", "11")] == [90, 70, 60, 110, 340]
    (later,) = (rows for reason, rows in report.repaired.items() if reason.startswith("eligible only after"))
    assert later == 3


def test_sacct_jobs_with_more_gpus_than_asked_for_and_parts_of_jobs_are_counted(tmp_path):
    trace, report = traces.read(save(tmp_path, "s", ELIGIBLE))
    assert trace.gpus[trace.job_id.index("8")] == 4
    said = {reason.partition(" (")[0].partition(":")[0]: rows for reason, rows in report.repaired.items()}
    assert said["allocated GPUs differ from the requested ones"] == 1
    assert said["part of a heterogeneous job"] == 2


def test_sacct_times_of_another_form_name_the_variable_that_changes_them(tmp_path):
    text = ELIGIBLE.replace("2026-05-01T08", "01.05.26 08")
    with pytest.raises(TraceError, match=r"column 'Submit': found '01.05.26 .*SLURM_TIME_FORMAT=standard"):
        traces.read(save(tmp_path, "s", text))


def sacct_rows(first, end, tres="gres/gpu=1"):
    return "".join(
        f"{job}|2026-10-25T12:00:00|2026-10-25T12:50:00|2026-10-25T13:10:00|COMPLETED|{tres}\n"
        for job in range(first, end + 1)
    )


@pytest.mark.parametrize(("tres", "share", "kind"), [
    ("gres/gpu:a100_3g.20gb=1,gres/gpu=1", 428, "a100"), ("gres/gpu:1g.5gb=2,gres/gpu=2", 142, None),
    ("gres/gpu:nvidia_a30_2g.12gb=1", 500, "nvidia_a30"), ("gres/gpu:7g.80gb=1", 1_000, None),
    ("gres/gpu:a100=4,gres/gpu=4", 1_000, "a100"),
])  # fmt: skip
def test_sacct_slices_of_a_gpu_are_named_and_count_as_their_share(tmp_path, tres, share, kind):
    head = "JobID|Submit|Start|End|State|AllocTRES\n"
    trace, report = traces.read(save(tmp_path, "s", head + sacct_rows(1, 3, tres)))
    assert trace.share_milli.tolist() == [share] * 3
    assert [trace.gpu_types[code] if code >= 0 else None for code in trace.gpu_type] == [kind] * 3
    profile = tres.split("=")[0].rpartition(":")[2].rpartition("_")[2]
    named = {f"slices of a GPU (MIG {profile}) counted as their share of it": 3} if "gb" in tres else {}
    assert {reason: rows for reason, rows in report.repaired.items() if "no column" not in reason} == named


def test_sacct_jobs_with_shards_are_left_out_by_name(tmp_path):
    text = "JobID|Submit|Start|End|State|AllocTRES\n" + sacct_rows(1, 2) + sacct_rows(3, 5, "cpu=2,gres/shard=2")
    trace, report = traces.read(save(tmp_path, "s", text))
    assert trace.job_id == ("1", "2")
    (reason,) = report.dropped
    assert "shards of a GPU" in reason
    assert report.dropped[reason] == 3


@pytest.mark.parametrize(("text", "found"), [
    ("JobID           JobName      State\n------------ ---------- ----------\n1  a COMPLETED\n", "a fixed width"),
    ("JobID,State,AllocTRES,Start,End\n1,COMPLETED,cpu=1,gres/gpu=1,2026-10-25T12:00:00,\n", "separated by commas"),
    ('{"meta": {"Slurm": {"release": "22.05.8"}},\n "jobs": []}', "the JSON of sacct --json"),
    (sacct_rows(1, 2), "without a header line"),
    *(("|".join(("JobID", "State", "AllocTRES", "Start", "End\n")).replace("|", mark)
       + "|".join(("1", "COMPLETED", "cpu=1", "", "\n")).replace("|", mark), f"separated by {re.escape(repr(mark))}")
      for mark in ("\t", ";", "^", " ", "@", "::")),
])  # fmt: skip
def test_other_forms_of_sacct_get_a_hint(tmp_path, text, found):
    with pytest.raises(TraceError, match=found) as caught:
        traces.read(save(tmp_path, "s", text))
    assert "sacct -P" in str(caught.value)


def test_sacct_odd_rows_of_every_kind_are_left_out_with_their_job(tmp_path):
    head = "JobID|User|Submit|Start|End|State|AllocTRES\n"
    good = [f"{job}|ana|2026-10-25T12:00:00|2026-10-25T12:50:00|2026-10-25T13:10:00|COMPLETED|gres/gpu=1"
            for job in range(1, 101)]  # fmt: skip
    odd = {
        10: good[9].replace("ana", "an|a"),
        20: good[19].replace("13:10:00", "11:10:00"),
        30: good[29].replace("COMPLETED", "VANISHED"),
        40: good[39].replace("ana", "Ren\xe9"),
        50: good[49].replace("gres/gpu=1", "gres/gpu=one"),
        100: good[99][:-30],  # the last line is cut off
    }
    lines = [odd.get(job, row).encode("latin-1") for job, row in enumerate(good, 1)]
    other_attempt = good[19].replace("2026-10-25T12", "2026-10-24T12").encode()
    data = head.encode() + b"\n".join([*lines[:99], other_attempt, lines[99]])
    trace, report = traces.read(save(tmp_path, "s", data))
    assert sorted(set(map(str, range(1, 101))) - set(trace.job_id), key=int) == [str(job) for job in odd]
    assert report.dropped == {"cannot be used": 6, "another record of a job with a row that cannot be used": 1}
    assert {row: error.found for row, error in sorted(report.unusable.items())} == {
        11: "8 fields", 21: "a run time of -6000 s", 31: "'VANISHED'", 41: "byte 0xe9", 51: "'gres/gpu=one'",
        102: "a last line without a newline",
    }  # fmt: skip


def test_sacct_last_line_that_does_not_end_is_not_believed(tmp_path):
    text = "JobID|Submit|Start|End|State|AllocTRES\n" + sacct_rows(1, 20, "gres/gpu=16")
    trace, report = traces.read(save(tmp_path, "s", text[:-2]))  # gres/gpu=1
    assert trace.gpus.tolist() == [16] * 19
    assert [error.found for error in report.first_unusable(3)] == ["a last line without a newline"]


def test_a_dump_without_what_jobs_got_or_asked_names_the_column_that_the_document_asks_for(tmp_path):
    path = save(tmp_path, "jobs.txt", "JobIDRaw|Submit|Start|End|State\n1|Unknown|Unknown|Unknown|PENDING\n")
    with pytest.raises(TraceError, match="expected a column 'AllocTRES'"):
        traces.read(path, "sacct")
