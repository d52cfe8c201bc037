"""One scheduling round: five decisions, their difference from what runs, and the checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import Undeclared
from brim.core.actions import Action, Plan, Preempt, Reject, Resize, Start, Tune
from brim.core.arrays import BoolArray, IntArray, frozen
from brim.core.checks import check_plan
from brim.core.reasons import Why
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants, JobTable, NodeTable, SeenSteps, UserTable
from brim.core.trace import NONE
from brim.errors import BrimError, ConfigError, PlanError, UserError, one_line
from brim.policies.lines import raised_at
from brim.policies.sockets import Policy, Sizes
from brim.units import WHOLE_GPU

_RUNS, _NOT_NOW = int(Why.RUNS), int(Why.NOT_NOW)
_MOST_LOADERS: Final = 4096
"""Most loader workers per rank where the cores of a node are not known: more than any machine has cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The decisions of a round and their reasons.

    Attributes:
        plan: The changes, frees before takes.
        job: Ids of the jobs that were in the snapshot (J,).
        why: ``Why`` code per job, 0 for one that has GPUs after the plan (J,).
        blocker: Id of the job that blocks it, -1 for none (J,).
        memo: What the order part stores per job for the next round (J,), or None if nothing changed.
    """

    plan: Plan
    job: IntArray
    why: IntArray
    blocker: IntArray
    memo: IntArray | None


def run_round(snapshot: Snapshot, beliefs: Beliefs, policy: Policy) -> RoundResult:
    """Run the five decisions of a policy on a snapshot and return the checked plan with its reasons.

    Raises:
        PlanError: the policy wants something impossible, or a part of it failed.
    """
    size = len(snapshot.jobs)
    memo = None
    withheld = replace(beliefs, run_times=Undeclared())

    def told(socket: str) -> Beliefs:
        return replace(beliefs) if policy.declares(socket, "asks_run_times") else withheld

    with _part(policy, "order", snapshot):
        remember = getattr(policy.order, "remember", None)  # 0 what it remembers of earlier rounds
        if remember is not None:
            new = _column(remember(snapshot), size)
            if not np.array_equal(new, snapshot.jobs.memo):
                memo = new
    if memo is not None:
        snapshot = replace(snapshot, jobs=replace(snapshot.jobs, memo=memo))
    with _part(policy, "order", snapshot):
        order = _column(policy.order(snapshot, told("order")), size)  # 1 which job first
        _check_permutation(order, size)
    with _part(policy, "size", snapshot):
        sizes = _own_sizes(policy.size(snapshot, told("size"), order), size)  # 2 how many GPUs, which batch
        _check_sizes(sizes, snapshot.jobs)
    with _part(policy, "place", snapshot):
        placed = _own_grants(policy.place(snapshot, told("place"), order, replace(sizes)), size)  # 3 which GPUs
        check_grants(placed, snapshot)
        check_sizes_kept(placed, sizes, snapshot.jobs)
    with _part(policy, "fill", snapshot):  # 4 which jobs use the remaining GPUs
        wanted = _own_grants(policy.fill(snapshot, told("fill"), replace(placed)), size)
        if not _same_grants(wanted, placed):
            check_grants(wanted, snapshot)
            check_only_added(placed, wanted, snapshot.jobs)
    with _part(policy, "feed", snapshot):
        loaders = _column(policy.feed(snapshot, told("feed"), replace(wanted)), size)  # 5 how many loader processes
        _check_loaders(loaders, snapshot)
    plan = Plan(snapshot.now_ms, difference(snapshot, sizes, wanted, loaders))
    if not policy.changes_running:
        _check_left_alone(plan, policy)
    check_plan(snapshot, plan)
    why, blocker = _reasons(wanted, snapshot.jobs)
    return RoundResult(plan=plan, job=snapshot.jobs.id, why=why, blocker=blocker, memo=memo)


class _part:  # noqa: N801 - reads as a word in a with statement; a generator would cost microseconds each round
    """Turns any error of a policy's part into one line that names the policy, the part, the file and the line.

    A part that replaced a column of the snapshot, which is the same object for all parts, is refused as well.
    """

    __slots__ = ("_before", "_name", "_policy", "_snapshot")

    def __init__(self, policy: Policy, name: str, snapshot: Snapshot) -> None:
        self._policy, self._name, self._snapshot = policy, name, snapshot
        self._before = tuple(_contents(snapshot))

    def __enter__(self) -> None:
        pass

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
        ("seen.", SeenSteps),
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


def _column(given: object, size: int, kind: str = "i") -> NDArray[Any]:
    """A copy of a column that a part returned, as a plain array that nobody can write to; checks type and length.

    The part could change its own array after the checks, and an array of a class of its own could answer them.
    """
    column = np.asarray(given) if isinstance(given, np.ndarray) else None
    if column is None or column.shape != (size,) or column.dtype.kind != kind:
        values = "truth values" if kind == "b" else "integers"
        raise PlanError(f"expected {size} {values}, one per job, found {_short(given)}")
    return frozen(column.astype(np.int64 if kind == "i" else np.bool_))


def _own_sizes(given: Sizes, size: int) -> Sizes:
    batch, analyse, reject = given.global_batch, given.analyse, given.reject
    return Sizes(
        gpus=_column(given.gpus, size), global_batch=_column(batch, size if len(batch) else 0),
        analyse=_column(analyse, size if len(analyse) else 0, "b"),
        reject=_column(reject, size if len(reject) else 0, "b"),
    )


def _own_grants(given: Grants, size: int) -> Grants:
    job = given.job
    rows = len(job)
    return Grants(
        job=_column(job, rows), node=_column(given.node, rows), gpu=_column(given.gpu, rows),
        share_milli=_column(given.share_milli, rows), why=_column(given.why, size),
        blocker=_column(given.blocker, size),
    )


_GRANTS: Final = attrgetter(*(field.name for field in fields(Grants)))


def _same_grants(one: Grants, other: Grants) -> bool:
    return all(map(np.array_equal, _GRANTS(one), _GRANTS(other)))


def _check_loaders(loaders: IntArray, snapshot: Snapshot) -> None:
    """Check that no job gets more loader workers than the largest node has cores."""
    most = min(max(int(snapshot.nodes.cpu_milli.max(initial=0)) // 1000, 1), _MOST_LOADERS)
    wrong = np.flatnonzero((loaders < 0) | (loaders > most))
    if len(wrong):
        row = int(wrong[0])
        raise PlanError(
            f"job {snapshot.jobs.id[row]} gets {loaders[row]} loader workers per rank: expected 0 to {most}, the cores "
            "of the largest node"
        )


def _check_permutation(order: IntArray, size: int) -> None:
    """Check the order, because the compiled walk has no bounds checks and would read a wrong row from anywhere."""
    if size and (order.min() < 0 or order.max() >= size or np.bincount(order, minlength=size).max() > 1):
        raise PlanError(f"expected each of the {size} job rows once, found {_short(order)}")


def _check_sizes(sizes: Sizes, jobs: JobTable) -> None:
    """Check that every size is one the job can run on."""
    legal = (jobs.gpus_min <= sizes.gpus) & (sizes.gpus <= jobs.gpus_max)
    wrong = np.flatnonzero(~legal & (sizes.gpus != 0) & (sizes.gpus != jobs.gpus))
    if len(wrong):
        row = int(wrong[0])
        raise PlanError(
            f"job {jobs.id[row]} runs on {jobs.gpus_min[row]} to {jobs.gpus_max[row]} GPUs, found {sizes.gpus[row]}"
        )


def check_grants(grants: Grants, snapshot: Snapshot) -> None:
    """Check that rows and GPUs exist, and all GPUs of a job have one share."""
    size, nodes = len(snapshot.jobs), snapshot.nodes
    if size and (grants.blocker.min() < -1 or grants.blocker.max() >= size):
        raise PlanError(f"expected job rows or -1 as blockers, found {_short(grants.blocker)}")
    if not len(grants):
        return
    if grants.job.min() < 0 or grants.job.max() >= size:
        raise PlanError(f"expected rows of {size} jobs, found {_short(grants.job)}")
    gpus = nodes.gpus[np.clip(grants.node, 0, len(nodes) - 1)]
    nowhere = (grants.node < 0) | (grants.node >= len(nodes)) | (grants.gpu < 0) | (grants.gpu >= gpus)
    share_of = np.empty(size, dtype=np.int64)
    share_of[grants.job] = grants.share_milli
    odd = (grants.share_milli <= 0) | (grants.share_milli > WHOLE_GPU) | (share_of[grants.job] != grants.share_milli)
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
            "one share above 0 and up to 100 % for all of its GPUs"
        )


def check_sizes_kept(placed: Grants, sizes: Sizes, jobs: JobTable) -> None:
    """Check that each job has the GPUs its size says, none, or a smaller number it can run on or holds already."""
    counts = np.bincount(placed.job, minlength=len(jobs))
    fewer = (counts < sizes.gpus) & ((counts >= jobs.gpus_min) | (counts == jobs.gpus_now))
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
        *(column.tolist() for column in (grants.job, grants.node, grants.gpu, grants.share_milli)), strict=True,
    )} for grants in (placed, wanted))
    has = np.zeros(len(jobs), dtype=np.bool_)
    has[placed.job] = True
    changed = sorted({row[0] for row in before ^ after if has[row[0]]})
    if changed:
        raise PlanError(f"the grants of job {jobs.id[changed[0]]}, which was already placed, were changed")


def _check_left_alone(plan: Plan, policy: Policy) -> None:
    """Check that no running job is changed by a policy whose parts do not declare that they change running jobs."""
    for action in plan.actions:
        if isinstance(action, Resize | Tune):
            changed = "other GPUs" if isinstance(action, Resize) else "another batch"
            raise PlanError(
                f"policy {policy.name!r} gives job {action.job} {changed} while it runs, but none of its parts "
                "declares this: set resizes_running = True in the size part or moves_running = True in the place part"
            )


def _reasons(wanted: Grants, jobs: JobTable) -> tuple[IntArray, IntArray]:
    """Reason code of each job, and id of the job that blocks it (J,); jobs that the fill part added run."""
    has = np.zeros(len(jobs), dtype=np.bool_)
    has[wanted.job] = True
    unsaid = ~has & (wanted.why == _RUNS)
    why = np.where(has, _RUNS, np.where(unsaid, _NOT_NOW, wanted.why))
    blocker = np.where(has | (wanted.blocker < 0), NONE, jobs.id[wanted.blocker])
    return why, blocker


def _short(value: object) -> str:
    if isinstance(value, np.ndarray):
        value = np.asarray(value)
    words = " ".join(f"{getattr(value, 'dtype', type(value).__name__)} {value}".split())
    return words if len(words) <= 60 else words[:57] + "..."


def difference(snapshot: Snapshot, sizes: Sizes, wanted: Grants, loaders: IntArray) -> tuple[Action, ...]:
    """Turn wanted grants into actions.

    A job that holds GPUs and is granted none is preempted. One that is granted other GPUs or another share is resized.
    One that holds none and is granted some is started. One that keeps its GPUs and gets another batch is tuned.
    """
    jobs = snapshot.jobs
    has = np.zeros(len(jobs), dtype=np.bool_)
    has[wanted.job] = True
    holds = jobs.holds
    keeps, coming = has & holds, has & ~holds
    moved = _moved(snapshot, wanted, keeps)
    batch = _batches(sizes, jobs)
    tuned = keeps & ~moved & (batch != jobs.batch_now)
    actions: list[Action] = [
        Preempt(int(jobs.id[row]), int(jobs.epoch[row])) for row in np.flatnonzero(holds & ~has)
    ]
    if len(sizes.reject):
        out = np.flatnonzero(sizes.reject & ~holds & ~has)
        actions += [Reject(int(jobs.id[row]), int(jobs.epoch[row])) for row in out]
    gangs = _gangs(wanted, moved | coming)
    share = _shares(wanted, jobs)
    actions += [
        Resize(int(jobs.id[row]), int(jobs.epoch[row]) + 1, tuple(sorted(gpus)), int(batch[row]), int(loaders[row]),
               int(share[row]))
        for row, gpus in gangs.items() if moved[row]
    ]
    analyse = sizes.analyse if len(sizes.analyse) else np.zeros(len(jobs), dtype=np.bool_)
    actions += [
        Start(int(jobs.id[row]), int(jobs.epoch[row]) + 1, tuple(gpus), int(loaders[row]), int(batch[row]),
              bool(analyse[row]), int(share[row]))
        for row, gpus in gangs.items() if coming[row]
    ]
    actions += [Tune(int(jobs.id[row]), int(jobs.epoch[row]), int(batch[row])) for row in np.flatnonzero(tuned)]
    return tuple(actions)


def _moved(snapshot: Snapshot, wanted: Grants, keeps: BoolArray) -> BoolArray:
    """Which of the jobs that keep GPUs are granted other GPUs than they hold (J,)."""
    moved = np.zeros(len(keeps), dtype=np.bool_)
    held = snapshot.grants
    before, after = keeps[held.job], keeps[wanted.job]
    columns = (
        (held.job, wanted.job), (held.node, wanted.node), (held.gpu, wanted.gpu), (held.share_milli, wanted.share_milli)
    )
    if all(np.array_equal(was[before], will[after]) for was, will in columns):
        return moved  # the walk returns unchanged grants in the same order
    span = int(snapshot.nodes.gpus.max())
    was, will = (
        ((grants.job[rows] * len(snapshot.nodes) + grants.node[rows]) * span + grants.gpu[rows]) * (WHOLE_GPU + 1)
        + grants.share_milli[rows]
        for grants, rows in ((held, before), (wanted, after))
    )
    moved[np.setxor1d(was, will) // ((WHOLE_GPU + 1) * span * len(snapshot.nodes))] = True
    return moved


def _batches(sizes: Sizes, jobs: JobTable) -> IntArray:
    """The batch of each job from now on (J,)."""
    if len(sizes.global_batch):
        return sizes.global_batch
    return np.where(jobs.batch_now == NONE, jobs.batch, jobs.batch_now)


def _shares(wanted: Grants, jobs: JobTable) -> IntArray:
    """Thousandths of each GPU where they differ from what the job asks for, else NONE (J,)."""
    share = np.full(len(jobs), NONE)
    other = wanted.share_milli != jobs.share_milli[wanted.job]
    share[wanted.job[other]] = wanted.share_milli[other]
    return share


def _gangs(wanted: Grants, rows: BoolArray) -> dict[int, list[tuple[int, int]]]:
    """GPUs wanted for the marked jobs, by job row, in the order of the grants."""
    gangs: dict[int, list[tuple[int, int]]] = {}
    if rows.any():
        new = rows[wanted.job]
        for row, node, gpu in zip(
            wanted.job[new].tolist(), wanted.node[new].tolist(), wanted.gpu[new].tolist(), strict=True
        ):
            gangs.setdefault(row, []).append((node, gpu))
    return gangs
