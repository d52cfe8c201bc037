"""The fixed tree across ranks: sums whose bits do not depend on the number of ranks.

Each rank has the sum of its subtree (see `tree`). `halves` exchanges with the rank at distance 1, then 2, 4, ..., which
is the same tree from the bottom up; each element is summed by one rank, and the sum returns the same way. A rank sends
2 (P - 1)/P of the vector, as in a ring.

Addition of two floats is commutative in its bits, so either rank of a pair may add.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from brim.train.gradients.tree import is_power_of_two

PIECE_BYTES = 8 << 20
"""Size of the pieces into which a vector is cut; `WINDOW` pieces are exchanged at a time, so that one is added while
others are sent. Our choice, from times relative to the framework's all-reduce, for 100 MB over loopback on 2 and on 4
ranks, medians of 9: 1.1 and 1.2 for 8 MiB in windows of 4; 1.4 and 1.8 for 4 MiB; 1.7 and 2.2 for 1 MiB; 1.1 and 2.4
for the whole vector at once."""

WHOLE_BYTES = 64 << 10
"""Up to this size, both ranks of a pair exchange whole vectors and add them: half as many messages. Our choice."""


WINDOW = 4
"""Number of pieces that are exchanged at a time; see `PIECE_BYTES`."""

_ENDED = object()


class Pending(Protocol):
    """A transfer in progress."""

    def wait(self) -> object:
        """Return when the transfer is complete; raise if it failed."""


class Link(Protocol):
    """A process group as the exchange uses it: messages of one peer with one tag arrive in order."""

    @property
    def rank(self) -> int:
        """Rank of this process."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def send(self, tensor: Tensor, to: int, tag: int) -> Pending:
        """Begin to send a contiguous tensor, which must not change until the transfer is complete."""

    def recv(self, tensor: Tensor, source: int, tag: int) -> Pending:
        """Begin to receive into a contiguous tensor."""


class _Piece:
    """One piece of the vector while it is summed; this rank sums the span from ``lo`` to ``hi``."""

    __slots__ = ("_link", "_sends", "_spans", "_spare", "_tag", "_vector", "hi", "lo", "work")

    def __init__(self, link: Link, vector: Tensor, spare: Tensor, tag: int) -> None:
        self._link, self._vector, self._spare, self._tag = link, vector, spare, tag
        self.lo, self.hi = 0, len(vector)
        self._spans: list[tuple[int, int]] = []
        self._sends: list[Pending] = []

    def give_half(self, distance: int) -> None:
        """Send the half of the span that the peer sums, and receive the other half of the peer's span."""
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
        """Send the summed span, and receive the peer's in place of the half that was sent before."""
        peer = self._link.rank ^ distance
        lo, hi = self._spans.pop()
        other = (lo, self.lo) if self._link.rank & distance else (self.hi, hi)
        self.work = self._link.recv(self._vector[other[0] : other[1]], peer, self._tag + 1)
        self._sends.append(self._link.send(self._vector[self.lo : self.hi], peer, self._tag + 1))
        self.lo, self.hi = lo, hi

    def finish(self) -> None:
        """Wait until everything is sent."""
        for work in self._sends:
            work.wait()


def halves(link: Link, vector: Tensor, spare: Tensor, tag: int = 0) -> None:
    """Sum ``vector`` over all ranks in place, in the order of the tree.

    Args:
        link: The process group; its size is a power of two.
        vector: One-dimensional and contiguous, of the same length and type on every rank.
        spare: Scratch memory of the same type: as long as `WINDOW` pieces or the vector, whichever is shorter.
        tag: Exchanges at the same time must have tags that differ by at least 2.

    Raises:
        ValueError: the number of ranks is not a power of two.
    """
    if link.size == 1:
        return
    if not is_power_of_two(link.size):
        raise ValueError(f"the number of ranks is {link.size}, but must be a power of two")
    if vector.nbytes <= WHOLE_BYTES:
        _wholes(link, vector, spare, tag)
        return
    length = max(PIECE_BYTES // vector.element_size(), 1)
    buffers = [spare[at : at + length] for at in range(0, min(len(vector), WINDOW * length), length)]
    starts = iter(range(0, len(vector), length))
    under_way: dict[int, Iterator[None]] = {}
    for slot, at in zip(range(len(buffers)), starts, strict=False):
        under_way[slot] = _exchange(_Piece(link, vector[at : at + length], buffers[slot], tag), link.size)
    while under_way:
        for slot, exchange in list(under_way.items()):
            if next(exchange, _ENDED) is not _ENDED:
                continue
            at = next(starts, len(vector))
            if at == len(vector):
                del under_way[slot]
                continue
            under_way[slot] = _exchange(_Piece(link, vector[at : at + length], buffers[slot], tag), link.size)
            next(under_way[slot])


def _exchange(piece: _Piece, ranks: int) -> Iterator[None]:
    """Exchange one piece; yield where it would wait, so that another piece can continue first."""
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
    """A process group as `chunks` uses it."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def all_to_all(self, out: Tensor, vector: Tensor) -> Pending:
        """Begin to send chunk p of ``vector`` to rank p, and to receive chunk p of ``out`` from rank p."""

    def all_gather(self, out: Tensor, chunk: Tensor) -> Pending:
        """Begin to send ``chunk`` to all ranks, and to receive chunk p of ``out`` from rank p."""


def chunks(link: Collectives, vector: Tensor, spare: Tensor) -> None:
    """Compute the same sum as `halves` by all-to-all, sums of chunks in the order of the tree, and all-gather.

    For NCCL, whose collectives are faster than single messages. The length of the vector must be a multiple of the
    number of ranks; ``spare`` is at least as long.
    """
    if link.size == 1:
        return
    rows = spare[: len(vector)]
    link.all_to_all(rows, vector).wait()
    level = list(rows.view(link.size, -1).unbind())
    while len(level) > 1:
        level = [left.add_(right) for left, right in zip(level[::2], level[1::2], strict=True)]
    link.all_gather(vector, level[0]).wait()
