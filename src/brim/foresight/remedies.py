"""What would let a waiting job run in the next round: changes in order of their cost, each tried before it is told.

A change is a list of events on a copy of the state, and it helps if the round that is decided on the copy starts the
job. What a user would do by cancelling and submitting again is tried as just that, with the new job at the end of the
queue. Where a change has a degree (fewer GPUs, a shorter limit), its extreme is tried first; if that helps, the mildest
one that does is found by halving.

The order of cost is ours: what costs nothing (a release, an agent that is started), what costs a promise (a time
limit), what costs the job something (resources, type, number of GPUs), what costs others (priority), what costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from brim.beliefs.runtime import remaining_ms
from brim.core.events import Event, Kind
from brim.core.lifecycle import Phase
from brim.engine.round import RoundResult
from brim.foresight.answers import Remedy
from brim.foresight.blockers import awaited_end, named, ongoing
from brim.foresight.trials import decided, preempted, starts
from brim.live import holds
from brim.live.records import JobRecord
from brim.live.requests import NONE, PRIORITY_MAX, SIZES_MAX, JobRequest
from brim.live.situation import Situation

ENDS_MAX: Final = 12
"""Running jobs whose end is tried alone; ours. With all other trials at most some 40 rounds, 4 s with 10,000 jobs."""
LIMITS_S: Final = (
    604_800, 259_200, 172_800, 86_400, 43_200, 28_800, 21_600, 14_400, 10_800, 7_200, 3_600, 1_800, 900, 600, 300,
)
"""Time limits that are tried, longest first: a week to five minutes; ours."""
_ENDS: Final = {"finish": "finishes", "fail": "fails", "end": "ends"}
_LEAVES: Final = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A change that can be tried: words, and events; ``job`` has to start, after ``ends`` have ended."""

    kinds: tuple[str, ...]
    texts: tuple[str, ...]
    events: tuple[Event, ...]
    job: JobRecord
    waits: bool = False
    ends: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Lift:
    """What takes the holds off a job.

    Attributes:
        kinds: Kinds of the changes.
        texts: What to do or to wait for.
        ends: Running jobs that have to finish first.
        gone: Jobs that it must not wait for any more: it would have to be submitted again.
        impossible: Whether it could not run on the empty cluster.
        waits: See ``Remedy``.
        stuck: Whether it waits for a job that waits itself, or for its array, which no single round can show.
    """

    kinds: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    impossible: bool = False
    waits: bool = False
    stuck: bool = False


