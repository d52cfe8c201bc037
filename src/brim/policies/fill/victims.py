"""Which padding jobs give way to regular jobs: those that lose least. Pure.

Place decides about regular jobs without knowing what padding jobs hold, and GPUs of a node that are whole and open are
alike to it. So the GPUs that it newly gave are exchanged within their node: for free ones first, then for those by
which padding jobs lose least. Who starts, when and on which node stays as it was. Shapes: J jobs, G grants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from brim.beliefs.joins import PastJoins
from brim.core.arrays import BoolArray, IntArray, frozen
from brim.core.lifecycle import Phase
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.units import WHOLE_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a padding job loses, in GPU-ms, when GPUs are taken from it.

    A job that keeps some loses a growth, since it will come back to its size. One that keeps none loses a start, and
    the work that it has not saved: nothing if it reports what it has done, since ``brim.train`` saves when it is told
    to leave; everything since it began to run if it does not.

    Attributes:
        gpus: GPUs that it has.
        sizes: Numbers of GPUs that it can run on.
        growth_ms: What its next growth will cost.
        leaving_ms: What it loses on each GPU if it has to leave.
    """

    gpus: int
    sizes: tuple[int, ...]
    growth_ms: float
    leaving_ms: float

    def of(self, taken: int) -> float:
        """What it loses by so many GPUs."""
        if not taken:
            return 0.0
        keeps = any(size <= self.gpus - taken for size in self.sizes)
        return (self.growth_ms if keeps else self.leaving_ms) * self.gpus


def losses(rows: Iterable[int], snapshot: Snapshot, joins: PastJoins) -> dict[int, Loss]:
    """What each of these jobs that hold GPUs loses by giving some back."""
    jobs, found = snapshot.jobs, dict[int, Loss]()
    holders = np.array([row for row in rows if jobs.gpus_now[row]], dtype=np.int64)
    start_ms, growth_ms = joins.start_ms(snapshot.joins, holders), joins.growth_ms(snapshot.joins, holders)
    for row, start, growth in zip(holders.tolist(), start_ms.tolist(), growth_ms.tolist(), strict=True):
        since_ms = jobs.running_since_ms if jobs.phase[row] == Phase.RUNNING else jobs.since_ms
        saves = jobs.phase[row] == Phase.RUNNING and jobs.samples_done[row] > 0
        unsaved_ms = 0 if saves else snapshot.now_ms - int(since_ms[row])
        found[row] = Loss(
            gpus=int(jobs.gpus_now[row]), sizes=tuple(jobs.sizes_of(row)),
            growth_ms=growth, leaving_ms=start + unsaved_ms,
        )
    return found


def spare_padding(snapshot: Snapshot, joins: PastJoins, placed: Grants, padding: BoolArray) -> Grants:
    """Return the grants of regular jobs such that padding jobs lose least by them; the same ones if nothing is gained.

    Args:
        snapshot: What jobs have.
        joins: What starts and growths cost.
        placed: What Place gave to regular jobs.
        padding: Which jobs are padding jobs (J,).
    """
    held = snapshot.grants
    theirs = padding[held.job] & (held.gpu >= 0)
    new = (placed.gpu >= 0) & (placed.share_milli == WHOLE_GPU)
    new &= ~np.isin(_codes(placed.job, placed.node, placed.gpu), _codes(held.job, held.node, held.gpu))
    hit = np.isin(_places(placed.node, placed.gpu), _places(held.node[theirs], held.gpu[theirs])) & new
    if not hit.any():
        return placed
    loss = losses(np.unique(held.job[theirs]).tolist(), snapshot, joins)
    taken, gpu = dict.fromkeys(loss, 0), placed.gpu.copy()
    for node in np.unique(placed.node[hit]).tolist():
        mine = theirs & (held.node == node)
        here = np.flatnonzero(new & (placed.node == node))
        asked = placed.gpu[here].tolist()
        fixed = placed.gpu[(placed.node == node) & ~new].tolist()
        leaving = held.gpu[~theirs & (held.node == node)].tolist()  # a regular job may take longer than padding's grace
        owner = dict(zip(held.gpu[mine].tolist(), held.job[mine].tolist(), strict=True))
        every = np.arange(int(snapshot.nodes.gpus[node]))
        open_there = every[snapshot.nodes.takes(np.full(len(every), node), every)].tolist()
        others_there = sorted({*open_there}.difference(asked, fixed, leaving))
        chosen = _chosen(len(here), [*sorted(asked), *others_there], owner, loss, taken)
        others = iter(sorted(set(chosen) - set(asked)))
        gpu[here] = [one if one in chosen else next(others) for one in asked]
    if np.array_equal(gpu, placed.gpu):
        return placed
    begins = {job: at for at, job in reversed(list(enumerate(placed.job.tolist())))}
    order = np.lexsort((gpu, placed.node, np.array([begins[job] for job in placed.job.tolist()])))
    return replace(placed, gpu=frozen(gpu[order]), **{
        name: frozen(column[order]) for name in ("job", "node", "share_milli", "revocable", "loader_workers")
        if len(column := getattr(placed, name))
    })


def _chosen(
    count: int, usable: list[int], owner: dict[int, int], loss: dict[int, Loss], taken: dict[int, int]
) -> list[int]:
    """So many of the usable GPUs of a node: free ones, then those by which padding jobs together lose least.

    Args:
        count: How many.
        usable: In the order in which equal ones are chosen.
        owner: Padding job that holds each, none for a free one.
        loss: What each padding job loses.
        taken: GPUs taken from each so far; this function adds to it.
    """
    chosen = [one for one in usable if one not in owner][:count]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]  # for 0, 1, 2 ... GPUs: the loss, and GPUs taken from each
    rows = sorted(set(owner.values()))
    theirs = [[one for one in usable if owner.get(one) == row] for row in rows]
    for row, gpus in zip(rows, theirs, strict=True):
        before = loss[row].of(taken[row])
        added = [loss[row].of(taken[row] + more) - before for more in range(len(gpus) + 1)]
        best = [
            min((best[number - more][0] + added[more], (*best[number - more][1], more))
                for more in range(len(added)) if 0 <= number - more < len(best))
            for number in range(len(best) + len(gpus))
        ]
    for row, gpus, more in zip(rows, theirs, best[count - len(chosen)][1], strict=True):
        taken[row] += more
        chosen += gpus[:more]
    return chosen


def _places(node: IntArray, gpu: IntArray) -> IntArray:
    """A number for each node and GPU (G,)."""
    places: IntArray = (node << 16) + gpu
    return places


def _codes(job: IntArray, node: IntArray, gpu: IntArray) -> IntArray:
    """A number for each job, node and GPU (G,)."""
    codes: IntArray = (job << 40) + _places(node, gpu)
    return codes
