"""A process group: made quickly, bounded in time, ended at once from any thread.

The back-ends of ``torch.distributed`` are used directly, beside the default group that the user's script may have.

A gloo collective whose peer is dead or hung cannot be cancelled (``abort`` does not wake it). Closing its sockets wakes
most: a group notes the sockets that are opened while it is made, and `ProcessGroup.abort` shuts them down, so that the
peers' collectives fail, too. This does not wake a wait for a message of which only a part has arrived: gloo forgets
that one. So every wait in gloo happens in a thread of the group, and `GroupCall.wait`, which waits for that thread,
gives up when the group is aborted. A thread that does not come back is left behind, together with the tensors it works
on, until gloo's own time-out ends its wait; the next group has a thread, a store and tensors of its own.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from brim.errors import BrimError
from brim.gang.messages import CONTROL_VARIABLE
from brim.train.membership import abandoned_threads
from brim.train.membership.sockets import open_sockets, shut

LOOPBACK: Final = "127.0.0.1"
HOST_VARIABLE: Final = "BRIM_HOST"
"""Environment: address of this node as other nodes reach it, where a gang spans nodes."""

BACKEND_VARIABLE: Final = "BRIM_BACKEND"
"""Environment: "gloo" sends tensors on GPUs through host memory, for several ranks that share a GPU."""

CLEAN_UP_ONLY: Final = "2"
"""For NCCL's watchdog: a collective that has failed is ended, the process is not (ErrorHandlingMode of PyTorch)."""

POLL_S: Final = 0.02
"""How often a wait checks whether it is still wanted."""

JOIN_S: Final = 0.1
"""How long the end of a group waits for a thread that is in gloo; it most often returns within milliseconds. Ours."""

GIVE_BACK_S: Final = 5.0
"""How long it waits for a thread that frees the back-end, which takes milliseconds on an idle machine. Ours."""

_BACKLOG: Final = 1024

_c10d: Any = dist  # its typed exports leave out what is used here

_devices: dict[tuple[int, str], Any] = {}


class BrokenGroupError(BrimError):
    """A collective failed or ran out of time: a member is gone or hung. The group cannot be used any more."""


class GroupCall:
    """A call that runs in the thread of a group.

    Attributes:
        bytes: Size of the tensors that it works on.
    """

    __slots__ = ("_call", "_done", "_error", "_value", "bytes")

    def __init__(self, call: Callable[[], Any], num_bytes: int = 0) -> None:
        self._call: Callable[[], Any] | None = call
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self.bytes = num_bytes

    def run(self) -> None:
        """Run the call; `wait` raises its errors."""
        call, self._call = self._call, None
        assert call is not None
        try:
            self._value = call()
        except Exception as error:
            self._error = error
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Let `wait` raise this, unless the task is done."""
        if not self._done.is_set():
            self._error = error
            self._done.set()

    def wait(self) -> Any:
        """Wait for the result and return it.

        Raises:
            BrokenGroupError: a transfer failed, or the group was aborted.
        """
        self._done.wait()
        if isinstance(self._error, BrokenGroupError):
            raise BrokenGroupError(str(self._error)) from None
        if self._error is not None:
            raise self._error
        return self._value


class Transfer:
    """A transfer in flight, with its tensors; failures raise `BrokenGroupError`."""

    __slots__ = ("_group", "_tensors", "_work")

    def __init__(self, group: ProcessGroup, work: Any, tensors: tuple[Tensor, ...]) -> None:
        self._group, self._work, self._tensors = group, work, tensors

    @property
    def bytes(self) -> int:
        """Size of its tensors."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def wait(self) -> None:
        """Return when it is complete (with NCCL: once the current stream will wait for it)."""
        self._group.do(self._wait, self.bytes).wait()

    def _wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise BrokenGroupError(_first_line(error)) from None


