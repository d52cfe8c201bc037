"""What will happen in a replay, in one heap keyed (time_ms, kind, sequence), and what the engine receives next."""

from __future__ import annotations

import heapq
from collections.abc import Collection

from brim.core.events import Event, Kind
from brim.core.trace import NONE, Trace

_KINDS = tuple(Kind)


class Timeline:
    """Future events, and the events that have happened since the engine last received any.

    Attributes:
        arrived: Jobs that have been submitted.
    """

    def __init__(self, trace: Trace, *, arrived: int = 0) -> None:
        self._heap: list[tuple[int, int, int, int, int]] = []  # time, kind, sequence, job or node, serial or count
        self._sequence = 0
        self._events: list[Event] = []
        self._submit_ms, self._after_ms = trace.submit_ms.tolist(), trace.after_ms.tolist()
        self._dependents: dict[int, list[int]] = {}
        for job, after in enumerate(trace.after.tolist()):
            if after != NONE:
                self._dependents.setdefault(after, []).append(job)
        self._awaited: dict[int, int] = {}  # ends that a job still waits for, where these are several
        self.arrived = arrived
        self._expect_arrival()

    @property
    def next_ms(self) -> int | None:
        """Time of the next event; None if nothing will happen."""
        return self._heap[0][0] if self._heap else None

    def push(self, time_ms: int, kind: Kind, item: int, count: int = 0) -> None:
        """Expect an event of a job or node; ``count`` tells it from other events of the same kind and item."""
        self._sequence += 1
        heapq.heappush(self._heap, (time_ms, kind, self._sequence, item, count))

    def pop(self) -> tuple[int, Kind, int, int]:
        """Take the next event: time, kind, job or node, count."""
        time_ms, kind, _, item, count = heapq.heappop(self._heap)
        if kind == Kind.SUBMITTED:
            self.arrived += 1
            self._expect_arrival()
        return time_ms, _KINDS[kind], item, count

    def release(self, job: int, now_ms: int) -> None:
        """Let the jobs that wait for the end of this one, and for no other, become eligible, after their delay."""
        for dependent in self._dependents.get(job, ()):
            self._awaited[dependent] = self._awaited.get(dependent, 1) - 1
            if self._awaited[dependent]:
                continue
            time_ms = max(now_ms + self._after_ms[dependent], self._submit_ms[dependent])
            self.push(time_ms, Kind.ELIGIBLE, dependent)

    def wait_for(self, job: int, others: Collection[int]) -> None:
        """Let a held job become eligible when all of several others have ended."""
        self._awaited[job] = len(others)
        for other in others:
            self._dependents.setdefault(other, []).append(job)

    def record_event(self, event: Event) -> None:
        """Keep an event that has happened; the engine receives it at the end of this instant."""
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """Take the events that the engine has not received yet, in the order in which they happened."""
        events, self._events = self._events, []
        return events

    def _expect_arrival(self) -> None:
        """Only the next arrival is in the heap, so that it stays small."""
        if self.arrived < len(self._submit_ms):
            self.push(self._submit_ms[self.arrived], Kind.SUBMITTED, self.arrived)
