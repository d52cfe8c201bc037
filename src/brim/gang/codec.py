"""Messages as lines of JSON: ``{"v": 1, "type": "form_group", "generation": 3, ...}``.

The ``type`` is the name of the message's class in snake case. Unknown fields are ignored, so that a newer sender may
add some. An unknown type or a field of the wrong kind is answered with ``error``, and the connection stays open;
another ``v``, or a line that is too long, closes it.

    decoder = Decoder()
    for message in decoder.feed(connection.recv(65536)):
        match message:
            case FormGroup(generation=generation, members=members): ...
            case ProtocolError(): connection.sendall(encode(message.answer()))

``Codec`` does the same for the messages of another protocol; ``encode``, ``decode`` and ``Decoder`` are the gang's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final, Generic, TypeVar, get_type_hints

from brim.gang.messages import Error, Message

VERSION: Final = 1
LINE_BYTES_MAX: Final = 1 << 20
"""Longest line that a peer may send. Our choice: a traceback of a deep recursion with long lines is 100 kB."""


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


M = TypeVar("M")


class Codec(Generic[M]):
    """Writes and reads the messages of one protocol.

    Args:
        kinds: The classes of its messages: frozen dataclasses whose fields are numbers, texts, booleans, dicts of them,
            tuples of whole numbers or of texts, or None where the type says so.

    Attributes:
        kinds: The classes, by the name in ``type``.
        hints: The types of their fields.
    """

    def __init__(self, *kinds: type[M]) -> None:
        self.kinds = {_type_name(kind): kind for kind in kinds}
        self._names: dict[type, str] = {kind: name for name, kind in self.kinds.items()}
        self.hints: dict[type, dict[str, Any]] = {kind: get_type_hints(kind) for kind in kinds}

    def encode(self, message: M) -> bytes:
        """Return the message as one line. A number that is not finite (a diverged loss) is sent as null."""
        plain: dict[str, Any] = {"v": VERSION, "type": self._names[type(message)]}
        for field in fields(message):  # type: ignore[arg-type]  # every kind is a dataclass
            value = getattr(message, field.name)
            plain[field.name] = None if isinstance(value, float) and not math.isfinite(value) else value
        return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    def decode(self, line: bytes) -> M:
        """Return the message in one line.

        Raises:
            ProtocolError: the line is not a valid message; the text says what was found and what was expected.
        """
        try:
            plain = json.loads(line, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError):
            raise ProtocolError(f"found {_shown(line)}, expected one JSON object of finite numbers per line") from None
        if not isinstance(plain, dict):
            raise ProtocolError(f"found {_shown(line)}, expected a JSON object")
        if plain.get("v") != VERSION or isinstance(plain["v"], bool):
            found = _shown(plain.get("v", "none"))
            raise ProtocolError(
                f"found protocol version {found}, expected {VERSION}: brim's versions differ", fatal=True
            )
        name = plain.get("type")
        kind = self.kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ProtocolError(f"found type {_shown(name)}, expected one of: {', '.join(self.kinds)}")
        return self._build(kind, plain)

    def decoder(self) -> LineDecoder[M]:
        """Return a decoder for one connection."""
        return LineDecoder(self)

    def _build(self, kind: type[M], plain: dict[str, Any]) -> M:
        values: dict[str, Any] = {}
        for name, hint in self.hints[kind].items():
            if name in plain:
                try:
                    values[name] = _checked(hint, plain[name])
                except TypeError:
                    found, wanted = _shown(plain[name]), getattr(hint, "__name__", str(hint))
                    what = f"{self._names[kind]}.{name}"
                    raise ProtocolError(f"{what}: found {found}, expected {wanted}") from None
        try:
            return kind(**values)
        except TypeError:
            missing = [name for name in self.hints[kind] if name not in values]
            raise ProtocolError(f"{self._names[kind]}: found no {', '.join(missing)}, expected it") from None


class LineDecoder(Generic[M]):
    """Splits a stream of bytes into messages. Use one per connection; an incomplete line waits for its rest."""

    def __init__(self, codec: Codec[M]) -> None:
        self._codec = codec
        self._rest = bytearray()
        self._closed = False

    def feed(self, data: bytes) -> Iterator[M | ProtocolError]:
        """Yield the complete messages in order, and an error for each invalid line; nothing after a fatal error."""
        self._rest += data
        while not self._closed and (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            if not line.strip():
                continue
            try:
                yield self._codec.decode(line)
            except ProtocolError as error:
                self._closed = error.fatal
                yield error
        if not self._closed and len(self._rest) > LINE_BYTES_MAX:
            self._closed = True
            yield ProtocolError(f"found a line of over {LINE_BYTES_MAX} bytes, expected at most that", fatal=True)
        if self._closed:
            self._rest.clear()


def _checked(hint: Any, value: Any) -> Any:
    """Return the value converted to the type of its field."""
    if value is None and type(None) in getattr(hint, "__args__", ()):
        return None
    options = getattr(hint, "__args__", ()) if not isinstance(hint, type) else (hint,)
    if hint in (int, float, str, bool):
        options = (hint,)
    for item, items in ((int, tuple[int, ...]), (str, tuple[str, ...])):
        if hint == items and isinstance(value, list) and all(type(each) is item for each in value):
            return tuple(value)
    if float in options and type(value) is int:
        return float(value)
    if type(value) in options or (type(value) is dict and dict[str, Any] in (*options, hint)):
        return value
    raise TypeError


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_GANG: Final[Codec[Message]] = Codec(*Message.__args__)
encode: Final = _GANG.encode
decode: Final = _GANG.decode


class Decoder(LineDecoder[Message]):
    """A decoder of the messages between a supervisor, its ranks and its clients."""

    def __init__(self) -> None:
        super().__init__(_GANG)
