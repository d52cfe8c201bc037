"""The assumptions behind the result of a replay, as sentences."""

from __future__ import annotations

from brim.core.cluster import Cluster
from brim.core.trace import NONE, JobClass, Trace
from brim.sim.faults import Faults
from brim.sim.overheads import Overheads
from brim.sim.specs import groups_stand_for_users
from brim.sim.truths.truth import Truth
from brim.units import MS_PER_S, counted, show_duration


def assumptions(
    trace: Trace, cluster: Cluster, truth: Truth, overheads: Overheads, faults: Faults, gap_ms: int,
    gap_job_us: int = 0,
) -> tuple[str, ...]:
    """List the assumptions of the replay."""

    def seconds(ms: int) -> str:
        return show_duration(ms / 1000)

    said = [f"The trace is synthetic ({trace.name})."] if trace.synthetic else []
    said += truth.sentences() + describe(trace, cluster)
    said.append(
        f"A preempted job holds its GPUs for {seconds(overheads.save_ms)} to save and loses no work; a restart takes "
        f"{seconds(overheads.restart_ms)}, a first start {seconds(overheads.start_ms)}."
    )
    fewer = ", or less while few jobs wait" if gap_job_us else ""
    said.append(
        f"A scheduling decision takes no time in the replay; two decisions are at least {seconds(gap_ms)} apart{fewer}."
    )
    if faults.job_mtbf_ms:
        said.append(
            f"Jobs fail every {seconds(faults.job_mtbf_ms)} of running on average, are tried {faults.attempts_max} "
            f"times, and fall back to a checkpoint at most {seconds(overheads.checkpoint_ms)} old."
        )
    if faults.node_mtbf_ms:
        said.append(
            f"Each node fails every {seconds(faults.node_mtbf_ms)} on average and is away for "
            f"{seconds(faults.repair_ms)}; its jobs fall back to a checkpoint at most "
            f"{seconds(overheads.checkpoint_ms)} old."
        )
    if faults.drains:
        said.append(f"Planned drains of nodes: {sum(len(drain.nodes) for drain in faults.drains)}.")
    return tuple(said)


def describe(trace: Trace, cluster: Cluster) -> list[str]:
    """List the assumptions that all truths make about a trace on a cluster."""
    said = []
    if len(cluster.gpu_types) == 1 and (trace.gpu_type != NONE).any():
        (only,) = cluster.gpu_types
        why = f"every GPU is {only}" if only else "the cluster's GPUs have no named type"
        said.append(f"The GPU types that jobs ask for are ignored: {why}.")
    if groups_stand_for_users(trace):
        said.append("The trace names no users: fair shares and run-time histories use its groups instead.")
    elif not trace.users:
        said.append("The trace names no users: fair shares and run-time histories treat all jobs as one user's.")
    waiting = int((trace.after != NONE).sum())
    if waiting:
        said.append(
            "A job that may start only after another has ended, and a delay, waits for that too: it counts in its wait "
            f"and its completion time ({waiting:,} of {len(trace):,} jobs)."
        )
    short = int(((trace.run_ms >= 0) & (trace.run_ms < MS_PER_S)).sum())
    if short:
        said.append(f"{counted(short, 'job')} ran for less than a second.")
    asked = (trace.priority != 0) | (trace.job_class != JobClass.REGULAR) | (trace.relative_deadline_ms != NONE)
    if asked.any():
        said.append(
            f"Jobs with a priority, a class or a deadline: {int(asked.sum()):,}. Policies of brim read no "
            "priorities and no class urgent; those with padding read class padding, and those that let jobs share GPUs "
            "read deadlines."
        )
    return said
