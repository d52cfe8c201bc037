"""The fill part that gives what regular jobs leave to padding jobs, and takes it back.

It decides which padding job has which of the GPUs that Place left, and how many. Place decides without it what regular
jobs get; whatever of that a padding job holds, it loses in the same round.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import ClassVar, Final, TypeAlias

import numpy as np

from brim.beliefs.batching import Limits, fewest_nodes, fixed_batches
from brim.beliefs.beliefs import Beliefs
from brim.beliefs.speeds import Speeds
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.checks import cores_milli
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.snapshot import Snapshot
from brim.core.sums import CORE_MILLI
from brim.core.tables import EMPTY, Grants
from brim.core.trace import NONE, JobClass
from brim.errors import ConfigError
from brim.policies.fill.victims import losses
from brim.units import MS_PER_MIN

_STARTING, _RUNNING, _PENDING = Phase.STARTING, Phase.RUNNING, Phase.PENDING
_UNTRIED: Final = 0.9
"""A job whose step times are not known is expected to be this power of its GPUs as fast: strong scaling at a fixed
batch loses some. Ours."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Give each GPU that is left to the padding job that gains most by it, if it will be idle for long enough.

    A job that runs keeps what Place did not take from it, down to a size it can run on. What is free then goes, the
    longest predicted gap first (gaps equal to within a factor of two are chosen next to what the job holds), to the job
    with the highest marginal progress per GPU, in steps of its allowed sizes. A job takes a GPU only if its predicted
    gap exceeds ``t_join (1 + 1 / gain)``: joining costs the whole job ``t_join``, what starts or growths have cost
    lately, and the GPU then earns it ``gain`` of its present speed. Everything it gives is revocable.

    Attributes:
        join_ratio: How much longer than that a gap has to be. 1: as soon as it pays on the median gap. Ours.
        wakes_after_ms: How long a job has waited before a node that sleeps is woken for it.

    Source:
        PaddingTorch, Computer Science 51(9), 2024 (the idea of padding load). Order, throttle and victims are ours.
    """

    takes_padding: ClassVar[bool] = True
    fill_period_ms: ClassVar[int] = MS_PER_MIN
    """A gap that was too short to join may turn out to be a long one, which its age tells: the time between two looks
    doubles up to this. Ours."""
    join_ratio: float = 1.0
    wakes_after_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.join_ratio < float("inf"):
            raise ConfigError(f"join_ratio is {self.join_ratio!r}, expected a number from 0 up")
        if self.wakes_after_ms < 0:
            raise ConfigError(f"wakes_after_ms is {self.wakes_after_ms!r}, expected a time from 0 ms up")

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> Grants:
        """See ``Fill``."""
        jobs = snapshot.jobs
        padding = jobs.job_class == int(JobClass.PADDING)
        rows = np.flatnonzero(padding & np.isin(jobs.phase, (_STARTING, _RUNNING, _PENDING)))
        if not len(rows):
            return grants
        left = _Left.of(snapshot, beliefs, grants)
        opened, sleeps = left.opened, bool(self.wakes_after_ms and snapshot.nodes.asleep.any())
        if sleeps:
            left.opened = opened & ~snapshot.nodes.asleep[left.node]
        holders = rows[jobs.phase[rows] != _PENDING].tolist()
        loss = losses(holders, snapshot, beliefs.joins)
        first = sorted(holders, key=lambda row: (-loss[row].leaving_ms if row in loss else 0.0, row))
        gangs = {row: _kept(row, snapshot, left) for row in first}  # if cores are short, who loses most keeps its own
        too_short = self._grow(gangs, rows, snapshot, beliefs, left)
        if sleeps:
            left.opened = opened
            waits = (jobs.phase[rows] == _PENDING) & (snapshot.now_ms - jobs.since_ms[rows] >= self.wakes_after_ms)
            late = rows[waits & ~np.isin(rows, [row for row, gang in gangs.items() if gang])]
            woken: dict[int, list[int]] = {}  # apart, so that no other job grows onto a node that sleeps
            if len(late):
                too_short |= self._grow(woken, late, snapshot, beliefs, left)
            gangs |= woken
        return _added(grants, rows, gangs, snapshot, too_short)

    def _grow(
        self, gangs: dict[int, list[int]], rows: IntArray, snapshot: Snapshot, beliefs: Beliefs, left: _Left,
    ) -> set[int]:
        """Give out what is free, step by step; returns the jobs without GPUs for which only gaps were too short.

        Jobs that wait and are alike would be given the same offer, so that only the first of them is made one.
        """
        too_short = set[int]()
        heap: list[_Entry] = []
        for request in _asks(gangs, rows, snapshot, beliefs, left) if left.any else ():
            _push(heap, -request.bound(len(gangs.get(int(request.rows[0]), ()))), request, request.rows)
        while left.any:  # what others take never raises a bound: who cannot gain most is offered nothing yet
            best: tuple[float, int, tuple[int, ...]] | None = None
            taking, refused = [], []
            while heap and (best is None or heap[0][:2] < best[:2]):
                bound, row, request = heappop(heap)
                offer = self._offer(row, gangs.get(row, []), request, left)
                if offer.takes:
                    taking.append((bound, row, request))
                    best = min(best or (np.inf, row, ()), (-offer.gain, row, offer.takes))
                else:
                    refused.append((bound, row, request, offer.too_short))
            for bound, row, request, short in refused:  # so are those like it whose turn is before that of the winner
                count = len(request.rows)
                if best is not None and bound == best[0]:
                    count = int(np.searchsorted(request.rows, best[1]))
                if short and not gangs.get(row):
                    too_short.update(request.rows[:count].tolist())
                _push(heap, bound, request, request.rows[count:])
            if best is None:
                break
            _, winner, taken = best
            left.take(winner, taken)
            gangs[winner] = sorted([*gangs.get(winner, []), *taken])
            for bound, row, request in taking:
                if row == winner:
                    _push(heap, -request.bound(len(gangs[row])), request, request.rows[:1])
                    _push(heap, bound, request, request.rows[1:])
                else:
                    heappush(heap, (bound, row, request))
        return too_short

    def _offer(self, row: int, gang: list[int], request: _Request, left: _Left) -> _Offer:
        """The next size of a job that pays: the GPUs it would take, and what each of them gains."""
        size, speed, too_short = len(gang), request.speed, False
        for larger in request.sizes:
            if larger <= size or larger >= len(speed):
                continue
            found = left.best(row, gang, larger - size)
            if found is None:
                break
            present = float(speed[size]) if size else 0.0
            gained = float(speed[larger]) - present
            if gained <= 0:
                continue
            ratio = gained / present if present else np.inf
            if left.rest_ms[found].min() < self.join_ratio * request.join_ms * (1.0 + 1.0 / ratio):
                too_short = True
                continue
            return _Offer(takes=tuple(found), gain=gained / (larger - size))
        return _Offer(too_short=too_short)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What a job that runs asks for, or jobs that wait and are alike: an offer suits each of them or none.

    Attributes:
        rows: Rows of the jobs, in order (R,).
        sizes: Numbers of GPUs that each can run on, in increasing order.
        speed: Its speed on 0 to all GPUs, relative to that on the fewest.
        join_ms: What joining costs it.
    """

    rows: IntArray
    sizes: tuple[int, ...]
    speed: FloatArray
    join_ms: float

    def bound(self, size: int) -> float:
        """The most that a job of this size may gain by each GPU of a larger one, whichever GPUs are left."""
        present = float(self.speed[size]) if size else 0.0
        larger = [other for other in self.sizes if size < other < len(self.speed)]
        return max(((float(self.speed[other]) - present) / (other - size) for other in larger), default=-np.inf)


