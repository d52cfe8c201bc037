"""Messages between a supervisor, its ranks and its clients (docs/decisions/0010-inside-the-job.md).

Each message is a frozen dataclass; ``codec`` writes it as one line of JSON. Rules that the fields do not show:

- A rank connects to ``$BRIM_CONTROL``. It sends ``hello`` with ``$BRIM_ID`` at once, and ``ready`` when it can join a
  group. A rank that never sends ``hello`` is a plain command: it gets SIGTERM instead of ``prepare``.
- A generation is one process group of the gang; torchrun calls it a rendezvous round. The numbers of generations and
  commands only grow. A message with a higher generation replaces those with a lower one, also while a rank waits for a
  ``store_address`` or for other ranks to join.
- A rank acts on ``form_group`` at once: if it is still in an older group, it undoes its step and leaves that group. The
  supervisor sends ``form_group`` at the start, to new ranks, after ``group_broken``, and when a rank is lost while a
  group forms. A rank acts on ``resize_group`` at the agreed step; it goes to the ranks that stay in a planned change.
  Both carry the same generation, members and leader. A rank that gets one without its own id sends ``leaving`` and
  exits with 0. The same generation may be sent twice, and is formed once.
- A rank also acts on ``member_lost`` at once: if it is in a group of that generation, or of an older one, it aborts the
  group, undoes its step and sends ``group_broken``. A rank whose collective has failed by then has sent
  ``group_broken`` already.
- ``leader`` is a rank that has the training state, if there is one. Its ``store_address`` is forwarded to the other
  members only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

CONTROL_VARIABLE: Final = "BRIM_CONTROL"
"""Environment: path of the supervisor's socket."""
ID_VARIABLE: Final = "BRIM_ID"
"""Environment: the rank's id, which is never used twice in a gang. Its place in the group is another number."""
GANG_VARIABLE: Final = "BRIM_GANG"
"""Environment: the gang's id, in every process of the gang."""
LOADER_WORKERS_VARIABLE: Final = "BRIM_LOADER_WORKERS"
"""Environment: most processes that ``workers="auto"`` may start on a rank."""
RANKS_MAX: Final = 128
"""Most ranks of a gang, which is on one machine. Ours: the supervisor sends all starts before it reads what the zygote
answers. With 280 ranks that worked, with 400 each waited for the other; 128 that all fail at once end in 7 s."""
RESUME_CODES: Final = (75, 85, 99)
"""Exit codes that ask to be resumed: sysexits' EX_TEMPFAIL, HTCondor's default for self-checkpointing, and SGE's
reschedule."""
PREEMPTED: Final = 75
"""Exit code of a job that was stopped on request before its end."""
MEASURED_EVERY_S: Final = 10.0
"""Time between two reports of measured step times of one configuration. Our choice."""


@dataclass(frozen=True, slots=True)
class FormGroup:
    """Supervisor to rank: form the process group of this generation. ``members`` are ids in rank order."""

    generation: int
    members: tuple[int, ...]
    leader: int
    command: int


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The address of the leader's store of this generation: from the leader, and forwarded to the other members."""

    generation: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class MemberLost:
    """Supervisor to rank: a member of this generation has ended, so its collectives cannot complete."""

    generation: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Supervisor to rank: save the state and leave within ``deadline_s``; all ranks do."""

    command: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ResizeGroup:
    """Supervisor to rank: at the agreed step, the members form the group of this generation, the other ranks leave."""

    command: int
    generation: int
    members: tuple[int, ...]
    leader: int


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Client to supervisor, and supervisor to rank: change the given settings, at the agreed step.

    The supervisor numbers the commands; from a client, ``command`` has no meaning. ``fence``: see `ResizeRequest`.
    ``loader_workers`` ends the search of ``workers="auto"`` with this number, ``loader_workers_max`` only bounds it.
    """

    command: int = 0
    global_batch: int | None = None
    loader_workers: int | None = None
    prefetch: int | None = None
    loader_workers_max: int | None = None
    fence: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """Supervisor to rank: finish the step, save, and exit with 0."""

    command: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Rank: connected. ``id`` is ``$BRIM_ID``, ``gang`` is ``$BRIM_GANG``.

    A rank whose supervisor was killed may reach another supervisor on the same path; ``gang`` lets that one refuse it.
    """

    id: int
    pid: int
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """Rank: imports are done and the model is built. ``sizes`` are the possible numbers of ranks; empty: any."""

    id: int
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """Rank: joined the group of this generation with the common state.

    ``step`` is the next step, ``tuned`` the number of the newest ``TuneSettings`` that has been applied.
    """

    generation: int
    step: int
    took_s: float = 0.0
    tuned: int = 0


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """Rank: a collective failed; the rank has destroyed the group and undone the step."""

    generation: int
    step: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """Rank: a checkpoint was verified and published. ``command`` 0: a periodic one, not requested by a command."""

    command: int
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """Rank: about to exit after an announced stop, or because it is not in the new group."""

    command: int
    step: int


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Rank: progress of training, at most once a second.

    Attributes:
        step: Optimizer steps that it has committed.
        samples: Samples that it has trained on.
        loss: The newest; the largest number there is for one that is not finite, which JSON cannot say.
        total: Samples of the whole job, if that is known.
    """

    step: int
    samples: int
    loss: float | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rank: its main thread has been inside a collective of this step for ``for_s``.

    The listening thread sends it about every second, from the first second on. A rank that is not waiting while all
    others are hangs; ranks that wait for different things (``what``) or in different steps would wait for ever.
    """

    generation: int
    step: int
    for_s: float
    what: str = "step"


@dataclass(frozen=True, slots=True)
class Finished:
    """Rank: its training has ended after ``step`` steps. ``together``: all ranks had done the last one by then."""

    step: int
    together: bool


@dataclass(frozen=True, slots=True)
class StepMeasurements:
    """Rank: measurements of steps on so many ``ranks``, soon after the configuration has changed and then regularly.

    ``loader_wait_s`` is the mean since ``loader_workers_max`` was last set; ``loader_workers`` are at work now.
    """

    step: int
    local_batch: int
    step_s: float
    sync_s: float | None = None
    loader_wait_s: float | None = None
    gradient_noise: float | None = None
    ranks: int | None = None
    global_batch: int | None = None
    loader_workers: int | None = None
    loader_workers_max: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Rank: the user's exception, as Python would print it."""

    traceback: str


