"""Parts of a policy that raise, read what they did not declare, or change what they may only read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from brim.core.cluster import parse_cluster
from brim.errors import ConfigError, PlanError
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS, find_policy
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Sizes
from brim.sim.twin import replay
from brim.testing import job, small_trace, snapshot_of

from .test_parts import SKIP, decided


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
    (replace(SKIP, order=Ends()), r"policy 'mine', order: SystemExit: 0 \(.*test_failing_parts.py:\d+\)"),
    (replace(SKIP, fill=RaisesOdd()), r"policy 'mine', fill: Odd: out of order \(.*test_failing_parts.py:\d+\)"),
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


# -- run times are declared ----------------------------------------------------------------------------------------


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


# -- parts that change what they were given, or what they gave -----------------------------------------------------


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
    ({"size": part(AS_ASKED, lambda *_: Sizes(gpus=np.full(2, 10**9).view(Lying)))}, "size: job 0 runs on 1 GPU,"),
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


# -- what a policy is made of, and what it says when it fails ------------------------------------------------------


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


def test_a_period_may_be_a_whole_number_of_numpy():
    assert type(replace(SKIP, period_ms=np.int64(60_000)).period_ms) is int


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

    with pytest.raises(PlanError, match=r"policy 'mine', place: SystemExit: 0 \(.*test_failing_parts.py:\d+\)"):
        decided(snapshot_of("1x1xT4", job(), now=5), replace(SKIP, place=Inherits()))
