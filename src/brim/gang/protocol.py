"""Messages between a supervisor, its ranks and its clients (docs/decisions/0010-inside-the-job.md).

Each message is one JSON object per line on a Unix stream socket: ``{"v": 1, "type": "form", "epoch": 3, ...}``. In code
it is a frozen dataclass, whose name in lower case is the ``type``. Unknown fields are ignored, so that a newer sender
may add some. An unknown type or a field of the wrong kind is answered with ``error``, and the connection stays open;
another ``v``, or a line that is too long, closes it.

    decoder = Decoder()
    for message in decoder.feed(connection.recv(65536)):
        match message:
            case Form(epoch=epoch, members=members): ...
            case ProtocolError(): connection.sendall(encode(message.answer()))

Rules that the fields do not show:

- A rank connects to ``$BRIM_CONTROL``. It sends ``hello`` with ``$BRIM_ID`` at once, and ``ready`` when it can join an
  epoch. A rank that never sends ``hello`` is a plain command: it gets SIGTERM instead of ``prepare``.
- The numbers of epochs and commands only grow. A message with a higher epoch replaces those with a lower one, also
  while a rank waits for an ``address`` or for other ranks to join.
- A rank acts on ``form`` at once: if it is still in an older group, it undoes its step and leaves that group. The
  supervisor sends ``form`` at the start, to new ranks, after ``broken``, and when a rank is lost while an epoch forms.
  A rank acts on ``resize`` at the agreed step; it goes to the ranks that stay in a planned change. Both carry the same
  epoch, members and leader. A rank that gets one without its own id sends ``leaving`` and exits with 0. The same epoch
  may be sent twice, and is formed once.
- A rank also acts on ``lost`` at once: if it is in a group of that epoch, or of an older one, it aborts the group,
  undoes its step and sends ``broken``. A rank whose collective has failed by then has sent ``broken`` already.
- ``leader`` is a rank that holds the state, if there is one. Its ``address`` is forwarded to the other members only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias, get_type_hints

VERSION: Final = 1
CONTROL_VARIABLE: Final = "BRIM_CONTROL"
"""Environment: path of the supervisor's socket."""
ID_VARIABLE: Final = "BRIM_ID"
"""Environment: the rank's id, which is never used twice in a gang. Its place in the group is another number."""
GANG_VARIABLE: Final = "BRIM_GANG"
"""Environment: the gang's id, in every process of the gang."""
LINE_BYTES_MAX: Final = 1 << 20
"""Longest line that a peer may send. Our choice: a traceback of a deep recursion with long lines is 100 kB."""
RESUMABLE: Final = frozenset({75, 85, 99})
"""Exit codes that ask for a resume after an announced stop: EX_TEMPFAIL, and two that training scripts use on Slurm."""
PREEMPTED: Final = 75
"""Exit code of a job that was stopped on request before its end."""


@dataclass(frozen=True, slots=True)
class Form:
    """Supervisor to rank: form the process group of this epoch. ``members`` are ids in rank order."""

    epoch: int
    members: tuple[int, ...]
    leader: int
    command: int


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the leader's store of this epoch: from the leader, and forwarded to the other members."""

    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Supervisor to rank: a member of this epoch has ended, so its collectives cannot complete."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Supervisor to rank: save the state and leave within ``deadline_s``. ``new_size`` 0: all ranks leave."""

    command: int
    deadline_s: float
    new_size: int = 0


@dataclass(frozen=True, slots=True)
class Resize:
    """Supervisor to rank: at the agreed step, the members form the epoch and the other ranks leave."""

    command: int
    epoch: int
    members: tuple[int, ...]
    leader: int


@dataclass(frozen=True, slots=True)
class Tune:
    """Supervisor to rank: change the given settings at the agreed step."""

    command: int
    global_batch: int | None = None
    loader_workers: int | None = None
    prefetch: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Supervisor to rank: finish the step, save, and exit with 0."""

    command: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Rank: connected. ``id`` is ``$BRIM_ID``, ``gang`` is ``$BRIM_GANG``.

    A rank whose supervisor was killed may reach another supervisor on the same path; ``gang`` lets that one refuse it.
    """

    id: int
    pid: int
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """Rank: imports are done and the model is built. ``sizes`` are the possible numbers of ranks; empty: any."""

    id: int
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Formed:
    """Rank: joined the group of this epoch with the common state.

    ``step`` is the next step, ``tuned`` the number of the newest `Tune` that has been applied.
    """

    epoch: int
    step: int
    took_s: float = 0.0
    tuned: int = 0


@dataclass(frozen=True, slots=True)
class Broken:
    """Rank: a collective failed; the rank has destroyed the group and undone the step."""

    epoch: int
    step: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """Rank: a checkpoint was verified and published. ``command`` 0: a periodic one, not requested by a command."""

    command: int
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """Rank: about to exit after an announced stop, or because it is not in the new epoch."""

    command: int
    step: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Rank: progress of training, at most once a second."""

    step: int
    samples: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rank: its main thread has been inside a collective of this step for ``for_s``.

    The listening thread sends it about every second, from the first second on. A rank that is not waiting while all
    others are hangs; ranks that wait for different things (``what``) or in different steps would wait for ever.
    """

    epoch: int
    step: int
    for_s: float
    what: str = "step"


