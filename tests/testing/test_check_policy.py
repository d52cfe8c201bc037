"""Deliberately broken policies, one of each kind, and the rule that catches each."""

from __future__ import annotations

import builtins
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from time import localtime, time

import numpy as np
import pytest
from hypothesis import Phase, settings

from brim.core.cluster import parse_cluster
from brim.core.tables import Grants
from brim.errors import ConfigError
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS, find_policy
from brim.policies.sockets import Policy, Sizes
from brim.sim.overheads import Overheads
from brim.testing import PolicyViolation, check_policy, conformance, job, small_trace, snapshot_of
from brim.testing.conformance import BudgetSpentError, check_replays
from brim.testing.rules import (
    AFRESH,
    ENDS,
    GANG,
    ORDER_FREE,
    OVER_GRANT,
    PURE,
    SOUND,
    STAYS,
    WORK_CONSERVING,
    check_decision,
)
from tests.sampling import sample

FIFO, SKIP = PRESETS["fifo"], replace(PRESETS["fifo"], place=Consolidate("skip"))


@dataclass(frozen=True)
class After:
    """The consolidating place part, its answer spoilt afterwards."""

    spoil: Callable
    misfit: str = "stop"

    def __call__(self, snapshot, beliefs, order, sizes):
        return self.spoil(snapshot, Consolidate("skip")(snapshot, beliefs, order, sizes))


def placing(spoil: Callable, misfit: str = "stop") -> Policy:
    return replace(FIFO, name="broken", place=After(spoil, misfit))


def rows_of(grants: Grants, keep) -> Grants:
    columns = {name: getattr(grants, name)[keep] for name in ("job", "node", "gpu", "share_milli")}
    return replace(grants, **columns)


def everyone_on_the_first_gpu(snapshot, grants):
    waiting = np.flatnonzero(snapshot.jobs.waits & (snapshot.jobs.gpus == 1) & (snapshot.jobs.gpu_type < 0))
    old = rows_of(grants, snapshot.jobs.holds[grants.job])
    zeros = np.zeros(len(waiting), dtype=np.int64)
    if not snapshot.nodes.is_open[0]:
        return old
    return replace(
        old, job=np.append(old.job, waiting), node=np.append(old.node, zeros), gpu=np.append(old.gpu, zeros),
        share_milli=np.append(old.share_milli, snapshot.jobs.share_milli[waiting]),
    )


def half_gangs(snapshot, grants):
    new = ~snapshot.jobs.holds[grants.job]
    first = np.concatenate(([True], np.diff(grants.job) != 0)) if len(grants) else np.zeros(0, dtype=bool)
    return rows_of(grants, ~new | first)


def any_type(snapshot, grants):
    """Moves the last GPU of the first new gang of two or more to a free node of another type."""
    nodes = snapshot.nodes
    node, gpu = grants.node.copy(), grants.gpu.copy()
    new = ~snapshot.jobs.holds[grants.job] & (snapshot.jobs.gpus[grants.job] > 1)
    for row in np.flatnonzero(new)[1:2]:
        free = [n for n in range(len(nodes)) if nodes.is_open[n] and n not in grants.node]
        other = [n for n in free if nodes.gpu_type[n] != nodes.gpu_type[grants.node[row]]]
        if other:
            node[row], gpu[row] = other[0], 0
    return replace(grants, node=node, gpu=gpu)


def closed_nodes_too(snapshot, grants):
    waiting = np.flatnonzero(snapshot.jobs.waits & (snapshot.jobs.gpus == 1) & (snapshot.jobs.gpu_type < 0))
    closed = np.flatnonzero(~snapshot.nodes.is_open)
    old = rows_of(grants, snapshot.jobs.holds[grants.job])
    free = [n for n in closed if n not in old.node]
    if not (free and len(waiting)):
        return old
    return replace(
        old, job=np.append(old.job, waiting[0]), node=np.append(old.node, free[0]), gpu=np.append(old.gpu, 0),
        share_milli=np.append(old.share_milli, 1000),
    )


