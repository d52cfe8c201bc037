"""Everything that keeps a waiting job from running: its holds, its place in the queue, and who has the devices."""

from __future__ import annotations

from collections.abc import Iterator

from brim.core.reasons import RUNNING, Reason
from brim.engine.round import RoundResult
from brim.foresight.answers import Blocker
from brim.foresight.trials import starts
from brim.live import holds
from brim.live.records import AttemptRecord, JobRecord
from brim.live.requests import ON_CPU
from brim.live.situation import Situation
from brim.units import MS_PER_S, counted, show_duration


def named(job: JobRecord) -> str:
    """What every user may know of a job, in words. A job without a key was not submitted: it is part of a trial."""
    return f"job {job.id} of {job.user}" if job.key else "another job of this submission"


def listed(numbers: tuple[int, ...]) -> str:
    """Show numbers in increasing order: ``0``, ``0 and 1``, ``0-3 and 6``; ``CPU`` for ranks on CPU."""
    if ON_CPU in numbers:
        return "CPU"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = [f"{a}" if a == b else f"{a} and {b}" if b == a + 1 and len(spans) == 1 else f"{a}-{b}" for a, b in spans]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def blockers(situation: Situation, job: JobRecord, result: RoundResult) -> tuple[Blocker, ...]:
    """List what keeps a job from running.

    Args:
        situation: The situation.
        job: The job: it has not ended, and has no attempt.
        result: A round in which nothing holds the job.
    """
    limits = {holds.QUOTA, holds.ARRAY_LIMIT}
    found = [_of_hold(situation, job, hold) for hold in job.holds if hold not in limits or limits.issuperset(job.holds)]
    if any(hold.startswith(holds.impossible("")) for hold in job.holds):
        return tuple(found)  # whoever has the devices: it could not run on all of them
    row = result.job.tolist().index(job.id)
    why = Reason(int(result.why[row]))
    if why in RUNNING:
        return tuple(found)
    found += _of_round(situation, result, row, why)
    if why is not Reason.NOT_NOW:
        found += _of_devices(situation, result)
    return tuple(found)


def _of_hold(situation: Situation, job: JobRecord, hold: str) -> Blocker:
    if hold == holds.USER:
        return Blocker(kind="hold", text="it is held until it is released")
    if hold == holds.CRASH_GUARD:
        return Blocker(kind="hold", text="a job of its array failed at once, and the rest is held until it is released")
    if hold == holds.AGENT:
        return Blocker(kind="hold", text=f"the agent of {job.user} is not running")
    if hold == holds.BEGIN:
        left_s = (job.submit_ms - situation.now_ms) / MS_PER_S + job.request.begin_s - job.submitted_s
        return Blocker(kind="hold", text=f"it must not start for another {show_duration(max(left_s, 0.0))}")
    if hold == holds.QUOTA:
        return Blocker(kind="hold", text=f"jobs of {job.user} may have {situation.user_gpus} GPUs at the same time")
    if hold == holds.ARRAY_LIMIT:
        most = job.request.array_limit
        text = f"only {counted(most, 'job')} of its array may run at a time (--array %{most})"
        return Blocker(kind="hold", text=text)
    for other in job.request.before:
        if hold == holds.after(other):
            return _of_awaited(situation, job, other)
        if hold.startswith(f"{holds.after(other)} "):
            how = hold.removeprefix(f"{holds.after(other)} ")
            return Blocker(kind="hold", text=f"{_awaits(job, other)}, which has ended: {how}", jobs=(other,))
    return Blocker(kind="hold", text=hold.partition(": ")[2] or hold)


def _of_awaited(situation: Situation, job: JobRecord, other: int) -> Blocker:
    """A job that is awaited and has not ended, with what holds it up: itself or a job that it awaits in turn."""
    found = situation.jobs.get(other)
    stuck = _stuck(situation, found) if found else None
    if found is None or stuck is None:
        state = f", which is {found.state}" if found else ""
        return Blocker(kind="hold", text=f"{_awaits(job, other)}{state}", jobs=(other,))
    root, hold = stuck
    by, jobs = ("", (other,)) if root is found else (f" up by job {root.id}", (other, root.id))
    reason = _of_hold(situation, root, hold).text
    return Blocker(kind="hold", text=f"{_awaits(job, other)}, which is held{by}: {reason}", jobs=jobs)


def _stuck(situation: Situation, job: JobRecord) -> tuple[JobRecord, str] | None:
    """The first job on the way from a job through those that are awaited which is held otherwise, and that hold."""
    rest, seen = [job], {job.id}
    while rest:
        at = rest.pop()
        if at.id in situation.attempts:
            continue
        awaited = {holds.after(other): other for other in at.request.before}
        for hold in at.holds:
            if hold not in (*awaited, holds.ARRAY_LIMIT, holds.QUOTA):
                return at, hold
        others = {awaited[hold] for hold in at.holds if hold in awaited} - seen
        rest += [situation.jobs[other] for other in sorted(others) if other in situation.jobs]
        seen |= others
    return None


