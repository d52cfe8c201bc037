"""The one mutable object: the state of a cluster, made by applying its events in order."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from copy import deepcopy
from typing import Final

import numpy as np

from brim.core.actions import ACTIONS, WITH_SETTING, Bookings, Plan, bookings_of
from brim.core.arrays import BoolArray, FloatArray, IntArray, frozen, table_of
from brim.core.cluster import Cluster
from brim.core.columns import (
    FINE,
    GRANT_ROWS,
    IMPOSSIBLE,
    MOVED,
    OF_RANKS,
    REVOCABLE,
    TWICE,
    UNKNOWN,
    book,
    bookable,
    held_now,
    living,
    ranks_of,
    release,
)
from brim.core.ended_work import EndedWorkBook
from brim.core.events import Event, JobSpec, Kind
from brim.core.gaps import GapBook, IdleGaps
from brim.core.joins import JoinBook, JoinTimes
from brim.core.lifecycle import TRANSITIONS, Phase, next_phase
from brim.core.losses import LossBook
from brim.core.seen import SeenStepTimes
from brim.core.setting import Rank, Setting
from brim.core.slowdowns import NEIGHBOURS_MAX, ResidentKind, ResidentSet, SeenSlowdowns
from brim.core.snapshot import Memory, Snapshot
from brim.core.tables import EMPTY, JOB_COLUMNS, JOB_FLOAT_COLUMNS, NO_GPUS, NOBODY, Grants, JobTable, NodeTable
from brim.core.trace import NONE, JobClass
from brim.core.usage import UsageBook
from brim.errors import InvariantError
from brim.units import WHOLE_GPU

SERVICE_EDGES_GPU_MS: Final[FloatArray] = frozen(np.concatenate(([0.0], 2.0 ** np.arange(8.0, 44.01, 0.5))))
"""Bin edges of the histogram of ended jobs' service: half octaves from 256 GPU-ms to 557 GPU-years."""

_EDGES: Final = tuple(SERVICE_EDGES_GPU_MS.tolist())
_COLUMN: Final = {name: index for index, name in enumerate(JOB_COLUMNS)}
_SPEC: Final = ("id", "user", "submit_ms", "gpus", "share_milli", "cpu_milli", "mem_mib", "gpu_type",
                "time_limit_ms", "after", "gpus_min", "gpus_max", "batch", "batch_min", "batch_max", "local_batch_min",
                "local_batch_max", "profile", "gradient_bytes", "cpu_ranks_max", "servers",
                "target_loss_ppm", "samples_max",
                "priority", "job_class", "deadline_ms", "gpu_util_milli", "gpu_mem_mib", "size_list")
_PHASE, _ATTEMPT, _SEQUENCE, _SINCE = (_COLUMN[c] for c in ("phase", "attempt", "sequence", "since_ms"))
_RUNNING_SINCE, _RUN, _SERVICE = (_COLUMN[c] for c in ("running_since_ms", "run_ms", "service_gpu_ms"))
_ID, _USER, _PROFILE = (_COLUMN[c] for c in ("id", "user", "profile"))
_OWN_BATCH: Final = [_COLUMN[c] for c in ("batch", "batch_min", "batch_max")]
_LEAST: Final = [_COLUMN[c] for c in ("gpus_min", "batch_min")]
_MOST: Final = [_COLUMN[c] for c in ("gpus_max", "batch_max")]
_LOCAL_BATCH: Final = [_COLUMN[c] for c in ("local_batch_min", "local_batch_max")]
_NODE_ROW, _GPU_ROW = (GRANT_ROWS.index(name) for name in ("node", "gpu"))
_BATCH, _CLASS = _COLUMN["batch"], _COLUMN["job_class"]
_PADDING: Final = int(JobClass.PADDING)
_GPUS, _GPUS_MIN, _GPUS_MAX, _SIZE_LIST = (_COLUMN[c] for c in ("gpus", "gpus_min", "gpus_max", "size_list"))
_CPU_RANKS, _SAMPLES_MAX = (_COLUMN[c] for c in ("cpu_ranks_max", "samples_max"))
_GPUS_NOW, _SHARE_NOW = _COLUMN["gpus_now"], _COLUMN["share_now"]
_BATCH_NOW, _STARTS, _STALLED = (_COLUMN[c] for c in ("batch_now", "starts", "stalled_ms"))
_NEW_JOB: Final = {"phase": Phase.PENDING, "first_start_ms": NONE, "running_since_ms": NONE, "batch_now": NONE}
"""Columns of a new job that are not 0 and do not come from its submission."""
assert JOB_FLOAT_COLUMNS == (
    "samples_done", "samples_per_s", "grad_var", "grad_sqr", "loss", "slowdown_ratio", "loader_wait_ratio",
)
_SAMPLES_DONE: Final = JOB_FLOAT_COLUMNS.index("samples_done")
_NOTHING_KNOWN: Final = (0.0, 0.0, *[np.nan] * 5)
assert JOB_COLUMNS[: len(_SPEC)] == _SPEC  # layout contract of this file, checked at import

