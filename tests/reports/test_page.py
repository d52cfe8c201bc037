from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from itertools import pairwise

import numpy as np
import pytest

from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.reports.charts.gantt import gantt_data, owners_of, raster, rows_of_nodes
from brim.reports.charts.lines import binned_mean, cdf
from brim.reports.charts.svg import LogTime, calendar_ticks
from brim.reports.findings import changes, findings, outcome_of
from brim.reports.page import page, write_page
from brim.reports.summary import by_policy, summarise
from brim.reports.table import cells
from brim.reports.verdict import verdict
from tests.sampling import sample

from .chromium import PROGRAM, Chromium
from .fakes import drawn_replay, drawn_trace, replay_of, runs_of

NASTY = '<script>alert(1)</script>&"\'</script>'
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")


def compared(jobs=300, cluster="2x8xT4", policies=("fifo", "las", "srtf"), **names):
    trace = drawn_trace(jobs, seed=5, load_gpus=parse_cluster(cluster).num_gpus, **names)
    return [drawn_replay(trace, cluster, policy, oracle=policy == "srtf") for policy in policies]


def unpacked(text):
    """The JSON of the Gantt's data; arrays stand in it by their place."""
    data = zlib.decompress(base64.b64decode(re.search(r'id="gantt-data">(.*?)</script>', text)[1]))
    return json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])


def nasty():
    trace = trace_of(
        name=NASTY, format=NASTY, job_id=[f"{NASTY}{i}" for i in range(30)], submit_ms=range(30), gpus=[1] * 30,
        run_ms=[1000] * 30, users=[NASTY], user=[0] * 30, groups=[NASTY + "g"], group=[0] * 30,
    )
    return [
        drawn_replay(trace, "1x4xT4", policy, estimates=NASTY, assumptions=(NASTY,)) for policy in ("fifo", NASTY)
    ]


def test_page_is_one_file_without_references_to_anywhere():
    text = page(compared(), command="brim sim compare")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", text)
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert "url(" not in text


def test_one_job_on_one_gpu_is_counted_in_the_singular():
    text = page(compared(1, cluster="1x1xT4", policies=("fifo",)), command="brim sim run")
    assert ">1 GPU over " in text
    assert not re.search(r"(?<![\d.,])1 (jobs|GPUs|nodes)\b", text.partition("<script")[0])


def test_page_has_every_section_and_states_what_carries_it():
    text = page(compared(), command="brim sim compare drawn.csv --policies fifo,las,srtf")
    for heading in (
        "Summary", "Job completion time", "Queueing delay", "Waiting jobs over time", "GPUs held over time",
        "Waiting by job size", "Distance to the lower bound", "Every GPU over time", "Gains and losses",
        "Assumptions", "Make this page again",
    ):
        assert f"<h2>{heading}</h2>" in text
    for phrase in ("synthetic trace", "oracle: srtf", "Jobs are rigid.", "drawn.csv --policies fifo,las,srtf"):
        assert phrase in text
    assert ">partial<" not in text
    assert "NaN" not in text


def test_equal_replays_give_an_equal_page():
    assert page(compared(), command="x") == page(compared(), command="x")


def test_whatever_users_call_things_stays_text():
    text = page(nasty(), command=NASTY)
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script>") == 2


def test_partial_replays_are_loud():
    whole, cut, _ = compared()
    finish = np.where(np.arange(300) < 100, cut.finish_ms, -1)
    text = page([whole, dataclasses.replace(cut, finish_ms=finish, partial=True)], command="x")
    assert 'role="alert"' in text
    assert ">partial<" in text


def test_a_replay_in_which_nothing_happened_still_makes_a_page():
    trace = trace_of(name="t", format="test", job_id=["a"], submit_ms=[0], gpus=[1])
    nothing = replay_of(trace, "1x1xT4", runs_of([]), [-1], end_ms=0, partial=True)
    text = page([nothing], command="x")
    assert "No job finished." in text
    assert "nan" not in re.sub(r"<script.*?</script>", "", text, flags=re.S).lower().replace("finan", "")


