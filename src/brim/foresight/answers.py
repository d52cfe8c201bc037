"""What questions about the future are answered with. It knows nothing of the engine, so that the API loads at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """One thing that keeps a job from running.

    Attributes:
        kind: ``hold``, ``order``, ``policy``, ``shape`` or ``devices``.
        text: What it is, for users.
        jobs: Other jobs that it is about.
    """

    kind: str
    text: str
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change after which the next round starts the job, as a trial has shown.

    Attributes:
        kind: ``release``, ``agent``, ``begin``, ``dependency``, ``time limit``, ``resources``, ``type``, ``gpus``,
            ``priority`` or ``wait``; several, joined by ``+``, where one alone would not do.
        text: What to do or what has to happen, for users.
        waits: Whether something has to happen first that its user cannot decide.
        devices: Devices that it would get.
        preempts: Jobs that would be preempted for it, and otherwise not.
        delays: Jobs that would otherwise start in this round, and then would not.
    """

    kind: str
    text: str
    waits: bool
    devices: tuple[int, ...]
    preempts: tuple[int, ...]
    delays: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutlook:
    """What is believed of a job from the losses that it has reported; see ``brim.beliefs.progress.Verdict``.

    Attributes:
        is_predictable: Whether its losses say where it ends.
        probability: That they do, at the newest evaluation; None where nothing can be said.
        since_samples: Samples from which that is believed; 0 for a job that was never believed predictable.
        at_samples: Samples at the newest evaluation.
        samples_done: Samples that it has done.
        evidence: What it rests on: "for: " or "against: " with words, and a value.
        cannot_say: Why nothing can be said; empty if something can.
        text: All of it, for users.
    """

    is_predictable: bool
    probability: float | None
    since_samples: float
    at_samples: float
    samples_done: float
    evidence: tuple[tuple[str, float], ...]
    cannot_say: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyWaiting:
    """Why a job waits.

    Attributes:
        text: All of it, as lines for users.
        blockers: What keeps it from running.
        remedies: What would let it run in the next round, the cheapest first.
        tried: Changes that were tried.
        outlook: What is believed from the losses that it has reported; None if it has reported none.
    """

    text: str
    blockers: tuple[Blocker, ...]
    remedies: tuple[Remedy, ...]
    tried: int
    outlook: LossOutlook | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What would happen to a submission in the next round.

    Attributes:
        devices: Devices that each job would get, in the order of the submission; empty for one that would wait.
        preempts: Jobs that would be preempted, and otherwise not.
        text: All of it, as lines for users: where the jobs would run, and why the first that would not would wait.
    """

    devices: tuple[tuple[int, ...], ...]
    preempts: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When a job will start and end, each as an interval in seconds from now.

    Attributes:
        job: The job.
        start_s: When it next starts; None if it runs, or there is no basis.
        expected_s: When the continuations of the queue expect that, from which earlier forecasts say how far it may be;
            None as ``start_s``.
        drawn_s: From the first to the last start in these continuations; None as ``start_s``.
        end_s: When it ends; None if there is no basis.
        basis: What its run time was drawn from.
        missing: Why there is no interval; empty if there is.
    """

    job: int
    start_s: tuple[int, int] | None = None
    expected_s: int | None = None
    drawn_s: tuple[int, int] | None = None
    end_s: tuple[int, int] | None = None
    basis: str
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """How good the first forecasts of jobs that have started since were.

    Attributes:
        jobs: Jobs that have started after a forecast.
        hits: Those that started within the interval of their first.
    """

    jobs: int
    hits: int
