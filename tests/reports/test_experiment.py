"""The report of an experiment: everything on the page and in the terminal, nothing that a name could break."""

from __future__ import annotations

import dataclasses
import io
import re
from itertools import pairwise

import pytest
from rich.console import Console

from brim.reports.charts.lines import Curve, by_load
from brim.reports.experiment import Chart, Experiment, Panel, TextTable, experiment_page, terminal, write_experiment

from .chromium import PROGRAM, Chromium

NASTY = '<script>alert(1)</script>&"\'</script>'
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
LOADS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)


def curves(scale_of=1.0, names=("elastic", "elastic-fixed", "fifo")):
    return tuple(
        Curve(name, index, tuple((load, scale_of * (index + 1) * load) for load in LOADS))
        for index, name in enumerate(names)
    )


def made(name="elastic", panels=3, **changes):
    charts = (
        Chart(title="Mean completion time", note=name, scale="time", curves=curves(600)),
        Chart(title="How many times sooner", note="n", scale="ratio", curves=curves(1)),
        Chart(title="Jobs completed", note="n", scale="count", curves=curves(100)),
        Chart(title="Jobs turned away", note="n", scale="fraction", curves=()),
    )
    headings = ("load", "policy", "done", "round ms")
    table = TextTable(
        headings=headings, rows=(("1", name, "10", "2.0/3"), ("1", "goodput", "11", "2.1/3")), text_columns=2,
        dropped_first=("round ms",), brief=(0,),
    )
    values = {
        "title": "Effective Elastic Scaling", "about": "On 40 GPUs.", "badges": ("seed 0",), "alarm": "",
        "findings": ("Best point: 2.00 times.",), "terms": (("done", "jobs completed"),), "notes": ("Ours.",),
        "panels": tuple(
            Panel(title=f"40 GPUs, kind {at}", note="Load 1 is 20 jobs per hour.", charts=charts, table=table)
            for at in range(panels)
        ),
        "command": "brim sim reproduce elastic",
    }
    return Experiment(**(values | changes))


def printed(experiment, width):
    console = Console(width=width, file=io.StringIO())
    console.print(terminal(experiment))
    return console.file.getvalue()


def test_a_narrow_terminal_goes_without_the_least_needed_columns_only():
    wide, narrow = printed(made(), 120), printed(made(), 22)
    assert "round ms" in wide
    assert "2.0/3" in wide
    headings = [line for line in narrow.splitlines() if line.startswith("load")]
    assert headings
    assert all("done" in line and "round ms" not in line for line in headings)
    assert narrow.count("narrow for: round ms") == len(headings), "what a table leaves out is named beside it"


def test_the_terminal_shows_the_brief_rows_and_the_page_all():
    assert "goodput" not in printed(made(), 120)
    assert experiment_page(made()).count("<td class=\"text\">goodput</td>") == 3


def test_interrupted_results_say_so_first_and_loud():
    partial = made(alarm="7 replays are missing.", badges=("seed 0", "partial"))
    assert "PARTIAL: 7 replays are missing." in printed(partial, 120)
    text = experiment_page(partial)
    assert text.index('role="alert"') < text.index("Best point")
    assert '<span class="badge warn">partial</span>' in text


def test_nothing_a_name_holds_becomes_markup():
    nasty = dataclasses.replace(
        made(NASTY), title=NASTY, about=NASTY, badges=(NASTY,), findings=(NASTY,), notes=(NASTY,), command=NASTY,
        terms=((NASTY, NASTY),), alarm=NASTY,
    )
    text = experiment_page(nasty)
    assert len(re.findall("<script", text)) == 1
    assert "alert(1)</script>" not in text


def test_equal_data_give_an_equal_page(tmp_path):
    write_experiment(made(), tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == experiment_page(made())
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("scale", ["time", "count", "fraction", "ratio"])
def test_curves_stay_inside_the_plot_and_labels_apart(scale):
    drawn = by_load(curves(0.01 if scale == "fraction" else 3.0), scale=scale, label="x")
    paths = re.findall(r'class="line[^"]*" data-s="\d" d="([^"]+)"', drawn)
    points = re.findall(r"[ML](\d+\.?\d*) (\d+\.?\d*)", " ".join(paths))
    assert len(points) == 3 * len(LOADS)
    assert all(44 <= float(x) <= 468 and 10 <= float(y) <= 224 for x, y in points)
    at = [float(x) for x in re.findall(r'<text x="([\d.]+)" y="241"', drawn)]
    assert at == sorted(at)
    assert ">1x<" in drawn  # rounder than its neighbours 0.9x and 1.1x
    assert min(b - a for a, b in pairwise(at)) >= 36


def test_one_point_is_seen_and_a_formula_marks_no_loads():
    line = Curve("M/M/1", 8, tuple((0.5 + i / 100, 1.5) for i in range(40)))
    drawn = by_load([Curve("one", 0, ((0.5, 2.0),)), line], scale="ratio", label="x")
    assert re.search(r'data-s="0" d="M[\d. ]+h1"', drawn)
    assert ">0.5x<" in drawn
    assert ">0.51x<" not in drawn


@needs_chromium
def test_the_page_opens_without_complaint_or_network_and_shows_one_panel_at_a_time(tmp_path):
    write_experiment(made(), tmp_path / "page.html")
    for width in (1280, 400):
        with Chromium(tmp_path / f"profile{width}", width=width) as browser:
            browser.open(tmp_path / "page.html")
            shown = "Array.from(document.querySelectorAll('[data-panel]')).map(p => p.offsetHeight > 0)"
            assert browser.evaluate(shown) == [True, False, False]
            browser.evaluate("document.querySelectorAll('.tabs button')[2].click()")
            assert browser.evaluate(shown) == [False, False, True]
            assert browser.evaluate("document.documentElement.scrollWidth") == width
            assert browser.complaints() == []
            assert len(browser.requests()) == 1
