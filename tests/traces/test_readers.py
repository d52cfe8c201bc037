"""Each reader on a few rows whose result is known by hand."""

from __future__ import annotations

import gzip
import random
import re

import pytest

from brim import traces
from brim.core.cluster import parse_cluster
from brim.core.trace import NONE, Status
from brim.errors import TraceError
from brim.reports.record import RecordedMetrics, record_of

from .examples import EXAMPLES, PAI, equal, save


def read(folder, key, format_name=None):
    return traces.read(save(folder, *EXAMPLES[key]), format_name)


@pytest.mark.parametrize("key", EXAMPLES)
def test_format_is_found_from_the_content_and_every_row_is_accounted_for(tmp_path, key):
    trace, report = read(tmp_path, key)
    assert report.format == trace.format == key.split()[0]
    assert report.rows == report.used + sum(report.dropped.values())
    assert report.used == len(trace) > 0
    assert equal(trace, traces.read(save(tmp_path, "x", EXAMPLES[key][1]), key.split()[0])[0], but=("name",))


@pytest.mark.parametrize("key", EXAMPLES)
def test_gzip_byte_order_mark_carriage_returns_and_blank_lines_change_nothing(tmp_path, key):
    name, text = EXAMPLES[key]
    plain, _ = read(tmp_path, key)
    data = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"\r\n\r\n"
    packed, _ = traces.read(save(tmp_path, name + ".gz", gzip.compress(data)))
    assert equal(plain, packed, but=("name",))


@pytest.mark.parametrize("key", [key for key in EXAMPLES if key != "philly"])
@pytest.mark.parametrize("seed", range(3))
def test_order_of_rows_changes_nothing(tmp_path, key, seed):
    name, text = EXAMPLES[key]
    lines = text.splitlines(keepends=True)
    fixed = {"gavel": 0, "shockwave": 0, "swf": 2}.get(key, 1)
    rows = lines[fixed:]
    random.Random(seed).shuffle(rows)
    assert equal(read(tmp_path, key)[0], traces.read(save(tmp_path, name, "".join(lines[:fixed] + rows)))[0])


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


@pytest.mark.parametrize("key", ["helios", "sacct", "swf"])
def test_a_file_whose_every_row_is_not_utf_8_says_so(tmp_path, key):
    name, text = EXAMPLES[key]
    first = text.index("\n", text.rindex("\n;") + 1 if "\n;" in text else 0)
    rows = text[first:].rstrip("\n").replace("\n", "\n\xe9")
    with pytest.raises(TraceError, match=r"found byte 0xe9, expected UTF-8 text; iconv -f latin1"):
        traces.read(save(tmp_path, name, (text[:first] + rows + "\n").encode("latin-1")))


def test_sacct_attempt_without_an_end_is_counted(tmp_path):
    text = EXAMPLES["sacct"][1].replace("2026-05-01T08:05:00|2026-05-01T08:15:00", "2026-05-01T08:05:00|Unknown")
    trace, report = traces.read(save(tmp_path, "s", text))
    assert trace.run_ms[trace.job_id.index("104")] == 20 * 60_000
    assert report.repaired["earlier attempt without an end left out of the run time"] == 1


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


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize("key", ["brim", "philly-csv", "helios", "acme", "itp", "openb"])
@pytest.mark.parametrize("is_named", [False, True])
def test_another_separator_than_commas_is_named(tmp_path, key, mark, is_named):
    name, text = ("t.csv", "job_id,submit_ms,gpus,run_ms\na,0,1,5000\n") if key == "brim" else EXAMPLES[key]
    with pytest.raises(TraceError) as caught:
        traces.read(save(tmp_path, name, text.replace(",", mark)), key if is_named else None)
    assert f"row 1: found columns separated by {mark!r}, expected commas" in str(caught.value)


@pytest.mark.parametrize("key", ["sacct", "philly-csv", "helios", "acme", "itp", "openb", "pollux", "gavel", "swf"])
def test_a_row_that_cannot_be_used_is_left_out_counted_and_shown(tmp_path, key):
    """Many good rows and a few bad ones: the trace is the one without the bad ones."""
    name, text = EXAMPLES[key]
    lines = text.replace("|\\\n", "|").splitlines(keepends=True)
    fixed = {"gavel": 0, "swf": 2}.get(key, 1)
    good = lines[fixed]
    name_of = ID_OF.get(key, "no id")
    rows = "".join(good.replace(name_of, f"{name_of}9{number}", 1) for number in range(1_000, 1_060))
    separator = {"sacct": "|", "gavel": "\t", "swf": " "}.get(key, ",")
    head = "".join(lines[:fixed])
    plain, before = traces.read(save(tmp_path, name, head + rows))
    bad = good.rstrip("\n") + separator + "1\n"
    trace, report = traces.read(save(tmp_path, name, head + rows + bad + bad))
    assert equal(trace, plain)
    assert report.rows == before.rows + 2
    assert report.dropped == {**before.dropped, "cannot be used": 2}
    assert [error.row for error in report.first_unusable(3)] == [fixed + 61, fixed + 62]
    with pytest.raises(TraceError, match=r"20 rows cannot be used, the others give at most 60 jobs; more than 10% are"):
        traces.read(save(tmp_path, name, head + rows + bad * 20))


