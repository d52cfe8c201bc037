"""What the parts of a policy remember of earlier rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.engine.answers import Seen, asking, own_memory
from brim.errors import PlanError
from brim.policies.sockets import Policy


def remembered(
    sockets: Sequence[str], snapshot: Snapshot, policy: Policy, new: dict[str, IntArray]
) -> dict[str, Seen]:
    """Ask parts what they newly remember, add it to ``new``, and return the snapshot that each part sees.

    A part with ``remember`` sees in ``memo`` what it has just remembered. The others see what the order part has just
    remembered, (J,) or (J, K) if it remembers K integers per job; 0 if the order part has no ``remember``.
    """
    given = Seen(snapshot)
    if "order" in new:
        given = given.with_memo(new["order"])
    elif policy.declares("order", "remember") and "order" not in sockets:
        given = given.with_memo(stored(policy, "order", snapshot))
    sees = dict.fromkeys(sockets, given)
    for socket in sockets:
        if not policy.declares(socket, "remember"):
            continue
        part = getattr(policy, socket)
        with asking(policy, socket, given):
            before = stored(policy, socket, snapshot)
        sees[socket] = given if before is snapshot.jobs.memo else given.with_memo(before)
        with asking(policy, socket, sees[socket], "remember") as seen:
            after = own_memory(part.remember(seen), len(snapshot.jobs), _columns(policy, socket))
        if not np.array_equal(after, before):
            new[socket] = after
            sees[socket] = given.with_memo(after)
        if socket == "order":  # the first of SOCKETS
            given = sees[socket]
            sees = dict.fromkeys(sockets, given)
    return sees


def _columns(policy: Policy, socket: str) -> int:
    """How many integers per job a part remembers."""
    columns = int(getattr(getattr(policy, socket), "memory_columns", 1))
    if columns < 1:
        raise PlanError(f"memory_columns is {columns}, expected at least 1")
    return columns


def stored(policy: Policy, socket: str, snapshot: Snapshot) -> IntArray:
    """What a part remembered in the last round."""
    return snapshot.memory.of(socket, len(snapshot.jobs), _columns(policy, socket))
