"""brim's own files give back the trace that was written."""

from __future__ import annotations

import csv

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim import traces
from brim.core.trace import JobClass, trace_of
from brim.errors import BrimError, ConfigError, TraceError
from tests.sampling import sample

from .examples import EXAMPLES, equal, save

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


@st.composite
def any_trace(draw):
    ids = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    size = len(ids)
    users = draw(st.lists(NAMES, max_size=3, unique=True))
    lists = draw(st.lists(st.sets(st.integers(1, 9)).map(lambda sizes: tuple(sorted(sizes | {2}))), unique=True))
    listed = draw(st.lists(st.integers(-1, len(lists) - 1), min_size=size, max_size=size))

    def column(low, high):
        return draw(st.lists(st.integers(low, high), min_size=size, max_size=size))

    return trace_of(
        name=draw(NAMES), format=draw(NAMES), synthetic=draw(st.booleans()),
        origin_ms=draw(st.none() | st.integers(0, 10**12)), job_id=ids, submit_ms=column(0, 5),
        gpus=[2 if code >= 0 else draw(st.integers(1, 9)) for code in listed], size_list=listed, size_lists=lists,
        users=users, user=column(-1, len(users) - 1), run_ms=column(-1, 10**9), share_milli=column(1, 1000),
        priority=column(-9, 9), job_class=column(0, 2), relative_deadline_ms=column(-1, 10**12),
        mem_mib=column(0, 1 << 40), status=column(0, 3), batch=column(-1, 9),
        after=[row - 1 if draw(st.booleans()) else -1 for row in range(size)],
    )  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz"])
@settings(max_examples=sample(60, 20), deadline=None)
@given(trace=any_trace())
def test_round_trip_loses_nothing(tmp_path_factory, ending, trace):
    path = tmp_path_factory.mktemp("own") / f"trace{ending}"
    traces.write(trace, path)
    again, report = traces.read(path)
    assert equal(trace, again)
    assert report.format == "brim"
    assert (report.rows, report.repaired, report.dropped) == (len(trace), {}, {})


@pytest.mark.parametrize(("times", "refused"), [
    ("3600000,0,60000", True), ("3600000,600000,4199999", False), ("3600000,600000,4197999", True),
    ("3600000,600000,9000000", False), (",600000,60000", False), ("3600000,600000,", False),
])
def test_a_job_that_ended_before_it_had_waited_and_run_is_refused(tmp_path, times, refused):
    text = f"job_id,submit_ms,gpus,run_ms,wait_ms,jct_ms\na,0,1,{times}\n"
    if refused:
        with pytest.raises(TraceError, match=r"row 2, column 'jct_ms': found \d+ with wait_ms \d+ and run_ms 3600000, "
                                             "expected at least wait_ms and run_ms together"):
            traces.read(save(tmp_path, "j.csv", text))
    else:
        assert len(traces.read(save(tmp_path, "j.csv", text))[0]) == 1


def test_a_parquet_column_in_which_nothing_is_recorded_is_empty(tmp_path):
    nothing = {name: [None, None] for name in ("user", "wait_ms", "size_list", "after")}
    frame = pl.DataFrame({"job_id": ["a", "b"], "submit_ms": [0, 1], "gpus": [1, 1], "run_ms": [5, 6], **nothing})
    frame.write_parquet(tmp_path / "t.parquet")
    trace, _ = traces.read(tmp_path / "t.parquet")
    assert (trace.user.tolist(), trace.wait_ms.tolist(), trace.after.tolist()) == ([-1] * 2, [-1] * 2, [-1] * 2)


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["x", "y"])])
def test_a_parquet_column_of_categories_is_text(tmp_path, kind):
    names, numbers = ["x", "y"], [1, 2]
    frame = pl.DataFrame({"job_id": names, "submit_ms": numbers, "gpus": numbers, "run_ms": numbers, "user": names})
    frame.write_parquet(tmp_path / "t.parquet")
    wanted, _ = traces.read(tmp_path / "t.parquet")
    frame.cast({"job_id": kind, "user": kind}).write_parquet(tmp_path / "t.parquet")
    assert equal(traces.read(tmp_path / "t.parquet")[0], wanted)


def split(lines):
    return csv.reader(lines)


def whole(lines):
    return [[lines[0].rstrip("\n")], *csv.reader(lines[1:])]


