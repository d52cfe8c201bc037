"""The rank's end of the control socket: a thread receives commands, and the main thread reads them between steps.

The thread never changes the training state. It acts at once in one case: it aborts the process group when a newer
generation is formed or a member of the group is lost, since the main thread may be in a collective that nothing else
would wake.
If the socket vanishes, training continues with the present group, and the thread tries to connect again.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from brim.gang.codec import Decoder, ProtocolError, encode
from brim.gang.messages import (
    CONTROL_VARIABLE,
    GANG_VARIABLE,
    ID_VARIABLE,
    Error,
    FormGroup,
    Hello,
    MemberLost,
    Message,
    Prepare,
    ResizeGroup,
    Stop,
    StoreAddress,
    TrainingProgress,
    TuneSettings,
    Waiting,
)

Command = FormGroup | Prepare | ResizeGroup | Stop | TuneSettings

TICK_S: Final = 1.0
"""Time between checks whether the main thread is waiting, and between attempts to connect again."""

PROGRESS_S: Final = 1.0
"""Progress is sent at most once in this time."""


class SupervisorClient:
    """The connection to the supervisor; any thread may call its methods.

    Args:
        path: Path of the Unix socket.
        ident: ``$BRIM_ID``.
        gang: ``$BRIM_GANG``.
    """

    def __init__(self, path: str, ident: int, gang: str = "") -> None:
        self.ident = ident
        self._gang = gang
        self._path = path
        self._changed = threading.Condition()
        self._form: FormGroup | None = None
        self._addresses: dict[int, StoreAddress] = {}
        self._commands: dict[int, Command] = {}
        self._newest_command = 0
        self._ready: Message | None = None
        self._over = 0
        self._formed: Callable[[int], None] = lambda _: None
        self._generation_over: Callable[[int], None] = lambda _: None
        self._waiting: tuple[int, int, float, str] | None = None
        self._progress_sent_s = 0.0
        self._closed = False
        self._send_lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._connect()
        self._thread = threading.Thread(target=self._listen, name="brim-control", daemon=True)
        self._thread.start()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> SupervisorClient | None:
        """Return the control of this process; None if no supervisor started it.

        One of several processes that a job's ``torchrun`` has started is no rank of the job's gang.
        """
        path, ident = environment.get(CONTROL_VARIABLE), environment.get(ID_VARIABLE)
        gang = environment.get(GANG_VARIABLE, "")
        if environment.get("WORLD_SIZE", "1") != "1" and environment.get("TORCHELASTIC_RUN_ID") != gang:
            return None
        return cls(path, int(ident), gang) if path and ident else None

    def on_form(self, call: Callable[[int], None]) -> None:
        """Have the listening thread call this with the generation of each form that arrives."""
        self._formed = call

    def on_generation_over(self, call: Callable[[int], None]) -> None:
        """Have the listening thread call this, once or more, when the groups up to a generation cannot continue."""
        self._generation_over = call

    def is_over(self, generation: int) -> bool:
        """Whether a newer generation is formed, or a member of this one is lost."""
        return generation <= self._over

    @property
    def connected(self) -> bool:
        """Whether the supervisor is connected."""
        return self._connection is not None

    @property
    def newest_command(self) -> int:
        """Number of the newest command that has arrived."""
        with self._changed:
            return self._newest_command

    def commands(self, above: int, up_to: int) -> list[Command]:
        """Return the commands with these numbers, in order."""
        with self._changed:
            return [self._commands[n] for n in sorted(self._commands) if above < n <= up_to]

    def forget(self, up_to: int) -> None:
        """Drop commands up to this number: they have been acted on, or overridden."""
        with self._changed:
            for number in [n for n in self._commands if n <= up_to]:
                del self._commands[number]

    def newest_form(self, above: int) -> FormGroup | None:
        """Return the form of the highest generation, if that is above this one."""
        with self._changed:
            return self._form if self._form is not None and self._form.generation > above else None

    def wait_for_form(self, above: int, command: int, timeout_s: float) -> FormGroup | Prepare | Stop | None:
        """Wait for a form of a higher generation, or a later command that ends the job."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.newest_form(above) is not None or self._ending(command) is not None, timeout_s
            )
            return self.newest_form(above) or self._ending(command)

    def _ending(self, above: int) -> Prepare | Stop | None:
        for number, command in sorted(self._commands.items()):
            if number > above and isinstance(command, Prepare | Stop):
                return command
        return None

    def wait_for_address(self, generation: int, timeout_s: float) -> StoreAddress | None:
        """Wait for the address of the leader's store; None if time is up or the generation is over."""
        with self._changed:
            self._changed.wait_for(lambda: generation in self._addresses or self.is_over(generation), timeout_s)
            return self._addresses.get(generation)

    def waiting(self, generation: int = 0, step: int = 0, what: str = "step") -> None:
        """The main thread enters a collective of this step; ``what`` names it."""
        self._waiting = (generation, step, time.monotonic(), what)

    def not_waiting(self) -> None:
        """The main thread has left the collective."""
        self._waiting = None

    def ready(self, message: Message) -> None:
        """Send this message now, and again after a new connection."""
        self._ready = message
        self.send(message)

    def progress(
        self, step: int, samples: int, loss: Callable[[], float | None], total: Callable[[], int | None] = lambda: None
    ) -> None:
        """Send the progress, unless it was sent just now; loss and total are computed only if it is sent."""
        now = time.monotonic()
        if now - self._progress_sent_s >= PROGRESS_S:
            self._progress_sent_s = now
            told = loss()
            if told is not None and not math.isfinite(told):
                told = sys.float_info.max
            self.send(TrainingProgress(step, samples, told, total()))

    def send(self, message: Message) -> bool:
        """Send a message; return False if no supervisor is connected."""
        with self._send_lock:
            connection = self._connection
            if connection is None:
                return False
            try:
                connection.sendall(encode(message))
            except OSError:
                with contextlib.suppress(OSError):  # a part may have been sent: the next message begins on a new one
                    connection.shutdown(socket.SHUT_RDWR)
                return False
            return True

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * TICK_S)

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return
        connection.settimeout(TICK_S)
        self._decoder = Decoder()
        with self._send_lock:
            self._connection = connection
        self.send(Hello(self.ident, os.getpid(), self._gang))
        if self._ready is not None:
            self.send(self._ready)

    def _listen(self) -> None:
        while not self._closed:
            connection = self._connection
            if connection is None:
                time.sleep(TICK_S)
                self._connect()
                continue
            try:
                data = connection.recv(65_536)
            except TimeoutError:
                self._tick()
                continue
            except OSError:
                data = b""
            self._tick()
            if not data or not self._take(data):
                with self._send_lock:
                    self._connection = None
                connection.close()

    def _take(self, data: bytes) -> bool:
        """Handle received bytes; return False if the connection cannot continue."""
        for message in self._decoder.feed(data):
            if isinstance(message, ProtocolError):
                self.send(message.answer())
                if message.fatal:
                    return False
                continue
            self._handle(message)
        return True

    def _handle(self, message: Any) -> None:
        match message:
            case FormGroup():
                with self._changed:
                    if self._form is None or message.generation > self._form.generation:
                        self._form = message
                self._end_generations(message.generation - 1)
                self._formed(message.generation)
            case MemberLost():
                self._end_generations(message.generation)
            case StoreAddress():
                with self._changed:
                    self._addresses[message.generation] = message
                    self._changed.notify_all()
            case Prepare() | ResizeGroup() | TuneSettings() | Stop():
                with self._changed:
                    self._commands[message.command] = message
                    self._newest_command = max(self._newest_command, message.command)
                    self._changed.notify_all()
            case Error():
                pass
            case _:
                self.send(Error(f"{type(message).__name__} is not for a rank"))

    def _end_generations(self, up_to: int) -> None:
        with self._changed:
            self._over = max(self._over, up_to)
            self._changed.notify_all()
        self._generation_over(self._over)

    def _tick(self) -> None:
        if self._over:  # a collective of NCCL may have begun while its group was aborted
            self._generation_over(self._over)
        waiting = self._waiting
        if waiting is not None and (for_s := time.monotonic() - waiting[2]) >= TICK_S:
            self.send(Waiting(waiting[0], waiting[1], for_s, waiting[3]))