def moved_runners(snapshot, grants):
    """Puts a job that runs alone on a node on another GPU of it."""
    gpu = grants.gpu.copy()
    for row in range(len(grants)):
        node = grants.node[row]
        if snapshot.jobs.holds[grants.job[row]] and (grants.node == node).sum() == 1:
            gpu[row] = (gpu[row] + 1) % snapshot.nodes.gpus[node]
    return replace(grants, gpu=gpu)


def one_start_at_a_time(snapshot, grants):
    new = grants.job[~snapshot.jobs.holds[grants.job]]
    keep = snapshot.jobs.holds[grants.job]
    return rows_of(grants, keep | (grants.job == new[0])) if len(new) else grants


@dataclass(frozen=True)
class ByUserCode:
    """Users in the order in which the trace happens to list them."""

    def __call__(self, snapshot, beliefs):
        return np.lexsort((snapshot.jobs.user, ~snapshot.jobs.holds))


@dataclass(frozen=True)
class ByIdParity:
    """Even ids first."""

    def __call__(self, snapshot, beliefs):
        return np.lexsort((snapshot.jobs.id % 2, ~snapshot.jobs.holds))


@dataclass(frozen=True)
class ByListing:
    """Evicts in the order in which grants are listed."""

    def __call__(self, snapshot, beliefs):
        rank = np.full(len(snapshot.jobs), -1)
        for place, row in enumerate(snapshot.grants.job.tolist()):
            rank[row] = place
        return np.argsort(rank, kind="stable")


