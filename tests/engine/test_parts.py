"""What a round demands of the parts of a policy, and what it carries of their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import parse_cluster
from brim.core.reasons import Reason
from brim.core.tables import Grants
from brim.engine.explain import explain
from brim.engine.journal import Journal
from brim.engine.round import run_round
from brim.errors import ConfigError, PlanError
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS
from brim.policies.sockets import Sizes
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace, snapshot_of

from .plans import start, tune

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))
LIMITS = {"gpus_min": 2, "gpus_max": 4, "batch": 8, "batch_min": 8, "batch_max": 64, "local_batch_max": 64}


@dataclass(frozen=True)
class Fixed:
    """A place part that grants the same whatever it is asked: rows of (job, node, gpu, share)."""

    shares_gpus = True
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
    (((5, 0, 0, 1000),), "expected rows of the job table, which has 1"),
    (((-1, 0, 0, 1000),), "expected rows of the job table, which has 1"),
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
    with pytest.raises(PlanError, match=r"policy 'mine': plan gives job 0 other GPUs.*moves_running = True"):
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
    assert result.why.tolist() == [Reason.RUNS, Reason.RUNS]
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
    assert decided(snapshot, granting()).why.tolist() == [Reason.NOT_NOW]


# -- a share chosen by the place part -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halves(Consolidate):
    """Two jobs to a GPU, in the order of the queue, whatever they ask."""

    shares_gpus = True

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
    settings = ReplaySettings(gap_ms=0)
    outcome = replay(trace, parse_cluster("1x1xT4"), replace(SKIP, place=Halves()), settings, journal=journal)
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


def test_another_share_of_the_same_gpu_is_a_tune_that_needs_no_declared_change_of_running_jobs():
    snapshot = snapshot_of("1x1xT4", job(on=[(0, 0)], gpus=1), job(), now=5)
    policy = granting((0, 0, 0, 500), (1, 0, 0, 500))
    assert not policy.changes_running
    assert decided(snapshot, policy).plan.actions == (
        tune(0, 1, ((0, 0),), share=500), start(1, 1, ((0, 0),), share=500),
    )


@pytest.mark.parametrize("held", [((0, 0),), None])
def test_a_part_that_does_not_declare_that_jobs_share_gpus_grants_what_is_asked(held):
    """Half of a GPU that nobody else has would be half of the GPU hours, with the whole speed."""
    snapshot = snapshot_of("1x1xT4", job(on=held, gpus=1) if held else job(), now=5)
    said = "job 0 is granted 50 % of a GPU, it asks for 100 %: a part that lets jobs share GPUs has shares_gpus = True"
    with pytest.raises(PlanError, match=f"policy 'mine', place: {said}"):
        decided(snapshot, replace(SKIP, place=type("Mine", (Fixed,), {"shares_gpus": False})(((0, 0, 0, 500),))))


def test_shares_above_the_whole_are_refused():
    snapshot = snapshot_of("1x1xT4", job(), job(), now=5)
    with pytest.raises(PlanError, match="GPU 0 of node 0 is granted 130 % of itself"):
        decided(snapshot, granting((0, 0, 0, 700), (1, 0, 0, 600)))


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


@pytest.mark.parametrize("why", [-1, 15, 2**62])
def test_a_reason_that_is_no_code_of_why_is_refused(why):
    with pytest.raises(PlanError, match=f"policy 'mine', place: expected codes of Why, 0 to 14, .*found int64 .{why}"):
        decided(snapshot_of("1x2xT4", job(), now=5), replace(SKIP, place=Because(why)))


@dataclass(frozen=True)
class Unsigned:
    """The order of arrival, as unsigned integers."""

    def __call__(self, snapshot, beliefs):
        return np.arange(len(snapshot.jobs), dtype=np.uint64)


def test_unsigned_integers_are_refused_as_such():
    with pytest.raises(PlanError, match=r"policy 'mine', order: expected an array of 1 .* found uint64"):
        decided(snapshot_of("1x2xT4", job(), now=5), replace(SKIP, order=Unsigned()))