def padded(lines):
    rows = list(csv.reader(lines))
    width = max(map(len, rows)) + 2
    return [row + [""] * (width - len(row)) for row in rows]


@pytest.mark.parametrize("cells", [split, whole, padded])
def test_a_csv_that_a_spreadsheet_wrote_again_is_the_same_trace(tmp_path, cells):
    names = ["ann, lab", 'b "x"', ",", '",', "c,", "\\", "[", "\u20ac,"]
    trace = trace_of(name='a, "b",', format="x,", job_id=names, submit_ms=range(8), gpus=[1] * 8, users=names,
                     user=range(8))  # fmt: skip
    traces.write(trace, tmp_path / "before.csv")
    with (tmp_path / "before.csv").open(newline="", encoding="utf-8") as before:
        rows = list(cells(before.readlines()))
    with (tmp_path / "after.csv").open("w", newline="", encoding="utf-8-sig") as after:
        csv.writer(after).writerows(rows)
    again, report = traces.read(tmp_path / "after.csv")
    assert equal(trace, again)
    assert (report.format, report.dropped) == ("brim", {})


@pytest.mark.parametrize("odd", [lambda line: f"{line},,,,", lambda line: '"' + line.replace('"', '""') + '",,'])
def test_a_first_line_that_is_long_and_padded_or_quoted_is_read(tmp_path, odd):
    trace = trace_of(name="x" * 200_000, format="x", job_id=["a"], submit_ms=[0], gpus=[1])
    path = tmp_path / "t.csv"
    traces.write(trace, path)
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    path.write_text(f"{odd(first)}\n{rest}", encoding="utf-8")
    assert equal(trace, traces.read(path)[0])


def test_a_broken_first_line_in_quotes_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('"# brim trace {""schema"": 1\njob_id,submit_ms,gpus\na,0,1\n', encoding="utf-8")
    with pytest.raises(TraceError, match="row 1: found a broken description of the trace, expected the JSON that brim"):
        traces.read(path)


@pytest.mark.parametrize("key", EXAMPLES)
def test_every_format_converts(tmp_path, key):
    trace, _ = traces.read(save(tmp_path, *EXAMPLES[key]))
    traces.write(trace, tmp_path / "t.parquet")
    assert equal(trace, traces.read(tmp_path / "t.parquet")[0])


def test_what_a_job_asks_besides_gpus_is_read(tmp_path):
    trace, _ = traces.read(save(tmp_path, *EXAMPLES["brim asks"]))
    assert trace.priority.tolist() == [-5, 7, 0]
    assert trace.job_class.tolist() == [JobClass.PADDING, JobClass.URGENT, JobClass.REGULAR]
    assert trace.relative_deadline_ms.tolist() == [7_200_000, -1, -1]
    assert (trace.size_lists, trace.size_list.tolist()) == (((1, 2, 4),), [0, -1, 0])


def test_writing_needs_a_known_ending_and_a_folder(tmp_path):
    trace = traces.synthesize("pai", 3, 0)
    with pytest.raises(ConfigError, match=r"found the ending '.xls', expected .parquet, .csv or .csv.gz"):
        traces.write(trace, tmp_path / "a.xls")
    with pytest.raises(BrimError, match=r"cannot write .*a.csv: No such file or directory"):
        traces.write(trace, tmp_path / "absent" / "a.csv")
    assert np.array_equal(trace.submit_ms, np.sort(trace.submit_ms))


def test_a_column_that_is_nearly_one_of_ours_is_refused_and_others_are_not_read(tmp_path):
    rows = "job_id,submit_ms,gpus,{}\na,0,1,400\n"
    odd, other = tmp_path / "odd.csv", tmp_path / "other.csv"
    odd.write_text(rows.format("gpu_utl_milli"), encoding="utf-8")
    with pytest.raises(TraceError, match="found column 'gpu_utl_milli', expected 'gpu_util_milli', or a name that"):
        traces.read(odd)
    other.write_text(rows.format("gpu_model"), encoding="utf-8")
    assert len(traces.read(other)[0]) == 1


def test_what_is_expected_of_a_column_that_may_be_empty_says_so(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("job_id,submit_ms,gpus,run_ms\na,0,1,-100\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"'run_ms': found '-100', expected a whole number, 0 to .*, or nothing"):
        traces.read(path)
