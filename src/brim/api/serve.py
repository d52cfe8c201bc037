"""Serve the application on the Unix socket of a runtime folder, and on TCP of this machine where that was asked for."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI

from brim.api.auth import PeerProtocol
from brim.errors import RefusedError

SOCKET: Final = "api.sock"
BACKLOG: Final = 256
CONNECTIONS_MAX: Final = 2_000
"""Open connections; ours. Above it, an answer is 503."""


def make_runtime_folder(folder: Path, *, shared: bool) -> None:
    """Make the folder of the sockets, which others can pass through only if it is shared.

    Raises:
        RefusedError: it is a link, another user's, or others can write to it.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found, named = os.fstat(fd), os.lstat(folder)
        if (found.st_dev, found.st_ino) != (named.st_dev, named.st_ino):
            raise RefusedError(f"{folder} is a link, expected a folder: remove it, or set BRIM_RUNTIME")
        if found.st_uid != os.getuid():
            raise RefusedError(f"{folder} belongs to user {found.st_uid}: set BRIM_RUNTIME to a folder of your own")
        os.fchmod(fd, 0o711 if shared else 0o700)
    finally:
        os.close(fd)


def bind_unix(path: Path, *, shared: bool) -> socket.socket:
    """Return a socket that listens there, in place of what a controller that was killed has left.

    Args:
        path: Path of the socket, in a folder of this user.
        shared: Whether other users may connect; who they are is checked for every connection.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    mask = os.umask(0o177)  # nobody can connect before the mode is set
    try:
        listener.bind(str(new))
    finally:
        os.umask(mask)
    if shared:
        new.chmod(0o666)
    listener.listen(BACKLOG)
    new.replace(path)
    return listener


def bind_tcp(port: int) -> socket.socket:
    """Return a socket that listens on this machine's own address only; port 0: any that is free."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
    return listener


def is_answered(path: Path) -> bool:
    """Whether a process listens on a Unix socket."""
    if not path.exists() or not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def server_of(app: FastAPI) -> uvicorn.Server:
    """Return a server of the application that knows who connects."""
    return uvicorn.Server(
        uvicorn.Config(
            app, http=PeerProtocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=5, timeout_graceful_shutdown=2,
        )
    )


async def serve(app: FastAPI, listeners: Sequence[socket.socket]) -> None:
    """Serve until SIGTERM or SIGINT."""
    await server_of(app).serve(list(listeners))
