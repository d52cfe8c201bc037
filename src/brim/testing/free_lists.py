"""Free resources, counted in a slow and simple way, with which tests and checks compare the compiled walk.

The module shares no code with ``brim.policies.place`` on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from brim.core.cluster import Cluster
from brim.core.snapshot import Snapshot
from brim.units import WHOLE_GPU


class RequestLike(Protocol):
    """The request of a gang, per GPU."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        ...

    @property
    def share(self) -> int:
        """Thousandths of each GPU."""
        ...

    @property
    def cpu(self) -> int:
        """Milli-cores."""
        ...

    @property
    def mem(self) -> int:
        """MiB."""
        ...

    @property
    def gpu_type(self) -> str:
        """Name of the type, empty for any."""
        ...


class PlaceRequest:
    """The request of one job of a snapshot."""

    __slots__ = ("cpu", "gpu_type", "gpus", "mem", "share")

    def __init__(self, snapshot: Snapshot, row: int, gpus: int | None = None, share: int | None = None) -> None:
        jobs = snapshot.jobs
        self.gpus = int(jobs.gpus[row]) if gpus is None else gpus
        self.share = int(jobs.share_milli[row]) if share is None else share
        self.cpu, self.mem = int(jobs.cpu_milli[row]), int(jobs.mem_mib[row])
        self.gpu_type = snapshot.gpu_types[jobs.gpu_type[row]] if jobs.gpu_type[row] >= 0 else ""


class FreeLists:
    """Free resources of every node, as plain lists.

    Attributes:
        types: GPU type name of each node.
        free: Thousandths free of each GPU of each node.
        cpu: Milli-cores free per node.
        mem: MiB free per node.
        is_open: Whether the node takes new jobs.
        withheld: The (node, gpu) pairs that take no new jobs.
    """

    withheld: frozenset[tuple[int, int]] = frozenset()

    def __init__(
        self, types: Sequence[str], gpus: Sequence[int], cpu: Sequence[int], mem: Sequence[int], is_open: Sequence[bool]
    ) -> None:
        self.types, self.is_open = list(types), list(is_open)
        self.free = [[WHOLE_GPU] * count for count in gpus]
        self.cpu, self.mem = list(cpu), list(mem)

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> FreeLists:
        """The empty cluster."""
        return cls(
            [cluster.gpu_types[code] for code in cluster.gpu_type_N.tolist()], cluster.gpus_N.tolist(),
            cluster.cpu_milli_N.tolist(), cluster.mem_mib_N.tolist(), [True] * cluster.num_nodes,
        )

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot, gone: Iterable[int] = ()) -> FreeLists:
        """The free resources of a snapshot, as if the jobs in rows ``gone`` held nothing."""
        nodes = snapshot.nodes
        free = cls(
            [snapshot.gpu_types[code] for code in nodes.gpu_type.tolist()], nodes.gpus.tolist(),
            nodes.cpu_milli.tolist(), nodes.mem_mib.tolist(), nodes.is_open.tolist(),
        )
        if nodes.withheld.size:
            free.withheld = frozenset(
                (node, gpu) for node, gpus in enumerate(free.free) for gpu in range(len(gpus))
                if nodes.withheld[node, gpu]
            )
        without = set(gone)
        for row, pairs in pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu).items():
            if row not in without:
                free.take(PlaceRequest(snapshot, row, share=int(snapshot.jobs.share_now[row])), pairs)
        return free

    def gpus_of(self, gpu_type: str) -> int:
        """GPUs of all nodes of a type."""
        return sum(len(free) for free, name in zip(self.free, self.types, strict=True) if name == gpu_type)

    def take(self, request: RequestLike, pairs: Iterable[tuple[int, int]]) -> None:
        """Take GPUs; free resources may fall below zero, which ``overdrawn`` reports."""
        for node, gpu in pairs:
            self.free[node][gpu] -= request.share
            self.cpu[node] -= request.cpu
            self.mem[node] -= request.mem

    def slots(self, request: RequestLike, node: int) -> int:
        """How many GPUs of the gang fit on a node."""
        count = len(self._able(request, node))
        if request.cpu:
            count = min(count, max(0, self.cpu[node]) // request.cpu)
        if request.mem:
            count = min(count, max(0, self.mem[node]) // request.mem)
        return count

    def fits(self, request: RequestLike, gpu_type: str = "") -> bool:
        """Whether the whole gang fits on open nodes of one type (of this type, if given)."""
        wanted = gpu_type or request.gpu_type
        return any(
            sum(self.slots(request, node) for node in self._nodes_of(name)) >= request.gpus
            for name in sorted(set(self.types)) if wanted in ("", name)
        )

    def places(self, request: RequestLike, gpu_type: str) -> list[tuple[int, int]]:
        """GPUs that could be part of the gang: of each node, as many as it has room for."""
        found: list[tuple[int, int]] = []
        for node in self._nodes_of(gpu_type):
            found += self._able(request, node)[: self.slots(request, node)]
        return found

    def _able(self, request: RequestLike, node: int) -> list[tuple[int, int]]:
        """GPUs of a node with a sufficient free share."""
        return [
            (node, gpu) for gpu, free in enumerate(self.free[node])
            if free >= request.share and (node, gpu) not in self.withheld
        ]

    def overdrawn(self) -> str:
        """Describe the first resource granted more than once; empty if there is none."""
        for node, gpus in enumerate(self.free):
            for gpu, free in enumerate(gpus):
                if free < 0:
                    return f"GPU {gpu} of node {node} is granted {(WHOLE_GPU - free) / 10:g} % of itself"
            if self.cpu[node] < 0:
                return f"{-self.cpu[node] / 1000:g} more cores of node {node} are granted than it has"
            if self.mem[node] < 0:
                return f"{-self.mem[node]} MiB more of node {node} are granted than it has"
        return ""

    def _nodes_of(self, gpu_type: str) -> list[int]:
        return [n for n, name in enumerate(self.types) if name == gpu_type and self.is_open[n]]


def pairs_by_job(job: Iterable[int], node: Iterable[int], gpu: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
    """Group grant columns by job row."""
    found: dict[int, list[tuple[int, int]]] = {}
    for j, n, g in zip(job, node, gpu, strict=True):
        found.setdefault(int(j), []).append((int(n), int(g)))
    return found
