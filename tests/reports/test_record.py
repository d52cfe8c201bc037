"""What really happened, beside what policies would have made of it."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from brim.core.prices import Prices
from brim.core.trace import trace_of
from brim.reports.files import dump_json
from brim.reports.findings import changes, findings, outcome_of, reference_of
from brim.reports.page import page
from brim.reports.record import NoRecord, RecordedMetrics, record_of
from brim.reports.summary import NO_POWER, NO_PRICE, results_json, summarise
from brim.reports.table import cells, comparison
from brim.reports.verdict import verdict

from .fakes import drawn_replay, drawn_trace, replay_of, runs_of, with_record

S = 1000


def recorded(**changes):
    """Three jobs on two GPUs; c was requeued: it ran 2 s, waited 3 s more, ran 2 s. d never says when it started."""
    columns = {
        "submit_ms": [0, 0, 0, 0], "gpus": [1, 2, 1, 1], "run_ms": [4 * S, 4 * S, 4 * S, S],
        "wait_ms": [2 * S, 6 * S, S, -1], "jct_ms": [6 * S, 10 * S, 8 * S, -1],
    }
    return trace_of(name="t", format="test", job_id=list("abcd"), **(columns | changes))


def replayed(trace, policy="las", **changes):
    """a at once; b from 4 to 8; c is preempted at 2 s and resumes at 8 s, for 3 s: a restart costs a second; d last."""
    runs = runs_of([
        (0, 0, 4 * S, [0]), (2, 0, 2 * S, [1]), (1, 4 * S, 8 * S, [0, 1]), (2, 8 * S, 11 * S, [0]),
        (3, 8 * S, 9 * S, [1]),
    ])
    preempted = np.array([0, 0, 1, 0])
    return replay_of(
        trace, "1x2xT4", runs, [4 * S, 8 * S, 11 * S, 9 * S],
        **({"policy": policy, "preemptions": preempted, "restarts": preempted} | changes),
    )


def printed(summaries, record, width=300):
    console = Console(width=width, file=io.StringIO())
    console.print(comparison(summaries, record))
    return console.file.getvalue()


def test_figures_of_the_record_are_over_the_jobs_that_it_covers():
    found = record_of(recorded())
    assert isinstance(found, RecordedMetrics)
    assert (found.jobs, found.covered) == (4, 3)
    assert found.jct_mean_s == 8.0
    assert found.jct_p50_s == 8.0
    assert found.jct_p99_s == pytest.approx(8 + 0.98 * 2)
    assert found.queue_mean_s == 3.0
    assert found.wait_mean_s == 4.0  # 2, 6 and 4: JCT minus run time
    assert found.wait_p50_s == 4.0
    assert found.requeue_mean_s == 1.0
    assert found.held_gpu_s == 4 + 8 + 4
    assert found.jct_ms.tolist() == [6 * S, 10 * S, 8 * S, -1]


def test_a_trace_without_starts_has_no_record():
    empty = record_of(recorded(wait_ms=[-1] * 4, jct_ms=[-1] * 4))
    assert empty == NoRecord("the trace records no start times")


def test_waiting_after_a_preemption_is_told_apart_from_the_first_wait():
    (summary,) = summarise([replayed(recorded())])
    m = summary.metrics
    assert m.queue_mean_s == pytest.approx((0 + 4 + 0 + 8) / 4)
    assert m.requeue_mean_s == pytest.approx(6 / 4)
    assert m.wait_mean_s == pytest.approx(m.queue_mean_s + m.requeue_mean_s)
    assert m.wait_p50_s == pytest.approx(5.0)
    assert m.held_gpu_s == 4 + 2 + 8 + 3 + 1
    assert cells({"las": [summary]})["las"]["re-wait"].value == pytest.approx(1.5)


def test_what_is_saved_against_the_record_is_over_the_jobs_of_both():
    """The record: waits 2 + 6 + 4, GPU time 16. The replay of a, b, c: waits 0 + 4 + 6, GPU time 4 + 8 + 5."""
    trace = recorded()
    (summary,) = summarise([replayed(trace)], record=record_of(trace), prices=Prices.flat(3600.0))
    saved = summary.saved
    assert saved is not None
    assert (saved.reference, saved.jobs) == ("as recorded", 3)
    assert (saved.before_wait_s, saved.after_wait_s) == (12.0, 10.0)
    assert (saved.before_jct_s, saved.after_jct_s) == (24.0, 23.0)
    assert saved.saved_wait_s == 2.0
    assert saved.saved_gpu_s == -1.0  # the restart
    assert summary.saved_cost == pytest.approx(-1.0)
    assert summary.cost == pytest.approx(18.0)


def test_less_than_an_hour_of_waiting_is_said_in_seconds():
    trace = recorded()
    summaries = summarise([replayed(trace)], record=record_of(trace))
    assert "the jobs together wait 2 s less than recorded" in verdict({"las": summaries})[1]


def test_without_a_record_it_is_saved_against_the_first_policy_where_both_finished_everything():
    trace = recorded()
    quick = replayed(trace, "srtf", first_start_ms=np.zeros(4, dtype=np.int64))
    first, other = summarise([replayed(trace, "fifo"), quick])
    assert first.saved is None
    assert other.saved is not None
    assert (other.saved.reference, other.saved.jobs, other.saved.saved_gpu_s) == ("fifo", 4, 0.0)
    cut = dataclasses.replace(quick, finish_ms=np.array([4 * S, 8 * S, 11 * S, -1]))
    assert summarise([replayed(trace, "fifo"), cut])[1].saved is None


def test_another_load_or_seed_is_never_compared_with_the_record():
    trace = recorded()
    record = record_of(trace)
    for change in ({"load": 0.8}, {"seed": 1}, {"partial": True}):
        assert summarise([replayed(trace, **change)], record=record)[0].saved is None


def test_the_record_is_the_first_row_of_the_table_at_the_recorded_load_only():
    trace = recorded()
    record = record_of(trace)
    replays = [replayed(trace), replayed(trace, load=2.0)]
    summaries = summarise(replays, record=record)
    lines = printed(summaries, record).splitlines()
    row = next(at for at, line in enumerate(lines) if line.startswith("as recorded (3 of 4 jobs)"))
    assert lines[row + 1].startswith("las")
    assert sum(line.startswith("as recorded") for line in lines) == 1
    text = " ".join(" ".join(lines).split())
    assert 'No row "as recorded": the load is not the recorded one.' in text
    assert 'The row "as recorded" covers 3 of 4 jobs' in text
    assert "GPU-h saved: how many GPU-hours less the same jobs hold than recorded" in text


def test_a_record_that_is_left_out_says_why_in_the_table_the_json_and_on_the_page():
    trace = recorded()
    left_out = NoRecord("with --load, jobs do not arrive at their recorded times")
    replay = replayed(trace)
    summaries = summarise([replay], record=left_out)
    said = 'No row "as recorded": with --load, jobs do not arrive at their recorded times.'
    assert said in " ".join(printed(summaries, left_out).split())
    assert said.replace('"', "&quot;") in page([replay], command="x", summaries=summaries, record=left_out)
    found = results_json(replay, summaries, left_out)
    assert (found["recorded"], found["recorded_left_out"]) == (None, left_out.reason)


def test_json_keeps_its_version_and_has_the_record_and_what_is_saved():
    trace = recorded()
    record = record_of(trace)
    replay = replayed(trace)
    found = results_json(replay, summarise([replay], record=record, prices=Prices.flat(2.5)), record)
    dump_json(found)
    assert found["schema"] == 1
    assert found["recorded"] == {
        "jobs": 4, "covered": 3, "jct_mean_s": 8.0, "jct_p50_s": 8.0, "jct_p99_s": pytest.approx(9.96),
        "queue_mean_s": 3.0, "queue_p50_s": 2.0, "queue_p99_s": pytest.approx(5.92), "wait_mean_s": 4.0,
        "wait_p50_s": 4.0, "wait_p99_s": pytest.approx(5.96), "requeue_mean_s": 1.0, "held_gpu_s": 16.0,
    }
    (row,) = found["results"]
    assert (row["saved_against"], row["saved_gpu_s"], row["saved_wait_s"]) == ("as recorded", -1.0, 2.0)
    assert row["cost"] == pytest.approx(18 / 3600 * 2.5)
    assert row["saved_cost"] == pytest.approx(-1 / 3600 * 2.5)
    assert "at 2.5 per GPU-hour" in row["assumptions"][-1]
    plain = results_json(replay, summarise([replay]))["results"][0]
    assert (plain["cost"], plain["saved_cost"], plain["assumptions"][-1]) == (None, None, f"{NO_PRICE} {NO_POWER}")


@pytest.fixture(scope="module")
def compared():
    """The record is a first-come queue; las preempts (it says), srtf and sjf do not."""
    trace = drawn_trace(400, seed=5, load_gpus=16)
    trace = with_record(drawn_replay(trace, "2x8xT4", "fifo"))
    touched = np.ones(len(trace), dtype=np.int64)
    best, second = sorted(
        (drawn_replay(trace, "2x8xT4", policy) for policy in ("srtf", "sjf", "las")),
        key=lambda replay: (replay.finish_ms - trace.submit_ms).mean(),
    )[:2]
    best = dataclasses.replace(best, preemptions=touched)
    return record_of(trace), [drawn_replay(trace, "2x8xT4", "fifo"), best, second]


def test_the_first_finding_compares_the_best_policy_with_the_record(compared):
    record, replays = compared
    first = findings(replays, summarise(replays, record=record), record)[0]
    assert first.startswith(f"{replays[1].policy} would have cut the mean wait from ")
    assert " (as recorded) to " in first


def test_the_winner_is_named_with_and_without_preemption(compared):
    record, replays = compared
    text = verdict({s.policy: [s] for s in summarise(replays, record=record)})[0]
    assert f"of the policies that do not, {replays[2].policy} is best" in text
    calm = [dataclasses.replace(replay, preemptions=replays[0].preemptions) for replay in replays]
    said = verdict({s.policy: [s] for s in summarise(calm, record=record)})[0]
    assert "preempted and resized no running jobs in this replay." in said
    rough = [dataclasses.replace(replay, preemptions=replays[1].preemptions) for replay in replays]
    assert "as all policies here do" in verdict({s.policy: [s] for s in summarise(rough, record=record)})[0]


def test_a_record_that_no_policy_beats_is_said_to_be_better(compared):
    record, replays = compared
    trace = replays[0].trace
    trace = dataclasses.replace(trace, wait_ms=np.zeros_like(trace.wait_ms), jct_ms=trace.run_ms)
    perfect = [dataclasses.replace(replay, trace=trace) for replay in replays]
    first = verdict({s.policy: [s] for s in summarise(perfect, record=record_of(trace))})[0]
    assert first.startswith("No policy here would have been faster than the record")
    itself = [replays[0]]
    text = verdict({s.policy: [s] for s in summarise(itself, record=record)})[0]
    assert "equals the record" in text


def test_what_is_saved_is_said_in_hours_and_money(compared):
    record, replays = compared
    slow = dataclasses.replace(replays[1], service_gpu_ms=replays[1].service_gpu_ms + 3_600_000)
    summaries = summarise([replays[0], slow], record=record, prices=Prices.flat(2.0))
    said = verdict({s.policy: [s] for s in summaries})[1]
    assert "hours less than recorded" in said
    assert f"hold {len(slow.trace):,}.0 GPU-hours more, which costs {2 * len(slow.trace):,}.00 more." in said


@pytest.mark.parametrize(("saved_s", "said"), [(3_700, "wait 1 hour less"), (-3_700, "wait 1 hour more"),
                                               (7_300, "wait 2 hours less")])  # fmt: skip
def test_one_hour_is_no_plural(compared, saved_s, said):
    record, replays = compared
    summary = summarise(replays[:1], record=record)[0]
    assert summary.saved is not None
    saved = dataclasses.replace(summary.saved, after_wait_s=summary.saved.before_wait_s - saved_s)
    one = dataclasses.replace(summary, saved=saved)
    assert f"{said} than recorded" in verdict({one.policy: [one]})[1]


def test_gains_and_losses_are_against_the_record_and_show_everybody(compared):
    record, replays = compared
    before = reference_of(replays[0], record)
    trace = replays[0].trace
    found = changes(trace, before, outcome_of(replays[1]), "user", least_jobs=1)
    text = page(replays, command="x", record=record)
    assert "against the record, by user" in text
    for change in found:
        assert f'data-v="{change.name}">{change.name}</th>' in text
    assert text.count("<tr data-person=") == len(found)
    assert 'data-v="as recorded"><span class="chip pr">' in text
    assert text.count("as recorded <b>") == 2  # a line in both distributions
