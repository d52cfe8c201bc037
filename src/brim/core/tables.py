"""The columnar tables a policy reads: jobs, nodes, grants, users.

Columns are read-only NumPy arrays, so that a policy reads like the formulas of its paper and decides for ten thousand
jobs in milliseconds (docs/decisions/0001). ``table[i]`` gives a row view for loops and messages.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

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
        phase: ``Phase`` code.
        epoch: Attempts so far; fences stale messages.
        first_start_ms: First time it held GPUs, -1 before.
        since_ms: When it began to hold GPUs (while it holds) or to wait (while it waits).
        running_since_ms: When the present attempt began to make progress; read only while it runs.
        run_ms: Time it has made progress, all attempts, up to now (stalls of starting not counted).
        service_gpu_ms: GPU time received (2-D service of Tiresias), up to now.
        memo: What the policy's order part remembers of the job between rounds; 0 at first.
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
    phase: IntArray
    epoch: IntArray
    first_start_ms: IntArray
    since_ms: IntArray
    running_since_ms: IntArray
    run_ms: IntArray
    service_gpu_ms: IntArray
    memo: IntArray

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


JOB_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(JobTable))


class JobRow:
    """View of one row; attributes are the columns' values as plain integers."""

    __slots__ = ("_row", "_table")

    def __init__(self, table: JobTable, row: int) -> None:
        self._table, self._row = table, row

    def __getattr__(self, column: str) -> int:
        return int(getattr(self._table, column)[self._row])


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
        share_milli: Thousandths of that GPU.
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
