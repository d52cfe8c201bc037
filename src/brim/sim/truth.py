"""Truths: models of how jobs really run in a replay. Policies never see them unless they declare themselves oracles.

``rigid`` uses the run times of the trace. Every job runs on the GPUs it asked for, because its speed on other numbers
is unknown; so it supports no claim about elastic jobs. ``measured`` and ``parametric`` have files of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from brim.beliefs.analyser import Exchange, Steps
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import Cluster
from brim.core.events import JobSpec, Report
from brim.core.trace import NONE, Trace
from brim.errors import ConfigError
from brim.policies.place.parts import NO_CLASSES
from brim.policies.place.room import CONSOLIDATE, Ask, choose, empty_room
from brim.units import MS_PER_S, WHOLE_GPU


class Pace(NamedTuple):
    """The speed of a job in one configuration, until the speed changes.

    Attributes:
        per_ms: Work done per millisecond, in the truth's unit of work.
        until: Amount of work at which the speed changes or the job ends.
        ends: Whether the job ends at ``until``.
        report: What the job reports; None if it reports nothing.
    """

    per_ms: float
    until: float
    ends: bool
    report: Report | None


class Company(NamedTuple):
    """What a job shares its nodes with, as far as it may change its pace.

    Attributes:
        share_milli: Thousandths of each of its GPUs.
        neighbours: Other jobs that hold a share of one of its GPUs, in increasing order.
        loader_workers: Data-loading processes of each of its ranks, 0 where they are not known.
    """

    share_milli: int = WHOLE_GPU
    neighbours: tuple[int, ...] = ()
    loader_workers: int = 0


ALONE: Final = Company()


class Truth(Protocol):
    """How the jobs of one trace really run. Each truth has its own unit of work.

    Attributes:
        name: Name on the command line.
        contended: Whether the pace depends on the company; the twin then asks again whenever neighbours come or go.
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

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, company: Company = ALONE) -> Pace:
        """The job's pace from ``done`` units of work on, given its GPUs on each node, its global batch and company."""
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
class Timed(Protocol):
    """A truth that gives step times before a job trains."""

    def steps(self, job: int) -> Steps:
        """Return a source of the job's step times on one device."""
        ...


@runtime_checkable
class Wired(Protocol):
    """A truth that knows the interconnect of the cluster's GPUs."""

    exchange: Exchange


