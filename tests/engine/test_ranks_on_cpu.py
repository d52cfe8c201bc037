"""Workers on CPU and parameter servers as ranks: their cores in the ledger, in plans, and in the state."""

import numpy as np
import pytest

from brim.core.actions import Resize, Start, Tune, plan_of
from brim.core.checks import check_plan
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.setting import ON_CPU, SERVER, Rank, Setting
from brim.core.state import ClusterState
from brim.errors import PlanError


def state_of(*settings, cluster="1x2xK80:cpus=8"):
    state = ClusterState(parse_cluster(cluster), ("ann",))
    for job, setting in enumerate(settings):
        spec = JobSpec(id=job, user=0, submit_ms=0, gpus=1, gpus_min=0, gpus_max=4, batch=8, cpu_milli=2_000,
                       cpu_ranks_max=14, servers=1, target_loss_ppm=300_000, samples_max=1_000)
        state.apply(Event(0, Kind.SUBMITTED, job, spec=spec))
        if setting is not None:
            state.apply(Event(0, Kind.START, job, setting=setting))
            state.apply(Event(0, Kind.STARTED, job))
    return state


def server(cores, node=0):
    return Rank(node, SERVER, cores * 1_000)


def worker(cores, node=0):
    return Rank(node, ON_CPU, cores * 1_000)


ON_GPU = Setting((server(1), server(1), Rank(0, 0)), 8)


def test_the_state_counts_gpus_and_keeps_cores():
    state = state_of(ON_GPU, Setting((server(1), worker(3)), 8))
    jobs = state.freeze(5).jobs
    assert jobs.gpus_now.tolist() == [1, 0]
    assert jobs.share_now.tolist() == [1_000, 0]
    assert (jobs.servers.tolist(), jobs.target_loss_ppm.tolist(), jobs.samples_max.tolist()) == (
        [1, 1], [300_000, 300_000], [1_000, 1_000])
    assert state.setting(1) == Setting((server(1), worker(3)), 8)
    assert jobs.service_gpu_ms.tolist() == [5, 0]


@pytest.mark.parametrize(("cores", "is_sound"), [(4, True), (5, False)])
def test_the_ledger_has_the_cores_of_ranks_on_cpu(cores, is_sound):
    snapshot = state_of(ON_GPU, None).freeze(0)  # two servers of a core, and two cores beside the GPU: four are left
    plan = plan_of(0, [Start(1, 1, 1, Setting((worker(cores),), 8))])
    if is_sound:
        check_plan(snapshot, plan)
    else:
        with pytest.raises(PlanError, match="cores of node 0: 9000 granted of 8000"):
            check_plan(snapshot, plan)


def test_a_server_that_gets_a_core_is_tuned_and_goes_on():
    state = state_of(ON_GPU)
    more = Setting((server(2), server(2), Rank(0, 0)), 8)
    plan = plan_of(5, [Tune(0, 1, 2, more)])
    check_plan(state.freeze(5), plan)
    state.apply_plan(plan)
    assert state.setting(0) == more
    assert state.attempt(0) == 1


def test_a_job_moves_from_gpu_to_cpu_by_a_resize():
    state = state_of(ON_GPU)
    plan = plan_of(5, [Resize(0, 1, 2, Setting((server(1), worker(4)), 8))])
    check_plan(state.freeze(5), plan)
    state.apply_plan(plan)
    assert state.freeze(6).jobs.gpus_now.tolist() == [0]
    assert state.freeze(6).jobs.holds.tolist() == [True]


def test_more_ranks_on_cpu_than_a_job_may_have_are_refused():
    snapshot = state_of(None, cluster="1x2xK80:cpus=64").freeze(0)
    with pytest.raises(PlanError, match="may have 14 ranks on CPU, plan grants 15"):
        check_plan(snapshot, plan_of(0, [Start(0, 1, 1, Setting((server(1),) * 15, 8))]))


def test_snapshots_and_settings_agree_on_what_a_rank_is():
    snapshot = state_of(Setting((server(1), worker(3), Rank(0, 1)), 8)).freeze(0)
    assert snapshot.grants.gpu.tolist() == [SERVER, ON_CPU, 1]
    assert snapshot.grants.share_milli.tolist() == [1_000, 3_000, 1_000]
    assert snapshot.setting_of(0) == Setting((server(1), worker(3), Rank(0, 1)), 8)
    assert np.isnan(snapshot.jobs.loss[0])
