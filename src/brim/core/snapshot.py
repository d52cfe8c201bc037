"""The frozen view of a cluster on which a round decides."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from brim.core.arrays import IntArray, frozen
from brim.core.ended_work import NO_WORK, EndedWork
from brim.core.gaps import IdleGaps
from brim.core.joins import JoinTimes
from brim.core.losses import ReportedLosses
from brim.core.setting import Rank, Setting
from brim.core.tables import (
    EMPTY,
    NO_SLOWDOWNS,
    Grants,
    JobTable,
    NodeTable,
    SeenSteps,
    SlowdownTable,
    UserTable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the parts of the policy stored for each job in earlier rounds, by socket: (J,), or (J, K) for K integers.

    Empty: nothing was stored. A part reads its own as ``snapshot.jobs.memo``.
    """

    order: IntArray = field(default_factory=lambda: EMPTY)
    size: IntArray = field(default_factory=lambda: EMPTY)
    place: IntArray = field(default_factory=lambda: EMPTY)
    fill: IntArray = field(default_factory=lambda: EMPTY)
    feed: IntArray = field(default_factory=lambda: EMPTY)

    def of(self, socket: str, jobs: int, columns: int) -> IntArray:
        """What the part in a socket stored, 0 for a job of which it stored nothing."""
        stored: IntArray = getattr(self, socket)
        shape = (jobs,) if columns == 1 else (jobs, columns)
        return stored if stored.shape == shape else frozen(np.zeros(shape, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a policy may know about the cluster at ``now_ms``. Equal snapshots give equal plans.

    Attributes:
        now_ms: Time of the round.
        jobs: Jobs that have not ended.
        nodes: Nodes.
        grants: Which job holds which GPUs. GPUs of jobs in phase STOPPING are left out, because they will soon be free.
        users: Users, and what is known about their past jobs.
        ended_service: Histogram of the service that ended jobs received, in the bins of ``SERVICE_EDGES_GPU_MS``.
        gpu_types: Names behind gpu_type codes.
        seen: Step times that jobs reported.
        memory: What the parts of the policy stored in earlier rounds.
        slowdowns: Slowdowns that jobs reported beside neighbours on their GPUs.
        ended_work: Samples on which ended jobs of each model trained.
        gaps: Gaps between regular jobs, for a policy whose fill part takes padding jobs.
        joins: What starts and growths have cost, for such a policy.
        losses: Losses that jobs have reported.
    """

    now_ms: int
    jobs: JobTable
    nodes: NodeTable
    grants: Grants
    users: UserTable
    ended_service: IntArray
    gpu_types: tuple[str, ...]
    seen: SeenSteps
    memory: Memory = field(default_factory=Memory)
    slowdowns: SlowdownTable = NO_SLOWDOWNS
    ended_work: EndedWork = NO_WORK
    gaps: IdleGaps = field(default_factory=IdleGaps)
    joins: JoinTimes = field(default_factory=JoinTimes)
    losses: ReportedLosses = field(default_factory=ReportedLosses)

    def setting_of(self, row: int) -> Setting | None:
        """What the job in this row of the job table has, None if it has nothing."""
        held = self.grants
        rows = np.flatnonzero(held.job == row)
        if not len(rows):
            return None
        columns = (held.node, held.gpu, held.share_milli, held.loaders)
        ranks = zip(*(column[rows].tolist() for column in columns), strict=True)
        revocable = bool(len(held.revocable)) and bool(held.revocable[rows[0]])
        return Setting(tuple(Rank(*rank) for rank in ranks), int(self.jobs.batch_now[row]), revocable)
