"""What a client sees of a few jobs from their submission to their end: their devices, changes of size, and progress.

It asks for all of them several times a second, as ``brim ps --watch`` does. Times of submission, start and end and the
number of preemptions are the controller's own; changes of size are seen to within the time between two looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from brim.cli.watch import ClusterView, Row, Stretch
from brim.core.trace import JobClass
from brim.units import MS_PER_S

if TYPE_CHECKING:
    from brim.api.client import Client, Listing
    from brim.live.records import JobRecord

EXPLAIN_MS: Final = 1_000
"""Time between two questions why a job waits; ours."""
_STATES: Final = {
    "held": ("held", "dim"), "pending": ("waiting", "yellow"), "starting": ("starting", "cyan"),
    "running": ("running", "green"), "stopping": ("saving", "magenta"), "finished": ("done", "dim"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A job that is to be submitted.

    Attributes:
        at_ms: When, after the first job was seen to run; 0: at once.
        name: Its name; up to the first ``-``, who it stands for.
        gpus: Devices that it asks for, as for ``brim submit``.
        samples: Samples that it trains on in all.
        words: Its command.
        is_padding: Whether it is a padding job.
    """

    at_ms: int
    name: str
    gpus: str
    samples: int
    words: tuple[str, ...]
    is_padding: bool = False

    @property
    def job_class(self) -> JobClass:
        """Its class."""
        return JobClass.PADDING if self.is_padding else JobClass.REGULAR

    @property
    def user(self) -> str:
        """Who it stands for."""
        return self.name.partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a job was at one moment; time in ms since the first look."""

    at_ms: int
    state: str
    attempt: int
    devices: tuple[int, ...]
    samples: float


@dataclass(slots=True)
class Session:
    """The jobs of a plan, as they were seen.

    Attributes:
        plan: The jobs, in order of submission.
        zero_ms: Cluster time of the first look.
        now_ms: Time of the newest look, in ms since the first.
        ids: Ids of the jobs that were submitted, in the order of the plan.
        jobs: The jobs as they are now, by id.
        looks: Every look at a job at which it was not as before, by id.
    """

    plan: Sequence[Planned]
    zero_ms: int
    now_ms: int = 0
    ids: list[int] = field(default_factory=list)
    jobs: dict[int, JobRecord] = field(default_factory=dict)
    looks: dict[int, list[Look]] = field(default_factory=dict)
    _why: dict[int, str] = field(default_factory=dict)
    _why_ms: int = -EXPLAIN_MS

    def due(self) -> Planned | None:
        """The next job of the plan, if its time has come."""
        if len(self.ids) == len(self.plan):
            return None
        coming = self.plan[len(self.ids)]
        return coming if coming.at_ms == 0 or self._running_ms >= coming.at_ms else None

    @property
    def _running_ms(self) -> int:
        """Time since the first job was seen to run."""
        begun_ms = min((look.at_ms for looks in self.looks.values() for look in looks if look.state == "running"),
                       default=self.now_ms)
        return self.now_ms - begun_ms

    def note(self, listing: Listing) -> None:
        """Note how all jobs are."""
        self.now_ms = listing.now_ms - self.zero_ms
        for job in listing.jobs:
            self.jobs[job.id] = job
            seen = self.looks.setdefault(job.id, [])
            look = Look(at_ms=self.now_ms, state=job.state, attempt=job.attempt, devices=job.devices,
                        samples=job.samples_done)
            if not seen or replace(look, at_ms=seen[-1].at_ms) != seen[-1]:
                seen.append(look)

    def ask_why(self, at: Client) -> None:
        """Ask why jobs wait, if the last answers are old."""
        if self.now_ms - self._why_ms >= EXPLAIN_MS:
            self._why_ms = self.now_ms
            self._why = {
                job.id: at.explain(job.id, changes=False)["text"].removeprefix(f"job {job.id} ").replace("GPU", "slot")
                for job in self.jobs.values() if job.state in ("pending", "held")
            }

    @property
    def is_over(self) -> bool:
        """Whether every job of the plan has ended."""
        return len(self.ids) == len(self.plan) and all(
            number in self.jobs and self.jobs[number].has_ended for number in self.ids
        )

    @property
    def failed(self) -> list[JobRecord]:
        """The jobs that have ended otherwise than they should."""
        return [job for job in self.jobs.values() if job.has_ended and job.state != "finished"]

    def sizes(self, job: int) -> list[Look]:
        """The looks at which a job began to run on another number of devices, or in another attempt."""
        found: list[Look] = []
        for look in self.looks.get(job, ()):
            if look.state == "running" and look.devices and (
                not found or (look.attempt, len(look.devices)) != (found[-1].attempt, len(found[-1].devices))
            ):
                found.append(look)
        return found

    def resizes(self, job: int) -> int:
        """How often a job was resized while it ran."""
        sizes = self.sizes(job)
        return sum(one.attempt == other.attempt for one, other in pairwise(sizes))

    def jct_s(self, job: int) -> float:
        """Time from the submission of a job to its end."""
        record = self.jobs[job]
        return (record.ended_ms - record.submit_ms) / MS_PER_S

    def view(self, slots: int) -> ClusterView:
        """Return what the screen shows now."""
        held = {slot for job in self.jobs.values() for slot in job.devices}
        return ClusterView(
            now_ms=self.now_ms, slots=slots, busy=len(held),
            preemptions=sum(job.preemptions for job in self.jobs.values()), resizes=sum(map(self.resizes, self.ids)),
            stretches=tuple(one for number, job in enumerate(self.ids, 1) for one in self._stretches(number, job)),
            jobs=tuple(self._row(number, planned) for number, planned in enumerate(self.plan)),
        )

    def _stretches(self, number: int, job: int) -> list[Stretch]:
        """The times in which a job had each slot."""
        found: list[Stretch] = []
        current: dict[int, Stretch] = {}
        for look in self.looks.get(job, ()):
            left = current.keys() - set(look.devices)
            found += [replace(current.pop(slot), end_ms=look.at_ms) for slot in sorted(left)]
            for slot in look.devices:
                one = current.get(slot) or Stretch(job=number, slot=slot, begin_ms=look.at_ms, running_ms=None,
                                                   saving_ms=None, end_ms=self.now_ms + 1)
                if look.state == "running" and one.running_ms is None:
                    one = replace(one, running_ms=look.at_ms)
                if look.state == "stopping" and one.saving_ms is None:
                    one = replace(one, saving_ms=look.at_ms)
                current[slot] = replace(one, end_ms=self.now_ms + 1)
        return [*found, *current.values()]

    def _row(self, number: int, planned: Planned) -> Row:
        job = self.jobs.get(self.ids[number]) if number < len(self.ids) else None
        if job is None:
            wait_s = max(0, planned.at_ms - self._running_ms) / MS_PER_S
            return Row(user=planned.user, slots=planned.gpus, state=f"arrives in {wait_s:.0f} s", style="dim",
                       fraction=0.0, why="")
        word, style = _STATES.get(job.state, (job.state, "red"))
        done = job.state == "finished"
        return Row(
            user=planned.user, slots=str(len(job.devices)) if job.devices else planned.gpus,
            state=f"{word} after {self.jct_s(job.id):4.1f} s" if job.has_ended else word, style=style,
            fraction=1.0 if done else min(1.0, job.samples_done / planned.samples),
            why=self._why.get(job.id, "") if job.state in ("pending", "held") else "", has_ended=job.has_ended,
        )
