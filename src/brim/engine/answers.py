"""What a round asks of a policy's parts: their answers are copied, checked, and errors name the part and its line.

Compiled code has no bounds checks, so whatever a part returns is checked before another part receives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import IntArray, frozen
from brim.core.reasons import Why
from brim.core.snapshot import Memory, Snapshot
from brim.core.tables import NOBODY, Grants, JobTable, NodeTable, SeenSteps, UserTable
from brim.core.trace import NONE
from brim.errors import BrimError, ConfigError, PlanError, UserError, one_line
from brim.policies.lines import raised_at
from brim.policies.sockets import Policy, Sizes
from brim.units import WHOLE_GPU

_LAST_WHY: Final = int(max(Why))
_MOST_LOADERS: Final = 4096
"""Most loader workers per rank where the cores of a node are not known: more than any machine has cores."""


class asking:  # noqa: N801 - reads as a word in a with statement; a generator would cost microseconds each round
    """Turns any error of a policy's part into one line that names the policy, the part, the file and the line.

    A part that replaced a column of the snapshot, which is the same object for all parts, is refused as well.
    """

    __slots__ = ("_before", "_name", "_policy", "_snapshot")

    def __init__(self, policy: Policy, name: str, snapshot: Snapshot) -> None:
        self._policy, self._name, self._snapshot = policy, name, snapshot
        self._before = tuple(_contents(snapshot))

    def __enter__(self) -> Snapshot:
        return self._snapshot

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        part = f"policy {self._policy.name!r}, {self._name}"
        if error is None:
            if not _is_unchanged(self._snapshot, self._before):
                raise PlanError(f"{part}: it replaced a column of the snapshot, which parts may only read")
            return
        words = one_line(error)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(part) from error
        if isinstance(error, PlanError | UserError):
            raise (PlanError if isinstance(error, PlanError) else ConfigError)(f"{part}: {words}") from error
        if isinstance(error, BrimError):
            return
        where = raised_at(getattr(self._policy, self._name), error.__traceback__)  # SystemExit, too, ends in one line
        words = f"{type(error).__name__}: {words}" if words != type(error).__name__ else words
        raise PlanError(f"{part}: {words}" + (f" ({where})" if where else "")) from error


_ATTRIBUTES: Final = tuple(
    attrgetter(*(f"{table}{field.name}" for field in fields(kind))) for table, kind in (
        ("", Snapshot), ("jobs.", JobTable), ("nodes.", NodeTable), ("grants.", Grants), ("users.", UserTable),
        ("seen.", SeenSteps), ("memory.", Memory),
    )
)


def _contents(snapshot: Snapshot) -> Iterator[object]:
    """Every attribute of a snapshot, then of its tables, in a fixed order."""
    return chain.from_iterable(read(snapshot) for read in _ATTRIBUTES)


def _is_unchanged(snapshot: Snapshot, before: tuple[object, ...]) -> bool:
    try:
        return all(map(is_, before, _contents(snapshot)))
    except AttributeError:  # a column was deleted
        return False


def own_column(given: object, size: int, kind: str = "i") -> NDArray[Any]:
    """A copy of a column that a part returned, as a plain array that nobody can write to; checks type and length.

    The part could change its own array after the checks, and an array of a class of its own could answer them.
    """
    column = np.asarray(given) if isinstance(given, np.ndarray) else None
    if column is None or column.shape != (size,) or column.dtype.kind != kind:
        values = "truth values" if kind == "b" else "signed integers"
        raise PlanError(f"expected {size} {values}, one per job, found {_short(given)}")
    return frozen(column.astype(np.int64 if kind == "i" else np.bool_))


def own_memory(given: object, size: int, columns: int) -> IntArray:
    """A copy of what a part remembers: (J,), or (J, columns) if it remembers several integers per job."""
    if columns == 1:
        return own_column(given, size)
    block = np.asarray(given) if isinstance(given, np.ndarray) else None
    if block is None or block.shape != (size, columns) or block.dtype.kind != "i":
        raise PlanError(f"expected {columns} signed integers for each of {size} jobs, found {_short(given)}")
    return frozen(block.astype(np.int64))


def own_sizes(given: Sizes, size: int) -> Sizes:
    """A copy of the sizes of a size part."""
    batch, analyse, reject = given.global_batch, given.analyse, given.reject
    return Sizes(
        gpus=own_column(given.gpus, size), global_batch=own_column(batch, size if len(batch) else 0),
        analyse=own_column(analyse, size if len(analyse) else 0, "b"),
        reject=own_column(reject, size if len(reject) else 0, "b"),
    )


def own_grants(given: Grants, size: int) -> Grants:
    """A copy of the grants of a place or fill part; loader workers are left out, which the feed part decides."""
    job = given.job
    rows = len(job)
    return Grants(
        job=own_column(job, rows), node=own_column(given.node, rows), gpu=own_column(given.gpu, rows),
        share_milli=own_column(given.share_milli, rows), why=own_column(given.why, size),
        blocker=own_column(given.blocker, size),
        revocable=own_column(given.revocable, rows, "b") if len(given.revocable) else NOBODY,
    )


_GRANTS: Final = attrgetter(*(field.name for field in fields(Grants)))


def same_grants(one: Grants, other: Grants) -> bool:
    """Whether two tables of grants are equal, row by row."""
    return all(map(np.array_equal, _GRANTS(one), _GRANTS(other)))


def check_loaders(loaders: IntArray, snapshot: Snapshot) -> None:
    """Check that no job gets more loader workers than the largest node has cores."""
    most = min(max(int(snapshot.nodes.cpu_milli.max(initial=0)) // 1000, 1), _MOST_LOADERS)
    wrong = np.flatnonzero((loaders < 0) | (loaders > most))
    if len(wrong):
        row = int(wrong[0])
        raise PlanError(
            f"job {snapshot.jobs.id[row]} gets {loaders[row]} loader workers per rank: expected 0 to {most}, the cores "
            "of the largest node"
        )


def check_permutation(order: IntArray, size: int) -> None:
    """Check the order, because the compiled walk has no bounds checks and would read a wrong row from anywhere."""
    if size and (order.min() < 0 or order.max() >= size or np.bincount(order, minlength=size).max() > 1):
        raise PlanError(f"expected each of the {size} job rows once, found {_short(order)}")


def check_sizes(sizes: Sizes, jobs: JobTable) -> None:
    """Check that every size is one the job can run on."""
    wrong = np.flatnonzero(~jobs.allows(sizes.gpus) & (sizes.gpus != 0))
    if len(wrong):
        row = int(wrong[0])
        runs_on = f"{jobs.gpus_min[row]} to {jobs.gpus_max[row]}"
        if jobs.size_list[row] != NONE:
            runs_on = " or ".join(map(str, jobs.sizes_of(row)))
        raise PlanError(f"job {jobs.id[row]} runs on {runs_on} GPUs, found {sizes.gpus[row]}")


def check_grants(grants: Grants, snapshot: Snapshot) -> None:
    """Check that rows and GPUs exist, and all GPUs of a job have one share."""
    size, nodes = len(snapshot.jobs), snapshot.nodes
    if size and (grants.blocker.min() < -1 or grants.blocker.max() >= size):
        raise PlanError(f"expected job rows or -1 as blockers, found {_short(grants.blocker)}")
    if size and (grants.why.min() < 0 or grants.why.max() > _LAST_WHY):
        raise PlanError(f"expected codes of Why, 0 to {_LAST_WHY}, as reasons, found {_short(grants.why)}")
    if not len(grants):
        return
    _check_increasing(grants, snapshot.jobs)
    if grants.job.min() < 0 or grants.job.max() >= size:
        raise PlanError(f"expected rows of {size} jobs, found {_short(grants.job)}")
    gpus = nodes.gpus[np.clip(grants.node, 0, len(nodes) - 1)]
    nowhere = (grants.node < 0) | (grants.node >= len(nodes)) | (grants.gpu < NONE) | (grants.gpu >= gpus)
    on_gpu, share = grants.gpu != NONE, grants.share_milli
    share_of, revocable_of = np.zeros(size, dtype=np.int64), grants.revocable_jobs(size)
    share_of[grants.job[on_gpu]] = share[on_gpu]
    odd = np.where(on_gpu, (share <= 0) | (share > WHOLE_GPU) | (share_of[grants.job] != share), share != 0)
    if nowhere.any():
        row = int(np.argmax(nowhere))
        raise PlanError(
            f"job {snapshot.jobs.id[grants.job[row]]} is granted GPU {grants.gpu[row]} of node {grants.node[row]}, "
            "which does not exist"
        )
    if odd.any():
        row = int(np.argmax(odd))
        raise PlanError(
            f"job {snapshot.jobs.id[grants.job[row]]} is granted {grants.share_milli[row] / 10:g} % of a GPU: expected "
            "one share above 0 and up to 100 % for all of its GPUs, and 0 for a rank on CPU"
        )
    if len(grants.revocable) and (grants.revocable != revocable_of[grants.job]).any():
        row = int(grants.job[np.argmax(grants.revocable != revocable_of[grants.job])])
        raise PlanError(f"some grants of job {snapshot.jobs.id[row]} are revocable, some are not: expected all or none")


def _check_increasing(grants: Grants, jobs: JobTable) -> None:
    """Check that the GPUs of each job follow one another by node, then GPU, each once; ranks on CPU have no number."""
    job, node, gpu = grants.job, grants.node, grants.gpu
    falls = (node[1:] < node[:-1]) | ((node[1:] == node[:-1]) & (gpu[1:] < gpu[:-1] + (gpu[:-1] != NONE)))
    wrong = np.flatnonzero((job[1:] == job[:-1]) & falls)
    if len(wrong):
        at = int(wrong[0])
        raise PlanError(
            f"job {jobs.id[job[at]]} is granted GPU {gpu[at + 1]} of node {node[at + 1]} after GPU {gpu[at]} of node "
            f"{node[at]}: expected each GPU once, by node, then GPU"
        )


def check_sizes_kept(placed: Grants, sizes: Sizes, jobs: JobTable) -> None:
    """Check that each job has the GPUs its size says, none, or a smaller number it can run on or holds already."""
    counts = np.bincount(placed.job[placed.gpu != NONE], minlength=len(jobs))
    fewer = (counts < sizes.gpus) & (jobs.allows(counts) | (counts == jobs.gpus_now))
    wrong = np.flatnonzero((counts != 0) & (counts != sizes.gpus) & ~fewer)
    if len(wrong):
        row = int(wrong[0])
        least, most = min(int(jobs.gpus_min[row]), int(sizes.gpus[row])), int(sizes.gpus[row])
        raise PlanError(
            f"job {jobs.id[row]} is granted {counts[row]} GPU{'s' if counts[row] > 1 else ''}, its size allows "
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


def _short(value: object) -> str:
    if isinstance(value, np.ndarray):
        value = np.asarray(value)
    words = " ".join(f"{getattr(value, 'dtype', type(value).__name__)} {value}".split())
    return words if len(words) <= 60 else words[:57] + "..."
