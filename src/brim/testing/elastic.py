"""Elastic jobs for tests: a truth given by a formula, a policy that follows a script, and one that acts at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.events import Report, Sample
from brim.core.lifecycle import Phase
from brim.core.snapshot import Snapshot
from brim.core.tables import EMPTY, Grants
from brim.core.trace import NONE, Trace
from brim.policies.order.arrival import Arrival
from brim.policies.presets import PRESETS
from brim.policies.sockets import Policy, Sizes
from brim.sim.truths.truth import ALONE, Colocation, Pace
from brim.testing.builders import Job, limits_of
from brim.testing.free_lists import FreeLists, PlaceRequest, pairs_by_job

PARTS: Final = 4
"""Number of parts of a toy job's work, each slower than the one before."""
_UNIT: Final = 1 / 1024
"""Paces are whole multiples of this unit, so that sums of work are exact in floats."""


def toy_pace(part: int, nodes: Sequence[int], batch: int) -> float:
    """Work per ms: grows with the batch and, less than in proportion, with GPUs; falls with nodes and progress."""
    gpus = sum(nodes)
    units = 256 + 512 * gpus - 16 * gpus * (gpus - 1) - 64 * (len(nodes) - 1) + 4 * min(max(batch, 0), 64) - 32 * part
    return max(64, units) * _UNIT