class ProcessGroup:
    """Ranks 0 to ``size`` - 1 of one generation. `connect` makes the group; until then it can only be aborted.

    Args:
        rank: This rank's place.
        size: Number of members.
        generation: Number of the group among those of its gang, a part of all keys in the store.
        device: Device of the tensors to be exchanged.
        timeout_s: A collective fails after this time.

    Attributes:
        store: The store through which the members have met.
        hosts_store: Whether the store may end with this process.
    """

    def __init__(self, rank: int, size: int, *, generation: int, device: torch.device, timeout_s: float) -> None:
        self.rank, self.size, self.generation, self.device = rank, size, generation, device
        self.nccl = device.type == "cuda" and dist.is_nccl_available() and os.environ.get(BACKEND_VARIABLE) != "gloo"
        self.store: Any = None
        self.hosts_store = False
        self._timeout_s = timeout_s
        self._backend: Any = None
        self._aborted = False
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[GroupCall | None] = queue.SimpleQueue()
        self._open: list[GroupCall] = []
        self._thread: threading.Thread | None = None
        if not self.nccl:
            abandoned_threads.make_room(timeout_s)
            self._thread = threading.Thread(target=self._work, name=f"brim-group-{generation}", daemon=True)
            self._thread.start()
        self._before = open_sockets()
        self._sockets: frozenset[int] | None = None

    def connect(self, meet: Callable[[], Any]) -> None:
        """Meet the other members.

        Args:
            meet: Returns the store, which nothing else uses.
        """
        try:
            self.do(lambda: self._connect(meet)).wait()
        except BrokenGroupError:
            self.abort()
            raise

    def _connect(self, meet: Callable[[], Any]) -> None:
        self.store = _c10d.PrefixStore(f"brim/{self.generation}", meet())
        make = self._make_nccl if self.nccl else self._make_gloo
        try:
            self._backend = make(_c10d.PrefixStore("group", self.store))
        except RuntimeError as error:
            raise BrokenGroupError(f"generation {self.generation} did not form: {_first_line(error)}") from None
        self._sockets = open_sockets() - self._before

    def _make_gloo(self, store: Any) -> Any:
        options = _c10d.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=self._timeout_s)
        options._threads = 2
        options._devices = [_device(_own_host())]
        return _c10d.ProcessGroupGloo(store, self.rank, self.size, options)

    def _make_nccl(self, store: Any) -> Any:
        torch.cuda.set_device(self.device)
        if CONTROL_VARIABLE in os.environ:  # aborting a group ends its collectives, not the process
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", CLEAN_UP_ONLY)
        options = _c10d.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=self._timeout_s)
        return _c10d.ProcessGroupNCCL(store, self.rank, self.size, options)

    def do(self, call: Callable[[], Any], num_bytes: int = 0) -> GroupCall:
        """Run a call in the thread of the group, after earlier calls; with NCCL at once, in this thread.

        Args:
            call: The call; that thread waits for the transfers in it.
            num_bytes: Size of the tensors that it works on.
        """
        task = GroupCall(call, num_bytes)
        if self._thread is None or threading.current_thread() is self._thread:
            task.run()
            return task
        with self._lock:
            if self._aborted:
                task.fail(self._ended())
            else:
                self._open.append(task)
                self._tasks.put(task)
        return task

    def _work(self) -> None:
        """Run the thread's calls. Only this thread frees the back-end, since that may wait for a transfer."""
        while (task := self._tasks.get()) is not None:
            if self._aborted:
                task.fail(self._ended())
            else:
                task.run()
            with self._lock:
                self._open.remove(task)
            del task
        self._backend = self.store = None

    def _ended(self) -> BrokenGroupError:
        return BrokenGroupError(f"the group of generation {self.generation} has ended")

    @property
    def aborted(self) -> bool:
        """Whether the group was aborted."""
        return self._aborted

    def abort(self) -> None:
        """End the group: all its collectives fail, here and at the peers. Any thread may call this, more than once."""
        with self._lock:
            self._aborted = True
            waited_for = list(self._open)
        shut(self._sockets if self._sockets is not None else open_sockets() - self._before)
        for task in waited_for:
            task.fail(self._ended())
        if self.nccl and self._backend is not None:
            for name in ("abort", "_abort"):  # the name has changed between releases
                if hasattr(self._backend, name):
                    with contextlib.suppress(RuntimeError):  # the listening thread goes on
                        getattr(self._backend, name)()
                    return

    def close(self) -> None:
        """`abort` and free everything; a thread that does not come back from gloo is left behind."""
        self.abort()
        if self._thread is None:
            self._backend = self.store = None
            return
        self._tasks.put(None)
        until_s = time.monotonic() + GIVE_BACK_S
        while self._thread.is_alive() and time.monotonic() < until_s:
            self._thread.join(JOIN_S)
            if self._open and self._thread.is_alive():
                abandoned_threads.add(self._thread, self.generation, self.bytes, self._timeout_s)
                return

    @property
    def bytes(self) -> int:
        """Size of the tensors that the thread works on."""
        with self._lock:
            return sum(task.bytes for task in self._open)

    def _begin(self, call: Callable[[], Any], *tensors: Tensor) -> Transfer:
        if self._aborted:
            raise self._ended()
        try:
            return Transfer(self, call(), tensors)
        except RuntimeError as error:
            raise BrokenGroupError(_first_line(error)) from None

    def send(self, tensor: Tensor, to: int, tag: int) -> Transfer:
        """Begin to send."""
        return self._begin(lambda: self._backend.send([tensor], to, tag), tensor)

    def recv(self, tensor: Tensor, source: int, tag: int) -> Transfer:
        """Begin to fill."""
        return self._begin(lambda: self._backend.recv([tensor], source, tag), tensor)

    def all_reduce(self, vector: Tensor) -> Transfer:
        """Sum over all ranks in place, in the framework's own order."""
        return self._begin(lambda: self._backend.allreduce([vector]), vector)

    def all_to_all(self, out: Tensor, vector: Tensor) -> Transfer:
        """Chunk p of ``vector`` goes to rank p; chunk p of ``out`` comes from rank p."""
        return self._begin(lambda: self._backend.alltoall_base(out, vector, [], []), out, vector)

    def all_gather(self, out: Tensor, chunk: Tensor) -> Transfer:
        """Chunk p of ``out`` comes from rank p."""
        return self._begin(lambda: self._backend._allgather_base(out, chunk), out, chunk)

    def share(self, numbers: list[int]) -> list[list[int]]:
        """Return the numbers of all ranks, in rank order; also a barrier."""
        mine = torch.tensor(numbers, dtype=torch.int64, device=self.device if self.nccl else "cpu")
        out = torch.empty(self.size * len(numbers), dtype=torch.int64, device=mine.device)
        self.all_gather(out, mine).wait()
        rows: list[list[int]] = out.view(self.size, -1).tolist()
        self.check_complete()
        return rows

    def check_complete(self) -> None:
        """Raise if the group has ended, so that an NCCL transfer may be incomplete: its ``wait`` does not raise.

        Call this after waiting for the stream.
        """
        if self.nccl and self._aborted:
            raise self._ended()


def open_store(timeout_s: float) -> tuple[Any, str, int]:
    """Open a store on a free port of this node's own address; return the store, its host and its port."""
    host = _own_host()
    listener = socket.create_server((host, 0), family=_family(host), backlog=_BACKLOG)
    port: int = listener.getsockname()[1]
    try:
        store = _c10d.TCPStore(
            host, port, None, True, timeout=timedelta(seconds=timeout_s), wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
    except RuntimeError as error:
        raise BrokenGroupError(f"no store at {host}:{port}: {_first_line(error)}") from None
    return store, host, port


def _own_host() -> str:
    return os.environ.get(HOST_VARIABLE, LOOPBACK)


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]


def join_store(host: str, port: int, timeout_s: float, wanted: Callable[[], bool]) -> Any:
    """Connect to the leader's store. A plain socket tries first, since that can stop once it is not ``wanted``."""
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


def _device(host: str) -> Any:
    """Return the gloo device for an address; one per process, since each costs a thread and the first over 0.1 s."""
    key = (os.getpid(), host)
    if key not in _devices:
        _devices[key] = _c10d.ProcessGroupGloo.create_device(hostname=host)
    return _devices[key]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
