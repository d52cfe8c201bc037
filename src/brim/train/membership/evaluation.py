"""Exchanges values between ranks in an evaluation, which is repeated when a rank dies in it.

The values go through the store of the group, not through its collectives: a rank that joins in the middle of an
evaluation already waits in the sums of its first step, and must not receive the values of the others there.
"""

from __future__ import annotations

import contextlib
import functools
import io
import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, Literal

import torch
from torch import Tensor

from brim.errors import UserError
from brim.train.membership.process_group import BrokenGroupError, ProcessGroup
from brim.train.membership.store_values import delete_value, get_value, put_value

Operation = Literal["sum", "min", "max"]

ALONE: Final = "alone"
"""Where a rank evaluates for itself: the others have ended the epoch that its script is in."""


class Evaluation:
    """The exchange of one rank with the others of its group."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self._device, self._timeout = device, timedelta(seconds=timeout_s)
        self._group: ProcessGroup | None = None
        self._where = ""
        self._members: tuple[int, ...] = ()
        self._counts: dict[tuple[int, ...], int] = {}

    def use(self, group: ProcessGroup | None, where: str) -> None:
        """Use this group from now on; tell its other members where in the script this rank evaluates."""
        self._group, self._where, self._counts = group, where, {}
        self._members = tuple(range(group.size)) if group is not None else ()
        if group is not None:
            group.do(lambda: group.store.set(f"evaluates/{group.rank}", where))  # if it fails, the next wait fails

    def restrict(self) -> None:
        """If the group has formed during an evaluation, leave out the ranks that do not take part in it.

        These have just joined, or have finished the evaluation.

        Raises:
            BrokenGroupError: the group has ended.
        """
        group = self._group
        if group is None or not self._where:
            return
        if self._where == ALONE:
            self._members = (group.rank,)
            return
        keys = [f"evaluates/{rank}" for rank in range(group.size)]

        def read() -> list[str]:
            with _broken_group():
                group.store.wait(keys, self._timeout)
                return [group.store.get(key).decode() for key in keys]

        places = group.do(read).wait()
        self._members = tuple(rank for rank, word in enumerate(places) if word == self._where)

    def everybody(self) -> None:
        """The evaluation is done: all ranks take part again."""
        self._members = tuple(range(self._group.size)) if self._group is not None else ()

    def begin_step(self) -> None:
        """A step, or the code at the end of an epoch, begins on all ranks: all take part in the next evaluation."""
        self._where = ""
        self.everybody()

    @property
    def place(self) -> tuple[int, int] | None:
        """This rank's place among the ranks that take part, and their number; None if all do."""
        group = self._group
        if group is None or len(self._members) == group.size or group.rank not in self._members:
            return None
        return self._members.index(group.rank), len(self._members)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of the ranks that take part, in rank order.

        Raises:
            BrokenGroupError: a rank has died.
            UserError: a rank did not call it in time.
        """
        group = self._group
        if group is None:
            return [value]
        number = self._counts[self._members] = self._counts.get(self._members, 0) + 1
        packed, members = _pack(value), self._members
        found = group.do(lambda: self._exchange(group, members, number, packed)).wait()
        return [_unpack(each, self._device) for each in found]

    def _exchange(self, group: ProcessGroup, members: tuple[int, ...], number: int, packed: bytes) -> list[bytes]:
        """In the thread of the group."""
        who = "-".join(map(str, members)) if len(members) < group.size else "all"
        keys = {rank: f"gather/{who}/{number}/{rank}" for rank in members}
        with _broken_group():
            put_value(group.store, keys[group.rank], packed)
        self._wait(group, keys)
        with _broken_group():
            found = [get_value(group.store, key) for key in keys.values()]
            if number > 2:  # all have answered the last one, so all have read the one before
                old = f"gather/{who}/{number - 2}/{group.rank}"
                delete_value(group.store, old)
                group.store.delete_key(f"read/{old}")
            group.store.set(f"read/{keys[group.rank]}", "")  # the last that is asked of the store: it may end now
        if group.hosts_store:  # it may end with this process, so wait until all have read
            self._wait(group, {rank: f"read/{key}" for rank, key in keys.items()})
        return found

    def _wait(self, group: ProcessGroup, keys: dict[int, str]) -> None:
        try:
            group.store.wait([*keys.values()], self._timeout)
        except RuntimeError as error:
            if group.aborted:
                raise BrokenGroupError(f"the group of generation {group.generation} has ended") from None
            with _broken_group():
                missing = [str(rank) for rank, key in keys.items() if not group.store.check([key])]
            if not missing:
                raise BrokenGroupError(str(error)) from None
            waited = f"{self._timeout.total_seconds():g} s"
            raise UserError(
                f"run.gather, run.broadcast or run.reduce: rank {group.rank} waited {waited} "
                f"for rank {', '.join(missing)}; every rank must make the same calls (or allow more time by "
                "start(timeout_s=...))"
            ) from None


@contextlib.contextmanager
def _broken_group() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise BrokenGroupError(f"the store of the group: {str(error).splitlines()[0]}") from None


def _pack(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def _unpack(packed: bytes, device: torch.device) -> Any:
    """Unpack a value; tensors of host memory stay there, and tensors of any GPU go to this rank's GPU."""

    def place(storage: Any, where: str) -> Any:
        return storage if where == "cpu" else storage.to(device=device)

    return torch.load(io.BytesIO(packed), map_location=place, weights_only=False)


_OPERATIONS: Final[dict[str, tuple[Callable[[Any, Any], Any], Callable[[Tensor, Tensor], Tensor]]]] = {
    "sum": (operator.add, torch.add),
    "min": (min, torch.minimum),
    "max": (max, torch.maximum),
}


def reduced(values: Sequence[Any], operation: str) -> Any:
    """Combine numbers or tensors from left to right.

    Raises:
        UserError: the operation is unknown.
    """
    if operation not in _OPERATIONS:
        raise UserError(f"run.reduce(operation={operation!r}): expected 'sum', 'min' or 'max'")
    of_numbers, of_tensors = _OPERATIONS[operation]
    return functools.reduce(of_tensors if isinstance(values[0], Tensor) else of_numbers, values)


@contextlib.contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Restore the generators of Python, NumPy and PyTorch afterwards."""
    python, numpy = random.getstate(), sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        if numpy is not None and drawn is not None:
            numpy.random.set_state(drawn)