# Enum members as module constants: looking them up on the class is slow before Python 3.12.
_HELD, _PENDING, _STARTING, _RUNNING = Phase.HELD, Phase.PENDING, Phase.STARTING, Phase.RUNNING
_SUBMITTED, _STARTED, _REPORTED, _FINISHED = Kind.SUBMITTED, Kind.STARTED, Kind.REPORTED, Kind.FINISHED
_PHASES: Final = tuple(Phase)
_NODE_KINDS: Final = (Kind.NODE_DOWN, Kind.NODE_DRAIN, Kind.NODE_UP)
_SLEEP_KINDS: Final = (Kind.NODE_SLEEP, Kind.NODE_WAKE)
_GPU_KINDS: Final = (Kind.GPU_WITHHELD, Kind.GPU_QUARANTINED, Kind.GPU_OPENED)
_INITIAL_ROWS: Final = 256
_FREES: Final = tuple(kind in (
    Kind.FINISHED, Kind.GAVE_UP, Kind.FAILED, Kind.EVICTED, Kind.CANCELLED,
) for kind in Kind)
"""Whether each kind of event that is no decision frees what its job holds."""
_DECIDED: Final = tuple(action.rule.books for action in ACTIONS)
_GIVES_SETTING: Final = tuple(action.rule.books for action in WITH_SETTING)
_AFTER: Final[IntArray] = frozen(np.array([
    [NONE if after is None else after for after in (TRANSITIONS.get((phase, kind), IMPOSSIBLE) for kind in Kind)]
    for phase in Phase
], dtype=np.int64))
"""``TRANSITIONS`` by phase, then kind."""


_FRESH: Final = tuple(int(_NEW_JOB.get(name, 0)) for name in JOB_COLUMNS[len(_SPEC) :])


