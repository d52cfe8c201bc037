"""The rules for every policy, each a function that raises ``PolicyViolation``; ``conformance`` runs them.

The rules do not rely on the code under test: ``free_lists`` counts free resources, not the place parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import RunTimes, TrueRunTimes, UserLimits
from brim.core.actions import Preempt, Reject, Resize, Tune, setting_in
from brim.core.arrays import IntArray, frozen
from brim.core.ended_work import EndedWork
from brim.core.lifecycle import Phase
from brim.core.replay import Replay
from brim.core.setting import Setting
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants, SlowdownTable
from brim.core.trace import NONE, Trace
from brim.engine.answers import own_grants
from brim.engine.round import RoundResult, run_round
from brim.errors import BrimError, PlanError
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import SOCKETS, Policy
from brim.testing.free_lists import FreeLists, PlaceRequest, pairs_by_job
from brim.testing.purity import outside_reads
from brim.testing.text import (
    describe,
    describe_trace,
    name_of,
    show,
    show_action,
    show_memory,
    show_order,
    show_reasons,
)
from brim.units import counted

OVER_GRANT: Final = "no GPU over-granted"
GANG: Final = "gang whole or absent"
STAYS: Final = "running jobs stay or are preempted"
PURE: Final = "pure"
ORDER_FREE: Final = "independent of input order"
WORK_CONSERVING: Final = "work conserving"
ENDS: Final = "no starvation"
SAME_SEED: Final = "deterministic for a seed"
SOUND: Final = "plan accepted"
BATCH: Final = "batch in its range"
FOR_NOTHING: Final = "a resize or tuning changes something"
WAITS: Final = "only waiting jobs are rejected"
ONE_PLACE: Final = "a job is in one place at a time"
AFRESH: Final = "keeps nothing between replays"
RULES: Final = (
    SOUND, OVER_GRANT, GANG, STAYS, BATCH, FOR_NOTHING, WAITS, PURE, ORDER_FREE, WORK_CONSERVING, ENDS, SAME_SEED,
    ONE_PLACE, AFRESH,
)


class PolicyViolation(BrimError):  # noqa: N818 - a finding about a policy, not an error of brim
    """A policy breaks a rule.

    Args:
        rule: Name of the rule, one of ``RULES``.
        what: What the policy did, as a sentence.
        case: Description of the cluster and jobs on which it did so.
        where: Lines of the policy's own parts; ``check_policy`` adds them.
    """

    def __init__(self, rule: str, what: str, case: str = "", where: str = "") -> None:
        self.rule, self.what, self.case, self.where = rule, what, case, where
        place = f"{where}: " if where else ""
        super().__init__(f"{place}breaks the rule {rule!r}: {what}" + (f"\n{case}" if case else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A round in detail: the grants that the parts wanted, and the resulting plan."""

    wanted: Grants
    gpus: IntArray
    result: RoundResult


