"""Ports of tests' servers."""

from __future__ import annotations

from brim.gang.environment import port_of, reserve_port


def free_port() -> int:
    """Return a port on which no process listens now."""
    with reserve_port() as reserved:
        return port_of(reserved)
