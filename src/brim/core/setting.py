"""A setting: everything that a job has, as one value that decisions, events, grants and the state carry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from brim.core.trace import NONE
from brim.units import WHOLE_GPU

ON_CPU: Final = NONE
"""In the place of a GPU: a worker on CPU."""
SERVER: Final = -2
"""In the place of a GPU: a parameter server, which is on CPU, too."""


class Rank(NamedTuple):
    """The place of one rank.

    Attributes:
        node: Row of the node table.
        gpu: Index on the node; ``ON_CPU`` for a worker on CPU, ``SERVER`` for a parameter server.
        share_milli: Thousandths of that GPU; milli-cores of a rank on CPU, 0 for those that its job asks for per rank.
        loader_workers: Data-loading processes of this rank, 0 where the cluster's cores are not known.
    """

    node: int
    gpu: int
    share_milli: int = WHOLE_GPU
    loader_workers: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a job has. Two settings that are equal need no action; the difference of two is what an action does.

    Attributes:
        ranks: Where the ranks are, by node, then GPU.
        batch: Global batch in samples, NONE for jobs that have none.
        revocable: Whether the job gives its GPUs back at once when a regular job needs them.
    """

    ranks: tuple[Rank, ...]
    batch: int = NONE
    revocable: bool = False

    @property
    def gpus(self) -> tuple[tuple[int, int], ...]:
        """The (node, gpu) pairs of the ranks on GPUs."""
        return tuple((rank.node, rank.gpu) for rank in self.ranks if rank.gpu >= 0)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes of the ranks, each once, in increasing order."""
        return tuple(sorted({rank.node for rank in self.ranks}))

    @property
    def share_milli(self) -> int:
        """Thousandths of each of its GPUs; 0 without GPUs."""
        return next((rank.share_milli for rank in self.ranks if rank.gpu >= 0), 0)

    @property
    def loader_workers(self) -> int:
        """Data-loading processes of each rank."""
        return self.ranks[0].loader_workers if self.ranks else 0

    def keeps_ranks_of(self, other: Setting) -> bool:
        """Whether every rank stays where it is: then no process has to leave. Its share of the GPU may change."""
        return [rank[:2] for rank in self.ranks] == [rank[:2] for rank in other.ranks]

    def same_for_processes_as(self, other: Setting) -> bool:
        """Whether no process of the job would notice the difference: only shares and revocability may differ."""
        return (self.batch, self.loader_workers) == (other.batch, other.loader_workers) and self.keeps_ranks_of(other)


def setting_of(
    gpus: Iterable[tuple[int, int]], *, batch: int = NONE, share_milli: int = WHOLE_GPU, loader_workers: int = 0,
    revocable: bool = False,
) -> Setting:
    """A setting whose ranks have equal shares and loader workers; a pair (node, NONE) is a rank on CPU.

    Example:
        >>> setting_of([(0, 0), (0, 1)], batch=64).gpus
        ((0, 0), (0, 1))
    """
    return Setting(tuple(
        Rank(node, gpu, share_milli if gpu >= 0 else 0, loader_workers) for node, gpu in gpus
    ), batch, revocable)
