"""Placement of jobs whose sizes change: a job of the same size keeps its GPUs unless it splits a larger gang."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.policies.place.free_resources import (
    CONSOLIDATE,
    CPU,
    MEM,
    WHOLE,
    WHOLES,
    FreeResources,
    GangRequest,
    all_free,
    choose,
    withhold,
)
from brim.policies.place.inputs import as_before, check_inputs, without_cpu_ranks
from brim.policies.place.parts import NO_CLASSES
from brim.policies.place.walk import give_pairs, put_in_turn, take_in_turn, take_pairs
from brim.policies.sockets import Sizes

_WHY: Final = {int(Phase.HELD): int(Reason.HELD), int(Phase.STOPPING): int(Reason.STOPPING)}


@dataclass(frozen=True, slots=True)
class Repack:
    """Fewest nodes for every gang, largest first.

    A job that keeps its size stays where it is. The others are placed anew, the largest first. If such a gang would be
    split over more nodes than it fills, smaller jobs are moved out of its way, those with the fewest GPUs in total.
    With sizes that are powers of two up to a node, and whole nodes above, no gang is split as long as all jobs fit. If
    nodes differ so much that there is no room for a gang, the job keeps GPUs that it has, or is given fewer down to its
    ``gpus_min``; never more than its size.

    Where jobs change their size in place, a job keeps as many of its GPUs on a node as it is to have there, since its
    state is on them. Elsewhere it makes no difference which GPUs of a node it has.

    Source:
        Effective Elastic Scaling asks for few nodes per job and leaves the rule open; this rule is ours.
    """

    moves_running: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """See ``Place``."""
        given, snapshot = snapshot, without_cpu_ranks(snapshot)
        check_inputs(snapshot, order, sizes.gpus)
        jobs, want = snapshot.jobs, sizes.gpus.copy()
        placement = _Placement(snapshot, want)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        anew = np.flatnonzero((want > 0) & (jobs.waits | (jobs.holds & (want != jobs.gpus_now))))
        queue = anew[np.lexsort((rank[anew], -want[anew]))].tolist()
        while queue:
            del queue[: placement.put_plainly(queue)]
            moved = placement.settle(queue.pop(0)) if queue else []
            if moved:
                queue = sorted(queue + moved, key=lambda row: (-want[row], rank[row]))
        if beliefs.in_place_ms is not None:
            placement.keep_own()
        return as_before(placement.grants(jobs.phase), given)


@dataclass(slots=True)
class _Placement:
    """Which job has which GPUs while a round's placement is made."""

    snapshot: Snapshot
    want: IntArray
    free: FreeResources = field(init=False)
    share: IntArray = field(init=False)
    pairs_of: dict[int, IntArray] = field(init=False)
    scratch: IntArray = field(init=False)
    too_few: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        nodes, jobs, held = self.snapshot.nodes, self.snapshot.jobs, self.snapshot.grants
        self.free = all_free(
            nodes.gpu_type, nodes.gpus, nodes.cpu_milli, nodes.mem_mib, nodes.is_open, len(self.snapshot.gpu_types)
        )
        withhold(self.free, nodes.withheld)
        self.scratch = np.zeros((2, len(nodes)), dtype=np.int64)
        self.pairs_of = {}
        self.share = np.where(jobs.holds, jobs.share_now, jobs.share_milli)
        stays = jobs.holds & (self.want == jobs.gpus_now)
        if len(held):
            pairs = np.stack((held.node, held.gpu), axis=1)
            starts = np.flatnonzero(np.diff(held.job, prepend=-1))
            begin, end, rows = starts, np.append(starts[1:], len(held)), held.job[starts]
            stay = stays[rows]
            self.pairs_of.update(
                (row, pairs[start:stop])
                for row, start, stop in zip(rows[stay].tolist(), begin[stay].tolist(), end[stay].tolist(), strict=True)
            )
            take_in_turn(self.free, self._gangs(rows[stay]), np.ascontiguousarray(pairs[stays[held.job]]))

    def _gangs(self, rows: IntArray) -> IntArray:
        """The fields of each gang's ``GangRequest`` (A, 5)."""
        jobs = self.snapshot.jobs
        return np.column_stack((
            self.want[rows], self.share[rows], jobs.cpu_milli[rows], jobs.mem_mib[rows], jobs.gpu_type[rows],
        ))

    def _gang(self, row: int) -> GangRequest:
        jobs = self.snapshot.jobs
        return GangRequest(int(self.want[row]), int(self.share[row]), int(jobs.cpu_milli[row]), int(jobs.mem_mib[row]),
                   int(jobs.gpu_type[row]))

    def _put(self, row: int, pairs: IntArray) -> None:
        self.pairs_of[row] = pairs
        take_pairs(self.free, self._gang(row), pairs)

    def _lift(self, row: int) -> IntArray:
        pairs = self.pairs_of.pop(row)
        give_pairs(self.free, self._gang(row), pairs)
        return pairs

    def _find(self, gang: GangRequest) -> IntArray | None:
        pairs = np.empty((gang.gpus, 2), dtype=np.int64)
        return pairs if choose(self.free, gang, CONSOLIDATE, NO_CLASSES, self.scratch, pairs) else None

    def put_plainly(self, rows: list[int]) -> int:
        """Place gangs in turn, as long as no other job need move; returns how many were placed."""
        gangs = self._gangs(np.array(rows, dtype=np.int64))
        pairs = np.empty((int(gangs[:, 0].sum()), 2), dtype=np.int64)
        placed = put_in_turn(self.free, gangs, int(self.snapshot.nodes.gpus.max()), NO_CLASSES, self.scratch, pairs)
        ends = np.cumsum(gangs[:placed, 0]).tolist()
        self.pairs_of.update(
            (row, pairs[start:stop]) for row, start, stop in zip(rows[:placed], [0, *ends][:-1], ends, strict=True)
        )
        return placed

    def settle(self, row: int) -> list[int]:
        """Place one gang; returns the rows of jobs that were moved and must be placed again."""
        gang = self._gang(row)
        pairs = self._find(gang)
        moved: list[int] = []
        if pairs is None or _nodes(pairs) > self._fewest(gang.gpus):
            moved, pairs = self._clear(gang, pairs)
        if pairs is None:
            pairs = self._make_do(row)
        if pairs is None:
            self.too_few.append(row)
        else:
            self._put(row, pairs)
        return moved

    def _clear(self, gang: GangRequest, pairs: IntArray | None) -> tuple[list[int], IntArray | None]:
        """Move jobs out of the way if the gang then uses fewer nodes and the moved jobs fit elsewhere."""
        stood = {other: self._lift(other) for other in self._in_the_way(gang)}
        better = self._find(gang) if stood else None
        if better is not None and (pairs is None or _nodes(better) < _nodes(pairs)) and self._fit(gang, better, stood):
            return list(stood), better
        for other, at in stood.items():
            self._put(other, at)
        return [], pairs

    def _fit(self, gang: GangRequest, pairs: IntArray, others: Iterable[int]) -> bool:
        """Whether all of the jobs that were lifted would fit beside a gang."""
        take_pairs(self.free, gang, pairs)
        tried = sorted(others, key=lambda row: (-int(self.want[row]), row))
        for other in tried:
            found = self._find(self._gang(other))
            if found is None:
                break
            self._put(other, found)
        placed = [other for other in tried if other in self.pairs_of]
        for other in placed:
            self._lift(other)
        give_pairs(self.free, gang, pairs)
        return len(placed) == len(tried)

    def _make_do(self, row: int) -> IntArray | None:
        """GPUs for a gang that fits nowhere because nodes differ: GPUs it has, else fewer GPUs elsewhere."""
        jobs, held = self.snapshot.jobs, self.snapshot.grants
        if jobs.holds[row]:
            mine = held.job == row
            pairs = np.ascontiguousarray(np.stack((held.node[mine], held.gpu[mine]), axis=1))[: self.want[row]]
            if self._are_free(pairs, self._gang(row)):
                self.want[row] = len(pairs)
                return pairs
        least = int(jobs.gpus_min[row])
        for fewer in reversed([size for size in jobs.sizes_of(row) if least <= size < self.want[row]]):
            self.want[row] = fewer
            found = self._find(self._gang(row))
            if found is not None:
                return found
        return None

    def _are_free(self, pairs: IntArray, gang: GangRequest) -> bool:
        """Whether these GPUs are free for the gang; unlike ``choose``, nodes that take no new jobs count too."""
        node, (where, count) = self.free.node, np.unique(pairs[:, 0], return_counts=True)
        return bool(
            (node[pairs[:, 0], pairs[:, 1]] >= gang.share).all()
            and (node[where, CPU] >= count * gang.cpu).all() and (node[where, MEM] >= count * gang.mem).all()
        )

    def _fewest(self, gpus: int) -> int:
        return -(-gpus // int(self.snapshot.nodes.gpus.max()))

    def _in_the_way(self, gang: GangRequest) -> list[int]:
        """Smaller jobs that must move so that the gang fits on the fewest nodes; none if moving jobs does not help.

        Of all types and nodes, those with the fewest GPUs in the way are chosen.
        """
        by_node: dict[int, list[int]] = {}
        for other, pairs in self.pairs_of.items():
            if len(pairs) < gang.gpus and pairs[0, 0] == pairs[-1, 0] and not self._shares(other):
                by_node.setdefault(int(pairs[0, 0]), []).append(other)
        kinds = [gang.gpu_type] if gang.gpu_type >= 0 else range(len(self.snapshot.gpu_types))
        ways = [way for kind in kinds if (way := self._way(gang.gpus, kind, by_node)) is not None]
        return min(ways, key=lambda way: way[0])[1] if ways else []

    def _way(self, gpus: int, kind: int, by_node: dict[int, list[int]]) -> tuple[int, list[int]] | None:
        """The number of GPUs in a gang's way on nodes of one type, and their jobs; None if it cannot fit there."""
        nodes = self.snapshot.nodes
        full, rest = divmod(gpus, int(nodes.gpus.max()))
        parts = [int(nodes.gpus.max())] * full + ([rest] if rest else [])
        wholes = self.free.node[:, WHOLES]
        moved: list[int] = []
        taken: set[int] = set()
        total = 0
        for part in parts:
            best: tuple[int, int, list[int]] | None = None
            able = np.flatnonzero((nodes.gpus_open >= part) & (nodes.gpu_type == kind))
            lack = np.maximum(part - wholes[able], 0)
            by_lack = np.lexsort((able, lack))
            for least, node in zip(lack[by_lack].tolist(), able[by_lack].tolist(), strict=True):
                if best is not None and (least, node) > best[:2]:
                    break  # on this node and all later ones, no fewer GPUs are in the way
                if node in taken:
                    continue
                leaving = _enough([(len(self.pairs_of[o]), o) for o in by_node.get(node, ())], part - int(wholes[node]))
                if leaving is None:
                    continue
                cost = sum(len(self.pairs_of[other]) for other in leaving)
                if best is None or (cost, node) < best[:2]:
                    best = cost, node, leaving
            if best is None:
                return None
            taken.add(best[1])
            total += best[0]
            moved += best[2]
        return total, moved

    def _shares(self, row: int) -> bool:
        return bool(self.share[row] < WHOLE)

    def keep_own(self) -> None:
        """Exchange whole GPUs within nodes, so that jobs keep those that they have."""
        if any(self._shares(row) for row in self.pairs_of):
            return
        held, takes = self.snapshot.grants, self.snapshot.nodes.takes
        owner = {(node, gpu): row for row, pairs in self.pairs_of.items() for node, gpu in pairs.tolist()}
        stays = takes(held.node, held.gpu)
        for row, node, gpu in zip(held.job[stays].tolist(), held.node[stays].tolist(), held.gpu[stays].tolist(),
                                  strict=True):  # fmt: skip
            own = set(zip(held.node[held.job == row].tolist(), held.gpu[held.job == row].tolist(), strict=True))
            others = sorted(at for at, job in owner.items() if job == row and at[0] == node and at not in own)
            if others and owner.get((node, gpu)) != row:
                there = owner.pop((node, gpu), None)
                owner[node, gpu] = row
                del owner[others[0]]
                if there is not None:
                    owner[others[0]] = there
        for row in self.pairs_of:
            self.pairs_of[row] = np.array(sorted(at for at, job in owner.items() if job == row), dtype=np.int64)

    def grants(self, phase: IntArray) -> Grants:
        """The grants, and why each job without GPUs waits."""
        why = np.full(len(phase), int(Reason.NOT_NOW))
        for code, reason in _WHY.items():
            why[phase == code] = reason
        why[self.too_few] = int(Reason.TOO_FEW_FREE)
        rows = sorted(self.pairs_of)
        why[rows] = int(Reason.RUNS)
        pairs = np.concatenate([self.pairs_of[row] for row in rows]) if rows else np.zeros((0, 2), dtype=np.int64)
        job = np.repeat(rows, [len(self.pairs_of[row]) for row in rows]).astype(np.int64)
        return Grants(
            job=job, node=pairs[:, 0].copy(), gpu=pairs[:, 1].copy(), share_milli=self.share[job],
            why=why, blocker=np.full(len(phase), -1, dtype=np.int64),
        )


def _nodes(pairs: IntArray) -> int:
    return len(np.unique(pairs[:, 0]))


def _enough(jobs: list[tuple[int, int]], gpus: int) -> list[int] | None:
    """Rows of the (size, row) jobs that hold at least ``gpus`` GPUs: fewest GPUs, then fewest jobs; None if too few."""
    best: dict[int, list[int]] = {0: []}
    for size, row in sorted(jobs, reverse=True):
        for total, rows in list(best.items()):
            so_far = best.get(total + size)
            if total < gpus and (so_far is None or not rows or len(rows) + 1 < len(so_far)):
                best[total + size] = [*rows, row]
    enough = [total for total in best if total >= gpus]
    return best[min(enough)] if enough else None
