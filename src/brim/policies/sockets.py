"""The five sockets: arguments and results of parts. A part is a frozen dataclass of its constants with ``__call__``.

Parts are pure: equal snapshot and beliefs give an equal answer, and the order of the input rows does not matter.

A part of any socket may also have

- ``remember(snapshot) -> IntArray``: what to store for each job until the next round, (J,). The state keeps it and the
  journal records it; the part, and ``remember`` itself, read it as ``snapshot.jobs.memo``. With ``memory_columns = K``
  it is K integers per job, (J, K). A part without ``remember`` reads what the order part stores.
- ``wakes_on``: kinds of event after which a round is due for it, besides ``WAKES``.
- ``acts_when_idle = True``: rounds are due for it when no job waits, as long as there is a job; without it, only for a
  size part with ``resizes_running``, as long as some job has several sizes or batches, or may have ranks on CPU.
- ``settled(snapshot, beliefs) -> bool``, with ``acts_when_idle``: whether nothing but an event can change what the part
  decides while no job waits. The period then causes no round. The part is asked in each round whose plan changes no
  regular job while none waits, and about padding jobs apart. A part without it has a round each period.

docs/decisions/0007 says how elastic sizes, shared GPUs, revocable grants and CPU ranks fit these sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Final, Protocol

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.events import Kind
from brim.core.snapshot import Snapshot
from brim.core.tables import EMPTY, NOBODY, Grants
from brim.errors import ConfigError, one_line

SOCKETS: Final = ("order", "size", "place", "feed", "fill")
_DECLARATIONS: Final = (
    "asks_run_times", "resizes_running", "moves_running", "tunes_running", "counts_cores", "acts_when_idle",
    "settled", "asks_exchange", "asks_loading", "remember", "takes_padding", "with_worth", "shares_gpus",
    "places_on_cpu",
)
WAKES: Final = frozenset({
    Kind.FINISHED, Kind.GAVE_UP, Kind.FAILED, Kind.STOPPED, Kind.EVICTED, Kind.NODE_UP, Kind.GPU_OPENED,
    Kind.CANCELLED, Kind.SUBMITTED, Kind.ELIGIBLE, Kind.HELD,
})
"""Events that wake every policy. The loss of a node evicts its jobs, and the evictions wake the policy. Reports of jobs
do not; the next round reads them."""
SIZES_ON_CPU: Final = ("cpu_workers", "worker_milli", "servers", "server_milli")
"""Columns of ``Sizes`` about ranks on CPU."""
_LONGEST_MS: Final = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The size of each job from now on (J); 0 GPUs means "not now".

    Attributes:
        gpus: GPUs.
        global_batch: Global batch in samples, -1 for jobs that have none. Empty: the batch each job has, or asks for.
        analyse: Jobs whose step times are measured at several batch sizes when they start. Empty: none.
        reject: Waiting jobs to reject for good. Empty: none.
        cpu_workers: Workers on CPU. Empty: none. A job with some and 0 GPUs runs on CPU alone.
        worker_milli: Milli-cores of each of these. Empty: as many as jobs ask for per rank.
        servers: Parameter servers. Empty: none.
        server_milli: Milli-cores of each of these. Empty: as many as jobs ask for per rank.
    """

    gpus: IntArray
    global_batch: IntArray = field(default_factory=lambda: EMPTY)
    analyse: BoolArray = field(default_factory=lambda: NOBODY)
    reject: BoolArray = field(default_factory=lambda: NOBODY)
    cpu_workers: IntArray = field(default_factory=lambda: EMPTY)
    worker_milli: IntArray = field(default_factory=lambda: EMPTY)
    servers: IntArray = field(default_factory=lambda: EMPTY)
    server_milli: IntArray = field(default_factory=lambda: EMPTY)