class Remedies:
    """Finds what would let one job run.

    Attributes:
        tried: Rounds that were decided for it.
        in_vain: What was tried and did not help, in words; ends of jobs only as ``ends_in_vain``.
        ends_in_vain: Jobs after whose ends, each alone or some together, it would still wait.

    Args:
        situation: The situation; it is not changed.
        job: The job: held or pending, without an attempt.
    """

    def __init__(self, situation: Situation, job: JobRecord) -> None:
        self._at, self._job = situation, job
        self._baseline = decided(situation)
        self._new = situation.scheduler.state.last_id + 1
        self._lift = _lift(situation, job)
        self.tried, self.in_vain, self.ends_in_vain = 0, list[str](), set[int]()

    @property
    def baseline(self) -> RoundResult:
        """The next round, if nothing changes."""
        return self._baseline

    def unheld(self) -> RoundResult:
        """The next round, if nothing held the job."""
        return decided(self._at, self._eligible()) if self._job.holds else self._baseline

    def found(self) -> tuple[Remedy, ...]:
        """Return what helps, the cheapest first."""
        lifted = self._helps(self._lifted()) if self._job.holds else None
        if lifted is not None:
            return (lifted,)  # anything else would be that and more
        helpful = [self._mildest(degrees, make) for degrees, make in self._resubmissions()]
        if not self._lift.waits:
            helpful += self._ends()
        remedies = [remedy for remedy in helpful if remedy is not None]
        return tuple(sorted(remedies, key=lambda remedy: remedy.waits))  # the order of cost stays among the others

    # -- trials ----------------------------------------------------------------------------------------------------

    def _helps(self, change: _Change | None) -> Remedy | None:
        """Try a change."""
        if change is None or not self._within_quota(change):
            return None
        self.tried += 1
        result = decided(self._at, change.events)
        devices = starts(result).get(change.job.id)
        if devices is None:
            self.ends_in_vain |= set(change.ends)
            self.in_vain += [] if change.kinds[0] == "wait" else [", and ".join(change.texts)]
            return None
        otherwise = starts(self._baseline).keys() - {self._job.id}
        return Remedy(
            kind="+".join(dict.fromkeys(change.kinds)), text=", and ".join(change.texts), waits=change.waits,
            devices=devices, preempts=tuple(sorted(preempted(result) - preempted(self._baseline))),
            delays=tuple(sorted(otherwise - starts(result).keys())),
        )

    def _within_quota(self, change: _Change) -> bool:
        """Whether the quota, which the round does not know of, lets the job wait for devices."""
        quota = self._at.user_gpus
        if quota == NONE:
            return True
        replaced = (self._job.id, *change.ends)
        return holds.sizes_within(change.job.request, quota)[1] <= self._at.left_gpus(change.job, replaced)

    def _mildest(self, degrees: Sequence[T], make: Callable[[T], _Change | None]) -> Remedy | None:
        """Return the mildest degree of a change that helps, where a milder one helps less.

        Args:
            degrees: The degrees, the mildest first.
            make: The change of a degree.
        """
        best = self._helps(make(degrees[-1])) if degrees else None
        low, high = 0, len(degrees) - 1
        while best is not None and low < high:
            middle = (low + high) // 2
            found = self._helps(make(degrees[middle]))
            low, high, best = (low, middle, found) if found else (middle + 1, high, best)
        return best

    def _eligible(self) -> tuple[Event, ...]:
        held = self._at.scheduler.state.phase(self._job.id) is Phase.HELD
        return (Event(self._at.now_ms, Kind.ELIGIBLE, self._job.id),) if held else ()

    def _ended(self, jobs: Sequence[int]) -> tuple[Event, ...]:
        """The ends of running jobs; one that this job waits for ends as it has to."""
        fails = self._job.request.after_not_ok
        return tuple(Event(self._at.now_ms, Kind.GAVE_UP if job in fails else Kind.FINISHED, job) for job in jobs)

    # -- changes ---------------------------------------------------------------------------------------------------

    def _lifted(self) -> _Change | None:
        """The job without its holds, and otherwise as it is; None if no change of one moment takes them off."""
        lift = self._lift
        if lift.stuck or lift.impossible:
            return None
        if lift.gone:
            return None if self._job.attempt else self._submitted("dependency", lambda _: "")(self._job.request)
        return _Change(
            kinds=tuple(lift.kinds), texts=tuple(lift.texts), job=self._job, waits=lift.waits, ends=tuple(lift.ends),
            events=(*self._ended(lift.ends), *self._eligible()),
        )

    def _resubmissions(self) -> Iterator[tuple[Sequence[JobRequest], Callable[[JobRequest], _Change | None]]]:
        """Other requests instead of this one, cheapest first; none for a job that has run and would lose its work."""
        request, lift = self._job.request, self._lift
        if self._job.attempt or lift.stuck:
            return
        if self._at.scheduler.policy.asks_run_times:
            limit_s = request.time_limit_s or LIMITS_S[0] + 1
            shorter = [replace(request, time_limit_s=limit) for limit in LIMITS_S if limit < limit_s]
            yield shorter, self._submitted("time limit", lambda asked: f"-t {_clock(asked.time_limit_s)}")
        if request.is_cpu_only:
            yield [replace(request, devices=("gpu",))], self._submitted("devices", lambda _: "--devices gpu")
        if request.cpus_per_gpu or request.mem_mib_per_gpu:
            yield [replace(request, cpus_per_gpu=0.0, mem_mib_per_gpu=0)], self._submitted(
                "resources", lambda _: "without --cpus and --mem"
            )
        types = ["", *self._at.scheduler.state.cluster.gpu_types] if request.gpu_type else []
        for gpu_type in types:
            if gpu_type.casefold() != request.gpu_type.casefold():
                yield [replace(request, gpu_type=gpu_type)], self._submitted("type", lambda asked: f"-g {_size(asked)}")
        total = int(self._at.scheduler.state.cluster.num_gpus)
        if request.is_elastic and self._at.scheduler.policy.resizes_running:
            yield _shrinkable(request, total), self._submitted("gpus", lambda asked: f"-g {_size(asked)}")
        yield _smaller(request, total), self._submitted("gpus", lambda asked: f"-g {_size(asked)}")
        highest = max(job.request.priority for job in self._at.jobs.values())
        if highest < PRIORITY_MAX:
            yield [replace(request, priority=highest + 1)], self._submitted(
                "priority", lambda asked: f"-p {asked.priority}"
            )

    def _submitted(self, kind: str, option: Callable[[JobRequest], str]) -> Callable[[JobRequest], _Change | None]:
        """Return what makes the change from a request: this job cancelled, and the request submitted."""

        def change(request: JobRequest) -> _Change | None:
            at, lift = self._at, self._lift
            if holds.why_impossible(request, at.scheduler.state.cluster, at.scheduler.policy):
                return None
            new = replace(self._job, id=self._new, request=request)
            state = at.scheduler.state
            user = state.user_code(new.user)  # it is known
            spec = holds.spec_of(new, state.cluster, user, at.now_ms, at.user_gpus)
            words = [option(request), *(f"without --depends-on {other}" for other in lift.gone)]
            words += ["without --hold"] * (request.hold and holds.USER in self._job.holds)
            kept = [(kind, text) for kind, text in zip(lift.kinds, lift.texts, strict=True) if kind != "release"]
            return _Change(
                kinds=(kind, *(kind for kind, _ in kept)), job=new, waits=lift.waits, ends=tuple(lift.ends),
                texts=(f"cancel it and submit it again {' and '.join(filter(None, words))}", *(t for _, t in kept)),
                events=(
                    Event(at.now_ms, Kind.CANCELLED, self._job.id), *self._ended(lift.ends),
                    Event(at.now_ms, Kind.SUBMITTED, new.id, spec=spec),
                ),
            )

        return change

    def _ends(self) -> list[Remedy | None]:
        """The first running job whose end alone helps, in order of their estimated ends; else that of several."""
        if self._lift.stuck or self._lift.impossible or self._lift.gone:
            return []
        state = self._at.scheduler.state
        snapshot = state.freeze(self._at.now_ms)
        left_ms = remaining_ms(self._at.scheduler.beliefs.run_times, snapshot).tolist()
        running = [
            job for _, job in sorted(zip(left_ms, snapshot.jobs.id.tolist(), strict=True))
            if job in self._at.attempts and state.phase(job) in _LEAVES
        ]
        for job in running[:ENDS_MAX]:
            remedy = self._helps(self._after((job,)))
            if remedy is not None:
                return [remedy]
        several = [tuple(running[:number]) for number in range(2, len(running) + 1)]
        return [self._mildest(several, self._after)]

    def _after(self, ends: tuple[int, ...]) -> _Change:
        lift, jobs = self._lift, self._at.jobs
        if len(ends) == 1:
            ended = f"{named(jobs[ends[0]])} ends, {ongoing(self._at, self._at.attempts[ends[0]])}"
        else:
            ended = f"jobs {', '.join(map(str, sorted(ends)))} end"
        return _Change(
            kinds=("wait", *lift.kinds), texts=(f"wait until {ended}", *lift.texts), job=self._job, waits=True,
            ends=ends, events=(*self._ended(ends), *self._eligible()),
        )


