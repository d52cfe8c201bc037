"""What happens to a cluster: one event type with one total order, (time_ms, kind, sequence).

Drivers report events; decisions become events too (START, PREEMPT), so that the journal is one list and the state is
its fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from brim.core.trace import NONE
from brim.units import WHOLE_GPU


class Kind(IntEnum):
    """Kinds in the order in which equal times are handled: what frees first, then what asks, then what takes."""

    FINISHED = 0
    GAVE_UP = 1
    """The job failed and has no attempt left."""
    FAILED = 2
    """The attempt failed; the job goes back to the queue."""
    STOPPED = 3
    """A preempted job is gone from its GPUs."""
    NODE_DOWN = 4
    EVICTED = 5
    """GPUs vanished under the job (never a synonym of preemption)."""
    NODE_DRAIN = 6
    """The node takes no new jobs; who runs there goes on."""
    NODE_UP = 7
    CANCELLED = 8
    SUBMITTED = 9
    ELIGIBLE = 10
    """The job this one waits for has ended."""
    STARTED = 11
    """The job makes progress; until then it holds its GPUs and waits for them, or loads."""
    PREEMPT = 12
    START = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One submission. Per-GPU resources; NONE where not given.

    Attributes:
        id: Increasing in order of submission, never reused.
        user: Code into the user names of the state.
        submit_ms: Submission.
        gpus: Whole gang.
        share_milli: Thousandths of each GPU.
        cpu_milli: Milli-cores per GPU.
        mem_mib: MiB per GPU.
        gpu_type: Code of the cluster's GPU type, NONE for any.
        time_limit_ms: NONE for none.
        after: Id of the job this one waits for, NONE for none.
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


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``job`` and ``node`` are NONE where the kind has none.

    Attributes:
        time_ms: When.
        kind: What.
        job: Which job.
        node: Which node, for NODE_DOWN, NODE_DRAIN and NODE_UP.
        spec: The submission, for SUBMITTED only; ``held`` says that it waits for another job.
        held: See ``spec``.
        gpus: Granted (node, gpu) pairs in increasing order, for START only.
    """

    time_ms: int
    kind: Kind
    job: int = NONE
    node: int = NONE
    spec: JobSpec | None = None
    held: bool = False
    gpus: tuple[tuple[int, int], ...] = ()
