"""The one mutable object: the state of a cluster, made by applying its events in order."""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.cluster import Cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.lifecycle import Phase, next_phase
from brim.core.seen import SeenBook
from brim.core.snapshot import Snapshot
from brim.core.tables import EMPTY, JOB_COLUMNS, JOB_FLOAT_COLUMNS, Grants, JobTable, NodeTable, UserTable
from brim.core.trace import NONE
from brim.errors import InvariantError
from brim.units import MS_PER_DAY, MS_PER_S, WHOLE_GPU

USAGE_HALF_LIFE_MS: Final = 7 * MS_PER_DAY
"""Half-life of a user's past usage: the default of Slurm's PriorityDecayHalfLife."""
SERVICE_EDGES_GPU_MS: Final[FloatArray] = frozen(np.concatenate(([0.0], 2.0 ** np.arange(8.0, 44.01, 0.5))))
"""Bin edges of the histogram of ended jobs' service: half octaves from 256 GPU-ms to 557 GPU-years."""

_COLUMN: Final = {name: index for index, name in enumerate(JOB_COLUMNS)}
_SPEC: Final = ("id", "user", "submit_ms", "gpus", "share_milli", "cpu_milli", "mem_mib", "gpu_type",
                "time_limit_ms", "after", "gpus_min", "gpus_max", "batch", "batch_min", "batch_max", "local_batch_min",
                "local_batch_max", "profile", "gradient_bytes")
_PHASE, _EPOCH, _FIRST, _SINCE = (_COLUMN[c] for c in ("phase", "epoch", "first_start_ms", "since_ms"))
_RUNNING_SINCE, _RUN, _SERVICE, _MEMO = (
    _COLUMN[c] for c in ("running_since_ms", "run_ms", "service_gpu_ms", "memo")
)
_ID, _USER, _SHARE, _PROFILE = (_COLUMN[c] for c in ("id", "user", "share_milli", "profile"))
_GPUS_NOW, _SHARE_NOW, _BATCH_NOW, _STARTS, _STALLED = (
    _COLUMN[c] for c in ("gpus_now", "share_now", "batch_now", "starts", "stalled_ms")
)
assert JOB_FLOAT_COLUMNS == ("samples_done", "samples_per_s", "grad_var", "grad_sqr")
_DONE, _PACE, _VAR, _SQR = range(4)
_NOTHING_KNOWN: Final = (0.0, 0.0, np.nan, np.nan)
assert JOB_COLUMNS[: len(_SPEC)] == _SPEC  # layout contract of this file, checked at import

# Enum members as module constants: looking them up on the class is slow before Python 3.12.
_HELD, _PENDING, _STARTING, _RUNNING = Phase.HELD, Phase.PENDING, Phase.STARTING, Phase.RUNNING
_SUBMITTED, _START, _STARTED, _FINISHED = Kind.SUBMITTED, Kind.START, Kind.STARTED, Kind.FINISHED
_PHASES: Final = tuple(Phase)
_HOLDING: Final = (_STARTING, _RUNNING)
_NODE_KINDS: Final = (Kind.NODE_DOWN, Kind.NODE_DRAIN, Kind.NODE_UP)
_INITIAL_ROWS: Final = 256
_REPORTED, _RESIZE, _TUNE = Kind.REPORTED, Kind.RESIZE, Kind.TUNE
_FREES: Final = frozenset({
    Kind.FINISHED, Kind.GAVE_UP, Kind.FAILED, Kind.EVICTED, Kind.CANCELLED, Kind.PREEMPT, Kind.RESIZE,
})


