"""Decides what the agent does about attempts: orders and facts in, effects and `AttemptSeen` out.

It has no clock, process, socket or file, so that tests run it under virtual time. Whatever must survive a crash of the
agent is asked for as an effect and told by a fact, in this order:

    StartAttempt -> CheckDevices -> checked -> WriteFence -> fenced -> Launch -> launched -> ... -> supervisor_ended
        -> Sweep -> swept -> WriteEnd -> end_written -> AttemptSeen(ended)

So an attempt is never forked before its fence is on disk, and never ended before its processes are proven gone and the
end is on disk. After a crash, ``restore`` continues where the files are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Final

from brim.agent.effects import (
    AgentEffect,
    AttemptEnd,
    CheckDevices,
    Forgotten,
    GangSeen,
    Key,
    Launch,
    Request,
    SendReport,
    Sweep,
    WriteEnd,
    WriteFence,
)
from brim.agent.protocol import (
    BLAME_JOB,
    BLAME_NODE,
    ENDED,
    FAILED,
    FINISHED,
    LOST,
    NONE,
    ON_CPU,
    RUNNING,
    STARTING,
    STOPPED,
    STOPPING,
    UNUSABLE,
    AgentOrder,
    AttemptSeen,
    ForgetAttempt,
    ResizeAttempt,
    StartAttempt,
    StopAttempt,
    TuneAttempt,
)
from brim.gang.messages import PreemptRequest, ResizeRequest, TuneSettings
from brim.gang.usage import NOT_MEASURED, Usage

RETRY_MS: Final = 1_000
"""Time between two tries of what did not work: a device check, a file that cannot be written, a process that stays."""
NUMBER_MAX: Final = 2**53
"""Largest number of a job or attempt: whole numbers up to it survive every reader of JSON."""
CONNECT_MS: Final = 60_000
"""Longest time from the start of a supervisor until it listens. Ours: a loaded machine may need seconds."""
PLAIN_MS: Final = 30_000
"""Time from the start of a gang after which it counts as one that does not use ``brim.train``, unless a rank has spoken
to its supervisor. Ours: the imports of a script may take half of it on a loaded machine."""
ANALYSIS_MS: Final = 90_000
"""Longest time that an analysis may take besides: a minute (``cli.analysis``), and half a minute to end. Ours."""
OVERDUE_MS: Final = 5_000
"""How long after the end of the grace period a supervisor may take, before it is killed itself. Ours."""


class AttemptPhase(Enum):
    """Where an attempt is; see the order above."""

    CHECKING = STARTING + ": devices"
    WAITING = STARTING + ": older attempt"
    FENCING = STARTING + ": fence"
    LAUNCHING = STARTING
    RUNNING = RUNNING
    SWEEPING = STOPPING + ": sweep"
    WRITING = STOPPING + ": end"
    ENDED = ENDED


_KILLED: Final = AttemptEnd(outcome=LOST, detail="its supervisor was killed")
"""Nobody is to blame for what a node that works on has not done: the attempt itself may have done it."""
_SILENT: Final = AttemptEnd(outcome=LOST, detail="its supervisor did not answer", blame=BLAME_NODE)
_GONE: Final = AttemptEnd(outcome=LOST, detail="its supervisor was gone when its agent started", blame=BLAME_NODE)
_WITH_PROCESSES: Final = (AttemptPhase.LAUNCHING, AttemptPhase.RUNNING, AttemptPhase.SWEEPING)


@dataclass(slots=True)
class _Attempt:
    """One attempt that the controller may have to know."""

    order: StartAttempt
    phase: AttemptPhase
    devices: tuple[int, ...]
    ranks: int
    ordered_sequence: int
    """Of the newest order."""
    settled_sequence: int
    """Of the newest order that the gang is known to follow, or to have refused; see ``AttemptSeen.sequence``."""
    detail: str = ""
    end: AttemptEnd | None = None
    unwritten_end: AttemptEnd = _GONE  # if nobody has written one
    retry_at_ms: int | None = None
    started_ms: int = NONE
    has_begun: bool = False
    processes: tuple[int, ...] = ()
    analysis: tuple[int, ...] = ()
    gpu_energy_j: float | None = NONE  # of its GPUs so far; None if its begin was not seen
    # what it is asked for, and what the supervisor is known to have
    connected: bool = False
    has_status: bool = False
    """Whether the supervisor has said how its gang is since it was connected."""
    gang: GangSeen = field(default_factory=GangSeen)
    resize: ResizeAttempt | None = None
    tune: TuneAttempt | None = None
    in_flight: int = NONE
    is_refused: bool = False  # a resize was, and the devices in use are not known since
    kill_at_ms: int | None = None
    preempt_sent: bool = False
    told: AttemptSeen | None = None

    @property
    def key(self) -> Key:
        return self.order.job, self.order.attempt


@dataclass(slots=True)
class _Job:
    """What is known of a job for good: its newest attempt, and whether one has finished."""

    newest: int = NONE
    finished: bool = False


class NodeAttempts:
    """The attempts of one agent.

    It is one class because every order and every fact is a transition of the same state machine.

    Args:
        clock_ms: Returns the present time in ms; it includes suspends and never goes backwards.
        device_names: The devices, by number.
    """

    def __init__(self, clock_ms: Callable[[], int], device_names: Sequence[str]) -> None:
        self._clock_ms, self._device_names = clock_ms, tuple(device_names)
        self._attempts: dict[Key, _Attempt] = {}
        self._jobs: dict[int, _Job] = {}
        self._captures: dict[tuple[str, int], int] = {}
        self._effects: list[AgentEffect] = []

    def take_effects(self) -> list[AgentEffect]:
        """Return what is to be done since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def seen(self) -> list[AttemptSeen]:
        """Return all attempts that the controller may have to know."""
        return [self._seen(attempt) for _, attempt in sorted(self._attempts.items())]

    def held_devices(self) -> dict[int, set[Key]]:
        """Return the attempts on each device that may have processes there."""
        held: dict[int, set[Key]] = {}
        for one in self._attempts.values():
            for device in set(one.devices) - {ON_CPU} if one.phase in _WITH_PROCESSES else ():
                held.setdefault(device, set()).add(one.key)
        return held

    def used(self, used_j: Mapping[int, float]) -> None:
        """Note the energy that devices have used; attempts that share a device have equal parts of it."""
        held = [one for one in self._attempts.values() if one.phase in _WITH_PROCESSES]
        for device, joules in used_j.items():
            on = [one for one in held if device in one.devices]
            for attempt in on:
                if attempt.gpu_energy_j is not None:
                    attempt.gpu_energy_j = max(attempt.gpu_energy_j, 0.0) + joules / len(on)

    def stuck_devices(self) -> dict[int, str]:
        """Return the devices with processes that could not be killed, and which these are."""
        stuck = (one for one in self._attempts.values()
                 if one.phase is AttemptPhase.SWEEPING and one.retry_at_ms is not None)  # fmt: skip
        return {device: one.detail for one in stuck for device in one.devices}

    # -- after a start of the agent --------------------------------------------------------------------------------

    def restore(self, order: StartAttempt, *, end: AttemptEnd | None, alive: bool, forgotten: bool) -> None:
        """An attempt whose fence was found on disk.

        Args:
            order: The order of its fence.
            end: The end on disk; None if there is none.
            alive: Whether its supervisor lives.
            forgotten: Whether the controller knows its end.
        """
        self._note(order)
        if end is not None and end.outcome == FINISHED:
            self._jobs[order.job].finished = True
        if end is not None and forgotten:
            return
        attempt = self._new(order, AttemptPhase.LAUNCHING if alive else AttemptPhase.SWEEPING)
        attempt.end, attempt.gpu_energy_j = end, None
        if not alive:  # even after a written end: the agent may have died before the processes were proven gone
            self._effects.append(Sweep(attempt.key))

    # -- orders ----------------------------------------------------------------------------------------------------

    def obey(self, order: AgentOrder, refusal: str = "") -> None:
        """Carry out an order of the controller.

        Args:
            order: The order.
            refusal: Of a `StartAttempt`: why its capture cannot be used; empty if it can.
        """
        if not (0 <= order.job <= NUMBER_MAX and 0 <= order.attempt <= NUMBER_MAX):  # they name folders
            if isinstance(order, StartAttempt):
                self._refuse(order, UNUSABLE, f"found job {order.job}, attempt {order.attempt}, expected 0 to 2**53")
            return
        match order:
            case StartAttempt():
                self._start(order, refusal)
            case StopAttempt():
                self._stop(order)
            case ForgetAttempt():
                attempt = self._attempts.get((order.job, order.attempt))
                if attempt is not None and attempt.phase is AttemptPhase.ENDED:
                    del self._attempts[attempt.key]
                    self._effects.append(Forgotten(attempt.key))
            case ResizeAttempt() | TuneAttempt():
                attempt = self._attempts.get((order.job, order.attempt))
                if attempt is None:
                    return
                if attempt.phase is not AttemptPhase.ENDED and order.sequence > attempt.ordered_sequence:
                    self._change(attempt, order)
                self._send_report(attempt, again=True)

    def _start(self, order: StartAttempt, refusal: str) -> None:
        key = order.job, order.attempt
        if (known := self._attempts.get(key)) is not None:
            self._send_report(known, again=True)
            return
        job = self._jobs.get(order.job, _Job())
        if job.finished:
            self._refuse(order, UNUSABLE, "the job has finished already")
            return
        if order.attempt <= job.newest:
            self._refuse(order, LOST, f"attempt {order.attempt} is not above {job.newest}, the newest of this job")
            return
        if not refusal and self._captures.get((order.capture, order.index), order.job) != order.job:
            refusal = f"capture {order.capture} belongs to another job"
        refusal = refusal or self._misfit(order.ranks, order.devices)
        if not refusal and not 0 <= order.grace_s < math.inf:
            refusal = f"found a grace of {order.grace_s:g} s, expected a finite time of at least 0"
        waits = self._waits_for(order.job)
        if refusal:  # with a fence: a capture that appears later does not make a late copy of this order valid
            attempt = self._new(replace(order, capture="", devices=()), AttemptPhase.FENCING)
            attempt.end = AttemptEnd(outcome=UNUSABLE, detail=refusal, blame=BLAME_JOB)
            self._note(attempt.order)
            self._effects.append(WriteFence(attempt.order))
            return
        attempt = self._new(order, AttemptPhase.WAITING)
        self._note(order)
        if waits is not None:
            attempt.detail = f"waits for the end of attempt {waits}"
            self._send_report(attempt)
            return
        self._check_devices(attempt)

    def _misfit(self, ranks: int, devices: tuple[int, ...]) -> str:
        """Say why an attempt cannot run so; empty if it can."""
        last, own = len(self._device_names) - 1, [device for device in devices if device != ON_CPU]
        if strange := [device for device in own if not 0 <= device <= last]:
            return f"found device {strange[0]}, expected one of 0 to {last}"
        if own and len(own) < len(devices):
            return f"found devices {devices}, expected ranks on devices or ranks on CPU"
        if len(set(own)) < len(own) or not 0 <= ranks <= len(devices):
            return f"found {ranks} ranks for devices {devices}, expected at most one each"
        return ""

    def _refuse(self, order: StartAttempt, outcome: str, detail: str) -> None:
        """Refuse an order that will be refused for ever, so that nothing need be noted."""
        self._effects.append(SendReport(AttemptSeen(
            job=order.job, attempt=order.attempt, sequence=NONE, state=ENDED, outcome=outcome, detail=detail,
        )))  # fmt: skip

    def _check_devices(self, attempt: _Attempt) -> None:
        attempt.phase, attempt.detail, attempt.retry_at_ms = AttemptPhase.CHECKING, "", None
        self._send_report(attempt)
        devices = tuple(device for device in attempt.order.devices if device != ON_CPU)
        self._effects.append(CheckDevices(attempt.key, devices, attempt.order.shares))

    def _stop(self, order: StopAttempt) -> None:
        key = order.job, order.attempt
        attempt = self._attempts.get(key)
        if attempt is None:
            if order.attempt > self._jobs.get(order.job, _Job()).newest:  # so that a late start does nothing
                unknown = StartAttempt(
                    job=order.job, attempt=order.attempt, sequence=NONE, capture="", digest="", devices=()
                )
                attempt = self._new(unknown, AttemptPhase.WAITING)
                self._note(unknown)
            else:
                return
        if attempt.phase in (AttemptPhase.WAITING, AttemptPhase.CHECKING):
            attempt.end = AttemptEnd(outcome=STOPPED, detail=f"{order.reason} before it was started")
            attempt.phase, attempt.retry_at_ms = AttemptPhase.FENCING, None
            self._effects.append(WriteFence(attempt.order))
            self._send_report(attempt)
            return
        if attempt.phase in (AttemptPhase.SWEEPING, AttemptPhase.WRITING, AttemptPhase.ENDED):
            self._send_report(attempt, again=True)
            return
        if attempt.phase is AttemptPhase.LAUNCHING and attempt.order.analyse and not attempt.connected:
            attempt.end = AttemptEnd(outcome=STOPPED, detail=f"{order.reason} while its steps were timed")
            self._sweep(attempt)  # it has nothing to save yet
            return
        kill_at_ms = self._clock_ms() + round(1000 * min(order.grace_s, 10.0**9) if order.grace_s > 0 else 0)
        if attempt.kill_at_ms is None or kill_at_ms < attempt.kill_at_ms:
            attempt.kill_at_ms, attempt.preempt_sent = kill_at_ms, False
            if not attempt.detail:
                attempt.detail = order.reason
        self._reconcile(attempt)
        self._send_report(attempt)

    def _change(self, attempt: _Attempt, order: ResizeAttempt | TuneAttempt) -> None:
        attempt.ordered_sequence = order.sequence
        tune = TuneAttempt(
            job=order.job, attempt=order.attempt, sequence=order.sequence, batch=order.batch,
            loader_workers=order.loader_workers,
        )  # fmt: skip
        if isinstance(order, ResizeAttempt):
            refusal = self._misfit(order.ranks, order.devices)
            if ON_CPU in (*attempt.devices, *order.devices):
                refusal = "a job on CPU cannot be resized"
            if not attempt.ranks or not order.ranks:
                refusal = "a plain process cannot be resized"
            if refusal:
                attempt.detail = f"not resized: {refusal}"
                self._settle(attempt)
                return
            attempt.resize = order
            attempt.devices = tuple(sorted({*attempt.devices, *order.devices}))
        if order.batch != NONE or order.loader_workers != NONE:
            attempt.tune = tune
        self._settle(attempt)
        self._reconcile(attempt)

    # -- facts -----------------------------------------------------------------------------------------------------

    def checked(self, key: Key, problem: str) -> None:
        """The devices of an attempt were checked; ``problem`` is empty if they can be used."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.phase is not AttemptPhase.CHECKING:
            return
        if problem:
            attempt.end = AttemptEnd(outcome=FAILED, detail=problem, blame=BLAME_NODE)
        attempt.phase = AttemptPhase.FENCING
        self._effects.append(WriteFence(attempt.order))

    def fenced(self, key: Key) -> None:
        """The fence is on disk: start the attempt, or note why it is never started."""
        attempt = self._attempts[key]
        attempt.retry_at_ms = None
        if attempt.end is not None:
            self._write_end(attempt, attempt.end)
            return
        if attempt.kill_at_ms is not None:
            self._write_end(attempt, AttemptEnd(outcome=STOPPED, detail=f"{attempt.detail} before it was started"))
            return
        attempt.phase, attempt.retry_at_ms = AttemptPhase.LAUNCHING, self._clock_ms() + CONNECT_MS
        if attempt.order.analyse:
            attempt.retry_at_ms += ANALYSIS_MS
            attempt.detail = "its steps are timed first, for up to a minute"
        self._effects.append(Launch(attempt.order))
        self._send_report(attempt)

    def not_written(self, key: Key, problem: str) -> None:
        """The fence or the end could not be written: try again later."""
        attempt = self._attempts[key]
        attempt.detail = problem
        attempt.retry_at_ms = self._clock_ms() + RETRY_MS
        self._send_report(attempt)

    def launched(self, key: Key, started_ms: int, processes: tuple[int, ...] = ()) -> None:
        """The supervisor was started, or found alive after a start of the agent."""
        attempt = self._attempts[key]
        attempt.started_ms, attempt.processes = started_ms, processes
        self._send_report(attempt)

    def awaits_launch(self, key: Key) -> bool:
        """Whether the attempt is still to be launched."""
        attempt = self._attempts.get(key)
        return attempt is not None and attempt.phase is AttemptPhase.LAUNCHING

    def launch_failed(self, key: Key, end: AttemptEnd) -> None:
        """The supervisor could not be started."""
        self._write_end(self._attempts[key], end)

    def connected(self, key: Key, analysis: tuple[int, ...] = ()) -> None:
        """The supervisor answers, and says next what it has; ``analysis`` is what was measured before it started.

        Nothing is asked of it before that: it refuses what is older than what an earlier agent has asked.
        """
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.connected, attempt.has_status = True, False
            attempt.in_flight, attempt.preempt_sent = NONE, False
            attempt.analysis = analysis
            if attempt.phase is AttemptPhase.LAUNCHING:
                attempt.retry_at_ms, attempt.detail = None, ""

    def disconnected(self, key: Key) -> None:
        """The connection to the supervisor ended; ``supervisor_ended`` may follow."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.connected = False

    def status(self, key: Key, gang: GangSeen) -> None:
        """The supervisor has said how its gang is."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.phase not in (AttemptPhase.LAUNCHING, AttemptPhase.RUNNING):
            return
        attempt.has_status = True
        if gang.loss != attempt.gang.loss:
            attempt.detail = gang.loss
        known, attempt.gang = attempt.gang.progress, gang
        attempt.processes = gang.processes or attempt.processes
        if gang.has_processes:
            attempt.phase = AttemptPhase.RUNNING
            attempt.has_begun |= self._begins(attempt, gang)
        if attempt.resize is not None and gang.is_settled and gang.sequence >= _resize_number(attempt.resize):
            attempt.resize = None
        if attempt.tune is not None and gang.sequence >= _tune_number(attempt.tune):
            attempt.tune = None
        if attempt.resize is None and gang.is_settled and attempt.ranks:
            attempt.ranks, attempt.is_refused = gang.ranks, False
            attempt.devices = attempt.devices if gang.devices is None else gang.devices
        if gang.sequence > 2 * attempt.ordered_sequence + 1:  # an order that an agent before this one has passed on
            attempt.ordered_sequence = gang.sequence // 2
            if attempt.ranks and not gang.is_settled and ON_CPU not in attempt.devices:
                devices = tuple(sorted({*attempt.devices, *(gang.devices or ())}))
                attempt.devices = devices
                attempt.resize = ResizeAttempt(
                    job=key[0], attempt=key[1], sequence=attempt.ordered_sequence, devices=devices, ranks=attempt.ranks
                )
        self._settle(attempt)
        if gang.progress is not None and gang.progress != known:
            self._effects.append(SendReport(gang.progress))
        self._reconcile(attempt)
        self._send_report(attempt)

    def _begins(self, attempt: _Attempt, gang: GangSeen) -> bool:
        """Whether a gang with processes makes progress, or never says so."""
        is_old = attempt.started_ms != NONE and self._clock_ms() - attempt.started_ms >= PLAIN_MS
        return not attempt.ranks or gang.progress is not None or (is_old and not gang.is_speaking)

    def answered(self, key: Key, number: int, refusal: str) -> None:
        """The supervisor has answered the request of this number."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.in_flight != number:
            return
        attempt.in_flight = NONE
        resize, tune = attempt.resize, attempt.tune
        if refusal and resize is not None and number == _resize_number(resize):
            attempt.detail, attempt.resize, attempt.is_refused = f"not resized: {refusal}", None, True
        elif refusal and tune is not None and number == _tune_number(tune):
            attempt.detail, attempt.tune = f"not tuned: {refusal}", None
        elif not refusal:
            attempt.gang = replace(attempt.gang, sequence=max(attempt.gang.sequence, number), is_settled=False)
            if tune is not None and number == _tune_number(tune):
                attempt.tune = None
        self._settle(attempt)
        self._reconcile(attempt)
        self._send_report(attempt)

    def supervisor_ended(self, key: Key, end: AttemptEnd | None) -> None:
        """The supervisor's process has ended; ``end`` is what it has written, None if it was killed before."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.phase not in _WITH_PROCESSES:
            return
        attempt.connected = False
        if attempt.end is None or end is not None:
            attempt.end = end
        attempt.unwritten_end = _KILLED
        self._sweep(attempt)

    def swept(
        self, key: Key, left: Iterable[int], usage: Usage = NOT_MEASURED, written: AttemptEnd | None = None
    ) -> None:
        """Processes of the attempt were killed.

        Args:
            key: The attempt.
            left: Processes that are still there.
            usage: What it used.
            written: The end that its supervisor wrote, perhaps just before it was killed; None if it wrote none.
        """
        attempt = self._attempts.get(key)
        if attempt is None or attempt.phase is not AttemptPhase.SWEEPING:
            return
        if left := tuple(left):
            attempt.detail = f"still running after SIGKILL: processes {', '.join(map(str, left))}"
            attempt.retry_at_ms = self._clock_ms() + RETRY_MS
            self._send_report(attempt)
            return
        end = attempt.end or written
        if end is None and attempt.kill_at_ms is not None and self._clock_ms() >= attempt.kill_at_ms:
            end = AttemptEnd(outcome=STOPPED, detail="killed with its supervisor, which was overdue")
        elif end is None:
            end = attempt.unwritten_end
        if end.is_written:
            attempt.end = end
            self._end(attempt)
        else:
            end = replace(end, started_ms=attempt.started_ms, ended_ms=self._clock_ms(), usage=usage)
            self._write_end(attempt, end)

    def end_written(self, key: Key) -> None:
        """The end is on disk."""
        self._end(self._attempts[key])

    # -- time ------------------------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """Return when ``tick`` is to be called; None if only facts are awaited."""
        return min((at_ms for one in self._attempts.values() for at_ms in self._due_ms(one)), default=None)

    def _due_ms(self, attempt: _Attempt) -> list[int]:
        due = [] if attempt.retry_at_ms is None else [attempt.retry_at_ms]
        if attempt.kill_at_ms is not None and attempt.phase in (AttemptPhase.LAUNCHING, AttemptPhase.RUNNING):
            due.append(attempt.kill_at_ms + OVERDUE_MS)
        return due

    def tick(self) -> None:
        """Do what is due by now."""
        now_ms = self._clock_ms()
        for attempt in list(self._attempts.values()):
            if all(at_ms > now_ms for at_ms in self._due_ms(attempt)):
                continue
            attempt.retry_at_ms = None
            match attempt.phase:
                case AttemptPhase.FENCING:
                    self._effects.append(WriteFence(attempt.order))
                case AttemptPhase.WRITING:
                    assert attempt.end is not None
                    self._effects.append(WriteEnd(attempt.key, attempt.end))
                case AttemptPhase.LAUNCHING | AttemptPhase.RUNNING:  # the supervisor did not end in time
                    attempt.unwritten_end = _SILENT
                    self._sweep(attempt)
                case AttemptPhase.SWEEPING:
                    self._effects.append(Sweep(attempt.key))
                case _:
                    pass

    # -- steps -----------------------------------------------------------------------------------------------------

    def _new(self, order: StartAttempt, phase: AttemptPhase) -> _Attempt:
        attempt = _Attempt(order, phase, order.devices, order.ranks, order.sequence, order.sequence)
        if order.ranks and order.batch != NONE:
            attempt.tune = TuneAttempt(
                job=order.job, attempt=order.attempt, sequence=order.sequence, batch=order.batch
            )
        self._attempts[attempt.key] = attempt
        return attempt

    def _note(self, order: StartAttempt) -> None:
        """Note what holds for good: the newest attempt of the job, and whose the capture is."""
        job = self._jobs.setdefault(order.job, _Job())
        job.newest = max(job.newest, order.attempt)
        if order.capture:
            self._captures.setdefault((order.capture, order.index), order.job)

    def _waits_for(self, job: int, before: int | None = None) -> int | None:
        """Return the newest attempt of the job (before this one) that may have processes; None if there is none."""
        numbers = [one.order.attempt for one in self._attempts.values()
                   if one.order.job == job and one.phase is not AttemptPhase.ENDED]  # fmt: skip
        return max((number for number in numbers if before is None or number < before), default=None)

    def _reconcile(self, attempt: _Attempt) -> None:
        """Ask the supervisor for what is wanted and not known to hold; one change at a time."""
        is_live = attempt.phase in (AttemptPhase.LAUNCHING, AttemptPhase.RUNNING)
        if not (attempt.connected and attempt.has_status and is_live):
            return
        if attempt.kill_at_ms is not None:
            if not attempt.preempt_sent:
                attempt.preempt_sent = True
                grace_s = max(0, attempt.kill_at_ms - self._clock_ms()) / 1000
                fence = (*attempt.key, max(attempt.gang.sequence, 2 * attempt.ordered_sequence + 1, 0))
                self._effects.append(Request(attempt.key, PreemptRequest(grace_s, fence)))
            return
        if attempt.in_flight != NONE:
            return
        if (resize := attempt.resize) is not None and attempt.gang.sequence < _resize_number(resize):
            if attempt.gang.is_grouped:
                attempt.in_flight = _resize_number(resize)
                fence = (*attempt.key, attempt.in_flight)
                names = tuple(self._device_names[device] for device in resize.devices)
                self._effects.append(Request(attempt.key, ResizeRequest(resize.ranks, names, fence)))
        elif (tune := attempt.tune) is not None and attempt.gang.sequence < _tune_number(tune):
            attempt.in_flight = _tune_number(tune)
            self._effects.append(Request(attempt.key, TuneSettings(
                global_batch=None if tune.batch == NONE else tune.batch,
                loader_workers_max=None if tune.loader_workers == NONE else tune.loader_workers,
                fence=(*attempt.key, attempt.in_flight),
            )))  # fmt: skip

    def _settle(self, attempt: _Attempt) -> None:
        if attempt.resize is None and attempt.tune is None and not attempt.is_refused:
            attempt.settled_sequence = attempt.ordered_sequence

    def _sweep(self, attempt: _Attempt) -> None:
        attempt.phase, attempt.retry_at_ms = AttemptPhase.SWEEPING, None
        self._effects.append(Sweep(attempt.key))
        self._send_report(attempt)

    def _write_end(self, attempt: _Attempt, end: AttemptEnd) -> None:
        attempt.phase, attempt.end, attempt.retry_at_ms = AttemptPhase.WRITING, end, None
        self._effects.append(WriteEnd(attempt.key, end))

    def _end(self, attempt: _Attempt) -> None:
        assert attempt.end is not None
        attempt.phase, attempt.detail, attempt.retry_at_ms = AttemptPhase.ENDED, attempt.end.detail, None
        attempt.resize = attempt.tune = None
        attempt.settled_sequence = attempt.ordered_sequence
        if attempt.end.outcome == FINISHED:
            self._jobs[attempt.order.job].finished = True
        self._send_report(attempt)
        for later in sorted(self._attempts):
            other = self._attempts[later]
            if later[0] == attempt.order.job and other.phase is AttemptPhase.WAITING:
                if attempt.end.outcome == FINISHED:
                    other.end = AttemptEnd(outcome=UNUSABLE, detail="the job has finished already")
                    other.phase = AttemptPhase.FENCING
                    self._effects.append(WriteFence(other.order))
                elif self._waits_for(*later) is None:
                    self._check_devices(other)

    def _send_report(self, attempt: _Attempt, *, again: bool = False) -> None:
        seen = self._seen(attempt)
        plain = replace(seen, started_ms_ago=NONE, ended_ms_ago=NONE, told_ms=NONE)
        if again or plain != attempt.told:
            attempt.told = plain
            self._effects.append(SendReport(seen))

    def _seen(self, attempt: _Attempt) -> AttemptSeen:
        now_ms, end = self._clock_ms(), attempt.end if attempt.phase is AttemptPhase.ENDED else None
        state = attempt.phase.value.partition(":")[0]
        if state == RUNNING and (attempt.kill_at_ms is not None or attempt.gang.is_stopping):
            state = STOPPING
        started_ms = attempt.started_ms if end is None or end.started_ms == NONE else end.started_ms
        return AttemptSeen(
            job=attempt.order.job, attempt=attempt.order.attempt, sequence=attempt.settled_sequence, state=state,
            devices=() if end else attempt.devices, ranks=attempt.ranks,
            outcome=end.outcome if end else "", exit_code=end.exit_code if end else NONE,
            detail=attempt.detail, blame=end.blame if end else "", has_begun=attempt.has_begun,
            started_ms_ago=NONE if started_ms == NONE else max(0, now_ms - started_ms),
            ended_ms_ago=NONE if end is None or end.ended_ms == NONE else max(0, now_ms - end.ended_ms),
            told_ms=now_ms, processes=() if end else attempt.processes, analysis=attempt.analysis,
            gpu_energy_j=NONE if end is None or attempt.gpu_energy_j is None else attempt.gpu_energy_j,
            **(asdict(end.usage) if end else {}),
        )  # fmt: skip


def _resize_number(order: ResizeAttempt) -> int:
    """The number of the request to the supervisor: the settings of an order come after its devices."""
    return 2 * order.sequence


def _tune_number(order: TuneAttempt) -> int:
    return 2 * order.sequence + 1
