"""Nodes that sleep while they have no jobs: a rule of the simulated cluster, as Slurm's, which no policy decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from brim.core.events import Event, Kind
from brim.errors import ConfigError
from brim.sim.record import Record
from brim.sim.timeline import Timeline
from brim.units import MS_PER_S, show_duration

WAKE_MS: Final = 60 * MS_PER_S
"""Time that a node takes to wake. Ours, within Slurm's default ResumeTimeout of 60 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """When nodes sleep.

    Attributes:
        after_ms: Time without jobs after which a node falls asleep: Slurm's SuspendTime. 300 s, ours.
        wake_ms: Time from the start of a job there until the node is awake.

    Raises:
        ConfigError: a time is negative.
    """

    after_ms: int = 300 * MS_PER_S
    wake_ms: int = WAKE_MS

    @property
    def sentence(self) -> str:
        """What a report says of it."""
        after, wake = (show_duration(ms / MS_PER_S) for ms in (self.after_ms, self.wake_ms))
        return (
            f"A node sleeps when it has had no jobs for {after}; a job that is given it waits {wake} until it is awake."
        )

    def __post_init__(self) -> None:
        for name in ("after_ms", "wake_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"nodes that sleep: found {name}={getattr(self, name)}, expected at least 0")


class Sleepers:
    """The nodes: how many jobs each has, and which sleep. Without a rule none ever does.

    Args:
        num_nodes: Nodes of the cluster.
        rule: When they sleep; None for never.
        timeline: Where the next times are expected.
        record: Where sleep is recorded.
    """

    def __init__(self, num_nodes: int, rule: Sleep | None, timeline: Timeline, record: Record) -> None:
        self._rule, self._timeline, self._record = rule, timeline, record
        self._jobs = [0] * num_nodes
        self._idle = [0] * num_nodes  # number of the present idle time of each node; an event of another is stale
        self._down = [False] * num_nodes
        self._awake_ms = [0] * num_nodes
        self._asleep_since: dict[int, int] = {}
        for node in range(num_nodes):
            self._expect_sleep(node, 0)

    def awake_ms(self, nodes: Iterable[int], now_ms: int) -> int:
        """Wake these nodes, for a job that is given GPUs of theirs, and return when all of them are awake."""
        if self._rule is None:
            return now_ms
        latest_ms = now_ms
        for node in nodes:
            if node in self._asleep_since:
                self._awake_ms[node] = now_ms + self._rule.wake_ms
                self._end_sleep(node, now_ms, self._awake_ms[node])
                self._timeline.record_event(Event(now_ms, Kind.NODE_WAKE, node=node))
            latest_ms = max(latest_ms, self._awake_ms[node])
        return latest_ms

    def come(self, nodes: Iterable[int]) -> None:
        """A job has come to these nodes."""
        for node in nodes:
            self._jobs[node] += 1
            self._idle[node] += 1

    def go(self, nodes: Iterable[int], gone_ms: int) -> None:
        """A job leaves these nodes, and is gone at a time."""
        for node in nodes:
            self._jobs[node] -= 1
            self._expect_sleep(node, gone_ms)

    def fall_asleep(self, node: int, number: int, now_ms: int) -> None:
        """A node has been idle for long enough, if it is still the same idle time."""
        if self._idle[node] == number and not self._jobs[node] and not self._down[node]:
            self._asleep_since[node] = now_ms
            self._timeline.record_event(Event(now_ms, Kind.NODE_SLEEP, node=node))

    def lose(self, node: int, now_ms: int) -> None:
        """A node is lost; when it is back, it is awake."""
        self._down[node] = True
        self._end_sleep(node, now_ms, now_ms)

    def repair(self, node: int, now_ms: int) -> None:
        """A lost node is back."""
        self._down[node] = False
        self._expect_sleep(node, now_ms)

    def close(self, now_ms: int) -> None:
        """End the record of the nodes that still sleep when a replay ends."""
        for node in sorted(self._asleep_since):
            self._end_sleep(node, now_ms, now_ms)

    def _expect_sleep(self, node: int, idle_ms: int) -> None:
        if self._rule is not None and not self._jobs[node] and not self._down[node]:
            self._idle[node] += 1
            idle_ms = max(idle_ms, self._awake_ms[node])
            self._timeline.push(idle_ms + self._rule.after_ms, Kind.NODE_SLEEP, node, self._idle[node])

    def _end_sleep(self, node: int, end_ms: int, awake_ms: int) -> None:
        if node in self._asleep_since:
            self._record.sleep(node, self._asleep_since.pop(node), end_ms, awake_ms)
