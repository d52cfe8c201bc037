"""A trace: the jobs submitted to a cluster, and the record of how they ran.

Readers in ``brim.traces`` make a trace, ``brim.sim.truths`` derives the true run times of a replay from it, and reports
compare with it. A policy never sees it: recorded run times are truth, not estimates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import IntArray, frozen, set_frozen_state
from brim.core.cluster import Cluster
from brim.errors import InvariantError
from brim.units import WHOLE_GPU

NONE = -1
"""In every integer column but ``priority``: not given, not recorded, or no constraint."""


class Status(IntEnum):
    """How a recorded job ended."""

    UNKNOWN = 0
    COMPLETED = 1
    FAILED = 2
    CANCELLED = 3


class JobClass(IntEnum):
    """What kind of service a job asks for."""

    REGULAR = 0
    URGENT = 1
    """Ahead of regular jobs."""
    PADDING = 2
    """Runs on GPUs that no other job needs, and gives them back at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """J jobs, sorted by submission, then id; all columns are read-only int64 of shape (J,).

    Attributes:
        name: File or generator, as shown to users.
        format: Name of the reader or generator.
        synthetic: Whether the jobs were drawn from published marginals, not recorded.
        origin_ms: Unix (or the cluster's local wall clock) milliseconds of time 0, None where the publisher hid it.
        cluster: The recorded cluster, as far as the record shows it: what a header states, or what jobs held on the
            nodes that it names (a lower bound); None where it shows none.
        job_id: Unique ids, as published.
        users: Names behind ``user``.
        groups: Names behind ``group`` (account, virtual cluster, queue).
        gpu_types: Names behind ``gpu_type``.
        profiles: Names behind ``profile``: the application or model each job ran.
        size_lists: Lists behind ``size_list``: numbers of GPUs, each in increasing order.
        user: Code of the user, NONE where not recorded.
        group: Code of the group, NONE where not recorded.
        submit_ms: Submission, ms after time 0; the first is 0.
        gpus: GPUs of the whole gang.
        share_milli: Thousandths of each of these GPUs, 1 to 1000.
        cpu_milli: Milli-cores asked for per GPU, 0 where not recorded.
        mem_mib: MiB of host memory asked for per GPU, 0 where not recorded.
        gpu_type: Code of the type asked for, NONE for any.
        time_limit_ms: The user's time limit, NONE where not recorded.
        run_ms: Recorded run time of all attempts together, without queueing; NONE where it must come from a profile.
        wait_ms: Recorded time from submission to first start, NONE where not recorded.
        jct_ms: Recorded time from submission to the last end (of all attempts, suspensions included), NONE where not
            recorded. Time neither in ``wait_ms`` nor in ``run_ms`` was spent between attempts or suspended.
        status: Status code.
        after: Row of the job that must end first, NONE for none.
        after_ms: Delay between that end and this job's eligibility.
        profile: Code of the application or model, NONE where not recorded.
        batch: Global batch size in samples, NONE where not recorded.
        priority: Larger is served first, among policies that read it; 0 where not given.
        job_class: ``JobClass`` code.
        relative_deadline_ms: Time from submission to the deadline, NONE for no deadline.
        gpu_util_milli: Thousandths of time in which the job keeps its GPUs busy when it has them alone, NONE where not
            recorded.
        gpu_mem_mib: Most memory the job uses of each of its GPUs, in MiB, NONE where not recorded.
        size_list: Entry of ``size_lists`` with the only numbers of GPUs the job can run on, its own among them; NONE
            where not given.
    """

    name: str
    format: str
    synthetic: bool
    origin_ms: int | None
    cluster: Cluster | None
    job_id: tuple[str, ...]
    users: tuple[str, ...]
    groups: tuple[str, ...]
    gpu_types: tuple[str, ...]
    profiles: tuple[str, ...]
    size_lists: tuple[tuple[int, ...], ...]
    user: IntArray
    group: IntArray
    submit_ms: IntArray
    gpus: IntArray
    share_milli: IntArray
    cpu_milli: IntArray
    mem_mib: IntArray
    gpu_type: IntArray
    time_limit_ms: IntArray
    run_ms: IntArray
    wait_ms: IntArray
    jct_ms: IntArray
    status: IntArray
    after: IntArray
    after_ms: IntArray
    profile: IntArray
    batch: IntArray
    priority: IntArray
    job_class: IntArray
    relative_deadline_ms: IntArray
    gpu_util_milli: IntArray
    gpu_mem_mib: IntArray
    size_list: IntArray

    __setstate__ = set_frozen_state

    def __len__(self) -> int:
        return len(self.job_id)

    @property
    def span_ms(self) -> int:
        """Time from the first submission to the last."""
        return int(self.submit_ms[-1]) if len(self) else 0

    @property
    def gpu_ms(self) -> IntArray:
        """GPU time of each job, shares counted as shares; 0 where the run time is not recorded."""
        return self.gpus * np.maximum(self.run_ms, 0) * self.share_milli // WHOLE_GPU

    def take(self, rows: IntArray) -> Trace:
        """Keep these rows (increasing) and the dependencies between them; time 0 becomes the first kept submission."""
        new_row = np.full(len(self) + 1, NONE, dtype=np.int64)
        new_row[rows] = np.arange(len(rows))
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in INT_COLUMNS}
        columns["after"] = new_row[columns["after"]]  # NONE indexes the last cell, which stays NONE
        start = int(columns["submit_ms"][0]) if len(rows) else 0
        columns["submit_ms"] = columns["submit_ms"] - start
        return replace(
            self,
            job_id=tuple(self.job_id[row] for row in rows),
            origin_ms=None if self.origin_ms is None else self.origin_ms + start,
            **{name: frozen(column) for name, column in columns.items()},
        )