_Entry: TypeAlias = tuple[float, int, _Request]
"""The negative bound of an ask, and the row of the first of its jobs, which no other entry has."""


def _push(heap: list[_Entry], bound: float, request: _Request, rows: IntArray) -> None:
    """Let these of the jobs of an ask, if any, have their turn."""
    if len(rows):
        heappush(heap, (bound, int(rows[0]), replace(request, rows=rows)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """GPUs that a job would take, and the speed that it gains by each, in its own slowest."""

    takes: tuple[int, ...] = ()
    gain: float = 0.0
    too_short: bool = False


@dataclass(slots=True, kw_only=True)
class _Left:
    """What is left of the cluster; K GPUs, node by node.

    Attributes:
        snapshot: The snapshot.
        node: Node of each GPU (K,).
        gpu: Index on the node (K,).
        free: Whether no job is granted a share of it (K,).
        opened: Whether it takes new jobs (K,).
        rest_ms: Expected time until a regular job takes it (K,).
        cpu_milli: Milli-cores left on each node (N,).
        rank_milli: Milli-cores that a rank of each job takes (J,).
        mem_mib: Memory left on each node (N,).
    """

    snapshot: Snapshot
    node: IntArray
    gpu: IntArray
    free: BoolArray
    opened: BoolArray
    rest_ms: FloatArray
    cpu_milli: IntArray
    rank_milli: IntArray
    mem_mib: IntArray
    _first: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self._first = np.concatenate(([0], np.cumsum(self.snapshot.nodes.gpus)))

    @classmethod
    def of(cls, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> _Left:
        """What these grants leave.

        If they say how many loader workers take cores, a rank takes at least one core for its main process, and one of
        a padding job one for a worker: of what regular jobs use to load their data, padding jobs get nothing.
        """
        jobs, nodes = snapshot.jobs, snapshot.nodes
        first = np.concatenate(([0], np.cumsum(nodes.gpus)))
        node = np.repeat(np.arange(len(nodes)), nodes.gpus)
        gpu = np.arange(len(node)) - first[node]
        free = np.ones(len(node), dtype=np.bool_)
        on_gpu = grants.gpu >= 0
        free[first[grants.node[on_gpu]] + grants.gpu[on_gpu]] = False
        loaders = grants.loader_workers
        least = CORE_MILLI if len(loaders) else 0
        taken = np.maximum(cores_milli(jobs, grants.job, grants.gpu, grants.share_milli, None), least)
        if len(loaders):
            taken = taken + loaders * CORE_MILLI
        cores = np.bincount(grants.node, taken, len(nodes)).astype(np.int64)
        mem = np.bincount(grants.node, jobs.mem_mib[grants.job], len(nodes)).astype(np.int64)
        rest_ms = beliefs.gaps.rest_ms(snapshot.gaps, snapshot.now_ms)
        if not len(rest_ms):  # nobody keeps account of the gaps
            rest_ms = np.full(len(node), np.inf)
        return cls(
            snapshot=snapshot, node=node, gpu=gpu, free=free, opened=nodes.takes(node, gpu), rest_ms=rest_ms,
            cpu_milli=nodes.cpu_milli - cores, rank_milli=np.maximum(jobs.cpu_milli, least) + least,
            mem_mib=nodes.mem_mib - mem,
        )

    @property
    def any(self) -> bool:
        """Whether there is a GPU that a job could take."""
        return bool((self.free & self.opened).any())

    def index(self, node: IntArray, gpu: IntArray) -> IntArray:
        """The GPUs at these places."""
        index: IntArray = self._first[node] + gpu
        return index

    def take(self, row: int, gpus: tuple[int, ...] | list[int]) -> None:
        """Give GPUs, and cores and memory with each, to a job."""
        jobs, taken = self.snapshot.jobs, np.asarray(gpus, dtype=np.int64)
        self.free[taken] = False
        np.subtract.at(self.cpu_milli, self.node[taken], self.rank_milli[row])
        np.subtract.at(self.mem_mib, self.node[taken], jobs.mem_mib[row])

    def within(self, row: int, gpus: IntArray) -> IntArray:
        """Of these GPUs, in this order, those for which their nodes have the cores and memory that the job asks for."""
        jobs, node = self.snapshot.jobs, self.node[gpus]
        before = np.zeros(len(gpus), dtype=np.int64)  # GPUs of the same node that come before
        by_node = np.argsort(node, kind="stable")
        ordered = node[by_node]
        before[by_node] = np.arange(len(gpus)) - np.searchsorted(ordered, ordered)
        enough = np.ones(len(gpus), dtype=np.bool_)
        for asked, has in ((self.rank_milli[row], self.cpu_milli), (jobs.mem_mib[row], self.mem_mib)):
            enough &= (before + 1) * asked <= has[node]
        return gpus[enough]

    def best(self, row: int, gang: list[int], count: int) -> list[int] | None:
        """So many free GPUs of one type for a job that has a gang; None if there are not enough."""
        jobs, types = self.snapshot.jobs, self.snapshot.nodes.gpu_type
        allowed = self.free & self.opened
        of_type = types[self.node]
        if gang:
            allowed &= of_type == of_type[gang[0]]
        elif jobs.gpu_type[row] != NONE:
            allowed &= of_type == jobs.gpu_type[row]
        free = np.flatnonzero(allowed)
        chosen: list[int] | None = None
        for kind in np.unique(of_type[free]).tolist():
            of_kind = self.within(row, free[of_type[free] == kind])
            if len(of_kind) < count:
                continue
            found = self._longest(of_kind, gang)[:count]
            if chosen is None or self.rest_ms[found].min() > self.rest_ms[chosen].min():
                chosen = found.tolist()
        return chosen

    def _longest(self, gpus: IntArray, gang: list[int]) -> IntArray:
        """Longest predicted gap first; among gaps of about one length, near the gang, then on the emptiest nodes."""
        rest = np.maximum(self.rest_ms[gpus], 1.0)
        octave = np.floor(np.log2(rest, where=np.isfinite(rest), out=np.full(len(rest), np.inf)))
        beside = np.isin(self.node[gpus], self.node[gang]) if gang else np.zeros(len(gpus), dtype=np.bool_)
        crowd = np.bincount(self.node[gpus], minlength=len(self.cpu_milli))[self.node[gpus]]
        order: IntArray = gpus[np.lexsort((gpus, self.node[gpus], -crowd, ~beside, -octave))]
        return order


def _kept(row: int, snapshot: Snapshot, left: _Left) -> list[int]:
    """What a job keeps of its GPUs: as many of those that are left as it can run on, the longest gaps of them."""
    held = snapshot.grants
    mine = (held.job == row) & (held.gpu >= 0)
    gpus = left.index(held.node[mine], held.gpu[mine])
    gpus = gpus[left.free[gpus]]
    if not len(gpus):
        return []
    longest = left.within(row, gpus[np.lexsort((gpus, -left.rest_ms[gpus]))])
    size = max((size for size in snapshot.jobs.sizes_of(row) if size <= len(longest)), default=0)
    kept: list[int] = sorted(longest[:size].tolist())
    left.take(row, kept)
    return kept


def _asks(
    gangs: dict[int, list[int]], rows: IntArray, snapshot: Snapshot, beliefs: Beliefs, left: _Left
) -> list[_Request]:
    """What those ask for that run on all that they had, and those that wait."""
    jobs, joins = snapshot.jobs, beliefs.joins
    full = [jobs.phase[row] == _RUNNING and len(gang) == jobs.gpus_now[row] for row, gang in gangs.items()]
    growing, waiting = np.array(list(gangs), dtype=np.int64)[full], rows[jobs.phase[rows] == _PENDING]
    growth_ms = joins.growth_ms(snapshot.joins, growing)
    join_ms = np.where(jobs.gpus_now[growing] > 0, growth_ms, joins.start_ms(snapshot.joins, growing))
    start_ms = joins.start_ms(snapshot.joins, waiting)
    known = beliefs.speeds.of_jobs(snapshot)
    kinds = _alike(waiting, start_ms, snapshot, known)
    tried = np.array([*growing, *(waiting[kind[0]] for kind in kinds)], dtype=np.int64)
    most = min(int(jobs.gpus_max[rows].max()), len(left.node))
    return [
        _Request(rows=alike, sizes=jobs.sizes_of(row), speed=speed, join_ms=float(cost_ms))
        for alike, row, speed, cost_ms in zip(
            [*growing[:, None], *(waiting[kind] for kind in kinds)], tried.tolist(),
            _speeds(tried, most, snapshot, known), [*join_ms, *(start_ms[kind[0]] for kind in kinds)], strict=True,
        )
    ]


def _alike(rows: IntArray, join_ms: FloatArray, snapshot: Snapshot, speeds: Speeds) -> list[IntArray]:
    """Indices of the rows of jobs that wait and are alike, each kind in order."""
    jobs, known = snapshot.jobs, speeds.known[rows]
    asks = np.stack((
        jobs.gpus[rows], jobs.gpus_min[rows], jobs.gpus_max[rows], jobs.size_list[rows], jobs.gpu_type[rows],
        jobs.cpu_milli[rows], jobs.mem_mib[rows], join_ms.view(np.int64),
        *(np.where(known, column[rows], NONE) for column in (jobs.batch, jobs.batch_now, jobs.local_batch_max)),
        *(np.where(known, column, 0.0).view(np.int64) for column in speeds.parameters[rows].T),
    ))
    by_kind = np.lexsort(asks)  # stable
    differs = (np.diff(asks[:, by_kind], axis=1) != 0).any(axis=0)
    return np.split(by_kind, np.flatnonzero(differs) + 1) if len(rows) else []


def _speeds(rows: IntArray, most: int, snapshot: Snapshot, speeds: Speeds) -> list[FloatArray]:
    """Speed of each job on 0 to ``most`` GPUs, relative to its fewest, at the batch that it has."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    found = dict.fromkeys(rows.tolist(), np.arange(most + 1, dtype=np.float64) ** _UNTRIED)
    batch = np.where(jobs.batch_now == NONE, jobs.batch, jobs.batch_now)
    known = rows[speeds.known[rows] & (batch[rows] > 0) & (jobs.local_batch_max[rows] > 0)]
    if len(known):
        limits = Limits(
            batch_min=batch[known], batch_max=batch[known], local_batch_min=np.ones(len(known), dtype=np.int64),
            local_batch_max=np.minimum(jobs.local_batch_max[known], batch[known]),
        )
        nodes_G = fewest_nodes(most, int(nodes.gpus.max()))
        rates, _ = fixed_batches(speeds.parameters[known], nodes_G, batch[known], limits)
        found |= dict(zip(known.tolist(), np.where(np.isfinite(rates), rates, 0.0), strict=True))
    fewest = [jobs.sizes_of(row)[0] for row in found]
    return [speed / max(speed[least] if least <= most else 1.0, 1e-9)
            for least, speed in zip(fewest, found.values(), strict=True)]


def _added(
    grants: Grants, rows: IntArray, gangs: dict[int, list[int]], snapshot: Snapshot, too_short: set[int]
) -> Grants:
    """The grants with those of padding jobs, which are revocable, and why the others of these jobs wait."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    first = np.concatenate(([0], np.cumsum(nodes.gpus)))
    holders = sorted(row for row, gang in gangs.items() if gang)
    job = np.array([row for row in holders for _ in gangs[row]], dtype=np.int64)
    place = np.array([gpu for row in holders for gpu in gangs[row]], dtype=np.int64)
    node = np.searchsorted(first, place, side="right") - 1
    why = grants.why.copy()
    why[rows], why[list(too_short)], why[holders] = int(Reason.TOO_FEW_FREE), int(Reason.SHORT_GAPS), int(Reason.RUNS)
    before = grants.revocable if len(grants.revocable) else np.zeros(len(grants), dtype=np.bool_)
    return replace(
        grants, job=np.append(grants.job, job), node=np.append(grants.node, node),
        gpu=np.append(grants.gpu, place - first[node]),
        share_milli=np.append(grants.share_milli, jobs.share_milli[job]), why=why,
        revocable=np.append(before, np.ones(len(job), dtype=np.bool_)), loader_workers=EMPTY,
    )
