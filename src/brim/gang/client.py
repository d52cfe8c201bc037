"""Sends requests to a supervisor."""

from __future__ import annotations

import math
import socket

from brim.gang.codec import Decoder, encode
from brim.gang.messages import Message, PreemptRequest, Request, Response, TuneRequest


def ask(path: str, message: Request, timeout_s: float = 10.0) -> Response:
    """Send a request to the supervisor that listens on ``path``, and return its answer.

    Raises:
        OSError: no supervisor listens there, or it does not answer in time.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(encode(message))
            decoder = Decoder()
            while data := connection.recv(1 << 16):
                for said in decoder.feed(data):
                    if isinstance(said, Response):
                        return said
                    return Response(ok=False, detail=str(getattr(said, "detail", said)))
    except OSError as error:
        raise ConnectionError(f"{path}: {error.strerror or error}; expected the socket of a supervisor") from None
    raise ConnectionError(f"{path}: the connection ended without an answer")


def why_senseless(message: Message) -> str:
    """Return why the request is invalid; an empty text if it is valid."""
    match message:
        case PreemptRequest(grace_s=float(grace_s)) if not 0 <= grace_s < math.inf:
            return f"preempt: found {grace_s:g} s, expected a finite time of at least 0"
        case TuneRequest():
            for name, least in (("global_batch", 1), ("loader_workers", 0), ("prefetch", 1)):
                found = getattr(message, name)
                if found is not None and found < least:
                    return f"tune: found {name} {found}, expected at least {least}"
    return ""
