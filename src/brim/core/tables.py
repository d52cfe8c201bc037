"""The columnar tables a policy reads: jobs, nodes, grants, users.

Columns are read-only NumPy arrays, so that a policy reads like the formulas of its paper and decides for ten thousand
jobs in milliseconds (docs/decisions/0001). ``table[i]`` gives a row view for loops and messages.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.lifecycle import Phase

_PENDING, _STARTING, _RUNNING = int(Phase.PENDING), int(Phase.STARTING), int(Phase.RUNNING)
"""Plain integers: looking a member up on an Enum class is slow before Python 3.12."""


@dataclass(frozen=True, slots=True)
class JobTable:
    """One row per job that is not over, sorted by submission, then id (J rows).

    Attributes:
        id: Increasing.
        user: Row of the user table.
        submit_ms: Submission.
        gpus: Whole gang.
        share_milli: Thousandths of each of these GPUs.
        cpu_milli: Milli-cores per GPU, 0 for none asked.
        mem_mib: MiB per GPU, 0 for none asked.
        gpu_type: Code of the type asked for, -1 for any.
        time_limit_ms: -1 for none.
        after: Id of the job this one waits for, -1 for none.
        gpus_min: Fewest GPUs it can run on; equal to ``gpus_max`` and ``gpus`` for a rigid job.
        gpus_max: Most GPUs it can run on.
        batch: Global batch its user asked, in samples, -1 where not known.
        batch_min: Smallest global batch that does not harm the result, -1 where not known.
        batch_max: Largest global batch that does not harm the result, -1 where not known.
        local_batch_min: Fewest samples per GPU and micro-step, -1 where not known.
        local_batch_max: Most samples that fit one GPU, -1 where not known.
        profile: Code of the model it trains, -1 where not known.
        gradient_bytes: What its ranks exchange each step, -1 where not known.
        phase: ``Phase`` code.
        epoch: Attempts so far; fences stale messages.
        first_start_ms: First time it held GPUs, -1 before.
        since_ms: When it began to hold GPUs (while it holds) or to wait (while it waits).
        running_since_ms: When the present attempt began to make progress; read only while it runs.
        run_ms: Time it has made progress, all attempts, up to now (stalls of starting not counted).
        service_gpu_ms: GPU time received (2-D service of Tiresias), up to now.
        memo: What the policy's order part remembers of the job between rounds; 0 at first.
        gpus_now: GPUs it holds, 0 while it waits.
        share_now: Thousandths of each GPU it holds, 0 while it waits.
        batch_now: Global batch it was last given, -1 before.
        starts: Attempts that came to make progress.
        stalled_ms: Time in which these held GPUs before they did.
        samples_done: Samples whose work counts, up to now (``Report.samples_done``); 0 where the job does not say.
        samples_per_s: How fast that last grew; 0 where the job does not say.
        grad_var: Variance of its gradient at the smallest batch; NaN where the job does not say.
        grad_sqr: Squared norm of its gradient; NaN where the job does not say.
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
    phase: IntArray
    epoch: IntArray
    first_start_ms: IntArray
    since_ms: IntArray
    running_since_ms: IntArray
    run_ms: IntArray
    service_gpu_ms: IntArray
    memo: IntArray
    gpus_now: IntArray
    share_now: IntArray
    batch_now: IntArray
    starts: IntArray
    stalled_ms: IntArray
    samples_done: FloatArray
    samples_per_s: FloatArray
    grad_var: FloatArray
    grad_sqr: FloatArray

    def __len__(self) -> int:
        return len(self.id)

    def __getitem__(self, row: int) -> JobRow:
        return JobRow(self, row)

    @property
    def holds(self) -> BoolArray:
        """Has GPUs: starting or running."""
        holds: BoolArray = (self.phase == _STARTING) | (self.phase == _RUNNING)
        return holds

    @property
    def waits(self) -> BoolArray:
        """Could be started now."""
        waits: BoolArray = self.phase == _PENDING
        return waits

    @property
    def elastic(self) -> BoolArray:
        """May run on more than one number of GPUs, and says which batches do it no harm."""
        elastic: BoolArray = (self.gpus_min < self.gpus_max) & (self.batch_min > 0) & (self.local_batch_max > 0)
        return elastic


JOB_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(JobTable) if field.type == "IntArray")
JOB_FLOAT_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(JobTable) if field.type == "FloatArray")
assert tuple(field.name for field in fields(JobTable)) == JOB_COLUMNS + JOB_FLOAT_COLUMNS  # the state builds it so


class JobRow:
    """View of one row; attributes are the columns' values as plain numbers."""

    __slots__ = ("_row", "_table")

    def __init__(self, table: JobTable, row: int) -> None:
        self._table, self._row = table, row

    def __getattr__(self, column: str) -> Any:
        return getattr(self._table, column)[self._row].item()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """One row per node, in the cluster's order (N rows). Resources are totals, whoever holds them.

    Attributes:
        gpu_type: Code of the node's GPU type.
        gpus: GPUs.
        cpu_milli: Milli-cores.
        mem_mib: MiB.
        up: False while the node is lost.
        is_open: Takes new jobs: up and not draining.
    """

    gpu_type: IntArray
    gpus: IntArray
    cpu_milli: IntArray
    mem_mib: IntArray
    up: BoolArray
    is_open: BoolArray

    def __len__(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """Who has which GPU: one row per job and GPU (G rows); a job's rows stand together, by node, then GPU.

    Attributes:
        job: Row of the job table.
        node: Row of the node table.
        gpu: Index on the node.
        share_milli: Thousandths of that GPU; the same for all GPUs of a job.
        why: Per job of the table (J): ``Why`` code of a job left out, 0 for one that has GPUs. Empty in a snapshot.
        blocker: Per job (J): row of the job it stands behind, -1 for none. Empty in a snapshot.
    """

    job: IntArray
    node: IntArray
    gpu: IntArray
    share_milli: IntArray
    why: IntArray
    blocker: IntArray

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSteps:
    """Step times jobs have reported: one row per job and configuration, means of what was seen (S rows).

    Attributes:
        job: Row of the job table, -1 for jobs that are over; those are kept by model.
        profile: Code of the model, -1 where not known.
        nodes: Nodes the gang was on.
        gpus: GPUs of the gang.
        local_batch: Samples per GPU and micro-step.
        step_s: Seconds for one step with synchronisation.
        sync_s: The part of it that waits for synchronisation.
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
class UserTable:
    """One row per user who ever submitted (U rows).

    Attributes:
        name: Names.
        usage_gpu_ms: GPU time of ended attempts, halved every ``state.USAGE_HALF_LIFE_MS``.
        last_run_ms: Run time of the user's last completed job, -1 before the first.
        previous_run_ms: Run time of the one before, -1 before the second.
    """

    name: tuple[str, ...]
    usage_gpu_ms: FloatArray
    last_run_ms: IntArray
    previous_run_ms: IntArray

    def __len__(self) -> int:
        return len(self.name)


EMPTY: IntArray = np.empty(0, dtype=np.int64)
EMPTY.setflags(write=False)
