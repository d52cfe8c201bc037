"""Padding jobs do not change what regular jobs get, and a part that takes them may give GPUs to no others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Preempt, Resize, Start, setting_in
from brim.core.arrays import frozen, replaced
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.joins import JoinTimes
from brim.core.replay import Replay
from brim.core.setting import Setting
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.core.trace import JobClass
from brim.engine.padding import hidden
from brim.engine.round import RoundResult, run_round
from brim.engine.scheduler import Scheduler
from brim.errors import PlanError
from brim.policies.fill.padding import Padding
from brim.policies.presets import PRESETS, find_policy
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay
from brim.testing import strategies
from brim.testing.builders import Job, job, small_trace, snapshot_of

CLUSTER = "2x3xT4"
PADDING = JobClass.PADDING
IN_A_ROUND = sorted(name for name, policy in PRESETS.items() if name != "elastic-random" and not policy.takes_padding)
"""Not those with padding of their own, nor the one which draws its batches by the number of a job: another job changes
that."""
IN_A_REPLAY = ("fifo", "backfill", "tiresias", "tiresias-pollux", "fair", "elastic", "goodput")


@dataclass(frozen=True)
class Greedy:
    """A fill part that takes padding jobs, and gives a free GPU to another job."""

    takes_padding: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> Grants:
        """See ``Fill``."""
        row = int(np.flatnonzero(~np.isin(np.arange(len(snapshot.jobs)), grants.job))[0])
        return Grants(
            job=np.append(grants.job, row), node=np.append(grants.node, 0), gpu=np.append(grants.gpu, 0),
            share_milli=np.append(grants.share_milli, 1000), why=grants.why, blocker=grants.blocker,
        )


def test_a_part_that_takes_padding_jobs_gives_gpus_to_no_others() -> None:
    snapshot = snapshot_of("1x2xT4", job(gpus=3, gpus_max=3, gpus_min=1), job(at=1), now=5)
    policy = replace(PRESETS["fifo"], fill=Greedy())
    with pytest.raises(PlanError, match="policy 'fifo', fill: job 0 is no padding job"):
        run_round(replaced(snapshot), Beliefs(), policy)


def test_a_regular_job_takes_the_gpu_of_a_padding_job_which_shrinks_and_a_rigid_one_is_preempted() -> None:
    policy = find_policy("fifo+padding")
    elastic = {"gpus_min": 1, "gpus_max": 3, "batch": 12}
    shrinks = run_round(snapshot_of(
        "1x3xT4", job(on=[(0, 0), (0, 1), (0, 2)], job_class=PADDING, revocable=True, gpus=3, **elastic), job(at=1),
        now=60,
    ), Beliefs(), policy)
    resize, start = shrinks.plan
    assert isinstance(resize, Resize)
    assert isinstance(start, Start)
    assert set(resize.setting.gpus) == {(0, 0), (0, 1), (0, 2)} - set(start.setting.gpus)
    assert resize.setting.batch == 12
    assert resize.setting.revocable
    assert not start.setting.revocable
    leaves = run_round(snapshot_of(
        "1x2xT4", job(on=[(0, 0), (0, 1)], job_class=PADDING, revocable=True), job(at=1), now=60,
    ), Beliefs(), policy)
    assert [type(action) for action in leaves.plan] == [Preempt, Start]


def test_without_a_part_that_takes_them_padding_jobs_are_ordinary_jobs() -> None:
    snapshot = snapshot_of("1x1xT4", job(job_class=PADDING), job(at=1), now=5)
    (start,) = run_round(snapshot, Beliefs(), PRESETS["fifo"]).plan
    assert isinstance(start, Start)
    assert start.job == 0
    assert not start.setting.revocable


def test_jobs_that_wait_are_offered_gpus_in_turn_and_not_all_of_them_at_every_step() -> None:
    offered: list[int] = []

    class Counting(Padding):
        def _offer(self, row: int, *rest: Any) -> Any:
            offered.append(row)
            return super()._offer(row, *rest)

    snapshot = snapshot_of("4x5xT4", *(job(at=float(at), job_class=PADDING) for at in range(40)), now=60)
    result = run_round(snapshot, Beliefs(), replace(find_policy("fifo+padding"), fill=Counting()))
    assert [action.job for action in result.plan if isinstance(action, Start)] == list(range(20))
    assert len(offered) <= 80


@st.composite
def queues(draw: st.DrawFn) -> Snapshot:
    """Few nodes, some of them asleep, padding jobs of a few kinds of which some run, and regular ones."""
    cluster = draw(st.sampled_from(["2x3xT4", "1x4xT4:cpus=6,mem=8GiB+1x2xP100", "3x2xT4:cpus=8"]))
    kinds = draw(st.lists(st.builds(
        dict, gpus=st.integers(1, 3), gpus_max=st.integers(3, 6), cpu=st.sampled_from([0, 1000, 2000]),
        mem=st.sampled_from([0, 2048]), job_class=st.just(PADDING), share=st.sampled_from([1000, 1000, 500]),
        gpu_type=st.sampled_from([None, "T4"]),
    ).map(lambda kind: kind | {"gpus_min": 1, "batch": 12}), min_size=1, max_size=3))
    jobs = [job(at=float(at), **draw(st.sampled_from(kinds))) for at in range(draw(st.integers(1, 14)))]
    jobs += [job(at=20.0, gpus=draw(st.integers(1, 3))) for _ in range(draw(st.integers(0, 2)))]
    if draw(st.booleans()):
        jobs[0] = job(at=0.0, on=[(0, 0)], revocable=True, **(kinds[0] | {"gpus": 1, "share": 1000}))
    snapshot = snapshot_of(cluster, *jobs, now=60)
    total = len(snapshot.jobs)
    costs = draw(st.lists(st.sampled_from([-1, 200, 30_000, 90_000]), min_size=5 * total, max_size=5 * total))
    starts = -np.sort(-np.array(costs, dtype=np.int64).reshape(total, 5), axis=1)
    joins = JoinTimes(starts_ms=starts, growths_ms=starts // 2, cluster_starts_ms=np.array([1_000, 40_000]),
                      cluster_growths_ms=np.array([500]))
    return replaced(snapshot, joins=joins)


@given(snapshot=queues(), data=st.data(), join_ratio=st.sampled_from([0.0, 1.0, 2.0]))
def test_jobs_that_are_alike_get_what_they_would_if_each_was_asked(
    snapshot: Snapshot, data: st.DataObject, join_ratio: float
) -> None:
    gpus = int(snapshot.nodes.gpus.sum())
    rest_ms = np.array(data.draw(st.lists(st.sampled_from([1.0, 5e3, 5e4, 1e5, np.inf]), min_size=gpus, max_size=gpus)))
    beliefs = replaced(Beliefs(), gaps=type("Drawn", (), {"rest_ms": lambda *_: rest_ms})())
    policy = replace(find_policy("backfill"), fill=Padding(join_ratio))
    together = run_round(snapshot, beliefs, policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brim.policies.fill.padding._alike", lambda rows, *_: list(np.arange(len(rows))[:, None]))
        alone = run_round(snapshot, beliefs, policy)
    assert together.plan == alone.plan
    for column in ("why", "blocker"):
        np.testing.assert_array_equal(getattr(together, column), getattr(alone, column))


def actions(result: RoundResult, regular: tuple[int, ...]) -> list[object]:
    """What a round decides about some jobs, which are numbered in their order; which GPUs of a node is left out."""
    number = {job_id: row for row, job_id in enumerate(regular)}
    return [
        (type(action).__name__, number[action.job], action.attempt, nodes_in(setting_in(action)))
        for action in result.plan if action.job in number
    ]


def nodes_in(setting: Setting | None) -> object:
    """A setting without the numbers of its GPUs."""
    return setting and (
        [(rank.node, rank.share_milli, rank.loader_workers) for rank in setting.ranks], setting.batch, setting.revocable
    )


def drawn_jobs(data: st.DataObject) -> list[Job]:
    """Jobs at the same six GPUs, some of them padding jobs; those that run hold GPUs of their own."""
    places = data.draw(st.permutations([(node, gpu) for node in range(2) for gpu in range(3)]))
    jobs: list[Job] = []
    for row in range(data.draw(st.integers(1, 6))):
        job_class = data.draw(st.sampled_from((JobClass.REGULAR, PADDING)))
        size = data.draw(st.integers(1, 3))
        on, at, run = (), float(row), data.draw(st.sampled_from((10.0, 500.0)))
        if data.draw(st.booleans()) and len(places) >= size:
            on, places = tuple(sorted(places[:size])), places[size:]
        jobs.append(job(
            at=at, gpus=size, on=on, job_class=job_class, limit=run, revocable=bool(on) and job_class == PADDING,
            gpus_min=1 if job_class == PADDING else -1, gpus_max=4 if job_class == PADDING else -1, batch=8,
        ))
    return jobs


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", IN_A_ROUND)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_a_round_decides_about_regular_jobs_as_if_there_were_no_padding(name: str, data: st.DataObject) -> None:
    jobs = drawn_jobs(data)
    regular = [one for one in jobs if one.job_class != PADDING]
    policy = find_policy(f"{name}+padding")
    with_padding = run_round(snapshot_of(CLUSTER, *jobs, now=600), Beliefs(), policy)
    ids = tuple(row for row, one in enumerate(jobs) if one.job_class != PADDING)
    alone = run_round(snapshot_of(CLUSTER, *regular, now=600), Beliefs(), policy)
    assert actions(with_padding, ids) == actions(alone, tuple(range(len(regular))))
    plain = run_round(snapshot_of(CLUSTER, *regular, now=600), Beliefs(), PRESETS[name])
    assert alone.plan == plain.plan




@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["backfill", "tiresias", "goodput"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_whatever_jobs_ask_for_padding_stays_within_what_is_left(name: str, data: st.DataObject) -> None:
    """A round checks its plan: GPUs, cores and memory of every node, whole gangs, and allowed sizes."""
    snapshot = data.draw(strategies.snapshots(jobs_max=8, elastic_too=True))
    size = len(snapshot.jobs)
    classes = np.array(data.draw(st.lists(st.sampled_from((0, 2)), min_size=size, max_size=size)), dtype=np.int64)
    snapshot = replaced(snapshot, jobs=replaced(snapshot.jobs, job_class=frozen(classes)))
    policy = find_policy(f"{name}+padding")
    result = run_round(snapshot, Beliefs(), policy)
    alone = run_round(hidden(snapshot, policy).view, Beliefs(), PRESETS[name])
    regular = tuple(snapshot.jobs.id[classes == 0].tolist())
    assert actions(result, regular) == actions(alone, regular)
    assert result.grants.revocable_jobs(size)[classes == 2].tolist() == np.isin(
        np.flatnonzero(classes == 2), result.grants.job
    ).tolist()


def test_gaps_are_looked_at_again_only_while_a_gpu_is_free_that_a_padding_job_could_use() -> None:
    """The only GPU was idle for 3 s three times, too short to join: refused until the gap has lasted longer."""
    scheduler = Scheduler(parse_cluster("1x1xT4"), find_policy("fifo+padding"), Beliefs(), users=("ann",))
    assert scheduler.state.gaps is not None
    scheduler.state.gaps.past_ms[0, :3] = 3_000
    scheduler.observe(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=0, gpus=1, job_class=PADDING)))
    looks = list[int]()
    while not looks or not scheduler.decide(looks[-1]).plan:
        due_ms = scheduler.due_ms()
        assert due_ms is not None
        looks.append(due_ms)
    assert looks == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000], "from 30 s on, 30 s more are expected"
    assert scheduler.due_ms() is None, "it has all that there is"
    scheduler.observe(Event(33_500, Kind.STARTED, 0))
    scheduler.decide(scheduler.due_ms() or 0)
    assert scheduler.due_ms() is None


def columns_of(found: Replay, names: tuple[str, ...]) -> dict[str, list[int]]:
    """Columns of the jobs of these names."""
    rows = [found.trace.job_id.index(name) for name in names]
    columns = ("first_start_ms", "finish_ms", "service_gpu_ms", "preemptions", "restarts", "resizes")
    return {column: getattr(found, column)[rows].tolist() for column in columns}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", IN_A_REPLAY)
@given(
    regular=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300), st.integers(1, 4)), min_size=1, max_size=8),
    padding=st.lists(st.tuples(st.integers(0, 300), st.integers(50, 900), st.integers(1, 3)), min_size=1, max_size=3),
)
@settings(max_examples=6, deadline=None)
def test_a_replay_gives_regular_jobs_the_same_with_padding_that_leaves_at_once(
    name: str, regular: list[tuple[int, int, int]], padding: list[tuple[int, int, int]]
) -> None:
    ours = [job(at=at, run=run, gpus=gpus, limit=run, name=f"r{row}") for row, (at, run, gpus) in enumerate(regular)]
    theirs = [
        job(at=at, run=run, gpus=gpus, limit=run, name=f"p{row}", job_class=PADDING, user="p")
        for row, (at, run, gpus) in enumerate(padding)
    ]
    first = job(at=0, run=1, name="first")  # time 0 is the same with and without padding
    names = tuple(one.name for one in (first, *ours))
    costs = ReplaySettings(overheads=Overheads(save_ms=0))
    cluster = parse_cluster(CLUSTER)
    alone = replay(small_trace(first, *ours), cluster, PRESETS[name], costs)
    beside = replay(small_trace(first, *ours, *theirs), cluster, find_policy(f"{name}+padding"), costs)
    assert columns_of(beside, names) == columns_of(alone, names)
    assert min(beside.finish_ms) >= 0
