"""Shuts down the sockets of a library, which are those that were opened during a call of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator


def open_sockets() -> frozenset[int]:
    """Return the inodes of the open sockets of this process; none where there is no /proc."""
    return frozenset(inode for _, inode in _sockets())


def _sockets() -> Iterator[tuple[int, int]]:
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(name), int(target[8:-1])


def shut(inodes: frozenset[int]) -> None:
    """Shut down the connections among these sockets; their owner closes the file descriptors."""
    for number, inode in list(_sockets()):
        if inode not in inodes:
            continue
        try:
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()  # raises OSError for a listening socket
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
