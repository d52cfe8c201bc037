"""The speed of each job on each number of GPUs: the table from which elastic size parts choose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.batching import GradientStatistics, Limits, best_batches, fewest_nodes, fixed_batches
from brim.beliefs.speeds import Speeds
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE
from brim.policies.sockets import Sizes
from brim.units import MS_PER_S, WHOLE_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Rates and batches of J jobs on 0 to G GPUs.

    Attributes:
        rate_JG: Samples per second (J, G + 1); -inf where the job cannot or may not run, as in all of column 0.
        batch_JG: Global batch that gives this rate, -1 for jobs that have none (J, G + 1).
        least: Fewest GPUs the job may run on, 0 for a job that cannot run on the open nodes (J,).
        fitted: Whether the rates come from a fitted model; other jobs have only one size, at rate 1 (J,).
        active: Whether the job takes part: it waits, or holds GPUs and may be given others (J,).
        stays: GPUs of a job that is not changed because it holds a GPU that takes no new jobs, or has a smaller share
            of its GPUs than it asks for, beside others; else 0 (J,).
        capacity: GPUs for the jobs that take part.
        possible: Job and GPUs of each rate that is not -inf, two columns (F,). They are few in a long queue.
    """

    rate_JG: FloatArray
    batch_JG: IntArray
    least: IntArray
    fitted: BoolArray
    active: BoolArray
    stays: IntArray
    capacity: int
    possible: tuple[IntArray, IntArray]

    @property
    def speedup(self) -> FloatArray:
        """Rates of the possible sizes, relative to the fewest GPUs a job may run on (F,)."""
        job, gpus = self.possible
        speedup: FloatArray = self.rate_JG[job, gpus] / self.rate_JG[job, self.least[job]]
        return speedup

    def sizes(self, gpus: IntArray, snapshot: Snapshot) -> Sizes:
        """The chosen GPUs (J,) with their batches; a job without GPUs, or one that stays, keeps its last batch."""
        chosen = np.take_along_axis(self.batch_JG, gpus[:, None], axis=1)[:, 0]
        return Sizes(gpus=gpus + self.stays, global_batch=np.where(gpus > 0, chosen, snapshot.jobs.batch_now))


