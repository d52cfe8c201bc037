"""Each reader on a few rows whose result is known by hand."""

from __future__ import annotations

import gzip
import random

import pytest

from brim import traces
from brim.core.trace import NONE, Status
from brim.errors import TraceError

from .examples import EXAMPLES, PAI, equal, read, save


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


@pytest.mark.cases(17)
@pytest.mark.parametrize("key", [key for key in EXAMPLES if key != "philly"])
@pytest.mark.parametrize("seed", range(3))
def test_order_of_rows_changes_nothing(tmp_path, key, seed):
    name, text = EXAMPLES[key]
    lines = text.splitlines(keepends=True)
    fixed = {"gavel": 0, "shockwave": 0, "swf": 2}.get(key, 1)
    rows = lines[fixed:]
    random.Random(seed).shuffle(rows)
    assert equal(read(tmp_path, key)[0], traces.read(save(tmp_path, name, "".join(lines[:fixed] + rows)))[0])


@pytest.mark.parametrize("key", ["helios", "sacct", "swf"])
def test_a_file_whose_every_row_is_not_utf_8_says_so(tmp_path, key):
    name, text = EXAMPLES[key]
    first = text.index("\n", text.rindex("\n;") + 1 if "\n;" in text else 0)
    rows = text[first:].rstrip("\n").replace("\n", "\n\xe9")
    with pytest.raises(TraceError, match=r"found byte 0xe9, expected UTF-8 text; iconv -f latin1"):
        traces.read(save(tmp_path, name, (text[:first] + rows + "\n").encode("latin-1")))


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
