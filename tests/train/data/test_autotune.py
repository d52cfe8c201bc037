"""How "auto" finds its number: by rates alone, near the best, in noise, again when the world changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from brim.train.data.autotune import NO_WAIT, TRIED, WorkerTuner

Rate = Callable[[int], float]
"""Micro-batches per second that training gets with a number of workers."""


class World:
    """A clock that moves by the time a micro-batch takes."""

    def __init__(
        self, rate: Rate, *, step_s: float = 0.0, noise: float = 0.0, drift: float = 0.0, most: int = 16, seed: int = 0
    ) -> None:
        self.rate, self.step_s, self.noise, self.drift = rate, step_s, noise, drift
        self.tuner, self.now_s, self.rng = WorkerTuner(most), 0.0, random.Random(seed)
        self.others, self.until_s, self.loaded = 1.0, 0.0, 0

    def fetch(self) -> None:
        if self.now_s >= self.until_s:  # others on the machine come and go
            self.others, self.until_s = self.rng.uniform(1 - self.drift, 1 + self.drift), self.now_s + 0.5
        load_s = self.rng.uniform(1 - self.noise, 1 + self.noise) / self.rate(self.tuner.workers) * self.others
        if self.loaded:  # ahead, by the workers there were before
            load_s, self.loaded = 1e-5, self.loaded - 1
        overlapped = self.tuner.workers > 0
        wait_s = max(load_s - self.step_s, 1e-5) if overlapped else load_s
        self.now_s += wait_s + self.step_s
        before = self.tuner.workers
        if self.tuner.observe(now_s=self.now_s, wait_s=wait_s, samples=8, ahead=2 * before):
            self.loaded = 2 * before

    def settle(self, fetches: int = 1_000_000) -> int:
        for _ in range(fetches):
            self.fetch()
            if self.tuner.settled:
                return self.tuner.workers
        raise AssertionError("never settled")

    def limit(self, most: int) -> None:
        before = self.tuner.workers
        self.tuner.limit(most, ahead=2 * before)
        self.loaded = 2 * before if self.tuner.workers != before else self.loaded

    def gained(self, workers: int) -> float:
        load_s = 1 / self.rate(workers)
        return 1 / (max(load_s, self.step_s) if workers else load_s + self.step_s)


PIPELINES: dict[str, Rate] = {
    "as many as cores": lambda w: 100 * min(max(w, 0.9), 4),
    "many wait for a disk": lambda w: 100 * min(max(w, 0.9), 12),
    "one does": lambda w: 900 - 30 * w if w else 500,
    "none is best": lambda w: 500 - 20 * w if w else 900,
    "more is worse": lambda w: 100 * w if 0 < w < 3 else max(220 - 15 * w, 20),
}


@pytest.mark.parametrize("step_s", [0.0, 0.004, 0.1])
@pytest.mark.parametrize("name", PIPELINES)
def test_what_it_settles_on_is_within_five_percent_of_the_best(name, step_s):
    world = World(PIPELINES[name], step_s=step_s, noise=0.1)
    found = world.settle()
    best = max(world.gained(number) for number in TRIED if number <= 16)
    assert world.gained(found) >= 0.95 * best, found


def test_no_more_is_tried_than_needed_where_training_does_not_wait():
    world = World(lambda w: 1000.0, step_s=0.1)
    assert world.settle() == 1
    assert world.now_s < 10
    assert NO_WAIT < 0.05


def test_it_stays_where_it_is_while_nothing_changes_and_looks_again_when_it_does():
    world = World(PIPELINES["as many as cores"], noise=0.1)
    found = world.settle()
    assert found == 4
    for _ in range(5_000):
        world.fetch()
        assert (world.tuner.settled, world.tuner.workers) == (True, found)
    world.rate = lambda w: 40 * min(max(w, 0.9), 12)
    for _ in range(20_000):
        world.fetch()
        if not world.tuner.settled:
            break
    assert world.settle() == 12


def test_it_never_asks_for_more_than_it_may():
    world = World(lambda w: 100.0 * max(w, 1), most=6)
    assert world.settle() == 6


def test_what_was_loaded_ahead_by_others_is_not_counted():
    """Few and slow batches: those that lie ready from before would make a window look twice as fast."""
    rates = {0: 4.0, 1: 6.0, 2: 10.0, 3: 9.0, 4: 8.0, 6: 7.0}
    assert World(lambda w: rates.get(w, 5.0), noise=0.05).settle() == 2


def test_on_a_machine_that_others_use_measuring_in_turns_mostly_finds_the_best():
    good = 0
    for seed in range(40):
        world = World(PIPELINES["more is worse"], drift=0.45, most=8, seed=seed)
        good += world.gained(world.settle()) >= 0.95 * world.gained(2)
    assert good >= 38, good


def test_a_lower_limit_is_kept_at_once_and_the_search_goes_on_below_it() -> None:
    world = World(lambda workers: 100.0 * (1 + workers), most=16)
    assert world.settle() == 16
    world.limit(3)
    assert world.tuner.workers <= 3
    assert world.settle() == 3
    world.limit(8)
    assert world.settle() == 8


def test_a_limit_above_what_was_found_changes_nothing() -> None:
    world = World(lambda workers: 100.0 * min(1 + workers, 4), most=16)
    found = world.settle()
    assert 0 < found < 8
    for most in (8, 32, found):
        world.limit(most)
        assert (world.tuner.workers, world.tuner.settled) == (found, True)


def test_a_limit_during_the_search_drops_what_is_above_it() -> None:
    world = World(lambda workers: 100.0 * (1 + workers), most=16)
    for fetches in range(0, 1_000, 50):
        tried = World(lambda workers: 100.0 * (1 + workers), most=16)
        for _ in range(fetches):
            tried.fetch()
        tried.limit(2)
        assert tried.settle() == 2
    world.limit(0)
    assert world.settle() == 0
