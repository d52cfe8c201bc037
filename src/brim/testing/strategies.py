"""Hypothesis strategies: clusters, traces, snapshots, faults and overheads that shrink to readable examples.

They need the ``hypothesis`` package (``pip install 'brim[check]'``); in brim, only a policy check imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from brim.core.cluster import UNLIMITED, Cluster, NodeGroup, cluster_of
from brim.core.events import Report, Sample
from brim.core.lifecycle import Phase
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE, Trace
from brim.sim.faults import Drain, Faults
from brim.sim.overheads import Overheads
from brim.testing.builders import Job, small_trace, snapshot_of
from brim.testing.free_lists import FreeLists
from brim.units import WHOLE_GPU

TYPES = ("T4", "V100", "A100")
SHARES = (WHOLE_GPU, 500, 250, 700)
LIGHT_MILLI = 100
FIGURES = ((NONE, NONE), (LIGHT_MILLI, 1_000), (LIGHT_MILLI, 6_000), (400, 6_000), (950, NONE))
"""Utilisation and memory of GPUs: jobs of which nothing is known, jobs that can share, and one that uses all."""
USERS = ("ann", "bob", "eve")
MODELS = ("", "resnet", "bert")
MEM_STEP_MIB = 1024
CPU_STEP_MILLI = 1000


@st.composite
def clusters(
    draw: st.DrawFn, *, groups_max: int = 3, nodes_max: int = 3, gpus_max: int = 4, limits: bool = True
) -> Cluster:
    """Up to ``groups_max`` node groups of one to three GPU types; with ``limits``, cores and memory may bind."""
    groups = draw(st.integers(1, groups_max))
    return cluster_of(tuple(_group(draw, nodes_max, gpus_max, limits) for _ in range(groups)))


def _group(draw: st.DrawFn, nodes_max: int, gpus_max: int, limits: bool) -> NodeGroup:
    cpu = draw(st.sampled_from((UNLIMITED, 2_000, 4_000, 16_000))) if limits else UNLIMITED
    mem = draw(st.sampled_from((UNLIMITED, 2_048, 8_192))) if limits else UNLIMITED
    return NodeGroup(
        count=draw(st.integers(1, nodes_max)), gpus=draw(st.integers(1, gpus_max)),
        gpu_type=draw(st.sampled_from(TYPES)), cpu_milli=cpu, mem_mib=mem,
    )


@st.composite
def asks(draw: st.DrawFn, cluster: Cluster, *, shares: bool = True, limits: bool = True) -> Job:
    """A job whose request the empty cluster can always satisfy."""
    types = cluster.gpu_types
    gpu_type = draw(st.sampled_from(("", *types)))
    most = max(FreeLists.of_cluster(cluster).gpus_of(name) for name in ((gpu_type,) if gpu_type else types))
    util, mem_mib = draw(st.sampled_from(FIGURES))
    one = Job(
        gpus=draw(st.integers(1, most)), gpu_type=gpu_type,
        share=draw(st.sampled_from(SHARES)) if shares and util != LIGHT_MILLI else WHOLE_GPU,
        gpu_util=util, gpu_mem=mem_mib,
        cpu=draw(st.integers(0, 2)) * CPU_STEP_MILLI if limits else 0,
        mem=draw(st.integers(0, 2)) * MEM_STEP_MIB if limits else 0,
    )
    if FreeLists.of_cluster(cluster).fits(one):
        return one
    bare = replace(one, cpu=0, mem=0)
    return bare if FreeLists.of_cluster(cluster).fits(bare) else replace(bare, gpus=1)


@st.composite
def jobs_of(
    draw: st.DrawFn, cluster: Cluster, *, jobs_max: int = 10, run_s_max: int = 60, at_s_max: int = 60,
    shares: bool = True, limits: bool = True, dependencies: bool = True,
) -> list[Job]:
    """Jobs of a trace: equal submission times, jobs of no length, limits below and above the truth, dependencies."""
    times = [0, *draw(st.lists(st.integers(0, at_s_max), max_size=jobs_max - 1))]
    found: list[Job] = []
    for row, at in enumerate(times):
        run = draw(st.integers(0, run_s_max))
        waits = dependencies and row > 0 and draw(st.integers(0, 5)) == 0
        found.append(replace(
            draw(asks(cluster, shares=shares, limits=limits)), at=at, run=run, user=draw(st.sampled_from(USERS)),
            limit=draw(st.sampled_from((None, run + 1, 2 * run + 1, run / 2 + 1))),
            after=f"j{draw(st.integers(0, row - 1))}" if waits else "",
            delay=draw(st.integers(0, 20)) if waits else 0,
        ))
    return found


@st.composite
def traces(draw: st.DrawFn, cluster: Cluster, *, jobs_max: int = 10, run_s_max: int = 60, at_s_max: int = 60) -> Trace:
    """A trace that the cluster could run."""
    return small_trace(*draw(jobs_of(cluster, jobs_max=jobs_max, run_s_max=run_s_max, at_s_max=at_s_max)))


@st.composite
def elastic(draw: st.DrawFn, one: Job, cluster: Cluster) -> Job:
    """The same job with ranges of GPUs and batch around what it asks for, or unchanged: rigid."""
    if draw(st.integers(0, 3)) == 0:
        return one
    most = max(FreeLists.of_cluster(cluster).gpus_of(name) for name in cluster.gpu_types)
    batch_min = draw(st.sampled_from((1, 8, 32)))
    batch_max = batch_min * draw(st.integers(1, 8)) + draw(st.integers(0, 3))
    high = max(one.gpus, min(draw(st.integers(one.gpus, one.gpus + most)), batch_max))
    return replace(
        one, gpus_min=draw(st.integers(1, one.gpus)), gpus_max=high,
        batch=draw(st.integers(batch_min, batch_max)), batch_min=batch_min, batch_max=batch_max, local_batch_min=1,
        local_batch_max=draw(st.sampled_from((16, 64))), model=draw(st.sampled_from(MODELS)),
    )


@st.composite
def elastic_jobs_of(
    draw: st.DrawFn, cluster: Cluster, *, jobs_max: int = 6, run_s_max: int = 60, at_s_max: int = 60, per_s: int = 1
) -> list[Job]:
    """``jobs_of``, most of them elastic; all times are divided by ``per_s``."""
    jobs = draw(jobs_of(cluster, jobs_max=jobs_max, run_s_max=run_s_max, at_s_max=at_s_max))
    return [
        replace(draw(elastic(one, cluster)), at=one.at / per_s, run=one.run / per_s, delay=one.delay / per_s)
        for one in jobs
    ]


@st.composite
def reports(draw: st.DrawFn, gpus: int) -> Report:
    """A report of a job on ``gpus`` GPUs."""
    knows = draw(st.booleans())
    steps = draw(st.lists(
        st.tuples(st.integers(1, gpus), st.integers(1, gpus), st.integers(1, 32), st.integers(1, 8)), max_size=3,
    ))
    return Report(
        samples_done=draw(st.integers(0, 10_000)) / 4, samples_per_s=draw(st.integers(0, 400)) / 4,
        grad_var=draw(st.integers(0, 40)) / 8 if knows else math.nan,
        grad_sqr=draw(st.integers(1, 40)) / 8 if knows else math.nan,
        seen=tuple(Sample(min(nodes, many), many, local, step / 8, step / 32) for nodes, many, local, step in steps),
    )


@st.composite
def placed_jobs(
    draw: st.DrawFn, cluster: Cluster, *, jobs_max: int = 8, now_s: int = 100, elastic_too: bool = False
) -> list[Job]:
    """Jobs in every phase; a job that holds GPUs holds a whole gang of one type at any place where it fits.

    With ``elastic_too`` most jobs are elastic, hold any number of GPUs and batch in their ranges, and have reported.
    """
    free_lists = FreeLists.of_cluster(cluster)
    found: list[Job] = []
    for row in range(draw(st.integers(0, jobs_max))):
        at = draw(st.integers(0, now_s))
        one = replace(
            draw(asks(cluster)), at=at, user=draw(st.sampled_from(USERS)),
            limit=draw(st.sampled_from((None, 10, 60, 200))),
        )
        if elastic_too:
            one = draw(elastic(one, cluster))
        phase = draw(st.sampled_from((Phase.PENDING, Phase.RUNNING, Phase.STARTING, Phase.STOPPING, Phase.HELD)))
        if phase is Phase.HELD and row:
            one = replace(one, phase=phase, after=f"j{draw(st.integers(0, row - 1))}")
        elif phase in (Phase.RUNNING, Phase.STARTING, Phase.STOPPING):
            sized = one
            if one.gpus_max != NONE:
                sized = replace(one, gpus=draw(st.integers(one.gpus_min, one.gpus_max)))
            gpus = _somewhere(draw, free_lists, sized)
            if gpus:
                one = replace(one, phase=phase, on=gpus, start=draw(st.integers(at, now_s)))
                if one.gpus_max != NONE:
                    one = replace(
                        one, batch_now=draw(st.integers(one.batch_min, one.batch_max)),
                        report=draw(reports(len(gpus))) if draw(st.booleans()) else None,
                    )
                free_lists.take(one, gpus)  # a stopping job's GPUs stay taken, so that the history is possible
        found.append(one)
    return found


def _somewhere(draw: st.DrawFn, free_lists: FreeLists, one: Job) -> Sequence[tuple[int, int]]:
    """Any gang of free GPUs, not necessarily a good one; empty if there is none."""
    types = [
        name for name in sorted(set(free_lists.types)) if one.gpu_type in ("", name) and free_lists.fits(one, name)
    ]
    if not types:
        return ()
    places = free_lists.places(one, draw(st.sampled_from(types)))
    return sorted(draw(st.permutations(places))[: one.gpus]) if len(places) > one.gpus else places


@st.composite
def snapshots(
    draw: st.DrawFn, *, cluster: Cluster | None = None, jobs_max: int = 8, broken_nodes: bool = True,
    elastic_too: bool = False,
) -> Snapshot:
    """A snapshot with valid grants; nodes may be draining, and empty nodes may be down."""
    where = draw(clusters()) if cluster is None else cluster
    jobs = draw(placed_jobs(where, jobs_max=jobs_max, elastic_too=elastic_too))
    draining: list[int] = []
    down: list[int] = []
    if broken_nodes:
        used = {node for one in jobs if one.phase is not Phase.STOPPING for node, _ in one.on}
        nodes = range(where.num_nodes)
        draining = [node for node in nodes if draw(st.integers(0, 7)) == 0]
        down = [node for node in nodes if node not in used and draw(st.integers(0, 7)) == 0]
    return snapshot_of(where, *jobs, now=100, draining=draining, down=down)


@st.composite
def overheads(draw: st.DrawFn) -> Overheads:
    """Costs from 0 to the length of a job."""
    cost_ms = st.sampled_from((0, 1, 2_000, 30_000))
    return Overheads(
        start_ms=draw(cost_ms), save_ms=draw(cost_ms), restart_ms=draw(cost_ms),
        checkpoint_ms=draw(st.sampled_from((1_000, 10_000, 60_000))),
    )


@st.composite
def faults(draw: st.DrawFn, cluster: Cluster) -> Faults:
    """Faults under which every job still ends: random ones several run times apart, and planned drains."""
    drains = tuple(
        Drain(nodes=(node,), start_ms=start * 1_000, end_ms=(start + span) * 1_000)
        for node, start, span in draw(st.lists(
            st.tuples(st.integers(0, cluster.num_nodes - 1), st.integers(0, 90), st.integers(1, 60)), max_size=2,
        ))
    )
    return Faults(
        job_mtbf_ms=draw(st.sampled_from((0, 60_000))), attempts_max=draw(st.integers(1, 3)),
        node_mtbf_ms=draw(st.sampled_from((0, 400_000))), repair_ms=draw(st.sampled_from((1_000, 30_000))),
        drains=drains,
    )
