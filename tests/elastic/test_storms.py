"""Ranks come, go and are killed: the bits stay."""

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from brim.train.data.ledger import verify
from tests import forked
from tests.elastic.storm import JOB, Event, Gang, living, random_events, storm
from tests.sampling import sample

EPOCHS = sample(12, 6)
STEPS = 5 * EPOCHS
WORDS = ("--epochs", EPOCHS, "--pause", 0.02)
LONG = ("--epochs", 12, "--pause", 0.02)
FRESH = "conv"
"""Its reference is not forked from the zygote of the gangs."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, zygote):
    """Digest and losses of a job in one process without brim around it."""
    known = {}

    def digest(model, epochs=EPOCHS):
        if model not in known:
            folder = tmp_path_factory.mktemp(model.split()[0])
            words = (JOB, folder, "--epochs", epochs, "--model", *model.split())
            if model == FRESH:
                forked.run_fresh(*words, cwd=folder, timeout_s=60)
            else:
                forked.run(*words, zygote=zygote, check=True)
            (answer,) = folder.glob("*.json")
            known[model] = json.loads(answer.read_text())
        return known[model]

    return digest


def events_of(*events):
    """Events of a job of 60 steps, as early in this one."""
    return [replace(event, step=event.step * STEPS // 60) for event in events]


def check(weather, expected):
    assert weather.code == 0, weather.stderr
    assert weather.digests == {expected["digest"]}, weather.stderr
    for answer in weather.answers:
        assert (answer["samples"], answer["steps"]) == (expected["samples"], expected["steps"])
        assert answer["noise"] == expected["noise"]
        assert answer["ledger"] == expected["ledger"]
        assert answer["losses"].items() <= expected["losses"].items()
        verify(answer["ledger"], 78)


@pytest.mark.slow
def test_settings_of_the_loader_hold_for_ranks_that_join(tmp_path, zygote, undisturbed):
    events = [Event(3, "loader", 1), Event(8, "resize", 2), Event(20, "await")]
    weather = storm(tmp_path, events, *WORDS, ranks=1, zygote=zygote)
    check(weather, undisturbed("mlp"))
    assert [answer["loader_workers"] for answer in weather.answers] == [1, 1]


@pytest.mark.parametrize("model", sample(["mlp", "conv", "transformer"], ["mlp", "conv"]))
def test_growing_and_shrinking_keeps_the_bits(tmp_path, zygote, undisturbed, model):
    """The transformer grows and shrinks in ``test_a_random_storm``, too."""
    events = events_of(
        Event(5, "resize", 4), Event(20, "await"), Event(25, "resize", 1), Event(40, "resize", 2), Event(44, "await")
    )
    weather = storm(tmp_path, events, *WORDS, "--model", model, zygote=zygote)
    check(weather, undisturbed(model))
    assert weather.done == events
    assert any(answer["first"] for answer in weather.answers)  # somebody joined later


@pytest.mark.parametrize("model", ["mlp", "conv", "transformer"])
def test_a_kill_without_notice_keeps_the_bits(tmp_path, zygote, undisturbed, model):
    events = events_of(Event(8, "kill", 1), Event(30, "kill", 0))
    weather = storm(tmp_path, events, *WORDS, "--model", model, ranks=4, zygote=zygote)
    check(weather, undisturbed(model))
    assert [event.what for event in weather.done] == ["kill", "kill"]


def test_a_killed_rank_may_be_replaced(tmp_path, zygote, undisturbed):
    events = events_of(Event(8, "kill", 0), Event(25, "kill", 1), Event(40, "await"))
    weather = storm(tmp_path, events, *WORDS, zygote=zygote, replace=4)
    check(weather, undisturbed("mlp"))
    assert {answer["size"] for answer in weather.answers} == {2}


def test_kills_with_50_mb_of_gradients_keep_the_bits(tmp_path, zygote, undisturbed):
    epochs = sample(4, 2)  # of 5 steps, a second of CPU time each
    events = [Event(1, "kill", 1), Event(3, "kill", 0), Event(5, "resize", 4), Event(7, "kill", 3)]
    words = ("--epochs", epochs, "--model", "wide")
    weather = storm(tmp_path, events, *words, zygote=zygote, replace=4, timeout_s=180)
    check(weather, undisturbed("wide", epochs))
    assert [event.what for event in weather.done] == ["kill", "kill", "resize", "kill"]


def test_preempt_and_resume_at_another_size(tmp_path, zygote, undisturbed):
    words = (*WORDS, "--model", "conv", "--checkpoint", tmp_path / "saved")
    events = events_of(Event(10, "resize", 4), Event(20, "preempt"), Event(35, "preempt"))
    weather = storm(tmp_path, events, *words, zygote=zygote)
    check(weather, undisturbed("conv"))
    assert weather.starts == 3


def test_a_stream_gives_every_sample_once_over_sizes_kills_and_stops(tmp_path, zygote, undisturbed):
    words = (*WORDS, "--stream", "--loader-workers", 1, "--checkpoint", tmp_path / "saved")
    events = events_of(Event(7, "resize", 4), Event(18, "preempt"), Event(33, "kill", 1), Event(47, "preempt"))
    weather = storm(tmp_path, events, *words, zygote=zygote)
    check(weather, undisturbed("mlp --stream"))
    assert weather.starts == 3


def test_a_random_storm(tmp_path, zygote, undisturbed):
    words = (*WORDS, "--model", "transformer", "--checkpoint", tmp_path / "saved")
    weather = storm(tmp_path, events_of(*random_events(1, 55, 8)), *words, zygote=zygote, replace=20, timeout_s=120)
    check(weather, undisturbed("transformer"))


def test_who_comes_after_the_last_step_has_the_state_too(tmp_path, zygote, undisturbed):
    weather = storm(tmp_path, [Event(STEPS - 1, "resize", 4)], *WORDS, zygote=zygote)
    check(weather, undisturbed("mlp"))


@pytest.mark.parametrize("kind", ["resize", "kill", "preempt"])
def test_code_at_the_end_of_an_epoch_runs_once_on_every_rank(tmp_path, zygote, undisturbed, kind):
    """Most events come in the last step of an epoch, which takes long; its end divides the learning rate."""
    sizes = (4, 1, 2, 4, 2, 1, 4, 2, 1, 2)
    events = [Event(5 * epoch + 4, kind, sizes[epoch]) for epoch in sample(range(10), range(0, 10, 2))]
    words = ("--epochs", 12, "--anneal", "--pause-last", 0.15, "--checkpoint", tmp_path / "saved")
    expected = undisturbed("mlp --anneal", 12)
    weather = storm(tmp_path, events, *words, ranks=2, zygote=zygote, replace=10, timeout_s=150)
    check(weather, expected)
    assert {answer["rate"] for answer in weather.answers} == {expected["rate"]}


RATE_EVENTS = [
    Event(4, "resize", 4), Event(11, "kill", 1), Event(18, "kill", 0), Event(24, "resize", 1), Event(29, "resize", 4),
    Event(36, "preempt"), Event(42, "kill", 1), Event(48, "resize", 4), Event(53, "kill", 3),
]  # fmt: skip


@pytest.mark.parametrize("model", sample(["mlp", "conv"], ["conv"]))
def test_a_rate_set_by_hand_and_a_best_value_so_far_are_those_of_an_undisturbed_run(
    tmp_path, zygote, undisturbed, model
):
    how = f"{model} --rate begins --evaluate"
    words = (*LONG, "--model", *how.split(), "--checkpoint", tmp_path / "saved")
    weather = storm(tmp_path, RATE_EVENTS, *words, ranks=2, zygote=zygote, replace=10, timeout_s=150)
    expected = undisturbed(how, 12)
    check(weather, expected)
    assert {answer["rate"] for answer in weather.answers} == {0.1 / (1 + (60 - 1) / 20)}
    assert {answer["best"] for answer in weather.answers} == {expected["best"]}
    assert expected["best"] < 1.6


def test_a_rate_that_was_not_set_again_ends_the_job_by_name_or_is_the_right_one(tmp_path, zygote, undisturbed):
    """Behind the answer of run.step: no rank knows that the step it repeats has begun."""
    how = "mlp --rate idiom"
    words = (*LONG, "--model", *how.split(), "--checkpoint", tmp_path / "saved")
    weather = storm(tmp_path, RATE_EVENTS, *words, ranks=2, zygote=zygote, replace=10, timeout_s=150)
    if weather.code == 0:
        check(weather, undisturbed(how, 12))
    else:
        named = "ranks differ in param_groups[0]['lr']: ", "not set param_groups[0]['lr'] again when the step"
        assert any(words in weather.stderr for words in named)
        assert "Set it on every rank, behind `if run.begins_step:`" in weather.stderr


def test_a_rate_that_the_only_rank_left_did_not_set_again_ends_the_job_by_name(tmp_path, zygote):
    words = (*WORDS, "--model", "mlp", "--rate", "idiom")
    weather = storm(tmp_path, [Event(11, "kill", 1)], *words, ranks=2, zygote=zygote)
    assert weather.code != 0
    assert "did not set param_groups[0]['lr'] again when the step was repeated: it is 0.0" in weather.stderr


def test_fast_mode_goes_on_with_any_number_of_ranks(tmp_path, zygote):
    events = events_of(Event(5, "resize", 3), Event(20, "kill", 1), Event(35, "resize", 1))
    weather = storm(tmp_path, events, *WORDS, "--fast", zygote=zygote)
    assert weather.code == 0, weather.stderr
    assert {answer["samples"] for answer in weather.answers} == {EPOCHS * 78}
    for answer in weather.answers:
        verify(answer["ledger"], 78)


def test_a_changed_batch_is_taken_up_by_all_at_one_step(tmp_path, zygote):
    weather = storm(tmp_path, events_of(Event(10, "tune", 32), Event(20, "resize", 4)), *WORDS, zygote=zygote)
    assert weather.code == 0, weather.stderr
    assert len(weather.digests) == 1
    assert {answer["samples"] for answer in weather.answers} == {EPOCHS * 78}
    assert {run["global_batch"] for run in weather.answers[0]["ledger"]["runs"]} == {16, 32}


def test_a_users_exception_ends_the_gang_with_its_traceback(tmp_path, zygote):
    weather = storm(tmp_path, [], *WORDS, "--fail-at", 7, zygote=zygote)
    assert weather.code == 1
    assert "the user's own mistake" in weather.stderr
    assert weather.answers == []


def listening(pids):
    """Addresses that these processes listen on, as hexadecimal words of /proc/net."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            inodes |= {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            row = line.split()
            if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                yield row[1].partition(":")[0]


def test_a_gang_listens_on_the_loopback_address_only(tmp_path, zygote):
    (tmp_path / "answers").mkdir()
    gang = Gang(tmp_path, 2, tmp_path / "answers", "--epochs", 200, "--pause", 0.02, zygote=zygote)
    try:
        status = gang.until(lambda status: len(living(status)) == 2)
        found = list(listening([gang.process.pid, *(rank["pid"] for rank in status["ranks"])]))
    finally:
        gang.close()
    assert len(found) >= 3  # the store of the leader, and gloo on each rank
    assert set(found) == {"0100007F"}
