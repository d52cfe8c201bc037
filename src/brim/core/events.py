"""Events of a cluster: one event type with one total order, (time_ms, kind, sequence).

Drivers report events. Decisions become events too (PREEMPT, RESIZE, START ...), so the journal is one list, and folding
that list gives the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from brim.core.setting import Setting
from brim.core.trace import NONE, JobClass
from brim.errors import ConfigError
from brim.units import WHOLE_GPU


class Kind(IntEnum):
    """Kinds of event, in the order in which events at equal times are handled: frees, then requests, then takes."""

    FINISHED = 0
    GAVE_UP = 1
    """The job failed and has no attempts left."""
    FAILED = 2
    """The attempt failed; the job goes back to the queue."""
    STOPPED = 3
    """A preempted job has left its GPUs."""
    NODE_DOWN = 4
    EVICTED = 5
    """The job lost its GPUs because a node was lost; never a synonym of preemption."""
    NODE_DRAIN = 6
    """The node takes no new jobs; jobs already on it continue."""
    GPU_WITHHELD = 7
    """One GPU takes no new jobs, because somebody decided so; a job already on it continues."""
    GPU_QUARANTINED = 8
    """One GPU takes no new jobs, because it is not as it should be: an ended attempt left processes or memory."""
    NODE_UP = 9
    GPU_OPENED = 10
    """One GPU takes jobs again."""
    CANCELLED = 11
    SUBMITTED = 12
    ELIGIBLE = 13
    """Nothing holds the job back any more: the job it waited for has ended, or its user has released it."""
    STARTED = 14
    """The job has begun to make progress; before that it holds its GPUs while it waits for them or loads."""
    REPORTED = 15
    """The job reported what was observed: its progress, speed, loss and slowdown, and its step times."""
    PREEMPT = 16
    REJECT = 17
    """The job is rejected for good."""
    RESIZE = 18
    START = 19
    TUNE = 20
    """The job continues on the same GPUs with another batch, share or other loader workers, or as revocable or not."""
    HELD = 21
    """A waiting job is held back: by its user, or because what it needs is not there. ELIGIBLE lets it wait again."""
    NODE_SLEEP = 22
    """A node without jobs falls asleep; it still takes new jobs, which wait until it is awake."""
    NODE_WAKE = 23
    """A sleeping node begins to wake, because a job was given its GPUs."""


class Sample(NamedTuple):
    """Time of one synchronising step in one configuration, as a job measured it.

    Attributes:
        nodes: Nodes the gang was on.
        gpus: GPUs of the gang; 0 for one on CPU.
        local_batch: Samples per GPU, or rank on CPU, and micro-step.
        step_s: Seconds for forward, backward and the part of the synchronisation that is not hidden behind them.
        sync_s: The part of ``step_s`` spent waiting for synchronisation.
    """

    nodes: int
    gpus: int
    local_batch: int
    step_s: float
    sync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Progress and measurements that a running job reports.

    Attributes:
        samples_done: Effective samples: the number that would give the same progress at the initial batch.
        samples_per_s: Present rate at which ``samples_done`` grows.
        grad_var: Variance of the gradient at the initial batch, NaN where not reported.
        grad_sqr: Squared norm of the gradient, same unit; NaN where not reported.
        seen: Step times measured since the last report.
        loss: Loss of the training, NaN where not reported, infinite where it was no finite number.
        slowdown_ratio: Step time relative to the same step with the GPUs alone, at least 1; NaN where not observed.
        loader_wait_ratio: Part of the step time spent waiting for data, 0 to 1; NaN where not reported.
        batch: Global batch with which the job trains by itself, if its user has named none; NONE where not reported.
        sizes: The numbers of GPUs it can use, of those that it may be given; empty for all, or where not reported.
        samples_max: Samples after which it ends in any case, NONE where not reported.
    """

    samples_done: float
    samples_per_s: float
    grad_var: float = math.nan
    grad_sqr: float = math.nan
    seen: tuple[Sample, ...] = ()
    loss: float = math.nan
    slowdown_ratio: float = math.nan
    loader_wait_ratio: float = math.nan
    batch: int = NONE
    sizes: tuple[int, ...] = ()
    samples_max: int = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One submission. Resources are per GPU; NONE where not given.

    Attributes:
        id: Increasing in order of submission, never reused.
        user: Code of the user; the state holds the names.
        submit_ms: Time of submission.
        gpus: GPUs of the whole gang.
        share_milli: Thousandths of each GPU.
        cpu_milli: Milli-cores per GPU.
        mem_mib: MiB per GPU.
        gpu_type: Code of the cluster's GPU type, NONE for any.
        time_limit_ms: NONE for none.
        after: Id of the job this one waits for, NONE for none.
        gpus_min: Fewest GPUs it can run on; NONE for ``gpus``: a rigid job.
        gpus_max: Most GPUs it can run on; NONE for ``gpus``.
        batch: Global batch its user asked for, in samples.
        batch_min: Smallest global batch that does not harm the result.
        batch_max: Largest global batch that does not harm the result.
        local_batch_min: Fewest samples per GPU and micro-step.
        local_batch_max: Most samples that fit one GPU.
        profile: Code of the model it trains.
        gradient_bytes: Bytes its ranks exchange in each step.
        cpu_ranks_max: Most ranks on CPU, beside those on GPUs or instead of them, parameter servers among them.
        servers: Parameter servers its user asked for; 0 for a job whose ranks exchange gradients among themselves.
        target_loss_ppm: Loss at which its training ends, in millionths; NONE where not given.
        samples_max: Samples after which its training ends in any case; NONE where not given.
        priority: Larger is served first, among policies that read it.
        job_class: ``JobClass`` code.
        deadline_ms: When it should have ended, NONE for no deadline.
        gpu_util_milli: Thousandths of time in which it keeps its GPUs busy when it has them alone.
        gpu_mem_mib: Most memory it uses of each of its GPUs, in MiB.
        sizes: The numbers of GPUs it can run on, in increasing order, the first ``gpus_min`` and the last ``gpus_max``;
            empty for all from ``gpus_min`` to ``gpus_max``.
    """

    id: int
    user: int
    submit_ms: int
    gpus: int
    share_milli: int = WHOLE_GPU
    cpu_milli: int = 0
    mem_mib: int = 0
    gpu_type: int = NONE
    time_limit_ms: int = NONE
    after: int = NONE
    gpus_min: int = NONE
    gpus_max: int = NONE
    batch: int = NONE
    batch_min: int = NONE
    batch_max: int = NONE
    local_batch_min: int = NONE
    local_batch_max: int = NONE
    profile: int = NONE
    gradient_bytes: int = NONE
    cpu_ranks_max: int = 0
    servers: int = 0
    target_loss_ppm: int = NONE
    samples_max: int = NONE
    priority: int = 0
    job_class: int = JobClass.REGULAR
    deadline_ms: int = NONE
    gpu_util_milli: int = NONE
    gpu_mem_mib: int = NONE
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.sizes and (list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1):
            raise ConfigError(f"job {self.id}: sizes are {self.sizes}, expected numbers of GPUs in increasing order")
        if self.sizes and self.limits != (self.sizes[0], self.sizes[-1]):
            raise ConfigError(
                f"job {self.id}: runs on {self.limits[0]} to {self.limits[1]} GPUs, expected the ends of its sizes "
                f"{self.sizes}"
            )

    @property
    def limits(self) -> tuple[int, int]:
        """Fewest and most GPUs."""
        least, most = (self.sizes[0], self.sizes[-1]) if self.sizes else (self.gpus, self.gpus)
        return least if self.gpus_min == NONE else self.gpus_min, most if self.gpus_max == NONE else self.gpus_max


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``job`` and ``node`` are NONE for kinds that have none.

    Attributes:
        time_ms: Time of the event.
        kind: Kind of event.
        job: Job id.
        node: Node, for events of nodes and of GPUs.
        spec: The submission, for SUBMITTED only.
        held: Whether the submitted job waits for another job, for SUBMITTED only.
        report: What the job reported, for REPORTED only.
        setting: What the job has from now on, for START, RESIZE and TUNE only.
        gpu: Index on the node, for events of GPUs only.
        user: Name of the user, for SUBMITTED only; empty if the state was told all users beforehand.
    """

    time_ms: int
    kind: Kind
    job: int = NONE
    node: int = NONE
    spec: JobSpec | None = None
    held: bool = False
    report: Report | None = None
    setting: Setting | None = None
    gpu: int = NONE
    user: str = ""