class Order(Protocol):
    """Decides which job is served first."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """Return a permutation of the job rows, first served first, shape (J,)."""
        ...


class Size(Protocol):
    """Decides how many GPUs each job should have. ``resizes_running`` says whether it may change running jobs.

    A part with ``with_worth`` is also asked about the whole plan (``WholePlan``).
    """

    resizes_running: ClassVar[bool]

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """Return the sizes of all jobs."""
        ...


Worth = Callable[[IntArray, BoolArray], FloatArray]
"""The worth of P plans, in one unit of the part's choice (P,), of the GPUs of each job (P, J) and of whether it starts
or restarts (P, J)."""


class WholePlan(Size, Protocol):
    """A size part that also says what a plan is worth, all restarts counted: those of jobs that places move, too.

    A round then changes running jobs only if its plan is worth more than one that leaves them alone
    (``brim.engine.gate``). Nodes that are equal are exchanged first, so that fewer jobs move.
    """

    def with_worth(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> tuple[Sizes, Worth]:
        """Return the sizes of all jobs, and what says how much plans are worth. Asked instead of ``__call__``."""
        ...


class Place(Protocol):
    """Decides which GPUs each job gets, and which share of them, in the given order; running jobs stay where they are.

    A job is granted as many GPUs as its size says, or none. If that many are not free together, it may be granted
    fewer: those it holds already, or any number that it can run on (from its ``gpus_min``). All GPUs of a job have one
    share. A part that builds its grants anew copies the ``revocable`` mark of jobs that stay. A part that may move
    running jobs, whether or not their size changes, has ``moves_running = True``; one that lets jobs share GPUs,
    ``shares_gpus = True``; one that grants ranks on CPU to the jobs that may have some, ``places_on_cpu = True``.
    """

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """Return the grants wanted after this round, and why each job without grants waits."""
        ...


class Fill(Protocol):
    """Decides which jobs use the remaining GPUs: adds grants for padding jobs of any size, changes no other grant.

    It may mark what it adds as revocable. The grants it is given have their marks from the place part.

    A part with ``takes_padding = True`` is the only one that decides about jobs of class padding: Order, Size and Place
    do not see them, nor what they hold, and the part grants GPUs to no others. Whatever it does not grant anew is taken
    from them. Rounds that only padding jobs have a reason for ask this part and Feed alone; while there is one they are
    due at least every ``fill_period_ms``, and more often after an event.
    """

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> Grants:
        """Return the given grants and those that were added."""
        ...


class Feed(Protocol):
    """Decides the number of data-loading processes per rank, of placed jobs and of jobs that the fill part added.

    A policy that changes running jobs also gives running jobs the number it returns for them; a feed part declares that
    it does so with ``tunes_running = True``. With ``counts_cores = True`` each loader worker takes a core of its own
    from its node, beside the cores that jobs ask for, and a plan that grants more cores than a node has is refused;
    without it, loader workers run on the cores that their ranks have.

    Where the fill part takes padding jobs, the part is asked twice: for regular jobs before Fill, and for padding jobs
    after it, then with the cores that the former leave, if it counts cores.
    """

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> IntArray:
        """Return loader workers per rank, shape (J,), 0 where the cluster's cores are not known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Five parts, a period and a name.

    Attributes:
        name: Name in reports.
        order: Decides which job first.
        size: Decides how many GPUs.
        place: Decides which GPUs.
        feed: Decides how many loader workers, also of jobs that the fill part added.
        fill: Decides which jobs use the remaining GPUs.
        period_ms: Longest time between rounds while a job waits, one runs and may be resized, or a part that acts when
            no job waits is not settled; 0 for rounds on events only.
        gap_ms: Shortest time between two rounds, if longer than the driver's.
        fixed_rounds: Rounds take place at whole multiples of ``period_ms`` only, as in a scheduler that wakes at fixed
            times.
        oracle: Whether the policy needs true run times; the controller refuses such a policy.
        source: Paper or manual the policy comes from.
    """

    name: str
    order: Order
    size: Size
    place: Place
    feed: Feed
    fill: Fill
    period_ms: int = 0
    gap_ms: int = 0
    fixed_rounds: bool = False
    oracle: bool = False
    source: str = ""

    _declared: frozenset[tuple[str, str]] = field(init=False, repr=False, compare=False)
    wakes_on: frozenset[Kind] = field(init=False, repr=False, compare=False)
    """Kinds of event after which a round is due: ``WAKES``, and those that parts add."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name and self.name.isprintable()):
            raise ConfigError(f"policy name {self.name!r}: expected one or more printable characters")
        for what in ("period_ms", "gap_ms"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) <= _LONGEST_MS:
                raise ConfigError(
                    f"policy {self.name!r}: {what} is {value!r}, expected a whole number from 0 to {_LONGEST_MS}"
                )
            object.__setattr__(self, what, int(value))
        if self.fixed_rounds and self.period_ms <= 0:
            raise ConfigError(f"policy {self.name!r}: fixed_rounds needs a period_ms above 0, found {self.period_ms}")
        object.__setattr__(self, "_declared", frozenset(
            (socket, what) for socket in SOCKETS for what in _DECLARATIONS if self._read(socket, what)
        ))
        added = [kind for socket in SOCKETS for kind in self._read(socket, "wakes_on")]
        odd = [kind for kind in added if not isinstance(kind, Kind)]
        if odd:
            raise ConfigError(f"policy {self.name!r}: wakes_on has {odd[0]!r}, expected kinds of event")
        object.__setattr__(self, "wakes_on", WAKES.union(added))

    def _read(self, socket: str, what: str) -> Any:
        """Read what a part declares, once: an attribute may be a property, which can raise or change."""
        part = getattr(self, socket)
        try:
            _check_part(f"policy {self.name!r}", socket, part)
            declared: Any = getattr(part, what, False)
            if what == "wakes_on":
                return frozenset(declared) if declared else frozenset()
            return bool(declared)
        except ConfigError:
            raise
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(f"policy {self.name!r}, {socket}") from error
        except BaseException as error:  # SystemExit, too, ends in one line
            raise ConfigError(
                f"policy {self.name!r}, {socket}: {what} raises {type(error).__name__}: {one_line(error)}"
            ) from error

    def declares(self, socket: str, what: str) -> bool:
        """Whether a part has a true attribute of this name, as read when the policy was made."""
        return (socket, what) in self._declared

    @property
    def resizes_running(self) -> bool:
        """Whether the size part may change running jobs."""
        return self.declares("size", "resizes_running")

    @property
    def changes_running(self) -> bool:
        """Whether some part may resize, move or tune running jobs; otherwise the policy may only preempt them."""
        return (
            self.resizes_running or self.declares("place", "moves_running") or self.declares("feed", "tunes_running")
        )

    @property
    def acts_when_idle(self) -> bool:
        """Whether a round may change something when no job waits, besides the sizes of jobs that have several."""
        return any(self.declares(socket, "acts_when_idle") for socket in SOCKETS)

    @property
    def asks_run_times(self) -> bool:
        """Whether some part reads estimates of run times; parts that do not declare it receive none."""
        return any(self.declares(socket, "asks_run_times") for socket in SOCKETS)

    @property
    def takes_padding(self) -> bool:
        """Whether the fill part decides about padding jobs, which are then invisible to Order, Size and Place."""
        return self.declares("fill", "takes_padding")

    @property
    def shares_gpus(self) -> bool:
        """Whether the place part lets jobs share GPUs that asked for GPUs of their own."""
        return self.declares("place", "shares_gpus")

    @property
    def places_on_cpu(self) -> bool:
        """Whether the place part grants ranks on CPU: jobs that run on CPU alone never run under another policy."""
        return self.declares("place", "places_on_cpu")

    @property
    def asks_exchange(self) -> bool:
        """Whether the size part reads the times of gradient exchanges, which are measured before the replay begins."""
        return self.declares("size", "asks_exchange")

    @property
    def asks_loading(self) -> bool:
        """Whether the feed part reads what is known of the loaders of models."""
        return self.declares("feed", "asks_loading")


def _check_part(policy: str, socket: str, part: object) -> None:
    kind = type(part).__name__
    if isinstance(part, type):
        raise ConfigError(f"{policy}, {socket}: found the class {part.__name__}, expected {part.__name__}()")
    if not callable(part):
        raise ConfigError(f"{policy}, {socket}: found {kind}, expected a part that can be called")
    if socket == "size" and not hasattr(part, "resizes_running"):
        raise ConfigError(
            f"{policy}: its size part {kind} does not say whether it may change running jobs: add "
            "`resizes_running: ClassVar[bool] = False` (or True) to it"
        )
