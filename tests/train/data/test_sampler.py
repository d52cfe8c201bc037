"""Samples: exactly once per epoch, whoever takes them, and errors that say what to change."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import ConfigError, InvariantError
from brim.train.data.ledger import consumed, verify
from brim.train.data.sampler import Sampler, order
from tests.sampling import sample


def taken(sampler: Sampler, epoch: int, step: int) -> np.ndarray:
    """What the logical workers take in a step, one after the other."""
    ids = sampler.order(epoch)
    spans = [sampler.share(epoch, step, worker) for worker in range(sampler.logical_workers)]
    return np.concatenate([ids[span.start:span.stop] for span in spans])


def run_epochs(sampler: Sampler, epochs: int) -> list[np.ndarray]:
    seen: list[list[np.ndarray]] = [[] for _ in range(epochs)]
    while sampler.epoch < epochs:
        epoch, step = sampler.epoch, sampler.step
        seen[epoch].append(taken(sampler, epoch, step))
        sampler.commit(epoch, step)
    return [np.concatenate(parts) for parts in seen]


def test_an_epoch_takes_every_sample_once_in_the_order_of_its_permutation():
    sampler = Sampler(103, global_batch=16, logical_workers=4, seed=3)
    assert sampler.steps_per_epoch == 7
    first, second = run_epochs(sampler, 2)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(103))
    assert first.tolist() == order(103, 3, 0).tolist() != second.tolist()
    assert verify(sampler.ledger(), 103).complete == (0, 1)


def test_the_order_never_changes_between_versions():
    assert order(10, 0, 0).tolist() == GOLDEN_0
    assert order(10, 7, 3).tolist() == GOLDEN_7


GOLDEN_0 = [6, 1, 0, 5, 3, 8, 7, 9, 2, 4]
GOLDEN_7 = [5, 4, 9, 2, 7, 1, 0, 8, 3, 6]


def test_shares_of_a_partial_batch_differ_by_one_at_most():
    sampler = Sampler(103, global_batch=16, logical_workers=4)
    assert [sampler.samples(0, 0, worker) for worker in range(4)] == [4, 4, 4, 4]
    assert [sampler.samples(0, 6, worker) for worker in range(4)] == [1, 2, 2, 2]
    short = Sampler(18, global_batch=16, logical_workers=4)
    assert [short.samples(0, 1, worker) for worker in range(4)] == [0, 1, 0, 1]


def test_the_rest_is_dropped_where_asked_and_the_ledger_says_how_much():
    sampler = Sampler(103, global_batch=16, logical_workers=4, last="drop")
    first, _ = run_epochs(sampler, 2)
    assert len(first) == len(set(first.tolist())) == 96
    assert verify(sampler.ledger(), 103).dropped == 14


def test_the_cursor_moves_on_commit_only_and_in_order():
    sampler = Sampler(64, global_batch=16, logical_workers=2)
    before = sampler.state_dict()
    sampler.share(0, 2, 1)
    assert sampler.state_dict() == before
    sampler.commit(0, 0)
    for step in (0, 2):
        with pytest.raises(InvariantError, match="expected epoch 0 step 1"):
            sampler.commit(0, step)


def test_a_larger_batch_may_end_an_epoch_whose_rest_is_dropped():
    sampler = Sampler(100, global_batch=10, logical_workers=2, last="drop")
    for step in range(9):
        sampler.commit(0, step)
    sampler.set_global_batch(20)
    assert (sampler.epoch, sampler.step, sampler.steps_in(0)) == (1, 0, 9)
    proof = verify(sampler.ledger(), 100)
    assert (proof.complete, proof.dropped, proof.open_epoch) == ((0,), 10, 1)


def test_committed_steps_keep_their_places_after_the_batch_has_changed():
    sampler = Sampler(100, global_batch=10, logical_workers=2)
    before = [sampler.span(0, step) for step in range(3)]
    for step in range(3):
        sampler.commit(0, step)
    sampler.set_global_batch(30)
    assert [sampler.span(0, step) for step in range(3)] == before
    assert (sampler.steps_per_epoch, sampler.span(0, 3).start, sampler.span(0, 3).stop) == (6, 30, 60)


OPERATION = st.one_of(
    st.tuples(st.just("commit"), st.integers(1, 5)),
    st.tuples(st.just("abort"), st.just(0)),
    st.tuples(st.just("batch"), st.integers(1, 8)),
    st.tuples(st.just("restore"), st.just(0)),
    st.tuples(st.just("roll back"), st.just(0)),
)


@settings(max_examples=sample(200, 67), deadline=None)
@given(
    length=st.integers(16, 60), workers=st.sampled_from([1, 2, 4]), seed=st.integers(0, 5), shuffle=st.booleans(),
    last=st.sampled_from(["keep", "drop"]), script=st.lists(OPERATION, max_size=25),
)
def test_every_sample_exactly_once_over_any_script(length, workers, seed, shuffle, last, script):
    """Steps that were aborted or rolled back do not count; whatever happens, the ledger is the truth."""
    def new() -> Sampler:
        return Sampler(length, global_batch=2 * workers, logical_workers=workers, seed=seed, shuffle=shuffle, last=last)

    sampler, seen = new(), list[tuple[int, int]]()
    saved, seen_then = json.dumps(sampler.state_dict()), list(seen)
    for name, number in [*script, ("commit", 200)]:
        if name == "commit":
            for _ in range(number):
                if sampler.epoch >= 2:
                    break
                epoch, step = sampler.epoch, sampler.step
                seen += [(epoch, sample) for sample in taken(sampler, epoch, step).tolist()]
                sampler.commit(epoch, step)
        elif name == "abort":
            taken(sampler, sampler.epoch, sampler.step)
        elif name == "batch":
            batch = number * workers
            if batch <= length:
                sampler.set_global_batch(batch)
            else:
                with pytest.raises(ConfigError):
                    sampler.set_global_batch(batch)
        elif name == "restore":
            state = json.dumps(sampler.state_dict())
            sampler = new()
            sampler.load_state_dict(json.loads(state))
            saved, seen_then = state, list(seen)
        else:
            sampler = new()
            sampler.load_state_dict(json.loads(saved))
            seen = list(seen_then)
    assert len(seen) == len(set(seen))
    proof = verify(json.loads(json.dumps(sampler.ledger())), length)
    assert proof.complete[:2] == (0, 1)
    for epoch in (0, 1):
        of_epoch = [sample for number, sample in seen if number == epoch]
        assert consumed(sampler.ledger(), epoch).tolist() == of_epoch
        if last == "keep":
            assert sorted(of_epoch) == list(range(length))
    assert len(seen) + proof.dropped >= 2 * length


def ledger(**changes) -> dict:
    sampler = Sampler(40, global_batch=8, logical_workers=2)
    for step in range(3):
        sampler.commit(0, step)
    sampler.set_global_batch(16)
    sampler.commit(0, 3)
    sampler.commit(1, 0)
    return json.loads(json.dumps(sampler.ledger() | changes))


def test_a_sound_ledger_is_proved():
    proof = verify(ledger(), 40)
    assert (proof.complete, proof.open_epoch, proof.open_samples) == ((0,), 1, 16)


@pytest.mark.parametrize(("run", "field", "value", "says"), [
    (1, "start", 25, "places 24 to 24 are in no step"),
    (1, "start", 23, "consumed twice"),
    (0, "stop", 20, "3 steps of 8 cannot take 20"),
    (1, "first_step", 4, "step 4 follows step 2"),
    (2, "epoch", 2, "epoch 1 is not complete"),
    (2, "stop", 48, "places up to 47 of a dataset of 40"),
    (2, "steps", 0, "0 steps"),
])
def test_a_ledger_that_repeats_or_leaves_out_samples_is_refused(run, field, value, says):
    broken = ledger()
    broken["runs"][run][field] = value
    with pytest.raises(InvariantError, match=says):
        verify(broken, 40)


def test_a_ledger_that_drops_against_its_rule_is_refused():
    broken = ledger(dropped=[{"epoch": 1, "samples": 24, "global_batch": 32}])
    with pytest.raises(InvariantError, match="with the rule 'keep'"):
        verify(broken, 40)
    with pytest.raises(InvariantError, match="of which nothing was consumed"):
        verify(ledger(dropped=[{"epoch": 5, "samples": 4, "global_batch": 32}]), 40)


def test_a_ledger_of_another_dataset_or_version_is_refused():
    with pytest.raises(ConfigError, match="dataset of 40 samples, this one has 41"):
        verify(ledger(), 41)
    with pytest.raises(ConfigError, match="version 2, this brim reads version 1"):
        verify(ledger(version=2), 40)


@pytest.mark.parametrize(("arguments", "says"), [
    ({"global_batch": 10, "logical_workers": 4}, "global_batch=10 is not a multiple of 4 logical workers: use 8 or 12"),
    ({"global_batch": 3, "logical_workers": 4}, "use 4$"),
    ({"global_batch": 128, "logical_workers": 4}, "has 100 samples, fewer than one .* use global_batch=100 or less"),
    ({"global_batch": 128, "logical_workers": 128}, "use at most 100 logical workers, and .* of at most 100$"),
    ({"global_batch": 4, "logical_workers": 0}, "at least 1"),
    ({"global_batch": 4, "logical_workers": 4, "last": "pad"}, "'keep' or 'drop'"),
    ({"global_batch": 4, "logical_workers": 4, "seed": -1}, "seed=-1"),
])
def test_errors_say_what_to_change(arguments, says):
    with pytest.raises(ConfigError, match=says):
        Sampler(100, **arguments)


@pytest.mark.parametrize("changes", [
    {"logical_workers": 4}, {"seed": 1}, {"shuffle": False}, {"last": "drop"}, {"length": 65},
])
def test_a_state_of_other_samples_is_refused(changes):
    made = {"length": 64, "global_batch": 8, "logical_workers": 2, "seed": 0}
    state = Sampler(**made).state_dict()
    with pytest.raises(ConfigError, match="make them equal"):
        Sampler(**made | changes).load_state_dict(state)


def test_other_shares_take_the_same_samples():
    one, other = Sampler(64, global_batch=8, logical_workers=2), Sampler(64, global_batch=8, logical_workers=4)
    one.commit(0, 0)
    one.set_logical_workers(2)
    other.load_state_dict(one.state_dict())
    assert taken(one, 0, 1).tolist() == taken(other, 0, 1).tolist()
    one.set_logical_workers(8)
    assert taken(one, 0, 1).tolist() == taken(other, 0, 1).tolist()
    one.set_logical_workers(3)
    assert [one.samples(0, 1, worker) for worker in range(3)] == [2, 3, 3]
    one.set_global_batch(10)
    other.load_state_dict(one.state_dict() | {"global_batch": 12})
    assert other.logical_workers == 4


def test_asking_beyond_the_epoch_or_for_a_stranger_says_so():
    sampler = Sampler(64, global_batch=16, logical_workers=2)
    with pytest.raises(ConfigError, match="epoch 0 has 4 steps, asked for step 4"):
        sampler.span(0, 4)
    with pytest.raises(ConfigError, match="logical worker 2: expected 0 to 1"):
        sampler.share(0, 0, 2)


def test_the_state_does_not_grow_with_the_steps():
    sampler = Sampler(100_000, global_batch=10, logical_workers=2)
    for step in range(5_000):
        sampler.commit(0, step)
    assert len(sampler.ledger()["runs"]) == 1
