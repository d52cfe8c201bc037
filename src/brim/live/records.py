"""What is stored of jobs, attempts and forecasts, and shown to users: one frozen value for each.

The controller makes a new record for every change; the store writes it, and readers get it as it is. Times ending in
``_ms`` are milliseconds of the cluster's own time (``store.Store.now_ms``), which goes on through restarts and reboots;
``submitted_s`` is the wall clock, for display only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from brim.live.requests import NONE, ON_CPU, JobRequest
from brim.units import MS_PER_S, WHOLE_GPU

JobStatus: TypeAlias = Literal[
    "held", "pending", "starting", "running", "stopping", "finished", "failed", "cancelled", "timeout", "lost"
]
ENDED: Final[frozenset[JobStatus]] = frozenset({"finished", "failed", "cancelled", "timeout", "lost"})
"""States that a job never leaves. ``lost``: nobody can say how it ended."""
AttemptStatus: TypeAlias = Literal["waiting", "starting", "running", "stopping", "ended"]
HOLDS_DEVICES: Final[frozenset[AttemptStatus]] = frozenset({"starting", "running", "stopping"})
"""States in which processes of an attempt may be on its devices; the store refuses such attempts on one device whose
shares sum to more than it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as it stands.

    Attributes:
        id: From 1, increasing in order of submission, never reused.
        uid: Kernel's number of the user who submitted it; -1 for none.
        user: Name of that user when it was submitted.
        key: Idempotency key of its submission.
        request: What was asked for.
        array: First job of its array; NONE for a job in none.
        submitted_s: Unix time of its submission, for display only.
        submit_ms: Cluster time of its submission.
        state: ``held`` waits for what ``holds`` says; ``pending`` waits for devices; ``stopping`` was told to stop.
        holds: Why it cannot start whatever is free: ``user``, ``after 3``, ``begin``, ``agent``, ``crash guard``,
            ``impossible: ...``.
        reason: One sentence for users: why it waits, runs or ended.
        attempt: Number of its newest attempt, 0 before the first.
        devices: Devices on which processes of that attempt may be; ``ON_CPU`` for each rank on CPU.
        failures: Failed attempts that count against ``request.attempts_max``.
        preemptions: Times that the scheduler took its devices away.
        exit_code: Of the ended job, 128 + the signal where one ended it; NONE while unknown.
        first_start_ms: When its first attempt was ordered, NONE before.
        ended_ms: When its last attempt ended, or it was cancelled without one; NONE before.
        samples_done: Samples that it reported as done and kept.
        samples_total: Samples that it needs; 0 where unknown.
        lost_gpu_s: GPU seconds of work that was lost by preemptions and failures: samples that a new attempt repeats,
            at its speed, and all of the attempts that reported none and after which it starts over
            (``ends.starts_over``).
        samples_again: Samples that new attempts repeat and that are not in ``lost_gpu_s``, because no attempt has told
            its speed since.
        loader_wait_ratio: Part of the time of a step, 0 to 1, in which the slowest rank waits for data, as it last
            reported; None while that is not known.
        slowdown_ratio: Time of a step beside the jobs with which it shares devices, relative to that alone, at least 1;
            None while it has its devices alone or that is not known.
    """

    id: int
    uid: int
    user: str
    key: str
    request: JobRequest
    array: int = NONE
    submitted_s: float
    submit_ms: int
    state: JobStatus
    holds: tuple[str, ...] = ()
    reason: str = ""
    attempt: int = 0
    devices: tuple[int, ...] = ()
    failures: int = 0
    preemptions: int = 0
    exit_code: int = NONE
    first_start_ms: int = NONE
    ended_ms: int = NONE
    samples_done: float = 0.0
    samples_total: float = 0.0
    lost_gpu_s: float = 0.0
    samples_again: float = 0.0
    loader_wait_ratio: float | None = None
    slowdown_ratio: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it will never run again."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt of a job to run.

    Attributes:
        job: Id of the job.
        number: From 1; a higher number fences all lower ones of the job.
        uid: User whose agent runs it.
        state: ``waiting`` was decided, and its start is not ordered because others are leaving its devices.
        sequence: Number of the newest order about it (start, resize, tune); agents ignore lower ones.
        devices: Devices on which its processes may be: old and new ones while it is resized; ``ON_CPU`` for each rank
            on CPU.
        cores_milli: Milli-cores of its node that it takes: those it asks for or has on CPU, and its loader workers
            where the policy counts these. While it is resized, the larger number of before and after.
        share_milli: Thousandths of each of them that it has; below 1000 others may be there. While it is resized, the
            smaller one of before and after.
        ranks: Processes; 0 for one plain process that sees all devices.
        batch: Global batch, NONE where the policy decides none.
        loader_workers: Data-loading processes of each rank, NONE where the policy decides none.
        decided_ms: When the round granted it its devices.
        begin_ms: When its processes existed, NONE before.
        start_ms: When it began to make progress, NONE before.
        stop_ms: When it was first told to stop, NONE if it was not.
        stop_reason: ``exchanged`` (it goes on at once on devices of another kind), ``preempted``, ``cancelled``,
            ``requeued``, ``time limit`` or ``down``; empty if it was not.
        end_ms: When all its processes had ended, NONE before.
        outcome: Of an ended attempt: ``finished``, ``stopped``, ``failed``, ``unusable`` or ``lost``.
        exit_code: Of an ended attempt, 128 + the signal where one ended it; NONE while unknown.
        blame: Who is to blame for a failure: ``job``, ``node`` or ``neighbour``; empty for none.
        detail: What its agent said about its end, for users.
        samples_first: Samples done at its first report of progress, 0.0 before.
        samples_first_ms: When that report came, NONE before.
        processes: Its processes, as its agent has named them: id and start time of one after the other.
        gpu_energy_j: What its GPUs used, as their driver measured it, J; NONE where that is not known.
    """

    job: int
    number: int
    uid: int
    state: AttemptStatus
    sequence: int = 0
    devices: tuple[int, ...] = ()
    share_milli: int = WHOLE_GPU
    ranks: int = 0
    batch: int = NONE
    loader_workers: int = NONE
    decided_ms: int
    begin_ms: int = NONE
    start_ms: int = NONE
    stop_ms: int = NONE
    stop_reason: str = ""
    end_ms: int = NONE
    outcome: str = ""
    exit_code: int = NONE
    blame: str = ""
    detail: str = ""
    samples_first: float = 0.0
    samples_first_ms: int = NONE
    processes: tuple[int, ...] = ()
    gpu_energy_j: float = NONE
    cores_milli: int = 0

    @property
    def where(self) -> str:
        """Its devices, or that it is on CPU, in words."""
        return "CPU" if ON_CPU in self.devices else f"devices {', '.join(map(str, self.devices))}"

    @property
    def own_devices(self) -> frozenset[int]:
        """Devices that it holds while it may have processes there; ranks on CPU hold none."""
        return frozenset(self.devices) - {ON_CPU} if self.state in HOLDS_DEVICES else frozenset()

    def limit_left_ms(self, limit_s: int, now_ms: int) -> int:
        """Time until a time limit of the attempt, which counts from its first process on."""
        return limit_s * MS_PER_S - (0 if self.begin_ms == NONE else now_ms - self.begin_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSetting:
    """Under what a controller decides; reports replay the jobs under the same.

    Attributes:
        policy: Name of the policy.
        cluster: The cluster, as ``brim.core.cluster.parse_cluster`` reads it.
        gap_ms: Shortest time between two rounds, however many jobs wait.
        gap_job_us: What each waiting job adds to a shorter time while fewer wait; 0: it is always ``gap_ms``.
    """

    policy: str
    cluster: str
    gap_ms: int
    gap_job_us: int = 0

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def of(cls, text: str) -> ControllerSetting:
        """Return what ``text`` returned as a value."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token of a user; whoever shows the secret is that user. Only a digest of the secret is stored.

    Attributes:
        id: From 1, never reused.
        uid: Kernel's number of the user.
        user: Name of the user.
        label: What it is for, in the user's words.
        made_s: Unix time when it was made.
        expires_s: Unix time from which it is refused.
    """

    id: int
    uid: int
    user: str
    label: str
    made_s: float
    expires_s: float


class StartForecast(NamedTuple):
    """When a job that waits is expected to start; times in ms of cluster time.

    Attributes:
        expected_ms: The mean of its starts in continuations of the queue.
        low_ms: Lower end of the interval that is stated.
        high_ms: Upper end.
        first_ms: The first start in any continuation.
        last_ms: The last.
    """

    expected_ms: int
    low_ms: int
    high_ms: int
    first_ms: int
    last_ms: int


class PastForecast(NamedTuple):
    """An earlier forecast of a start, and what came of it; times in ms of cluster time.

    Attributes:
        made_ms: When it was made.
        expected_ms: See ``StartForecast``.
        first_ms: See ``StartForecast``.
        last_ms: See ``StartForecast``.
        start_ms: When the job started, NONE for not yet.
        end_ms: When it ended, NONE for not yet. A job that ended without a start waited at least until then.
    """

    made_ms: int
    expected_ms: int
    first_ms: int
    last_ms: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one step of the controller changes; ``store.Store.commit`` writes it in one transaction or not at all.

    Attributes:
        at_ms: Cluster time of the step; never less than that of the step before.
        lines: Lines for the journal, in order, without line ends.
        jobs: Every job that has changed, as it now is.
        attempts: Every attempt that has changed, as it now is.
        inbox_done: Inputs (``inputs.Submit.inbox`` and so on) that need not be given again after a restart.
    """

    at_ms: int
    lines: tuple[str, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    inbox_done: tuple[int, ...] = ()