class ClusterState:
    """Jobs, nodes, grants and users of one cluster. Events change it through ``apply``; ``freeze`` gives the view.

    Jobs live in an integer block with one column per job (a row of the block is a column of ``JobTable``), in order of
    submission. Jobs that have ended leave holes, which the next ``freeze`` closes.
    """

    def __init__(self, cluster: Cluster, users: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        self.now_ms = 0
        self._block = np.zeros((len(JOB_COLUMNS), _INITIAL_ROWS), dtype=np.int64)
        self._floats = np.zeros((len(JOB_FLOAT_COLUMNS), _INITIAL_ROWS))
        self._told_ms = np.zeros(_INITIAL_ROWS, dtype=np.int64)  # when ``samples_done`` was true, by slot
        self._seen = SeenBook()
        self._used = 0
        self._alive = 0
        self._slot_of = np.full(_INITIAL_ROWS, NONE, dtype=np.int64)  # by job id
        self._granted = np.zeros((3, _INITIAL_ROWS), dtype=np.int64)  # job id, node, gpu; a job's rows stand together
        self._num_granted = 0
        self._up_N = np.ones(cluster.num_nodes, dtype=np.bool_)
        self._open_N = np.ones(cluster.num_nodes, dtype=np.bool_)
        self._users: dict[str, int] = {}
        self._usage_U = np.zeros(0)
        self._usage_at_ms = 0
        self._runs_U2 = np.full((2, 0), NONE, dtype=np.int64)
        self._ended = np.zeros(len(SERVICE_EDGES_GPU_MS), dtype=np.int64)
        self.num_waiting = 0
        for user in users:
            self.user_code(user)

    # -- reading ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._alive

    def __contains__(self, job: int) -> bool:
        return 0 <= job < len(self._slot_of) and bool(self._slot_of[job] != NONE)

    def phase(self, job: int) -> Phase:
        """Phase of a job that has not ended."""
        return Phase(int(self._block[_PHASE, self._slot(job)]))

    def epoch(self, job: int) -> int:
        """Number of the job's present attempt."""
        return int(self._block[_EPOCH, self._slot(job)])

    def gpus_of(self, job: int) -> tuple[tuple[int, int], ...]:
        """The (node, gpu) pairs that the job holds."""
        rows = self._granted[:, : self._num_granted]
        return tuple(zip(*rows[1:, rows[0] == job].tolist(), strict=True))

    def user_code(self, user: str) -> int:
        """Code of a user; a new user gets the next code."""
        code = self._users.get(user)
        if code is None:
            code = self._users[user] = len(self._users)
            self._usage_U = np.append(self._usage_U, 0.0)
            self._runs_U2 = np.concatenate((self._runs_U2, np.full((2, 1), NONE, dtype=np.int64)), axis=1)
        return code

    def _slot(self, job: int) -> int:
        slot = int(self._slot_of[job]) if 0 <= job < len(self._slot_of) else NONE
        if slot == NONE:
            raise InvariantError(f"job {job} is not in the tables")
        return slot

    # -- changing --------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Fold one event into the state.

        Raises:
            InvariantError: the event is impossible here (unknown job, illegal transition, time going backwards).
        """
        if event.time_ms < self.now_ms:
            raise InvariantError(f"{event.kind.name} at {event.time_ms} ms comes after {self.now_ms} ms")
        self.now_ms = event.time_ms
        if event.kind is _SUBMITTED:
            self._submit(event)
        elif event.kind in _NODE_KINDS:
            self._up_N[event.node] = event.kind is not Kind.NODE_DOWN
            self._open_N[event.node] = event.kind is Kind.NODE_UP
        else:
            self._move(event)

    def remember(self, jobs: IntArray, memo: IntArray) -> None:
        """Store one integer per job id for the policy to read in the next round."""
        for job, value in zip(jobs.tolist(), memo.tolist(), strict=True):
            self._block[_MEMO, self._slot(job)] = value

    def _submit(self, event: Event) -> None:
        spec = event.spec
        if spec is None or spec.id in self:
            raise InvariantError(f"job {event.job} was submitted twice, or without a specification")
        if self._used == self._block.shape[1]:
            self._make_room()
        slot = self._used
        if slot and spec.id <= self._block[_ID, slot - 1]:
            raise InvariantError(f"job id {spec.id} does not follow {self._block[_ID, slot - 1]}")
        phase = _HELD if event.held else _PENDING
        self._block[:, slot] = (*_spec_values(spec), phase, 0, NONE, event.time_ms, NONE, 0, 0, 0, 0, 0, NONE, 0, 0)
        self._floats[:, slot] = _NOTHING_KNOWN
        while spec.id >= len(self._slot_of):
            self._slot_of = np.concatenate((self._slot_of, np.full_like(self._slot_of, NONE)))
        self._slot_of[spec.id] = slot
        self._used += 1
        self._alive += 1
        self.num_waiting += phase is _PENDING

    def _move(self, event: Event) -> None:
        kind, job = event.kind, event.job
        slot = self._slot(job)
        column = self._block[:, slot]
        before = _PHASES[column[_PHASE]]
        after = next_phase(before, kind, job)
        if before in _HOLDING and kind in _FREES:
            self._release(event, slot)
        if kind is _START or kind is _RESIZE:
            self._grant(event, column)
        elif kind is _TUNE:
            column[_BATCH_NOW] = event.batch
        elif kind is _REPORTED:
            self._hear(event, slot)
        elif kind is _STARTED and after is _RUNNING:
            column[_RUNNING_SINCE] = self._told_ms[slot] = event.time_ms
            column[_STARTS] += 1
            column[_STALLED] += event.time_ms - column[_SINCE]
        elif kind is _FINISHED:
            self._learn(column)
        self.num_waiting += (after is _PENDING) - (before is _PENDING)
        if after is None:
            column[_PHASE] = NONE
            self._slot_of[job] = NONE
            self._alive -= 1
            self._seen.over(job)
            return
        if after is _PENDING and before is not _PENDING:
            column[_SINCE] = event.time_ms
        column[_PHASE] = after

    def _grant(self, event: Event, column: IntArray) -> None:
        """Append the gang's rows to the grants."""
        start, stop = self._num_granted, self._num_granted + len(event.gpus)
        while stop > self._granted.shape[1]:
            self._granted = np.concatenate((self._granted, np.zeros_like(self._granted)), axis=1)
        self._granted[0, start:stop] = event.job
        self._granted[1:, start:stop] = np.array(event.gpus, dtype=np.int64).T
        self._num_granted = stop
        column[_EPOCH] += 1
        column[_GPUS_NOW], column[_BATCH_NOW] = len(event.gpus), event.batch
        column[_SHARE_NOW] = column[_SHARE] if event.share_milli == NONE else event.share_milli
        column[_SINCE] = event.time_ms
        if column[_FIRST] == NONE:
            column[_FIRST] = event.time_ms

    def _hear(self, event: Event, slot: int) -> None:
        """Store what a job reported."""
        report = event.report
        if report is None:
            raise InvariantError(f"REPORTED event of job {event.job} has no report")
        self._floats[:, slot] = (report.samples_done, report.samples_per_s, report.grad_var, report.grad_sqr)
        self._told_ms[slot] = event.time_ms
        self._seen.add(event.job, int(self._block[_PROFILE, slot]), report.seen)

    def _release(self, event: Event, slot: int) -> None:
        """Remove the job's grants, and add the attempt's run time, progress and service to the job."""
        column = self._block[:, slot]
        rows = np.flatnonzero(self._granted[0, : self._num_granted] == event.job)
        first, stop = int(rows[0]), int(rows[-1]) + 1
        end = self._num_granted - (stop - first)
        self._granted[:, first:end] = self._granted[:, stop : self._num_granted]
        self._num_granted = end
        held_ms = event.time_ms - int(column[_SINCE])
        service = held_ms * int(column[_GPUS_NOW]) * int(column[_SHARE_NOW]) // WHOLE_GPU
        if column[_PHASE] == _RUNNING:
            column[_RUN] += event.time_ms - int(column[_RUNNING_SINCE])
            told = self._floats[:, slot]
            if told[_PACE]:
                told[_DONE] += told[_PACE] * (event.time_ms - int(self._told_ms[slot])) / MS_PER_S
        column[_GPUS_NOW] = column[_SHARE_NOW] = 0
        column[_SERVICE] += service
        self._usage_U = self._usage_at(event.time_ms)
        self._usage_at_ms = event.time_ms
        self._usage_U[column[_USER]] += service

    def _learn(self, column: IntArray) -> None:
        """Store what estimates need of a finished job: its run time for its user, its service in the histogram."""
        user = int(column[_USER])
        self._runs_U2[1, user] = self._runs_U2[0, user]
        self._runs_U2[0, user] = column[_RUN]
        self._ended[np.searchsorted(SERVICE_EDGES_GPU_MS, column[_SERVICE], side="right") - 1] += 1

    def _usage_at(self, now_ms: int) -> FloatArray:
        """Past usage of each user, halved every half-life, as a new array (U,)."""
        usage: FloatArray = self._usage_U * 0.5 ** (max(now_ms - self._usage_at_ms, 0) / USAGE_HALF_LIFE_MS)
        return usage

    def _make_room(self) -> None:
        self._close_holes()
        if 2 * self._used > self._block.shape[1]:
            self._block = np.concatenate((self._block, np.zeros_like(self._block)), axis=1)
            self._floats = np.concatenate((self._floats, np.zeros_like(self._floats)), axis=1)
            self._told_ms = np.concatenate((self._told_ms, np.zeros_like(self._told_ms)))

    def _close_holes(self) -> None:
        if self._alive == self._used:
            return
        kept = np.flatnonzero(self._block[_PHASE, : self._used] != NONE)
        self._used = len(kept)
        self._block[:, : self._used] = self._block[:, kept]
        self._floats[:, : self._used] = self._floats[:, kept]
        self._told_ms[: self._used] = self._told_ms[kept]
        self._slot_of[self._block[_ID, : self._used]] = np.arange(self._used)

    # -- the frozen view -------------------------------------------------------------------------------------------

    def freeze(self, now_ms: int) -> Snapshot:
        """Return the immutable view at ``now_ms``, with run times and service up to then; the values do not change."""
        self._close_holes()
        block = self._block[:, : self._used].copy()
        runs = block[_PHASE] == _RUNNING
        holds = (block[_PHASE] == _STARTING) | runs
        held_ms = np.where(holds, now_ms - block[_SINCE], 0)
        block[_RUN] += np.where(runs, now_ms - block[_RUNNING_SINCE], 0)
        block[_SERVICE] += held_ms * block[_GPUS_NOW] * block[_SHARE_NOW] // WHOLE_GPU
        block = frozen(block)
        floats = self._floats[:, : self._used].copy()
        floats[_DONE] += np.where(runs, floats[_PACE] * (now_ms - self._told_ms[: self._used]) / MS_PER_S, 0.0)
        floats = frozen(floats)
        return Snapshot(
            now_ms=now_ms,
            jobs=JobTable(*block, *floats),
            nodes=NodeTable(
                gpu_type=self.cluster.gpu_type_N, gpus=self.cluster.gpus_N, cpu_milli=self.cluster.cpu_milli_N,
                mem_mib=self.cluster.mem_mib_N, up=frozen(self._up_N.copy()),
                is_open=frozen(self._open_N.copy()),
            ),
            grants=self._grants(block),
            users=UserTable(
                name=tuple(self._users), usage_gpu_ms=frozen(self._usage_at(now_ms)),
                last_run_ms=frozen(self._runs_U2[0].copy()), previous_run_ms=frozen(self._runs_U2[1].copy()),
            ),
            ended_service=frozen(self._ended.copy()),
            gpu_types=self.cluster.gpu_types,
            seen=self._seen.freeze(self._slot_of),
        )

    def _grants(self, block: IntArray) -> Grants:
        """Grants in order of start. A job's pairs are in increasing order because START carries them so."""
        job, node, gpu = self._granted[:, : self._num_granted].copy()
        rows = self._slot_of[job]
        return Grants(
            job=frozen(rows), node=frozen(node), gpu=frozen(gpu), share_milli=frozen(block[_SHARE_NOW][rows]),
            why=EMPTY, blocker=EMPTY,
        )


def _spec_values(spec: JobSpec) -> tuple[int, ...]:
    least = spec.gpus if spec.gpus_min == NONE else spec.gpus_min
    most = spec.gpus if spec.gpus_max == NONE else spec.gpus_max
    return (spec.id, spec.user, spec.submit_ms, spec.gpus, spec.share_milli, spec.cpu_milli, spec.mem_mib,
            spec.gpu_type, spec.time_limit_ms, spec.after, least, most, spec.batch, spec.batch_min, spec.batch_max,
            spec.local_batch_min, spec.local_batch_max, spec.profile, spec.gradient_bytes)
