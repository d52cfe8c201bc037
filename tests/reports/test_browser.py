"""The page in a real browser, as hands use it: tables that sort, a Gantt that zooms, users that are chosen."""

from __future__ import annotations

import pytest

from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.reports.page import write_page
from brim.reports.record import record_of

from .chromium import PROGRAM, Chromium
from .fakes import drawn_replay, drawn_trace, with_record

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")

SUMMARY = "document.querySelectorAll('table.sortable')[0]"
USERS = "document.querySelectorAll('table.sortable')[1]"
SPAN = "(c => [Number(c.dataset.from), Number(c.dataset.to)])(document.querySelector('#gantt'))"
BOX = "(r => [r.x, r.width])(document.querySelector('#gantt').getBoundingClientRect())"
PIXELS = "document.querySelector('#gantt').toDataURL()"


def written(path, cluster="2x8xT4", policies=("fifo", "las", "srtf", "sjf")):
    trace = drawn_trace(300, seed=5, load_gpus=parse_cluster(cluster).num_gpus)
    trace = with_record(drawn_replay(trace, cluster, "recorded"))
    replays = [drawn_replay(trace, cluster, policy) for policy in policies]
    write_page(replays, path, command="brim sim compare", record=record_of(trace))
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="module")
def wide(path, tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("wide")) as browser:
        browser.open(path)
        yield browser
        assert browser.complaints() == []


@pytest.fixture(scope="module")
def narrow(path, tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("narrow"), width=400, touch=True) as browser:
        browser.open(path)
        yield browser
        assert browser.complaints() == []


def column(browser, table, index):
    """Sort values of a column, top to bottom; None where a cell has none."""
    return browser.evaluate(f"Array.from({table}.tBodies[0].rows).map(r => r.cells[{index}].dataset.v ?? null)")


def heading(browser, table, index):
    return browser.evaluate(f"{table}.querySelectorAll('thead th')[{index}].getAttribute('aria-sort')")


def index_of(browser, table, text):
    headings = browser.evaluate(f"Array.from({table}.querySelectorAll('thead th')).map(h => h.textContent)")
    return headings.index(text)


def whole(browser):
    """Show all of the time again, whatever the test before did."""
    browser.evaluate("document.querySelector('#gantt-zoom button[value=all]').click()")
    browser.wait(f"{SPAN}[0] === 0 && {SPAN}[1] === 1")


def press_heading(browser, at):
    browser.evaluate(f"{SUMMARY}.querySelectorAll('thead th')[{at}].firstChild.id = 'pressed'")
    browser.click("#pressed")
    browser.evaluate("document.querySelector('#pressed').removeAttribute('id')")


def test_a_click_on_a_heading_sorts_up_and_the_next_one_down(wide):
    at = index_of(wide, SUMMARY, "JCT mean")
    press_heading(wide, at)
    values = [float(value) for value in column(wide, SUMMARY, at)]
    assert values == sorted(values)
    assert len(set(values)) > 3
    assert heading(wide, SUMMARY, at) == "ascending"
    press_heading(wide, at)
    assert [float(value) for value in column(wide, SUMMARY, at)] == sorted(values, reverse=True)
    assert heading(wide, SUMMARY, at) == "descending"
    press_heading(wide, 0)
    assert column(wide, SUMMARY, 0) == ["as recorded", "fifo", "las", "sjf", "srtf"]
    assert heading(wide, SUMMARY, at) is None


def test_what_is_not_defined_stays_last_in_both_directions(wide):
    at = index_of(wide, SUMMARY, "makespan")
    for _ in range(2):
        press_heading(wide, at)
        assert column(wide, SUMMARY, at)[-1] is None
        assert column(wide, SUMMARY, 0)[-1] == "as recorded"


def test_headings_sort_by_the_keyboard_alone(wide):
    at = index_of(wide, USERS, "jobs")
    wide.evaluate(f"{USERS}.querySelectorAll('thead th')[{at}].querySelector('button').focus()")
    wide.press("Enter", "\r")
    values = [int(value) for value in column(wide, USERS, at)]
    assert values == sorted(values)
    assert values[0] < values[-1]
    assert heading(wide, USERS, at) == "ascending"
    wide.press(" ", " ")
    assert [int(value) for value in column(wide, USERS, at)] == sorted(values, reverse=True)


