"""Result files replace no input, are whole or absent, and standard output carries the result alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys

import polars as pl
import pytest

from brim.cli import submit
from brim.errors import BrimError
from brim.replacing import replacing
from tests import forked
from tests.cli.commands import MINE, brim

CLUSTER = ("-c", "2x8xV100")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("outputs") / "small.parquet"
    done = brim("trace", "synth", "philly", path, "-n", 40, "--seed", 3, *CLUSTER, "--load", 1)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def trace(made, tmp_path):
    return shutil.copy(made, tmp_path / "trace.parquet")


def refused(done, option):
    assert done.returncode == 4, (done.returncode, done.stderr)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"brim: error: {option}: ")
    assert "that this command reads; give another file name" in line
    assert done.stdout == ""


@pytest.mark.cases(2)
@pytest.mark.parametrize("option", ["--html", "--jobs"])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_a_result_never_replaces_the_trace_it_was_made_from(trace, tmp_path, option, link):
    before, target = trace.read_bytes(), trace
    if link:
        target = tmp_path / "link.parquet"
        link(trace, target)
    refused(brim("sim", "run", trace, *CLUSTER, option, target), option)
    assert trace.read_bytes() == before


def test_a_result_never_replaces_a_policy_a_cluster_or_a_profile(trace, tmp_path):
    policy, cluster, profiles = tmp_path / "mine.py", tmp_path / "cluster.toml", tmp_path / "profiles"
    policy.write_text(MINE.format(name="Mine", body="return np.arange(len(snapshot.jobs))"))
    cluster.write_text('[[group]]\nnodes = 2\ngpus = 8\ntype = "V100"\n')
    (profiles / "toy").mkdir(parents=True)
    inside = profiles / "toy" / "placements.csv"
    inside.write_text("placement\n")
    for words, target in (
        (("-p", policy), policy), (("-c", cluster), cluster), (("--library", inside), inside),
        (("--truth", "measured", "--profiles", profiles), inside),
    ):
        before = target.read_bytes()
        refused(brim("sim", "run", trace, *CLUSTER, *words, "--html", target), "--html")
        assert target.read_bytes() == before


def test_a_trace_is_not_converted_onto_itself(trace):
    before = trace.read_bytes()
    refused(brim("trace", "convert", trace, trace), "OUT")
    assert trace.read_bytes() == before


def test_jobs_are_written_as_the_name_says(trace, tmp_path):
    frames = []
    for name, read in (("jobs.csv", pl.read_csv), ("jobs.parquet", pl.read_parquet)):
        done = brim("sim", "compare", trace, *CLUSTER, "-p", "fifo,srtf", "--jobs", tmp_path / name)
        assert done.returncode == 0, done.stderr
        frames.append(read(tmp_path / name))
    csv, parquet = frames
    assert csv.columns == parquet.columns
    assert csv["jct_s"].to_list() == parquet["jct_s"].to_list()
    assert csv["policy"].to_list() == parquet["policy"].cast(pl.String).to_list()


def test_a_full_disk_is_one_line_and_leaves_the_old_file(trace, tmp_path):
    """With a limit on the size of files, as the kernel refuses to write on a full disk.

    Python would keep what it could write of a compiled module, which nobody could import from then on.
    """
    for name, option in (("jobs.parquet", "--jobs"), ("jobs.csv", "--jobs"), ("page.html", "--html")):
        target = tmp_path / "results" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text("what was there before")
        limited = (
            "import resource, signal, sys; sys.dont_write_bytecode = True; "
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); import brim.cli.main; "
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)); brim.cli.main.main()"
        )
        done = forked.run("-c", limited, "sim", "run", trace, *CLUSTER, option, target)
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1] == f"brim: error: cannot write {target}: File too large"
        assert "Traceback" not in done.stderr
        assert target.read_text() == "what was there before"
        assert [path.name for path in target.parent.iterdir() if path.name.endswith(".part")] == []


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    target = tmp_path / "page.html"
    target.write_text("old")

    def fill_the_disk():
        with replacing(target) as part:
            part.write_text("half of the new")
            raise OSError(28, "No space left on device")

    with pytest.raises(BrimError, match=r"cannot write .*page\.html: No space left on device"):
        fill_the_disk()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert target.read_text() == "old"


def test_a_link_to_a_result_stays_a_link(tmp_path):
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    with replacing(tmp_path / "link.html") as part:
        part.write_text("new")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text() == "new"


@pytest.mark.parametrize("words", [("--help",), ("policy", "list"), ("sim", "run", "-", *CLUSTER, "--json")])
def test_a_full_standard_output_is_one_line(made, words):
    with open("/dev/full", "w") as full, made.open("rb") as trace:
        done = brim(*words, stdin=trace, stdout=full.fileno())
    assert done.returncode == 1
    assert "No space left on device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("ids", "named"), [([3], "3"), ([3, 4, 5], "3-5")])
@pytest.mark.parametrize("wanted", ["table", "json"])
def test_ids_that_cannot_be_written_are_told_by_the_error(monkeypatch, ids, named, wanted):
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:  # closing it fails, too
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(BrimError, match=f"^submitted as {named}, which cannot be written .*: No space left on dev"):
            submit._print(ids, (), wanted)
    monkeypatch.undo()


def test_a_reader_that_has_enough_is_no_failure(trace):
    done = subprocess.run(
        f"{sys.executable} -m brim sim run {trace} -c 2x8xV100 --json 2>err.txt | head -c 1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=trace.parent, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.stdout in ("{0\n", "{141\n")
    assert "Traceback" not in (trace.parent / "err.txt").read_text()


@pytest.mark.parametrize("words", [("trace", "info", "-"), ("policy", "show", "fifo")])
def test_a_table_that_nobody_reads_to_the_end_is_no_failure(made, words):
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as nobody, made.open("rb") as trace:
        done = brim(*words, stdin=trace, stdout=nobody.fileno())
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr


NOISY = """
import os, sys, warnings
import atexit
print("printed at import")
warnings.warn("a warning at import")
os.write(1, b"written to the descriptor\\n")
atexit.register(print, "printed at exit")
"""


def test_what_a_policy_prints_does_not_reach_the_result(trace, tmp_path):
    policy = tmp_path / "noisy.py"
    body = "print('printed'); sys.stdout.write('written\\n'); return np.arange(len(snapshot.jobs))"
    policy.write_text(NOISY + MINE.format(name="Noisy", body=body))
    for words in (
        ("sim", "run", trace, *CLUSTER, "-p", policy, "--json"),
        ("sim", "compare", trace, *CLUSTER, "-p", f"fifo,{policy}", "--json"),
        ("policy", "show", policy, "--json"),
        ("policy", "check", policy, "--examples", "2", "--json"),
    ):
        done = brim(*words)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["schema"] == 1
        for said in ("printed at import", "written to the descriptor", "a warning at import"):
            assert said in done.stderr, words


def test_a_trace_is_read_from_standard_input(trace, tmp_path):
    with trace.open("rb") as stream:
        piped = brim("trace", "info", "-", "--json", stdin=stream)
    named = brim("trace", "info", trace, "--json")
    assert json.loads(piped.stdout)["jobs"] == json.loads(named.stdout)["jobs"] == 40
    assert "read standard input as brim" in piped.stderr


def test_a_pipe_gets_every_column_and_a_narrow_terminal_says_which_it_lacks(trace):
    import pty

    piped = brim("sim", "run", trace, *CLUSTER, env={**os.environ, "COLUMNS": "40"})
    for heading in ("rounds/s", "rho p95", "makespan x bound", "estimates"):
        assert heading in piped.stdout
    assert "too narrow" not in piped.stdout
    reader, terminal = pty.openpty()
    narrow = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    shown = brim("sim", "run", trace, *CLUSTER, stdout=terminal, env=narrow)
    os.close(terminal)
    assert shown.returncode == 0
    said = " ".join(os.read(reader, 1 << 16).decode().split())
    os.close(reader)
    assert "This terminal is too narrow for:" in said
    assert "rho p95" in said.partition("too narrow for:")[2].partition("--json shows them")[0]


def test_jobs_run_on_a_cluster_without_a_named_type_whatever_type_they_ask_for(tmp_path):
    trace = tmp_path / "typed.csv"
    trace.write_text("job_id,submit_ms,gpus,run_ms,gpu_type\na,0,2,60000,A100\nb,0,1,60000,V100\nc,0,1,60000,\n")
    done = brim("sim", "run", trace, "-c", "1x4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cluster"] == "1x4"
    assert found["results"][0]["finished"] == 3
    (said,) = [line for line in found["results"][0]["assumptions"] if "GPU types" in line]
    assert said == "The GPU types that jobs ask for are ignored: the cluster's GPUs have no named type."


@pytest.mark.slow
def test_a_name_that_the_encoding_of_standard_output_lacks_is_escaped(tmp_path):
    (tmp_path / "t.csv").write_text("job_id,submit_ms,gpus,run_ms,user\na,0,1,60000,bj\u00f6rn\n", encoding="utf-8")
    command = [sys.executable, "-m", "brim", "sim", "run", "t.csv", "-c", "1x8", "--price", "2", "--bill", "user"]
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"bj\\xf6rn" in done.stdout


@pytest.mark.parametrize(("file", "why"), [
    ("/proc/page.html", "folder /proc says: No such file or directory"),
    (f"{'p' * 245}.html", "says: File name too long"), (f"{'p' * 300}.html", "says: File name too long"),
], ids=["proc", "temporary", "name"])  # fmt: skip
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path, file, why):
    done = brim("sim", "run", "nowhere.csv", *CLUSTER, "--html", file, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"brim: error: --html: cannot write {file}: folder ")
    assert done.stderr.endswith(f"{why}\n")
    assert not list(tmp_path.iterdir())
