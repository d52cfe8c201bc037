"""The fixed tree: sums over V logical workers whose bits do not depend on how many ranks the workers are spread over.

Worker v is leaf v of a balanced binary tree. Rank r of P holds leaves r V/P to (r + 1) V/P - 1: a whole subtree, as
both are powers of two. `Counter` adds it up like a binary counter, leaf by leaf. Above, the ranks are the leaves:
`halves` exchanges with the neighbour at distance 1, then 2, 4, ..., which is the same tree from the bottom up; every
element is added by one rank in that order, and sent back the way it came. A rank sends 2 (P - 1)/P of the vector, as
in a ring.

Addition of two floats is commutative in its bits, so it does not matter which side of a pair adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

PIECE_BYTES = 8 << 20
"""A vector is cut into pieces of this size, of which `WINDOW` are on their way through the exchange at any time: while
one is on the wire another is added up. Ours: on loopback, 100 MB, medians of 9, 2 and 4 ranks: 8 MiB and 4 pieces 1.1
and 1.2 times the framework's all-reduce; 4 MiB 1.4 and 1.8; 1 MiB 1.7 and 2.2; everything at once 1.1 and 2.4."""

WHOLE_BYTES = 64 << 10
"""Up to this size both sides of a pair exchange everything and add: half as many messages. Ours."""


WINDOW = 4
"""Pieces in flight; see `PIECE_BYTES`."""

_ENDED = object()


class Pending(Protocol):
    """A transfer in flight."""

    def wait(self) -> object:
        """Return when it is complete; raise if it failed."""


class Link(Protocol):
    """What the exchange needs of a process group: numbered ranks, messages in order per peer and tag."""

    @property
    def rank(self) -> int:
        """Own place in the group."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def send(self, tensor: Tensor, to: int, tag: int) -> Pending:
        """Begin to send a contiguous tensor, which stays as it is until the transfer is complete."""

    def recv(self, tensor: Tensor, source: int, tag: int) -> Pending:
        """Begin to fill a contiguous tensor."""


def is_power_of_two(number: int) -> bool:
    """1, 2, 4, 8, ..."""
    return number > 0 and number & (number - 1) == 0


def tree_sum(leaves: Sequence[Tensor]) -> Tensor:
    """The sum that every exchange below must equal bit by bit: pairs, then pairs of pairs."""
    level = list(leaves)
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


class Counter:
    """Partial sums of a growing row of leaves, as the bits of the number of leaves that have come.

    Leaf i is added to the waiting partial sums of 1, 2, 4, ... leaves for as long as i has trailing one bits: the sums
    that then wait are whole subtrees, log2(V/P) of them at most.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Tensor]] = []
        self._free: list[Tensor] = []

    def clear(self) -> None:
        """Forget all leaves; keep the memory."""
        self._free.extend(flat for _, flat in self._waiting)
        self._waiting.clear()

    def abandon(self) -> None:
        """Forget all leaves and the memory of their sum, which is used elsewhere."""
        self._waiting.clear()

    def add(
        self, make: Callable[[], Tensor], put: Callable[[Tensor], None], add: Callable[[Tensor], None]
    ) -> None:
        """Take the next leaf.

        Args:
            make: Gives a new vector, where no free one is left.
            put: Writes the leaf into a vector.
            add: Adds the leaf to a vector.
        """
        if self._waiting and self._waiting[-1][0] == 1:
            flat = self._waiting.pop()[1]
            add(flat)
            leaves = 2
        else:
            flat = self._free.pop() if self._free else make()
            put(flat)
            leaves = 1
        while self._waiting and self._waiting[-1][0] == leaves:
            older = self._waiting.pop()[1]
            older.add_(flat)
            self._free.append(flat)
            flat, leaves = older, 2 * leaves
        self._waiting.append((leaves, flat))

    def total(self) -> Tensor:
        """The sum over all leaves, right to left where they are no power of two; the vector stays this counter's."""
        while len(self._waiting) > 1:
            leaves, flat = self._waiting.pop()
            older = self._waiting.pop()
            older[1].add_(flat)
            self._free.append(flat)
            self._waiting.append((older[0] + leaves, older[1]))
        ((_, flat),) = self._waiting
        return flat