def test_ctrl_and_the_wheel_zoom_around_the_pointer_and_the_wheel_alone_scrolls(wide):
    whole(wide)
    _, y = wide.middle("#gantt")
    left, width = wide.evaluate(BOX)
    place, before, scrolled = 0.25, wide.evaluate(PIXELS), wide.evaluate("window.scrollY")
    wide.wheel(left + place * width, y, -100)
    wide.wait(f"window.scrollY < {scrolled}")
    assert wide.evaluate(SPAN) == [0, 1]
    _, y = wide.middle("#gantt")
    wide.wheel(left + place * width, y, -60, ctrl=True)
    wide.wait(f"{SPAN}[1] < 1")
    start, end = wide.evaluate(SPAN)
    assert 0.4 < end - start < 0.7
    assert start + place * (end - start) == pytest.approx(place, abs=0.01)
    assert wide.evaluate(PIXELS) != before
    assert " to " in wide.evaluate("document.querySelector('#gantt-range').textContent")
    assert wide.evaluate("document.querySelectorAll('#gantt-axis span').length") >= 3


def test_dragging_over_a_stretch_shows_that_stretch(wide):
    whole(wide)
    _, y = wide.middle("#gantt")
    left, width = wide.evaluate(BOX)
    wide.drag((left + 0.5 * width, y), (left + 0.75 * width, y))
    wide.wait(f"{SPAN}[1] < 1")
    assert wide.evaluate(SPAN) == pytest.approx([0.5, 0.75], abs=0.01)


def test_keys_zoom_and_move_the_time_that_is_shown(wide):
    whole(wide)
    wide.evaluate("document.querySelector('#gantt').focus()")
    wide.press("+", "+")
    wide.wait(f"{SPAN}[1] < 1")
    assert wide.evaluate(SPAN) == pytest.approx([0.25, 0.75])
    wide.press("ArrowRight")
    wide.wait(f"{SPAN}[0] > 0.3")
    assert wide.evaluate(SPAN) == pytest.approx([0.375, 0.875])
    wide.press("ArrowLeft")
    wide.press("-", "-")
    wide.wait(f"{SPAN}[0] === 0")
    wide.press("+", "+")
    wide.press("0", "0")
    wide.wait(f"{SPAN}[0] === 0 && {SPAN}[1] === 1")


def test_a_zoomed_gantt_names_the_job_under_the_pointer(wide):
    """The job at four tenths of the time is the same when the stretch from 1/4 to 3/4 is shown."""
    whole(wide)
    said = "document.querySelector('#gantt-tip').textContent"
    names = []
    for place in (0.4, 0.3):
        _, y = wide.middle("#gantt")
        left, width = wide.evaluate(BOX)
        wide.hover(left + place * width - 1, y)
        wide.hover(left + place * width, y)
        names.append(wide.evaluate(said).split(" to ")[0])
        wide.evaluate("document.querySelector('#gantt-zoom button[value=in]').click()")
        wide.wait(f"{SPAN}[1] < 1")
    assert names[0] == names[1]


def test_two_fingers_zoom_and_one_moves(narrow):
    whole(narrow)
    x, y = narrow.middle("#gantt")
    narrow.touch([(x - 30, y), (x + 30, y)], [(x - 60, y), (x + 60, y)], [(x - 90, y), (x + 90, y)])
    narrow.wait(f"{SPAN}[1] < 1")
    start, end = narrow.evaluate(SPAN)
    assert end - start == pytest.approx(1 / 3, abs=0.05)
    assert (start + end) / 2 == pytest.approx(0.5, abs=0.05)
    x, y = narrow.middle("#gantt")
    narrow.touch([(x, y)], [(x - 30, y)], [(x - 60, y)], [(x - 90, y)])
    narrow.wait(f"{SPAN}[0] > {start + 0.02}")
    moved = narrow.evaluate(SPAN)
    assert moved[1] - moved[0] == pytest.approx(end - start)


