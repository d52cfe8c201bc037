"""What the controller does with its jobs under another cluster or policy, and with policies that it cannot use."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from brim.agent.protocol import ENDED, RUNNING
from brim.core.cluster import parse_cluster
from brim.core.lifecycle import Phase
from brim.errors import RefusedError
from brim.live.controller import Controller
from brim.live.inputs import Hold, Release, Requeue
from brim.policies.presets import find_policy
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Policy
from tests.live.controller.desk import FIFO, Desk


def moved(desk: Desk, cluster: str, policy: Policy = FIFO) -> Desk:
    """The same books under a controller of another cluster, or with another policy."""
    new = Desk(users=())
    new.controller = Controller(parse_cluster(cluster), policy, gap_ms=0)
    jobs = [job for job in desk.stored.values() if not job.has_ended]
    new.controller.recover(desk.controller.save(), (), jobs, desk.attempts.values(), desk.now_ms)
    new.stored, new.now_ms, new.next_id = dict(desk.stored), desk.now_ms, desk.next_id
    new.give()
    return new


def test_a_cluster_that_has_grown_takes_the_jobs_of_before():
    desk = Desk()
    desk.submit(gpus=3)
    desk.submit(gpus=1, gpu_type="T4", hold=True)
    desk.submit()
    desk.saw(3, RUNNING)
    desk.command(Requeue, 3)
    desk.command(Hold, 3)
    desk.saw(3, ENDED, outcome="stopped", exit_code=75)
    new = moved(desk, "1x4xV100")
    assert [new.stored[job].holds for job in (1, 2, 3)] == [
        (), ("user", "impossible: it needs GPUs of type T4, the cluster has V100"), ("user",),
    ]
    [order] = new.join()
    assert (order.job, order.attempt, len(order.devices)) == (1, 1, 3)
    [order] = new.command(Release, 3)
    assert (order.job, order.attempt) == (3, 2)
    assert new.command(Release, 2) == []
    back = moved(desk, "1x2xT4")
    assert [order.job for order in (*back.join(), *back.command(Release, 2))] == [2]


def test_a_policy_that_runs_jobs_on_cpu_takes_those_that_the_one_before_did_not():
    desk = Desk(cores=4)
    desk.submit(devices=("cpu",))
    assert desk.stored[1].holds == ("impossible: policy fifo runs no job on CPU",)
    new = moved(desk, "1x2xT4:cpus=4", find_policy("aiturbo"))
    assert [order.job for order in new.join()] == [1]


def test_the_devices_of_a_running_job_cannot_be_changed():
    desk = Desk()
    desk.submit()
    desk.saw(1, RUNNING)
    with pytest.raises(RefusedError, match="the cluster was 1x2xT4 and is 1x4xT4 now, but job 1 still runs"):
        moved(desk, "1x4xT4")


def test_the_same_devices_by_another_name_keep_their_running_jobs():
    desk = Desk()
    desk.submit(mem_mib_per_gpu=1024)
    desk.saw(1, RUNNING)
    new = moved(desk, "1x2xV100").controller
    assert (new.scheduler.state.phase(1), new.ledger.of(1).devices) == (Phase.RUNNING, (0,))
    with pytest.raises(RefusedError, match="but job 1 still runs"):
        moved(desk, "1x2xV100:mem=1000MB")


def test_policies_that_need_true_run_times_are_refused():
    with pytest.raises(RefusedError, match="needs true run times"):
        Controller(parse_cluster("1x1xT4"), find_policy("srtf-oracle"))


# -- what plans may hold besides starts ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Picky(AsAsked):
    """Rejects jobs of more than one device."""

    def __call__(self, snapshot, beliefs, order):
        asked = snapshot.jobs.gpus
        return replace(super().__call__(snapshot, beliefs, order), gpus=np.where(asked > 1, 0, 1), reject=asked > 1)


def test_a_job_that_the_policy_rejects_has_failed():
    desk = Desk(replace(FIFO, name="picky", size=Picky()))
    assert desk.submit(gpus=2) == []
    assert (desk.state(1), desk.stored[1].reason) == ("failed", "policy picky has rejected it")
    assert len(desk.submit()) == 1
