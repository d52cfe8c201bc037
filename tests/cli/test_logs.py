"""What a terminal would obey does not reach it from a job's output."""

from __future__ import annotations

import os

import pytest

from brim.agent.folders import STATE_VARIABLE, agent_folder, log_folder
from brim.cli import logs
from brim.cli.job_table import clock, printable
from brim.cli.logs import without_control
from brim.errors import ConfigError
from brim.live.records import JobRecord
from tests.live.virtual import request


@pytest.mark.parametrize(("text", "shown"), [
    ("plain \t text\r\n", "plain \t text\r\n"), ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07x", "x"),
    ("\x1b]52;c;aGk=\x1b\\x", "x"), ("\x1bPq#0\x1b\\x", "x"), ("a\x08\x08b\x07", "ab"), ("\x9b31mx", "31mx"),
    ("\x1b[?1049hx\x1b[2J", "x"), ("\x1bc", ""), ("\x1b(0x", "x"), ("\x00\x7f\x85x", "x"), ("\x1b[38;2;1;2;3mx", "x"),
])  # fmt: skip
def test_sequences_that_a_terminal_obeys_are_left_out(text, shown):
    assert without_control(text) == (shown, "")


def test_a_sequence_that_is_cut_in_two_waits_for_its_end():
    for cut in range(1, len("\x1b]0;title\x07")):
        whole = "a\x1b]0;title\x07b"
        first, rest = without_control(whole[: 1 + cut])
        second, left = without_control(rest + whole[1 + cut :])
        assert (first + second, left) == ("ab", "")


def test_a_sequence_without_end_does_not_hide_the_rest_for_ever():
    shown, rest = without_control("\x1b]0;" + "x" * 5_000)
    assert len(shown) > 4_000
    assert not rest


@pytest.mark.parametrize(("text", "shown"), [
    ("plain \u00fc", "plain \u00fc"), ("a\x1b[2Jb", "a?[2Jb"), ("a\u202eb", "a?b"), ("a\nb", "a?b"), ("\ud800", "?"),
])  # fmt: skip
def test_texts_in_tables_are_harmless(text, shown):
    assert printable(text) == shown


def test_durations_are_shown_as_slurm_does():
    shown = [clock(seconds) for seconds in (0, 59, 60, 3_599, 3_600, 86_399, 86_400, -5)]
    assert shown == ["0:00", "0:59", "1:00", "59:59", "1:00:00", "23:59:59", "1-00:00:00", "0:00"]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A job that wrote three lines."""
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))
    folder = log_folder(agent_folder(), 1, 1)
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("a\nb\nc\n")
    job = JobRecord(id=1, uid=os.getuid(), user="u", key="k", request=request(), submitted_s=1.0, submit_ms=0,
                    state="finished", attempt=1)
    monkeypatch.setattr(logs, "client", lambda: None)
    monkeypatch.setattr(logs, "find_job", lambda at, word: job)


@pytest.mark.parametrize(("tail", "shown"), [
    ("0", ""), ("2", "b\nc\n"), ("9" * 18, "a\nb\nc\n"),
])  # fmt: skip
def test_as_many_lines_are_shown_as_are_asked_for(written, capsys, tail, shown):
    logs.logs("1", tail=tail)
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("tail", ["", "-1", "x", "\u0663"])
def test_what_is_no_number_of_lines_is_refused(written, tail):
    with pytest.raises(ConfigError, match=r"^--tail: found "):
        logs.logs("1", tail=tail)
