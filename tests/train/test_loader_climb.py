"""How "auto" finds its number: by rates alone, near the best, in noise, again when the world changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from brim.train.loader_climb import NO_WAIT, TRIED, Climb

Rate = Callable[[int], float]
"""Micro-batches per second that training gets with a number of workers."""


class World:
    """A clock that moves by the time a micro-batch takes."""

    def __init__(self, rate: Rate, *, step_s: float = 0.0, noise: float = 0.0, most: int = 16) -> None:
        self.rate, self.step_s, self.noise = rate, step_s, noise
        self.climb, self.now_s, self.rng = Climb(most), 0.0, random.Random(0)

    def fetch(self) -> None:
        load_s = self.rng.uniform(1 - self.noise, 1 + self.noise) / self.rate(self.climb.workers)
        overlapped = self.climb.workers > 0
        wait_s = max(load_s - self.step_s, 1e-5) if overlapped else load_s
        self.now_s += wait_s + self.step_s
        self.climb.observe(now_s=self.now_s, wait_s=wait_s, samples=8, ahead=2 * self.climb.workers)

    def settle(self, fetches: int = 1_000_000) -> int:
        for _ in range(fetches):
            self.fetch()
            if self.climb.settled:
                return self.climb.workers
        raise AssertionError("never settled")

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
        assert (world.climb.settled, world.climb.workers) == (True, found)
    world.rate = lambda w: 40 * min(max(w, 0.9), 12)
    for _ in range(20_000):
        world.fetch()
        if not world.climb.settled:
            break
    assert world.settle() == 12


def test_it_never_asks_for_more_than_it_may():
    world = World(lambda w: 100.0 * max(w, 1), most=6)
    assert world.settle() == 6
