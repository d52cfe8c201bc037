"""Snapshots, plans and traces as text, for the messages of a broken rule."""

from __future__ import annotations

from brim.core.actions import Action, setting_in
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.replay import Replay
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE, Trace
from brim.engine.round import RoundResult
from brim.testing.free_lists import pairs_by_job


def show(result: RoundResult) -> str:
    """Describe a plan."""
    return "; ".join(map(show_action, result.plan)) or "nothing"


def show_action(action: Action) -> str:
    """Describe an action."""
    said = f"{type(action).__name__.lower()} job {action.job}"
    setting = setting_in(action)
    if setting is not None:
        said += f" on {', '.join(f'{rank.node}.{rank.gpu}' for rank in setting.ranks)}"
        said += f" with batch {setting.batch}" if setting.batch != NONE else ""
    return said


def show_order(result: RoundResult) -> str:
    """List the jobs of a round, first served first."""
    return ", ".join(str(job) for job in result.job[result.order].tolist()) or "none"


def show_memory(result: RoundResult) -> str:
    """Describe what the parts remember."""
    return "; ".join(f"{socket} {memory.tolist()}" for socket, memory in sorted(result.memory.items())) or "nothing new"


def show_reasons(result: RoundResult) -> str:
    """Describe why each job waits, and behind which job."""
    return ", ".join(
        f"job {job} {Reason(why).name}" + (f" behind job {blocker}" if blocker != NONE else "")
        for job, why, blocker in zip(*(column.tolist() for column in result.reasons), strict=True)
    )


def describe(snapshot: Snapshot) -> str:
    """Describe a snapshot: nodes, then jobs."""
    nodes = snapshot.nodes
    lines = ["nodes (type, GPUs):"]
    for node in range(len(nodes)):
        state = "" if nodes.is_open[node] else ", draining" if nodes.up[node] else ", down"
        lines.append(f"  {node}: {snapshot.gpu_types[nodes.gpu_type[node]]}, {nodes.gpus[node]}{state}")
    lines.append(f"jobs at {snapshot.now_ms / 1000:g} s:")
    held = pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)
    for row in range(len(snapshot.jobs)):
        one = snapshot.jobs[row]
        has = " on " + ", ".join(f"{node}.{gpu}" for node, gpu in held[row]) if row in held else ""
        share = f" at {one.share_milli / 10:g} %" if one.share_milli < 1000 else ""
        kind = f" {snapshot.gpu_types[one.gpu_type]}" if one.gpu_type >= 0 else ""
        if one.size_list != NONE:
            kind += f" (of {' or '.join(map(str, snapshot.jobs.sizes_of(row)))})"
        elif one.gpus_max != one.gpus_min:
            kind += f" (of {one.gpus_min} to {one.gpus_max})"
        extras = f", {one.cpu_milli} mcpu and {one.mem_mib} MiB per GPU" if one.cpu_milli or one.mem_mib else ""
        batch = progress = ""
        if one.batch_min != NONE:
            batch = f"batch {one.batch_now} (asked {one.batch}, {one.batch_min} to {one.batch_max}), "
        if one.samples_per_s:
            progress = f", did {one.samples_done:g} samples at {one.samples_per_s:g}/s"
        lines.append(
            f"  {name_of(snapshot, row)}: {Phase(one.phase).name.lower()}, {one.gpus}{kind} GPU{share}{has}{extras}, "
            f"{batch}submitted {one.submit_ms / 1000:g} s by {snapshot.users.name[one.user]}, "
            f"ran {one.run_ms / 1000:g} s{progress}"
        )
    return "\n".join(lines)


def describe_trace(replay: Replay) -> str:
    """Describe the trace and the cluster of a replay."""
    return describe_jobs(replay.trace, str(replay.cluster))


def describe_jobs(trace: Trace, cluster: str) -> str:
    """Describe a trace and a cluster."""
    lines = [f"cluster {cluster}, jobs:"]
    for row, name in enumerate(trace.job_id):
        share = f" at {trace.share_milli[row] / 10:g} %" if trace.share_milli[row] < 1000 else ""
        kind = f" {trace.gpu_types[trace.gpu_type[row]]}" if trace.gpu_type[row] >= 0 else ""
        user = f" by {trace.users[trace.user[row]]}" if trace.user[row] >= 0 else ""
        after = f" after job {trace.job_id[trace.after[row]]}" if trace.after[row] >= 0 else ""
        lines.append(
            f"  {name}: submitted {trace.submit_ms[row] / 1000:g} s{user}, {trace.gpus[row]}{kind} GPU{share} "
            f"for {trace.run_ms[row] / 1000:g} s{after}"
        )
    return "\n".join(lines)


def name_of(snapshot: Snapshot, row: int) -> str:
    """Name the job of a row, which may not exist."""
    return f"job {snapshot.jobs.id[row]}" if 0 <= row < len(snapshot.jobs) else f"row {row}"