def _lift(situation: Situation, job: JobRecord) -> _Lift:
    """Read what would take the holds off a job."""
    lift, state = _Lift(), situation.scheduler.state
    for hold in job.holds:
        other = next((each for each in job.request.before if hold == holds.after(each)), NONE)
        if hold in holds.RELEASED:
            _add(lift, "release", f"release it: brim release {job.id}")
        elif hold == holds.AGENT:
            _add(lift, "agent", f"start the agent of {job.user}, as every `brim submit` of this user does")
        elif hold == holds.BEGIN:
            lift.waits = True
            _add(lift, "begin", "wait until the time at which it may begin")
        elif other != NONE and other in state and state.phase(other) in _LEAVES:
            lift.waits = True
            lift.ends.append(other)
            _add(lift, "dependency", f"wait until job {other} {_ENDS[awaited_end(job, other)]}")
        elif other != NONE or hold == holds.ARRAY_LIMIT:
            lift.stuck = True
        elif hold == holds.QUOTA:
            continue  # every change is measured by the quota
        elif holds.is_of_cluster(hold):
            lift.impossible = True
        else:  # a job that has not finished, or does not exist
            lift.gone += [
                each for each in job.request.before
                if hold.startswith(f"{holds.after(each)} ") or f" job {each}," in hold
            ]
    return lift


def _add(lift: _Lift, kind: str, text: str) -> None:
    if kind not in lift.kinds or kind == "dependency":
        lift.kinds.append(kind)
        lift.texts.append(text)


def _smaller(request: JobRequest, most: int) -> list[JobRequest]:
    """The request on a fixed number of GPUs below its own and up to ``most``, the largest first."""
    return [
        replace(request, gpus=gpus, gpus_min=NONE, gpus_max=NONE, sizes=())
        for gpus in range(min(request.gpus - 1, most), 0, -1)
    ]


def _shrinkable(request: JobRequest, most: int) -> list[JobRequest]:
    """The request of an elastic job that may also run on fewer GPUs than now, up to ``most``; the largest first."""
    found = []
    for gpus in range(min(request.limits[0] - 1, most), 0, -1):
        sizes = (gpus, *request.sizes)
        if not request.sizes:
            found.append(replace(request, gpus_min=gpus))
        elif len(sizes) <= SIZES_MAX:
            found.append(replace(request, gpus_min=NONE, gpus_max=NONE, sizes=sizes))
    return found


def _size(request: JobRequest) -> str:
    """GPUs as ``--gpus`` reads them."""
    least, most = request.limits
    size = ",".join(map(str, request.sizes)) or (str(least) if least == most else f"{least}-{most}")
    return f"{request.gpu_type}:{size}" if request.gpu_type else size


def _clock(limit_s: int) -> str:
    """A time limit as ``--time`` reads it."""
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if limit_s % seconds == 0:
            return f"{limit_s // seconds}{unit}"
    return f"{limit_s}s"
