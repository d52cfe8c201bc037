"""Starts ranks through a zygote, which is itself started for the first rank and again when it is lost."""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Mapping
from typing import Final

from brim.gang.launch_config import Job
from brim.gang.messages import GANG_VARIABLE
from brim.gang.output import Forwarder
from brim.gang.zygote import is_this_python
from brim.gang.zygote_client import Starter, Word, ZygoteLost

ZYGOTES_MAX: Final = 3
"""Most zygotes that are started for one job. Our choice."""


class OutputError(Exception):
    """The output of a rank cannot be opened; another zygote would not help."""


class Nursery:
    """Asks zygotes for ranks.

    Args:
        job: The job to run.
        env: Environment shared by all ranks.
        selector: The zygote's connection is registered here, with ``self`` as data.
        forwarder: Forwards the stderr of ranks; None if their output goes to files.

    Attributes:
        ready_s: When the present zygote reported that it is ready; None before that.
    """

    def __init__(
        self, job: Job, env: Mapping[str, str], selector: selectors.BaseSelector, forwarder: Forwarder | None
    ) -> None:
        self._job, self._env, self._selector, self._forwarder = job, env, selector, forwarder
        self._starter: Starter | None = None
        self._zygotes = 0
        self.ready_s: float | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a zygote, as far as is known."""
        return self._starter is not None

    @property
    def pid(self) -> int:
        """Process id of the private zygote; 0 if there is none."""
        return (self._starter.pid or 0) if self._starter is not None else 0

    def start(self, number: int, env: Mapping[str, str]) -> None:
        """Request a rank; the answer comes through ``receive``.

        Raises:
            OSError: the zygote has ended, or none can be started.
            OutputError: the rank's output cannot be opened.
        """
        fds: list[int] = []
        try:
            try:
                self._open_streams(number, fds)
            except OSError as error:
                where = f": {error.filename}" if error.filename else ""
                raise OutputError(f"its output cannot be opened: {error.strerror}{where}") from None
            self._the_starter().start(number, self._job.command, env, self._job.cwd, fds)
        finally:
            for fd in fds:
                os.close(fd)

    @property
    def exhausted(self) -> bool:
        """Whether zygotes were lost so often that no other is started."""
        return self._zygotes >= ZYGOTES_MAX

    def receive(self) -> list[Word]:
        """Return the zygote's messages; `ZygoteLost` if there is none. Blocks until a message arrives."""
        return [ZygoteLost()] if self._starter is None else self._starter.receive()

    def drop(self) -> None:
        """Disconnect from the zygote, which then ends its remaining descendants and itself."""
        if self._starter is not None:
            self._selector.unregister(self._starter)
            self._starter.close()
            self._starter = self.ready_s = None

    def _the_starter(self) -> Starter:
        if self._starter is None:
            self._zygotes += 1
            if self._job.zygote is not None:
                self._starter = Starter.shared(self._job.zygote)
            else:
                here = is_this_python(self._job.command[0], self._env)
                self._starter = Starter.private(
                    sys.executable, self._job.preload if here else (), self._env, self._job.cwd, self._job.term_s,
                    f"{GANG_VARIABLE}={self._env[GANG_VARIABLE]}",
                )  # fmt: skip
            self._selector.register(self._starter, selectors.EVENT_READ, self)
        return self._starter

    def _open_streams(self, number: int, fds: list[int]) -> None:
        """Add descriptors for stdin, stdout and stderr. The caller closes them, also when one cannot be opened."""
        fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        if self._forwarder is not None:
            fds.append(os.dup(1))
            fds.append(self._forwarder.add(number))
            return
        assert self._job.log_folder is not None
        os.makedirs(self._job.log_folder, exist_ok=True)
        path = os.path.join(self._job.log_folder, f"rank-{number}.log")
        fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
        fds.append(os.dup(fds[-1]))
