"""Exchanges between jobs with parameter servers: what always holds, and known answers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.parameter_servers import Allocation
from brim.policies.size.exchange import MOVES, Evaluated, exchanged

NAMES = [move.name for move in MOVES]


def have(size, *, on_gpu=True):
    full = np.ones(size, dtype=np.int64)
    return Allocation(2 * full, np.full(size, on_gpu), 4_000 * full, 2 * full, 2_000 * full)


def table(size):
    return np.full((size, len(MOVES)), np.inf), np.zeros((size, len(MOVES)), int), np.zeros((size, len(MOVES)), int)


@st.composite
def cases(draw):
    size = draw(st.integers(1, 6))
    numbers = draw(st.lists(st.integers(-20, 20), min_size=3 * size * len(MOVES), max_size=3 * size * len(MOVES)))
    change, gpus, milli = np.array(numbers).reshape(3, size, len(MOVES))
    possible = np.array(draw(st.lists(st.booleans(), min_size=change.size, max_size=change.size))).reshape(change.shape)
    return (Evaluated(np.where(possible, change, np.inf), gpus % 3 - 1, milli),
            draw(st.integers(0, 3)), draw(st.integers(0, 40)))


def moved(before, after):
    """The jobs whose allocation changed, with the kinds of move that lead to what they have."""
    found = {}
    for job in range(len(before.workers)):
        kinds = [
            kind for kind, move in enumerate(MOVES)
            if all(new[job] == got[job] for new, got in zip(move.apply(before), after, strict=True))
        ]
        if any(old[job] != new[job] for old, new in zip(before, after, strict=True)):
            found[job] = kinds
    return found


@settings(max_examples=200)
@given(cases())
def test_the_sum_never_rises_no_job_moves_twice_and_nothing_is_granted_twice(case):
    found, free_gpus, free_milli = case
    before = have(found.change.shape[0])
    jobs = moved(before, exchanged(before, found, free_gpus, free_milli))
    assert all(jobs.values())  # each change is one move
    rows, kinds = np.array(list(jobs), dtype=int), np.array([min(of) for of in jobs.values()], dtype=int)
    if len(rows):
        assert found.change[rows, kinds].sum() < 0
        assert found.gpus[rows, kinds].sum() <= free_gpus
        assert found.milli[rows, kinds].sum() <= free_milli


def test_a_gpu_goes_from_the_job_that_loses_least_to_the_one_that_gains_most():
    change, gpus, milli = table(2)
    plus, minus = NAMES.index("+worker"), NAMES.index("-worker")
    gpus[:, plus], gpus[:, minus] = 1, -1
    change[0, plus], change[1, minus] = -16, 5  # the slides' example: 26 before, 15 after
    after = exchanged(have(2), Evaluated(change, gpus, milli), 0, 0)
    assert after.workers.tolist() == [3, 1]
    change[1, minus] = 17
    assert exchanged(have(2), Evaluated(change, gpus, milli), 0, 0).workers.tolist() == [2, 2]


def test_a_crowded_cluster_gives_no_free_gpu_away():
    change, gpus, milli = table(1)
    change[0, NAMES.index("+worker")], gpus[0, NAMES.index("+worker")] = -3, 1
    found = Evaluated(change, gpus, milli)
    assert exchanged(have(1), found, 1, 0).workers.tolist() == [3]
    assert exchanged(have(1), found, 1, 0, crowded=True).workers.tolist() == [2]


def test_a_worker_that_moves_to_cpu_and_back_has_what_it_had():
    before = have(1)._replace(workers=np.array([1]), worker_milli=np.array([0]))
    to_cpu, to_gpu = (next(move for move in MOVES if move.name == name) for name in ("to CPU", "to GPU"))
    on_cpu = to_cpu.apply(before)
    assert (on_cpu.on_gpu.tolist(), on_cpu.worker_milli.tolist()) == ([False], [4_000])
    back = to_gpu.apply(on_cpu)
    assert (back.on_gpu.tolist(), back.workers.tolist()) == ([True], [1])


def test_opposite_moves_restore_what_jobs_had():
    for name in ("server", "worker", "server core", "worker core"):
        plus, minus = (next(move for move in MOVES if move.name == sign + name) for sign in "+-")
        for got, had in zip(minus.apply(plus.apply(have(2))), have(2), strict=True):
            assert got.tolist() == had.tolist()
