"""What a round asks of a policy's parts: their answers are copied, checked, and errors name the part and its line.

Compiled code has no bounds checks, so whatever a part returns is checked before another part receives it.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter, is_
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import IntArray, frozen, replaced
from brim.core.cluster import UNLIMITED
from brim.core.reasons import Reason
from brim.core.snapshot import Memory, Snapshot
from brim.core.tables import EMPTY, NOBODY, Grants, JobTable, NodeTable, SeenSteps, UserTable
from brim.core.trace import NONE
from brim.engine.rows import (
    BLOCKER,
    FINE,
    INCREASING,
    JOB,
    NOWHERE,
    REVOCABLE,
    SHARE,
    WHY,
    all_or_nothing,
    grants_fault,
    is_permutation,
    plainly_allowed,
)
from brim.errors import BrimError, ConfigError, PlanError, UserError, one_line
from brim.policies.sockets import SIZES_ON_CPU, Policy, Sizes
from brim.policies.source_lines import raised_at
from brim.units import counted

_LAST_WHY: Final = int(max(Reason))
_TYPE: Final = {"i": np.dtype(np.int64), "b": np.dtype(np.bool_)}
_EMPTY: Final[dict[str, NDArray[Any]]] = {"i": EMPTY, "b": NOBODY}
"""Columns that nobody has filled: nobody can write to them either."""
_MOST_LOADERS: Final = 4096
"""Most loader workers per rank on a node whose cores are not known: more than today's machines have cores. Ours."""


class asking:  # noqa: N801 - reads as a word in a with statement; a generator would cost microseconds each round
    """Turns any error of a policy's part into one line that names the policy, the part, the file and the line.

    A part that replaced a column of the snapshot, which is the same object for all parts, is refused as well.
    """

    __slots__ = ("_method", "_name", "_policy", "_seen")

    def __init__(self, policy: Policy, name: str, seen: Seen, method: str = "__call__") -> None:
        self._policy, self._name, self._seen, self._method = policy, name, seen, method

    def __enter__(self) -> Snapshot:
        return self._seen.snapshot

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            if self._seen.is_unchanged():
                return
            error = PlanError("it replaced a column of the snapshot, which parts may only read")
        part = f"policy {self._policy.name!r}, {self._name}"
        part += f".{self._method}" if self._method != "__call__" else ""
        words = one_line(error)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(part) from error
        if isinstance(error, UserError):
            raise ConfigError(f"{part}: {words}") from error
        if isinstance(error, BrimError) and not isinstance(error, PlanError):
            return
        if not isinstance(error, PlanError) and words != type(error).__name__:  # SystemExit, too, ends in one line
            words = f"{type(error).__name__}: {words}"
        where = raised_at(getattr(self._policy, self._name), error.__traceback__, self._method)
        raise PlanError(f"{part}: {words}" + (f" ({where})" if where else "")) from error


_SNAPSHOT, _JOBS, _NODES, _GRANTS, _USERS, _STEPS, _MEMORY = (
    attrgetter(*(field.name for field in fields(kind)))
    for kind in (Snapshot, JobTable, NodeTable, Grants, UserTable, SeenSteps, Memory)
)


def _contents(snapshot: Snapshot) -> tuple[object, ...]:
    """Every attribute of a snapshot, then of its tables, in a fixed order."""
    own: tuple[object, ...] = _SNAPSHOT(snapshot)
    return own + _JOBS(snapshot.jobs) + _NODES(snapshot.nodes) + _GRANTS(snapshot.grants) + _USERS(
        snapshot.users) + _STEPS(snapshot.seen) + _MEMORY(snapshot.memory)


