"""Completion time, energy and cost of policies together: who beats whom, and the picture in a real page."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from brim.core.power import PowerCurve
from brim.core.prices import Prices
from brim.reports.charts.trade import Trade, beaten_by, trade_off
from brim.reports.page import page, write_page
from brim.reports.summary import summarise

from .chromium import PROGRAM, Chromium
from .fakes import drawn_replay, drawn_trace

CURVE = PowerCurve(gpu_type="T4", gpus=8, idle_w=300.0, full_w=1200.0, exponent=1.0)


def point(policy, jct_s, kwh, cost=None, **more):
    return Trade(number=1, policy=policy, jct_s=jct_s, kwh=kwh, cost=cost, **more)


def test_a_policy_is_beaten_by_one_as_good_in_all_and_better_in_one():
    fast, slow, frugal, cheap = point("fast", 60, 9, 5), point("slow", 90, 9, 5), point("frugal", 90, 8, 6), point(
        "cheap", 99, 9, 4
    )
    everybody = (fast, slow, frugal, cheap)
    assert [beaten_by(one, everybody) for one in everybody] == [None, "fast", None, None]
    assert [beaten_by(replace(one, cost=None), [replace(other, cost=None) for other in everybody])
            for one in everybody] == [None, "fast", None, "fast"]  # fmt: skip


def test_equal_to_three_digits_beats_nobody_and_neither_does_an_oracle():
    one, other = point("one", 60.00, 9), point("other", 60.01, 9)
    assert beaten_by(one, [other]) is None
    assert beaten_by(other, [one]) is None
    assert beaten_by(other, [point("oracle", 1, 1, is_oracle=True)]) is None


def test_the_picture_has_a_dot_for_each_policy_and_larger_ones_cost_more():
    drawn = trade_off([point("a", 600, 9, 5), point("<b>", 7200, 8, 10), point("c", 900, 8.5, 7)])
    radii = {name: float(radius) for name, radius in re.findall(r'data-policy="(.*?)".*?r="([\d.]+)"', drawn)}
    assert sorted(radii, key=radii.__getitem__) == ["a", "c", "&lt;b&gt;"]
    assert "nan" not in drawn


def replays(powered):
    trace = drawn_trace(300, seed=5, load_gpus=16)
    return [replace(drawn_replay(trace, "2x8xT4", policy), power=(CURVE,) if powered else ())
            for policy in ("fifo", "las", "srtf", "sjf")]  # fmt: skip


def test_without_power_a_page_has_no_such_picture():
    assert "kWh over mean JCT" not in page(replays(powered=False), command="brim")


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
def test_the_picture_stands_in_the_page_with_every_dot_in_it(tmp_path):
    shown = replays(powered=True)
    write_page(shown, tmp_path / "page.html", command="brim", summaries=summarise(shown, prices=Prices.flat(2.0)))
    with Chromium(tmp_path / "profile", width=400) as browser:
        browser.open(tmp_path / "page.html")
        chart = "document.querySelector('svg[aria-label^=\"Mean completion time and energy\"]')"
        inside = browser.evaluate(
            f"(box => Array.from({chart}.querySelectorAll('circle, text')).every(one => {{ const r = "
            "one.getBoundingClientRect(); return r.left >= box.left - 1 && r.right <= box.right + 1"
            f" && r.top >= box.top - 1 && r.bottom <= box.bottom + 1; }}))({chart}.getBoundingClientRect())"
        )
        cells = "querySelectorAll('tbody tr')).map(row => row.cells.length)"
        rows = browser.evaluate(f"Array.from({chart}.parentElement.{cells}")
        assert browser.evaluate(f"{chart}.querySelectorAll('circle').length") == 4
        assert inside
        assert rows == [5] * 4
        assert browser.complaints() == []
