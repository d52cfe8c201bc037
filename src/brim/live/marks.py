"""Which devices are withheld or in quarantine, as agents say, booked in the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from brim.agent.protocol import FOREIGN, OPEN, QUARANTINED
from brim.core.events import Event, Kind
from brim.live.agents import Agents
from brim.live.books import Books

KINDS: Final = {OPEN: Kind.GPU_OPENED, FOREIGN: Kind.GPU_WITHHELD, QUARANTINED: Kind.GPU_QUARANTINED}
"""Event of each state of a device."""


class DeviceMarks:
    """The marks of all devices that are not open.

    Args:
        books: The books of the controller.
        agents: What agents say.
    """

    def __init__(self, books: Books, agents: Agents) -> None:
        self._books, self._agents = books, agents
        self._marks: dict[int, str] = {}

    def recover(self) -> None:
        """Read them from the engine, after a restart."""
        nodes = self._books.scheduler.state.freeze(self._books.now_ms).nodes
        for device in range(int(nodes.gpus[0])) if nodes.withheld.size else ():
            if nodes.withheld[0, device]:
                quarantined = nodes.quarantined.size and nodes.quarantined[0, device]
                self._marks[device] = QUARANTINED if quarantined else FOREIGN

    def left(self, devices: Iterable[int]) -> None:
        """Devices that are open have been left without an event of a job: the policy looks at them anew."""
        for device in devices:
            self._books.scheduler.observe(Event(self._books.now_ms, Kind.GPU_OPENED, node=0, gpu=device))

    def settle(self) -> None:
        """Withhold, quarantine or open devices as agents say."""
        for device in range(self._books.scheduler.state.cluster.num_gpus):
            mark = self._agents.device(device, occupied=bool(self._books.ledger.jobs_on(device)))
            if mark != self._marks.get(device, OPEN):
                self._marks[device] = mark
                self._books.scheduler.observe(Event(self._books.now_ms, KINDS[mark], node=0, gpu=device))
