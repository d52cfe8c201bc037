"""Exchanges between jobs with parameter servers: what always holds, and known answers."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.parameter_servers import Allocation, default_models, models_of
from brim.beliefs.progress import Outlook
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.core.setting import setting_of
from brim.core.state import ClusterState
from brim.policies.allocations import SERVERS_MAX, WORKERS_MAX
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.size.exchange import UnitExchange
from brim.policies.size.moves import CORES_MAX, MOVES, Evaluated, applied, exchanged

BATCH = 16

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
    return (Evaluated(applied(have(size)), np.where(possible, change, np.inf), gpus % 3 - 1, milli),
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


@pytest.mark.slow
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
        assert found.gpu_milli[rows, kinds].sum() <= free_gpus
        assert found.milli[rows, kinds].sum() <= free_milli


def test_a_gpu_goes_from_the_job_that_loses_least_to_the_one_that_gains_most():
    change, gpus, milli = table(2)
    plus, minus = NAMES.index("+worker"), NAMES.index("-worker")
    gpus[:, plus], gpus[:, minus] = 1, -1
    change[0, plus], change[1, minus] = -16, 5  # the slides' example: 26 before, 15 after
    after = exchanged(have(2), Evaluated(applied(have(len(change))), change, gpus, milli), 0, 0)
    assert after.workers.tolist() == [3, 1]
    change[1, minus] = 17
    found = Evaluated(applied(have(2)), change, gpus, milli)
    assert exchanged(have(2), found, 0, 0).workers.tolist() == [2, 2]


def test_a_crowded_cluster_gives_no_free_gpu_away():
    change, gpus, milli = table(1)
    change[0, NAMES.index("+worker")], gpus[0, NAMES.index("+worker")] = -3, 1
    found = Evaluated(applied(have(len(change))), change, gpus, milli)
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


def gang(*, on_gpu_s=1.0, on_cpu_s=None, left=100.0, share=(0, 0)):
    """A running job without servers: seconds of its step on each kind of device, as far as seen, and what it has."""
    return {"gpu_s": on_gpu_s, "cpu_s": on_cpu_s, "left": left, "rank": share}


def sizes_after(*jobs, cores=2, restart_s=2.0):
    """Whether each job is on CPU after a round of exchanges; all end where their users planned."""
    state, began_ms = ClusterState(parse_cluster(f"1x1xgpu:cpus={cores}"), ("ann",)), round(1000 * restart_s)
    for job, one in enumerate(jobs):
        state.apply(Event(0, Kind.SUBMITTED, job, spec=JobSpec(
            id=job, user=0, submit_ms=0, gpus=1, batch=BATCH, batch_min=BATCH, batch_max=BATCH, profile=job,
            cpu_ranks_max=1)))
        state.apply(Event(0, Kind.START, job, setting=setting_of([one["rank"]], batch=BATCH)))
    for job, one in enumerate(jobs):
        seen = [(1, one["gpu_s"]), (0, one["cpu_s"])]
        samples = tuple(Sample(1, gpus, BATCH, step_s, 0.0) for gpus, step_s in seen if step_s)
        state.apply(Event(began_ms, Kind.STARTED, job))
        report = Report(samples_done=1.0, samples_per_s=1.0, seen=samples)
        state.apply(Event(began_ms, Kind.REPORTED, job, report=report))
    snapshot = state.freeze(began_ms)
    progress = Told(np.array([one["left"] * BATCH for one in jobs]))
    sizes = UnitExchange()(snapshot, Beliefs(progress=progress), np.arange(len(jobs)))
    return (sizes.cpu_workers > 0).tolist()


@dataclass
class Told:
    """Every job is predictable, and this much is left of it."""

    left: np.ndarray

    def of_jobs(self, snapshot):
        return Outlook(self.left, np.ones(len(self.left), dtype=bool), np.ones(len(self.left)), self.left)


def test_servers_with_more_than_two_cores_would_shorten_no_step_by_more_than_half_a_percent():
    """Why nothing gives out cores that are left over: of the fourteen models, with as many servers as help."""
    models = default_models()
    rows, batch = np.arange(len(models)), np.array([model.batch for model in models])
    full = np.ones(len(rows), dtype=np.int64)
    for on_gpu, workers, cores in product((True, False), range(1, WORKERS_MAX + 1), range(3, CORES_MAX + 1)):
        def step_s(servers, milli, workers=workers, on_gpu=on_gpu):
            has = Allocation(workers * full, full * on_gpu > 0, 2_000 * full, servers * full, milli * full)
            return models_of(models).phases(rows, batch, has).step_s

        by_servers = np.array([step_s(servers, 1_000) for servers in range(1, SERVERS_MAX + 1)])
        best = by_servers.argmin(axis=0) + 1
        assert (step_s(best, 1_000 * cores) >= 0.995 * step_s(best, 2_000)).all()


def test_jobs_without_servers_are_exchanged_by_their_own_speeds():
    slow_on_cpu, fast_on_cpu = {"on_gpu_s": 1.0, "on_cpu_s": 8.0}, {"on_gpu_s": 1.0, "on_cpu_s": 1.5}
    there, here = (0, -1), (0, 0)
    assert sizes_after(gang(**fast_on_cpu, share=here), gang(**slow_on_cpu, share=there)) == [True, False]
    assert sizes_after(gang(**slow_on_cpu, share=here), gang(**fast_on_cpu, share=there)) == [False, True]


def test_the_guess_about_a_device_is_gone_with_the_first_step_there():
    """Believed eight times as slow on CPU, a job stays on its GPU; seen to be hardly slower there, it makes room."""
    other = {"on_gpu_s": 1.0, "on_cpu_s": 4.0, "share": (0, -1)}
    assert sizes_after(gang(on_gpu_s=1.0), gang(**other)) == [False, True]
    assert sizes_after(gang(on_gpu_s=1.0, on_cpu_s=1.2), gang(**other)) == [True, False]


def test_no_exchange_pays_less_than_its_restarts_cost():
    near_the_end = [gang(on_cpu_s=1.5, left=3), gang(on_cpu_s=3.0, left=3, share=(0, -1))]
    assert sizes_after(*near_the_end, restart_s=5.0) == [False, True]
    assert sizes_after(*near_the_end, restart_s=0.5) == [True, False]


def test_jobs_for_which_no_gpu_is_left_begin_on_cores_that_are():
    state = ClusterState(parse_cluster("1x1xgpu:cpus=2"), ("ann",))
    for job, (gpus, ranks) in enumerate([(1, 1), (1, 0), (1, 1), (0, 1), (1, 1)]):
        state.apply(Event(0, Kind.SUBMITTED, job, spec=JobSpec(
            id=job, user=0, submit_ms=0, gpus=gpus, gpus_min=gpus, gpus_max=gpus, cpu_ranks_max=ranks)))
    snapshot = state.freeze(0)
    order = np.arange(5)
    sizes = UnitExchange()(snapshot, Beliefs(), order)
    assert sizes.cpu_workers.tolist() == [0, 0, 1, 1, 0]
    grants = WorkersAndServers()(snapshot, Beliefs(), order, sizes)
    assert sorted(zip(grants.job.tolist(), grants.gpu.tolist(), strict=True)) == [(0, 0), (2, -1), (3, -1)]
