"""Asking a supervisor by hand."""

from __future__ import annotations

import socket

from brim.gang.protocol import Answer, Ask, Decoder, encode


def ask(path: str, message: Ask, timeout_s: float = 10.0) -> Answer:
    """Ask the supervisor that listens there, and wait for its answer.

    Raises:
        OSError: nobody listens there, or does not answer in time.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(path)
        connection.sendall(encode(message))
        decoder = Decoder()
        while data := connection.recv(1 << 16):
            for said in decoder.feed(data):
                if isinstance(said, Answer):
                    return said
                return Answer(ok=False, detail=str(getattr(said, "detail", said)))
    raise ConnectionError(f"{path}: the connection ended without an answer")
