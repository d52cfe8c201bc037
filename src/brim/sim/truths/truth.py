"""What a truth is: a model of how jobs really run in a replay. Policies never see one unless they are oracles."""

from __future__ import annotations

import math
from typing import ClassVar, Final, NamedTuple, Protocol, runtime_checkable

from brim.beliefs.analyser import Exchange, Steps
from brim.beliefs.parameter_servers import StepModels
from brim.core.arrays import FloatArray, IntArray
from brim.core.events import Report
from brim.core.setting import Rank
from brim.units import WHOLE_GPU


class Pace(NamedTuple):
    """The speed of a job in one configuration, until the speed changes.

    Attributes:
        per_ms: Work done per millisecond, in the truth's unit of work.
        until: Amount of work at which the speed changes or the job ends.
        ends: Whether the job ends at ``until``.
        report: What the job reports; None if it reports nothing.
        busy: How many of its GPUs and milli-cores compute, mean over a step; NaN where the truth does not tell.
    """

    per_ms: float
    until: float
    ends: bool
    report: Report | None
    busy: tuple[float, float] = (math.nan, math.nan)


class NodeColocation(NamedTuple):
    """A job on one of its nodes, and the other jobs there.

    Attributes:
        node: The node.
        ranks: Ranks of the job there.
        others: Other jobs there in increasing order, each with its ranks there and the loader workers of each rank.
    """

    node: int
    ranks: int
    others: tuple[tuple[int, int, int], ...]


class Colocation(NamedTuple):
    """What a job shares its nodes with, as far as it may change its pace.

    Attributes:
        share_milli: Thousandths of each of its GPUs.
        neighbours: Other jobs that hold a share of one of its GPUs, in increasing order.
        loader_workers: Data-loading processes of each of its ranks, 0 where they are not known.
        met: Work that the job had done when its neighbours last changed.
        on_nodes: Its nodes, in increasing order, for a truth that ``shares_nodes``; else empty.
        ranks: Its ranks, if some are on CPU; else empty.
    """

    share_milli: int = WHOLE_GPU
    neighbours: tuple[int, ...] = ()
    loader_workers: int = 0
    met: float = 0.0
    on_nodes: tuple[NodeColocation, ...] = ()
    ranks: tuple[Rank, ...] = ()


ALONE: Final = Colocation()


class Truth(Protocol):
    """How the jobs of one trace really run. Each truth has its own unit of work.

    Attributes:
        name: Name on the command line.
        contended: Whether the pace depends on the co-location; the twin then asks again whenever neighbours come or go.
        run_ms: Run time of each job at the size its user asked for (J,).
        shortest_ms: Shortest run time of each job at any size (J,): a lower bound for every policy.
        least_gpu_ms: Least GPU time of each job at any size (J,): a lower bound for every policy.
    """

    name: ClassVar[str]
    contended: ClassVar[bool]

    @property
    def run_ms(self) -> IntArray: ...  # noqa: D102 - see the class

    @property
    def shortest_ms(self) -> IntArray: ...  # noqa: D102

    @property
    def least_gpu_ms(self) -> IntArray: ...  # noqa: D102

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """The job's pace from ``done`` units of work on, given its GPUs on each node, its batch and co-location."""
        ...

    def columns(self) -> dict[str, IntArray]:
        """Return the columns of ``JobSpec`` that the truth sets instead of the trace, each (J,)."""
        ...

    def total_samples(self) -> FloatArray:
        """Return the samples each job needs (``Report.samples_done``), NaN if that has no meaning (J,). For oracles."""
        ...

    def sentences(self) -> list[str]:
        """Return the assumptions of this truth, as sentences for the report."""
        ...


@runtime_checkable
class SharesNodes(Protocol):
    """A contended truth whose paces depend on the loader workers of all jobs on the same nodes."""

    shares_nodes: ClassVar[bool]


@runtime_checkable
class HasStepTimes(Protocol):
    """A truth that gives step times before a job trains."""

    def steps(self, job: int) -> Steps:
        """Return a source of the job's step times on one device."""
        ...


@runtime_checkable
class HasStepModels(Protocol):
    """A truth whose models are profiled before a replay begins."""

    profiled: StepModels


@runtime_checkable
class HasInterconnect(Protocol):
    """A truth that knows the interconnect of the cluster's GPUs."""

    exchange: Exchange


def packed(gpus: int, width: int) -> tuple[int, ...]:
    """Return the GPUs per node of a gang on the fewest nodes of ``width`` GPUs."""
    full, rest = divmod(gpus, width)
    return (width,) * full + ((rest,) if rest else ())
