"""What the records of jobs and attempts say in the terms of the twin, and what the twin makes of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from brim.cli.fidelity import ReplaySetup, costs_of, in_words, learn, predicted, with_own_run_times
from brim.core.cluster import parse_cluster
from brim.core.trace import NONE
from brim.errors import ConfigError
from brim.live.recording import recorded_jobs, trace_of_recorded
from brim.live.records import AttemptRecord, JobRecord
from brim.live.requests import JobRequest
from brim.policies.presets import find_policy

S = 1000
TWO = parse_cluster("1x2xcpu-slot")
SCENE = ReplaySetup(cluster=TWO, policy=find_policy("fifo"), gap_ms=1)


def job(number, submit_ms, gpus=1, *, name="train", state="finished", ended_ms=NONE, **more):
    request = JobRequest(name=name, capture="0" * 32, digest="0" * 64, gpus=gpus)
    return JobRecord(
        id=number, uid=1, user="ann", key=str(number), request=request, submitted_s=0.0, submit_ms=submit_ms,
        state=state, ended_ms=ended_ms, **more,
    )


def attempt(number, decided_ms, begin_ms, start_ms, end_ms, devices=(0,), *, nth=1, outcome="finished", **more):
    return AttemptRecord(
        job=number, number=nth, uid=1, state="running" if end_ms == NONE else "ended", devices=devices,
        decided_ms=decided_ms, begin_ms=begin_ms, start_ms=start_ms, end_ms=end_ms, outcome=outcome, **more,
    )


def held_gpu_ms(recorded):
    """GPU time of all attempts of a job."""
    holdings = (one for attempt in recorded.attempts for one in attempt.holdings)
    return sum((one.until_ms - one.from_ms) * len(one.devices) for one in holdings)


def queue(num_jobs, run_ms=2 * S, start_ms=100, first=1, at_ms=0):
    """Jobs of both devices, one after the other, all submitted at once."""
    jobs, attempts = [], []
    for place in range(num_jobs):
        decided_ms = at_ms + place * (start_ms + run_ms)
        end_ms = decided_ms + start_ms + run_ms
        jobs.append(job(first + place, at_ms, 2, ended_ms=end_ms))
        attempts.append(attempt(first + place, decided_ms, decided_ms + 50, decided_ms + start_ms, end_ms, (0, 1)))
    return jobs, attempts


def test_an_attempt_holds_its_devices_when_the_one_before_has_left_them():
    """Job 1 is preempted at 5 s and leaves at 6 s; job 2 was granted its device at 5 s; job 1 comes back at 8 s."""
    jobs = [job(1, 0, ended_ms=12 * S, preemptions=1), job(2, 4 * S, ended_ms=8 * S)]
    attempts = [
        attempt(1, 0, 100, 200, 6 * S, stop_ms=5 * S, stop_reason="preempted", outcome="stopped"),
        attempt(2, 5 * S, 6100, 6300, 8 * S),
        attempt(1, 8 * S, 8100, 8400, 12 * S, nth=2),
    ]
    first, second = recorded_jobs(jobs, attempts, [], 99 * S)
    assert [one.granted_ms for one in first.attempts] == [0, 8 * S]
    assert (first.run_ms, first.start_ms, first.save_ms) == (4800 + 3600, [200, 400], [1000])
    assert held_gpu_ms(first) == 10 * S
    assert second.attempts[0].granted_ms == 6 * S
    assert (second.run_ms, second.start_ms, held_gpu_ms(second)) == (1700, [300], 2 * S)
    assert first.undisturbed
    assert second.undisturbed
    costs = costs_of([first, second])
    assert (costs.start_ms, costs.restart_ms, costs.save_ms) == (250, 400, 1000)
    assert learn([first, second]).costs.restart_ms == 400 + 8400 - 1700  # of two alike, one returned: the rest is that


def test_only_a_job_that_nobody_disturbed_tells_how_long_its_like_run():
    ended = {"ended_ms": 5 * S}
    jobs = [job(1, 0, **ended), job(2, 0, state="cancelled", **ended), job(3, 0, **ended), job(4, 0, **ended),
            job(5, 0, state="running"), job(6, 0, state="cancelled", **ended)]  # fmt: skip
    attempts = [
        attempt(1, 0, 10, 20, 5 * S),
        attempt(2, 0, 10, 20, 5 * S, stop_ms=4 * S, stop_reason="cancelled", outcome="stopped"),
        attempt(3, 0, 10, 20, 1 * S, outcome="failed"), attempt(3, 1 * S, 1010, 1020, 5 * S, nth=2),
        attempt(4, 0, 10, 20, 1 * S, stop_ms=500, stop_reason="requeued", outcome="stopped"),
        attempt(4, 1 * S, 1010, 1020, 5 * S, nth=2),
        attempt(5, 0, 10, 20, NONE, outcome=""),
        attempt(6, 0, NONE, NONE, 10, stop_ms=5, stop_reason="cancelled", outcome="stopped"),  # it never held any
    ]
    found = recorded_jobs(jobs, attempts, [], 7 * S)
    assert [(one.job.id, one.undisturbed) for one in found] == [
        (1, True), (2, False), (3, False), (4, False), (5, False),
    ]
    assert found[1].run_ms == 3980
    assert found[4].end_ms == 7 * S


def test_the_journal_tells_when_holds_ended_and_devices_at_each_time():
    """Held until 3 s; four devices from 4 s on, two from 6 s on, until 10 s."""
    lines = [
        json.dumps({"t": 3 * S, "e": "ELIGIBLE", "job": 1}),
        json.dumps({"t": 4 * S, "waits": {}, "d": [
            {"do": "start", "job": 1, "setting": {"ranks": [[0, device, 1000, 1] for device in range(4)]}},
        ]}),
        json.dumps({"t": 6 * S, "waits": {}, "d": [
            {"do": "resize", "job": 1, "setting": {"ranks": [[0, device, 1000, 1] for device in range(2)]}},
        ]}),
    ]  # fmt: skip
    records = [job(1, 0, 4, ended_ms=10 * S)], [attempt(1, 4 * S, 4100, 4200, 10 * S, (0, 1))]
    (found,) = recorded_jobs(*records, lines, 99 * S)
    assert (found.ready_ms, held_gpu_ms(found)) == (3 * S, 4 * 2 * S + 2 * 4 * S)
    (without,) = recorded_jobs(*records, [], 99 * S)
    assert (without.ready_ms, held_gpu_ms(without)) == (0, 2 * 6 * S)


def devices_line(at_ms, devices, do="resize"):
    """A line of the journal of a round that gave job 1 its devices."""
    setting = {"ranks": [[0, device, 1000, 1] for device in devices]}
    return json.dumps({"t": at_ms, "waits": {}, "d": [{"do": do, "job": 1, "setting": setting}]})


def holdings(found):
    """What each attempt of a job held, with how many devices."""
    return [[(one.from_ms, one.until_ms, len(one.devices)) for one in attempt.holdings] for attempt in found.attempts]


@pytest.mark.parametrize("took_ms", [0, 2, 700])
def test_a_round_that_takes_its_time_loses_no_devices(took_ms):
    """Four devices for an hour and two for a minute; the round began a while before the attempt was decided."""
    began_ms, shrunk_ms, end_ms = 4 * S, 3604 * S, 3664 * S
    lines = [devices_line(began_ms, range(4), "start"), devices_line(shrunk_ms, range(2))]
    decided_ms = began_ms + took_ms
    tried = attempt(1, decided_ms, decided_ms + 50, decided_ms + 100, end_ms, (0, 1))
    (found,) = recorded_jobs([job(1, 0, 4, ended_ms=end_ms)], [tried], lines, 9999 * S)
    assert holdings(found) == [[(decided_ms, shrunk_ms, 4), (shrunk_ms, end_ms, 2)]]
    (found,) = recorded_jobs([job(1, 0, 4, ended_ms=end_ms)], [tried], lines[:1], 9999 * S)
    assert holdings(found) == [[(decided_ms, end_ms, 4)]]


def test_before_the_first_line_of_the_journal_an_attempt_had_the_devices_of_its_end():
    """It goes back to the resize of the second attempt only, and to the start of the third."""
    lines = [devices_line(30 * S, range(2)), devices_line(50 * S, range(4), "start")]
    times = ((0, 10 * S, (0,)), (20 * S, 40 * S, (0, 1)), (50 * S + 2, 60 * S, (0, 1, 2, 3)))
    tried = [
        attempt(1, from_ms, from_ms + 50, from_ms + 100, end_ms, devices, nth=nth, outcome="lost")
        for nth, (from_ms, end_ms, devices) in enumerate(times, 1)
    ]
    (found,) = recorded_jobs([job(1, 0, 4, ended_ms=60 * S)], tried, lines, 99 * S)
    assert holdings(found) == [
        [(0, 10 * S, 1)], [(20 * S, 30 * S, 2), (30 * S, 40 * S, 2)], [(50 * S + 2, 60 * S, 4)],
    ]


@pytest.mark.parametrize("took_ms", [0, 2])
def test_what_a_job_is_exchanged_for_is_held_by_its_next_attempt(took_ms):
    """From two devices to CPU by a round at 10 s, and the other way round by one at 30 s."""
    start = {"e": "START", "job": 1}
    lines = [
        devices_line(0, (0, 1), "start"), devices_line(10 * S, (-1,)),
        json.dumps({"t": 12 * S, "setting": {"ranks": [[0, -1, 1000, 1]]}} | start),
        devices_line(30 * S, (0, 1)),
        json.dumps({"t": 31 * S, "setting": {"ranks": [[0, 0, 1000, 1], [0, 1, 1000, 1]]}} | start),
    ]
    stop = {"stop_reason": "exchanged", "outcome": "stopped"}
    tried = [
        attempt(1, took_ms, 50, 100, 12 * S, (0, 1), stop_ms=10 * S + took_ms, **stop),
        attempt(1, 12 * S, 12 * S, 12 * S, 31 * S, (-1,), nth=2, stop_ms=30 * S + took_ms, **stop),
        attempt(1, 31 * S, 31 * S, 31 * S, 40 * S, (0, 1), nth=3),
    ]
    (found,) = recorded_jobs([job(1, 0, 2, ended_ms=40 * S)], tried, lines, 99 * S)
    assert holdings(found) == [[(took_ms, 12 * S, 2)], [(12 * S, 31 * S, 0)], [(31 * S, 40 * S, 2)]]


def test_a_trace_of_the_record_has_its_waits_and_completion_times():
    found = recorded_jobs(*queue(2), [], 0)
    trace = trace_of_recorded("t", found, TWO, {1: 7, 2: 8})
    assert trace.wait_ms.tolist() == [0, 2100]
    assert trace.jct_ms.tolist() == [2100, 4200]
    assert (trace.run_ms.tolist(), trace.gpus.tolist()) == ([7, 8], [2, 2])


def test_a_queue_without_noise_is_predicted_exactly_from_another():
    """Four jobs tell that their like run 2 s and start in 100 ms; three of them, later, end when they did."""
    before, after = queue(4), queue(3, first=5, at_ms=100 * S)
    found = recorded_jobs(before[0] + after[0], before[1] + after[1], [], 0)
    compared = frozenset({5, 6, 7})
    result = predicted(found, compared, SCENE, learn(found[:4]))
    assert result.bases == {"name and size": 3}
    assert result.fidelity.per_job["jct_s"].error_C.tolist() == [0.0, 0.0, 0.0]
    assert {total.error_ratio for total in result.fidelity.totals.values()} == {0.0}
    assert "makespan                    6.30        6.30    +0.0%  s" in list(in_words(result))


def test_a_prediction_does_not_see_the_run_times_that_it_predicts():
    """The compared jobs ran twice as long as those before: their own run times give no error, the prediction half."""
    before, after = queue(4), queue(3, run_ms=4 * S, first=5, at_ms=100 * S)
    found = recorded_jobs(before[0] + after[0], before[1] + after[1], [], 0)
    compared = frozenset({5, 6, 7})
    own = with_own_run_times(found, compared, SCENE)
    assert own.fidelity.totals["makespan_s"].error_ratio == 0.0
    assert own.as_json()["run_times_from"] == "the jobs themselves"
    guessed = predicted(found, compared, SCENE, learn(found[:4]))
    assert guessed.fidelity.totals["makespan_s"].replayed == pytest.approx(6.3)
    assert guessed.fidelity.totals["makespan_s"].recorded == pytest.approx(12.3)


def test_a_disturbed_job_loads_the_cluster_and_is_not_compared():
    jobs, attempts = queue(3)
    jobs[0] = replace(jobs[0], state="cancelled")
    attempts[0] = replace(attempts[0], outcome="stopped", stop_reason="cancelled", stop_ms=attempts[0].end_ms)
    found = recorded_jobs(jobs, attempts, [], 0)
    result = with_own_run_times(found, frozenset({1, 2, 3}), SCENE)
    assert result.replay.trace.job_id == ("1", "2", "3")
    assert result.fidelity.rows.tolist() == [1, 2]
    assert np.abs(result.fidelity.per_job["queue_s"].error_C).max() == 0.0
    with pytest.raises(ConfigError, match="nothing to learn from"):
        learn(found[:1])


def test_an_elastic_job_is_predicted_by_the_speeds_and_the_work_of_its_name():
    """8,000 samples, of which the last report knew 4,000; 64 in 32 ms on the two GPUs that it asked for: 4 s each."""
    elastic = JobRequest(name="net", capture="0" * 32, digest="0" * 64, gpus=2, gpus_min=1, gpus_max=2, ranks="per-gpu")
    jobs, attempts = queue(2, run_ms=4 * S, first=1)
    later, more = queue(1, run_ms=4 * S, first=3, at_ms=100 * S)
    jobs = [replace(one, request=elastic) for one in jobs + later]
    lines = [
        json.dumps({"t": one.start_ms + 2 * S, "e": "REPORTED", "job": one.job,
                    "report": {"samples_done": 4000.0, "samples_per_s": 2000.0, "seen": [[1, 2, 32, 0.032, 0.0]]}})
        for one in attempts + more
    ]  # fmt: skip
    found = recorded_jobs(jobs, attempts + more, lines, 0)
    assert [(one.samples, one.batch, one.speeds) for one in found] == [(8000.0, 64, ((2, 2000.0),))] * 3
    result = predicted(found, frozenset({3}), SCENE, learn(found[:2]))
    assert list(result.bases) == ["name, with the speeds reported on each number of GPUs"]
    assert result.fidelity.per_job["jct_s"].error_C == pytest.approx([0.0], abs=0.0015)  # a millisecond is begun
    assert (result.replay.gpus_min.tolist(), result.replay.gpus_max.tolist()) == ([1] * 3, [2] * 3)
    own = with_own_run_times(found, frozenset({3}), SCENE)
    assert own.fidelity.per_job["jct_s"].error_C == pytest.approx([0.0], abs=0.0015)


def test_the_samples_of_a_job_that_shared_its_devices_are_those_of_its_last_report():
    """Beside neighbours it is slower, and tells no step times: at the speed alone it would have done 8,000."""
    jobs, attempts = queue(1, run_ms=4 * S)
    start_ms = attempts[0].start_ms
    lines = [
        json.dumps({"t": start_ms + later_s * S, "e": "REPORTED", "job": 1,
                    "report": {"samples_done": done, "samples_per_s": 0.0, "seen": seen}})
        for later_s, done, seen in ((2, 4000.0, [[1, 2, 32, 0.032, 0.0]]), (4, 6000.0, []))
    ]  # fmt: skip
    [found] = recorded_jobs(jobs, attempts, lines, 0)
    assert (found.samples, found.speeds) == (6000.0, ((2, 2000.0),))
