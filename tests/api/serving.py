"""The application on a real Unix socket, served from a thread of the test."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from pathlib import Path

from brim.api.app import create_app
from brim.api.client import Client
from brim.api.serve import SOCKET, bind_unix, make_runtime_folder, server_of


@contextlib.contextmanager
def serving(service, admission, *, shared=False, recognise=lambda token: None, tcp=()):
    """Serve until the end of the block; the value is a client, in a folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="brim-") as name:
        folder = Path(name)
        make_runtime_folder(folder, shared=shared)
        listener = bind_unix(folder / SOCKET, shared=shared)
        server = server_of(create_app(service, admission, recognise))
        thread = threading.Thread(target=asyncio.run, args=[server.serve([listener, *tcp])], daemon=True)
        thread.start()
        try:
            yield Client(folder / SOCKET)
        finally:
            server.should_exit = True
            thread.join(20)