INT_COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(Trace) if f.type == "IntArray")
DEFAULTS: dict[str, int] = {
    "share_milli": WHOLE_GPU, "cpu_milli": 0, "mem_mib": 0, "status": Status.UNKNOWN, "after_ms": 0, "priority": 0,
    "job_class": JobClass.REGULAR,
}


def trace_of(
    *,
    name: str,
    format: str,
    job_id: Sequence[str],
    submit_ms: Sequence[int] | IntArray,
    gpus: Sequence[int] | IntArray,
    synthetic: bool = False,
    origin_ms: int | None = None,
    cluster: Cluster | None = None,
    users: Sequence[str] = (),
    groups: Sequence[str] = (),
    gpu_types: Sequence[str] = (),
    profiles: Sequence[str] = (),
    size_lists: Sequence[tuple[int, ...]] = (),
    **columns: Sequence[int] | IntArray,
) -> Trace:
    """Build a trace from columns in any row order: sort by (submission, id) and move the first submission to 0.

    Columns not given take their neutral value (whole GPUs, no limit, not recorded); ``jct_ms`` is then the sum of the
    recorded wait and run times. ``after`` holds rows of the input. ``origin_ms``, where given, is the wall clock of
    submission time 0 of the *input*; it moves with the shift.

    Raises:
        InvariantError: columns differ in length, ids repeat, a code points outside its names, or a job's GPUs are not
            in its list of sizes. Readers check their input first and raise TraceError with file and row.
    """
    ids: NDArray[Any] = np.asarray(job_id, dtype=object)
    size = len(ids)
    given: dict[str, Any] = {"submit_ms": submit_ms, "gpus": gpus, **columns}
    unknown = set(given) - set(INT_COLUMNS)
    if unknown:
        raise InvariantError(f"unknown trace columns {sorted(unknown)}")
    table = {
        column: np.asarray(given[column], dtype=np.int64)
        if column in given
        else np.full(size, DEFAULTS.get(column, NONE), dtype=np.int64)
        for column in INT_COLUMNS
    }
    if any(values.shape != (size,) for values in table.values()):
        raise InvariantError("trace columns differ in length")
    if "jct_ms" not in given:
        recorded = (table["wait_ms"] != NONE) & (table["run_ms"] != NONE)
        table["jct_ms"] = np.where(recorded, table["wait_ms"] + table["run_ms"], NONE)
    if len(set(ids)) != size:
        raise InvariantError("trace: two jobs have the same id")
    names: dict[str, Sequence[object]] = {
        "user": users, "group": groups, "gpu_type": gpu_types, "profile": profiles, "after": ids.tolist(),
        "size_list": size_lists,
    }
    for column, behind in names.items():
        if size and (table[column].max() >= len(behind) or table[column].min() < NONE):
            raise InvariantError(f"trace column {column!r} has a code without a name")
    for code, listed in enumerate(size_lists):
        if not np.isin(table["gpus"][table["size_list"] == code], listed).all():
            raise InvariantError(f"trace: a job asks for a number of GPUs that is not in its list of sizes {listed}")
    order = _canonical_order(table["submit_ms"], ids)
    position = np.full(size + 1, NONE, dtype=np.int64)
    position[order] = np.arange(size)
    table = {column: values[order] for column, values in table.items()}
    table["after"] = position[table["after"]]
    start = int(table["submit_ms"][0]) if size else 0
    table["submit_ms"] = table["submit_ms"] - start
    return Trace(
        name=name, format=format, synthetic=synthetic,
        origin_ms=None if origin_ms is None else origin_ms + start,
        cluster=cluster, job_id=tuple(ids[order]), users=tuple(users), groups=tuple(groups), gpu_types=tuple(gpu_types),
        profiles=tuple(profiles), size_lists=tuple(size_lists),
        **{column: frozen(values) for column, values in table.items()},
    )


