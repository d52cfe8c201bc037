"""The devices of a node: CPU slots where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from brim.agent.protocol import OPEN, DeviceSeen
from brim.gang.environment import CPU


class Devices(Protocol):
    """What the agent asks of the devices. Nothing here blocks."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names by number, as in `AgentHello`."""
        ...

    def check(self, devices: Sequence[int], answer: Callable[[str], None]) -> None:
        """Check whether an attempt may be started on these; ``answer`` is called, maybe later, with what is wrong."""
        ...

    def seen(self) -> list[DeviceSeen]:
        """Return the state of each."""
        ...

    def pids(self) -> set[int]:
        """Return the processes that it has started."""
        ...

    def poll(self, held: Mapping[int, Collection[int]]) -> None:
        """Look again, if it is time to; ``held`` are the known processes on each device that has an attempt."""
        ...


class CpuSlots:
    """Devices of a machine without GPU: each stands for a part of its cores, and is always healthy.

    Args:
        number: How many.
    """

    def __init__(self, number: int) -> None:
        self._names = tuple(f"{CPU}{slot}" for slot in range(number))

    @property
    def names(self) -> tuple[str, ...]:
        """See `Devices`."""
        return self._names

    def check(self, devices: Sequence[int], answer: Callable[[str], None]) -> None:
        """See `Devices`."""
        answer("")

    def seen(self) -> list[DeviceSeen]:
        """See `Devices`."""
        return [DeviceSeen(device=number, state=OPEN) for number in range(len(self._names))]

    def pids(self) -> set[int]:
        """See `Devices`."""
        return set()

    def poll(self, held: Mapping[int, Collection[int]]) -> None:
        """See `Devices`."""