def test_several_seeds_and_loads_add_intervals_and_a_chart():
    trace = drawn_trace(100, seed=2, load_gpus=8)
    replays = [
        drawn_replay(trace, "1x8xT4", policy, seed=seed, load=load)
        for load in (0.5, 1.0) for policy in ("fifo", "las") for seed in (0, 1)
    ]
    text = page(replays, command="x")
    assert "\u00b1" in text
    assert "<h2>Mean JCT by load</h2>" in text
    notes = dict(re.findall(r'<h2>([^<]+)</h2><p class="note">(.+?)</p>', text))
    of_means = {"Distance to the lower bound": "Means over 2 seeds at load 0.5x. "}
    other = {"Summary": "Mean \u00b1 95 % interval over 2 seeds", "Mean JCT by load": "Means over 2 seeds. "}
    for title, note in notes.items():
        assert note.startswith((of_means | other).get(title, "Seed 0 at load 0.5x. ")), title
    assert '<p class="soft">Seed 0 at load 0.5x. 100 jobs over ' in text
    assert '<p class="note">At load 0.5x:</p><ul class="findings"' in text
    alone = page(replays[:1], command="x")
    assert "Seed 0 at" not in alone
    assert "At load" not in alone


def test_findings_and_bars_are_over_the_seeds_as_the_table_or_name_the_seed():
    replays = [
        drawn_replay(drawn_trace(jobs, seed=jobs, load_gpus=16), "2x8xT4", policy, seed=seed)
        for seed, jobs in enumerate((200, 120)) for policy in ("fifo", "las")
    ]
    summaries = summarise(replays)
    (fifo, las) = by_policy(summaries).values()
    ratio = cells({"fifo": fifo, "las": las})["las"]["x bound"].text
    shown = [replay for replay in replays if replay.seed == 0]
    said = findings(shown, summaries)
    assert f"{las[0].jct_ratio:.2f}" != ratio, "seed 0 differs"
    assert f"The mean job completion time of las is {ratio} times a lower bound that no schedule of these jobs can " \
        "beat, on average over the seeds." in said
    assert [one.partition(", of the ")[0] for one in said[-2:]] == ["With seed 0", "With seed 0"]
    assert said[0].endswith(" las preempted and resized no running jobs in these replays.")
    bars = re.search(r"<h3>Mean JCT, bound .*?</div>", page(replays, command="x"))[0]
    assert f">{ratio}x<" in bars
    alone = findings(shown, summarise(shown))
    assert f"is {las[0].jct_ratio:.2f} times a lower bound that no schedule of these jobs can beat." in " ".join(alone)
    assert alone[-1].startswith("Of the ")
    assert alone[0].endswith(" in this replay.")


@pytest.mark.slow
def test_a_page_of_eight_policies_and_many_jobs_is_small(tmp_path):
    policies = ("fifo", "backfill", "sjf", "srtf", "las", "gittins", "tiresias", "brim")
    names = {"users": [f"{i:02d}-" + "long-name" * 10 for i in range(40)]}
    replays = compared(sample(50_000, 10_000), "16x8xH100", policies, **names)
    write_page(replays, tmp_path / "page.html", command="x")
    assert (tmp_path / "page.html").stat().st_size < 5_000_000, "the budget of the Gantt chart keeps it below"


def test_raster_shows_who_holds_a_gpu_at_the_middle_of_each_column():
    """GPU 0: a in [0, 4), b in [4, 10); GPU 1: b in [4, 10) only. Ten columns of 1 s."""
    trace = trace_of(name="t", format="test", job_id=["a", "b"], submit_ms=[0, 0], gpus=[1, 2], run_ms=[4000, 6000])
    runs = runs_of([(0, 0, 4000, [0]), (1, 4000, 10_000, [0, 1])])
    replay = replay_of(trace, "1x2xT4", runs, [4000, 10_000])
    job, held = raster(replay, rows_of_nodes(replay.cluster), end_ms=10_000, columns=10)
    assert job.tolist() == [[0] * 4 + [1] * 6, [-1] * 4 + [1] * 6]
    assert held.tolist() == [[1.0] * 10, [0.0] * 4 + [1.0] * 6]


