"""The fixed tree inside one rank: sums whose bits do not depend on how many ranks the logical workers are spread over.

Worker v is leaf v of a balanced binary tree. Rank r of P computes leaves r V/P to (r + 1) V/P - 1, a whole subtree,
since V and P are powers of two. `TreeAccumulator` adds these leaves in the order of the tree, one at a time. Above
them, the ranks are the leaves: see `all_reduce`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def is_power_of_two(number: int) -> bool:
    """Return whether a number is 1, 2, 4, 8, ..."""
    return number > 0 and number & (number - 1) == 0


class TreeAccumulator:
    """Adds leaves in the order of the tree, one at a time, with few vectors.

    The partial sums are those of whole subtrees, as a binary counter has bits: leaf i is merged with the last sums of
    1, 2, 4, ... leaves, one for each trailing one bit of i. At most log2(V/P) sums then wait for later leaves.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Tensor]] = []
        self._free: list[Tensor] = []

    def clear(self) -> None:
        """Drop all leaves; keep their memory for the next ones."""
        self._free.extend(flat for _, flat in self._waiting)
        self._waiting.clear()

    def abandon(self) -> None:
        """Drop all leaves and the memory of their sum, which a transfer may still use."""
        self._waiting.clear()

    def add(
        self, make: Callable[[], Tensor], put: Callable[[Tensor], None], add: Callable[[Tensor], None]
    ) -> None:
        """Add the next leaf.

        Args:
            make: Returns a new vector; called if no free one is left.
            put: Writes the leaf to a vector.
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
        """Return the sum of all leaves, from right to left if they are no power of two; `clear` reuses the vector."""
        while len(self._waiting) > 1:
            leaves, flat = self._waiting.pop()
            older = self._waiting.pop()
            older[1].add_(flat)
            self._free.append(flat)
            self._waiting.append((older[0] + leaves, older[1]))
        ((_, flat),) = self._waiting
        return flat


def add_leaf(views: Sequence[Tensor], leaf: Sequence[Tensor]) -> None:
    """Add a leaf of many tensors to the vector that ``views`` are views of."""
    torch._foreach_add_(list(views), list(leaf))


def put_leaf(views: Sequence[Tensor], leaf: Sequence[Tensor]) -> None:
    """Write a leaf of many tensors to the vector that ``views`` are views of."""
    torch._foreach_copy_(list(views), list(leaf))
