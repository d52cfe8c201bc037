"""Jobs with parameter servers in the twin: whole replays under every order and size, and what must be equal."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.order import borda
from brim.policies.order.arrival import Arrival
from brim.policies.order.borda import Borda, RemainingOrAttained, ranks
from brim.policies.order.mlfq import MultiLevelQueue
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.size.exchange import UnitExchange
from brim.policies.size.servers import MarginalServers, ServersAsAsked
from brim.policies.sockets import Policy
from brim.sim.reproduce.aiturbo import SweepPoint, workload
from brim.sim.twin import replay
from brim.testing.builders import job, snapshot_of
from brim.units import MS_PER_MIN
from tests import sampling

FEW = SweepPoint(jobs=14, seed=3)
ORDERS = [Arrival(), MultiLevelQueue(), Borda(), RemainingOrAttained()]
SIZES = [ServersAsAsked(), MarginalServers(), UnitExchange(), UnitExchange("service", "present", all_jobs=False)]


def policy(order, size, place=None):
    return Policy(name="tried", order=order, size=size, place=place or WorkersAndServers(), feed=Even(), fill=NoFill(),
                  period_ms=4 * MS_PER_MIN)


def replayed(tried, conditions=FEW):
    drawn = workload(conditions)
    return drawn, replay(drawn.trace, drawn.cluster, tried, truth=drawn.truth)


SOME = [(order, SIZES[(place + more) % len(SIZES)]) for place, order in enumerate(ORDERS) for more in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "size"), sampling.sample([*product(ORDERS, SIZES)], SOME),
    ids=lambda part: type(part).__name__ + str(getattr(part, "objective", "")),
)
def test_every_job_ends_and_no_core_or_gpu_is_granted_twice(order, size):
    """All pairs with ``--full``, else two of each order and each size. Replayed again, it comes to the same, too: all
    pairs with ``--full``, else one of each order and each size.
    """
    drawn, outcome = replayed(policy(order, size))  # every plan is checked against the ledger of GPUs, cores and memory
    assert (outcome.finish_ms > drawn.trace.submit_ms).all()
    assert (outcome.finish_ms - drawn.trace.submit_ms >= drawn.truth.shortest_ms).all()
    if sampling.full or ORDERS.index(order) == SIZES.index(size):
        again = replayed(policy(order, size))[1]
        assert outcome.finish_ms.tolist() == again.finish_ms.tolist()


def test_as_asked_and_alone_a_job_takes_the_time_of_the_truth():
    drawn, outcome = replayed(policy(Arrival(), ServersAsAsked(), WorkersAndServers(preempts=False)),
                              replace(FEW, cluster="16x4xK80:cpus=128"))
    assert (abs(outcome.finish_ms - drawn.trace.submit_ms - drawn.truth.run_ms) <= 1_000 + 201).all()


@pytest.mark.slow
def test_without_preemption_no_job_leaves():
    outcome = replayed(policy(Borda(), ServersAsAsked(), WorkersAndServers(preempts=False, misfit="stop")))[1]
    assert not outcome.preemptions.any()


def test_with_no_predictable_job_borda_is_the_queue_of_least_attained_service():
    nobody = replace(FEW, unpredictable=1.0)
    without_losses = workload(nobody)
    flat = [curve._replace(loss=np.full_like(curve.loss, np.nan)) for curve in without_losses.truth.jobs.curves]
    truth = type(without_losses.truth)(
        without_losses.trace, replace(without_losses.truth.jobs, curves=flat), without_losses.truth.profiled
    )
    plain = Borda(thresholds_core_s=(), kept=1.0)
    found, queue = (
        replay(without_losses.trace, without_losses.cluster, policy(order, ServersAsAsked()), truth=truth)
        for order in (plain, Attained())
    )
    assert found.finish_ms.tolist() == queue.finish_ms.tolist()


class Attained(MultiLevelQueue):
    """Least attained service, by its own count, nothing else."""

    __slots__ = ()

    def __call__(self, snapshot, beliefs):
        return np.lexsort((~snapshot.jobs.holds, snapshot.jobs.memo[:, 0]))


def test_ranks_begin_at_one_and_equal_values_are_in_order_of_rows():
    runs = np.array([False, False, True, False])
    assert ranks(np.array([3.0, 1.0, 3.0, 0.5]), runs).tolist() == [4, 2, 3, 1]


def test_losses_say_when_predictable_jobs_end_and_the_planned_samples_bound_it():
    drawn = workload(replace(FEW, unpredictable=0.0, jobs=30))
    jobs = drawn.truth.jobs
    assert (jobs.samples <= jobs.samples_max).all()
    for row in range(30):
        at_end = drawn.truth.loss(row, float(jobs.samples[row]))
        assert at_end == pytest.approx(jobs.target_loss_ppm[row] / 1e6, rel=0.06)


def test_borda_adds_ranks_and_counts_attained_service_twice_where_nothing_is_predicted(monkeypatch):
    snapshot = snapshot_of("1x2xK80:cpus=8", *(job(gpus=1, name=name) for name in "abc"))
    memo = np.array([[20, 0], [10, 0], [30, 0]])  # ranks 2, 1 and 3
    snapshot = replace(snapshot, jobs=replace(snapshot.jobs, memo=memo))
    predicted = np.array([False, True, True])
    monkeypatch.setattr(borda, "remaining_service", lambda *_: (np.array([np.nan, 5.0, 9.0]), predicted))
    order = Borda(thresholds_core_s=())(snapshot, Beliefs())
    assert order.tolist() == [1, 0, 2]  # 1 + 1.5, 2 + 2, and 3 + 3 points: two ranks stretched over three jobs