def beliefs_of(snapshot: Snapshot, policy: Policy) -> Beliefs:
    """Beliefs for one snapshot; an oracle gets made-up run times, longer than the time already run."""
    ids, run_ms = snapshot.jobs.id, snapshot.jobs.run_ms
    if not policy.oracle or not len(ids):
        return Beliefs()
    table = np.zeros(int(ids[-1]) + 1, dtype=np.int64)
    table[ids] = run_ms + 1_000 * (1 + (snapshot.jobs.submit_ms // 1_000 * 7 + snapshot.jobs.gpus * 13) % 50)
    return Beliefs(run_times=TrueRunTimes(table))


# -- one snapshot -------------------------------------------------------------------------------------------------


def check_decision(snapshot: Snapshot, policy: Policy) -> None:
    """Run every rule about a single round on a snapshot."""
    beliefs = beliefs_of(snapshot, policy)
    decision = decide(snapshot, beliefs, policy)
    check_stays(snapshot, decision)
    check_actions(snapshot, policy, decision.result)
    check_pure(snapshot, beliefs, policy, decision)
    check_order_free(snapshot, beliefs, policy, decision)
    check_work_conserving(snapshot, policy, decision)


def decide(snapshot: Snapshot, beliefs: Beliefs, policy: Policy) -> Decision:
    """Run a round and keep the grants of its parts, which are checked before the engine receives them."""
    seen: list[Grants] = []

    def check(now: Snapshot, grants: Grants) -> None:
        check_grants(now, grants, resizes=policy.changes_running)

    def note(now: Snapshot, grants: Grants) -> None:
        check(now, grants)
        seen.append(grants)

    before = list(_bytes_of(snapshot))
    try:
        result = run_round(snapshot, beliefs, watched(policy, note, check))
    except PlanError as error:
        raise PolicyViolation(rule_of(error), str(error), describe(snapshot)) from error
    if list(_bytes_of(snapshot)) != before:
        raise PolicyViolation(PURE, "the policy wrote into the snapshot it was given", describe(snapshot))
    return Decision(wanted=seen[-1], gpus=snapshot.jobs.gpus, result=result)


def rule_of(error: PlanError) -> str:
    """The rule that a policy breaks when its plan is refused with this error."""
    said = str(error)
    if "read-only" in said or "WRITEABLE" in said or "which parts may only read" in said:
        return PURE
    return STAYS if "parts declares this" in said else SOUND


def check_grants(snapshot: Snapshot, wanted: Grants, *, resizes: bool = False) -> None:
    """Gangs are whole and of one type, on existing GPUs that take jobs or are already theirs; no GPU is granted twice.

    Unless the policy ``resizes``, running jobs keep the GPUs they have.
    """
    by_job = pairs_by_job(wanted.job, wanted.node, wanted.gpu)
    free_lists = FreeLists.of_snapshot(snapshot, gone=range(len(snapshot.jobs)))
    kept = pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)
    share_of = dict(zip(wanted.job.tolist(), wanted.share_milli.tolist(), strict=True))
    for row, pairs in by_job.items():
        name = name_of(snapshot, row)
        if not 0 <= row < len(snapshot.jobs):
            raise PolicyViolation(SOUND, f"it grants GPUs to row {row}, which does not exist", describe(snapshot))
        asked = int(snapshot.jobs.gpus[row])
        if len(pairs) not in snapshot.jobs.sizes_of(row):
            said = f"{name} asks for {counted(asked, 'GPU')} and gets {len(pairs)}"
            raise PolicyViolation(GANG, said, describe(snapshot))
        if row in kept and sorted(pairs) != sorted(kept[row]) and not resizes:
            raise PolicyViolation(STAYS, f"{name} runs on {kept[row]} and is granted {pairs}", describe(snapshot))
        types = sorted({free_lists.types[node] for node, _ in pairs if 0 <= node < len(free_lists.types)})
        if len(types) > 1 or PlaceRequest(snapshot, row).gpu_type not in ("", *types):
            raise PolicyViolation(GANG, f"{name} gets GPUs of {' and '.join(types)}", describe(snapshot))
        for node, gpu in pairs:
            if not (0 <= node < len(free_lists.free) and 0 <= gpu < len(free_lists.free[node])):
                raise PolicyViolation(SOUND, f"{name} gets GPU {gpu} of node {node}: no such GPU", describe(snapshot))
            if not free_lists.is_open[node] and (node, gpu) not in kept.get(row, ()):
                raise PolicyViolation(
                    SOUND, f"{name} gets a GPU of node {node}, which is down or draining", describe(snapshot)
                )
            if (node, gpu) in free_lists.withheld and (node, gpu) not in kept.get(row, ()):
                raise PolicyViolation(
                    SOUND, f"{name} gets GPU {gpu} of node {node}, which is withheld", describe(snapshot)
                )
        free_lists.take(PlaceRequest(snapshot, row, share=share_of[row]), pairs)
    if free_lists.overdrawn():
        who = ", ".join(f"{name_of(snapshot, row)} {pairs}" for row, pairs in by_job.items())
        raise PolicyViolation(OVER_GRANT, f"{free_lists.overdrawn()}; it grants {who}", describe(snapshot))


def check_stays(snapshot: Snapshot, decision: Decision) -> None:
    """A job that holds GPUs is preempted if it does not keep them, and only jobs that wait get new ones."""
    held = set(snapshot.grants.job.tolist())
    wanted = pairs_by_job(decision.wanted.job, decision.wanted.node, decision.wanted.gpu)
    preempted = [action.job for action in decision.result.plan if isinstance(action, Preempt)]
    for row in sorted(held):
        if (row not in wanted) != (int(snapshot.jobs.id[row]) in preempted):
            raise PolicyViolation(
                STAYS, f"{name_of(snapshot, row)} loses its GPUs without being preempted", describe(snapshot)
            )
    for row in wanted:
        if row not in held and snapshot.jobs.phase[row] != Phase.PENDING:
            raise PolicyViolation(
                STAYS, f"{name_of(snapshot, row)} is {Phase(int(snapshot.jobs.phase[row])).name} and gets GPUs",
                describe(snapshot),
            )


def check_actions(snapshot: Snapshot, policy: Policy, result: RoundResult) -> None:
    """A resized job gets other GPUs, a tuned job something else than it has, and batches lie in the job's range."""
    jobs, row_of = snapshot.jobs, {int(job): row for row, job in enumerate(snapshot.jobs.id.tolist())}
    for action in result.plan:
        row = row_of[action.job]
        name, one = name_of(snapshot, row), jobs[row]
        noticed = isinstance(action, Resize | Tune) and not action.setting.same_for_processes_as(_has(snapshot, row))
        if noticed and not policy.changes_running:
            raise PolicyViolation(
                STAYS, f"it declares that it never changes running jobs: {show_action(action)}", describe(snapshot)
            )
        setting = setting_in(action)
        if isinstance(action, Resize) and action.setting.keeps_ranks_of(_has(snapshot, row)):
            raise PolicyViolation(FOR_NOTHING, f"{name} is resized to the GPUs it has", describe(snapshot))
        if isinstance(action, Tune) and action.setting == _has(snapshot, row):
            raise PolicyViolation(FOR_NOTHING, f"{name} is tuned to what it has", describe(snapshot))
        if isinstance(action, Reject) and one.phase not in (Phase.PENDING, Phase.HELD):
            raise PolicyViolation(WAITS, f"{name} is {Phase(one.phase).name} and is rejected", describe(snapshot))
        if setting is not None and setting.batch != one.batch and not (
            one.batch_min != NONE and one.batch_min <= setting.batch <= one.batch_max
        ):
            raise PolicyViolation(
                BATCH, f"{name} may train with {one.batch_min} to {one.batch_max}, or {one.batch} as asked: "
                f"{show_action(action)}", describe(snapshot),
            )


def _has(snapshot: Snapshot, row: int) -> Setting:
    return snapshot.setting_of(row) or Setting(())


def check_pure(snapshot: Snapshot, beliefs: Beliefs, policy: Policy, decision: Decision) -> None:
    """Called again, the policy decides the same, and it reads nothing but its arguments."""
    for _ in range(2):
        asked_again, read = outside_reads(lambda: decide(snapshot, beliefs, policy))
        again = asked_again.result
        if read:
            raise PolicyViolation(PURE, f"it reads {read}", describe(snapshot))
        if differs := difference(decision.result, again):
            verb, first, then = differs
            raise PolicyViolation(PURE, f"called twice, it {verb} {first} and then {then}", describe(snapshot))


def check_afresh(snapshot: Snapshot, policy: Policy, load: Callable[[], Policy]) -> None:
    """Loaded anew, the policy decides as it does after all that it was asked before."""
    fresh = load()
    decision = decide(snapshot, beliefs_of(snapshot, policy), policy)
    if differs := difference(decision.result, decide(snapshot, beliefs_of(snapshot, fresh), fresh).result):
        verb, now, first = differs
        raise PolicyViolation(
            AFRESH, f"after other rounds it {verb} {now}; loaded anew, it {verb} {first}", describe(snapshot)
        )


def check_order_free(snapshot: Snapshot, beliefs: Beliefs, policy: Policy, decision: Decision) -> None:
    """Renumbering the same jobs and users, or listing the grants in another order, changes nothing."""
    for words, other, other_beliefs in relabelled(snapshot, beliefs):
        again = decide(other, other_beliefs, policy)
        if differs := difference(decision.result, again.result, ordered=False):
            check_pure(snapshot, beliefs, policy, decision)  # the other representation may have nothing to do with it
            verb, first, then = differs
            said = f"it {verb} {first}; with {words} it {verb} {then}"
            raise PolicyViolation(ORDER_FREE, said, describe(snapshot))


def check_work_conserving(snapshot: Snapshot, policy: Policy, decision: Decision) -> None:
    """No waiting job would fit into what is left free; only for policies that skip a job that does not fit."""
    if not claims_work_conserving(policy):
        return
    wanted = pairs_by_job(decision.wanted.job, decision.wanted.node, decision.wanted.gpu)
    free_lists = FreeLists.of_snapshot(snapshot, gone=range(len(snapshot.jobs)))
    share_of = dict(zip(decision.wanted.job.tolist(), decision.wanted.share_milli.tolist(), strict=True))
    for row, pairs in wanted.items():
        free_lists.take(PlaceRequest(snapshot, row, share=share_of[row]), pairs)
    for row in np.flatnonzero(snapshot.jobs.waits).tolist():
        if row not in wanted and free_lists.fits(PlaceRequest(snapshot, row)):
            raise PolicyViolation(
                WORK_CONSERVING, f"{name_of(snapshot, row)} waits, but would fit beside {show(decision.result)}",
                describe(snapshot),
            )


def claims_work_conserving(policy: Policy) -> bool:
    """Whether the place part skips jobs that do not fit, and the size part gives every job what it asks for."""
    return getattr(policy.place, "misfit", None) == "skip" and type(policy.size) is AsAsked


# -- a whole replay -----------------------------------------------------------------------------------------------


def check_same(rule: str, what: str, one: Replay, other: Replay) -> None:
    """Two replays of the same jobs give the same outcome, job by job (matched by id)."""
    row_of = {name: row for row, name in enumerate(other.trace.job_id)}
    rows = np.array([row_of[name] for name in one.trace.job_id], dtype=np.int64)
    for column in ("first_start_ms", "finish_ms", "service_gpu_ms", "useful_gpu_ms", "lost_gpu_ms", "preemptions",
                   "restarts", "failed", "rejected"):
        left, right = getattr(one, column), getattr(other, column)[rows]
        if not np.array_equal(left, right):
            row = int(np.flatnonzero(left != right)[0])
            raise PolicyViolation(
                rule, f"{what}: {column} of job {one.trace.job_id[row]} is {left[row]}, then {right[row]}",
                describe_trace(one),
            )


def check_never_shared(replay: Replay) -> None:
    """At no moment is more than the whole of a GPU held."""
    runs = replay.runs
    counts = np.diff(runs.first_gpu)
    share = np.repeat(runs.share_milli, counts)
    long = np.repeat(runs.end_ms > runs.start_ms, counts)
    gpu = np.concatenate((runs.gpu[long], runs.gpu[long]))
    time = np.concatenate((np.repeat(runs.start_ms, counts)[long], np.repeat(runs.end_ms, counts)[long]))
    change = np.concatenate((share[long], -share[long]))
    order = np.lexsort((change, time, gpu))
    held = np.cumsum(change[order])  # every GPU's changes sum to 0, so one running sum serves all
    if len(held) and held.max() > 1000:
        at = order[int(held.argmax())]
        raise PolicyViolation(
            OVER_GRANT, f"{held.max() / 10:g} % of GPU {gpu[at]} are held at {time[at]} ms", describe_trace(replay)
        )


def check_one_place(replay: Replay) -> None:
    """A job holds one gang at a time: a run begins when the run before it has ended."""
    runs = replay.runs
    order = np.lexsort((runs.end_ms, runs.start_ms, runs.job))
    job, start_ms, end_ms = runs.job[order], runs.start_ms[order], runs.end_ms[order]
    twice = np.flatnonzero((job[1:] == job[:-1]) & (start_ms[1:] < end_ms[:-1]))
    if len(twice):
        at = int(twice[0])
        raise PolicyViolation(
            ONE_PLACE, f"job {replay.trace.job_id[job[at]]} starts again at {start_ms[at + 1]} ms but leaves its last "
            f"GPUs at {end_ms[at]} ms", describe_trace(replay),
        )


# -- watching and relabelling -------------------------------------------------------------------------------------


Note = Callable[[Snapshot, Grants], None]


@dataclass(frozen=True, slots=True)
class _Watched:
    """A part that may not change its arguments, and passes a copy of its grants to ``note`` before it returns them."""

    part: Any
    note: Note | None

    @property
    def __wrapped__(self) -> Any:
        """The part, for the lines in messages (``inspect.unwrap``)."""
        return self.part

    def __getattr__(self, name: str) -> Any:
        """What the part declares and remembers."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.part, name)

    def __call__(self, *given: Any) -> Any:
        """See ``brim.policies.sockets``."""
        snapshot, *others = given  # a round itself looks after the snapshot
        before = [_attributes(other) for other in others]
        answer = self.part(*given)
        for other, had in zip(others, before, strict=True):
            for name, value in _attributes(other).items():
                if value is not had[name]:
                    raise PlanError(f"it replaced {name} of {type(other).__name__}, which parts may only read")
        if self.note is not None:
            self.note(snapshot, own_grants(answer, len(snapshot.jobs)))
        return answer


def _attributes(table: object) -> dict[str, Any]:
    """The attributes of a dataclass; none for an array."""
    return {one.name: getattr(table, one.name, None) for one in fields(table)} if is_dataclass(table) else {}


def watched(policy: Policy, note: Note, placed: Note | None = None) -> Policy:
    """Return the policy with ``note`` called on snapshot and grants of each round, ``placed`` on those of Place."""
    notes = {"place": placed, "fill": note}
    parts: Any = {socket: _Watched(getattr(policy, socket), notes.get(socket)) for socket in SOCKETS}
    return replace(policy, **parts)


def relabelled(snapshot: Snapshot, beliefs: Beliefs) -> Iterator[tuple[str, Snapshot, Beliefs]]:
    """Yield the same situation in four other representations."""
    jobs, users, grants = snapshot.jobs, snapshot.users, snapshot.grants
    ids = jobs.id * 3 + 7
    yield "other job ids in the same order", replace(snapshot, jobs=replace(
        jobs, id=frozen(ids), after=frozen(np.where(jobs.after >= 0, jobs.after * 3 + 7, jobs.after)),
    )), replace(beliefs, run_times=_spread(beliefs.run_times, ids))
    new = np.arange(len(users))[::-1]
    yield "the users numbered in reverse", replace(
        snapshot, jobs=replace(jobs, user=frozen(new[jobs.user])),
        users=replace(
            users, name=users.name[::-1], usage_gpu_ms=frozen(users.usage_gpu_ms[::-1].copy()),
            last_run_ms=frozen(users.last_run_ms[::-1].copy()),
            previous_run_ms=frozen(users.previous_run_ms[::-1].copy()),
        ),
    ), beliefs
    rows = list(pairs_by_job(grants.job, range(len(grants)), grants.gpu).items())[::-1]
    picks = np.array([row for _, pairs in rows for row, _ in pairs], dtype=np.int64)
    columns = {
        name: frozen(getattr(grants, name)[picks] if len(getattr(grants, name)) else getattr(grants, name))
        for name in ("job", "node", "gpu", "share_milli", "loader_workers", "revocable")
    }
    yield "the grants listed in reverse", replace(snapshot, grants=replace(grants, **columns)), beliefs
    seen = snapshot.seen
    codes = jobs.profile, seen.profile, snapshot.ended_work.profile
    most = int(max(column.max(initial=NONE) for column in codes))
    turned = np.append(np.arange(most + 1)[::-1], NONE)  # NONE indexes the last cell, which stays NONE
    profile = turned[seen.profile]
    listed = np.lexsort((np.arange(len(seen)), np.where(seen.job == NONE, profile, 0), seen.job == NONE))
    yield "the models numbered in reverse", replace(
        snapshot, jobs=replace(jobs, profile=frozen(turned[jobs.profile])), seen=replace(seen, **{
            column.name: frozen((profile if column.name == "profile" else getattr(seen, column.name))[listed])
            for column in fields(seen)
        }), slowdowns=_renumbered(snapshot.slowdowns, turned), ended_work=_reversed(snapshot.ended_work, turned),
    ), beliefs


def _reversed(table: EndedWork, turned: IntArray) -> EndedWork:
    """The same ended work with other codes of models."""
    profile = turned[table.profile]
    order = np.argsort(profile, kind="stable")
    return EndedWork(frozen(profile[order]), frozen(table.samples[order]))


def _renumbered(table: SlowdownTable, turned: IntArray) -> SlowdownTable:
    """The same slowdowns with other codes of models, in the order that the state gives them."""
    rows = sorted(
        (turned[profile], batch, gpu_type, sorted((turned[one], other) for one, other in others if one != NONE), row)
        for row, (profile, batch, gpu_type, others) in enumerate(zip(
            table.profile.tolist(), table.batch.tolist(), table.gpu_type.tolist(), table.others.tolist(), strict=True
        ))
    )
    order = np.array([row[-1] for row in rows], dtype=np.int64)
    others = np.full_like(table.others, NONE)
    for at, row in enumerate(rows):
        others[at, : len(row[3])] = row[3]
    picked = {column.name: frozen(getattr(table, column.name)[order]) for column in fields(table)}
    return SlowdownTable(**{**picked, "profile": frozen(turned[picked["profile"]]), "others": frozen(others)})


def permuted(trace: Trace, seed: int) -> dict[str, Any]:
    """Input columns of the same trace, its rows, users and types in another order: keywords for ``trace_of``."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(trace))
    position = np.append(np.argsort(rows), -1)
    columns: dict[str, Any] = {
        column.name: getattr(trace, column.name)[rows] for column in fields(Trace) if column.type == "IntArray"
    }
    columns["after"] = position[columns["after"]]
    names: dict[str, Any] = {}
    for table, codes in (("users", "user"), ("gpu_types", "gpu_type"), ("profiles", "profile"), ("groups", "group")):
        behind = getattr(trace, table)
        turn = rng.permutation(len(behind))
        names[table] = tuple(behind[code] for code in turn)
        columns[codes] = np.append(np.argsort(turn), -1).astype(np.int64)[columns[codes]]
    return {
        "name": trace.name, "format": trace.format, "synthetic": trace.synthetic, "origin_ms": trace.origin_ms,
        "job_id": [trace.job_id[row] for row in rows], **names, **columns,
    }


def difference(one: RoundResult, other: RoundResult, *, ordered: bool = True) -> tuple[str, str, str] | None:
    """In what two rounds differ, in rows instead of ids: a verb, and what each of them did; None if in nothing.

    Unless ``ordered``, the orders of the jobs, of starts and of preemptions do not count.
    """
    if _actions(one, ordered) != _actions(other, ordered):
        return "decided", show(one), show(other)
    if ordered and not np.array_equal(one.order, other.order):
        return "put the jobs in the order", show_order(one), show_order(other)
    if show_memory(one) != show_memory(other):
        return "remembered", show_memory(one), show_memory(other)
    if _reasons(one) != _reasons(other):
        return "gave the reasons", show_reasons(one), show_reasons(other)
    return None


def _actions(result: RoundResult, ordered: bool) -> object:
    row_of = _rows(result)
    actions = [
        (type(action).__name__, row_of[action.job], setting_in(action), getattr(action, "analyse", False))
        for action in result.plan
    ]
    return actions if ordered else frozenset(actions)


def _reasons(result: RoundResult) -> object:
    row_of = _rows(result)
    return result.why.tolist(), [row_of.get(job, -1) for job in result.blocker.tolist()]


def _rows(result: RoundResult) -> dict[int, int]:
    return {job: row for row, job in enumerate(result.job.tolist())}


def _spread(run_times: RunTimes, ids: IntArray) -> RunTimes:
    """The same truth under other ids."""
    if not isinstance(run_times, TrueRunTimes):
        return UserLimits()
    table = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
    table[7::3] = run_times.run_ms[: len(table[7::3])]
    return TrueRunTimes(table)


def _bytes_of(value: object) -> Iterator[bytes]:
    """The bytes of every array inside nested dataclasses."""
    if isinstance(value, np.ndarray):
        yield value.tobytes()
    elif is_dataclass(value):
        for one in fields(value):
            yield from _bytes_of(getattr(value, one.name))
