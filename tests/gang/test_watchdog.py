"""Ranks that keep the others waiting are found, and no others."""

from brim.gang.watchdog import HangDetector


def test_nobody_hangs_while_somebody_else_computes():
    hangs = HangDetector(10.0)
    assert hangs.hung_ranks([0, 1, 2], 100.0) == ([], 0.0)
    hangs.waiting(0, 50.0, 100.0)
    assert hangs.hung_ranks([0, 1, 2], 100.0) == ([1, 2], 50.0)
    hangs.waiting(1, 5.0, 100.0)
    assert hangs.hung_ranks([0, 1, 2], 100.0) == ([], 0.0)
    hangs.waiting(0, 56.0, 106.0)
    hangs.waiting(1, 11.0, 106.0)
    assert hangs.hung_ranks([0, 1, 2], 106.0) == ([2], 11.0)
    hangs.waiting(2, 1.0, 106.0)
    assert hangs.hung_ranks([0, 1, 2], 106.0) == ([], 0.0)


def test_what_was_said_long_ago_is_no_waiting_but_freedom_lasts():
    hangs = HangDetector(10.0)
    hangs.waiting(0, 20.0, 100.0)
    assert hangs.hung_ranks([0, 1], 120.0) == ([], 0.0)
    hangs.ungrouped(0, 100.0)
    assert hangs.hung_ranks([0, 1], 120.0) == ([1], 20.0)
    hangs.active(0)
    assert hangs.hung_ranks([0, 1], 120.0) == ([], 0.0)
