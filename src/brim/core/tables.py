"""The columnar tables a policy reads: jobs, nodes, grants, users.

Columns are read-only NumPy arrays, so that a policy reads like the formulas of its paper and decides for ten thousand
jobs in milliseconds (docs/decisions/0001). ``table[i]`` gives a row view for loops and messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray, frozen
from brim.core.lifecycle import Phase

_PENDING, _STARTING, _RUNNING = int(Phase.PENDING), int(Phase.STARTING), int(Phase.RUNNING)
"""Plain integers: looking a member up on an Enum class is slow before Python 3.12."""


@dataclass(frozen=True, slots=True)
class JobTable:
    """One row per job that has not ended, sorted by submission, then id (J rows).

    Attributes:
        id: Job id, increasing.
        user: Row of the user table.
        submit_ms: Time of submission.
        gpus: GPUs of the whole gang, as asked for.
        share_milli: Thousandths of each of these GPUs.
        cpu_milli: Milli-cores per GPU, 0 where the job asks for none.
        mem_mib: MiB per GPU, 0 where the job asks for none.
        gpu_type: Code of the type asked for, -1 for any.
        time_limit_ms: Time limit, -1 for none.
        after: Id of the job this one waits for, -1 for none.
        gpus_min: Fewest GPUs it can run on; equal to ``gpus_max`` and ``gpus`` for a rigid job.
        gpus_max: Most GPUs it can run on.
        batch: Global batch its user asked for, in samples, -1 where not known.
        batch_min: Smallest global batch that does not harm the result, -1 where not known.
        batch_max: Largest global batch that does not harm the result, -1 where not known.
        local_batch_min: Fewest samples per GPU and micro-step, -1 where not known.
        local_batch_max: Most samples that fit one GPU, -1 where not known.
        profile: Code of the model it trains, -1 where not known.
        gradient_bytes: Bytes its ranks exchange in each step, -1 where not known.
        cpu_ranks_max: Most ranks on CPU, beside those on GPUs or instead of them, parameter servers among them.
        servers: Parameter servers it asks for; 0 for a job whose ranks exchange gradients among themselves.
        target_loss_ppm: Loss at which its training ends, in millionths, -1 where not known.
        samples_max: Samples after which its training ends in any case, -1 where not known.
        priority: Larger is served first, among policies that read it; 0 where not given.
        job_class: ``JobClass`` code.
        deadline_ms: When it should have ended, -1 for no deadline.
        gpu_util_milli: Thousandths of time in which it keeps its GPUs busy when it has them alone, -1 where not known.
        gpu_mem_mib: Most memory it uses of each of its GPUs, in MiB, -1 where not known.
        size_list: Entry of ``size_lists`` with the numbers of GPUs it can run on, -1 for all from ``gpus_min`` to
            ``gpus_max``.
        phase: ``Phase`` code.
        attempt: Attempts so far: it grows with every start, when no process of the last attempt lives. Reports of an
            older attempt are stale.
        sequence: Settings so far: it grows with every start, resize and tune. Commands of an older setting are stale.
        placements: Starts and resizes so far; each of them costs the job a start or restart.
        first_start_ms: When it first held GPUs, -1 before.
        since_ms: When it began to hold its GPUs, or its present share of them (while it holds), or to wait (while it
            waits).
        running_since_ms: When the present placement began to make progress; read only while it runs.
        run_ms: Time in which it made progress, over all attempts, up to now (starting is not counted).
        service_gpu_ms: GPU time received (2-D service of Tiresias), up to now.
        gpus_now: GPUs it holds, 0 while it waits.
        share_now: Thousandths of each GPU it holds, 0 while it waits.
        loaders_now: Loader workers of each of its ranks, 0 while it waits.
        batch_now: Global batch it was last given, -1 before.
        starts: Placements that began to make progress.
        stalled_ms: Time in which those placements held GPUs before they made progress.
        samples_done: Effective samples up to now (``Report.samples_done``); 0 where not reported.
        samples_per_s: Rate at which ``samples_done`` last grew; 0 where not reported.
        grad_var: Variance of its gradient at the smallest batch; NaN where not reported.
        grad_sqr: Squared norm of its gradient; NaN where not reported.
        loss: Loss of its training; NaN where not reported.
        slowdown_ratio: Step time relative to that with its GPUs alone; NaN where not observed since it has its present
            share of them.
        loader_wait_ratio: Part of its step time in which it waits for data, 0 to 1; NaN where not reported since it has
            the loader workers that it has now.
        memo: What the part that reads the table stores for the job, 0 at first; see ``snapshot.Memory``. ``remember``
            reads what it returned in the last round, the part itself what it returned in this one. A part without
            ``remember`` reads what the order part stores in this round; (J, K) if that is K integers per job.
        size_lists: Lists of numbers of GPUs, each in increasing order.
    """

    id: IntArray
    user: IntArray
    submit_ms: IntArray
    gpus: IntArray
    share_milli: IntArray
    cpu_milli: IntArray
    mem_mib: IntArray
    gpu_type: IntArray
    time_limit_ms: IntArray
    after: IntArray
    gpus_min: IntArray
    gpus_max: IntArray
    batch: IntArray
    batch_min: IntArray
    batch_max: IntArray
    local_batch_min: IntArray
    local_batch_max: IntArray
    profile: IntArray
    gradient_bytes: IntArray
    cpu_ranks_max: IntArray
    servers: IntArray
    target_loss_ppm: IntArray
    samples_max: IntArray
    priority: IntArray
    job_class: IntArray
    deadline_ms: IntArray
    gpu_util_milli: IntArray
    gpu_mem_mib: IntArray
    size_list: IntArray
    phase: IntArray
    attempt: IntArray
    sequence: IntArray
    placements: IntArray
    first_start_ms: IntArray
    since_ms: IntArray
    running_since_ms: IntArray
    run_ms: IntArray
    service_gpu_ms: IntArray
    gpus_now: IntArray
    share_now: IntArray
    loaders_now: IntArray
    batch_now: IntArray
    starts: IntArray
    stalled_ms: IntArray
    samples_done: FloatArray
    samples_per_s: FloatArray
    grad_var: FloatArray
    grad_sqr: FloatArray
    loss: FloatArray
    slowdown_ratio: FloatArray
    loader_wait_ratio: FloatArray
    memo: IntArray
    size_lists: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.id)

    def __getitem__(self, row: int) -> JobRow:
        return JobRow(self, row)

    @property
    def holds(self) -> BoolArray:
        """Whether each job has GPUs: it is starting or running."""
        holds: BoolArray = (self.phase == _STARTING) | (self.phase == _RUNNING)
        return holds

    def allows(self, gpus: IntArray) -> BoolArray:
        """Whether each job can run on this number of GPUs (J,); what its user asked for is always possible."""
        allowed: BoolArray = (self.gpus_min <= gpus) & (gpus <= self.gpus_max)
        for code, sizes in enumerate(self.size_lists):
            allowed &= (self.size_list != code) | np.isin(gpus, sizes)
        asked: BoolArray = gpus == self.gpus
        return allowed | asked

    def sizes_of(self, row: int) -> tuple[int, ...]:
        """The numbers of GPUs that one job can run on, in increasing order."""
        code, asked = int(self.size_list[row]), int(self.gpus[row])
        sizes = self.size_lists[code] if code >= 0 else range(int(self.gpus_min[row]), int(self.gpus_max[row]) + 1)
        return tuple(sorted({*sizes, asked}))

    @property
    def waits(self) -> BoolArray:
        """Whether each job could be started now."""
        waits: BoolArray = self.phase == _PENDING
        return waits

    @property
    def elastic(self) -> BoolArray:
        """Whether each job may run on more than one number of GPUs and states its range of batches."""
        elastic: BoolArray = (self.gpus_min < self.gpus_max) & (self.batch_min > 0) & (self.local_batch_max > 0)
        return elastic


JOB_COLUMNS: tuple[str, ...] = tuple(
    each.name for each in fields(JobTable) if each.type == "IntArray" and each.name != "memo"
)
JOB_FLOAT_COLUMNS: tuple[str, ...] = tuple(each.name for each in fields(JobTable) if each.type == "FloatArray")
assert tuple(each.name for each in fields(JobTable)) == (*JOB_COLUMNS, *JOB_FLOAT_COLUMNS, "memo", "size_lists")


class JobRow:
    """View of one row; its attributes are the values of the columns, as plain numbers."""

    __slots__ = ("_row", "_table")

    def __init__(self, table: JobTable, row: int) -> None:
        self._table, self._row = table, row

    def __getattr__(self, column: str) -> Any:
        return getattr(self._table, column)[self._row].item()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """One row per node, in the cluster's order (N rows). Resources are totals, in use or not.

    Attributes:
        gpu_type: Code of the node's GPU type.
        gpus: Number of GPUs.
        cpu_milli: Milli-cores.
        mem_mib: MiB of memory.
        up: False while the node is lost.
        is_open: Whether the node takes new jobs: it is up and not draining.
        withheld: Whether a GPU takes no new jobs, although its node may: rows of the widest node's number of GPUs
            (N, W). Empty, (0, 0): no GPU is withheld.
        quarantined: Which of these are withheld because they are not as they should be (N, W), or empty.
        asleep: Whether the node sleeps, because it had no jobs for some time: a job that is given its GPUs starts once
            it is awake. Empty: no node does.
    """

    gpu_type: IntArray
    gpus: IntArray
    cpu_milli: IntArray
    mem_mib: IntArray
    up: BoolArray
    is_open: BoolArray
    withheld: BoolArray = field(default_factory=lambda: NO_GPUS)
    quarantined: BoolArray = field(default_factory=lambda: NO_GPUS)
    asleep: BoolArray = field(default_factory=lambda: NOBODY)

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def gpus_open(self) -> IntArray:
        """GPUs that take new jobs, in use or not (N,)."""
        count = self.gpus - self.withheld.sum(axis=1) if self.withheld.size else self.gpus
        return np.where(self.is_open, count, 0)

    def takes(self, node: IntArray, gpu: IntArray) -> BoolArray:
        """Whether each of these places takes new jobs: its node is open, and the GPU is not withheld."""
        taken: BoolArray = self.is_open[node]
        if self.withheld.size:
            taken = taken & ~((gpu >= 0) & self.withheld[node, np.maximum(gpu, 0)])
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """Which rank of which job is where: one row per rank (G rows); a job's rows are adjacent, by node, then GPU.

    Attributes:
        job: Row of the job table.
        node: Row of the node table.
        gpu: Index on the node; -1 for a worker on CPU, -2 for a parameter server (``core.setting``).
        share_milli: Thousandths of that GPU, the same for all GPUs of a job; milli-cores of a rank on CPU, the same for
            all workers on CPU and for all servers of a job, 0 for those that the job asks for per rank.
        why: Per row of the job table (J): ``Reason`` code, 0 for a job that has GPUs. Empty in a snapshot.
        blocker: Per row of the job table (J): row of the job that blocks this one, -1 for none. Empty in a snapshot.
        loader_workers: Data-loading processes of the rank. Empty in what a part returns: the feed part decides them.
        revocable: Whether the job gives its GPUs back at once when a regular job needs them, the same for all rows of a
            job. Empty: no row is.
    """

    job: IntArray
    node: IntArray
    gpu: IntArray
    share_milli: IntArray
    why: IntArray
    blocker: IntArray
    loader_workers: IntArray = field(default_factory=lambda: EMPTY)
    revocable: BoolArray = field(default_factory=lambda: NOBODY)

    def __len__(self) -> int:
        return len(self.job)

    @property
    def loaders(self) -> IntArray:
        """Loader workers of every rank (G,), 0 where they are not decided yet."""
        if len(self.loader_workers) or not len(self.job):
            return self.loader_workers
        return np.zeros(len(self.job), dtype=np.int64)

    def revocable_jobs(self, size: int) -> BoolArray:
        """Whether the grants of each of ``size`` jobs are revocable (J,)."""
        marked = np.zeros(size, dtype=np.bool_)
        if len(self.revocable):
            marked[self.job[self.revocable]] = True
        return marked


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSteps:
    """Step times that jobs reported: one row per job and configuration, with the means of its steps (S rows).

    Attributes:
        job: Row of the job table, -1 for jobs that have ended, which are merged by model.
        profile: Code of the model, -1 where not known.
        nodes: Nodes the gang was on.
        gpus: GPUs of the gang; 0 for one on CPU.
        local_batch: Samples per GPU and micro-step.
        step_s: Seconds for one step with synchronisation.
        sync_s: The part of ``step_s`` spent waiting for synchronisation.
    """

    job: IntArray
    profile: IntArray
    nodes: IntArray
    gpus: IntArray
    local_batch: IntArray
    step_s: FloatArray
    sync_s: FloatArray

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownTable:
    """Slowdowns that jobs reported beside neighbours: one row per job kind and exact set of neighbours (S rows).

    Attributes:
        profile: Code of the job's model.
        batch: Its global batch, -1 where it has none.
        gpu_type: Code of the GPU type.
        others: Model and batch of each neighbour, in increasing order, -1 after the last (S, 3, 2).
        count: Jobs that reported.
        mean_ratio: Mean of their slowdowns, at least 1.
        variance: Variance of their slowdowns, 0 for one.
    """

    profile: IntArray
    batch: IntArray
    gpu_type: IntArray
    others: IntArray
    count: IntArray
    mean_ratio: FloatArray
    variance: FloatArray

    def __len__(self) -> int:
        return len(self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTable:
    """One row per user who has submitted a job (U rows).

    Attributes:
        name: Names of the users.
        usage_gpu_ms: GPU time of ended attempts, halved every ``usage.USAGE_HALF_LIFE_MS``.
        last_run_ms: Run time of the user's last completed job, -1 before the first.
        previous_run_ms: Run time of the one before, -1 before the second.
    """

    name: tuple[str, ...]
    usage_gpu_ms: FloatArray
    last_run_ms: IntArray
    previous_run_ms: IntArray

    def __len__(self) -> int:
        return len(self.name)


EMPTY: IntArray = frozen(np.empty(0, dtype=np.int64))
NO_SLOWDOWNS = SlowdownTable(
    profile=EMPTY, batch=EMPTY, gpu_type=EMPTY, others=frozen(np.empty((0, 3, 2), dtype=np.int64)), count=EMPTY,
    mean_ratio=frozen(np.empty(0)), variance=frozen(np.empty(0)),
)
NOBODY: BoolArray = frozen(np.zeros(0, dtype=np.bool_))
NO_GPUS: BoolArray = frozen(np.zeros((0, 0), dtype=np.bool_))