def test_large_clusters_get_a_row_per_node_with_the_largest_job_and_a_level():
    """Node 0 of 200 has one GPU of job 0 and three of job 1 of its eight."""
    trace = trace_of(name="t", format="test", job_id=["a", "b"], submit_ms=[0, 0], gpus=[1, 3], run_ms=[1000, 1000])
    replay = replay_of(trace, "200x8xT4", runs_of([(0, 0, 1000, [0]), (1, 0, 1000, [1, 2, 3])]), [1000, 1000])
    data = gantt_data([replay], owners_of(replay))
    assert data["rows"] == 100  # two nodes to a row
    shown = data["policies"][0]
    assert shown["level"][0] == 1  # 4 of 16 GPUs
    assert shown["len"].sum() == data["rows"] * shown["columns"]
    assert data["jobs"]["id"] == ["b"]


def test_time_means_are_exact_integrals():
    """1 in [1, 3), 2 in [3, 4), over bins [0, 2), [2, 4), and an empty one."""
    found = binned_mean(np.array([1.0, 3.0, 4.0]), np.array([1.0, 1.0, -2.0]), np.array([0.0, 2.0, 4.0, 4.0]))
    assert found[:2].tolist() == [0.5, 1.5]
    assert np.isnan(found[2])


def test_log_axes_start_at_a_familiar_duration_and_labels_keep_apart():
    scale = LogTime.around(75.0, 86_400.0)
    ticks = scale.ticks()
    assert ticks[0].label == "\u22641 min"
    assert scale.at(np.array([1.0, 86_400.0])).tolist() == [0.0, 1.0]
    assert all(b.at - a.at > 0.09 for a, b in pairwise(ticks))


def test_dates_stand_at_midnight_and_hours_count_from_the_start():
    three_days = 3 * 86_400_000
    noon = 1_750_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000
    labels = [tick.label for tick in calendar_ticks(3 * three_days, noon)]
    assert labels[0] == "16 Jun"
    assert calendar_ticks(3 * three_days, noon)[0].at == pytest.approx(0.5 / 9)
    assert calendar_ticks(three_days, None)[1].label == "12 h"
    assert calendar_ticks(0, None)[0].at == 0.0


def test_cdf_describes_itself_in_words():
    text = cdf([("fifo", np.array([1.0, 10.0, 100.0])), ("none", np.zeros(0))], what="waiting")
    assert "Medians: fifo 10 s, none -" in text


def test_changes_are_over_jobs_that_finished_under_both():
    fifo, las, _ = compared()
    finish = las.finish_ms.copy()
    finish[:290] = -1
    cut = outcome_of(dataclasses.replace(las, finish_ms=finish))
    found = changes(fifo.trace, outcome_of(fifo), cut, "user")
    assert sum(change.jobs for change in found) <= 10
    assert [c.fraction for c in found] == sorted(c.fraction for c in found)


def test_findings_put_no_oracle_first_and_name_who_pays():
    replays = compared(1000)
    sentences = findings(replays, summarise(replays))
    assert sentences[0].startswith("las has the shortest mean job completion time")
    assert any("oracle" in sentence for sentence in sentences)
    assert any("job-size classes" in sentence for sentence in sentences)


def test_findings_say_how_many_owners_they_leave_out():
    trace = trace_of(
        name="t", format="test", job_id=[f"j{i}" for i in range(42)], submit_ms=range(42), gpus=[1] * 42,
        run_ms=[5000, 50_000] * 21, users=("ann", "bob", "cid"), user=[0] * 20 + [1] * 20 + [2] * 2,
    )
    replays = [drawn_replay(trace, "1x4xT4", policy) for policy in ("fifo", "sjf")]
    said = findings(replays, summarise(replays))
    assert any(s.startswith("Of the 2 users with at least 10 jobs (3 in all), ") for s in said), said
    assert any(s.startswith("The only job-size class ") for s in said), said
    text = page(replays, command="brim sim compare")
    assert "fifo, 1 GPU: half wait" in text
    assert "1 GPUs" not in text


