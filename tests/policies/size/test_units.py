"""Workers and servers given out one by one: to whom the next one goes, in what order, and never more than there is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.parameter_servers import Allocation
from brim.policies.size.units import Units, grown
from tests.sampling import sample

WORKERS, SERVERS = 4, 3


def units(jobs, worker_milli=1000, server_milli=500):
    """A worker on GPU takes a GPU and a core, one on CPU takes cores, a server takes half a core."""
    one = np.ones(jobs, dtype=np.int64)
    on_gpu, on_cpu = np.column_stack((1000 * one, 1000 * one)), np.column_stack((0 * one, worker_milli * one))
    return Units(np.stack((on_gpu, on_cpu)), np.column_stack((0 * one, server_milli * one)))


def first(jobs, workers=1, on_gpu=True):
    one = np.ones(jobs, dtype=np.int64)
    return Allocation(workers * one, np.full(jobs, on_gpu), 1000 * one, one, 500 * one)


def by_workers(*each):
    """Costs that fall with the number of workers on GPU alone: of each job, what it costs with one (J, D, W, P)."""
    workers = np.arange(1, WORKERS + 1)
    cost = np.array(each)[:, None] / workers
    return np.broadcast_to(
        np.stack((cost, np.full_like(cost, np.inf)), axis=1)[..., None], (len(each), 2, WORKERS, SERVERS)
    ).copy()


def given_out(costs, capacity, instead=None, order=None, at_first=None):
    jobs = len(costs)
    none = np.zeros(jobs, dtype=np.int64)
    return grown(
        costs, units(jobs), first(jobs) if at_first is None else at_first, none if instead is None else instead,
        np.arange(jobs) if order is None else np.array(order), capacity,
    )


def test_the_next_worker_goes_where_it_saves_most():
    """Three GPUs: one each, and the third to the job whose ten seconds become five, not to one whose two become one."""
    assert given_out(by_workers(2.0, 10.0), (3_000, 9_000)).workers.tolist() == [1, 2]
    assert given_out(by_workers(2.0, 10.0), (4_000, 9_000)).workers.tolist() == [1, 3]  # 10/2 - 10/3 is more than 1
    assert given_out(by_workers(2.0, 10.0), (5_000, 9_000)).workers.tolist() == [2, 3]


def test_the_first_in_the_order_begins_where_there_is_room_for_one():
    assert given_out(by_workers(2.0, 10.0), (1_000, 9_000), order=[0, 1]).workers.tolist() == [1, 0]
    assert given_out(by_workers(2.0, 10.0), (1_000, 9_000), order=[1, 0]).workers.tolist() == [0, 1]


def test_a_job_that_finds_no_gpu_begins_on_cpu_if_it_can():
    costs = by_workers(2.0, 10.0)
    costs[:, 1] = 40.0
    found = given_out(costs, (1_000, 9_000), instead=np.array([0, 1]))
    assert (found.kind.tolist(), found.workers.tolist()) == ([0, 1], [1, 1])


def test_a_job_whose_costs_are_unknown_keeps_what_it_has_at_first():
    costs = by_workers(2.0, 10.0)
    costs[1] = np.nan
    assert given_out(costs, (9_000, 90_000)).workers.tolist() == [WORKERS, 1]


def test_what_costs_no_less_is_not_given():
    costs = np.ones((2, 2, WORKERS, SERVERS))
    found = given_out(costs, (9_000, 90_000))
    assert (found.workers.tolist(), found.servers.tolist()) == ([1, 1], [1, 1])


@settings(max_examples=sample(300, 60))
@given(
    data=st.data(), jobs=st.integers(1, 6), gpus=st.integers(0, 6), cores=st.integers(0, 12),
)
def test_never_more_is_given_than_there_is_and_nobody_gets_less_than_it_began_with(data, jobs, gpus, cores):
    size = jobs * 2 * WORKERS * SERVERS
    numbers = data.draw(st.lists(st.integers(1, 50), min_size=size, max_size=size))
    costs = np.array(numbers, dtype=np.float64).reshape(jobs, 2, WORKERS, SERVERS)
    instead = np.array(data.draw(st.lists(st.integers(0, 1), min_size=jobs, max_size=jobs)))
    order = data.draw(st.permutations(range(jobs)))
    found = given_out(costs, (1000 * gpus, 1000 * cores), instead=instead, order=order)
    on_gpu, runs = found.kind == 0, found.workers > 0
    assert (found.workers * on_gpu).sum() <= gpus
    assert (1000 * found.workers + 500 * found.servers * runs).sum() <= 1000 * cores
    assert (found.servers[runs] >= 1).all()
    rows = np.flatnonzero(runs)
    has = costs[rows, found.kind[rows], found.workers[rows] - 1, found.servers[rows] - 1]
    began = np.where(on_gpu[rows], costs[rows, 0, 0, 0], costs[rows, 1, 0, 0])
    moved = on_gpu[rows] & (instead[rows] > 0)  # it may have begun on CPU
    assert ((has <= began) | moved).all()