class Moody:
    """Changes its mind with every call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, snapshot, beliefs):
        self.calls += 1
        order = Arrival()(snapshot, beliefs)
        return order if self.calls % 2 else np.concatenate((order[: snapshot.jobs.holds.sum()],
                                                            order[snapshot.jobs.holds.sum() :][::-1]))


@dataclass(frozen=True)
class Scribbling:
    """Sorts the table it was given in place."""

    force: bool

    def __call__(self, snapshot, beliefs):
        if self.force:
            snapshot.jobs.memo.setflags(write=True)
            snapshot.jobs.memo[:] = 7
        else:
            snapshot.jobs.submit_ms.sort()
        return Arrival()(snapshot, beliefs)


@dataclass(frozen=True)
class NotForEve:
    """Never gives one user anything."""

    resizes_running = False

    def __call__(self, snapshot, beliefs, order):
        is_eve = np.array([name == "eve" for name in snapshot.users.name])
        return Sizes(gpus=np.where(is_eve[snapshot.jobs.user], 0, snapshot.jobs.gpus))


@dataclass(frozen=True)
class Thrash:
    """Whoever waits comes before whoever runs: each round undoes the last."""

    def __call__(self, snapshot, beliefs):
        return np.argsort(snapshot.jobs.holds, kind="stable")


@dataclass(frozen=True)
class Twice:
    """Not a permutation: the first job stands in it twice."""

    def __call__(self, snapshot, beliefs):
        order = Arrival()(snapshot, beliefs)
        return np.concatenate((order[:1], order[:-1]))


def by_hour(hour):
    """An order that turns around in the second half of the day."""

    @dataclass(frozen=True)
    class ByHour:
        def __call__(self, snapshot, beliefs):
            order = Arrival()(snapshot, beliefs)
            return order if hour() < 24 else order[::-1]

    return replace(SKIP, order=ByHour())


READS = {
    "time.time": (lambda: time() % 1, "a clock: time,"),
    "time.localtime": (lambda: localtime().tm_hour, "a clock: localtime,"),
    "datetime.now": (lambda: datetime.now().hour, "a clock: datetime.now,"),
    "date.today": (lambda: date.today().day // 32, "a clock: date.today,"),
    "the age of a file": (lambda: Path(__file__).stat().st_mtime % 1, "a file or the system: stat,"),
    "the size of a file": (lambda: os.path.getsize(__file__) % 7, "a file or the system: stat,"),
    "a file": (lambda: len(Path(__file__).read_text()) % 7, "a file: open,"),
    "random.random": (random.random, "random numbers"),
    "random.shuffle": (lambda: random.shuffle([1, 2, 3]) or 1, "random numbers"),
    "an unseeded Random": (lambda: random.Random().random(), "random numbers"),
    "np.random.rand": (np.random.rand, "random numbers"),
    "an unseeded default_rng": (lambda: np.random.default_rng().random(), "random numbers"),
    "os.urandom": (lambda: os.urandom(1)[0] % 7, "random numbers"),
}


@pytest.mark.parametrize("kind", sorted(READS))
def test_a_part_that_reads_more_than_it_is_given_is_caught_wherever_it_makes_no_difference(kind):
    hour, said = READS[kind]
    with pytest.raises(PolicyViolation) as caught:
        check_decision(snapshot_of("1x1xT4", job(), now=5), by_hour(hour))
    assert caught.value.rule == PURE
    assert f"it reads {said}" in str(caught.value)
    assert "test_check_policy.py, line" in str(caught.value) or "generator of the whole process" in str(caught.value)


@pytest.mark.parametrize("allowed", [
    lambda: np.random.default_rng(7).random(), lambda: random.Random(7).random(), lambda: timedelta(seconds=9).seconds,
    lambda: datetime(2026, 1, 1).hour, lambda: __import__("colorsys").rgb_to_hsv(0, 0, 0)[0],
])
def test_seeded_draws_and_arithmetic_of_dates_are_pure(allowed):
    check_decision(snapshot_of("1x1xT4", job(), now=5), by_hour(allowed))


@dataclass(frozen=True)
class RarelyMoody:
    """Fails on the third call for a table of two jobs, and never again."""

    calls: list

    def __call__(self, snapshot, beliefs):
        self.calls.append(len(snapshot.jobs))
        if self.calls.count(2) == 3 and len(snapshot.jobs) == 2:
            self.calls.append(2)
            raise ZeroDivisionError("once")
        return Arrival()(snapshot, beliefs)


def test_a_rarely_impure_part_is_one_violation():
    with pytest.raises(PolicyViolation) as caught:
        check_policy(replace(SKIP, order=RarelyMoody([])), examples=60)
    assert caught.value.rule == PURE
    assert "the same situation gave two decisions; one of them breaks the rule 'plan accepted'" in str(caught.value)
    assert "ZeroDivisionError: once" in str(caught.value)
    assert "jobs at" in str(caught.value)


@dataclass(frozen=True)
class Turns:
    """An order that is turned around after a number of calls."""

    after: int
    calls: list

    def __call__(self, snapshot, beliefs):
        self.calls.append(1)
        return Arrival()(snapshot, beliefs)[:: 1 if len(self.calls) <= self.after else -1]


@dataclass(frozen=True)
class Counts(Arrival):
    """Remembers how often it was asked."""

    calls: list

    def remember(self, snapshot):
        self.calls.append(1)
        return np.full(len(snapshot.jobs), len(self.calls))


@pytest.mark.parametrize(("order", "said"), [
    (Turns(1, []), "called twice, it put the jobs in the order 0, 1 and then 1, 0"),
    (Turns(3, []), "called twice, it put the jobs in the order 0, 1 and then 1, 0"),  # with other ids, then seen again
    (Counts([]), "called twice, it remembered order [1, 1] and then order [2, 2]"),
])
def test_what_differs_between_two_calls_is_shown_where_both_plans_are_empty(order, said):
    snapshot = snapshot_of("1x1xT4", job(gpus=2), job(at=1, gpus=2), now=5)
    with pytest.raises(PolicyViolation) as caught:
        check_decision(snapshot, replace(PRESETS["backfill"], order=order))
    assert (caught.value.rule, caught.value.what) == (PURE, said)


def test_reasons_that_depend_on_the_numbers_of_users_are_shown():
    policy = replace(PRESETS["backfill"], order=ByUserCode())
    jobs = job(gpus=2, user="eve"), job(at=1, gpus=2, user="ann")
    with pytest.raises(PolicyViolation) as caught:
        check_decision(snapshot_of("1x1xT4", *jobs, now=5), policy)
    assert caught.value.rule == ORDER_FREE
    assert re.fullmatch(
        r"it gave the reasons job 0 \w+( behind job 1)?, job 1 \w+( behind job 0)?; with the users numbered in reverse "
        r"it gave the reasons job 0 \w+( behind job 1)?, job 1 \w+( behind job 0)?", caught.value.what,
    )
    first, _, then = caught.value.what.partition("; ")
    assert first.removeprefix("it ") not in then


KEPT = """from dataclasses import dataclass, replace
import numpy as np
from brim.policies.presets import PRESETS, find_policy
FIRST, CALLS = {}, []