class Seen:
    """A snapshot that parts see, and its columns as they were before."""

    __slots__ = ("_before", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._before = _contents(snapshot)

    def is_unchanged(self) -> bool:
        """Whether every column is still the same object."""
        try:
            return all(map(is_, self._before, _contents(self.snapshot)))
        except AttributeError:  # a column was deleted
            return False

    def with_memo(self, memo: IntArray) -> Seen:
        """The snapshot with another column ``memo``."""
        return Seen(replaced(self.snapshot, jobs=replaced(self.snapshot.jobs, memo=memo)))


def own_column(given: object, size: int, kind: str = "i", name: str = "", row: str = "job") -> NDArray[Any]:
    """A copy of a column that a part returned, as a plain array that nobody can write to; checks type and length.

    The part could change its own array after the checks, and an array of a class of its own could answer them.

    Args:
        given: What the part returned.
        size: Length that the column must have.
        kind: NumPy's letter for the type of the values.
        name: Name of the column, such as ``Grants.node``; empty for the whole answer.
        row: What each value belongs to.
    """
    if not size and given is _EMPTY[kind]:
        return given
    column = np.asarray(given) if isinstance(given, np.ndarray) else None
    if column is None or column.shape != (size,) or column.dtype.kind != kind:
        values = counted(size, "truth value" if kind == "b" else "signed integer")
        raise PlanError(f"{name and name + ': '}expected an array of {values}, one per {row}, found {_found(given)}")
    return frozen(column.astype(_TYPE[kind]))


def own_memory(given: object, size: int, columns: int) -> IntArray:
    """A copy of what a part remembers: (J,), or (J, columns) if it remembers several integers per job."""
    if columns == 1:
        return own_column(given, size)
    block = np.asarray(given) if isinstance(given, np.ndarray) else None
    if block is None or block.shape != (size, columns) or block.dtype.kind != "i":
        expected = f"{counted(columns, 'signed integer')} for each of {counted(size, 'job')}"
        raise PlanError(f"expected an array of {expected}, found {_found(given)}")
    return frozen(block.astype(np.int64))


def own_sizes(given: Sizes, size: int) -> Sizes:
    """A copy of the sizes of a size part."""
    if not isinstance(given, Sizes):
        raise PlanError(f"expected Sizes, found {type(given).__name__}")
    return Sizes(
        gpus=own_column(given.gpus, size, name="Sizes.gpus"),
        global_batch=_optional(given.global_batch, size, "i", "Sizes.global_batch"),
        analyse=_optional(given.analyse, size, "b", "Sizes.analyse"),
        reject=_optional(given.reject, size, "b", "Sizes.reject"),
        **{name: _optional(getattr(given, name), size, "i", f"Sizes.{name}") for name in SIZES_ON_CPU},
    )


def _optional(given: Any, size: int, kind: str, name: str, row: str = "job") -> NDArray[Any]:
    """A column that may be empty."""
    return own_column(given, size if getattr(given, "size", 1) else 0, kind, name, row)


def own_grants(given: Grants, size: int) -> Grants:
    """A copy of the grants of a place or fill part; loader workers are left out, which the feed part decides."""
    if not isinstance(given, Grants):
        raise PlanError(f"expected Grants, found {type(given).__name__}")
    ranks = np.size(given.job)
    return Grants(
        job=own_column(given.job, ranks, "i", "Grants.job", "rank"),
        node=own_column(given.node, ranks, "i", "Grants.node", "rank"),
        gpu=own_column(given.gpu, ranks, "i", "Grants.gpu", "rank"),
        share_milli=own_column(given.share_milli, ranks, "i", "Grants.share_milli", "rank"),
        why=own_column(given.why, size, "i", "Grants.why"),
        blocker=own_column(given.blocker, size, "i", "Grants.blocker"),
        revocable=_optional(given.revocable, ranks, "b", "Grants.revocable", "rank"),
    )


def filled_grants(given: Grants, placed: Grants, snapshot: Snapshot) -> Grants:
    """A checked copy of the grants of a fill part; the grants that were placed, if it added nothing to them."""
    if type(given) is Grants and all(map(is_, _GRANTS(given), _GRANTS(placed))):
        return placed
    wanted = own_grants(given, len(snapshot.jobs))
    if not all(map(np.array_equal, _GRANTS(wanted), _GRANTS(placed))):
        check_grants(wanted, snapshot)
        check_only_added(placed, wanted, snapshot.jobs)
    return wanted


def check_loaders(loaders: IntArray, snapshot: Snapshot) -> None:
    """Check that no job gets more loader workers than the largest node has cores."""
    cpu_milli = snapshot.nodes.cpu_milli
    most = int(np.where(cpu_milli < UNLIMITED, cpu_milli // 1000, _MOST_LOADERS).max(initial=1))
    if loaders.max(initial=0) > most or loaders.min(initial=0) < 0:
        row = int(np.argmax((loaders < 0) | (loaders > most)))
        raise PlanError(
            f"job {snapshot.jobs.id[row]} gets {loaders[row]} loader workers per rank: expected 0 to {most}, the cores "
            "of the largest node"
        )


def check_permutation(order: IntArray, size: int) -> None:
    """Check the order, because the compiled walk has no bounds checks and would read a wrong row from anywhere."""
    if not is_permutation(order):
        raise PlanError(f"expected each of the {size} job rows once, found {_short(order)}")


def check_sizes(sizes: Sizes, jobs: JobTable) -> None:
    """Check that every size is one the job can run on, and that no number of what is on CPU is below 0."""
    for name in SIZES_ON_CPU:
        column: IntArray = getattr(sizes, name)
        if len(column) and column.min() < 0:
            row = int(column.argmin())
            raise PlanError(f"job {jobs.id[row]}: Sizes.{name}: expected 0 or more, found {column[row]}")
    if plainly_allowed(sizes.gpus, jobs.gpus, jobs.gpus_min, jobs.gpus_max, jobs.size_list):
        return
    wrong = np.flatnonzero(~jobs.allows(sizes.gpus) & (sizes.gpus != 0))
    if len(wrong):
        row = int(wrong[0])
        least, most = jobs.gpus_min[row], jobs.gpus_max[row]
        runs_on = f"{least} to {most} GPUs" if least < most else counted(most, "GPU")
        if jobs.size_list[row] != NONE:
            runs_on = " or ".join(map(str, jobs.sizes_of(row))) + " GPUs"
        raise PlanError(f"job {jobs.id[row]} runs on {runs_on}, found {sizes.gpus[row]}")


def check_grants(grants: Grants, snapshot: Snapshot) -> None:
    """Check that rows and GPUs exist, and all GPUs of a job have one share."""
    fault, row = grants_fault(
        grants.job, grants.node, grants.gpu, grants.share_milli, grants.why, grants.blocker, grants.revocable,
        snapshot.nodes.gpus,
    )
    if fault == FINE:
        return
    if fault == BLOCKER:
        raise PlanError(f"expected job rows or -1 as blockers, found {_short(grants.blocker)}")
    if fault == WHY:
        raise PlanError(f"expected codes of Why, 0 to {_LAST_WHY}, as reasons, found {_short(grants.why)}")
    if fault == JOB:
        raise PlanError(f"expected rows of the job table, which has {len(snapshot.jobs)}, found {_short(grants.job)}")
    node, gpu, job = grants.node, grants.gpu, snapshot.jobs.id[grants.job[row]]
    raise PlanError({
        INCREASING: lambda: f"job {job} is granted GPU {gpu[row + 1]} of node {node[row + 1]} after GPU {gpu[row]} of "
        f"node {node[row]}: expected each GPU once, by node, then GPU",
        NOWHERE: lambda: f"job {job} is granted GPU {gpu[row]} of node {node[row]}, which does not exist",
        SHARE: lambda: f"job {job} is granted {grants.share_milli[row] / 10:g} % of a GPU: expected one share above 0 "
        "and up to 100 % for all of its GPUs, and milli-cores for a rank on CPU",
        REVOCABLE: lambda: f"some grants of job {job} are revocable, some are not: expected all or none",
    }[fault]())


def check_shares(placed: Grants, jobs: JobTable) -> None:
    """Check that each job has the share of its GPUs that it asks for, of a part that does not let jobs share GPUs.

    A smaller one would count as GPU time saved, and free room for others, without any process noticing. A job that has
    another share keeps it: the policy before may have let jobs share GPUs.
    """
    share, job = placed.share_milli, placed.job
    kept = jobs.holds[job] & (share == jobs.share_now[job])
    wrong = np.flatnonzero((placed.gpu >= 0) & (share != jobs.share_milli[job]) & ~kept)
    if len(wrong):
        row, granted = job[wrong[0]], share[wrong[0]] / 10
        raise PlanError(
            f"job {jobs.id[row]} is granted {granted:g} % of a GPU, it asks for {jobs.share_milli[row] / 10:g} %: a "
            "part that lets jobs share GPUs has shares_gpus = True"
        )


def check_sizes_kept(placed: Grants, sizes: Sizes, jobs: JobTable) -> None:
    """Check that each job has the GPUs its size says, none, or a smaller number it can run on or holds already.

    A job whose size is on CPU may keep the GPUs it holds, where there are too few cores.
    """
    if all_or_nothing(placed.job, placed.gpu, sizes.gpus):
        return
    counts = np.bincount(placed.job[placed.gpu >= 0], minlength=len(jobs))
    fewer = (counts < sizes.gpus) & (jobs.allows(counts) | (counts == jobs.gpus_now))
    if len(sizes.cpu_workers):
        fewer |= (sizes.cpu_workers > 0) & (counts == jobs.gpus_now)
    wrong = np.flatnonzero((counts != 0) & (counts != sizes.gpus) & ~fewer)
    if len(wrong):
        row = int(wrong[0])
        least, most = min(int(jobs.gpus_min[row]), int(sizes.gpus[row])), int(sizes.gpus[row])
        raise PlanError(
            f"job {jobs.id[row]} is granted {counted(counts[row], 'GPU')}, its size allows "
            f"{f'{least} to {most}' if least < most else most}"
        )


def check_only_added(placed: Grants, wanted: Grants, jobs: JobTable) -> None:
    """Check that the fill part did not change the grants of the place part."""
    before, after = ({tuple(row) for row in zip(
        *(column.tolist() for column in (grants.job, grants.node, grants.gpu, grants.share_milli)),
        grants.revocable_jobs(len(jobs))[grants.job].tolist(), strict=True,
    )} for grants in (placed, wanted))
    has = np.zeros(len(jobs), dtype=np.bool_)
    has[placed.job] = True
    changed = sorted({row[0] for row in before ^ after if has[row[0]]})
    if changed:
        raise PlanError(f"the grants of job {jobs.id[changed[0]]}, which was already placed, were changed")


def _found(given: object) -> str:
    """A wrong column in words, with its shape, which may be all that is wrong with it."""
    return _short(given) + (f", shape {given.shape}" if isinstance(given, np.ndarray) else "")


def _short(value: object) -> str:
    if isinstance(value, np.ndarray):
        value = np.asarray(value)
    words = " ".join(f"{getattr(value, 'dtype', type(value).__name__)} {value}".split())
    return words if len(words) <= 60 else words[:57] + "..."