_DIGITS = re.compile(r"(\d+)")
_INT64_DIGITS = 18


def natural_key(text: str) -> tuple[tuple[int, int, str, str], ...]:
    """Sort key that puts ``job9`` before ``job10``; total, because ids are unique.

    Of two numbers, the one with more digits is larger, leading zeros apart: Python reads no number of 4,301 digits.
    """
    return tuple(
        (0, len(part.lstrip("0")), part.lstrip("0"), part) if part.isdecimal() else (1, 0, "", part)
        for part in _DIGITS.split(text) if part
    )  # fmt: skip


def _canonical_order(submit_ms: IntArray, ids: NDArray[Any]) -> IntArray:
    """Order by (submission, natural id), which is the same for every permutation of the input rows."""
    order = np.argsort(submit_ms, kind="stable")
    times = submit_ms[order]
    same = times[1:] == times[:-1]
    tied = np.flatnonzero(np.concatenate((same, [False])) | np.concatenate(([False], same)))
    if not len(tied):
        return order
    rows = order[tied]
    keys = _number_keys(ids[rows].tolist())
    if keys is None:
        order[tied] = sorted(rows, key=lambda row: (submit_ms[row], natural_key(str(ids[row]))))
    else:
        order[tied] = rows[np.lexsort((*keys[::-1], times[tied]))]
    return order


def _number_keys(ids: list[str]) -> IntArray | None:
    """Return the numbers in the ids, one row per number, if comparing them is the same as comparing natural keys.

    That holds when the ids differ only in numbers without leading zeros; otherwise return None.
    """
    text = "\n".join(ids)
    shapes = set(_DIGITS.sub("0", text).split("\n"))
    numbers = _DIGITS.findall(text)
    if len(shapes) > 1 or not numbers or len(numbers) % len(ids) or not text.isascii():
        return None
    if max(map(len, numbers)) > _INT64_DIGITS or any(number[0] == "0" and number != "0" for number in numbers):
        return None
    return np.fromiter(map(int, numbers), dtype=np.int64, count=len(numbers)).reshape(len(ids), -1).T