class ClusterState:
    """Jobs, nodes, grants and users of one cluster. Events change it through ``apply``; ``freeze`` gives the view.

    Jobs live in an integer block with one column per job (a row of the block is a column of ``JobTable``), in order of
    submission. Jobs that have ended leave holes, which the next ``freeze`` closes. The class is long because nothing
    else may change these arrays.

    Args:
        cluster: The cluster.
        users: User names known in advance.
        padding_apart: Whether padding jobs are kept apart, so that regular jobs are scheduled as if there were none:
            nothing that is learned from ended jobs comes from them, and the gaps between regular jobs are noted, and
            what starts cost.
    """

    def __init__(self, cluster: Cluster, users: tuple[str, ...] = (), *, padding_apart: bool = False) -> None:
        self.cluster = cluster
        self.gaps = GapBook(cluster.num_gpus) if padding_apart else None
        self._joins = JoinBook()  # of nothing, if there are no gaps
        self.now_ms = 0
        self._block = np.zeros((len(JOB_COLUMNS), _INITIAL_ROWS), dtype=np.int64)
        self._floats = np.zeros((len(JOB_FLOAT_COLUMNS), _INITIAL_ROWS))
        self._reported_ms = np.zeros(_INITIAL_ROWS, dtype=np.int64)  # when ``samples_done`` was true, by slot
        self._seen = SeenStepTimes()
        self._losses = LossBook()
        self._slowdowns = SeenSlowdowns()
        self._work = EndedWorkBook()
        self._memory: dict[str, IntArray] = {}  # by socket and slot
        self._used = 0
        self._alive = 0
        self._slot_of = np.full(_INITIAL_ROWS, NONE, dtype=np.int64)  # by job id
        self._granted = np.zeros((len(GRANT_ROWS), _INITIAL_ROWS), dtype=np.int64)  # a job's columns stand together
        self._num_granted = 0
        self._up_N = np.ones(cluster.num_nodes, dtype=np.bool_)
        self._open_N = np.ones(cluster.num_nodes, dtype=np.bool_)
        self._withheld = self._quarantined = NO_GPUS
        self._asleep = NOBODY
        self._node_columns: tuple[IntArray | BoolArray, ...] | None = None  # None: to be made anew
        self._size_lists: dict[tuple[int, ...], int] = {}
        self._usage = UsageBook()
        self._ended = np.zeros(len(SERVICE_EDGES_GPU_MS), dtype=np.int64)
        self._has_elastic: bool | None = None  # None: jobs have come or gone
        self._padding: tuple[int, int] | None = None  # None: jobs have come, gone or changed their phase
        self.num_waiting = 0
        for user in users:
            self.user_code(user)

    # -- reading ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._alive

    def __contains__(self, job: int) -> bool:
        return 0 <= job < len(self._slot_of) and self._slot_of.item(job) != NONE

    @property
    def has_elastic(self) -> bool:
        """Whether there is a job that can run on several numbers of GPUs, with several batches, or on GPU and CPU.

        Padding jobs that are kept apart do not count.
        """
        if self._has_elastic is None:
            block = self._block[:, : self._used]
            least, most = block[_LEAST], block[_MOST]
            counts = (block[_PHASE] != NONE) & ((least < most).any(axis=0) | (block[_CPU_RANKS] > 0))
            self._has_elastic = bool((counts if self.gaps is None else counts & (block[_CLASS] != _PADDING)).any())
        return self._has_elastic

    def keep_apart(self, padding_apart: bool) -> None:
        """Begin or end to keep padding jobs apart; the gaps before are not known."""
        if padding_apart != (self.gaps is not None):
            self.gaps = GapBook(self.cluster.num_gpus) if padding_apart else None
            self._joins = JoinBook()
            self._has_elastic = None
            self._note_gaps(self.now_ms)

    def is_padding(self, job: int) -> bool:
        """Whether a job is a padding job; one that is not in the tables is none."""
        return job in self and self._block.item(_CLASS, self._slot_of.item(job)) == _PADDING

    @property
    def num_padding(self) -> int:
        """Number of padding jobs."""
        return self._padding_counts()[0]

    @property
    def num_padding_waiting(self) -> int:
        """Number of padding jobs that wait."""
        return self._padding_counts()[1]

    def _padding_counts(self) -> tuple[int, int]:
        """Padding jobs, and those of them that wait; read several times between two changes."""
        if self._padding is None:
            phase = self._block[_PHASE, : self._used][self._block[_CLASS, : self._used] == _PADDING]
            self._padding = int((phase != NONE).sum()), int((phase == _PENDING).sum())
        return self._padding

    @property
    def has_room_for_padding(self) -> bool:
        """Whether there is a GPU that no job holds, and a padding job that waits or could use more than it has."""
        _, node, gpu = self._granted[:3, : self._num_granted]
        held = self.cluster.gpu_offset_N[node[gpu >= 0]] + gpu[gpu >= 0]
        if len(held) >= self.cluster.num_gpus and len(np.unique(held)) == self.cluster.num_gpus:
            return False
        if self.num_padding_waiting:
            return True
        block = self._block[:, : self._used]
        grows = (block[_PHASE] != NONE) & (block[_GPUS_NOW] < block[_GPUS_MAX])
        return bool((grows & (block[_CLASS] == _PADDING)).any())

    @property
    def last_id(self) -> int:
        """No job of a larger id was submitted."""
        return int(self._block[_ID, : self._used].max(initial=0))

    def phase(self, job: int) -> Phase:
        """Phase of a job that has not ended."""
        return Phase(int(self._block[_PHASE, self._slot(job)]))

    def attempt(self, job: int) -> int:
        """Number of the job's present or last attempt."""
        return int(self._block[_ATTEMPT, self._slot(job)])

    def sequence(self, job: int) -> int:
        """Number of the job's newest setting."""
        return int(self._block[_SEQUENCE, self._slot(job)])

    def run_ms(self, job: int, now_ms: int) -> int:
        """Time in which the job made progress until now, over all its attempts."""
        slot = self._slot(job)
        runs = self._block.item(_PHASE, slot) == _RUNNING
        return self._block.item(_RUN, slot) + (now_ms - self._block.item(_RUNNING_SINCE, slot) if runs else 0)

    def sizes_seen(self, job: int) -> int:
        """On how many numbers of GPUs the job has reported step times."""
        return self._seen.num_sizes(job)

    def step_s_alone(self, job: int, gpus: int, local_batch: int) -> float:
        """Mean step time on GPUs of one node without neighbours, of the job or else of its model; NaN if not known."""
        return self._seen.step_s(job, int(self._block[_PROFILE, self._slot(job)]), (1, gpus, local_batch))

    def usable_sizes(self, job: int, named: Iterable[int]) -> tuple[int, ...]:
        """Of the numbers of GPUs that a job says it can use, those that it may be given; empty if all, or none."""
        least, most, code = self._block[[_GPUS_MIN, _GPUS_MAX, _SIZE_LIST], self._slot(job)].tolist()
        given = range(least, most + 1) if code == NONE else tuple(self._size_lists)[code]
        usable = sorted({size for size in named if size in given})
        return () if len(usable) == len(given) else tuple(usable)

    def setting(self, job: int) -> Setting | None:
        """What the job has, None if it has nothing."""
        rows = self._granted[:, self._ranks_of(job)]
        if not rows.size:
            return None
        ranks = tuple(Rank(*rank) for rank in rows[OF_RANKS].T.tolist())
        return Setting(ranks, int(self._block[_BATCH_NOW, self._slot(job)]), bool(rows[REVOCABLE, 0]))

    def gpus_of(self, job: int) -> tuple[tuple[int, int], ...]:
        """The (node, gpu) pairs that the job holds."""
        setting = self.setting(job)
        return setting.gpus if setting else ()

    def _ranks_of(self, job: int) -> slice:
        """Where the job's columns of the grants are."""
        return slice(*ranks_of(self._granted, self._num_granted, job))

    def user_code(self, user: str) -> int:
        """Code of a user; a new user gets the next code."""
        return self._usage.code(user)

    def _slot(self, job: int) -> int:
        slot = self._slot_of.item(job) if 0 <= job < len(self._slot_of) else NONE
        if slot == NONE:
            raise InvariantError(f"job {job} is not in the tables")
        return slot

    # -- changing --------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Fold one event into the state.

        Raises:
            InvariantError: the event is impossible here (unknown job, illegal transition, time going backwards).
        """
        self._check_time(event.time_ms, event.kind.name)
        self.now_ms = event.time_ms
        if event.kind is _SUBMITTED:
            self._submit(event)
        elif event.kind in _NODE_KINDS:
            self._node_columns = None
            self._up_N[event.node] = event.kind is not Kind.NODE_DOWN
            self._open_N[event.node] = event.kind is Kind.NODE_UP
            if event.kind is Kind.NODE_DOWN and self._asleep.size:
                self._asleep[event.node] = False  # it boots when it is back
        elif event.kind in _SLEEP_KINDS:
            self._node_columns = None
            self._sleep(event)
        elif event.kind in _GPU_KINDS:
            self._node_columns = None
            self._withhold(event)
        elif event.kind in _DECIDED:
            if event.setting is None and event.kind in _GIVES_SETTING:
                next_phase(self.phase(event.job), event.kind, event.job)  # what is illegal in any case is said first
                raise InvariantError(f"{event.kind.name} event of job {event.job} has no setting")
            self._book(bookings_of((event.kind,), (event.job,), (event.setting,)), event.time_ms)
        else:
            self._move(event)

    def apply_plan(self, plan: Plan) -> None:
        """Fold all actions of a plan into the state.

        Raises:
            InvariantError: an action is impossible here; then the plan has changed nothing.
        """
        if len(plan):
            self._check_time(plan.time_ms, "plan")
            self._book(plan.bookings, plan.time_ms)

    def _check_time(self, time_ms: int, what: str) -> None:
        if time_ms < self.now_ms:
            raise InvariantError(f"{what} at {time_ms} ms comes after {self.now_ms} ms")

    def _withhold(self, event: Event) -> None:
        """Withhold one GPU, put it in quarantine, or open it."""
        gpus = self.cluster.gpus_N
        if not (0 <= event.node < len(gpus) and 0 <= event.gpu < gpus[event.node]):
            raise InvariantError(f"{event.kind.name} of GPU {event.gpu} of node {event.node}, which does not exist")
        if not self._withheld.size:
            self._withheld = np.zeros((len(gpus), int(gpus.max())), dtype=np.bool_)
            self._quarantined = self._withheld.copy()
        self._withheld[event.node, event.gpu] = event.kind is not Kind.GPU_OPENED
        self._quarantined[event.node, event.gpu] = event.kind is Kind.GPU_QUARANTINED

    def _sleep(self, event: Event) -> None:
        """Let a node fall asleep, or wake."""
        sleeps, nodes = event.kind is Kind.NODE_SLEEP, self.cluster.num_nodes
        if not self._asleep.size:
            self._asleep = np.zeros(nodes, dtype=np.bool_)
        if not (0 <= event.node < nodes and self._up_N[event.node]) or self._asleep[event.node] == sleeps:
            raise InvariantError(f"{event.kind.name} of node {event.node}, which is not up, or is so already")
        if sleeps and (self._granted[OF_RANKS, : self._num_granted][0] == event.node).any():
            raise InvariantError(f"node {event.node} falls asleep with jobs on it")
        self._asleep[event.node] = sleeps

    def remember(self, socket: str, jobs: IntArray, memory: IntArray) -> None:
        """Store integers per job id, (J,) or (J, K), for the part in a socket to read in the next round."""
        block = np.zeros((self._block.shape[1], *memory.shape[1:]), dtype=np.int64)
        slots = self._slot_of[jobs]
        block[slots[slots != NONE]] = memory[slots != NONE]
        self._memory[socket] = block

    def _submit(self, event: Event) -> None:
        spec = event.spec
        if spec is None or spec.id in self:
            raise InvariantError(f"job {event.job} was submitted twice, or without a specification")
        if event.user and self.user_code(event.user) != spec.user:
            raise InvariantError(f"job {event.job} has user code {spec.user}, which is not that of {event.user}")
        if self._used == self._block.shape[1]:
            self._make_room()
        slot = self._used
        if slot and spec.id <= self._block[_ID, slot - 1]:
            raise InvariantError(f"job id {spec.id} does not follow {self._block[_ID, slot - 1]}")
        phase = _HELD if event.held else _PENDING
        self._block[:, slot] = (*_spec_values(spec), self._size_list(spec.sizes), *_FRESH)
        self._block[_PHASE, slot], self._block[_SINCE, slot] = phase, event.time_ms
        self._floats[:, slot] = _NOTHING_KNOWN
        while spec.id >= len(self._slot_of):
            self._slot_of = np.concatenate((self._slot_of, np.full_like(self._slot_of, NONE)))
        self._slot_of[spec.id] = slot
        self._used += 1
        self._alive += 1
        self._has_elastic = self._padding = None
        self.num_waiting += phase is _PENDING

    def _size_list(self, sizes: tuple[int, ...]) -> int:
        """Code of a list of sizes, NONE for no list."""
        return self._size_lists.setdefault(tuple(sizes), len(self._size_lists)) if sizes else NONE

    def _move(self, event: Event) -> None:
        kind, job, now_ms = event.kind, event.job, event.time_ms
        slot, block = self._slot(job), self._block
        before = _PHASES[block.item(_PHASE, slot)]
        after = next_phase(before, kind, job)
        if _FREES[kind] and (before is _STARTING or before is _RUNNING):
            self._num_granted, service = release(
                block, self._floats, self._reported_ms, self._granted, self._num_granted, self._slot_of,
                np.array((slot,)), now_ms,
            )
            self._add_usage(np.array((slot,)), service, now_ms)
            self._note_gaps(now_ms)
        if kind is _REPORTED:
            self._record_report(event, slot)
        elif kind is _STARTED and after is _RUNNING:
            block[_RUNNING_SINCE, slot] = self._reported_ms[slot] = now_ms
            block[_STARTS, slot] += 1
            block[_STALLED, slot] += now_ms - block.item(_SINCE, slot)
            if self.gaps is not None:
                self._note_join(slot, now_ms)
        elif kind is _FINISHED and (self.gaps is None or block.item(_CLASS, slot) != _PADDING):
            self._learn(slot)
        self.num_waiting += (after is _PENDING) - (before is _PENDING)
        self._padding = None
        if after is None:
            block[_PHASE, slot] = NONE
            self._over(job)
            return
        if after is _PENDING and before is not _PENDING:
            block[_SINCE, slot] = now_ms
        block[_PHASE, slot] = after

    def _book(self, booked: Bookings, now_ms: int) -> None:
        """Book actions, all or none."""
        stop = self._num_granted + len(booked.ranks)
        while stop > self._granted.shape[1]:
            self._granted = np.concatenate((self._granted, np.zeros_like(self._granted)), axis=1)
        block = self._block
        fault, at, slots = bookable(block, self._granted, self._num_granted, self._slot_of, booked, _AFTER)
        if fault != FINE:
            raise InvariantError(self._fault_of(booked, at, fault))
        self.now_ms = now_ms
        self._padding = None
        self.num_waiting -= int(np.count_nonzero(block[_PHASE, slots] == _PENDING))  # no action makes a job wait
        self._num_granted, left, service = book(
            block, self._floats, self._reported_ms, self._granted, self._num_granted, self._slot_of, booked, slots,
            _AFTER, now_ms,
        )
        if len(left):
            self._add_usage(left, service, now_ms)
        self._note_gaps(now_ms)
        for job in booked.job[block[_PHASE, slots] == NONE].tolist():
            self._over(job)

    def _add_usage(self, slots: IntArray, service: IntArray, now_ms: int) -> None:
        """Add the service of placements that have ended, of jobs in these slots, to the usage of their users."""
        block = self._block
        if self.gaps is not None:
            regular = block[_CLASS, slots] != _PADDING
            slots, service = slots[regular], service[regular]
        self._usage.add(block[_USER, slots], service, now_ms)

    def _note_gaps(self, now_ms: int) -> None:
        """Note which GPUs regular jobs hold, if anybody asks for the gaps between them."""
        if self.gaps is None:
            return
        job, node, gpu = self._granted[:3, : self._num_granted]
        regular = (self._block[_CLASS, self._slot_of[job]] != _PADDING) & (gpu >= 0)
        busy = np.zeros(self.cluster.num_gpus, dtype=np.bool_)
        busy[self.cluster.gpu_offset_N[node[regular]] + gpu[regular]] = True
        self.gaps.note(busy, now_ms)

    def _note_join(self, slot: int, now_ms: int) -> None:
        """Note what it has cost a padding job to start or to change its size, or another job to start at first."""
        block = self._block
        took_ms = now_ms - block.item(_SINCE, slot)
        if block.item(_CLASS, slot) == _PADDING:
            self._joins.note_padding(
                block.item(_ID, slot), block.item(_ATTEMPT, slot), block.item(_GPUS_NOW, slot), took_ms
            )
        elif block.item(_STARTS, slot) == 1:
            self._joins.note_regular(took_ms)

    def _fault_of(self, booked: Bookings, at: int, fault: int) -> str:
        """Why an action cannot be booked."""
        job, kind = booked.job.item(at), Kind(booked.kind.item(at))
        if fault == UNKNOWN:
            return f"job {job} is not in the tables"
        if fault == TWICE:
            return f"a plan acts twice on job {job}"
        if fault == MOVED:
            ranks = booked.ranks[booked.first[at] : booked.first[at + 1]]
            return f"{kind.name} of job {job} moves its ranks to {tuple(Rank(*rank) for rank in ranks.tolist())}"
        return f"job {job} cannot go through {kind.name} while {self.phase(job).name}"

    def _over(self, job: int) -> None:
        """Forget a job that has ended."""
        learns = self.gaps is None or not self.is_padding(job)
        self._slot_of[job] = NONE
        self._alive -= 1
        self._has_elastic = None
        self._seen.over(job, learns=learns)
        self._losses.over(job)
        self._slowdowns.over(job)
        self._joins.over(job)
        if self._used > 2 * self._alive + _INITIAL_ROWS:
            self._close_holes()

    def _record_report(self, event: Event, slot: int) -> None:
        """Store what a job reported."""
        report = event.report
        if report is None:
            raise InvariantError(f"REPORTED event of job {event.job} has no report")
        self._floats[:, slot] = (
            report.samples_done, report.samples_per_s, report.grad_var, report.grad_sqr, report.loss,
            report.slowdown_ratio, report.loader_wait_ratio,
        )
        self._reported_ms[slot] = event.time_ms
        self._losses.add(event.job, report.samples_done, report.loss)
        if report.batch != NONE and self._block[_BATCH, slot] == NONE:
            self._block[_OWN_BATCH, slot] = report.batch
            of_rank = -(-report.batch // max(int(self._block[_GPUS_NOW, slot]), 1))
            self._block[_LOCAL_BATCH, slot] = 1, max((one.local_batch for one in report.seen), default=of_rank)
        if report.samples_max != NONE:
            self._block[_SAMPLES_MAX, slot] = report.samples_max
        if usable := self.usable_sizes(event.job, report.sizes):
            asked = max((size for size in usable if size <= self._block[_GPUS, slot]), default=usable[0])
            ends = asked, usable[0], usable[-1]
            self._block[[_GPUS, _GPUS_MIN, _GPUS_MAX, _SIZE_LIST], slot] = *ends, self._size_list(usable)
        if report.seen and not self._neighbours(event.job).size:  # else they are no speed of the job's own
            self._seen.add(event.job, int(self._block[_PROFILE, slot]), report.seen)
        if not math.isnan(report.slowdown_ratio) and (colocation := self._colocation(event.job)):
            self._slowdowns.add(event.job, colocation, report.slowdown_ratio)

    def _neighbours(self, job: int) -> IntArray:
        """Jobs that hold GPUs which a job holds, too."""
        if self._block.item(_SHARE_NOW, self._slot(job)) == WHOLE_GPU:
            return EMPTY
        held = self._granted[:, : self._num_granted]
        widest = int(self.cluster.gpus_N.max())
        place = np.where(held[_GPU_ROW] == NONE, NONE, held[_NODE_ROW] * widest + held[_GPU_ROW])
        mine = place[self._ranks_of(job)]
        beside = held[0, np.isin(place, mine[mine != NONE])]
        return np.unique(beside[beside != job])

    def _colocation(self, job: int) -> ResidentSet | None:
        """The job among its neighbours; None without any, or if a model is not known or there are too many."""
        beside = self._neighbours(job)
        if not 0 < len(beside) <= NEIGHBOURS_MAX:
            return None
        slots = (self._slot(job), *self._slot_of[beside].tolist())
        who, *others = (self._kind(slot) for slot in slots)
        if any(one.profile == NONE for one in (who, *others)):
            return None
        ranks = self._granted[:, self._ranks_of(job)]
        node = ranks[_NODE_ROW, ranks[_GPU_ROW] != NONE][0]
        return ResidentSet(who, int(self.cluster.gpu_type_N[node]), tuple(sorted(others)))

    def _kind(self, slot: int) -> ResidentKind:
        """Model and batch of a job: its own, which it has reported, if none was decided."""
        profile, batch, batch_now = self._block[[_PROFILE, _BATCH, _BATCH_NOW], slot].tolist()
        return ResidentKind(profile, batch if batch_now == NONE else batch_now)

    def _learn(self, slot: int) -> None:
        """Store what estimates need of a finished job: run time by user, service in the histogram, work by model."""
        block = self._block
        self._usage.completed(block.item(_USER, slot), block.item(_RUN, slot))
        self._ended[bisect_right(_EDGES, block.item(_SERVICE, slot)) - 1] += 1
        self._work.add(block.item(_PROFILE, slot), self._floats.item(_SAMPLES_DONE, slot))

    def _make_room(self) -> None:
        self._close_holes()
        if 2 * self._used > self._block.shape[1]:
            self._block = np.concatenate((self._block, np.zeros_like(self._block)), axis=1)
            self._floats = np.concatenate((self._floats, np.zeros_like(self._floats)), axis=1)
            self._reported_ms = np.concatenate((self._reported_ms, np.zeros_like(self._reported_ms)))
            self._memory = {
                socket: np.concatenate((block, np.zeros_like(block))) for socket, block in self._memory.items()
            }

    def _close_holes(self) -> None:
        """Move the columns of living jobs together."""
        kept = np.flatnonzero(self._block[_PHASE, : self._used] != NONE)
        self._used = len(kept)
        self._block[:, : self._used] = self._block[:, kept]
        self._floats[:, : self._used] = self._floats[:, kept]
        self._reported_ms[: self._used] = self._reported_ms[kept]
        for block in self._memory.values():
            block[: self._used] = block[kept]
            block[self._used :] = 0
        self._slot_of[self._block[_ID, : self._used]] = np.arange(self._used)

    def copy(self) -> ClusterState:
        """Return an independent copy: what happens to it does not happen here."""
        copied = deepcopy(self, {id(self.cluster): self.cluster})
        copied._node_columns = None  # copies of read-only columns can be written to
        return copied

    def renumbered(self) -> tuple[ClusterState, IntArray]:
        """Return an independent copy whose jobs have the ids 0 to J - 1, in their order, and the ids they have here."""
        copied = self.copy()
        copied._close_holes()
        used = copied._used
        ids = copied._block[_ID, :used].copy()
        rows = {job: row for row, job in enumerate(ids.tolist())}
        copied._block[_ID, :used] = np.arange(used)
        copied._slot_of = np.full(max(used, _INITIAL_ROWS), NONE, dtype=np.int64)
        copied._slot_of[:used] = np.arange(used)
        held = copied._granted[0, : copied._num_granted]
        held[:] = np.searchsorted(ids, held)
        copied._seen.renumber(rows)
        copied._losses.renumber(rows)
        copied._slowdowns.renumber(rows)
        copied._joins.renumber(rows)
        return copied, ids

    # -- the frozen view -------------------------------------------------------------------------------------------

    def freeze(self, now_ms: int) -> Snapshot:
        """Return the immutable view at ``now_ms``, with run times and service up to then. Changes nothing."""
        ints, reals, kept, row_of_slot = living(self._block, self._floats, self._reported_ms, self._used, now_ms)
        memory = Memory(**{socket: frozen(stored[kept]) for socket, stored in self._memory.items()})
        slot_of = self._slot_of

        def rows_of(jobs: IntArray) -> IntArray:
            return row_of_slot[slot_of[jobs]]

        return Snapshot(
            now_ms=now_ms,
            jobs=table_of(JobTable, (
                *frozen(ints), *frozen(reals), memory.of("order", len(kept), 1), tuple(self._size_lists),
            )),
            nodes=self._node_table(),
            grants=self._grants(row_of_slot),
            users=self._usage.freeze(now_ms),
            ended_service=frozen(self._ended.copy()),
            gpu_types=self.cluster.gpu_types,
            seen=self._seen.freeze(rows_of),
            losses=self._losses.freeze(),
            memory=memory,
            slowdowns=self._slowdowns.freeze(),
            ended_work=self._work.freeze(),
            gaps=IdleGaps() if self.gaps is None else self.gaps.freeze(),
            joins=JoinTimes() if self.gaps is None else self._joins.freeze(len(kept), rows_of),
        )

    def _node_table(self) -> NodeTable:
        """The nodes. Snapshots between two events of nodes share the memory of these columns, which is read-only."""
        if self._node_columns is None:
            cluster = self.cluster
            self._node_columns = (
                cluster.gpu_type_N, cluster.gpus_N, cluster.cpu_milli_N, cluster.mem_mib_N, frozen(self._up_N.copy()),
                frozen(self._open_N.copy()), _frozen_gpus(self._withheld), _frozen_gpus(self._quarantined),
                frozen(self._asleep.copy()) if self._asleep.any() else NOBODY,
            )
        return table_of(NodeTable, tuple(column.view() for column in self._node_columns))

    def _grants(self, row_of_slot: IntArray) -> Grants:
        """Grants in order of start. A job's ranks are in increasing order because settings carry them so."""
        held, any_revocable = held_now(self._granted, self._num_granted, self._slot_of, row_of_slot)
        job, node, gpu, share_milli, loader_workers, revocable = frozen(held)
        return Grants(
            job=job, node=node, gpu=gpu, share_milli=share_milli, why=EMPTY, blocker=EMPTY,
            loader_workers=loader_workers, revocable=frozen(revocable != 0) if any_revocable else NOBODY,
        )


def _frozen_gpus(marked: BoolArray) -> BoolArray:
    return frozen(marked.copy()) if marked.any() else NO_GPUS


def _spec_values(spec: JobSpec) -> tuple[int, ...]:
    least, most = spec.limits
    return (spec.id, spec.user, spec.submit_ms, spec.gpus, spec.share_milli, spec.cpu_milli, spec.mem_mib,
            spec.gpu_type, spec.time_limit_ms, spec.after, least, most, spec.batch, spec.batch_min, spec.batch_max,
            spec.local_batch_min, spec.local_batch_max, spec.profile, spec.gradient_bytes,
            spec.cpu_ranks_max, spec.servers, spec.target_loss_ppm, spec.samples_max,
            spec.priority, spec.job_class, spec.deadline_ms, spec.gpu_util_milli, spec.gpu_mem_mib)