@dataclass(frozen=True)
class Mine:
    def __call__(self, snapshot, beliefs):
        jobs = snapshot.jobs
        CALLS.append(1)
        return np.lexsort((%s, ~jobs.holds))

policy = replace(PRESETS["sjf"], name="mine", order=Mine())
"""
"""A policy file with state of its module; what is missing is its sort key."""
FIRST_SEEN = "[FIRST.setdefault(job, snapshot.now_ms * gpus) for job, gpus in zip(jobs.id, jobs.gpus)]"


@pytest.mark.slow
@pytest.mark.usefixtures("any_counterexample")
@pytest.mark.parametrize("key", [FIRST_SEEN, "jobs.gpus * (1 if len(CALLS) > 200 else -1)"])
def test_state_that_a_module_keeps_is_found_by_loading_it_anew(tmp_path, key):
    path = tmp_path / "mine.py"
    path.write_text(KEPT % key)
    check_policy(find_policy(str(path)), examples=5)  # it is pure and replays alike in one process
    with pytest.raises(PolicyViolation) as caught:
        check_policy(find_policy(str(path)), examples=25, load=lambda: find_policy(str(path)))
    assert caught.value.rule == AFRESH
    assert re.fullmatch(
        r"after other rounds it put the jobs in the order [\d, ]+; loaded anew, it put the jobs in the order [\d, ]+",
        caught.value.what,
    )
    assert caught.value.where == f"{path}:8 (order)"


@pytest.mark.slow
def test_a_file_is_loaded_a_few_times_in_a_check_and_may_draw_with_a_seed(tmp_path):
    path, loads = tmp_path / "mine.py", []
    path.write_text(KEPT % "jobs.gpus * np.random.default_rng(7).random()")

    def load():
        loads.append(1)
        return find_policy(str(path))

    check_policy(load(), examples=20, load=load)
    assert 1 < len(loads) <= 1 + conformance.LOADS


@pytest.mark.parametrize("socket", ["order", "size", "place", "feed", "fill"])
def test_a_part_that_replaces_what_it_was_given_is_caught(socket):
    """Each part is given a copy, so that no other part notices."""
    base, at = getattr(SKIP, socket), {"order": 1, "size": 1, "feed": 1}.get(socket, -1)
    name = {"place": "gpus", "fill": "node"}.get(socket, "restart_ms")
    kind = {"place": "Sizes", "fill": "Grants"}.get(socket, "Beliefs")

    class Writes(type(base)):
        def __call__(self, *given):
            answer = super().__call__(*given)
            object.__setattr__(given[at], name, 1.0)
            return answer

    with pytest.raises(PolicyViolation) as caught:
        check_decision(snapshot_of("1x1xT4", job(), now=5), replace(SKIP, **{socket: Writes()}))
    assert caught.value.rule == PURE
    assert f"{socket}: it replaced {name} of {kind}, which parts may only read" in str(caught.value)


def test_a_check_that_would_take_for_ever_ends_and_says_so(monkeypatch):
    monkeypatch.setattr(conformance, "BUDGET_CPU_S", 1)
    policy = replace(SKIP, name="busy", period_ms=1, size=AfterAWeek())
    with pytest.raises(BudgetSpentError, match=r"the check used up its 1 s of CPU time after \d+ situations"):
        check_policy(policy, examples=20)


@dataclass(frozen=True)
class AfterAWeek:
    """Gives nobody anything for a long time."""

    resizes_running = False

    def __call__(self, snapshot, beliefs, order):
        jobs = snapshot.jobs
        return Sizes(gpus=np.where(jobs.holds | (snapshot.now_ms > 3_600_000), jobs.gpus, 0))


def test_run_times_that_are_not_declared_are_caught():
    class Peeking(Arrival):
        def __call__(self, snapshot, beliefs):
            return np.argsort(beliefs.run_times.total_ms(snapshot), kind="stable")

    with pytest.raises(PolicyViolation, match=r"order: it reads beliefs\.run_times and does not declare it"):
        check_policy(replace(SKIP, order=Peeking()), examples=5)


BROKEN = {
    "over-grant": (placing(everyone_on_the_first_gpu), OVER_GRANT),
    "half gang": (placing(half_gangs), GANG),
    "mixed types": (placing(any_type), GANG),
    "closed node": (placing(closed_nodes_too), SOUND),
    "moved silently": (placing(moved_runners), STAYS),
    "idle capacity": (placing(one_start_at_a_time, "skip"), WORK_CONSERVING),
    "impure": (replace(SKIP, order=Moody()), PURE),
    "writes by force": (replace(SKIP, order=Scribbling(True)), PURE),
    "writes": (replace(SKIP, order=Scribbling(False)), PURE),
    "order of users": (replace(SKIP, order=ByUserCode()), ORDER_FREE),
    "numbers of jobs": (replace(SKIP, order=ByIdParity()), ORDER_FREE),
}
ENDLESS = {
    "starving": replace(SKIP, size=NotForEve()),
    "starving with a period": replace(SKIP, size=NotForEve(), period_ms=60_000),
    "thrashing": replace(SKIP, order=Thrash()),
}


@pytest.fixture
def any_counterexample():
    """The first situation that breaks a rule is made smaller with ``--full`` only."""
    settings.register_profile("before", settings.default)
    settings.register_profile("any", settings.default, phases=[Phase.generate, Phase.shrink][: sample(2, 1)])
    settings.load_profile("any")
    yield
    settings.load_profile("before")


@pytest.mark.usefixtures("any_counterexample")
@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_a_broken_policy_is_caught_by_the_rule_it_breaks(kind):
    policy, rule = BROKEN[kind]
    with pytest.raises(PolicyViolation) as caught:
        check_policy(policy, examples=250)
    assert caught.value.rule == rule, str(caught.value)


@pytest.mark.parametrize("kind", sorted(ENDLESS))
def test_a_replay_that_would_never_end_is_given_up(kind):
    trace = small_trace(job(run=5, user="ann"), job(at=1, run=5, user="eve"))
    with pytest.raises(PolicyViolation) as caught:
        check_replays(ENDLESS[kind], parse_cluster("1x1xT4"), trace, Overheads())
    assert caught.value.rule == ENDS
    assert "j1: submitted 1 s by eve, 1 GPU for 5 s" in str(caught.value)


def test_a_policy_that_evicts_in_the_order_in_which_grants_are_listed_is_caught():
    snapshot = snapshot_of("1x2xT4", job(on=[(0, 0)]), job(on=[(0, 1)]), job(at=1), now=5)
    with pytest.raises(PolicyViolation) as caught:
        check_decision(snapshot, replace(SKIP, order=ByListing()))
    assert caught.value.rule == ORDER_FREE
    assert "with the grants listed in reverse" in str(caught.value)


@pytest.mark.usefixtures("any_counterexample")
def test_an_order_that_is_no_permutation_is_caught():
    with pytest.raises(PolicyViolation) as caught:
        check_policy(replace(SKIP, order=Twice()), examples=100)
    assert caught.value.rule in (OVER_GRANT, GANG, STAYS, SOUND, WORK_CONSERVING, PURE)


def test_the_counterexample_is_small_and_in_words():
    with pytest.raises(PolicyViolation) as caught:
        check_policy(placing(half_gangs), examples=100)
    said = str(caught.value)
    assert "asks for 2 GPUs and gets 1" in said
    assert said.count("job 0") <= 2
    assert "job 1" not in said
    assert "pending, 2 GPU, submitted 0 s by ann" in said


@pytest.mark.usefixtures("any_counterexample")
def test_the_same_seed_finds_the_same_counterexample():
    said = []
    for _ in range(2):
        with pytest.raises(PolicyViolation) as caught:
            check_policy(replace(SKIP, order=ByUserCode()), examples=100, seed=5)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_keeps_every_rule(name):
    check_policy(PRESETS[name], examples=sample(25, 6), seed=1)


def test_without_hypothesis_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.split(".")[0] == "hypothesis":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install .brim.check"):
        check_policy(FIFO)
