"""The books of the controller: engine, jobs and attempts, and the few operations that keep them in agreement.

Every change is an event for the engine and a new record for the store, in one place each. When things happen and why
is left to ``controller.py``.
"""

from __future__ import annotations

import base64
import heapq
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from brim.core.events import Event, Kind, Report
from brim.core.lifecycle import Phase
from brim.core.setting import Setting
from brim.engine.journal import recover
from brim.engine.scheduler import Scheduler
from brim.errors import InvariantError
from brim.live import holds
from brim.live.ends import CANCELLED, EXCHANGED, PREEMPTED, REQUEUED, TIME_LIMIT, AttemptVerdict
from brim.live.ledger import Ledger
from brim.live.records import AttemptRecord, JobRecord, JobStatus
from brim.live.requests import NONE
from brim.units import MS_PER_S

_END_STATES: Final[tuple[JobStatus | None, ...]] = (None, "finished", "failed", "cancelled")
_END_STATE_OF: Final[dict[Kind, int]] = {Kind.FINISHED: 1, Kind.GAVE_UP: 2, Kind.REJECT: 2, Kind.CANCELLED: 3}
_STRENGTH: Final = ("", EXCHANGED, "down", PREEMPTED, REQUEUED, TIME_LIMIT, CANCELLED)
"""Reasons to stop an attempt, weakest first: a stronger one replaces a weaker one."""
_CALLED_OFF_MAX: Final = 1_000
"""What is called off and still in the heap, beside as much as is due; ours: 100 kB."""