class ToyTruth:
    """Jobs whose pace is a formula of GPUs, nodes, batch and progress. See ``brim.sim.truths.truth.Truth``.

    Work is a whole number and paces are multiples of 1/1024, so that sums over any intervals are exact. The run time in
    the trace gives the work, roughly in ms on one GPU.

    Args:
        trace: The trace that is replayed.
        jobs: Builders with the limits of each job, by name; jobs left out are rigid.
    """

    name: ClassVar[str] = "toy"
    contended: ClassVar[bool] = False

    def __init__(self, trace: Trace, jobs: Mapping[str, Job]) -> None:
        self.work = [PARTS * (int(run_ms) // PARTS + 1) for run_ms in trace.run_ms]
        none = Job()
        rows = [
            limits_of(jobs.get(name, none), int(gpus)) for name, gpus in zip(trace.job_id, trace.gpus, strict=True)
        ]
        names = ("gpus_min", "gpus_max", "batch", "batch_min", "batch_max", "local_batch_min", "local_batch_max")
        table = np.array(rows, dtype=np.int64).reshape(-1, len(names)).T
        self._columns = {"profile": trace.profile} | dict(zip(names, map(frozen, table), strict=True))
        self.run_ms = frozen(np.array([
            sum(
                int(np.ceil(work / PARTS / toy_pace(part, (int(gpus),), int(batch)))) for part in range(PARTS)
            ) for work, gpus, batch in zip(self.work, trace.gpus, self._columns["batch"], strict=True)
        ], dtype=np.int64))
        self.shortest_ms = frozen(np.zeros(len(trace), dtype=np.int64))
        self.least_gpu_ms = self.shortest_ms

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``."""
        each = self.work[job] // PARTS
        part = min(int(done // each), PARTS - 1)
        per_ms = toy_pace(part, nodes, batch)
        gpus = sum(nodes)
        report = Report(
            samples_done=done * 2, samples_per_s=per_ms * 2_000, grad_var=float(part + 1), grad_sqr=0.5,
            seen=(Sample(len(nodes), gpus, max(batch, 1), 1 / per_ms, 0.25),),
        )
        return Pace(per_ms, each * (part + 1), part == PARTS - 1, report)

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``."""
        return self._columns

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return np.array(self.work, dtype=np.float64) * 2

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        return ["Jobs follow a formula (truth: toy)."]


Want = tuple[Sequence[tuple[int, int]], int]
"""GPUs of a job, and its global batch (NONE for none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What each job has from ``at`` seconds on, by id; other jobs have nothing. ``reject`` lists jobs to reject."""

    at: float
    has: Mapping[int, Want]
    reject: tuple[int, ...] = ()


@dataclass(frozen=True)
class _ScriptSize:
    """Gives each job the size and batch of the script."""

    lines: tuple[Line, ...]
    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        line, ids = _line(self.lines, snapshot), snapshot.jobs.id.tolist()
        return Sizes(
            gpus=np.array([len(line.has[job][0]) if job in line.has else 0 for job in ids], dtype=np.int64),
            global_batch=np.array([line.has[job][1] if job in line.has else NONE for job in ids], dtype=np.int64),
            reject=np.array([job in line.reject for job in ids], dtype=np.bool_),
        )


@dataclass(frozen=True)
class _ScriptPlace:
    """Gives each job the GPUs of the script; jobs that are not in it, held or stopping get none."""

    lines: tuple[Line, ...]

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """See ``Place``."""
        line, jobs = _line(self.lines, snapshot), snapshot.jobs
        rows = [
            (row, node, gpu) for row, job in enumerate(jobs.id.tolist())
            if job in line.has and (jobs.holds[row] or jobs.waits[row]) for node, gpu in line.has[job][0]
        ]
        return _grants(snapshot, rows)


def _line(lines: tuple[Line, ...], snapshot: Snapshot) -> Line:
    return max((line for line in lines if line.at * 1000 <= snapshot.now_ms), key=lambda line: line.at)


def scripted(*lines: Line, period_ms: int = 1_000) -> Policy:
    """A policy that decides what the script says at each round; the first line should be at 0."""
    base = PRESETS["fifo"]
    return Policy(
        name="scripted", order=Arrival(), size=_ScriptSize(lines), place=_ScriptPlace(lines), feed=base.feed,
        fill=base.fill, period_ms=period_ms,
    )


@dataclass(frozen=True)
class _RestlessSize:
    """Running jobs keep, gain or lose GPUs at random, drawn from the time and the row."""

    calm_ms: int
    seed: int
    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        jobs = snapshot.jobs
        rng = np.random.default_rng((self.seed, snapshot.now_ms, len(jobs)))
        calm = snapshot.now_ms >= self.calm_ms
        gpus, batch = np.where(jobs.holds, jobs.gpus_now, jobs.gpus), np.where(
            jobs.batch_now == NONE, jobs.batch, jobs.batch_now
        )
        reject = np.zeros(len(jobs), dtype=np.bool_)
        for row in range(len(jobs)):
            dice, size, samples = rng.random(), rng.random(), rng.random()
            if calm or dice < 0.5:
                continue
            least, most = int(jobs.gpus_min[row]), int(jobs.gpus_max[row])
            gpus[row] = 0 if dice < 0.6 else least + int(size * (most - least + 1))
            if jobs.batch_min[row] != NONE and dice > 0.7:
                least, most = int(jobs.batch_min[row]), int(jobs.batch_max[row])
                batch[row] = least + int(samples * (most - least + 1))
            reject[row] = dice > 0.97 and jobs.phase[row] in (Phase.HELD, Phase.PENDING)
        return Sizes(gpus=gpus, global_batch=batch, reject=reject)


@dataclass(frozen=True)
class _RestlessPlace:
    """Places gangs on any free GPUs, and sometimes moves a job that keeps its number of GPUs."""

    calm_ms: int
    seed: int

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """See ``Place``."""
        jobs = snapshot.jobs
        rng = np.random.default_rng((self.seed, snapshot.now_ms, len(jobs), 1))
        free_lists = FreeLists.of_snapshot(snapshot, gone=range(len(jobs)))
        held = pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)
        found: list[tuple[int, int, int]] = []
        moves = rng.random(len(jobs)) < 0.2
        if snapshot.now_ms >= self.calm_ms:
            moves[:] = False
        for row in order.tolist():
            pairs = sorted(held.get(row, []))
            keeps = len(pairs) == sizes.gpus[row] and not moves[row]
            if pairs and keeps:
                free_lists.take(PlaceRequest(snapshot, row), pairs)
                found += [(row, *pair) for pair in pairs]
        for row in order.tolist():
            pairs = sorted(held.get(row, []))
            if not sizes.gpus[row] or sizes.reject[row] or (pairs and len(pairs) == sizes.gpus[row] and not moves[row]):
                continue
            if not (jobs.holds[row] or jobs.waits[row]):
                continue
            request = PlaceRequest(snapshot, row, int(sizes.gpus[row]))
            kinds = [
                name for name in sorted(set(free_lists.types))
                if free_lists.fits(request, name) and request.gpu_type in ("", name)
            ]
            if not kinds:
                continue
            places = free_lists.places(request, kinds[int(rng.integers(len(kinds)))])
            chosen = sorted(places[i] for i in rng.permutation(len(places))[: request.gpus].tolist())
            free_lists.take(request, chosen)
            found += [(row, *pair) for pair in chosen]
        return _grants(snapshot, found)


def restless(*, calm_ms: int, seed: int = 0, period_ms: int = 300) -> Policy:
    """A policy that resizes, tunes, moves, preempts and rejects jobs at random until ``calm_ms``, then lets them run.

    Its draws depend on the snapshot alone, so the policy is pure.
    """
    base = PRESETS["fifo"]
    return Policy(
        name="restless", order=Arrival(), size=_RestlessSize(calm_ms, seed), place=_RestlessPlace(calm_ms, seed),
        feed=base.feed, fill=base.fill, period_ms=period_ms,
    )


def _grants(snapshot: Snapshot, rows: Sequence[tuple[int, int, int]]) -> Grants:
    job, node, gpu = (np.array(rows, dtype=np.int64).reshape(-1, 3).T).copy()
    none = np.zeros(len(snapshot.jobs), dtype=np.int64)
    return Grants(
        job=job, node=node, gpu=gpu, share_milli=snapshot.jobs.share_milli[job] if len(job) else EMPTY, why=none,
        blocker=none - 1,
    )
