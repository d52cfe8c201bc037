"""A process group of one membership epoch: made quickly, bounded in time, ended at once from any thread.

The back-ends of ``torch.distributed`` are used directly, beside the default group that the user's script may have.

A gloo collective whose peer is gone or hung cannot be called back (``abort`` does not wake it). What does wake it is
the end of its sockets: so a group remembers which sockets came into being while it was made, and `Group.abort` shuts
them down. The peers' collectives fail too, and the whole group is free within milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from brim.errors import BrimError
from brim.gang.protocol import CONTROL_VARIABLE

LOOPBACK: Final = "127.0.0.1"
HOST_VARIABLE: Final = "BRIM_HOST"
"""Environment: address of this node as other nodes reach it, where a gang spans nodes."""

BACKEND_VARIABLE: Final = "BRIM_BACKEND"
"""Environment: "gloo" sends what lies on GPUs through host memory, where several ranks share a GPU, say."""

CLEAN_UP_ONLY: Final = "2"
"""For NCCL's watchdog: a collective that has failed is ended, the process is not (ErrorHandlingMode of PyTorch)."""

POLL_S: Final = 0.02
"""How often a wait looks up whether it is still wanted."""

_c10d: Any = dist  # its typed exports leave out what is used here

_devices: dict[tuple[int, str], Any] = {}


class BrokenGroupError(BrimError):
    """A collective failed or ran out of time: a member is gone or hung. The group cannot be used any more."""


class Work:
    """A transfer in flight; failures come as `BrokenGroupError`."""

    __slots__ = ("_work",)

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        """Return when it is complete (with NCCL: once the current stream will wait for it)."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise BrokenGroupError(_first_line(error)) from None


class Group:
    """Ranks 0 to ``size`` - 1 of one epoch.

    Args:
        store: Where the members meet; nothing else uses it.
        rank: Own place.
        size: Number of members.
        epoch: Membership epoch; keys in the store carry it.
        device: Where the tensors to be exchanged lie.
        timeout_s: After this a collective fails.
        sockets: Inodes of all sockets that were open before the store was opened.
    """

    def __init__(
        self, store: Any, rank: int, size: int, *, epoch: int, device: torch.device, timeout_s: float,
        sockets: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.rank, self.size, self.epoch, self.device = rank, size, epoch, device
        self.nccl = device.type == "cuda" and dist.is_nccl_available() and os.environ.get(BACKEND_VARIABLE) != "gloo"
        self._before = sockets
        self._sockets: frozenset[int] | None = None
        self._aborted = False
        self.store: Any = _c10d.PrefixStore(f"brim/{epoch}", store)
        self._backend: Any = None
        make = self._make_nccl if self.nccl else self._make_gloo
        try:
            self._backend = make(_c10d.PrefixStore("group", self.store), timeout_s)
        except RuntimeError as error:
            self.abort()
            raise BrokenGroupError(f"epoch {epoch} did not form: {_first_line(error)}") from None
        self._sockets = open_sockets() - self._before

    def _make_gloo(self, store: Any, timeout_s: float) -> Any:
        options = _c10d.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._threads = 2
        options._devices = [_device(os.environ.get(HOST_VARIABLE, LOOPBACK))]
        return _c10d.ProcessGroupGloo(store, self.rank, self.size, options)

    def _make_nccl(self, store: Any, timeout_s: float) -> Any:
        torch.cuda.set_device(self.device)
        if CONTROL_VARIABLE in os.environ:  # who ends a group, ends its collectives, not the process
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", CLEAN_UP_ONLY)
        options = _c10d.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return _c10d.ProcessGroupNCCL(store, self.rank, self.size, options)

    @property
    def aborted(self) -> bool:
        """Whether somebody has ended the group."""
        return self._aborted

    def abort(self) -> None:
        """End the group: every collective under way fails, here and at the peers. From any thread, more than once."""
        self._aborted = True
        ours = self._sockets if self._sockets is not None else open_sockets() - self._before
        shut(ours)
        if self.nccl and self._backend is not None:
            for name in ("abort", "_abort"):  # the name has changed between releases
                if hasattr(self._backend, name):
                    with contextlib.suppress(RuntimeError):  # the listening thread goes on
                        getattr(self._backend, name)()
                    return

    def close(self) -> None:
        """`abort`, and give everything back. Only the thread that made the group."""
        self.abort()
        self._backend = None
        self.store = None

    def _begin(self, call: Callable[[], Any]) -> Work:
        if self._aborted:
            raise BrokenGroupError(f"the group of epoch {self.epoch} has ended")
        try:
            return Work(call())
        except RuntimeError as error:
            raise BrokenGroupError(_first_line(error)) from None

    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        """Begin to send."""
        return self._begin(lambda: self._backend.send([tensor], to, tag))

    def recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        """Begin to fill."""
        return self._begin(lambda: self._backend.recv([tensor], source, tag))

    def all_reduce(self, vector: Tensor) -> Work:
        """Sum over all ranks in place, in the framework's own order."""
        return self._begin(lambda: self._backend.allreduce([vector]))

    def all_to_all(self, out: Tensor, vector: Tensor) -> Work:
        """Chunk p of ``vector`` goes to rank p; chunk p of ``out`` comes from rank p."""
        return self._begin(lambda: self._backend.alltoall_base(out, vector, [], []))

    def all_gather(self, out: Tensor, chunk: Tensor) -> Work:
        """Chunk p of ``out`` comes from rank p."""
        return self._begin(lambda: self._backend._allgather_base(out, chunk))

    def share(self, numbers: list[int]) -> list[list[int]]:
        """Everybody's numbers, in rank order; also a barrier."""
        mine = torch.tensor(numbers, dtype=torch.int64, device=self.device if self.nccl else "cpu")
        out = torch.empty(self.size * len(numbers), dtype=torch.int64, device=mine.device)
        self.all_gather(out, mine).wait()
        rows: list[list[int]] = out.view(self.size, -1).tolist()
        self.check_complete()
        return rows

    def check_complete(self) -> None:
        """Raise if an end of the group may have cut short what NCCL has transferred: its ``wait`` does not say so.

        To be called once the stream has been waited for.
        """
        if self.nccl and self._aborted:
            raise BrokenGroupError(f"the group of epoch {self.epoch} has ended")