@dataclass(frozen=True, slots=True)
class Finished:
    """Rank: its training has ended after ``step`` steps. ``together``: all ranks had done the last one by then."""

    step: int
    together: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Rank: measurements, sent when the configuration or the estimate changes."""

    step: int
    local_batch: int
    step_s: float
    sync_s: float | None = None
    loader_wait_s: float | None = None
    gradient_noise: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Rank: the user's exception, as Python would print it."""

    traceback: str


@dataclass(frozen=True, slots=True)
class Error:
    """Either side: a message could not be used."""

    detail: str


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Client: return the status of the gang."""


@dataclass(frozen=True, slots=True)
class AskResize:
    """Client: change the number of ranks to ``size``."""

    size: int


@dataclass(frozen=True, slots=True)
class AskPreempt:
    """Client: save and stop all ranks, within ``grace_s`` if given."""

    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class AskStop:
    """Client: finish the step, save, and exit with 0."""


@dataclass(frozen=True, slots=True)
class AskKill:
    """Client: send SIGKILL to the rank with this id, and to all processes it has started, without notice."""

    id: int


@dataclass(frozen=True, slots=True)
class AskTune:
    """Client: change the given settings."""

    global_batch: int | None = None
    loader_workers: int | None = None
    prefetch: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Supervisor to client. ``status`` is set for ``ask_status``: see ``Supervisor.status``."""

    ok: bool
    detail: str = ""
    status: dict[str, Any] | None = None


Message: TypeAlias = (
    Form | Address | Lost | Prepare | Resize | Tune | Stop
    | Hello | Ready | Formed | Broken | Saved | Leaving | Progress | Waiting | Finished | Measured | Failed | Error
    | AskStatus | AskResize | AskPreempt | AskStop | AskKill | AskTune | Answer
)  # fmt: skip
Ask: TypeAlias = AskStatus | AskResize | AskPreempt | AskStop | AskKill | AskTune


class ProtocolError(ValueError):
    """A line that is not a valid message. If ``fatal``, the rest of the connection cannot be trusted: close it."""

    def __init__(self, detail: str, *, fatal: bool = False) -> None:
        super().__init__(detail)
        self.detail, self.fatal = detail, fatal

    def answer(self) -> Error:
        """Return the message for the sender."""
        return Error(self.detail)


def _type_name(kind: type) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")


_KINDS: Final[dict[str, type[Message]]] = {_type_name(kind): kind for kind in Message.__args__}
_NAMES: Final[dict[type, str]] = {kind: name for name, kind in _KINDS.items()}
_HINTS: Final[dict[type, dict[str, Any]]] = {kind: get_type_hints(kind) for kind in _NAMES}


def encode(message: Message) -> bytes:
    """Return the message as one line. A number that is not finite (a diverged loss) is sent as null."""
    plain: dict[str, Any] = {"v": VERSION, "type": _NAMES[type(message)]}
    for field in fields(message):
        value = getattr(message, field.name)
        plain[field.name] = None if isinstance(value, float) and not math.isfinite(value) else value
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message in one line.

    Raises:
        ProtocolError: the line is not a valid message; the text says what was found and what was expected.
    """
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError(f"found {_shown(line)}, expected one JSON object per line") from None
    if not isinstance(plain, dict):
        raise ProtocolError(f"found {_shown(line)}, expected a JSON object")
    if plain.get("v") != VERSION or isinstance(plain["v"], bool):
        found = _shown(plain.get("v", "none"))
        raise ProtocolError(f"found protocol version {found}, expected {VERSION}: brim's versions differ", fatal=True)
    name = plain.get("type")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError(f"found type {_shown(name)}, expected one of: {', '.join(_KINDS)}")
    return _build(kind, plain)


class Decoder:
    """Splits a stream of bytes into messages. Use one per connection; an incomplete line waits for its rest."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._closed = False

    def feed(self, data: bytes) -> Iterator[Message | ProtocolError]:
        """Yield the complete messages in order, and an error for each invalid line; nothing after a fatal error."""
        self._rest += data
        while not self._closed and (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            if not line.strip():
                continue
            try:
                yield decode(line)
            except ProtocolError as error:
                self._closed = error.fatal
                yield error
        if not self._closed and len(self._rest) > LINE_BYTES_MAX:
            self._closed = True
            yield ProtocolError(f"found a line of over {LINE_BYTES_MAX} bytes, expected at most that", fatal=True)
        if self._closed:
            self._rest.clear()


def _build(kind: type[Message], plain: dict[str, Any]) -> Message:
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in plain:
            hint = _HINTS[kind][field.name]
            try:
                values[field.name] = _checked(hint, plain[field.name])
            except TypeError:
                found, wanted = _shown(plain[field.name]), getattr(hint, "__name__", str(hint))
                what = f"{_NAMES[kind]}.{field.name}"
                raise ProtocolError(f"{what}: found {found}, expected {wanted}") from None
    try:
        return kind(**values)
    except TypeError:
        missing = [field.name for field in fields(kind) if field.name not in values]
        raise ProtocolError(f"{_NAMES[kind]}: found no {', '.join(missing)}, expected it") from None


def _checked(hint: Any, value: Any) -> Any:
    """Return the value converted to the type of its field."""
    if value is None and type(None) in getattr(hint, "__args__", ()):
        return None
    options = getattr(hint, "__args__", ()) if not isinstance(hint, type) else (hint,)
    if hint in (int, float, str, bool):
        options = (hint,)
    if hint == tuple[int, ...] and isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    if float in options and type(value) is int:
        return float(value)
    if type(value) in options or (type(value) is dict and dict[str, Any] in (*options, hint)):
        return value
    raise TypeError


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