ID_OF = {
    "sacct": "101", "helios": "12", "acme": "1", "itp": "aa-1", "openb": "pod-1", "pollux": "cifar10-0", "swf": "  1",
}  # fmt: skip
"""What stands for the id in the first row."""


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


def test_philly_adds_attempts_up(tmp_path):
    trace, report = read(tmp_path, "philly")
    assert trace.job_id == ("app_3", "app_1")
    assert trace.run_ms.tolist() == [1_000, 3_660_000]
    assert trace.wait_ms.tolist() == [60_000, 30_000]
    assert trace.jct_ms.tolist() == [61_000, 3_720_000]  # 30 s between the attempts of app_1
    assert trace.gpus.tolist() == [1, 2]
    assert report.dropped == {"never started": 1, "still running when the record ends": 1}


def test_philly_extract_numbers_jobs_and_mentions_repeats(tmp_path):
    trace, report = read(tmp_path, "philly-csv")
    assert trace.job_id == ("1", "2", "3")
    assert trace.gpus.tolist() == [8, 1, 1]
    assert report.repaired == {"exact repeats of a row, kept as separate jobs": 1}


def test_helios(tmp_path):
    trace, report = read(tmp_path, "helios")
    assert trace.cpu_milli.tolist() == [3_000, 2_500]
    assert trace.wait_ms.tolist() == [5_000, 0]
    assert trace.jct_ms.tolist() == [3_605_000, 240_000]
    assert trace.status.tolist() == [Status.COMPLETED, Status.FAILED]
    assert report.dropped == {"asks for no GPU": 1, "never started": 1}


def test_acme_uses_offsets_and_computes_the_run_time(tmp_path):
    seren, _ = read(tmp_path, "acme")
    kalos, report = read(tmp_path, "acme kalos")
    assert seren.origin_ms == 1_677_628_800_000  # 2023-03-01 00:00 UTC
    assert seren.run_ms.tolist() == [120_000]
    assert kalos.run_ms.tolist() == [10_000]
    assert report.repaired == {"duration contains the queue: end minus start is used": 1}
    assert kalos.mem_mib.tolist() == [2 * 1000 * 1024 // 16]
    assert kalos.status.tolist() == [Status.FAILED]


def test_itp(tmp_path):
    trace, _ = read(tmp_path, "itp 195")
    assert trace.submit_ms.tolist() == [0, 85_000]
    assert [trace.profiles[code] for code in trace.profile] == ["vgg", "bert"]
    assert trace.batch.tolist() == [64, 32]
    assert trace.origin_ms is None


def test_openb_shares_and_first_allowed_type(tmp_path):
    trace, report = read(tmp_path, "openb")
    assert trace.share_milli.tolist() == [1_000, 460, 460]
    assert trace.cpu_milli.tolist() == [1_500, 6_000, 6_000]
    assert [trace.gpu_types[code] if code >= 0 else None for code in trace.gpu_type] == [None, "V100M16", "T4"]
    assert report.repaired == {"several GPU types allowed: only the first is used": 1}
    assert report.dropped == {"asks for no GPU": 1, "never started": 1}


def test_pollux_and_gavel_have_no_run_time_but_a_profile(tmp_path):
    for key in ("pollux", "gavel"):
        trace, _ = read(tmp_path, key)
        assert trace.run_ms.tolist() == [NONE, NONE]
        assert (trace.profile >= 0).all()
    assert read(tmp_path, "shockwave")[0].run_ms.tolist() == [1_418_000, 3_338_000]


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
    record = record_of(trace, parse_cluster("1x8xT4"))
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


@pytest.mark.parametrize("path", ["", "pai_job_table.csv", "pai_task_table.csv"])
@pytest.mark.parametrize("header", [False, True])
def test_pai_tables_are_joined_from_a_folder_or_one_file(tmp_path, path, header):
    for name, text in PAI.items():
        kind = name.split("_")[1]
        save(tmp_path, name, (",".join(traces.pai.TABLES[kind]) + "\n" if header else "") + text)
    trace, report = traces.read(tmp_path / path)
    assert trace.job_id == ("j1", "j2")
    assert trace.gpus.tolist() == [2, 9]
    assert trace.share_milli.tolist() == [500, 1_000]
    assert trace.cpu_milli.tolist() == [7_000, 2_000]
    assert trace.mem_mib.tolist() == [25_240, 10_240]
    assert trace.wait_ms.tolist() == [15_000, 5_000]
    assert trace.jct_ms.tolist() == [1_000_000, 400_000]
    assert trace.run_ms.tolist() == [985_000, 395_000]
    assert report.rows == report.used + sum(report.dropped.values())
    assert report.repaired == {"more than one GPU, not a whole number: rounded up": 1}
    assert report.dropped == {
        "task row joined to its job": 6, "task row without a job": 1, "instance row joined to its job": 2,
        "asks for no GPU": 1, "never started": 1, "still running when the record ends": 1,
    }  # fmt: skip


def test_own_csv_needs_three_columns(tmp_path):
    trace, _ = read(tmp_path, "brim")
    assert trace.after.tolist() == [NONE, 0]
    assert trace.run_ms.tolist() == [60_000, NONE]
    assert len(traces.read(save(tmp_path, "o.csv", "job_id,submit_ms,gpus\nx,5,1\n"))[0]) == 1