class Rigid:
    """The run times of the trace on the GPUs asked for. Work is counted in milliseconds."""

    name: ClassVar[str] = "rigid"
    contended: ClassVar[bool] = False

    def __init__(self, trace: Trace) -> None:
        self.run_ms = self.shortest_ms = rigid_run_ms(trace)
        self.least_gpu_ms = trace.gpu_ms
        self._run_ms: list[int] = self.run_ms.tolist()

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, company: Company = ALONE) -> Pace:
        """See ``Truth``."""
        return Pace(1.0, self._run_ms[job], True, None)

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``: every job runs on the GPUs it asks for."""
        return {}

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return np.full(len(self.run_ms), np.nan)

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        return ["Run times are those of the trace, whatever the placement (truth: rigid)."]


def rigid_run_ms(trace: Trace, truth: str = "rigid") -> IntArray:
    """Return the recorded run time of every job in ms, shape (J,).

    Raises:
        ConfigError: the trace names profiled applications instead of run times.
    """
    unknown = np.flatnonzero(trace.run_ms < 0)
    if len(unknown):
        raise ConfigError(
            f"{trace.name}: {len(unknown)} of {len(trace)} jobs have no recorded run time (first: job "
            f"{trace.job_id[unknown[0]]}), which --truth {truth} needs"
        )
    return trace.run_ms


def specs_of(trace: Trace, cluster: Cluster, truth: Truth) -> list[JobSpec]:
    """Return the jobs as the scheduler receives them.

    Ids are row numbers of the trace, GPU types are codes of the cluster, and the truth sets the limits on sizes. In a
    cluster with one GPU type, the types that jobs ask for are ignored.

    Raises:
        ConfigError: a job could not run even on the empty cluster.
    """
    gpu_type = type_codes(trace, cluster)[trace.gpu_type] if len(trace) else trace.gpu_type
    owner = trace.group if _groups_stand_for_users(trace) else trace.user
    user = np.where(owner == NONE, len(user_names(trace)) - 1, owner)
    columns = (
        np.arange(len(trace)), user, trace.submit_ms, trace.gpus, trace.share_milli, trace.cpu_milli, trace.mem_mib,
        gpu_type, trace.time_limit_ms, trace.after,
    )
    check_fits(trace, cluster, gpu_type)
    specs = [
        JobSpec(id=i, user=u, submit_ms=s, gpus=g, share_milli=h, cpu_milli=c, mem_mib=m, gpu_type=t,
                time_limit_ms=limit, after=after)
        for i, u, s, g, h, c, m, t, limit, after in zip(*(column.tolist() for column in columns), strict=True)
    ]
    more = truth.columns()
    if not more:
        return specs
    rows = zip(*(column.tolist() for column in more.values()), strict=True)
    return [replace(spec, **dict(zip(more, row, strict=True))) for spec, row in zip(specs, rows, strict=True)]


def user_names(trace: Trace) -> tuple[str, ...]:
    """Return the users of the trace, or its groups if it names no users; the last entry is for jobs with neither."""
    return (*(trace.groups if _groups_stand_for_users(trace) else trace.users), "(not recorded)")


def _groups_stand_for_users(trace: Trace) -> bool:
    return not trace.users and bool(trace.groups)


def type_codes(trace: Trace, cluster: Cluster) -> IntArray:
    """Return the cluster's code for each GPU type of the trace; the last entry is for jobs that ask for none.

    Raises:
        ConfigError: the cluster does not have a type that a job asks for.
    """
    if len(cluster.gpu_types) == 1:
        return np.full(len(trace.gpu_types) + 1, NONE, dtype=np.int64)
    codes, types = [], [name.casefold() for name in cluster.gpu_types]
    for code, name in enumerate(trace.gpu_types):
        if name.casefold() not in types and (trace.gpu_type == code).any():
            raise ConfigError(
                f"{trace.name}: jobs ask for GPU type {name!r}, but the cluster has {', '.join(cluster.gpu_types)}"
            )
        codes.append(types.index(name.casefold()) if name.casefold() in types else NONE)
    return np.array([*codes, NONE], dtype=np.int64)


def check_fits(trace: Trace, cluster: Cluster, gpu_type: IntArray) -> None:
    """Check that every job could run on the empty cluster.

    Raises:
        ConfigError: names the first job that could not, what it asks for and what the cluster has.
    """
    misfits = np.flatnonzero(~fits(trace, cluster, gpu_type))
    if not len(misfits):
        return
    row = int(misfits[0])
    cpu, mem, code = int(trace.cpu_milli[row]), int(trace.mem_mib[row]), int(gpu_type[row])
    extras = [f"{cpu / 1000:g} cores each"] if cpu else []
    extras += [f"{mem / 1024:.4g} GB each"] if mem else []
    extras += [f"of type {cluster.gpu_types[code]}"] if code != NONE else []
    raise ConfigError(
        f"{trace.name}: job {trace.job_id[row]} asks for {trace.gpus[row]} GPUs"
        f"{' with ' + ', '.join(extras) if extras else ''}, which cluster {cluster} ({cluster.num_gpus} GPUs) could "
        f"not give it even when empty; --drop-too-large leaves out such jobs ({len(misfits)} of {len(trace)})"
    )


def fits(trace: Trace, cluster: Cluster, gpu_type: IntArray) -> BoolArray:
    """Return whether each job could run on the empty cluster (J,)."""
    asks = (trace.gpus, trace.share_milli, trace.cpu_milli, trace.mem_mib, gpu_type)
    kind_of = np.zeros(len(trace), dtype=np.int64)
    for column in asks:  # number the distinct combinations, which is far cheaper than sorting rows of five
        if not len(column) or column.min() == column.max():
            continue
        codes, num_codes = _numbered(column - column.min())
        kind_of, _ = _numbered(kind_of * num_codes + codes)
    first_row = np.full(kind_of.max(initial=-1) + 1, -1, dtype=np.int64)
    first_row[kind_of[::-1]] = np.arange(len(kind_of) - 1, -1, -1)  # the last write, of the first row, stays
    everything: BoolArray = np.ones(cluster.num_nodes, dtype=np.bool_)
    room = empty_room(cluster.gpu_type_N, cluster.gpus_N, cluster.cpu_milli_N, cluster.mem_mib_N, everything,
                      len(cluster.gpu_types))
    scratch = np.zeros((2, cluster.num_nodes), dtype=np.int64)
    pairs = np.empty((int(trace.gpus.max(initial=1)), 2), dtype=np.int64)
    kind_fits = np.array([
        choose(room, Ask(*(int(column[row]) for column in asks)), CONSOLIDATE, NO_CLASSES, scratch, pairs)
        for row in first_row.tolist()
    ], dtype=np.bool_)
    return kind_fits[kind_of]


def _numbered(values: IntArray) -> tuple[IntArray, int]:
    """Return the rank of each non-negative value among the distinct values, and the number of distinct values."""
    if values.max() < 1 << 20:
        rank = np.cumsum(np.bincount(values) > 0) - 1
        return rank[values], int(rank[-1]) + 1
    distinct, codes = np.unique(values, return_inverse=True)
    return codes, len(distinct)


def describe(trace: Trace, cluster: Cluster) -> list[str]:
    """Return the assumptions that all truths make about a trace on a cluster, as sentences."""
    said = []
    if len(cluster.gpu_types) == 1 and (trace.gpu_type != NONE).any():
        (only,) = cluster.gpu_types
        why = f"every GPU is {only}" if only else "the cluster's GPUs have no named type"
        said.append(f"The GPU types that jobs ask for are ignored: {why}.")
    if _groups_stand_for_users(trace):
        said.append("The trace names no users: fair shares and run-time histories use its groups instead.")
    elif not trace.users:
        said.append("The trace names no users: fair shares and run-time histories treat all jobs as one user's.")
    waiting = int((trace.after != NONE).sum())
    if waiting:
        said.append(
            "A job that may start only after another has ended, and a delay, waits for that too: it counts in its wait "
            f"and its completion time ({waiting:,} of {len(trace):,} jobs)."
        )
    short = int(((trace.run_ms >= 0) & (trace.run_ms < MS_PER_S)).sum())
    if short:
        said.append(f"{short} jobs ran for less than a second.")
    return said
