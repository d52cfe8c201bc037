"""Messages between a supervisor, its ranks, and whoever controls it by hand (docs/decisions/0010-inside-the-job.md).

One JSON object per line on a Unix stream socket: ``{"v": 1, "type": "form", "epoch": 3, ...}``. A message is a frozen
dataclass; its name in small letters is its ``type``. Unknown fields are ignored, so that a newer sender may say more.
An unknown type or a field of the wrong kind is answered with ``error`` and the connection goes on; another ``v``, or a
line without end, closes it.

    decoder = Decoder()
    for message in decoder.feed(connection.recv(65536)):
        match message:
            case Form(epoch=epoch, members=members): ...
            case ProtocolError(): connection.sendall(encode(message.answer()))

Rules that the words alone do not say:

- A rank connects to ``$BRIM_CONTROL``, says ``hello`` with ``$BRIM_ID`` at once, ``ready`` when it could be put into
  an epoch. A rank that never says ``hello`` is a plain command: it gets SIGTERM instead of ``prepare``.
- Epochs and commands only grow. Whatever names a higher epoch takes the place of what named a lower one, also while a
  rank waits for an ``address`` or for others to join.
- ``form`` is acted on at once: whoever still is in an older group leaves it, its step undone. It comes at the start, to
  newcomers, after ``broken``, and when a rank is lost while an epoch forms. ``resize`` is acted on at the agreed step;
  it comes to survivors of a planned change. Both name the same epoch, members and leader. Who gets one that does not
  list it says ``leaving`` and exits with 0. The same epoch may be told twice, and is formed once.
- ``lost`` is acted on at once, too: a rank in a group of that epoch, or of an older one, aborts it, undoes its step and
  says ``broken``. A rank whose collective has failed by then has said ``broken`` already.
- ``leader`` is a rank that holds the state, where there is one. Its ``address`` is passed on to the other members only.
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
"""Environment: the rank's id, never used twice in a gang; not its place in the group, which changes."""
GANG_VARIABLE: Final = "BRIM_GANG"
"""Environment: marks every process of one gang."""
LINE_BYTES_MAX: Final = 1 << 20
"""Longest line a peer may send. Ours: a traceback of a deep recursion with long lines is 100 kB."""
RESUMABLE: Final = frozenset({75, 85, 99})
"""Exit codes that mean "resume me" after an announced stop: EX_TEMPFAIL, and two that training scripts use on Slurm."""
PREEMPTED: Final = 75
"""Exit code of a job that was stopped by an announced stop and is not over."""


@dataclass(frozen=True, slots=True)
class Form:
    """Supervisor to rank: become the process group of this epoch. ``members`` are ids in rank order."""

    epoch: int
    members: tuple[int, ...]
    leader: int
    command: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where the leader's store of this epoch is: from the leader, and passed on to the other members."""

    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Supervisor to rank: a member of this epoch is gone, so its collectives cannot complete."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Supervisor to rank: save what is needed and leave within ``deadline_s``. ``new_size`` 0: all leave."""

    command: int
    deadline_s: float
    new_size: int = 0


@dataclass(frozen=True, slots=True)
class Resize:
    """Supervisor to rank: at the agreed step, who is listed forms the epoch, the others leave."""

    command: int
    epoch: int
    members: tuple[int, ...]
    leader: int


@dataclass(frozen=True, slots=True)
class Tune:
    """Supervisor to rank: change what is given, at the agreed step."""

    command: int
    global_batch: int | None = None
    loader_workers: int | None = None
    prefetch: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Supervisor to rank: finish the step, save, exit 0."""

    command: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Rank: the connection is made. ``id`` is ``$BRIM_ID``, ``gang`` is ``$BRIM_GANG``.

    A rank whose supervisor was killed may find its next one on the same path; the gang says that it is none of its.
    """

    id: int
    pid: int
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """Rank: imported and built. ``sizes`` lists the numbers of ranks the job can run on; empty: any."""

    id: int
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Formed:
    """Rank: in the group of this epoch, state equal, next step is ``step``, newest `Tune` taken up is ``tuned``."""

    epoch: int
    step: int
    took_s: float = 0.0
    tuned: int = 0


@dataclass(frozen=True, slots=True)
class Broken:
    """Rank: a collective failed; the group is destroyed, the step undone."""

    epoch: int
    step: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """Rank: a checkpoint was verified and published. ``command`` 0: of its own accord."""

    command: int
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """Rank: about to exit after an announced stop, or since the new epoch is without it."""

    command: int
    step: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Rank: once a second at most."""

    step: int
    samples: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rank: its main thread has been inside a collective of this step for ``for_s``.

    Said by the listening thread, about every second from the first second on. A rank that is not waiting while all
    others are hangs; ranks that wait for different things (``what``) or in different steps wait for ever.
    """

    epoch: int
    step: int
    for_s: float
    what: str = "step"


@dataclass(frozen=True, slots=True)
class Finished:
    """Rank: its script has ended after so many steps; ``together``: all ranks had done the last one by then."""

    step: int
    together: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Rank: when the configuration or the estimate changes."""

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
    """Either side: what was received could not be used."""

    detail: str


@dataclass(frozen=True, slots=True)
class AskStatus:
    """By hand: answer what the gang looks like."""


@dataclass(frozen=True, slots=True)
class AskResize:
    """By hand: run on ``size`` ranks."""

    size: int


@dataclass(frozen=True, slots=True)
class AskPreempt:
    """By hand: save and leave, within ``grace_s`` where given."""

    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class AskStop:
    """By hand: finish the step, save, exit 0."""


@dataclass(frozen=True, slots=True)
class AskKill:
    """By hand: SIGKILL the rank with this id, and all it has started, without notice."""

    id: int


@dataclass(frozen=True, slots=True)
class AskTune:
    """By hand: change what is given."""

    global_batch: int | None = None
    loader_workers: int | None = None
    prefetch: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Supervisor to who asked. ``status`` is set for ``ask_status``: see ``Supervisor.status``."""

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
    """A line that is no message. ``fatal``: nothing that follows on this connection can be trusted; close it."""

    def __init__(self, detail: str, *, fatal: bool = False) -> None:
        super().__init__(detail)
        self.detail, self.fatal = detail, fatal

    def answer(self) -> Error:
        """What the sender is told."""
        return Error(self.detail)


def _type_name(kind: type) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")


_KINDS: Final[dict[str, type[Message]]] = {_type_name(kind): kind for kind in Message.__args__}
_NAMES: Final[dict[type, str]] = {kind: name for name, kind in _KINDS.items()}
_HINTS: Final[dict[type, dict[str, Any]]] = {kind: get_type_hints(kind) for kind in _NAMES}


def encode(message: Message) -> bytes:
    """The message as one line. A number that is not finite (a diverged loss) is sent as null."""
    plain: dict[str, Any] = {"v": VERSION, "type": _NAMES[type(message)]}
    for field in fields(message):
        value = getattr(message, field.name)
        plain[field.name] = None if isinstance(value, float) and not math.isfinite(value) else value
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in one line.

    Raises:
        ProtocolError: it is none; the text says what was found and what was expected.
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
    """Cuts a stream of bytes into messages. One per connection; half a line waits for its other half."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._closed = False

    def feed(self, data: bytes) -> Iterator[Message | ProtocolError]:
        """Yield what is complete, in order; a line that is no message as the error. Nothing after a fatal one."""
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
    """The value as the field wants it, for the few kinds that messages are made of."""
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