def candidates(
    snapshot: Snapshot, speeds: Speeds, *, gpus_max: int, growth: int | None = None, noise: bool = True,
    batch: IntArray | None = None, accumulation: bool = True,
) -> Candidates:
    """Evaluate all sizes of all jobs.

    A job that has reported nothing yet is offered only its fewest GPUs, at its smallest batch, and is measured there. A
    rigid job is offered what its user asked for, and so is a job whose batches no size can split or whose step times
    fit no model. Sizes are powers of two up to a node and whole nodes above, because these fit together without holes.

    Args:
        snapshot: Snapshot of the cluster.
        speeds: Fitted speeds of its jobs.
        gpus_max: Most GPUs for an elastic job.
        growth: A job may get this many times the most GPUs it has reported from, or the next size that it lists above
            those if that is more; None for no such limit.
        noise: Whether to discount large batches for their smaller progress per sample.
        batch: Fixed batch of each job (J,); None to choose the best.
        accumulation: Whether a GPU may do several micro-steps per step; if not, it still may for jobs that could not
            run otherwise.
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    width, reach = int(nodes.gpus.max()), _reach(snapshot)
    stays, capacity = _left_alone(snapshot)
    active = (jobs.holds & (stays == 0)) | jobs.waits
    elastic = jobs.elastic
    most = np.minimum(np.minimum(jobs.gpus_max, gpus_max), reach)
    if growth is not None:
        most = np.minimum(most, _grown(snapshot, speeds, growth))
    widest = int(np.maximum(most, jobs.gpus_min).max(initial=1))
    G = max(min(gpus_max, int(reach.max(initial=1)), widest), int(jobs.gpus.max(initial=1)), 1)
    rate = np.full((len(jobs), G + 1), -np.inf)
    batches = np.full((len(jobs), G + 1), NONE, dtype=np.int64)
    fitted = active & elastic & speeds.known
    is_new = active & elastic & ~speeds.known & ~speeds.failed
    new = np.flatnonzero(is_new)
    rate[new], batches[new] = 1.0, (jobs.batch_min if batch is None else batch)[new, None]
    size = np.arange(G + 1)
    inside: BoolArray = (size >= jobs.gpus_min[:, None]) & (size <= most[:, None])
    allowed: BoolArray = np.where(inside, _fits_together(G, width), False)
    for code, listed in enumerate(jobs.size_lists):  # a job that lists its sizes is offered these
        rows = jobs.size_list == code
        allowed[rows] = inside[rows] & np.isin(size, listed)
    fewest_only = ~allowed.any(axis=1) & (jobs.gpus_min <= reach)
    allowed |= fewest_only[:, None] & (size == jobs.gpus_min[:, None])
    first = np.where(allowed.any(axis=1), allowed.argmax(axis=1), 0)
    allowed[new] &= size == first[new, None]
    rate[~allowed] = -np.inf
    rows = np.flatnonzero(fitted)
    for accumulate in (False, True) if not accumulation else (True,):
        beyond = allowed[rows, width + 1 :].any(axis=1)
        for part in (rows[~beyond], rows[beyond]):  # most jobs of a long queue may grow to a node at most
            _evaluate(rate, batches, allowed, part, snapshot, speeds, noise, batch, accumulate)
        rows = rows[~np.isfinite(rate[rows]).any(axis=1)]
    fitted[rows] = False  # no batch is possible on any size
    rigid = np.flatnonzero(active & ~fitted & ~is_new)
    rate[rigid, :], batches[rigid, :] = -np.inf, jobs.batch[rigid, None]
    rigid = rigid[jobs.gpus[rigid] <= reach[rigid]]
    rate[rigid, jobs.gpus[rigid]] = 1.0
    rate[:, 0] = -np.inf
    finite = np.isfinite(rate)
    row, gpus = np.nonzero(finite)
    return Candidates(
        rate_JG=rate, batch_JG=batches, least=np.where(finite.any(axis=1), finite.argmax(axis=1), 0), fitted=fitted,
        active=active, stays=stays, capacity=capacity, possible=(row, gpus),
    )



def per_sample_ms(found: Candidates) -> FloatArray:
    """GPU time of a sample on the fewest GPUs of each job, in ms, NaN where not known (J,)."""
    rate = np.take_along_axis(found.rate_JG, found.least[:, None], axis=1)[:, 0]
    known = found.fitted & (found.least > 0)
    return np.where(known, found.least * MS_PER_S / np.where(known, rate, 1.0), np.nan)


def _grown(snapshot: Snapshot, speeds: Speeds, growth: int) -> IntArray:
    """Most GPUs of each job under a limit to its growth (J,)."""
    jobs = snapshot.jobs
    seen = np.maximum(speeds.gpus_seen, jobs.gpus_min)
    most = growth * seen
    for code, listed in enumerate(jobs.size_lists):  # gaps between them may be wider than the growth
        rows = np.flatnonzero(jobs.size_list == code)
        following = np.minimum(np.searchsorted(listed, seen[rows], side="right"), len(listed) - 1)
        most[rows] = np.maximum(most[rows], np.asarray(listed, dtype=np.int64)[following])
    return most


def _left_alone(snapshot: Snapshot) -> tuple[IntArray, int]:
    """GPUs of each job that holds a closed GPU or shares its GPUs (J,), and the open GPUs that such jobs do not hold.

    Residents stay as they are: who has met whom is on trial, and their speeds hold for these sizes only.
    """
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    is_open = nodes.takes(held.node, held.gpu)
    stays = np.zeros(len(jobs), dtype=np.int64)
    stuck = held.job[~is_open | ((held.gpu >= 0) & (held.share_milli < jobs.share_milli[held.job]))]
    stays[stuck] = jobs.gpus_now[stuck]
    theirs = held.share_milli[is_open & (stays[held.job] > 0)].sum()
    return stays, max(int(nodes.gpus_open.sum()) - -(-int(theirs) // WHOLE_GPU), 0)


def _reach(snapshot: Snapshot) -> IntArray:
    """Most GPUs of one type that the open nodes could give each job if they were empty (J,)."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    asks = np.stack((jobs.gpu_type, jobs.cpu_milli, jobs.mem_mib))
    if (asks[:, 1:] == asks[:, :-1]).all():  # sorting columns takes longer than the rest of a round of few jobs
        kinds, kind_of = asks[:, :1], np.zeros(len(jobs), dtype=np.int64)
    else:
        kinds, kind_of = np.unique(asks, axis=1, return_inverse=True)
    reach = np.zeros(kinds.shape[1], dtype=np.int64)
    for kind, (gpu_type, cpu, mem) in enumerate(kinds.T.tolist()):
        slots = np.where((gpu_type == NONE) | (nodes.gpu_type == gpu_type), nodes.gpus_open, 0)
        if cpu:
            slots = np.minimum(slots, nodes.cpu_milli // cpu)
        if mem:
            slots = np.minimum(slots, nodes.mem_mib // mem)
        reach[kind] = np.bincount(nodes.gpu_type, weights=slots).max()
    return reach[kind_of.reshape(-1)]


def _evaluate(
    rate: FloatArray, batches: IntArray, allowed: BoolArray, rows: IntArray, snapshot: Snapshot, speeds: Speeds,
    noise: bool, batch: IntArray | None, accumulation: bool,
) -> None:
    """Fill in rates and batches of some rows from their fitted models, where a size is allowed."""
    sizes = np.flatnonzero(allowed[rows].any(axis=0))
    if not len(sizes):
        return
    jobs, columns = snapshot.jobs, slice(0, int(sizes[-1]) + 1)
    limits = Limits(
        batch_min=jobs.batch_min[rows], batch_max=jobs.batch_max[rows],
        local_batch_min=np.maximum(jobs.local_batch_min[rows], 1), local_batch_max=jobs.local_batch_max[rows],
    )
    known = GradientStatistics(jobs.grad_var[rows], jobs.grad_sqr[rows]) if noise else None
    where = speeds.parameters[rows], fewest_nodes(int(sizes[-1]), int(snapshot.nodes.gpus.max()))
    found, batches[rows, columns] = (
        best_batches(*where, limits, known, accumulation=accumulation) if batch is None
        else fixed_batches(*where, batch[rows], limits, known, accumulation=accumulation)
    )
    rate[rows, columns] = np.where(allowed[rows, columns], found, -np.inf)


def _fits_together(gpus_max: int, width: int) -> BoolArray:
    """Which sizes fill nodes of ``width`` GPUs without holes: powers of two below it, and its multiples (G + 1,)."""
    size = np.arange(gpus_max + 1)
    power_of_two = (size & (size - 1)) == 0
    together: BoolArray = (size > 0) & np.where(size < width, power_of_two, size % width == 0)
    return together
