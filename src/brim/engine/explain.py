"""Reasons as sentences: why a job waits, and what would let it run."""

from __future__ import annotations

from brim.core.actions import setting_in
from brim.core.reasons import Reason
from brim.core.setting import ON_CPU
from brim.core.snapshot import Snapshot
from brim.core.sums import CORE_MILLI
from brim.core.tables import JobRow
from brim.core.trace import NONE
from brim.engine.round import RoundResult
from brim.units import WHOLE_GPU, counted


def explain(snapshot: Snapshot, result: RoundResult, job: int) -> str:
    """Explain in a sentence why a job runs or waits after a round.

    Args:
        snapshot: The snapshot on which the round decided.
        result: The result of the round.
        job: Job id; must be in the snapshot.
    """
    rows = {job_id: row for row, job_id in enumerate(result.job.tolist())}
    row = rows[job]
    me = snapshot.jobs[row]
    why, blocker = Reason(int(result.why[row])), int(result.blocker[row])
    free = _free_gpus(snapshot, result)
    need, has = _need(me, snapshot), _on_cpu(row, me, result) or _need(me, snapshot, *_after(me, result))
    sentences = {
        Reason.RUNS: f"job {job} has its {has}",
        Reason.HELD: f"job {job} waits for job {me.after} to end and can run after that" if me.after != NONE
        else f"job {job} is held; it can run once nothing holds it any more",
        Reason.STOPPING: f"job {job} was preempted and is stopping; it returns to the queue once its GPUs are free",
        Reason.TOO_FEW_FREE: f"job {job} needs {need}; {free} are free; it would start with {me.gpus - free} more",
        Reason.SHAPE: f"job {job} needs {need} and {free} are free, but not on nodes of one type with the cores and "
        "memory it asks for; it would start if it asked for less per GPU",
        Reason.BEHIND: f"job {job} needs {need} and waits behind job {blocker}, which does not fit yet, because the "
        "order is strict; it would start under a policy that backfills",
        Reason.RESERVED: f"job {job} would fit now but would delay job {blocker}, which has the reservation; it would "
        "start with a shorter time limit",
        Reason.NOT_NOW: f"the policy gave job {job} no GPUs in this round",
        Reason.UNDONE: f"job {job} shared GPUs on trial and slows its neighbours or itself down too much; it waits for "
        "others, and such a set is not tried again for a day",
        Reason.SHARES_BY_HISTORY: f"job {job} has its {has}, which it shares because exactly such jobs did so before",
        Reason.SHARES_BY_PAIRS: f"job {job} has its {has}, which it shares because pairs of such jobs did so before",
        Reason.SHARES_BY_DEMAND: f"job {job} has its {has}, which it shares because of how much each job uses them "
        "alone; such a set was not observed before",
        Reason.PREEMPTED: f"job {job} was preempted for job {blocker}, which is ahead of it in the policy's order",
        Reason.SHORT_GAPS: f"job {job} is a padding job, and {free} are free, but regular jobs are expected to take "
        "them before a start would pay; it would start in a longer gap",
        Reason.NOTHING_KNOWN: f"job {job} needs {need}; {free} are free, and it shares none, because nobody knows "
        + (_unknown(snapshot.jobs[rows.get(blocker, row)], f"job {blocker}" if blocker not in (job, NONE) else "it")
           if why is Reason.NOTHING_KNOWN else ""),
    }
    return sentences[why] + "."


def _unknown(other: JobRow, who: str) -> str:
    """What is not known of a job that could share GPUs, and who could say it."""
    options = {"--gpu-util": other.gpu_util_milli, "--gpu-mem": other.gpu_mem_mib}
    lacking = [option for option, value in options.items() if value == NONE]
    if lacking:
        return f"how much {who} uses of each GPU: {' and '.join(lacking)} would say it"
    return f"how long steps of {who} take alone: neither it nor another job of its name has trained alone on such GPUs"


def _after(me: JobRow, result: RoundResult) -> tuple[int, int]:
    """GPUs that a job has after the plan, and thousandths of each; for a job without GPUs, those it asks for."""
    for action in result.plan:
        setting = setting_in(action)
        if setting is not None and action.job == me.id:
            return len(setting.gpus), setting.share_milli
    return me.gpus_now or me.gpus, me.share_now or me.share_milli


def _on_cpu(row: int, me: JobRow, result: RoundResult) -> str:
    """What a job has after the plan, if its workers are on CPU; else empty."""
    grants = result.grants
    mine = (grants.job == row) & (grants.gpu == ON_CPU)
    ranks = int(mine.sum())
    cores = max((int(grants.share_milli[mine].max()) if ranks else 0) or me.cpu_milli, CORE_MILLI) / CORE_MILLI
    return f"{counted(ranks, 'rank')} on CPU, with {cores:g} core{'' if cores == 1 else 's'} each" if ranks else ""


def _need(me: JobRow, snapshot: Snapshot, gpus: int | None = None, share_milli: int | None = None) -> str:
    gpus = me.gpus if gpus is None else gpus
    if not me.gpus:
        return f"{counted(me.cpu_ranks_max, 'rank')} on CPU"
    share_milli = me.share_milli if share_milli is None else share_milli
    kind = snapshot.gpu_types[me.gpu_type] if me.gpu_type >= 0 else ""
    share = f" at {share_milli / 10:g} %" if share_milli < WHOLE_GPU else ""
    return counted(gpus, f"{kind} GPU".lstrip()) + share


def _free_gpus(snapshot: Snapshot, result: RoundResult) -> int:
    """Number of GPUs on open nodes of which no job holds a share after the plan."""
    nodes, grants = snapshot.nodes, result.grants
    counts = nodes.takes(grants.node, grants.gpu) & (grants.gpu >= 0)
    taken = set(zip(grants.node[counts].tolist(), grants.gpu[counts].tolist(), strict=True))
    return int(nodes.gpus_open.sum()) - len(taken)
