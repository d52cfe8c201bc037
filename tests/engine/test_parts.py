"""What a round demands of the parts of a policy, and what it carries of their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import parse_cluster
from brim.core.reasons import Why
from brim.core.tables import Grants
from brim.engine.explain import explain
from brim.engine.journal import Journal
from brim.engine.round import run_round
from brim.errors import ConfigError, PlanError
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS, find_policy
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Sizes
from brim.sim.twin import Settings, replay
from brim.testing import job, small_trace, snapshot_of

from .plans import resize, start

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))
LIMITS = {"gpus_min": 2, "gpus_max": 4, "batch": 8, "batch_min": 8, "batch_max": 64, "local_batch_max": 64}


@dataclass(frozen=True)
class Fixed:
    """A place part that grants the same whatever it is asked: rows of (job, node, gpu, share)."""

    rows: tuple[tuple[int, int, int, int], ...]

    def __call__(self, snapshot, beliefs, order, sizes):
        return grants_of(self.rows, len(snapshot.jobs))


def grants_of(rows, size):
    job_, node, gpu, share = np.array(rows, dtype=np.int64).reshape(-1, 4).T.copy()
    none = np.zeros(size, dtype=np.int64)
    return Grants(job=job_, node=node, gpu=gpu, share_milli=share, why=none, blocker=none - 1)


def granting(*rows):
    return replace(SKIP, place=Fixed(rows))


def decided(snapshot, policy):
    return run_round(snapshot, Beliefs(), policy)


# -- grants against sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("granted", "said"), [
    (1, "job 0 is granted 1 GPU, its size allows 2 to 3"), (4, "job 0 is granted 4 GPUs, its size allows 2 to 3"),
])
def test_a_job_granted_another_number_of_gpus_than_its_size_says_is_refused_by_name(granted, said):
    snapshot = snapshot_of("1x4xT4", job(gpus=3, **LIMITS), now=5)
    with pytest.raises(PlanError, match=f"policy 'mine', place: {said}"):
        decided(snapshot, granting(*((0, 0, gpu, 1000) for gpu in range(granted))))


def test_a_job_may_be_granted_fewer_that_it_can_run_on():
    snapshot = snapshot_of("1x4xT4", job(gpus=3, **LIMITS), now=5)
    assert len(decided(snapshot, granting((0, 0, 0, 1000), (0, 0, 1, 1000))).plan.actions[0].setting.gpus) == 2


def test_a_rigid_job_is_granted_all_or_nothing():
    with pytest.raises(PlanError, match="job 0 is granted 1 GPU, its size allows 2"):
        decided(snapshot_of("1x4xT4", job(gpus=2), now=5), granting((0, 0, 0, 1000)))


@dataclass(frozen=True)
class NotNow:
    """Nobody gets anything."""

    resizes_running = False

    def __call__(self, snapshot, beliefs, order):
        return Sizes(gpus=np.zeros(len(snapshot.jobs), dtype=np.int64))


def test_a_job_whose_size_is_nothing_is_granted_nothing():
    with pytest.raises(PlanError, match="place: job 0 is granted 1 GPU, its size allows 0"):
        decided(snapshot_of("1x4xT4", job(), now=5), replace(granting((0, 0, 0, 1000)), size=NotNow()))


@pytest.mark.parametrize(("rows", "said"), [
    (((5, 0, 0, 1000),), "expected rows of 1 jobs"), (((-1, 0, 0, 1000),), "expected rows of 1 jobs"),
    (((0, 3, 0, 1000),), "GPU 0 of node 3, which does not exist"),
    (((0, 0, 9, 1000),), "GPU 9 of node 0, which does not exist"),
    (((0, 0, 0, 1500),), "150 % of a GPU"), (((0, 0, 0, 0),), "0 % of a GPU"),
])
def test_grants_of_what_is_not_there_are_refused_by_part(rows, said):
    with pytest.raises(PlanError, match=f"policy 'mine', place: .*{said}"):
        decided(snapshot_of("1x4xT4", job(), now=5), granting(*rows))


def test_one_gang_has_one_share():
    with pytest.raises(PlanError, match="one share above 0 and up to 100 % for all of its GPUs"):
        decided(snapshot_of("1x4xT4", job(gpus=2), now=5), granting((0, 0, 0, 500), (0, 0, 1, 250)))


def test_a_policy_that_never_changes_running_jobs_is_held_to_it():
    snapshot = snapshot_of("1x4xT4", job(on=[(0, 0)]), now=5)
    with pytest.raises(PlanError, match=r"policy 'mine' gives job 0 other GPUs while it runs.*moves_running = True"):
        decided(snapshot, granting((0, 0, 1, 1000)))


def test_a_size_part_says_whether_it_resizes():
    @dataclass(frozen=True)
    class Silent:
        def __call__(self, snapshot, beliefs, order):
            return Sizes(gpus=snapshot.jobs.gpus)

    with pytest.raises(ConfigError, match="size part Silent does not say whether it may change running jobs"):
        replace(SKIP, size=Silent())


# -- fill, then feed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fill:
    """Adds rows to what was placed."""

    rows: tuple[tuple[int, int, int, int], ...]
    keep: bool = True

    def __call__(self, snapshot, beliefs, grants):
        more = grants_of(self.rows, len(snapshot.jobs))
        columns = {name: np.concatenate((getattr(grants, name)[: len(grants) * self.keep], getattr(more, name)))
                   for name in ("job", "node", "gpu", "share_milli")}
        return replace(grants, **columns)


def test_a_job_that_fills_a_gap_is_fed_and_runs():
    snapshot = snapshot_of("1x2xT4:cpus=8", job(), job(), now=5)
    policy = replace(SKIP, size=OnlyFirst(), fill=Fill(((1, 0, 1, 1000),)))
    result = decided(snapshot, policy)
    assert [(action.job, action.setting.loader_workers) for action in result.plan.actions] == [(0, 3), (1, 3)]
    assert result.why.tolist() == [Why.RUNS, Why.RUNS]
    assert explain(snapshot, result, 1) == "job 1 has its 1 GPU."


@dataclass(frozen=True)
class OnlyFirst:
    """The first job, nobody else."""

    resizes_running = False

    def __call__(self, snapshot, beliefs, order):
        return Sizes(gpus=np.where(np.arange(len(snapshot.jobs)) == 0, snapshot.jobs.gpus, 0))


@pytest.mark.parametrize("fill", [Fill(((0, 0, 1, 1000),)), Fill((), keep=False)])
def test_filling_changes_nothing_that_was_placed(fill):
    snapshot = snapshot_of("1x2xT4", job(), now=5)
    with pytest.raises(PlanError, match="policy 'mine', fill: the grants of job 0, which was already placed"):
        decided(snapshot, replace(SKIP, fill=fill))


def test_a_job_left_out_without_a_word_was_given_nothing_now():
    snapshot = snapshot_of("1x2xT4", job(), now=5)
    assert decided(snapshot, granting()).why.tolist() == [Why.NOT_NOW]


# -- a share chosen by the place part -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halves(Consolidate):
    """Two jobs to a GPU, in the order of the queue, whatever they ask."""

    def __call__(self, snapshot, beliefs, order, sizes):
        held = snapshot.grants
        columns = (held.job, held.node, held.gpu, held.share_milli)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        halves = [(node, gpu) for node in range(len(snapshot.nodes)) for gpu in range(snapshot.nodes.gpus[node])] * 2
        for _, node, gpu, _ in rows:
            halves.remove((node, gpu))
        waiting = order[snapshot.jobs.waits[order]].tolist()
        rows += [(row, node, gpu, 500) for row, (node, gpu) in zip(waiting, halves, strict=False)]
        return grants_of(sorted(rows), len(snapshot.jobs))


def test_a_share_chosen_by_the_place_part_is_carried_everywhere():
    trace = small_trace(*(job(run=10) for _ in range(3)))
    journal = Journal()
    outcome = replay(trace, parse_cluster("1x1xT4"), replace(SKIP, place=Halves()), Settings(gap_ms=0), journal=journal)
    decisions = [record for record in map(json.loads, journal.lines) if "d" in record]
    ranks = [action["setting"]["ranks"] for record in decisions for action in record["d"]]
    assert ranks == [[[0, 0, 500, 0]]] * 3
    assert outcome.first_start_ms.tolist() == [0, 0, 10_000]
    assert outcome.runs.share_milli.tolist() == [500, 500, 500]
    assert outcome.service_gpu_ms.tolist() == [5_000, 5_000, 5_000]
    said = "3 jobs were granted another share of each GPU than asked"
    assert any(sentence.startswith(said) for sentence in outcome.assumptions)


def test_the_state_counts_the_share_that_was_granted():
    snapshot = snapshot_of("1x1xT4", job(), now=5)
    plan = decided(snapshot, granting((0, 0, 0, 300))).plan
    assert plan.actions == (start(0, 1, ((0, 0),), share=300),)
    assert decided(snapshot, granting((0, 0, 0, 1000))).plan.actions == (start(0, 1, ((0, 0),)),)


def test_another_share_of_the_same_gpu_is_a_resize():
    snapshot = snapshot_of("1x1xT4", job(on=[(0, 0)], gpus=1, **{**LIMITS, "gpus_min": 1}), now=5)
    actions = decided(snapshot, replace(granting((0, 0, 0, 500)), size=Resizing())).plan.actions
    assert actions == (resize(0, 2, ((0, 0),), 8, share=500),)


class Resizing(AsAsked):
    """As asked, and may change who runs."""

    resizes_running = True


def test_shares_above_the_whole_are_refused():
    snapshot = snapshot_of("1x1xT4", job(), job(), now=5)
    with pytest.raises(PlanError, match="GPU 0 of node 0 is granted 130 % of itself"):
        decided(snapshot, granting((0, 0, 0, 700), (1, 0, 0, 600)))


# -- whatever a part raises ---------------------------------------------------------------------------------------


class Ends(Arrival):
    """Wants to end the program."""

    def __call__(self, snapshot, beliefs):
        raise SystemExit(0)


class Odd(BaseException):
    """Derived from nothing that programs catch."""


@dataclass(frozen=True)
class RaisesOdd(NoFill):
    def __call__(self, snapshot, beliefs, grants):
        raise Odd("out of order")


@pytest.mark.parametrize(("policy", "said"), [
    (replace(SKIP, order=Ends()), r"policy 'mine', order: SystemExit: 0 \(.*test_parts.py:\d+\)"),
    (replace(SKIP, fill=RaisesOdd()), r"policy 'mine', fill: Odd: out of order \(.*test_parts.py:\d+\)"),
])
def test_no_exception_of_a_part_leaves_a_round_unnamed(policy, said):
    with pytest.raises(PlanError, match=said):
        decided(snapshot_of("1x1xT4", job(), now=5), policy)


def test_ctrl_c_in_a_part_is_ctrl_c():
    class Interrupted(Arrival):
        def __call__(self, snapshot, beliefs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decided(snapshot_of("1x1xT4", job(), now=5), replace(SKIP, order=Interrupted()))


# -- run times are declared -----------------------------------------------------------------------------------------


class Peeking(Arrival):
    """Shortest first, and says nothing of it."""

    def __call__(self, snapshot, beliefs):
        return np.argsort(beliefs.run_times.total_ms(snapshot), kind="stable")


class Declared(Peeking):
    asks_run_times = True


class Inspecting(Arrival):
    """Looks at the truth behind the estimates."""

    def __call__(self, snapshot, beliefs):
        return np.argsort(beliefs.run_times.run_ms, kind="stable")


@pytest.mark.parametrize("order", [Peeking(), Inspecting()])
@pytest.mark.parametrize("place", [Consolidate("skip"), Consolidate("reserve")])
def test_a_part_that_reads_run_times_declares_it(order, place):
    with pytest.raises(PlanError, match=r"policy 'mine', order: it reads beliefs\.run_times and does not declare it"):
        replay(small_trace(job(run=5)), parse_cluster("1x1xT4"), replace(SKIP, order=order, place=place))


def test_a_part_that_declares_it_is_told():
    outcome = replay(small_trace(job(run=5)), parse_cluster("1x1xT4"), replace(SKIP, order=Declared()))
    assert outcome.estimates == "time limits, else per-user history"


def test_a_file_that_raises_what_nobody_catches_is_one_line(tmp_path):
    for line in ("raise SystemExit(0)", "raise GeneratorExit('enough')"):
        (tmp_path / "mine.py").write_text(line + "\n")
        with pytest.raises(ConfigError, match=r"policy file .*mine.py:1: (SystemExit|GeneratorExit)"):
            find_policy(str(tmp_path / "mine.py"))


# -- parts that change what they were given, or what they gave ---------------------------------------------------------


class Lying(np.ndarray):
    """An array whose own methods say that every value is right."""

    def min(self, *_, **__):
        return 0

    max = min

    def __le__(self, other):
        return np.ones(len(self), dtype=np.bool_)

    __ge__ = __eq__ = __le__


def part(base, decide, **attributes):
    """A part of its own class: that of ``base`` with another ``__call__``."""
    return type("Mine", (type(base),), {"__call__": lambda self, *given: decide(base, *given), **attributes})()


def writing(pick, value=10**9):
    """A decision that first makes one of the columns it was given writable and fills it."""
    def decide(base, *given):
        answer = base(*given)
        column = pick(*given)
        column.setflags(write=True)
        column[:] = value
        return answer
    return decide


def replacing(table, column, value):
    """A decision that replaces a column of the snapshot."""
    def decide(base, snapshot, *given):
        answer = base(snapshot, *given)
        object.__setattr__(getattr(snapshot, table), column, value)
        return answer
    return decide


BUFFER = np.zeros(2, dtype=np.int64)


def from_buffer(base, snapshot, beliefs):
    BUFFER[:] = base(snapshot, beliefs)
    return BUFFER


def spoiling(base, *given):
    BUFFER[:] = 10**12
    return base(*given)


ARRIVAL, AS_ASKED, NO_FILL, FEED = Arrival(), AsAsked(), NoFill(), SKIP.feed
HUGE = np.full(2, 10**6)


def test_an_order_changed_after_its_check_changes_nothing():
    snapshot = snapshot_of("1x4xT4", job(), job(), now=5)
    policy = replace(SKIP, order=part(ARRIVAL, from_buffer), size=part(AS_ASKED, spoiling))
    assert decided(snapshot, policy).plan == decided(snapshot, SKIP).plan


@pytest.mark.parametrize(("parts", "said"), [
    ({"size": part(AS_ASKED, writing(lambda snapshot, beliefs, order: order))}, "size: ValueError: cannot set WRITE"),
    ({"feed": part(FEED, writing(lambda snapshot, *_: snapshot.jobs.gpus))}, "feed: ValueError: cannot set WRITE"),
    *(({socket: part(base, writing(lambda snapshot, beliefs, grants, name=name: getattr(grants, name)))},
       f"{socket}: ValueError: cannot set WRITE")
      for socket, base in (("fill", NO_FILL), ("feed", FEED))
      for name in ("job", "node", "gpu", "share_milli", "why", "blocker")),
    ({"order": part(ARRIVAL, lambda *_: (np.arange(2) * 10**9).view(Lying))}, "order: expected each of the 2 job rows"),
    ({"size": part(AS_ASKED, lambda *_: Sizes(gpus=np.full(2, 10**9).view(Lying)))}, "size: job 0 runs on 1 to 1 GPUs"),
    ({"order": part(ARRIVAL, replacing("grants", "gpu", np.full(1, 10**9)))}, "order: it replaced a column"),
    ({"order": part(ARRIVAL, replacing("nodes", "gpus", HUGE))}, "order: it replaced a column"),
    ({"order": part(ARRIVAL, replacing("nodes", "cpu_milli", HUGE[:0]))}, "order: it replaced a column"),
    ({"feed": part(FEED, replacing("jobs", "gpus", HUGE))}, "feed: it replaced a column"),
    ({"feed": part(FEED, lambda *_: np.full(2, -1))}, "feed: job 0 gets -1 loader workers per rank: expected 0 to 40"),
    ({"feed": part(FEED, lambda *_: np.full(2, 1 << 62))}, "feed: job 0 gets 4611686018427387904 loader workers"),
])
def test_what_a_part_may_only_read_it_cannot_change(parts, said):
    snapshot = snapshot_of("1x4xT4", job(on=[(0, 0)]), job(), now=5)
    with pytest.raises(PlanError, match=f"policy 'mine', {said}"):
        decided(snapshot, replace(SKIP, **parts))


def with_columns(table, **columns):
    def decide(base, snapshot, beliefs, order, sizes):
        return base(replace(snapshot, **{table: replace(getattr(snapshot, table), **columns)}), beliefs, order, sizes)
    return decide


@pytest.mark.parametrize("base", [Consolidate("skip"), PRESETS["elastic"].place])
@pytest.mark.parametrize(("decide", "said"), [
    (lambda base, snapshot, beliefs, order, sizes: base(snapshot, beliefs, order + 10**9, sizes), "order: row 0"),
    (lambda base, snapshot, beliefs, order, sizes: base(snapshot, beliefs, order, Sizes(gpus=HUGE - 10**7)), "sizes"),
    (with_columns("grants", gpu=np.full(1, 10**9)), "grants: row 0 refers to what does not exist"),
    (with_columns("nodes", cpu_milli=HUGE[:0]), "nodes: column cpu_milli is not the one that the round gave it"),
    (with_columns("jobs", gpu_type=HUGE), "jobs: row 0 refers to what does not exist"),
])
def test_a_place_part_called_with_made_up_arguments_refuses_them(base, decide, said):
    snapshot = snapshot_of("1x4xT4", job(on=[(0, 0)]), job(), now=5)
    with pytest.raises(PlanError, match=f"policy 'mine', place: {said}"):
        decided(snapshot, replace(SKIP, place=part(base, decide)))


# -- what a policy is made of, and what it says when it fails ----------------------------------------------------------


def raising(error):
    def decide(*_):
        raise error
    return decide


class Mute(Exception):  # noqa: N818 - a name in a message
    def __str__(self):
        raise ValueError("in str")


@pytest.mark.parametrize(("error", "kind", "said"), [
    (Mute(), PlanError, "policy 'mine', feed: Mute"), (ValueError("one\ntwo"), PlanError, "feed: ValueError: one two"),
    (ConfigError("mine"), ConfigError, "policy 'mine', feed: mine"),
    (KeyboardInterrupt(), KeyboardInterrupt, "policy 'mine', feed"),
])
def test_a_failing_part_is_named_on_one_line(error, kind, said):
    with pytest.raises(kind, match=said) as caught:
        decided(snapshot_of("1x1xT4", job(), now=5), replace(SKIP, feed=part(FEED, raising(error))))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("changed", "said"), [
    ({"gap_ms": float("inf")}, "gap_ms is inf, expected a whole number"), ({"gap_ms": "1"}, "gap_ms is '1'"),
    ({"gap_ms": -1}, "gap_ms is -1"), ({"period_ms": 10**30}, "period_ms is 1000"), ({"period_ms": 0.5}, "is 0.5"),
    ({"name": "\ud800"}, "policy name .* printable"), ({"name": ""}, "policy name ''"), ({"name": 1}, "policy name 1"),
    ({"name": "a\nb"}, "printable characters"), ({"order": Arrival}, r"order: found the class Arrival, expected Arri"),
    ({"feed": 1}, "feed: found int, expected a part that can be called"),
])
def test_a_policy_that_cannot_be_is_refused_when_it_is_made(changed, said):
    with pytest.raises(ConfigError, match=said):
        replace(SKIP, **changed)


@pytest.mark.parametrize("what", ["asks_run_times", "remember", "__getattribute__"])
def test_a_declaration_that_raises_is_refused_when_the_policy_is_made(what):
    hostile = raising(SystemExit(0)) if what == "__getattribute__" else property(raising(SystemExit(0)))
    with pytest.raises(ConfigError, match=r"policy 'mine', order: \w+ raises SystemExit: 0"):
        replace(SKIP, order=part(ARRIVAL, raising(ValueError), **{what: hostile}))


def test_a_part_that_inherits_its_decision_is_named_by_its_own_file():
    class Inherits(Consolidate):
        @property
        def rule(self):
            raise SystemExit(0)

    with pytest.raises(PlanError, match=r"policy 'mine', place: SystemExit: 0 \(.*test_parts.py:\d+\)"):
        decided(snapshot_of("1x1xT4", job(), now=5), replace(SKIP, place=Inherits()))


@pytest.mark.parametrize(("misfit", "rule"), [("bogus", None), ("skip", 99)])
def test_an_unknown_rule_of_placement_is_refused(misfit, rule):
    place = type("Mine", (Consolidate,), {} if rule is None else {"rule": rule})()
    object.__setattr__(place, "misfit", misfit)
    with pytest.raises(ConfigError, match=r"policy 'mine', place: rule .* expected a rule of"):
        decided(snapshot_of("1x1xT4", job(), now=5), replace(SKIP, place=place))


@pytest.mark.parametrize(("rows", "said"), [
    ([(0, 0, 0, 1000), (0, 0, 0, 1000)], "job 0 is granted GPU 0 of node 0 after GPU 0 of node 0: expected each GPU"),
    ([(0, 0, 1, 1000), (0, 0, 0, 1000)], "job 0 is granted GPU 0 of node 0 after GPU 1 of node 0: expected each GPU"),
    ([(0, 1, 0, 1000), (0, 0, 1, 1000)], "job 0 is granted GPU 1 of node 0 after GPU 0 of node 1: expected each GPU"),
])
def test_gpus_of_a_job_that_are_granted_twice_or_out_of_order_are_refused_by_part(rows, said):
    with pytest.raises(PlanError, match=f"policy 'mine', place: {said}"):
        decided(snapshot_of("2x2xT4", job(gpus=2), now=5), granting(*rows))


def test_a_gpu_granted_to_two_jobs_is_refused_with_the_policys_name():
    with pytest.raises(PlanError, match="policy 'mine': GPU 0 of node 0 is granted 200 % of itself"):
        decided(snapshot_of("1x2xT4", job(), job(), now=5), granting((0, 0, 0, 1000), (1, 0, 0, 1000)))


@dataclass(frozen=True)
class Because:
    """Grants nothing, for a reason that does not exist."""

    why: int

    def __call__(self, snapshot, beliefs, order, sizes):
        return replace(grants_of((), len(snapshot.jobs)), why=np.full(len(snapshot.jobs), self.why))


@pytest.mark.parametrize("why", [-1, 9, 2**62])
def test_a_reason_that_is_no_code_of_why_is_refused(why):
    with pytest.raises(PlanError, match=f"policy 'mine', place: expected codes of Why, 0 to 8, .*found int64 .{why}"):
        decided(snapshot_of("1x2xT4", job(), now=5), replace(SKIP, place=Because(why)))


@dataclass(frozen=True)
class Unsigned:
    """The order of arrival, as unsigned integers."""

    def __call__(self, snapshot, beliefs):
        return np.arange(len(snapshot.jobs), dtype=np.uint64)


def test_unsigned_integers_are_refused_as_such():
    with pytest.raises(PlanError, match="policy 'mine', order: expected 1 signed integers, one per job, found uint64"):
        decided(snapshot_of("1x2xT4", job(), now=5), replace(SKIP, order=Unsigned()))
