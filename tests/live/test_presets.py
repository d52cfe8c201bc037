"""Every preset that is no oracle decides for training jobs that are resized in place, in virtual time."""

from __future__ import annotations

import pytest

from brim.agent.protocol import (
    ENDED,
    NONE,
    RUNNING,
    STOPPING,
    AttemptProgress,
    ResizeAttempt,
    StartAttempt,
    StopAttempt,
    TuneAttempt,
)
from brim.errors import RefusedError
from brim.live.controller import Controller
from brim.live.inputs import Progress
from brim.policies.presets import PRESETS, find_policy
from tests.live.controller.desk import Desk

LIVE = sorted(name for name, policy in PRESETS.items() if not policy.oracle)
STEP_MS = 500
ELASTIC = {"gpus": 1, "gpus_min": 1, "gpus_max": 4, "ranks": "per-gpu", "batch": 64}


class Machine:
    """Four devices whose agent does at once what it is told; a step takes 1 ms and 2 ms per sample of a rank."""

    def __init__(self, policy: str) -> None:
        self.desk = Desk(find_policy(policy), devices=4, cores=16)
        self.live: dict[int, dict] = {}
        self.sizes: dict[int, list[int]] = {}
        self.total: dict[int, float] = {}
        self.started_ms: dict[int, int] = {}

    def submit(self, samples: float, **fields) -> int:
        job = self.desk.next_id
        self.total[job], self.sizes[job] = samples, []
        self.obey(self.desk.submit(**fields))
        return job

    def obey(self, orders: list) -> None:
        for order in orders:
            match order:
                case StartAttempt() | ResizeAttempt():
                    one = self.live.setdefault(order.job, {"done": 0.0, "batch": 64})
                    one |= {"devices": order.devices, "settled_ms": self.desk.now_ms + 1_000}
                    self.started_ms.setdefault(order.job, self.desk.now_ms)
                    self.sizes[order.job].append(len(order.devices))
                case StopAttempt():
                    self.obey(self.desk.saw(order.job, STOPPING, attempt=order.attempt))
                    self.live.pop(order.job, None)
                    self.obey(self.desk.saw(order.job, ENDED, attempt=order.attempt, outcome="stopped", exit_code=75))
                    continue
                case TuneAttempt():
                    pass
                case _:
                    continue
            if order.batch != NONE:
                self.live[order.job]["batch"] = order.batch
            self.obey(self.desk.saw(
                order.job, RUNNING, attempt=order.attempt, sequence=order.sequence,
                devices=self.live[order.job]["devices"],
            ))

    def pass_time(self) -> None:
        """Train for a while, and tell of it."""
        desk = self.desk
        self.obey(desk.give(later_ms=STEP_MS))
        for job in sorted(self.live):
            if job not in self.live:  # a report of another job has stopped it
                continue
            one, attempt = self.live[job], desk.stored[job].attempt
            ranks = len(one["devices"])
            step_s = 0.001 + 0.002 * one["batch"] / ranks
            one["done"] += one["batch"] / step_s * STEP_MS / 1000
            if one["done"] >= self.total[job]:
                del self.live[job]
                self.obey(desk.saw(job, ENDED, attempt=attempt, outcome="finished", exit_code=0))
                continue
            times = {} if desk.now_ms < one["settled_ms"] else {
                "step_s": step_s, "sync_s": 0.0, "local_batch": one["batch"] // ranks, "global_batch": one["batch"],
                "samples_per_s": one["batch"] / step_s, "gradient_noise": 1_000.0,
            }
            self.obey(desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(
                job=job, attempt=attempt, ranks=ranks, samples=one["done"], total=self.total[job], **times,
            ))))

    def until_all_ended(self) -> None:
        for _ in range(3_600_000 // STEP_MS):
            self.pass_time()
            if all(self.desk.stored[job].has_ended for job in self.total):
                return
        raise AssertionError(f"after an hour: {self.desk.stored}")


@pytest.mark.cases(2)
@pytest.mark.parametrize("policy", LIVE)
def test_training_jobs_start_at_once_on_free_devices_and_finish(policy: str) -> None:
    machine = Machine(policy)
    machine.submit(50_000, **ELASTIC)
    for _ in range(20_000 // STEP_MS):
        machine.pass_time()
    machine.submit(20_000, **ELASTIC | {"batch_min": 64, "batch_max": 256, "local_batch_max": 256})
    machine.submit(10_000, gpus=2, ranks="per-gpu")
    machine.until_all_ended()
    assert {record.state for record in machine.desk.stored.values()} == {"finished"}
    if not find_policy(policy).fixed_rounds and policy not in LONGEST_LAST:
        assert machine.started_ms[1] < 1_000
        assert machine.started_ms[2] < 22_000


FEWEST = {"brim-energy", "brim-cost"}
"""Presets under which a job has the fewest GPUs that it can run on."""
OF_SERVERS = {"aiturbo", "aiturbo-borda", "optimus-servers"}
"""Presets that change the number of ranks of jobs with parameter servers alone."""
LONGEST_LAST = {"brim"}
"""Presets under which a job waits behind another that speeds up in proportion to its GPUs and has less left."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [name for name in LIVE if PRESETS[name].resizes_running and name not in FEWEST | OF_SERVERS]
)
def test_a_lone_job_is_on_all_devices_within_seconds_and_makes_room_in_place(policy: str) -> None:
    machine = Machine(policy)
    first = machine.submit(500_000, **ELASTIC)
    for _ in range(8_000 // STEP_MS):
        machine.pass_time()
    assert machine.sizes[first][-1] == 4, machine.sizes
    second = machine.submit(1_000, **ELASTIC)
    for _ in range(4_000 // STEP_MS):
        machine.pass_time()
    assert machine.sizes[second] or policy in LONGEST_LAST, "it has started"
    machine.until_all_ended()
    assert machine.desk.stored[first].preemptions == 0
    assert machine.desk.stored[first].attempt == 1
    assert machine.sizes[first][-1] == 4


@pytest.mark.parametrize("policy", sorted(name for name, policy in PRESETS.items() if policy.oracle))
def test_an_oracle_is_refused(policy: str) -> None:
    with pytest.raises(RefusedError, match="needs true run times"):
        Controller(Desk().controller.scheduler.state.cluster, find_policy(policy))