class _Piece:
    """One piece of the vector on its way down and up the tree: the span it is still responsible for."""

    __slots__ = ("_link", "_sends", "_spans", "_spare", "_tag", "_vector", "hi", "lo", "work")

    def __init__(self, link: Link, vector: Tensor, spare: Tensor, tag: int) -> None:
        self._link, self._vector, self._spare, self._tag = link, vector, spare, tag
        self.lo, self.hi = 0, len(vector)
        self._spans: list[tuple[int, int]] = []
        self._sends: list[Pending] = []

    def give_half(self, distance: int) -> None:
        """Send the half that the peer adds up; the other half of the peer's vector comes."""
        mid = (self.lo + self.hi + 1) // 2
        low = not self._link.rank & distance
        keep, give = ((self.lo, mid), (mid, self.hi)) if low else ((mid, self.hi), (self.lo, mid))
        self._spans.append((self.lo, self.hi))
        peer = self._link.rank ^ distance
        self.work = self._link.recv(self._spare[: keep[1] - keep[0]], peer, self._tag)
        self._sends.append(self._link.send(self._vector[give[0] : give[1]], peer, self._tag))
        self.lo, self.hi = keep

    def add(self) -> None:
        """Wait for the peer's half and add it."""
        self.work.wait()
        self._vector[self.lo : self.hi].add_(self._spare[: self.hi - self.lo])

    def give_sum(self, distance: int) -> None:
        """Send what is summed; the peer's summed half comes to where the sent half lay."""
        peer = self._link.rank ^ distance
        lo, hi = self._spans.pop()
        other = (lo, self.lo) if self._link.rank & distance else (self.hi, hi)
        self.work = self._link.recv(self._vector[other[0] : other[1]], peer, self._tag + 1)
        self._sends.append(self._link.send(self._vector[self.lo : self.hi], peer, self._tag + 1))
        self.lo, self.hi = lo, hi

    def finish(self) -> None:
        """Wait for what was sent."""
        for work in self._sends:
            work.wait()


def halves(link: Link, vector: Tensor, spare: Tensor, tag: int = 0) -> None:
    """Sum ``vector`` over all ranks in place, over the tree; the number of ranks is a power of two.

    Args:
        link: The group.
        vector: One-dimensional and contiguous, of equal length and type on every rank.
        spare: Room of the same type: `WINDOW` pieces, or as long as the vector.
        tag: Exchanges that run at the same time differ in it by 2 at least.
    """
    if link.size == 1:
        return
    if not is_power_of_two(link.size):
        raise ValueError(f"found {link.size} ranks, expected a power of two")
    if vector.nbytes <= WHOLE_BYTES:
        _wholes(link, vector, spare, tag)
        return
    length = max(PIECE_BYTES // vector.element_size(), 1)
    room = [spare[at : at + length] for at in range(0, min(len(vector), WINDOW * length), length)]
    starts = iter(range(0, len(vector), length))
    under_way: dict[int, Iterator[None]] = {}
    for slot, at in zip(range(len(room)), starts, strict=False):
        under_way[slot] = _exchange(_Piece(link, vector[at : at + length], room[slot], tag), link.size)
    while under_way:
        for slot, exchange in list(under_way.items()):
            if next(exchange, _ENDED) is not _ENDED:
                continue
            at = next(starts, len(vector))
            if at == len(vector):
                del under_way[slot]
                continue
            under_way[slot] = _exchange(_Piece(link, vector[at : at + length], room[slot], tag), link.size)
            next(under_way[slot])


def _exchange(piece: _Piece, ranks: int) -> Iterator[None]:
    """All steps of one piece; where it would wait, another piece may go on first."""
    distances = [1 << k for k in range(ranks.bit_length() - 1)]
    piece.give_half(distances[0])
    yield
    for further in distances[1:]:
        piece.add()
        piece.give_half(further)
        yield
    piece.add()
    piece.give_sum(distances[-1])
    yield
    for nearer in reversed(distances[:-1]):
        piece.work.wait()
        piece.give_sum(nearer)
        yield
    piece.work.wait()
    piece.finish()


def _wholes(link: Link, vector: Tensor, spare: Tensor, tag: int) -> None:
    other = spare[: len(vector)]
    for k in range(link.size.bit_length() - 1):
        peer = link.rank ^ (1 << k)
        coming = link.recv(other, peer, tag)
        going = link.send(vector, peer, tag)
        coming.wait()
        going.wait()
        vector.add_(other)


class Collectives(Protocol):
    """What `chunks` needs of a process group."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def all_to_all(self, out: Tensor, vector: Tensor) -> Pending:
        """Chunk p of ``vector`` goes to rank p; chunk p of ``out`` comes from rank p."""

    def all_gather(self, out: Tensor, chunk: Tensor) -> Pending:
        """Chunk p of ``out`` comes from rank p."""


def chunks(link: Collectives, vector: Tensor, spare: Tensor) -> None:
    """The same sum by all-to-all of chunks, ordered sum, all-gather: for NCCL, whose collectives beat single messages.

    The length of the vector is a multiple of the number of ranks.
    """
    if link.size == 1:
        return
    rows = spare[: len(vector)]
    link.all_to_all(rows, vector).wait()
    level = list(rows.view(link.size, -1).unbind())
    while len(level) > 1:
        level = [left.add_(right) for left, right in zip(level[::2], level[1::2], strict=True)]
    link.all_gather(vector, level[0]).wait()


def add_leaf(views: Sequence[Tensor], leaf: Sequence[Tensor]) -> None:
    """Add a leaf that lies in many tensors to the vector these are views of."""
    torch._foreach_add_(list(views), list(leaf))


def put_leaf(views: Sequence[Tensor], leaf: Sequence[Tensor]) -> None:
    """Write a leaf that lies in many tensors to the vector these are views of."""
    torch._foreach_copy_(list(views), list(leaf))
