"""The frozen view of a cluster on which a round decides."""

from __future__ import annotations

from dataclasses import dataclass

from brim.core.arrays import IntArray
from brim.core.tables import Grants, JobTable, NodeTable, SeenSteps, UserTable


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
    """

    now_ms: int
    jobs: JobTable
    nodes: NodeTable
    grants: Grants
    users: UserTable
    ended_service: IntArray
    gpu_types: tuple[str, ...]
    seen: SeenSteps