def test_two_users_are_shown_at_once_in_the_gantt_and_in_the_table(wide):
    whole(wide)
    rows = "Array.from(document.querySelectorAll('tr[data-person]:not([hidden]) th')).map(n => n.innerText)"
    checked = "Array.from(document.querySelectorAll('#people-list input:checked + span')).map(n => n.innerText)"
    everybody = wide.evaluate(rows)
    wide.evaluate(f"document.querySelector('#people').open = true; window.seen = [{PIXELS}]")
    for person in (0, 2):
        wide.click(f"#people-list input[value='{person}']")
        wide.wait(f"!seen.includes({PIXELS})")
        wide.evaluate(f"seen.push({PIXELS})")
    chosen = wide.evaluate(rows)
    assert len(chosen) == 2 < len(everybody)
    assert sorted(chosen) == sorted(wide.evaluate(checked))
    assert wide.evaluate("document.querySelector('#people-chosen').textContent") == ", ".join(wide.evaluate(checked))
    wide.click("#people-clear")
    assert wide.evaluate(rows) == everybody
    wide.wait(f"seen[0] === {PIXELS}")


def test_users_are_found_by_a_part_of_their_name(wide):
    listed = "Array.from(document.querySelectorAll('#people-list span')).map(n => n.textContent)"
    wide.evaluate("document.querySelector('#people').open = true; document.querySelector('#people-find').focus()")
    for key in "r03":
        wide.press(key, key)
    assert wide.evaluate(listed) == ["user03"]
    wide.evaluate("(n => { n.value = ''; n.dispatchEvent(new Event('input')); })(document.activeElement)")
    assert len(wide.evaluate(listed)) > 1


def test_a_long_name_of_a_cluster_does_not_run_off_a_narrow_screen(tmp_path):
    cluster = "+".join(f"1x8x{kind}:cpus=64,mem=512GB" for kind in ("a100", "v100", "t4"))
    path = written(tmp_path / "page.html", cluster, ("fifo", "las"))
    with Chromium(tmp_path / "browser", width=400, touch=True) as browser:
        browser.open(path)
        assert browser.evaluate("document.documentElement.scrollWidth") == 400


def test_a_table_wider_than_the_screen_says_so_until_its_end_is_seen(narrow, wide):
    hint = "Array.from(document.querySelectorAll('.wide')).map(w => !w.querySelector('.hint').hidden)"
    assert narrow.evaluate(hint) == [True, True]
    assert wide.evaluate(hint)[1] is False  # six columns fit
    narrow.evaluate("(s => { s.scrollLeft = s.scrollWidth; })(document.querySelector('.scroll'))")
    narrow.wait(f"!({hint})[0]")
    assert narrow.evaluate(hint) == [False, True]
    narrow.evaluate("document.querySelector('.scroll').scrollLeft = 0")
    narrow.wait(f"({hint})[0]")
    assert narrow.evaluate("document.documentElement.scrollWidth") == 400


def test_what_is_touched_is_large_enough_for_a_finger(narrow):
    small = narrow.evaluate(
        "Array.from(document.querySelectorAll('.tabs button, summary, .people label, button.sort'))"
        ".filter(n => n.offsetHeight && n.offsetHeight < 44).map(n => n.outerHTML)"
    )
    assert small == []


def test_hostile_names_stay_text_in_what_the_script_makes(tmp_path):
    nasty = "<img src=x onerror=alert(1)><b>"
    trace = trace_of(
        name=nasty, format="x", job_id=[f"{nasty}{i}" for i in range(40)], submit_ms=range(40), gpus=[1] * 40,
        run_ms=[1000] * 40, users=[nasty, "<i>" + nasty], user=[0, 1] * 20, groups=["__proto__"], group=[0] * 40,
    )
    trace = with_record(drawn_replay(trace, "1x4xT4", "x"))
    path = tmp_path / "page.html"
    replays = [drawn_replay(trace, "1x4xT4", policy) for policy in ("fifo", nasty)]
    write_page(replays, path, command=nasty, record=record_of(trace))
    with Chromium(tmp_path / "profile") as browser:
        browser.open(path)
        browser.evaluate("document.querySelector('#people').open = true")
        browser.click("#people-list input[value='1']")
        assert browser.evaluate("document.querySelector('#people-chosen').textContent") == "<i>" + nasty
        assert browser.evaluate("document.querySelectorAll('img, #people b b, main i:not(.track i)').length") == 0
        for at in range(3):
            press_heading(browser, at)
        assert browser.complaints() == []