@dataclass(frozen=True, slots=True)
class Error:
    """Either side: a message could not be used."""

    detail: str


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """Client: return the status of the gang."""


@dataclass(frozen=True, slots=True)
class ResizeRequest:
    """Client: change the number of ranks to ``size``.

    Attributes:
        size: Number of ranks; with a ``fence`` the most, as at the launch: the job may not run on every number.
        devices: The devices that the ranks use afterwards, at least one each; ranks on other devices leave. Empty: the
            present ones.
        fence: The ``fence`` of the launch, and a number that grows with each request that changes something: a request
            for another gang, or one that a newer one has overtaken, is refused; a repeated one changes nothing. Empty:
            the request of a person, which is not checked.
    """

    size: int
    devices: tuple[str, ...] = ()
    fence: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PreemptRequest:
    """Client: save and stop all ranks, within ``grace_s`` if given. A later request can only shorten the time."""

    grace_s: float | None = None
    fence: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Client: finish the step, save, and exit with 0."""


@dataclass(frozen=True, slots=True)
class KillRequest:
    """Client: send SIGKILL to the rank with this id, and to all processes it has started, without notice."""

    id: int


@dataclass(frozen=True, slots=True)
class Response:
    """Supervisor to client. ``status`` is set for ``StatusRequest``: see ``client_requests.status``."""

    ok: bool
    detail: str = ""
    status: dict[str, Any] | None = None


Message: TypeAlias = (
    FormGroup | StoreAddress | MemberLost | Prepare | ResizeGroup | TuneSettings | Stop
    | Hello | Ready | GroupFormed | GroupBroken | Saved | Leaving | TrainingProgress | Waiting | Finished
    | StepMeasurements | Failed | Error
    | StatusRequest | ResizeRequest | PreemptRequest | StopRequest | KillRequest | Response
)  # fmt: skip
Request: TypeAlias = StatusRequest | ResizeRequest | PreemptRequest | StopRequest | KillRequest | TuneSettings


def check_request(request: Request) -> None:
    """Check the values of a request.

    Raises:
        ValueError: one of them is not possible; the text says what was found and what was expected.
    """
    match request:
        case PreemptRequest(grace_s=float(grace_s)) if not 0 <= grace_s < math.inf:
            raise ValueError(f"preempt: found {grace_s:g} s, expected a finite time of at least 0")
        case ResizeRequest(size=size) if size > RANKS_MAX:
            raise ValueError(f"found size {size}, expected at most {RANKS_MAX}")
        case TuneSettings():
            for name, least in (
                ("global_batch", 1), ("loader_workers", 0), ("prefetch", 1), ("loader_workers_max", 0)
            ):
                value = getattr(request, name)
                if value is not None and value < least:
                    raise ValueError(f"tune: found {name} {value}, expected at least {least}")
        case _:
            pass
