"""The thread in which the controller decides: it recovers it, takes inputs, steps, commits, and then lets go of orders.

Nothing else touches the controller, so rounds and commits never hold up those who read or connect. What others may
know of a step is handed to ``publish`` once it is durable. Any error ends the thread, and with it the service: what is
in memory may not be what is on disk, and a restart reads what is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from brim.live.inputs import Input
from brim.live.records import Changes, ControllerSetting
from brim.live.store.errors import NotAcceptedError
from brim.live.store.reading import Recovered
from brim.live.store.store import Store
from brim.units import MS_PER_S

if TYPE_CHECKING:
    from brim.engine.round import RoundResult
    from brim.live.controller import Controller, StepResult
    from brim.policies.sockets import Policy

SNAPSHOT_CHARACTERS: Final = 8 << 20
"""Length of the journal after which a snapshot takes its place; ours: it is read in well under a second. A round with
10,000 waiting jobs writes 150 kB."""

STALL_S: Final = 30.0
"""Time of a step after which users are told that it goes on; ours: rounds take well under a second."""
JOIN_S: Final = 4.0
"""Longest wait for the present step when the service stops; ours. A policy that does not return is left behind: what it
would decide cannot be written any more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A step that is durable, and the last round, which explains why jobs wait."""

    step: StepResult
    last_round: RoundResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What stays the same while a controller runs: its setting, the number of devices, and the policy."""

    setting: ControllerSetting
    devices: int
    policy: Policy


class EngineThread:
    """Runs a controller until ``stop``. Inputs are taken from the beginning, and handled once it is recovered.

    Args:
        make: Makes the controller; called in this thread, because the engine takes a second to load.
        store: The store.
        recovered: Called in this thread once, before the first step.
        publish: Called in this thread with every step that changed something.
        failed: Called in this thread with the error that ended it.
    """

    def __init__(
        self, make: Callable[[], Controller], store: Store, recovered: Callable[[Facts], None],
        publish: Callable[[Published], None], failed: Callable[[BaseException], None],
    ) -> None:
        self._make, self._store, self._recovered = make, store, recovered
        self._publish, self._failed = publish, failed
        self._found: Recovered | None = None
        self._controller: Controller
        self._written: int | None = 0  # characters of the journal after its snapshot; None: a snapshot is due
        self._changed = threading.Condition()
        self._inputs: list[Input] = []
        self._questions: list[tuple[Callable[[Controller, int], Any], Future[Any]]] = []
        self._stopping = self._has_ended = False
        self._step_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, found: Recovered) -> None:
        """Begin with what was in the store."""
        self._found = found
        self.give(found.inputs)
        self._thread.start()

    def give(self, inputs: Iterable[Input]) -> None:
        """Add inputs, in the order in which they happened."""
        with self._changed:
            self._inputs.extend(inputs)
            self._changed.notify()

    def ask(self, question: Callable[[Controller, int], T]) -> Future[T]:
        """Have a question answered between two steps, when all that was decided is durable; it must change nothing.

        It gets the controller and cluster time. The future fails with ``NotAcceptedError`` if the thread ends first.
        """
        answer: Future[T] = Future()
        with self._changed:
            self._questions.append((question, answer))
            if self._has_ended:
                self._refuse()
            self._changed.notify()
        return answer

    def _refuse(self) -> None:
        for _, answer in self._questions:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(NotAcceptedError("the controller ends: try again"))
        self._questions = []

    @property
    def store(self) -> Store:
        """The store."""
        return self._store

    @property
    def backlog(self) -> int:
        """Inputs that wait."""
        return len(self._inputs)

    @property
    def trouble(self) -> str:
        """What the controller does instead of deciding, for users; empty if it decides."""
        since_s = self._step_since_s
        took_s = 0.0 if since_s is None else time.monotonic() - since_s
        return "" if took_s < STALL_S else f"has waited {took_s:.0f} s for its policy: nothing starts meanwhile"

    def stop(self) -> None:
        """End after the present step. Inputs that still wait are in the inbox, or are told again by their agents."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self) -> None:
        """Wait until it has ended, ``JOIN_S`` at most; call ``stop`` first."""
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            self._recover()
            wake_ms: int | None = 0
            while (inputs := self._wait(wake_ms)) is not None:
                wake_ms = self._step(inputs)
                self._answer()
        except BaseException as error:  # whatever it is, the service ends with it
            if not (self._stopping and isinstance(error, NotAcceptedError)):
                self._failed(error)
        finally:
            with self._changed:
                self._has_ended = True
                self._refuse()

    def _answer(self) -> None:
        with self._changed:
            questions, self._questions = self._questions, []
        for question, answer in questions:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(question(self._controller, self._store.now_ms()))
                except Exception as error:  # it is who asked who hears of it
                    answer.set_exception(error)

    def _recover(self) -> None:
        found, self._found = self._found, None  # it is large
        assert found is not None
        controller = self._controller = self._make()
        controller.recover(found.snapshot, found.lines, found.jobs, found.attempts, self._store.now_ms())
        if found.snapshot is None:  # of a new cluster: it says which, and the journal is whole
            self._store.commit(Changes(at_ms=self._store.now_ms()), controller.save()).result()
        self._written = None if controller.is_moved else sum(map(len, found.lines))
        self._store.note_setting(controller.setting).result()
        scheduler = controller.scheduler
        facts = Facts(
            setting=controller.setting, devices=scheduler.state.cluster.num_gpus, policy=scheduler.policy
        )
        self._recovered(facts)

    def _wait(self, wake_ms: int | None) -> list[Input] | None:
        """Wait for inputs or a time, and return the inputs; None to end."""
        with self._changed:
            while not self._inputs and not self._questions and not self._stopping:
                left_ms = None if wake_ms is None else wake_ms + 1 - self._store.now_ms()
                if left_ms is not None and left_ms <= 0:
                    break
                self._changed.wait(None if left_ms is None else min(left_ms / MS_PER_S, threading.TIMEOUT_MAX))
            if self._stopping:
                return None
            inputs, self._inputs = self._inputs, []
            return inputs

    def _step(self, inputs: list[Input]) -> int | None:
        self._step_since_s = time.monotonic()
        step = self._controller.step(inputs, self._store.now_ms(), self._store.now_ms)
        self._step_since_s = None
        changes = step.changes
        if changes.lines or changes.jobs or changes.attempts or changes.inbox_done:
            written = self._written
            if written is not None:
                written += sum(map(len, changes.lines))
            is_due = written is None or written >= SNAPSHOT_CHARACTERS
            self._store.commit(changes, self._controller.save() if is_due else None).result()
            self._written = 0 if is_due else written
            self._publish(Published(step=step, last_round=self._controller.scheduler.last_round))
        elif step.orders:
            self._publish(Published(step=step, last_round=self._controller.scheduler.last_round))
        return step.wake_ms
