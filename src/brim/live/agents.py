"""What agents have said since they connected: which are there, what they know of attempts, how devices are.

Nothing of this is stored: an agent says it again after every connection. Until an agent has said all it knows
(``synced``), nothing is ordered from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from brim.agent.protocol import FOREIGN, OPEN, QUARANTINED, AttemptSeen

_WORST: Final = (QUARANTINED, FOREIGN, OPEN)


class Agents:
    """The agents of all users, by the number that the kernel gives the user."""

    def __init__(self) -> None:
        self._connected: set[int] = set()
        self._synced: set[int] = set()
        self._lost_ms: dict[int, int] = {}
        self._seen: dict[int, dict[tuple[int, int], AttemptSeen]] = {}
        self._devices: dict[int, dict[int, tuple[str, str]]] = {}  # state and detail, by device and user

    def joined(self, uid: int) -> None:
        """An agent has connected, and says anew what it knows."""
        self._connected.add(uid)
        self._synced.discard(uid)
        self._seen[uid] = {}
        for views in self._devices.values():
            views.pop(uid, None)

    def has_synced(self, uid: int) -> None:
        """An agent has said all that it knew when it connected."""
        if uid in self._connected:
            self._synced.add(uid)

    def lost(self, uid: int, now_ms: int) -> None:
        """The connection to an agent has ended; what it said of devices stands until it comes back."""
        self._lost_ms[uid] = now_ms
        self._connected.discard(uid)
        self._synced.discard(uid)
        self._seen.pop(uid, None)

    def lost_ms(self, uid: int) -> int:
        """When the connection to an agent last ended; 0 if it has not since this controller began."""
        return self._lost_ms.get(uid, 0)

    def is_there(self, uid: int) -> bool:
        """Whether an agent is connected."""
        return uid in self._connected

    def is_synced(self, uid: int) -> bool:
        """Whether an agent is connected and has said what it knows: then it can be given orders."""
        return uid in self._synced

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._synced))

    def note(self, uid: int, seen: AttemptSeen) -> None:
        """Note what an agent says of an attempt."""
        self._seen.setdefault(uid, {})[seen.job, seen.attempt] = seen

    def forget(self, uid: int, job: int, attempt: int) -> None:
        """An attempt has ended, and its agent need not speak of it again."""
        self._seen.get(uid, {}).pop((job, attempt), None)

    def seen(self, uid: int, job: int, attempt: int) -> AttemptSeen | None:
        """What an agent last said of an attempt since it connected; None for nothing."""
        return self._seen.get(uid, {}).get((job, attempt))

    def note_device(self, uid: int, device: int, state: str, detail: str) -> None:
        """Note what an agent says of a device."""
        self._devices.setdefault(device, {})[uid] = (state, detail)

    def device(self, device: int, *, occupied: bool) -> str:
        """State of a device after all that agents say: the worst.

        Args:
            device: Number of the device.
            occupied: Whether an attempt of some user may be there, whose processes are foreign to the other agents.
        """
        said = {state for state, _ in self._devices.get(device, {}).values() if not (occupied and state == FOREIGN)}
        return next((state for state in _WORST if state in said), OPEN)

    def sees_open(self, device: int, *, besides: int) -> bool:
        """Whether an agent that is there, of another user, sees a device open, and nobody sees it otherwise."""
        said = self._devices.get(device, {})
        there = any(uid in self._synced and uid != besides for uid in said)
        return there and all(state == OPEN for state, _ in said.values())
