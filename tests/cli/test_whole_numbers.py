"""Whole numbers of more digits than Python reads: one short line with the option, wherever a user may write one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from brim.cli import ps, token, up
from brim.cli.controller import find_ids, find_job
from brim.cli.headers import read_headers
from brim.cli.job_options import asked
from brim.cli.jobfile import read_jobfile
from brim.cli.options import whole
from brim.cli.report import _range
from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.errors import ConfigError, digits_of, shown
from brim.units import WHOLE_MAX, parse_duration_ms, parse_memory_mib, parse_whole
from tests.cli.commands import brim

LONG = "9" * 5_000
LONG_HEX = "0x" + "f" * 5_000
"""Python reads it, and does not print it."""


def refused(said, run, *args, **options):
    with pytest.raises(ConfigError, match=said) as error:
        run(*args, **options)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "+1", "1_0", " 1", "\u0663", "101", LONG])
def test_a_whole_number_has_decimal_digits_and_bounds(text):
    refused(r"^--tail: found .*, expected a line from 0 to 100$", whole, text, "--tail", 0, 100, what="a line")


def test_whole_numbers_are_read_as_they_are_written():
    assert [parse_whole(text, -7) for text in ("007", "-7", str(WHOLE_MAX))] == [7, -7, WHOLE_MAX]
    refused("^found '1000.*0', expected a whole number from 0 up, of at most 18 digits$", parse_whole, "1" + "0" * 18)


@pytest.mark.cases(4)
@pytest.mark.parametrize(("option", "text"), [
    ("gpus", LONG), ("gpus", f"1-{LONG}"), ("gpus", f"1,{LONG}"), ("gpus", f"A100:{LONG}"), ("array", LONG),
    ("array", f"0-{LONG}:2"), ("array", f"0-9%{LONG}"), ("batch", LONG), ("batch", f"1-{LONG}"), ("mem", LONG),
    ("gpu-mem", f"{LONG}G"), ("time", LONG), ("time", f"{LONG}-1"), ("time", f"1:{LONG}:1"), ("grace", f"1:{LONG}"),
    ("priority", LONG), ("priority", f"-{LONG}"),
])  # fmt: skip
def test_an_option_of_a_job(option, text):
    refused(f"^--{option}: found ", asked, {option: text})


@pytest.mark.parametrize("option", ["gpus=", "gpus-per-node=", "gpus-per-task=", "gres=gpu:", "nodes=", "ntasks=",
                                    "ntasks-per-node=", "mem=", "time=", "nice="])  # fmt: skip
def test_a_header_of_slurm_names_its_own_line(option):
    text = f"#SBATCH --job-name=x\n#SBATCH --{option}{LONG}\n"
    refused(f"^f, line 2: --{option.partition('=')[0]}: found ", read_headers, text, "f")


@pytest.mark.parametrize("number", [LONG, LONG_HEX, f"[{LONG_HEX}, {{a: 1}}]"])
def test_a_number_of_a_yaml_file(tmp_path, number):
    file = tmp_path / "job.yaml"
    file.write_text(f"run: ls\nresources: {{gpu: {number}}}\n")
    refused("found a (value that cannot be read|number of 6021 digits), expected", read_jobfile, file)


def test_a_number_of_a_yaml_file_that_is_short_enough_to_be_shown_is(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(f"run: ls\nresources: {{gpu: {10**18}}}\n")
    refused(f"found {10**18}, expected a number of at most 18 digits, or a text in quotes$", read_jobfile, file)


@pytest.mark.parametrize("word", [LONG, f"1-{LONG}", f"{LONG}-1", f"{LONG}_3"])
def test_the_id_of_a_job(word):
    refused("^found '9{56}\\.\\.\\., expected an id from 1 to", find_ids, None, [word])


def test_the_id_of_one_job_and_ids_in_a_range():
    refused("^found .*, expected an id from 1 to", find_job, SimpleNamespace(job=None), LONG)
    refused("^--jobs: found .*, expected ids of jobs, such as 41-80", _range, "--jobs", f"1-{LONG}")


def test_options_of_the_service_and_of_questions_to_it():
    refused("^--devices: found .*, expected a whole number from 1 to 10000$", up._devices, LONG)
    refused("^--tcp: found .*, expected a port from 1 to 65535$", up._port, LONG)
    refused("^--user-jobs: found .*, expected a whole number from 1 to 1000000$", up._number, "--user-jobs", LONG)
    refused("^--allow: found .*, expected a user id from 0 to", up._uids, LONG)
    refused("^--limit: found .*, expected a whole number from 1 to 1000$", ps.history, limit=LONG)
    refused("^TOKEN: found .*, expected a whole number from 0 up", token.revoke, LONG)


@pytest.mark.parametrize("line", [
    f"gpus = {LONG}", f"gpus = {LONG_HEX}", f"gpus = 8\nnodes = {LONG_HEX}", f"gpus = 8\nmem = {LONG_HEX}",
    f"gpus = 8\ncpus = {LONG_HEX}", f'gpus = 8\nmem = "{LONG}G"',
])  # fmt: skip
def test_a_number_of_a_cluster_file(tmp_path, line):
    file = Path(tmp_path, "cluster.toml")
    file.write_text(f"[[group]]\n{line}\n")
    refused(f"^cluster file {file}.*: found ", parse_cluster, f"{file}")


@pytest.mark.slow
def test_durations_and_sizes():
    refused("is longer than a century$", parse_duration_ms, f"{LONG}-00:00")
    refused("is above a billion GB$", parse_memory_mib, f"{LONG}G")
    assert parse_memory_mib("1073741824G") == 1 << 40


def test_ids_of_jobs_in_a_trace_are_in_order_of_their_numbers_however_long():
    ids = ["a10", f"a{LONG}", "a9", "a009", "a"]
    trace = trace_of(name="x", format="test", job_id=ids, submit_ms=[0] * 5, gpus=[1] * 5)
    assert list(trace.job_id) == ["a", "a009", "a9", "a10", f"a{LONG}"]


def test_a_long_number_is_shown_by_its_length():
    assert shown(int(LONG_HEX, 16)) == "a number of 6021 digits"
    assert [digits_of(number) for number in (1, 9, 10, 10**400 - 1, 10**5_000, 1e15)] == [1, 1, 2, 400, 5_001, 16]


@pytest.mark.parametrize("words", [["sim", "run", "t", "-c", f"1x{LONG}"], ["sim", "run", "t", "--seed", LONG],
                                   ["cancel", LONG]])  # fmt: skip
def test_the_command_ends_with_one_line(tmp_path, words):
    done = brim(*words, cwd=tmp_path, env={"BRIM_RUNTIME": f"{tmp_path}"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("brim: error: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 400
