"""Each reader on a few rows whose result is known by hand."""

from __future__ import annotations

import gzip
import random

import pytest

from brim import traces
from brim.core.trace import NONE, Status
from brim.errors import TraceError

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
    assert [trace.gpu_types[code] if code >= 0 else None for code in trace.gpu_type] == ["a100", None, None]
    assert [trace.users[code] for code in trace.user] == ["ana", "cy", "ana"]
    assert [trace.groups[code] for code in trace.group] == ["vision"] * 3
    assert trace.origin_ms == 1_777_622_400_000  # 2026-05-01 08:00:00
    assert report.dropped == {
        "a job step, not a job": 1, "earlier attempt of a requeued job, merged": 1, "asks for no GPU": 1,
        "never started": 2, "still running when the record ends": 1,
    }  # fmt: skip


def test_sacct_requeued_job_that_waits_again_is_still_running(tmp_path):
    text = EXAMPLES["sacct"][1].replace("2026-05-01T08:20:00|2026-05-01T08:40:00|Partition_Limit|COMPLETED",
                                        "Unknown|Unknown|Partition_Limit|PENDING")  # fmt: skip
    trace, report = traces.read(save(tmp_path, "s", text))
    assert "104" not in trace.job_id
    assert report.dropped["still running when the record ends"] == 2


def test_sacct_export_written_twice_counts_each_record_once(tmp_path):
    text = EXAMPLES["sacct"][1]
    twice = text + "".join(text.splitlines(keepends=True)[1:])
    trace, report = traces.read(save(tmp_path, "sacct.txt", twice))
    assert equal(trace, read(tmp_path, "sacct")[0], but=("name",))
    assert report.rows == report.used + sum(report.dropped.values())


def test_sacct_clock_set_back_at_night_is_repaired_and_other_negative_times_are_not(tmp_path):
    head = "JobID|Submit|Start|End|State|AllocTRES\n"
    row = "1|2026-10-25T02:00:00|2026-10-25T02:50:00|2026-10-25T02:10:00|COMPLETED|gres/gpu=1\n"
    trace, report = traces.read(save(tmp_path, "s", head + row))
    assert trace.run_ms.tolist() == [20 * 60_000]
    assert report.repaired["clock set back during the job: an hour added"] == 1
    with pytest.raises(TraceError, match="row 2, column 'End': found a run time of -2400 s"):
        traces.read(save(tmp_path, "s", head + row.replace("T02", "T12")))


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
    assert report.repaired == {"exact repeats of a row, kept as jobs of their own": 1}


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
    assert report.repaired == {"several GPU types allowed: tied to the first": 1}
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
    assert report.dropped == {"part of another record": 1, "no processors recorded": 1, "never started": 1}


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
