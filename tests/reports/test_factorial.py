"""Effects of switches: known answers."""

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.reports.factorial import as_json, chart, effects, table

SWITCHES = ("order", "size", "fill")
ALL = [on for count in range(4) for on in combinations(SWITCHES, count)]


def change_of(figures, *switches):
    return next(one.change for one in effects(figures) if one.switches == switches)


def test_switches_that_multiply_have_their_own_factors_and_no_interaction():
    factor = {"order": 0.5, "size": 0.8, "fill": 1.25}
    figures = dict.fromkeys(ALL, 100.0)
    for on in ALL:
        for name in on:
            figures[on] *= factor[name]

    for name in SWITCHES:
        assert change_of(figures, name) == pytest.approx(factor[name] - 1)
    for pair in combinations(SWITCHES, 2):
        assert change_of(figures, *pair) == pytest.approx(0)


def test_two_switches_of_which_either_is_enough_do_not_add_up():
    # each alone halves the figure, and so do both together
    figures = {on: 50.0 if {"order", "size"} & {*on} else 100.0 for on in ALL}

    assert change_of(figures, "order") == pytest.approx(0.5**0.5 - 1)
    assert change_of(figures, "order", "size") == pytest.approx(2**0.5 - 1)
    assert change_of(figures, "fill") == pytest.approx(0)


@given(st.lists(st.floats(0.1, 1000), min_size=8, max_size=8))
def test_the_main_effect_is_the_mean_ratio_over_the_others(values):
    figures = dict(zip(ALL, values, strict=True))
    product = 1.0
    for on in ALL:
        if "size" not in on:
            with_size = tuple(name for name in SWITCHES if name in on or name == "size")
            product *= figures[with_size] / figures[on]

    assert change_of(figures, "size") == pytest.approx(product**0.25 - 1)


def test_a_figure_that_is_missing_has_no_effects():
    figures = {(): 1.0, ("size",): None}

    assert effects(figures) is None
    assert table({"kWh": figures}) == [["effect of", "kWh"], ["size", "-"]]


def test_table_and_json_have_every_effect_and_combination():
    figures = {"JCT": {on: 100.0 + len(on) for on in ALL}}

    rows = table(figures)
    plain = as_json(figures)

    assert [row[0] for row in rows[1:]] == [*SWITCHES, "order x size", "order x fill", "size x fill"]
    assert len(plain["combinations"]) == 8
    assert {tuple(one["switches"]) for one in plain["effects"]} == {
        *chain(combinations(SWITCHES, 1), combinations(SWITCHES, 2))
    }


def test_the_chart_escapes_names():
    figures = {(): 1.0, ("<a>",): 2.0}

    drawn = chart("t", effects(figures))

    assert "&lt;a&gt;" in drawn
    assert "<a>" not in drawn