class Books:
    """What the controller knows of jobs that have not ended, and how the others ended.

    Attributes:
        scheduler: The engine.
        jobs: Every job that has not ended.
        ledger: Every attempt that has not ended.
        changed: Jobs that have changed since the last step, as they now are.
        arrays: Jobs that have not ended, by array.
        now_ms: Cluster time of what is being handled.
        dirty: Jobs about which something has changed, and whose orders have not been looked at since.
        gated: Jobs whose start or resize waits for others to leave devices or cores, or for an agent that is away.
        users: Jobs that have not ended, by user.
        arrays_changed: Arrays with a limit of which a job has changed; see ``limits.py``.
        users_changed: The same of users.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.jobs: dict[int, JobRecord] = {}
        self.ledger = Ledger()
        self.changed: dict[int, JobRecord] = {}
        self.arrays: dict[int, set[int]] = {}
        self.now_ms = 0
        self.dirty: set[int] = set()
        self.gated: set[int] = set()
        self.users: dict[int, set[int]] = {}
        self.arrays_changed: set[int] = set()
        self.users_changed: set[int] = set()
        self._timers: list[tuple[int, str, int]] = []  # a heap of what is due when: (time, what, job or user)
        self._timers_set: dict[tuple[str, int], int] = {}  # what is due when; the others in the heap were called off
        self._end_states = bytearray()  # how each job ended, by id: an index of ``_END_STATES``
        self._waiting_for: dict[int, set[int]] = {}  # jobs that wait for a job to end

    # -- restart ---------------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """Return what ``fold`` can begin from instead of the first line of the journal."""
        return self.scheduler.save({"fates": base64.b64encode(self._end_states).decode()})

    def fold(self, saved: bytes | None, lines: Iterable[str]) -> None:
        """Bring the engine to where an earlier controller left it, and recall how jobs ended."""
        if saved is not None:
            self._end_states = bytearray(base64.b64decode(self.scheduler.restore(saved)["fates"]))
        lines = list(lines)
        recover(lines, self.scheduler)
        for line in lines:
            self._note_fates(json.loads(line))

    def _note_fates(self, record: dict[str, Any]) -> None:
        if "e" in record and Kind[record["e"]] in _END_STATE_OF:
            self._set_end_state(record["job"], Kind[record["e"]])
        for action in record.get("d", ()):
            if action["do"] == "reject":
                self._set_end_state(action["job"], Kind.REJECT)

    # -- records ---------------------------------------------------------------------------------------------------

    def observe(self, kind: Kind, job: int, report: Report | None = None, setting: Setting | None = None) -> None:
        """Book an event of a job, now."""
        self.scheduler.observe(Event(self.now_ms, kind, job, report=report, setting=setting))
        self.dirty.add(job)

    def put(self, job: int, **changes: Any) -> JobRecord:
        """Change the record of a job, and return it as it now is."""
        record = replace(self.jobs[job], **changes)
        before = self.jobs[job]
        if record != before:
            self.jobs[job] = self.changed[job] = record
            if record.holds != before.holds or record.state != before.state:
                self._note_limits(record)
        return record

    def put_attempt(self, attempt: AttemptRecord) -> None:
        """Store an attempt as it now is; if it has left devices, look at those who wait for them."""
        if self.ledger.put(attempt):
            self.dirty |= self.gated
        job = self.jobs.get(attempt.job)
        if job is not None and attempt.state not in ("waiting", "ended"):
            self.put(attempt.job, devices=attempt.devices)

    def add_hold(self, job: int, hold: str, reason: str) -> None:
        """Hold a job for one more reason; one that runs goes on."""
        record = self.jobs.get(job)
        if record is None or hold in record.holds or job not in self.scheduler.state:  # one plan may reject several
            return
        self.put(job, holds=(*record.holds, hold), reason=reason)
        if self.scheduler.state.phase(job) is Phase.PENDING:
            self.observe(Kind.HELD, job)

    def drop_hold(self, job: int, hold: str) -> None:
        """Take one hold off a job; without any it waits for devices."""
        record = self.jobs.get(job)
        if record is None or hold not in record.holds or job not in self.scheduler.state:
            return
        left = tuple(each for each in record.holds if each != hold)
        self.put(job, holds=left, reason=holds.because(left))
        if not left and self.scheduler.state.phase(job) is Phase.HELD:
            self.observe(Kind.ELIGIBLE, job)

    # -- stops and ends --------------------------------------------------------------------------------------------

    def stop(self, job: int, reason: str) -> None:
        """Stop a job's attempt: its devices count as free, and are given on when it has left them."""
        if self.scheduler.state.phase(job) in (Phase.STARTING, Phase.RUNNING):
            self.observe(Kind.PREEMPT, job)
        self.announce(job, reason)

    def announce(self, job: int, reason: str) -> None:
        """Note why an attempt is stopped; an attempt that was never ordered ends by itself, after this instant."""
        attempt = self.ledger.of(job)
        if attempt is None:
            raise InvariantError(f"job {job} is stopped, and has no attempt")
        if _STRENGTH.index(reason) > _STRENGTH.index(attempt.stop_reason):
            self.put_attempt(replace(
                attempt, stop_reason=reason, stop_ms=self.now_ms if attempt.stop_ms == NONE else attempt.stop_ms,
                state="waiting" if attempt.state == "waiting" else "stopping",
            ))
        if attempt.state == "waiting":
            self.timer(self.now_ms + 1, "unstarted", job)
        self.dirty.add(job)

    def finish(self, job: int, verdict: AttemptVerdict, exit_code: int = NONE, ended_ms: int = NONE) -> None:
        """Book the event with which a job ends, and end it."""
        self.observe(verdict.kind, job)
        self.close_record(job, verdict, exit_code, ended_ms)

    def close_record(self, job: int, verdict: AttemptVerdict, exit_code: int = NONE, ended_ms: int = NONE) -> None:
        """End a job: its record is final, and jobs that wait for it lose a hold, or get another."""
        if verdict.state is None:
            raise InvariantError(f"job {job} ends without a state")
        record = self.put(
            job, state=verdict.state, reason=verdict.reason, exit_code=exit_code, holds=(), devices=(),
            ended_ms=self.now_ms if ended_ms == NONE else ended_ms,
        )
        self._set_end_state(job, verdict.kind)
        self._call_off(job)
        del self.jobs[job]
        self.dirty.discard(job)
        if record.array != NONE:
            self.arrays[record.array].discard(job)
            if not self.arrays[record.array]:
                del self.arrays[record.array]
        self.users[record.uid].discard(job)
        if not self.users[record.uid]:
            del self.users[record.uid]
        for other in record.request.before:
            self._waiting_for.get(other, set()).discard(job)
        for other in sorted(self._waiting_for.pop(job, ())):
            request = self.jobs[other].request
            if hold := holds.after_ended(request, job, self.end_state(job) or "failed"):
                to = " to fail" if job in request.after_not_ok else ""
                self.add_hold(other, hold, f"it waits for job {job}{to}, which has ended as {verdict.state}")
            self.drop_hold(other, holds.after(job))

    def end_state(self, job: int) -> JobStatus | None:
        """How a job has ended: ``finished``, ``cancelled`` or, for all else, ``failed``; None if it has not."""
        return _END_STATES[self._end_states[job]] if 0 <= job < len(self._end_states) else None

    def _set_end_state(self, job: int, kind: Kind) -> None:
        if job >= len(self._end_states):
            self._end_states.extend(bytes(job + 1 - len(self._end_states)))
        self._end_states[job] = _END_STATE_OF[kind]

    def index(self, job: JobRecord) -> None:
        """Make a job findable by what it waits for and by its array, and set its timers."""
        for other in job.request.before:
            if holds.after(other) in job.holds:
                self._waiting_for.setdefault(other, set()).add(job.id)
        if job.array != NONE:
            self.arrays.setdefault(job.array, set()).add(job.id)
        self.users.setdefault(job.uid, set()).add(job.id)
        self._note_limits(job)
        if holds.BEGIN in job.holds:
            self.timer(holds.cluster_ms(job, job.request.begin_s), "begin", job.id)

    def _note_limits(self, job: JobRecord) -> None:
        """Whether other jobs of its array and user may run has to be looked at."""
        self.users_changed.add(job.uid)
        if job.request.array_limit != NONE:
            self.arrays_changed.add(job.array)

    def end_of(self, job: int) -> JobStatus | None:
        """See ``end_state``.

        Raises:
            LookupError: there never was such a job.
        """
        if job in self.jobs:
            return None
        end_state = self.end_state(job)
        if end_state is None:
            raise LookupError(job)
        return end_state

    # -- what is due -----------------------------------------------------------------------------------------------

    def timer(self, at_ms: int, what: str, key: int) -> None:
        """Make something due at a time, unless it is due already."""
        if (what, key) not in self._timers_set:
            self._timers_set[what, key] = at_ms
            heapq.heappush(self._timers, (at_ms, what, key))

    def call_off(self, what: str, key: int) -> None:
        """Something is not due any more."""
        self._timers_set.pop((what, key), None)

    def is_due(self, what: str, key: int) -> bool:
        """Whether something is due at some time."""
        return (what, key) in self._timers_set

    def due_ms(self) -> int | None:
        """When the first of what is due is due, None if nothing is."""
        while self._timers and not self._is_set(self._timers[0]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def next_due(self) -> tuple[str, int]:
        """Take the first of what is due; ``due_ms`` has said that there is something."""
        _, what, key = heapq.heappop(self._timers)
        del self._timers_set[what, key]
        return what, key

    def _is_set(self, timer: tuple[int, str, int]) -> bool:
        return self._timers_set.get(timer[1:]) == timer[0]

    def _call_off(self, job: int) -> None:
        """Nothing is due for a job any more."""
        for what in ("begin", "limit", "repeat", "unstarted", "revoked"):
            self.call_off(what, job)
        if len(self._timers) > 2 * len(self._timers_set) + _CALLED_OFF_MAX:
            self._timers = list(filter(self._is_set, self._timers))
            heapq.heapify(self._timers)

    def limit_timer(self, job: JobRecord) -> None:
        """Make the end of a job with processes due at its time limit."""
        if job.request.time_limit_s:
            self.timer(self.now_ms + max(self.time_left_ms(job), 0), "limit", job.id)

    def time_left_ms(self, job: JobRecord) -> int:
        """Time until the limit of a job that has one: of its present attempt, as in Slurm, from its first process on.

        Earlier attempts do not count: one that was stopped may have to do all its work again.
        """
        attempt, limit_s = self.ledger.of(job.id), job.request.time_limit_s
        return limit_s * MS_PER_S if attempt is None else attempt.limit_left_ms(limit_s, self.now_ms)
