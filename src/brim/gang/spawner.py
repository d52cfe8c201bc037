"""Starts ranks through a zygote, which is itself started for the first rank and again when it is lost.

One that is shared ends with whoever has started it; a private one then takes its place.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Mapping
from typing import Final

from brim.gang.fork_safety import is_this_python
from brim.gang.launch_config import LaunchConfig
from brim.gang.stderr_forwarder import StderrForwarder
from brim.gang.zygote_client import ZygoteClient
from brim.gang.zygote_events import ProcessStarted, ZygoteEvent, ZygoteLost

ZYGOTES_MAX: Final = 3
"""Most zygotes that are started one after the other without a rank from any. Our choice."""
EXHAUSTED: Final = f"{ZYGOTES_MAX} ended before they had started a rank"
"""Detail of the error when no more are tried."""


class OutputError(Exception):
    """The output of a rank cannot be opened; another zygote would not help."""


class RankSpawner:
    """Requests ranks from a zygote.

    Args:
        config: What to launch.
        env: Environment shared by all ranks.
        selector: The zygote's connection is registered here, with the spawner as data.
        forwarder: Forwards the stderr of ranks; None if their output goes to files.

    Attributes:
        ready_s: When the present zygote reported that it is ready; None before that.
        is_private: Whether the zygote is a child of this process.
    """

    def __init__(
        self,
        config: LaunchConfig,
        env: Mapping[str, str],
        selector: selectors.BaseSelector,
        forwarder: StderrForwarder | None,
    ) -> None:
        self._config, self._env, self._selector, self._forwarder = config, env, selector, forwarder
        self._zygote: ZygoteClient | None = None
        self._zygotes_started = 0
        self.ready_s: float | None = None
        self.is_private = config.zygote is None

    @property
    def connected(self) -> bool:
        """Whether there is a zygote, as far as is known."""
        return self._zygote is not None

    @property
    def zygote_pid(self) -> int:
        """Process id of the private zygote; 0 if there is none."""
        return (self._zygote.pid or 0) if self._zygote is not None else 0

    @property
    def exhausted(self) -> bool:
        """Whether as many as are tried were started since the last rank."""
        return self._zygotes_started >= ZYGOTES_MAX

    def start(self, rank: int, env: Mapping[str, str]) -> None:
        """Request a rank; the answer comes through ``receive``.

        Raises:
            OSError: the zygote has ended, or none can be started, or as many as are tried started no rank.
            OutputError: the rank's output cannot be opened.
        """
        fds: list[int] = []
        try:
            try:
                self._open_streams(rank, fds)
            except OSError as error:
                where = f": {error.filename}" if error.filename else ""
                raise OutputError(f"its output cannot be opened: {error.strerror}{where}") from None
            self._connect().start(
                rank, self._config.command, env, self._config.cwd, fds, self._config.inherits, self._config.cgroup
            )
        except ConnectionError:  # the zygote has ended
            if self.exhausted:
                raise OSError(EXHAUSTED) from None
            raise
        finally:
            for fd in fds:
                os.close(fd)

    def receive(self) -> list[ZygoteEvent]:
        """Return the zygote's messages; `ZygoteLost` if there is none. Blocks until a message arrives."""
        events: list[ZygoteEvent] = [ZygoteLost()] if self._zygote is None else self._zygote.receive()
        if any(isinstance(event, ProcessStarted) for event in events):
            self._zygotes_started = 0
        return events

    def disconnect(self) -> None:
        """Disconnect from the zygote, which then ends its remaining descendants and itself."""
        if self._zygote is not None:
            self._selector.unregister(self._zygote)
            self._zygote.close()
            self._zygote = self.ready_s = None

    def _connect(self) -> ZygoteClient:
        if self._zygote is None:
            if self.exhausted:
                raise OSError(EXHAUSTED)
            self._zygotes_started += 1
            self._zygote = self._shared() or self._private()
            self._selector.register(self._zygote, selectors.EVENT_READ, self)
        return self._zygote

    def _shared(self) -> ZygoteClient | None:
        if self.is_private or self._config.zygote is None:
            return None
        try:
            return ZygoteClient.shared(self._config.zygote)
        except OSError:  # it has ended with its agent
            self.is_private = True
            return None

    def _private(self) -> ZygoteClient:
        preload = self._config.preload if is_this_python(self._config.command[0], self._env) else ()
        return ZygoteClient.private(sys.executable, preload, self._env, self._config.cwd, self._config.term_s)

    def _open_streams(self, rank: int, fds: list[int]) -> None:
        """Add descriptors for stdin, stdout and stderr. The caller closes them, also when one cannot be opened."""
        fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        if self._forwarder is not None:
            fds.append(os.dup(1))
            fds.append(self._forwarder.add(rank))
            return
        assert self._config.log_folder is not None
        os.makedirs(self._config.log_folder, 0o700, exist_ok=True)
        path = os.path.join(self._config.log_folder, f"rank-{rank}.log")
        fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        fds.append(os.dup(fds[-1]))
