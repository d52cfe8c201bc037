"""What a terminal would obey does not reach it from a job's output."""

from __future__ import annotations

import pytest

from brim.cli.job_table import clock, printable
from brim.cli.logs import without_control


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
