"""Lets a loop of another library stop on request, by a supervisor's socket or by SIGTERM.

After every optimizer step all ranks exchange one small message, so that they all act after the same step on a request
that any of them has received. The message uses a gloo group separate from that of the loop: no GPU waits for it, and
it fails at once if a rank has died.

The number of ranks is fixed: the ``ready`` message says so, and the supervisor then refuses requests to resize.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist

from brim.errors import ConfigError
from brim.gang.messages import PREEMPTED, Error, GroupFormed, Leaving, Prepare, Ready, Saved, Stop, TuneSettings
from brim.train.integrations import manifests
from brim.train.membership.process_end import OnSigterm, on_sigterm, report_exceptions
from brim.train.membership.process_group import BrokenGroupError
from brim.train.membership.supervisor_client import SupervisorClient
from brim.units import counted

_NOT, _STOP, _PREPARE = range(3)
_CODES: Final = {_STOP: 0, _PREPARE: PREEMPTED}
_dist: Any = dist


@dataclass(frozen=True, slots=True)
class Ending:
    """The decision that all ranks save and exit now.

    Attributes:
        command: Number of the supervisor's command; 0 for SIGTERM.
        code: Exit code.
    """

    command: int
    code: int


class Handshake:
    """One rank's part in the agreement to stop. Once it exists, SIGTERM requests a stop."""

    def __init__(self) -> None:
        self._asked = False
        self._formed = 0
        self._group: Any = None
        self._client = SupervisorClient.from_environment()
        if threading.current_thread() is threading.main_thread():
            on_sigterm(self.ask)
        if self._client is not None:
            report_exceptions(self._client)
            self._client.on_form(self._form)
            atexit.register(self._client.close)

    @property
    def rank(self) -> int:
        """This process's rank, from 0."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return dist.get_world_size() if dist.is_initialized() else 1

    def ask(self) -> None:
        """Request a stop, as SIGTERM does."""
        self._asked = True

    def own_sigterm(self) -> None:
        """Replace the current handler of SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, OnSigterm(self.ask, signal.SIG_DFL))

    def begin(self, step: int, resumed: str | None = None) -> None:
        """Report that this rank is ready to train; exit if a stop was requested while it was built.

        Args:
            step: Optimizer steps done.
            resumed: The checkpoint that was loaded, if known.

        Raises:
            ConfigError: the process group has another size than ``WORLD_SIZE``.
        """
        wanted = int(os.environ.get("WORLD_SIZE", "1"))
        if self.size != wanted and "RANK" in os.environ:
            raise ConfigError(f"the process group has {counted(self.size, 'rank')}, but WORLD_SIZE is {wanted}")
        if self.size > 1 and self._group is None:
            self._group = _dist.new_group(backend="gloo")
        before = manifests.ranks_of(resumed) if resumed else None
        if before not in (None, self.size):
            self.say(
                f"{resumed} was written by {counted(before, 'rank')}, this job has {self.size}: batches and bits will "
                "differ"
            )
        if self._client is not None:
            self._client.ready(Ready(self._client.ident, (self.size,)))
        if (ending := self.agree(step)) is not None:
            self.leave(ending, step)

    def agree(self, step: int) -> Ending | None:
        """Return the decision to stop after this step, or None. Every rank must call it after the same step."""
        kind, command = self._wanted()
        if self._group is not None:
            message = torch.tensor([kind, command])
            with self._waiting(step):
                dist.all_reduce(message, dist.ReduceOp.MAX, group=self._group)
            kind, command = message.tolist()
        return None if kind == _NOT else Ending(command, _CODES[kind])

    def progress(self, step: int, samples: int, loss: float | None) -> None:
        """Report progress to the supervisor."""
        if self._client is not None:
            self._client.progress(step, samples, lambda: loss)

    def write_manifest(self, folder: str, step: int) -> None:
        """Wait until all ranks have written their part of a checkpoint, then mark it as complete."""
        self._meet(step)
        if self.rank == 0:
            manifests.write_manifest(folder, step=step, ranks=self.size)
        self._meet(step)

    def leave(self, ending: Ending, step: int, path: str | None = None) -> NoReturn:
        """Report the stop to the supervisor and exit; ``path`` is the verified checkpoint of this step."""
        if self._client is not None:
            if path is not None and self.rank == 0:
                self._client.send(Saved(ending.command, step, os.path.abspath(path)))
            self._client.send(Leaving(ending.command, step))
            self._client.close()
        raise SystemExit(ending.code)

    def gather(self, thing: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""
        if self._group is None:
            return [thing]
        found: list[Any] = [None] * self.size
        _dist.all_gather_object(found, thing, group=self._group)
        return found

    def say(self, text: str) -> None:
        """Write one line to the log, on one rank only."""
        if self.rank == 0:
            sys.stderr.write(f"brim: {text}\n")

    def _wanted(self) -> tuple[int, int]:
        """Return what was requested of this rank: the kind of stop, and the number of the command."""
        kind, number = (_PREPARE if self._asked else _NOT), 0
        for command in self._client.commands(0, self._client.newest_command) if self._client is not None else ():
            if isinstance(command, Prepare | Stop):
                kind = max(kind, _STOP if isinstance(command, Stop) else _PREPARE)
                number = max(number, command.command)
            elif isinstance(command, TuneSettings):
                self._refuse(command)
        return kind, number

    def _refuse(self, command: TuneSettings) -> None:
        assert self._client is not None
        self._client.forget(command.command)
        self._client.send(Error("the batch and the loader of another library's loop cannot be changed while it runs"))

    def _form(self, generation: int) -> None:
        """Accept the supervisor's generation, in the listening thread. The group is torch's own, so none is formed."""
        if self._client is not None and generation > self._formed:
            self._formed = generation
            self._client.send(GroupFormed(generation, 0))

    def _meet(self, step: int) -> None:
        if self._group is not None:
            with self._waiting(step):
                _dist.barrier(group=self._group)

    @contextlib.contextmanager
    def _waiting(self, step: int) -> Iterator[None]:
        if self._client is not None:
            self._client.waiting(self._formed, step)
        try:
            yield
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise BrokenGroupError(f"lost another rank at step {step}; start the job again to resume: {why}") from None
        finally:
            if self._client is not None:
                self._client.not_waiting()
