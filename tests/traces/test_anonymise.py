"""Pseudonyms say nothing of the names, are the same wherever the key is, and change no result."""

from __future__ import annotations

import json
import os
import re
import stat

import polars as pl
import pytest

from brim import traces
from brim.errors import ConfigError
from tests.cli.commands import brim

from .examples import EXAMPLES, save

KEY = b"k" * 32
SECRETS = ("ana", "bob", "vision", "speech", "secret-lab")
ROWS = "job_id,submit_ms,gpus,run_ms,user,group\n" + "".join(
    f"secret-lab-{job % 7}{job},{job // 3 * 60_000},{1 + job % 4},{600_000 + job * 1_000},{SECRETS[job % 2]},"
    f"{SECRETS[2 + job % 2]}\n"
    for job in range(40)
)


def test_names_are_replaced_and_everything_else_stays(tmp_path):
    trace, _ = traces.read(save(tmp_path, *EXAMPLES["sacct"]))
    hidden = traces.anonymise(trace, KEY)
    assert hidden.job_id == ("job-1", "job-2", "job-3")
    assert all(re.fullmatch(r"user-[a-z2-7]{8}", name) for name in hidden.users)
    assert all(re.fullmatch(r"group-[a-z2-7]{8}", name) for name in hidden.groups)
    assert hidden.name == "trace"
    assert hidden.user.tolist() == trace.user.tolist()
    assert (hidden.submit_ms.tolist(), hidden.cluster) == (trace.submit_ms.tolist(), trace.cluster)


def test_a_name_has_one_pseudonym_per_key(tmp_path):
    first, _ = traces.read(save(tmp_path, *EXAMPLES["sacct"]))
    second, _ = traces.read(save(tmp_path, *EXAMPLES["helios"]))
    one, two = traces.anonymise(first, KEY), traces.anonymise(second, KEY)
    assert one.users[first.users.index("ana")] == two.users[second.users.index("ana")]
    assert set(one.users).isdisjoint(traces.anonymise(first, b"l" * 32).users)


def test_the_key_is_made_once_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    key = traces.own_key()
    path = tmp_path / "config/brim/anonymise.key"
    assert traces.own_key() == key == path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="found 5 bytes, expected 32; remove the file to get a new key"):
        traces.own_key()


def test_page_table_json_and_job_file_hold_no_name_and_the_same_figures(tmp_path):
    source = save(tmp_path, "secret-lab.csv", ROWS)
    here = {"env": {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}, "cwd": tmp_path}
    out = tmp_path / "secret-lab-out"
    out.mkdir()
    options = ("-c", "2x4xT4", "-p", "fair", "--html", out / "page.html", "--jobs", out / "jobs.parquet", "--json")
    plain = brim("sim", "run", source, *options, **here)
    assert plain.returncode == 0, plain.stderr
    named = pl.read_parquet(out / "jobs.parquet")
    hidden = brim("sim", "run", source, *options, "--anonymise", **here)
    assert hidden.returncode == 0, hidden.stderr
    page, rows = (out / "page.html").read_text(), pl.read_parquet(out / "jobs.parquet")
    for text in (page, hidden.stdout, rows.write_csv()):
        assert not re.search(r"\b(ana|bob|vision|speech)\b|secret-lab", text)
    assert rows["jct_s"].to_list() == named["jct_s"].to_list()
    assert rows["job_id"].to_list() == [f"job-{number}" for number in range(1, 41)]
    (one,), (other,) = (json.loads(done.stdout)["results"] for done in (plain, hidden))
    assert one["jct_mean_s"] == other["jct_mean_s"]


def test_a_converted_trace_holds_no_name(tmp_path):
    here = {"env": {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}, "cwd": tmp_path}
    done = brim("trace", "convert", save(tmp_path, "secret-lab.csv", ROWS), "out.csv", "--anonymise", **here)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.csv").read_text()
    assert "user-" in text
    assert not re.search(r"\b(ana|bob|vision|speech)\b|secret-lab", text)
