"""Messages between the controller and a node agent: JSON lines, see ``brim.gang.codec``. An agent connects.

An *attempt* is one run of a job; its number only grows, and fences it: the agent writes it down before it forks, and
never starts a job under a number that is not higher than all before. Within an attempt, orders carry a growing
``sequence``, and an agent ignores an order that is older than the newest it has accepted.

- After each connect, the agent sends `AgentHello`, an `AttemptSeen` of every attempt that the controller may have to
  know, a `DeviceSeen` of every device, and `Synced`. Afterwards it sends these messages when something changes. An
  ended attempt is told of after every connect until `ForgetAttempt`.
- Every order may be repeated, and changes nothing then. The controller repeats what it has not seen to hold after each
  `Synced`.
- A line that cannot be read is answered with nothing: it is logged and skipped, so that a newer peer may send more.
  Another version of the protocol closes the connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from brim.gang.codec import Codec

VERSION: Final = 1
"""Of the meaning of these messages, in `AgentHello`; fields may be added without a new one."""
NONE: Final = -1
"""A number that does not exist or was not decided."""
ON_CPU: Final = -1
"""In the place of a device: a rank on CPU."""

STARTING: Final = "starting"
"""The attempt is accepted; its first process may not exist yet."""
RUNNING: Final = "running"
"""Its processes exist."""
STOPPING: Final = "stopping"
"""It was asked to stop, or its processes that are left are being killed."""
ENDED: Final = "ended"
"""All its processes are proven gone, and the end is on disk."""

FINISHED: Final = "finished"
"""It ended by itself with exit code 0, or finished its work while it was asked to stop."""
STOPPED: Final = "stopped"
"""It ended because it was asked to, and can be resumed."""
FAILED: Final = "failed"
"""It ended by itself in another way; ``exit_code`` and ``detail`` say how."""
UNUSABLE: Final = "unusable"
"""Nothing was started, and another attempt would not help: the capture or the order cannot be used."""
LOST: Final = "lost"
"""Its end was not seen: ``exit_code`` is unknown. ``blame`` is ``BLAME_NODE`` if its agent was gone, too, or the node
has restarted; it is empty if only its supervisor or its zygote ended, which the attempt may have killed."""

BLAME_JOB: Final = "job"
BLAME_NODE: Final = "node"
BLAME_NEIGHBOUR: Final = "neighbour"

OPEN: Final = "open"
"""The device can be used."""
FOREIGN: Final = "foreign"
"""Processes that no known attempt has started use it; ``detail`` names them."""
QUARANTINED: Final = "quarantined"
"""It is not proven empty, or does not answer; ``detail`` says why. It opens again when it is seen to be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Controller: start this attempt of a job.

    The agent refuses the start (`AttemptSeen` ended, ``unusable``) if the capture is not in its folder, has another
    digest, has no such index, or was used by another job with it, and if the job has finished. It refuses an attempt
    that is not above all earlier ones of the job (ended, ``lost``). While a process of an older attempt may live, the
    new one waits (``starting``).

    Attributes:
        job, attempt, sequence: See above.
        capture: Name of the capture, 32 hexadecimal digits.
        digest: SHA-256 of the capture's file, in hexadecimal digits.
        devices: Numbers of the devices, as in `AgentHello`; or ``ON_CPU``, once for each rank on CPU.
        ranks: Number of processes, at most one per device, which form a gang; 0: one process that sees all devices.
        batch: Global batch; ``NONE``: the job's own.
        loader_workers: Most data-loading processes of each rank that finds their number itself; ``NONE``: not decided.
        grace_s: Time from a request to stop to SIGKILL, unless the request names another.
        name: The job's name, for people.
        array: First job of its array; ``NONE`` for a job in none.
        index: Its index in the array; ``NONE`` for a job in none.
        cpu_milli: Milli-cores of each rank on CPU.
        mem_mib_per_gpu: Memory of the machine that the job asked for per device; 0 if it asked for none.
        shares: Whether attempts of other users may be on its devices, by design: their processes do not keep it back.
        analyse: If above 0, its steps are timed first, on one device, at local batches down to the one of so many
            ranks (``beliefs.analyser``).
    """

    job: int
    attempt: int
    sequence: int
    capture: str
    digest: str
    devices: tuple[int, ...]
    ranks: int = 0
    batch: int = NONE
    loader_workers: int = NONE
    grace_s: float = 30.0
    name: str = ""
    array: int = NONE
    index: int = NONE
    cpu_milli: int = 0
    mem_mib_per_gpu: int = 0
    shares: bool = False
    analyse: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeAttempt:
    """Controller: train on these devices, with this number of ranks; the rest as in `StartAttempt`.

    It is done when `AttemptSeen` has this sequence: its ``devices`` are then those that the attempt uses: some of these
    if it cannot run on so many ranks, the old ones if it could not be resized (``detail`` says why).
    """

    job: int
    attempt: int
    sequence: int
    devices: tuple[int, ...]
    ranks: int
    batch: int = NONE
    loader_workers: int = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneAttempt:
    """Controller: change these settings at a step that all ranks agree on; ``NONE`` leaves one as it is."""

    job: int
    attempt: int
    sequence: int
    batch: int = NONE
    loader_workers: int = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """Controller: end this attempt; it may save until SIGTERM, and is killed ``grace_s`` after the first request.

    A later request with a shorter time shortens it. An attempt that has not been started is never started.
    ``reason``: preempted, cancelled, requeued, time limit or down.
    """

    job: int
    attempt: int
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetAttempt:
    """Controller: the end of this attempt is durable here, do not tell it again. Its logs stay."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello:
    """Agent: connected.

    Attributes:
        version: ``VERSION``.
        user: Name of the user, for people; who it is, the controller reads from the socket.
        boot_id: Differs after each start of the machine.
        devices: Names of the devices: ``cpu0`` and so on, or UUIDs of GPUs. Numbers of devices are places in this list.
    """

    version: int
    user: str
    boot_id: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """Agent: what is known of an attempt. Facts of an ended attempt do not change any more.

    Attributes:
        job, attempt: Which.
        sequence: The newest order that holds, or was refused; ``NONE`` for an attempt that was never accepted.
        state: ``STARTING``, ``RUNNING``, ``STOPPING`` or ``ENDED``.
        devices: Devices on which processes of the attempt may be.
        ranks: Number of ranks; 0 for a plain process.
        outcome: Of an ended attempt: ``FINISHED``, ``STOPPED``, ``FAILED``, ``UNUSABLE`` or ``LOST``.
        exit_code: Of an ended attempt, as of a shell (128 + signal); ``NONE`` if it is unknown.
        detail: For people.
        blame: Who caused a failure: "", ``BLAME_JOB``, ``BLAME_NODE`` or ``BLAME_NEIGHBOUR``.
        has_begun: Whether it makes progress. A plain process does from its start; a gang from its first optimizer step,
            or, if no rank of it speaks to its supervisor within ``attempts.PLAIN_MS``, from then on.
        started_ms_ago: Time since its first process began, of which the machine's suspends are part; ``NONE`` if there
            was none, or it is unknown.
        ended_ms_ago: Time since its end; ``NONE`` if it has not ended or that is unknown.
        told_ms: When this was told, as time since the machine was started: a controller that was suspended reads it
            later. ``NONE``: unknown.
        processes: Of an attempt that has not ended, the processes that are known: id and start time (in clock ticks
            since the machine started) of one after the other. If the agent never returns, they say whether it lives.
        cpu_ms, memory_peak_bytes, processes_peak, oom_kills, oom_at_limit: Of an ended attempt that had a cgroup, what
            it has used, measured by the kernel (``gang.usage.Usage``); ``NONE`` if that was not measured. ``oom_kills``
            above 0: the kernel has killed so many of its processes because memory was short.
        gpu_energy_j: Of an ended attempt on GPUs that measure it, what these used meanwhile, J; ``NONE`` if that was
            not measured from its begin on. Attempts that share a GPU have equal parts.
        analysis: If its steps were timed first: a local batch and the microseconds of a step on one device, of one
            after the other.
    """

    job: int
    attempt: int
    sequence: int
    state: str
    devices: tuple[int, ...] = ()
    ranks: int = 0
    outcome: str = ""
    exit_code: int = NONE
    detail: str = ""
    blame: str = ""
    has_begun: bool = True
    started_ms_ago: int = NONE
    ended_ms_ago: int = NONE
    told_ms: int = NONE
    processes: tuple[int, ...] = ()
    cpu_ms: int = NONE
    memory_peak_bytes: int = NONE
    processes_peak: int = NONE
    oom_kills: int = NONE
    oom_at_limit: int = NONE
    analysis: tuple[int, ...] = ()
    gpu_energy_j: float = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """Agent: measurements of an attempt that trains with ``brim.train``, at most once a second. None: unknown.

    Attributes:
        job, attempt: Which.
        ranks: Number of ranks that train.
        step: Optimizer steps done.
        samples: Samples done since the job began.
        total: Samples that the job needs.
        samples_per_s: Throughput of all ranks together.
        loss: The newest that the job has reported.
        step_s: Time of an optimizer step.
        sync_s: The part of it in which ranks exchange gradients.
        loader_wait_ratio: Part of the time of a step, from 0 to 1, in which a rank waits for data: that of the rank
            that waits most, since ``loader_workers_max`` was set.
        loader_workers: Data-loading processes of the rank that has most.
        loader_workers_max: Most that each rank may have: what the newest order that has reached all of them says.
        local_batch: Samples of one rank in one step.
        global_batch: Samples of one step.
        gradient_noise: The gradient noise scale.
        checkpoint_step: Step of the newest checkpoint.
        sizes: Numbers of ranks on which it can train; empty: any.
    """

    job: int
    attempt: int
    ranks: int
    step: int | None = None
    samples: float | None = None
    total: float | None = None
    samples_per_s: float | None = None
    loss: float | None = None
    step_s: float | None = None
    sync_s: float | None = None
    loader_wait_ratio: float | None = None
    loader_workers: int | None = None
    loader_workers_max: int | None = None
    local_batch: int | None = None
    global_batch: int | None = None
    gradient_noise: float | None = None
    checkpoint_step: int | None = None
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeen:
    """Agent: the state of one device, and how it is used.

    Attributes:
        device: Its number.
        state: ``OPEN``, ``FOREIGN`` or ``QUARANTINED``.
        detail: For people.
        memory_used_mib: Memory in use, MiB.
        utilisation_ratio: Part of the time in which it computed, from 0 to 1.
        power_w: Present power.
        modelled: Whether the last three are modelled, not measured; a CPU slot measures none of them.
    """

    device: int
    state: str
    detail: str = ""
    memory_used_mib: int = 0
    utilisation_ratio: float = 0.0
    power_w: float = 0.0
    modelled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Agent: all attempts and devices have been told since `AgentHello`."""


AgentOrder: TypeAlias = StartAttempt | ResizeAttempt | TuneAttempt | StopAttempt | ForgetAttempt
AgentReport: TypeAlias = AgentHello | AttemptSeen | AttemptProgress | DeviceSeen | Synced

ORDERS: Final[Codec[AgentOrder]] = Codec(*AgentOrder.__args__)
"""Controller to agent."""
REPORTS: Final[Codec[AgentReport]] = Codec(*AgentReport.__args__)
"""Agent to controller."""