def test_a_difference_that_may_be_chance_is_said_to_be():
    trace = drawn_trace(200, seed=5, load_gpus=16)
    fifo, las = (summarise([drawn_replay(trace, "2x8xT4", policy)])[0] for policy in ("fifo", "las"))

    def at(summary, seed, jct_s):
        return dataclasses.replace(
            summary, seed=seed, saved=None, metrics=dataclasses.replace(summary.metrics, jct_mean_s=jct_s)
        )

    before = [at(fifo, seed, 1000.0) for seed in range(2)]
    (first, *_) = verdict({"fifo": before, "las": [at(las, 0, 900.0), at(las, 1, 100.0)]})
    assert "; with 2 seeds this difference is not statistically clear." in first
    (first, *_) = verdict({"fifo": before, "las": [at(las, 0, 510.0), at(las, 1, 500.0)]})
    assert "statistically" not in first
    (first, *_) = verdict({"fifo": before[:1], "las": [at(las, 0, 510.0)]})
    assert "statistically" not in first


def test_a_lone_oracle_is_named_with_what_it_knows():
    (replay,) = compared(policies=("srtf",))
    (found,) = summarise([replay])
    summary = dataclasses.replace(found, estimates="true run times")
    told = dataclasses.replace(found, policy="optimus", estimates="none")
    assert verdict({"srtf": [summary]}) == ["srtf is an oracle: it knows the true run times of jobs."]
    assert verdict({"optimus": [told]}) == ["optimus is an oracle: it knows the true remaining work of jobs."]


def test_a_partial_replay_never_counts_as_the_best():
    fifo, las, sjf = compared(policies=("fifo", "las", "sjf"))
    lucky = np.where(las.finish_ms - las.trace.submit_ms < 600_000, las.finish_ms, -1)
    replays = [fifo, dataclasses.replace(las, finish_ms=lucky), sjf]
    assert findings(replays, summarise(replays))[0].startswith("sjf has the shortest")
    assert '<tr class=best><th scope="row" data-v="sjf"><span class="chip p2"></span>sjf' in page(replays, command="x")


def test_files_of_policies_are_called_by_their_last_part():
    (replay,) = compared(policies=("/home/someone/policies/mine.py:Best",))
    text = page([replay], command="x")
    assert "mine.py:Best" in text
    assert "/home/someone" not in text


def test_traces_without_owners_are_compared_by_size():
    trace = trace_of(
        name="t", format="test", job_id=[f"j{i}" for i in range(40)], submit_ms=range(40), gpus=[1, 4] * 20,
        run_ms=[5000] * 40,
    )
    text = page([drawn_replay(trace, "1x4xT4", policy) for policy in ("fifo", "las")], command="x")
    assert "the trace names neither groups nor users" in text
    assert unpacked(text)["sizes"][0] == "1"


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_opens_the_page_silently_and_switches_policies(tmp_path, dark):
    path = tmp_path / "page.html"
    write_page(compared(), path, command="brim sim compare")
    with Chromium(tmp_path / "profile", dark=dark) as browser:
        browser.open(path)
        label = "document.querySelector('#gantt').getAttribute('aria-label')"
        pixels = "document.querySelector('#gantt').toDataURL()"
        assert browser.evaluate(label) == "GPUs over time under fifo, colour by group"
        before = browser.evaluate(pixels)
        browser.evaluate("document.querySelector('#gantt-policies button[value=\"1\"]').click()")
        assert browser.evaluate(label) == "GPUs over time under las, colour by group"
        assert browser.evaluate(pixels) != before
        browser.evaluate("document.querySelector('#gantt-colours button[value=\"1\"]').click()")
        assert browser.evaluate(label) == "GPUs over time under las, colour by job size"
        assert browser.evaluate("document.querySelectorAll('[data-panel]:not([hidden])').length") == 1
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.complaints() == []
        assert browser.requests() == [path.as_uri()]


@needs_chromium
def test_pointing_at_a_gpu_names_its_job_as_text(tmp_path):
    path = tmp_path / "page.html"
    write_page(nasty(), path, command=NASTY)
    with Chromium(tmp_path / "profile", width=400) as browser:
        browser.open(path)
        browser.evaluate("document.querySelector('#gantt').scrollIntoView()")
        box = browser.evaluate("(r => [r.x, r.y])(document.querySelector('#gantt').getBoundingClientRect())")
        browser.hover(box[0] + 5, box[1] + 5)
        assert browser.evaluate("document.querySelector('#gantt-tip').textContent").startswith("<script>alert(1)")
        assert browser.evaluate("document.querySelectorAll('script').length") == 2
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.complaints() == []
