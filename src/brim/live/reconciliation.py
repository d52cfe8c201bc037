"""Orders as the difference between what an attempt should be and what its agent last said of it.

What should be is the job's setting in the engine, or a stop. What does not hold is ordered, and again after a while and
after every connection of the agent, so that lost messages, restarts and the adoption of living attempts are one case.
A start, or a resize onto more devices, waits until every other attempt has left them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from brim.agent.protocol import (
    ENDED,
    STOPPING,
    AgentOrder,
    AttemptSeen,
    ResizeAttempt,
    StartAttempt,
    StopAttempt,
    TuneAttempt,
)
from brim.core.lifecycle import Phase
from brim.core.setting import ON_CPU, Setting
from brim.core.sums import CORE_MILLI, cores_of_ranks
from brim.core.tables import EMPTY
from brim.live.agents import Agents
from brim.live.books import Books
from brim.live.nodes import Dispatch
from brim.live.records import AttemptRecord, JobStatus
from brim.live.requests import NONE
from brim.units import MS_PER_S, WHOLE_GPU

REPEAT_MS: Final = 5 * MS_PER_S
"""Time after which an order that does not hold is given again, for messages that are lost. Ours."""
_STATUS: Final[dict[Phase, JobStatus]] = {
    Phase.HELD: "held", Phase.PENDING: "pending", Phase.STARTING: "starting", Phase.RUNNING: "running",
    Phase.STOPPING: "stopping",
}


class Reconciler:
    """Gives orders for the attempts of some books.

    Attributes:
        orders: Orders since they were last taken.
        targets: By job, the devices that orders about its attempt name: those of its newest setting that need not wait.
        analysed: Jobs whose steps are timed before they start. It is lost with this process: a job whose start was
            decided, and not ordered, starts without.
        overdue: Jobs that have not left devices within their grace, and get no more.
    """

    def __init__(self, books: Books, agents: Agents) -> None:
        self._books, self._agents = books, agents
        self.orders: list[Dispatch] = []
        self.targets: dict[int, tuple[int, ...]] = {}
        self.analysed: set[int] = set()
        self.overdue: set[int] = set()

    def settle_all(self) -> None:
        """Order what does not hold yet, of all jobs about which something has changed."""
        while self._books.dirty:
            for job in sorted(self._books.dirty):
                self._books.dirty.discard(job)
                if job in self._books.jobs:
                    self._books.put(job, state=_STATUS[self._books.scheduler.state.phase(job)])
                self._settle(job)

    def _settle(self, job: int) -> None:
        """Compare what a job's attempt should be with what its agent says, and order the difference."""
        attempt = self._books.ledger.of(job)
        if attempt is None:
            return
        if attempt.state == "waiting" or not attempt.stop_reason:
            attempt = self._granted(attempt)
        if attempt.state == "waiting" or not self._agents.is_synced(attempt.uid):
            return
        order = self._missing(attempt, self._agents.seen(attempt.uid, job, attempt.number))
        if order is not None:
            self.order(attempt.uid, order)
            self._books.timer(self._books.now_ms + REPEAT_MS, "repeat", job)

    def _granted(self, attempt: AttemptRecord) -> AttemptRecord:
        """Give an attempt its newest setting, if all others have left the devices and its agent is there."""
        job, state = attempt.job, self._books.scheduler.state
        setting = state.setting(job)
        if setting is None or (attempt.state != "waiting" and attempt.sequence == state.sequence(job)):
            return attempt
        devices, cores = devices_of(setting), self.cores_of(job, setting)
        taken = self._books.ledger.taken(devices, job, setting.share_milli, self._stays)
        taken |= cores > max(self._books.ledger.cores_left(self._node_milli, job), 0)
        if taken or not self._agents.is_synced(attempt.uid):
            self._books.gated.add(job)
            return attempt
        self._books.gated.discard(job)
        self.targets[job] = devices
        starts = attempt.state == "waiting"
        share_milli = setting.share_milli
        if not starts and not set(attempt.devices) <= set(devices):  # until it has left those of before
            share_milli = min(share_milli, attempt.share_milli)
        attempt = replace(
            attempt, share_milli=share_milli, sequence=state.sequence(job),
            state="starting" if starts else attempt.state,
            devices=devices if starts or ON_CPU in devices else tuple(sorted({*attempt.devices, *devices})),
            cores_milli=cores if starts else max(cores, attempt.cores_milli),
            ranks=0 if self._books.jobs[job].request.ranks == "one" else len(devices), batch=setting.batch,
            loader_workers=setting.loader_workers or (0 if self._counts_loaders else NONE),
        )
        self._books.put_attempt(attempt)
        return attempt

    def cores_of(self, job: int, setting: Setting) -> int:
        """Milli-cores of its node that a job takes with a setting, by the rule of the engine's ledger."""
        own = round(self._books.jobs[job].request.cpus_per_gpu * CORE_MILLI)
        count = len(setting.ranks)
        _, gpu, share, loaders = (np.array(column, dtype=np.int64) for column in zip(*setting.ranks, strict=True))
        counted = loaders if self._counts_loaders else EMPTY
        taken = cores_of_ranks(np.array([own]), np.zeros(count, dtype=np.int64), gpu, share, counted)
        return int(taken.sum())

    @property
    def _counts_loaders(self) -> bool:
        """Whether loader workers take cores of their own: then none were granted where their number is 0."""
        return self._books.scheduler.policy.declares("feed", "counts_cores")

    def _rank_milli(self, job: int) -> int:
        """Milli-cores of each of a job's ranks on CPU."""
        setting = self._books.scheduler.state.setting(job)
        share_milli = next((rank.share_milli for rank in setting.ranks if rank.gpu == ON_CPU), 0) if setting else 0
        return share_milli or max(round(self._books.jobs[job].request.cpus_per_gpu * CORE_MILLI), CORE_MILLI)

    @property
    def _node_milli(self) -> int:
        return int(self._books.scheduler.state.cluster.cpu_milli_N[0])

    def _stays(self, job: int, device: int) -> bool:
        """Whether a job is to be on a device, and not only there still."""
        setting = self._books.scheduler.state.setting(job)
        return setting is not None and device in devices_of(setting)

    def _missing(self, attempt: AttemptRecord, seen: AttemptSeen | None) -> AgentOrder | None:
        """The order that is still to be obeyed, None if there is none."""
        job, target = self._books.jobs[attempt.job], self.targets.get(attempt.job)
        request = job.request
        if attempt.stop_reason:
            return None if seen is not None and seen.state in (STOPPING, ENDED) else StopAttempt(
                job=attempt.job, attempt=attempt.number, reason=attempt.stop_reason,
                grace_s=0.0 if attempt.job in self.overdue else request.grace_s,
            )
        if target is None or (seen is not None and seen.sequence >= attempt.sequence):
            return None
        if seen is None:
            return StartAttempt(
                job=attempt.job, attempt=attempt.number, sequence=attempt.sequence, capture=request.capture,
                digest=request.digest, devices=target, ranks=attempt.ranks, batch=attempt.batch,
                loader_workers=attempt.loader_workers, grace_s=request.grace_s, name=request.name,
                array=job.array, index=request.array_index, mem_mib_per_gpu=request.mem_mib_per_gpu,
                cpu_milli=self._rank_milli(job.id) if ON_CPU in target else 0,
                shares=attempt.share_milli < WHOLE_GPU, analyse=request.limits[1] if job.id in self.analysed else 0,
            )
        if seen.devices == target:
            return TuneAttempt(
                job=attempt.job, attempt=attempt.number, sequence=attempt.sequence, batch=attempt.batch,
                loader_workers=attempt.loader_workers,
            )
        return ResizeAttempt(
            job=attempt.job, attempt=attempt.number, sequence=attempt.sequence, devices=target, ranks=attempt.ranks,
            batch=attempt.batch, loader_workers=attempt.loader_workers,
        )

    def order(self, uid: int, order: AgentOrder) -> None:
        """Give an order to the agent of a user."""
        self.orders.append(Dispatch(uid, order))


def devices_of(setting: Setting) -> tuple[int, ...]:
    """The devices of a setting on one node, ``ON_CPU`` for each worker on CPU."""
    return tuple(rank.gpu for rank in setting.ranks if rank.gpu >= ON_CPU)