def _awaits(job: JobRecord, other: int) -> str:
    return f"it waits for job {other} to {awaited_end(job, other)}"


def awaited_end(job: JobRecord, other: int) -> str:
    """How a job has to end for which another waits: ``finish``, ``fail`` or, either way, ``end``."""
    return "finish" if other in job.request.after else "fail" if other in job.request.after_not_ok else "end"


def _of_round(situation: Situation, result: RoundResult, row: int, why: Reason) -> Iterator[Blocker]:
    """What the policy says."""
    blocker = situation.jobs.get(int(result.blocker[row]))
    others = (blocker.id,) if blocker else ()
    ahead = f"{named(blocker)}, which needs {gpus_asked(blocker)}" if blocker else "another job"
    if why is Reason.BEHIND:
        yield Blocker(kind="order", text=f"it is behind {ahead} and does not fit yet", jobs=others)
    elif why is Reason.RESERVED:
        yield Blocker(kind="order", text=f"devices are kept for {ahead} and is ahead of it", jobs=others)
    elif why is Reason.PREEMPTED:
        yield Blocker(kind="order", text=f"its devices go to {ahead} and is ahead of it", jobs=others)
    elif why is Reason.TOO_FEW_FREE and blocker:
        yield Blocker(kind="order", text=f"{ahead}, is ahead of it", jobs=others)
    elif why is Reason.SHAPE:
        yield Blocker(kind="shape", text="enough devices are free, but not with the type, cores and memory it asks for")
    elif why is Reason.NOTHING_KNOWN:
        other = blocker if blocker and blocker.id != int(result.job[row]) else None
        whom = named(other) if other else "it"
        yield Blocker(
            kind="policy", text=f"it shares no devices, because too little is known of {whom}",
            jobs=others if other else (),
        )
    elif why is Reason.SHORT_GAPS:
        yield Blocker(kind="order", text="devices are free, but regular jobs are expected to take them very soon")
    elif why is Reason.NOT_NOW:
        policy = situation.scheduler.policy.name
        yield Blocker(kind="policy", text=f"policy {policy} gives it no devices at present")


def gpus_asked(job: JobRecord) -> str:
    """GPUs that a job asks for, or ranks on CPU, in words."""
    if job.request.is_cpu_only:
        return counted(job.request.gpus, "rank") + " on CPU"
    least, most = job.request.limits
    kind = f"{job.request.gpu_type} GPU".lstrip()
    return counted(least, kind) if least == most else f"{least} to {counted(most, kind)}"


def _of_devices(situation: Situation, result: RoundResult) -> Iterator[Blocker]:
    """Who has the devices."""
    total = int(situation.scheduler.state.cluster.num_gpus)
    free = set(range(total))
    for attempt in sorted(situation.attempts.values(), key=lambda one: one.devices):
        job = situation.jobs.get(attempt.job)
        if job is None or not attempt.devices or ON_CPU in attempt.devices:
            continue
        free -= set(attempt.devices)
        yield Blocker(
            kind="devices", jobs=(job.id,),
            text=f"{_devices(attempt.devices)} of {total}: {named(job)}, {ongoing(situation, attempt)}",
        )
    for number, devices in starts(result).items():
        job = situation.jobs.get(number)
        if job is not None and ON_CPU not in devices:
            free -= set(devices)
            text = f"{_devices(devices)} of {total}: {named(job)}, which starts"
            yield Blocker(kind="devices", text=text, jobs=(number,))
    nodes = result.snapshot.nodes
    withheld = tuple(device for device in range(total) if nodes.withheld.size and nodes.withheld[0, device])
    if withheld:
        free -= set(withheld)
        yield Blocker(kind="devices", text=f"{_devices(withheld)} of {total}: withheld, see `brim status`")
    yield Blocker(kind="devices", text=f"{len(free)} of {total} devices {'is' if len(free) == 1 else 'are'} free")


def _devices(numbers: tuple[int, ...]) -> str:
    return f"device{'' if len(numbers) == 1 else 's'} {listed(numbers)}"


def ongoing(situation: Situation, attempt: AttemptRecord) -> str:
    """What an attempt does, and how long it may go on."""
    if attempt.stop_reason:
        return f"which was told to stop: {attempt.stop_reason}"
    if attempt.state != "running":
        return "which starts"
    job, state = situation.jobs[attempt.job], situation.scheduler.state
    ran_s = state.run_ms(job.id, situation.now_ms) / MS_PER_S
    limit_s = job.request.time_limit_s
    left_s = max(attempt.limit_left_ms(limit_s, situation.now_ms), 0) / MS_PER_S
    most = f", at most {show_duration(left_s)} more" if limit_s else ", without a time limit"
    return f"which has run for {show_duration(ran_s)}{most}"
