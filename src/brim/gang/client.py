"""Sends requests to a supervisor."""

from __future__ import annotations

import socket

from brim.gang.codec import Decoder, encode
from brim.gang.messages import Request, Response


def send_request(path: str, request: Request, timeout_s: float = 10.0) -> Response:
    """Send a request to the supervisor that listens on ``path``, and return its response.

    Raises:
        OSError: no supervisor listens there, or it does not respond in time.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(encode(request))
            decoder = Decoder()
            while data := connection.recv(1 << 16):
                for message in decoder.feed(data):
                    if isinstance(message, Response):
                        return message
                    return Response(ok=False, detail=str(getattr(message, "detail", message)))
    except OSError as error:
        raise ConnectionError(f"{path}: {error.strerror or error}; expected the socket of a supervisor") from None
    raise ConnectionError(f"{path}: the connection ended without a response")
