"""What cannot be read gives one line that names file, row, column, found and expected; nothing else comes out."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim import traces
from brim.errors import ConfigError, TraceError
from brim.traces.formats import FORMATS
from tests.sampling import sample

from .examples import EXAMPLES, PAI, save


def message(path, format_name=None):
    with pytest.raises((TraceError, ConfigError)) as caught:
        traces.read(path, format_name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_standard_input_that_is_closed_is_said_to_be(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert message("-") == "standard input: found a closed stream, expected a trace"


def test_files_that_are_no_trace(tmp_path):
    assert "no such file" in message(tmp_path / "absent")
    assert "a folder" in message(tmp_path)
    assert message("") == "the name of the trace is empty: give a file, or - for standard input"
    assert "the file is empty" in message(save(tmp_path, "empty", b""))
    assert "the file is empty" in message(save(tmp_path, "blank", b" \n\n"))
    assert "binary data" in message(save(tmp_path, "binary", b"ELF\0\1\2"))
    assert "UTF-16" in message(save(tmp_path, "utf16", "job_id".encode("utf-16")))
    assert "one of the formats brim, sacct" in message(save(tmp_path, "prose", "to be or not to be\n"))
    latin = EXAMPLES["helios"][1].replace("ana", "Ren\xe9").encode("latin-1")
    assert "row 2: found byte 0xe9, expected UTF-8 text" in message(save(tmp_path, "latin", latin))
    assert "row 1: found byte 0xe9" in message(save(tmp_path, "latin", "Ren\xe9\n1\n".encode("latin-1")))
    packed = gzip.compress(EXAMPLES["helios"][1].encode())
    assert "broken gzip file (cut short)" in message(save(tmp_path, "cut.gz", packed[:-9]))
    assert "broken Parquet file" in message(save(tmp_path, "p.parquet", b"PAR1 and then nonsense"))


def test_a_file_of_which_every_row_lacks_a_field_is_refused_with_the_first(tmp_path):
    path = save(tmp_path, "short.csv", "job_id,submit_ms,gpus,duration_ms\n1,0,1\n2,0,1\n")
    assert f"{path}, row 2: found 3 fields, expected 4 fields (2 rows cannot be used" in message(path)


def test_compressed_files_are_read_or_named(tmp_path):
    name, text = EXAMPLES["helios"]
    plain, _ = traces.read(save(tmp_path, name, text))
    for kind, pack in (("bzip2", bz2.compress), ("xz", lzma.compress)):
        packed = pack(text.encode())
        trace, _ = traces.read(save(tmp_path, "packed", packed))
        assert trace.job_id == plain.job_id
        assert f"a broken {kind} file" in message(save(tmp_path, "cut", packed[:-9]))
    assert "compressed by zstd" in message(save(tmp_path, "z", b"\x28\xb5\x2f\xfd and more"))


def test_archives_are_named(tmp_path):
    (tmp_path / "one.csv").write_text("a\n")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "one.csv", "one.csv")
    assert "found a zip archive" in message(tmp_path / "a.zip")
    for mode, name in (("w", "a.tar"), ("w:gz", "a.tgz")):
        with tarfile.open(tmp_path / name, mode) as tar:
            tar.add(tmp_path / "one.csv", "one.csv")
        assert "found a tar archive" in message(tmp_path / name)


@pytest.mark.parametrize("name", [one.name for one in FORMATS[1:]])
def test_parquet_is_no_text_of_any_format(tmp_path, name):
    found = message(save(tmp_path, "x.parquet", b"PAR1\x15\x04\xc6\xff\n"), name)
    assert found.endswith(f"found a Parquet file, expected text in the format {name}")


@pytest.mark.parametrize("kind", ["job", "task", "instance"])
@pytest.mark.parametrize("given", ["folder", "table"])
def test_parquet_is_no_table_of_pai(tmp_path, kind, given):
    for name, text in PAI.items():
        save(tmp_path, name, text)
    bad = save(tmp_path, f"pai_{kind}_table.csv", b"PAR1\x15\x04\xc6\xff\n")
    said = message(tmp_path if given == "folder" else tmp_path / "pai_job_table.csv", "pai")
    assert said == f"{bad}: found a Parquet file, expected text in the format pai"


def test_a_header_below_the_description_of_a_trace_is_text(tmp_path):
    own = '# brim trace {"schema": 1}\njob_id,submit_ms,gpus,run_ms,Ren\xe9\na,0,1,1,x\n'
    assert "row 2: found byte 0xe9, expected UTF-8 text" in message(save(tmp_path, "own.csv", own.encode("latin-1")))


def test_unknown_format_name_suggests_the_nearest(tmp_path):
    assert "did you mean 'helios'?" in message(save(tmp_path, *EXAMPLES["helios"]), "helio")


def test_parts_of_pai_are_named(tmp_path):
    only = save(tmp_path, "pai_job_table.csv", PAI["pai_job_table.csv"])
    assert "found no pai_task_table" in message(only)
    assert "found no pai_task_table" in message(tmp_path)
    assert "found a folder" in message(tmp_path, "sacct")


CHANGES = [
    ("helios", "gpu_num", "gpus", "row 1, column 'gpu_num'"),
    ("helios", ",4,10,", ",-4,10,", "row 3, column 'gpu_num': found '-4', expected a whole number of GPUs"),
    ("helios", ",4,10,", ",4.5,10,", "row 3, column 'gpu_num': found '4.5'"),
    ("helios", "13,bob", "12,bob", "row 3, column 'job_id': found '12' again (first in row 2), expected each id once"),
    ("helios", "2020-06-09 18:04:01,240", "2020-06-09 17:04:01,240", "row 3, column 'end_time': found a run time of"),
    ("helios", "2020-06-09 18:00:01,2020", "2020-06-39 18:00:01,2020", "row 3, column 'submit_time'"),
    ("helios", "2020-06-09 18:00:01,2020", "2120-06-09 18:00:01,2020", "between 1970 and 2100"),
    ("helios", "TIMEOUT", "EXPLODED", "row 3, column 'state': found 'EXPLODED'"),
    ("helios", ",240,0\n", ",240\n", "row 3: found 11 fields, expected 12 fields"),
    ("helios", ",240,0\n", ",240,0,0\n", "row 3: found 13 fields, expected 12 fields"),
    ("helios", ",240,0\n", ",nan,0\n", "row 3, column 'duration': found 'nan'"),
    ("acme", "2023-03-01 08:00:00+08:00,2023-03-01 08:00:30+08:00", "x,2023-03-01 08:00:30+08:00", "submit_time"),
    ("philly-csv", "7200.0,8", "-7200.0,8", "row 3, column 'duration': found '-7200.0', expected seconds"),
    ("philly-csv", "7200.0,8", "inf,8", "row 3, column 'duration': found 'inf'"),
    ("philly-csv", "7200.0,8", "NaN,8", "row 3, column 'duration': found 'NaN'"),
    ("philly-csv", "7200.0,8", "1e12,8", "at most ten years"),
    ("philly-csv", "7200.0,8", "7200.0,0", "row 3, column 'num_gpus': found '0'"),
    ("philly-csv", "duration,", "durations,", "nearest: 'durations'"),
    ("itp", "aa-2", "aa-1", "row 3, column 'job_id': found 'aa-1' again (first in row 2)"),
    ("itp", "1932000", "1e300", "row 3, column 'submission_time'"),
    ("itp", "aa-2", "", "row 3, column 'job_id': found nothing"),
    ("openb", "1,460,T4", "1,1460,T4", "row 4, column 'gpu_milli'"),
    ("openb", "8,1000", "8,500", "row 2, column 'gpu_milli': found '500', expected 1000 for a pod with several GPUs"),
    ("pollux", ",ncf,", ",,", "row 3, column 'application': found nothing"),
    ("gavel", "\t44334", "", "row 2: found 9 fields, expected 10 fields"),
    ("gavel", "12.5", "soon", "row 2, column 'arrival_time': found 'soon'"),
    ("swf", " -1 -1 1 30", " -1 -1 1", "row 4: found 17 fields, expected 18 fields"),
    ("swf", " -1 -1 1 30", " -1 -1 2 30", "row 4, column 'preceding': found '2', expected the number of an earlier"),
    ("swf", "  2 10", "  1 10", "row 4, column 'job': found '1' again (first in row 3)"),
    ("sacct", "mem=120G,node=1|b", "mem=oneG,node=1|b", "row 2, column 'ReqTRES'"),
    ("sacct", "gres/gpu=4,mem=120G,node=1|b", "gres/gpu=four,mem=120G,node=1|b", "row 2, column 'ReqTRES'"),
    ("sacct", "02:00:00|COMPLETED", "2 hours|COMPLETED", "row 2, column 'Timelimit': found '2 hours'"),
    ("sacct", "101|ana", "|ana", "row 2, column 'JobIDRaw': found nothing"),
    ("sacct", "|OUT_OF_MEMORY|", "|OUT_OF_LUCK|", "column 'State': found 'OUT_OF_LUCK'"),
    ("sacct", "|Start|", "|Began|", "row 1, column 'Start'"),
    ("philly", '"app_3"', '"app_1"', "row 3, column 'jobid': found 'app_1' again (first in row 1)"),
    ("philly", "2017-10-07 01:01:30", "2017-10-06 01:01:30", "row 1, column 'attempts': found an end before its start"),
    ("philly", '"jobid": "app_2"', '"id": "app_2"', "row 2, column 'jobid': found"),
    ("philly", '"attempts": []', '"attempts": NaN', "NaN is not a value"),
    ("philly", '"detail": [{"ip": "m1", "gpus": ["gpu0"]}]}]}]', '"detail": [', "broken JSON"),
    ("brim", ",completed,", ",done,", "row 2, column 'status': found 'done'"),
    ("brim", ",completed,\n", ",completed,b\n", "row 2, column 'after': found 'b', expected dependencies without"),
    ("swf", "1000000000", "99999999999", "found UnixStartTime 99999999999, expected a time before 2100"),
    ("brim asks", ",padding,", ",idle,", "row 2, column 'job_class': found 'idle', expected regular, urgent or"),
    ("brim asks", ",-5,", ",high,", "row 2, column 'priority': found 'high', expected a whole number"),
    ("brim asks", ",7200000,", ",-7,", "row 2, column 'relative_deadline_ms': found '-7', expected a whole number"),
    ("brim asks", "1 2 4", "2 1 4", "row 2, column 'size_list': found '2 1 4', expected numbers of GPUs in increasing"),
    ("brim asks", "1 2 4", "2 4 8", "row 2, column 'size_list': found '2 4 8', expected a list with the job's own"),
    ("brim", ",,a\n", ",,z\n", "row 3, column 'after': found 'z', expected the id of another job"),
]


@pytest.mark.parametrize(("key", "old", "new", "expected"), CHANGES)
def test_corruption_is_named(tmp_path, key, old, new, expected):
    name, text = EXAMPLES[key]
    assert old in text
    path = save(tmp_path, name, text.replace(old, new, 1))
    said = message(path, key.split()[0])
    assert expected in said
    assert str(path) in said


def test_trace_without_a_usable_job_says_why(tmp_path):
    text = EXAMPLES["helios"][1].splitlines(keepends=True)
    said = message(save(tmp_path, "cluster_log.csv", text[0] + text[3]))
    assert "no usable job (1 asks for no GPU)" in said


def only_ours(path, format_name=None):
    try:
        _, report = traces.read(path, format_name)
    except (TraceError, ConfigError) as error:
        assert "\n" not in str(error)  # noqa: PT017 - both outcomes are right
    else:
        assert report.rows == report.used + sum(report.dropped.values())


QUIET = settings(
    max_examples=sample(60, 20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("format_name", [None, *(row.name for row in FORMATS)])
@QUIET
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_give_our_errors_alone(tmp_path, format_name, data):
    only_ours(save(tmp_path, "file", data), format_name)


EDITS = st.lists(
    st.tuples(
        st.integers(0, 3_000),
        st.integers(0, 12),
        st.one_of(
            st.sampled_from([b"", b"nan", b"-1", b"1e999", b"\n", b",", b"|", b"\t", b'"', b"99999999999999999999",
                             b"\xff", b"\0", b"None", b" ", b"9", b"0", b"[", b"{}", b"null"]),
            st.binary(max_size=4),
        ),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def edited(data, edits):
    for position, removed, inserted in edits:
        start = position % (len(data) + 1)
        data = data[:start] + inserted + data[start + removed :]
    return data


@pytest.mark.cases(2)
@pytest.mark.parametrize("key", EXAMPLES)
@QUIET
@given(edits=EDITS)
def test_mutated_files_give_our_errors_alone(tmp_path, key, edits):
    name, text = EXAMPLES[key]
    path = save(tmp_path, name, edited(text.encode(), edits))
    only_ours(path)
    only_ours(path, key.split()[0])


@QUIET
@given(edits=EDITS, which=st.sampled_from(sorted(PAI)))
def test_mutated_pai_tables_give_our_errors_alone(tmp_path, edits, which):
    for name, text in PAI.items():
        save(tmp_path, name, edited(text.encode(), edits) if name == which else text)
    only_ours(tmp_path)


@QUIET
@given(edits=EDITS)
def test_mutated_parquet_gives_our_errors_alone(tmp_path, edits):
    path = tmp_path / "a.parquet"
    traces.write(traces.synthesize("pai", 20, 1), path)
    only_ours(save(tmp_path, "b.parquet", edited(path.read_bytes(), edits)))


def test_a_file_of_another_format_than_the_one_named_is_refused_with_its_header(tmp_path):
    said = message(save(tmp_path, "jobs.csv", "job_id,submit_ms,gpus,run_ms\na,0,1,5000\n"), "sacct")
    found = "row 1: found a header of 'job_id,submit_ms,gpus,run_ms'"
    assert said.endswith(f"{found}, expected names of the format's columns, separated by '|'")
