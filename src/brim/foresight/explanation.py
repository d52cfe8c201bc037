"""Why a job waits, all of it, and what would let it run."""

from __future__ import annotations

from collections.abc import Iterator

from brim.foresight.answers import Remedy, WhyWaiting
from brim.foresight.blockers import blockers, gpus_asked, listed
from brim.foresight.remedies import Remedies
from brim.foresight.trials import starts
from brim.live.records import JobRecord
from brim.live.requests import ON_CPU
from brim.live.situation import Situation
from brim.units import counted


def explained(situation: Situation, job: JobRecord) -> WhyWaiting:
    """Explain why a job waits.

    Args:
        situation: The situation; it is not changed.
        job: The job: held or pending in it, without an attempt.
    """
    finder = Remedies(situation, job)
    devices = starts(finder.baseline).get(job.id)
    if devices is not None:
        on = "on CPU" if ON_CPU in devices else f"on {counted(len(devices), 'device')}: {listed(devices)}"
        text = f"job {job.id} starts in the next round, {on}"
        return WhyWaiting(text=text, blockers=(), remedies=(), tried=0)
    found, remedies = blockers(situation, job, finder.unheld()), finder.found()
    lines = [f"job {job.id}, which needs {gpus_asked(job)}, waits:", *(f"  {blocker.text}" for blocker in found)]
    now = [remedy for remedy in remedies if not remedy.waits]
    later = [remedy for remedy in remedies if remedy.waits]
    if now:
        lines += ["it would run now, the cheapest change first:", *map(_line, now)]
    if later:
        lines += ["it would run without a change, if you" if now else "it would run if you", *map(_line, later)]
    trials = f"{counted(finder.tried, 'change')} {'was' if finder.tried == 1 else 'were'} tried"
    if remedies:
        lines.append(f"{trials} by deciding the next round with {'it' if finder.tried == 1 else 'them'}")
    elif finder.tried:
        none = "it would not" if finder.tried == 1 else "none would"
        lines.append(f"{trials}, and {none} let it run in the next round:")
        lines += _in_vain(finder)
    else:
        lines.append("no single change that brim can try would let it run in the next round")
    return WhyWaiting(text="\n".join(lines), blockers=found, remedies=remedies, tried=finder.tried)


def _in_vain(finder: Remedies) -> Iterator[str]:
    """What was tried and did not help."""
    yield from (f"  {text}" for text in dict.fromkeys(finder.in_vain))
    if ended := tuple(sorted(finder.ends_in_vain)):
        yield f"  wait until {_jobs(ended)} {'ends' if len(ended) == 1 else 'end'}"


def _line(remedy: Remedy) -> str:
    said = f"  {remedy.text}"
    if remedy.preempts:
        said += f"; this would preempt {_jobs(remedy.preempts)}"
    if remedy.delays:
        said += f"; {_jobs(remedy.delays)} would wait instead"
    return said


def _jobs(jobs: tuple[int, ...]) -> str:
    return f"job{'' if len(jobs) == 1 else 's'} {listed(jobs)}"
