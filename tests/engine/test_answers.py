"""What is said of an answer that has the wrong type, shape or values: the part, the column, and the line."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

import numpy as np
import pytest

from brim.errors import PlanError
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Sizes
from brim.testing import PolicyViolation, job, snapshot_of
from brim.testing.rules import check_decision

from .test_parts import SKIP, decided


@dataclass(frozen=True)
class OrderOf(Arrival):
    answer: object

    def __call__(self, snapshot, beliefs):
        return self.answer


@dataclass(frozen=True)
class SizeOf(AsAsked):
    answer: object

    def __call__(self, snapshot, beliefs, order):
        return self.answer


@dataclass(frozen=True)
class PlaceOf:
    spoil: object

    def __call__(self, snapshot, beliefs, order, sizes):
        return self.spoil(Consolidate("skip")(snapshot, beliefs, order, sizes))


@dataclass(frozen=True)
class FillOf(NoFill):
    answer: object

    def __call__(self, snapshot, beliefs, grants):
        return self.answer


@dataclass(frozen=True)
class Remembers(Arrival):
    memory: object
    memory_columns: int = 1

    def __call__(self, snapshot, beliefs):
        return np.arange(len(snapshot.jobs))

    def remember(self, snapshot):
        return self.memory


ONES, HALVES = np.ones(2, dtype=np.int64), np.full(2, 0.5)
JOBS = job(gpus=2), job()


def line_of(function):
    return f"{__file__}:{function.__code__.co_firstlineno}"


def sizes(**columns):
    return {"size": SizeOf(Sizes(**{"gpus": np.array([2, 1]), **columns}))}


def grants(**columns):
    return {"place": PlaceOf(lambda granted: replace(granted, **columns))}


PER_JOB, PER_RANK = "of 2 signed integers, one per job", "of 3 signed integers, one per rank"


@pytest.mark.parametrize(("parts", "said", "function"), [
    ({"order": OrderOf(HALVES)}, f"order: expected an array {PER_JOB}, found float64 [0.5 0.5]", OrderOf.__call__),
    ({"order": OrderOf(np.arange(3))}, f"order: expected an array {PER_JOB}, found int64 [0 1 2], shape (3,)",
     OrderOf.__call__),
    ({"order": OrderOf([0, 1])}, f"order: expected an array {PER_JOB}, found list [0, 1]", OrderOf.__call__),
    ({"order": OrderOf(ONES)}, "order: expected each of the 2 job rows once, found int64 [1 1]", OrderOf.__call__),
    ({"order": Remembers(HALVES)}, f"order.remember: expected an array {PER_JOB}, found float64", Remembers.remember),
    ({"order": Remembers(np.ones(1))}, f"order.remember: expected an array {PER_JOB}, found float64 [1.], shape (1,)",
     Remembers.remember),
    ({"order": Remembers(ONES, 3)}, "order.remember: expected an array of 3 signed integers for each of 2 jobs, found",
     Remembers.remember),
    ({"size": SizeOf(None)}, "size: expected Sizes, found NoneType", SizeOf.__call__),
    ({"size": SizeOf(ONES)}, "size: expected Sizes, found ndarray", SizeOf.__call__),
    (sizes(gpus=ONES[:1]), f"size: Sizes.gpus: expected an array {PER_JOB}, found int64 [1], shape (1,)",
     SizeOf.__call__),
    (sizes(gpus=ONES * 3), "size: job 0 runs on 2 GPUs, found 3", SizeOf.__call__),
    (sizes(global_batch=None), f"size: Sizes.global_batch: expected an array {PER_JOB}, found NoneType",
     SizeOf.__call__),
    (sizes(reject=ONES), "size: Sizes.reject: expected an array of 2 truth values, one per job, found int64",
     SizeOf.__call__),
    (sizes(analyse=ONES > 0, servers=HALVES), f"size: Sizes.servers: expected an array {PER_JOB}", SizeOf.__call__),
    *((sizes(**{name: np.array([0, -2])}), f"size: job 1: Sizes.{name}: expected 0 or more, found -2", SizeOf.__call__)
      for name in ("cpu_workers", "worker_milli", "servers", "server_milli")),
    ({"place": PlaceOf(lambda _: None)}, "place: expected Grants, found NoneType", PlaceOf.__call__),
    ({"place": PlaceOf(lambda granted: (granted, 1))}, "place: expected Grants, found tuple", PlaceOf.__call__),
    (grants(job=None), "place: Grants.job: expected an array of 1 signed integer, one per rank, found NoneType",
     PlaceOf.__call__),
    *((grants(**{name: HALVES}), f"place: Grants.{name}: expected an array {PER_RANK}, found float64",
       PlaceOf.__call__) for name in ("node", "gpu", "share_milli")),
    *((grants(**{name: ONES[:1]}), f"place: Grants.{name}: expected an array {PER_JOB}, found int64 [1]",
       PlaceOf.__call__) for name in ("why", "blocker")),
    (grants(revocable=np.ones(3, dtype=np.int64)), "place: Grants.revocable: expected an array of 3 truth values, one "
     "per rank, found int64", PlaceOf.__call__),
    (grants(node=np.full(3, 9)), "place: job 0 is granted GPU 0 of node 9, which does not exist", PlaceOf.__call__),
    ({"fill": FillOf(None)}, "fill: expected Grants, found NoneType", FillOf.__call__),
])
def test_a_wrong_answer_is_named_with_its_column_and_its_line(parts, said, function):
    """Whether in a round or in a check, which first looks at grants itself."""
    policy, snapshot = replace(SKIP, **parts), snapshot_of("1x4xT4", *JOBS, now=5)
    with pytest.raises(PlanError) as caught:
        decided(snapshot, policy)
    assert str(caught.value).startswith(f"policy 'mine', {said}")
    assert str(caught.value).endswith(f" ({line_of(function)})")
    with pytest.raises(PolicyViolation) as found:
        check_decision(snapshot, policy)
    assert found.value.what in (str(caught.value), "job 0 gets GPU 0 of node 9: no such GPU")


def test_a_place_part_that_raises_in_a_check_is_named_with_its_own_line():
    policy = replace(SKIP, place=PlaceOf(lambda _: 1 / 0))
    with pytest.raises(PolicyViolation) as found:
        check_decision(snapshot_of("1x4xT4", *JOBS, now=5), policy)
    first = inspect.getsourcelines(test_a_place_part_that_raises_in_a_check_is_named_with_its_own_line)[1]
    assert found.value.what == f"policy 'mine', place: ZeroDivisionError: division by zero ({__file__}:{first + 1})"


def test_a_plan_that_several_parts_have_made_is_refused_with_the_lines_of_all():
    policy = replace(SKIP, **sizes(global_batch=ONES), order=OrderOf(np.arange(2)))
    snapshot = snapshot_of("1x4xT4", *JOBS, now=5)
    with pytest.raises(PlanError) as caught:
        decided(snapshot, policy)
    lines = f"{line_of(OrderOf.__call__)} (order) or {line_of(SizeOf.__call__)} (size)"
    assert str(caught.value).startswith("policy 'mine': job 0 trains with batches")
    assert str(caught.value).endswith(f"; see {lines}")
    with pytest.raises(PolicyViolation) as found:
        check_decision(snapshot, policy)
    assert found.value.what == str(caught.value)
