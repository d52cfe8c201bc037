"""Faults that are carried out on the simulated cluster: jobs fail, nodes are lost, repaired and drained."""

from __future__ import annotations

from collections.abc import Iterable

from brim.core.cluster import Cluster
from brim.core.events import Event, Kind
from brim.sim.attempts import Attempts, RunningJob
from brim.sim.faults import Drain, Faults, job_failure_ms, node_failure_ms
from brim.sim.record import Record
from brim.sim.sleepers import Sleepers
from brim.sim.timeline import Timeline


class FaultInjector:
    """Makes jobs and nodes fail at the times that were drawn, and drains nodes at the times that were planned."""

    def __init__(
        self, cluster: Cluster, faults: Faults, seed: int, attempts: Attempts, timeline: Timeline, record: Record,
        sleepers: Sleepers,
    ) -> None:
        self._sleepers = sleepers
        self._faults, self._seed = faults, seed
        self._attempts, self._timeline, self._record = attempts, timeline, record
        self._failures = [0] * len(record.failed)
        self._down: set[int] = set()
        self._draining = [0] * cluster.num_nodes  # drains in progress

    def schedule(self, closings: Iterable[Drain]) -> None:
        """Expect the first failure of each node, and the drains: ``closings`` and those that are planned."""
        if self._faults.node_mtbf_ms:
            for node in range(len(self._draining)):
                self._expect_failure(node, 0, 0)
        for drain in (*closings, *self._faults.drains):
            for node in drain.nodes:
                self._timeline.push(drain.start_ms, Kind.NODE_DRAIN, node)
                self._timeline.push(drain.end_ms, Kind.NODE_UP, node)

    def begin(self, job: int, attempt: RunningJob) -> None:
        """Expect the failure of an attempt, which is drawn once; a resized one has what is left of its life."""
        if self._faults.job_mtbf_ms:
            left_ms = job_failure_ms(self._faults, self._seed, job, attempt.attempt) - attempt.ran_ms
            self._timeline.push(attempt.from_ms + left_ms, Kind.FAILED, job, attempt.number)

    def fail(self, job: int, number: int, now_ms: int) -> None:
        """A job fails by itself: it is tried again, or given up."""
        attempt = self._attempts.running.get(job)
        if attempt is None or attempt.number != number:
            return
        self._attempts.roll_back(job, now_ms)
        self._failures[job] += 1
        if self._failures[job] >= self._faults.attempts_max:
            self._record.failed[job] = 1
            self._attempts.end(job, now_ms, Kind.GAVE_UP)
        else:
            self._attempts.leave(job, now_ms, Kind.FAILED)

    def lose(self, node: int, count: int, now_ms: int) -> None:
        """A node is lost, with the jobs on it; ``count`` earlier ones were repaired."""
        self._down.add(node)
        self._sleepers.lose(node, now_ms)
        self._timeline.record_event(Event(now_ms, Kind.NODE_DOWN, node=node))
        for job in self._attempts.on_node(node):
            self._attempts.roll_back(job, now_ms)
            self._attempts.leave(job, now_ms, Kind.EVICTED)
        self._timeline.push(now_ms + self._faults.repair_ms, Kind.NODE_UP, node, count + 1)

    def drain(self, node: int, now_ms: int) -> None:
        """A drain of a node begins."""
        self._draining[node] += 1
        self._observe(node, now_ms)

    def open(self, node: int, count: int, now_ms: int) -> None:
        """A drain of a node ends, or the node is repaired for the ``count``-th time."""
        if count:
            self._down.remove(node)
            self._sleepers.repair(node, now_ms)
            self._expect_failure(node, count, now_ms)
        else:
            self._draining[node] -= 1
        self._observe(node, now_ms)

    def _expect_failure(self, node: int, count: int, up_ms: int) -> None:
        failure_ms = node_failure_ms(self._faults, self._seed, node, count)
        self._timeline.push(up_ms + failure_ms, Kind.NODE_DOWN, node, count)

    def _observe(self, node: int, now_ms: int) -> None:
        """Tell how a node is; a lost one stays lost when its drain ends, and a repaired one continues to drain."""
        if node not in self._down:
            kind = Kind.NODE_DRAIN if self._draining[node] else Kind.NODE_UP
            self._timeline.record_event(Event(now_ms, kind, node=node))
