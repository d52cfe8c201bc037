"""The edge of a live session as one value: time, processes and disk.

The live driver reads no clock, starts no process and writes no file itself: a ``World`` does. In the real one time
passes by itself and processes are processes; in the one of ``brim.testing.world`` time passes only while the driver
sleeps. Ids, random numbers and the network join the world with the first driver that needs them.
"""

from __future__ import annotations

import time
from typing import Protocol

from brim.core.cluster import Cluster
from brim.engine.journal import Journal, Sink
from brim.engine.trigger import DEFAULT_GAP_MS
from brim.live.driver import LiveDriver, LiveJob
from brim.live.executor import Executor
from brim.policies.sockets import Policy


class World(Protocol):
    """Everything outside a live session that can differ between two runs of it."""

    @property
    def processes(self) -> Executor:
        """Starts, stops and watches processes; its ``wait`` is the only place where a session sleeps."""
        ...

    @property
    def disk(self) -> Sink:
        """Where the journal goes."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since the session began; never goes backwards."""
        ...


class RealWorld:
    """This machine.

    Args:
        processes: Runs the processes.
        disk: File of the journal.
    """

    def __init__(self, processes: Executor, disk: Sink) -> None:
        self.processes, self.disk = processes, disk
        self._start_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        """See ``World``."""
        return (time.monotonic_ns() - self._start_ns) // 1_000_000


def driver_in(
    world: World, cluster: Cluster, policy: Policy, jobs: tuple[LiveJob, ...], *, gap_ms: int = DEFAULT_GAP_MS
) -> LiveDriver:
    """Return a driver of these jobs in a world, to be run with ``world.now_ms`` as its clock.

    Raises:
        RefusedError: live jobs cannot do what the policy does.
        ConfigError: a job asks for more devices than the machine has.
    """
    return LiveDriver(cluster, policy, jobs, world.processes, gap_ms=gap_ms, journal=Journal(world.disk))
