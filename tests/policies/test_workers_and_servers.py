"""Workers and servers on nodes: who keeps places behind a job that does not fit."""

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.reasons import Reason
from brim.core.setting import Rank, Setting
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.sockets import Sizes
from tests.engine.test_ranks_on_cpu import server, state_of

ONE_GPU = Setting((server(1), Rank(0, 0)), 8)


def placed(part, snapshot, order, gpus, servers):
    size = len(snapshot.jobs)
    sizes = Sizes(gpus=np.array(gpus), cpu_workers=np.zeros(size, int), worker_milli=np.zeros(size, int),
                  servers=np.array(servers), server_milli=np.full(size, 1_000))
    return part(snapshot, Beliefs(), np.array(order), sizes)


@pytest.mark.parametrize("preempts", [True, False])
def test_behind_a_job_that_does_not_fit_a_running_job_keeps_what_it_has(preempts):
    snapshot = state_of(None, ONE_GPU, None).freeze(0)
    part = WorkersAndServers(preempts=preempts, misfit="stop")
    grants = placed(part, snapshot, [0, 1, 2], gpus=[4, 1, 1], servers=[1, 2, 1])  # the second is to have a server more
    assert list(zip(grants.job, grants.node, grants.gpu, strict=True)) == [(1, 0, -2), (1, 0, 0)]
    assert grants.why.tolist() == [Reason.TOO_FEW_FREE, Reason.RUNS, Reason.BEHIND]


def test_a_job_that_is_to_have_nothing_leaves_also_behind_one_that_does_not_fit():
    snapshot = state_of(None, ONE_GPU).freeze(0)
    grants = placed(WorkersAndServers(misfit="stop"), snapshot, [0, 1], gpus=[4, 0], servers=[1, 0])
    assert not len(grants)
    assert grants.why.tolist() == [Reason.TOO_FEW_FREE, Reason.NOT_NOW]


def test_a_number_below_0_counts_as_0():
    """Compiled code would write past its arrays; the round refuses such sizes, a part may be called by another."""
    snapshot = state_of(None).freeze(0)
    below, none = (placed(WorkersAndServers(), snapshot, [0], gpus=[2], servers=[servers]) for servers in (-5, 0))
    assert below.gpu.tolist() == none.gpu.tolist() == [0, 1]


def test_only_jobs_whose_places_are_needed_leave():
    """Two later jobs hold a GPU each; the earlier one needs that of the last, whose only server is in no way."""
    snapshot = state_of(ONE_GPU, Setting((server(1), Rank(0, 1)), 8), None).freeze(0)
    grants = placed(WorkersAndServers(), snapshot, [2, 0, 1], gpus=[1, 1, 1], servers=[1, 1, 1])
    assert sorted(set(grants.job.tolist())) == [0, 2]
    assert grants.why.tolist() == [Reason.RUNS, Reason.TOO_FEW_FREE, Reason.RUNS]
