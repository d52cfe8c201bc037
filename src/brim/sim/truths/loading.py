"""Jobs wait for their data: a truth around any other, in which the jobs of a node share its cores and its storage.

A job goes as fast as its loader workers let it. The cores of a node beside one for the main process of each rank are
divided among the loader workers that want them, equally per process; the storage of a node among the jobs that read,
equally per job. The parameters are those of the truth: policies believe what ``beliefs.loading`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.loading import CPU, DATASET_BYTES, RATE, SAMPLE_BYTES, SERIAL, rates
from brim.core.arrays import FloatArray, IntArray
from brim.core.cluster import UNLIMITED, Cluster
from brim.core.events import Report
from brim.core.trace import Trace
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import ALONE, Colocation, NodeColocation, Pace, Truth
from brim.units import MS_PER_S

_MIB: Final = 1 << 20
_SLOWEST: Final = 1e-6
"""Least speed, so that every job ends."""


class LoadingData:
    """A truth in which jobs wait for data. See ``sim.truths.truth.Truth``.

    Args:
        fed: How the jobs run if data is always there.
        trace: The jobs.
        cluster: The nodes; one whose cores are not known limits no loader.
        models: Parameters of ``beliefs.loading`` by name of the model; jobs of other models never wait.
        disk_bytes_per_s: What the storage of a node delivers, infinite if it limits nothing.
    """

    name: ClassVar[str] = "loading"
    contended: ClassVar[bool] = True
    shares_nodes: ClassVar[bool] = True

    def __init__(
        self, fed: Truth, trace: Trace, cluster: Cluster, models: Mapping[str, FloatArray],
        disk_bytes_per_s: float = np.inf,
    ) -> None:
        self._fed, self._disk = fed, disk_bytes_per_s
        self._of: list[FloatArray | None] = [
            models.get(trace.profiles[code]) if code >= 0 else None for code in trace.profile.tolist()
        ]
        self._cores = [milli / 1000 for milli in cluster.cpu_milli_N.tolist()]
        self._memory = [mib * _MIB for mib in cluster.mem_mib_N.tolist()]
        self._known: list[bool] = (cluster.cpu_milli_N < UNLIMITED).tolist()
        self._read_once: set[int] = set()

    @property
    def run_ms(self) -> IntArray:
        """See ``Truth``."""
        return self._fed.run_ms

    @property
    def shortest_ms(self) -> IntArray:
        """See ``Truth``: nobody is faster for waiting."""
        return self._fed.shortest_ms

    @property
    def least_gpu_ms(self) -> IntArray:
        """See ``Truth``: a job that waits keeps its GPUs."""
        return self._fed.least_gpu_ms

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``."""
        pace, of = self._fed.pace(job, done, nodes, batch, colocation), self._of[job]
        if of is None or not colocation.on_nodes or not all(self._known[each.node] for each in colocation.on_nodes):
            return pace
        per_ms, until, ends, told = pace.per_ms, pace.until, pace.ends, pace.report
        ranks = sum(each.ranks for each in colocation.on_nodes)
        if told is None:  # its run time is known, and nothing else: it trains on as many samples as fit that
            told = Report(samples_done=done / MS_PER_S * ranks * of[RATE], samples_per_s=ranks * float(of[RATE]))
        epoch = self._epoch_ends(of, ranks)
        if epoch is not None and self._disk < np.inf:
            if done >= epoch:
                self._read_once.add(job)
            elif epoch < until:
                until, ends = epoch, False
        speed = max(self._speed(job, of, colocation), _SLOWEST)
        told = replace(told, samples_per_s=told.samples_per_s * speed, loader_wait_ratio=1 - speed)
        return Pace(per_ms * speed, until, ends, told)

    def _epoch_ends(self, of: FloatArray, ranks: int) -> float | None:
        """Work after which a job has read all samples once; None where work is not counted in time, or is unknown."""
        if not isinstance(self._fed, Rigid) or of[DATASET_BYTES] <= 0 or of[SAMPLE_BYTES] <= 0:
            return None
        return float(of[DATASET_BYTES] / of[SAMPLE_BYTES] / (ranks * of[RATE])) * MS_PER_S

    def _speed(self, job: int, of: FloatArray, colocation: Colocation) -> float:
        """Speed of a job, as a part of that with data always there."""
        workers, bytes_per_s = float(colocation.loader_workers), np.inf
        for node in colocation.on_nodes:
            cores = self._cores_of(job, node, colocation.loader_workers)
            workers = min(workers, cores)
            if self._disk < np.inf:
                bytes_per_s = min(bytes_per_s, self._bytes_of(job, node, colocation.loader_workers))
        found = self._rate(of, workers, bytes_per_s, self._read_part(job, colocation.on_nodes))
        return float(found / of[RATE])

    @staticmethod
    def _rate(of: FloatArray, workers: float, bytes_per_s: float, read: float) -> float:
        row = of.copy()
        row[SAMPLE_BYTES] *= read
        return float(rates(row[None], np.array([workers]), np.array([bytes_per_s]))[0])

    def _read_part(self, job: int, on: Iterable[NodeColocation]) -> float:
        """Part of its samples that a job reads from storage, the rest being in the page cache after its first epoch."""
        of = self._of[job]
        if of is None or job not in self._read_once or of[DATASET_BYTES] <= 0:
            return 1.0
        least: float = min(self._memory[each.node] / (1 + len(each.others)) for each in on)
        return float(max(0.0, 1 - least / of[DATASET_BYTES]))

    def _cores_of(self, job: int, node: NodeColocation, workers: int) -> float:
        """Cores that the workers of one rank get on a node."""
        if not workers:
            return 0.0
        everyone = [(job, node.ranks, workers), *node.others]
        free = max(self._cores[node.node] - sum(ranks for _, ranks, _ in everyone), 0.0)
        wants = [self._wanted(other, each) * ranks for other, ranks, each in everyone]
        got = shared(wants, [ranks * each for _, ranks, each in everyone], free)
        # Who gets all it wants is limited by its processes only: want is what it uses then, not what it may use.
        return float(workers) if got[0] >= wants[0] else got[0] / node.ranks

    def _wanted(self, job: int, workers: int) -> float:
        """Cores that the workers of one rank keep busy."""
        of = self._of[job]
        if of is None:
            return 0.0
        limit = 1 / float(of[SERIAL]) if of[SERIAL] > 0 else np.inf
        return min(float(workers), float(of[CPU]) * min(float(of[RATE]), limit))

    def _bytes_of(self, job: int, node: NodeColocation, workers: int) -> float:
        """Bytes per second that the storage of a node gives one rank."""
        everyone = [(job, node.ranks, workers), *node.others]
        wants = []
        for other, ranks, each in everyone:
            of = self._of[other]
            read = 0.0 if of is None else self._read_part(other, (node,)) * float(of[SAMPLE_BYTES])
            wants.append(0.0 if of is None else ranks * read * self._rate(of, float(each), np.inf, 0.0))
        got = shared(wants, [1.0] * len(wants), self._disk)
        return np.inf if got[0] >= wants[0] else got[0] / node.ranks

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``."""
        return self._fed.columns()

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return self._fed.total_samples()

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        known = sum(of is not None for of in self._of)
        said = [
            f"Jobs wait for their data as their models' loaders do ({known:,} of {len(self._of):,} jobs; the others "
            "never wait, and use no core for it). The run time of a job is that with data always there; loader workers "
            "that want a core share those beside one for each rank's main process."
        ]
        if not all(self._known):
            said.append("Nodes whose cores are not known (cpus=N) limit no loader.")
        return self._fed.sentences() + said


def shared(wants: list[float], weights: list[float], amount: float) -> list[float]:
    """Divide an amount in proportion to weights, nobody more than it wants.

    Example:
        >>> shared([1.0, 10.0, 10.0], [1.0, 1.0, 3.0], 9.0)
        [1.0, 2.0, 6.0]
    """
    got = [0.0] * len(wants)
    left, weight = amount, sum(weights[at] for at in range(len(wants)) if wants[at] > 0)
    wanting = [at for at in range(len(wants)) if wants[at] > 0 and weights[at] > 0]
    for at in sorted(wanting, key=lambda at: wants[at] / weights[at]):
        got[at] = min(wants[at], left * weights[at] / weight)
        left, weight = left - got[at], weight - weights[at]
    return got