def open_store(timeout_s: float) -> tuple[Any, str, int]:
    """Open a store on a free port: the store, and where others reach it."""
    host = os.environ.get(HOST_VARIABLE, LOOPBACK)
    store = _c10d.TCPStore(
        host, 0, None, True, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
    )
    return store, host, store.port


def join_store(host: str, port: int, timeout_s: float, wanted: Callable[[], bool]) -> Any:
    """The leader's store. Knocks first, since a knock can be given up once it is not ``wanted`` any more."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
            break
        except OSError as error:
            if not wanted() or time.monotonic() > until:
                raise BrokenGroupError(f"no store at {host}:{port}: {error}") from None
            time.sleep(POLL_S)
    try:
        return _c10d.TCPStore(host, port, None, False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    except RuntimeError as error:
        raise BrokenGroupError(f"no store at {host}:{port}: {_first_line(error)}") from None


def open_sockets() -> frozenset[int]:
    """Inodes of the sockets this process has open; nothing where there is no /proc."""
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
    """Shut down the connections among these sockets. The file descriptors stay whose they are."""
    for number, inode in list(_sockets()):
        if inode not in inodes:
            continue
        try:
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()  # an OSError for one that listens
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


def _device(host: str) -> Any:
    """The gloo device for an address; one per process, since it costs a thread and the first one 0.1 s and more."""
    key = (os.getpid(), host)
    if key not in _devices:
        _devices[key] = _c10d.ProcessGroupGloo.create_device(hostname=host)
    return _devices[key]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
