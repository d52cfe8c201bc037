"""The frozen view of a cluster that a round decides on."""

from __future__ import annotations

from dataclasses import dataclass

from brim.core.arrays import IntArray
from brim.core.tables import Grants, JobTable, NodeTable, SeenSteps, UserTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a policy may know of the cluster at ``now_ms``. Equal snapshots give equal plans.

    Attributes:
        now_ms: Time of the round.
        jobs: Jobs that are not over.
        nodes: Nodes.
        grants: Who holds what. GPUs of jobs in phase STOPPING are not in it: they are on their way to being free.
        users: Users and what is known of their past jobs.
        ended_service: How many ended jobs received how much service: counts per bin of ``SERVICE_EDGES_GPU_MS``.
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
