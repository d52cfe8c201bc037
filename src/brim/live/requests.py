"""What a user asks for: one job as data, checked where it enters.

A request names a capture (the command, its environment and working folder, which only the user's own agent reads) and
what the scheduler has to know. It imports nothing beyond the standard library, so that the command line can use it and
still answer at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, cast

from brim.errors import ConfigError
from brim.units import CENTURY_MS, MS_PER_S

NONE: Final = -1
"""Not given. The same as ``brim.core.trace.NONE``, which needs NumPy."""
ON_CPU: Final = -1
"""In the place of a device: a rank on CPU. The same as in ``brim.agent.protocol``, which few commands load."""
REQUEST_BYTES_MAX: Final = 1 << 16
"""Longest JSON text of one request. A valid one is shorter, as each field has a limit: 54 kB with all at their ends."""
JOBS_MAX: Final = 20_000
"""Most jobs of a user that may not have ended, unless the operator says otherwise; so also most of one submission, of
an array, and of a range of ids. Ours: 8 MB of rows, a second of work."""
AFTER_MAX: Final = 1_000
"""Most jobs that one job waits for, ours: 20 kB of JSON."""
SIZES_MAX: Final = 1_000
"""Most sizes that a job names, ours: 12 kB of JSON. A range without gaps needs none."""
COUNT_MAX: Final = (1 << 31) - 1
"""Largest count (GPUs, samples, MiB, attempts), ours: more than any machine has, and exact in every JSON reader."""
CORES_PER_GPU_MAX: Final = 1e6
"""Most cores for each GPU, ours: more than any machine has."""
ID_MAX: Final = (1 << 53) - 1
"""Largest job id: integers are exact to here in every JSON reader."""
LOSS_MAX: Final = 1e9
"""Largest target loss; ours: in millionths it is exact in every JSON reader."""
GRACE_S_MAX: Final = 86_400.0
"""Longest time between the request to stop and the end; ours: a day."""
PRIORITY_MAX: Final = 1_000_000
"""Priorities are from minus this to this; ours."""
CENTURY_S: Final = CENTURY_MS // MS_PER_S
UNIX_S_MAX: Final = 253_402_300_799
"""The last second of the year 9999, which is the last that calendars can show."""

Ranks: TypeAlias = Literal["one", "per-gpu"]
ServiceClass: TypeAlias = Literal["regular", "urgent", "padding"]
DeviceKind: TypeAlias = Literal["gpu", "cpu"]

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_GPU_TYPE: Final = re.compile(r"[A-Za-z0-9._ -]{0,64}", re.ASCII)
_CAPTURE: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


GRACE_S: Final = 30.0
"""Grace of a job that names none. Ours."""
PADDING_GRACE_S: Final = 5.0
"""Grace of a padding job that names none: regular jobs wait for it no longer. Ours, as in the twin."""


def grace_s_of(job_class: ServiceClass) -> float:
    """Grace of a job of this class that names none, in seconds."""
    return PADDING_GRACE_S if job_class == "padding" else GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job as its user asks for it; two requests are the same request if they are equal.

    Attributes:
        name: Name that users see; letters, digits, ``.``, ``_`` and ``-``, at most 64.
        capture: Id of the capture in its user's folder, 32 hexadecimal digits.
        digest: SHA-256 of the capture's file, 64 hexadecimal digits.
        gpus: GPUs of the whole job.
        gpus_min: Fewest GPUs on which it can run; NONE for ``gpus``.
        gpus_max: Most GPUs on which it can run; NONE for ``gpus``.
        sizes: The numbers of GPUs on which it can run, in increasing order; empty for all from fewest to most.
        devices: Kinds of device on which it can run: ``gpu``, ``cpu`` or both. On CPU, it has a rank for each of its
            ``gpus``, with ``cpus_per_gpu`` cores, at least one.
        ranks: ``one`` plain process that sees all GPUs, or one process ``per-gpu`` under a supervisor.
        gpu_type: Type of GPU that it needs; empty for any.
        cpus_per_gpu: Cores per GPU, 0 where not given.
        mem_mib_per_gpu: Memory of the machine per GPU in MiB, 0 where not given.
        gpu_mem_mib: Most memory that it is expected to use of each of its GPUs, MiB; NONE where not given.
        gpu_util_milli: Thousandths of time in which it is expected to keep its GPUs busy when it has them alone; NONE
            where not given. Policies that let jobs share GPUs read both; nothing holds the job to them.
        time_limit_s: Longest run time in seconds, 0 for none.
        priority: Larger is served first, among policies that read it.
        job_class: What kind of service it asks for, as ``brim.core.trace.JobClass``.
        after: Ids of the jobs that must have finished before it starts.
        after_any: Ids of the jobs that must have ended, however, before it starts.
        after_not_ok: Ids of the jobs that must have ended without finishing before it starts.
        begin_s: Unix time in seconds before which it does not start, 0 for none.
        deadline_s: Unix time in seconds at which it should have ended, 0 for none; for policies that read it.
        hold: Whether it waits until its user releases it.
        grace_s: Seconds from the request to stop until its processes are killed; NONE for ``grace_s_of`` its class.
        requeue: Whether it is started again after its node is lost or it asks for that.
        attempts_max: Most failed attempts before it has failed, of which the faults of others are none; 1 from the
            command line.
        batch: Global batch in samples, NONE where not given.
        batch_min: Smallest global batch that does not harm the result, NONE where not given.
        batch_max: Largest global batch that does not harm the result, NONE where not given.
        local_batch_min: Fewest samples per GPU and micro-step, NONE where not given.
        local_batch_max: Most samples that fit one GPU, NONE where not given.
        target_loss: Loss at which its script ends, NONE where not given; for policies that predict its end.
        array_index: Index in its array, NONE for a job that is in none. All jobs of one submission that have an index
            are one array.
        array_limit: Most jobs of its array that may run at the same time, NONE for no limit.
    """

    name: str
    capture: str
    digest: str
    gpus: int = 1
    gpus_min: int = NONE
    gpus_max: int = NONE
    sizes: tuple[int, ...] = ()
    devices: tuple[DeviceKind, ...] = ("gpu",)
    ranks: Ranks = "one"
    gpu_type: str = ""
    cpus_per_gpu: float = 0.0
    mem_mib_per_gpu: int = 0
    gpu_mem_mib: int = NONE
    gpu_util_milli: int = NONE
    time_limit_s: int = 0
    priority: int = 0
    job_class: ServiceClass = "regular"
    after: tuple[int, ...] = ()
    after_any: tuple[int, ...] = ()
    after_not_ok: tuple[int, ...] = ()
    begin_s: int = 0
    deadline_s: int = 0
    hold: bool = False
    grace_s: float = NONE
    requeue: bool = True
    attempts_max: int = 3
    batch: int = NONE
    batch_min: int = NONE
    batch_max: int = NONE
    local_batch_min: int = NONE
    local_batch_max: int = NONE
    target_loss: float = NONE
    array_index: int = NONE
    array_limit: int = NONE

    def __post_init__(self) -> None:
        if self.grace_s == NONE:
            object.__setattr__(self, "grace_s", grace_s_of(self.job_class))
        for name, (expected, holds) in _EXPECTED.items():
            value = getattr(self, name)
            if not holds(value):
                raise _unexpected(name, value, expected)
        self._check_sizes()
        self._check_order("gpus_min", "gpus", "gpus_max")
        self._check_order("batch_min", "batch", "batch_max")
        self._check_order("local_batch_min", "local_batch_max")
        if len(set(self.before)) < sum(len(set(jobs)) for jobs in (self.after, self.after_any, self.after_not_ok)):
            raise ConfigError(
                "after: found a job that is also in after_any or after_not_ok, expected one condition for each job"
            )
        if self.array_limit != NONE and self.array_index == NONE:
            raise _unexpected("array_limit", self.array_limit, "-1, because the job is in no array")

    def _check_sizes(self) -> None:
        if list(self.sizes) != sorted(set(self.sizes)):
            raise _unexpected("sizes", self.sizes, "numbers of GPUs in increasing order")
        if self.sizes and self.gpus not in self.sizes:
            raise _unexpected("gpus", self.gpus, f"one of the sizes {_shown(self.sizes)}")
        for name, end in (("gpus_min", self.sizes[:1]), ("gpus_max", self.sizes[-1:])):
            if end and getattr(self, name) not in (NONE, *end):
                raise _unexpected(name, getattr(self, name), f"{end[0]}, as the sizes say")
        if self.is_elastic and self.ranks != "per-gpu":
            raise _unexpected("ranks", self.ranks, "'per-gpu', because the job can run on several numbers of GPUs")

    def _check_order(self, *names: str) -> None:
        """Of the values that are given, none may be below the one before it."""
        given = [(name, getattr(self, name)) for name in names if getattr(self, name) != NONE]
        for (before, least), (name, value) in pairwise(given):
            if value < least:
                raise _unexpected(name, value, f"at least {before}, which is {least}")

    @property
    def limits(self) -> tuple[int, int]:
        """Fewest and most GPUs on which it can run."""
        least, most = (self.sizes[0], self.sizes[-1]) if self.sizes else (self.gpus, self.gpus)
        return least if self.gpus_min == NONE else self.gpus_min, most if self.gpus_max == NONE else self.gpus_max

    @property
    def is_cpu_only(self) -> bool:
        """Whether it can run on no GPU."""
        return "gpu" not in self.devices

    @property
    def is_elastic(self) -> bool:
        """Whether it can run on more than one number of GPUs."""
        least, most = self.limits
        return least != most

    @property
    def before(self) -> tuple[int, ...]:
        """Ids of all jobs that it waits for."""
        return self.after + self.after_any + self.after_not_ok

    def record(self) -> dict[str, Any]:
        """Return the request as plain data for JSON, without fields that have their default.

        A field that a later version adds is therefore absent from the record of a request that does not use it.
        """
        record: dict[str, Any] = {}
        for name, default in (_DEFAULTS | {"grace_s": grace_s_of(self.job_class)}).items():
            value = getattr(self, name)
            if value != default:
                record[name] = list(value) if isinstance(value, tuple) else value
        return record


def read_request(data: Mapping[str, Any]) -> JobRequest:
    """Return a request from plain data, as from JSON: the inverse of ``JobRequest.record``.

    ``ranks`` that are not given are ``per-gpu`` for a job that can run on several numbers of GPUs. A whole number is
    taken where a float is expected, and nothing else is converted.

    Raises:
        ConfigError: ``field: found X, expected Y``; also for a field that is missing or unknown.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"job: found {_shown(data)}, expected an object with the fields of a job")
    values: dict[str, Any] = {}
    for name, value in data.items():
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ConfigError(f"job: found the field {_shown(name)}, expected one of: {', '.join(_KINDS)}")
        values[name] = _converted(name, kind, value)
    missing = [name for name, default in _DEFAULTS.items() if default is MISSING and name not in values]
    if missing:
        raise ConfigError(f"job: found no {', '.join(missing)}, expected {'it' if len(missing) == 1 else 'them'}")
    if "ranks" not in values:
        values["ranks"] = "per-gpu" if _names_a_range(values) else "one"
    return JobRequest(**values)


def read_submission(data: Mapping[str, Any]) -> JobRequest:
    """Return a request that somebody submits now: ``read_request``, but for one that a time limit contradicts.

    Journals of earlier versions may hold such a request, and it is read again when a controller starts.

    Raises:
        ConfigError: as for ``read_request``, or the job names a grace above its time limit.
    """
    request = read_request(data)
    if "grace_s" in data and request.time_limit_s and request.grace_s > request.time_limit_s:
        raise _unexpected("grace_s", request.grace_s, f"no more than time_limit_s, which is {request.time_limit_s}")
    return request


def _names_a_range(values: Mapping[str, Any]) -> bool:
    gpus = values.get("gpus", 1)
    ends = (values.get("gpus_min", NONE), values.get("gpus_max", NONE))
    return len(values.get("sizes", ())) > 1 or any(end not in (NONE, gpus) for end in ends)


def _converted(name: str, kind: str, value: object) -> object:
    """Return a value as the type of its field; bool is no number here."""
    match kind:
        case "int" if type(value) is int:
            return value
        case "float" if type(value) in (int, float):
            try:
                return float(cast(float, value))
            except OverflowError:
                raise _unexpected(name, value, _EXPECTED[name][0]) from None
        case "bool" if type(value) is bool:
            return value
        case "tuple[int, ...]" if isinstance(value, list | tuple) and all(type(item) is int for item in value):
            return tuple(value)
        case "tuple[DeviceKind, ...]" if isinstance(value, list | tuple) and all(type(item) is str for item in value):
            return tuple(value)
        case "str" | "Ranks" | "ServiceClass" if type(value) is str:
            return value
        case _:
            raise _unexpected(name, value, _EXPECTED[name][0])


def _whole(least: int, most: int, *, optional: bool = False) -> tuple[str, Callable[[Any], bool]]:
    words = f"a whole number from {least} to {most}" + (", or -1 for none" if optional else "")
    return words, lambda value: least <= value <= most or (optional and value == NONE)


def _number(most: float) -> tuple[str, Callable[[Any], bool]]:
    return f"a number from 0 to {most:g}", lambda value: math.isfinite(value) and 0 <= value <= most


def _text(words: str, pattern: re.Pattern[str]) -> tuple[str, Callable[[Any], bool]]:
    return words, lambda value: pattern.fullmatch(value) is not None


def _one_of(*words: str) -> tuple[str, Callable[[Any], bool]]:
    return " or ".join(map(repr, words)), lambda value: value in words


def _list(words: str, count_max: int, most: int) -> tuple[str, Callable[[Any], bool]]:
    return f"at most {count_max} {words}", lambda value: len(value) <= count_max and all(
        1 <= item <= most for item in value
    )


_BOOLEAN: Final = ("true or false", lambda value: isinstance(value, bool))
_EXPECTED: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "name": _text("1 to 64 letters, digits, '.', '_' or '-'", _NAME),
    "capture": _text("32 hexadecimal digits", _CAPTURE),
    "digest": _text("64 hexadecimal digits", _DIGEST),
    "gpus": _whole(1, COUNT_MAX),
    "gpus_min": _whole(1, COUNT_MAX, optional=True),
    "gpus_max": _whole(1, COUNT_MAX, optional=True),
    "sizes": _list("numbers of GPUs", SIZES_MAX, COUNT_MAX),
    "devices": ("'gpu', 'cpu' or both, each once", lambda value: 0 < len(value) == len({*value} & {"gpu", "cpu"})),
    "ranks": _one_of("one", "per-gpu"),
    "gpu_type": _text("at most 64 letters, digits, spaces, '.', '_' or '-'", _GPU_TYPE),
    "cpus_per_gpu": _number(CORES_PER_GPU_MAX),
    "mem_mib_per_gpu": _whole(0, COUNT_MAX),
    "gpu_mem_mib": _whole(1, COUNT_MAX, optional=True),
    "gpu_util_milli": _whole(1, 1000, optional=True),
    "time_limit_s": _whole(0, CENTURY_S),
    "priority": _whole(-PRIORITY_MAX, PRIORITY_MAX),
    "job_class": _one_of("regular", "urgent", "padding"),
    "after": _list("job ids", AFTER_MAX, ID_MAX),
    "after_any": _list("job ids", AFTER_MAX, ID_MAX),
    "after_not_ok": _list("job ids", AFTER_MAX, ID_MAX),
    "begin_s": _whole(0, UNIX_S_MAX),
    "deadline_s": _whole(0, UNIX_S_MAX),
    "hold": _BOOLEAN,
    "grace_s": _number(GRACE_S_MAX),
    "requeue": _BOOLEAN,
    "attempts_max": _whole(1, COUNT_MAX),
    "batch": _whole(1, COUNT_MAX, optional=True),
    "batch_min": _whole(1, COUNT_MAX, optional=True),
    "batch_max": _whole(1, COUNT_MAX, optional=True),
    "local_batch_min": _whole(1, COUNT_MAX, optional=True),
    "local_batch_max": _whole(1, COUNT_MAX, optional=True),
    "target_loss": (
        f"a number above 0 and up to {LOSS_MAX:g}, or -1 for none", lambda value: value == NONE or 0 < value <= LOSS_MAX
    ),
    "array_index": _whole(0, COUNT_MAX, optional=True),
    "array_limit": _whole(1, COUNT_MAX, optional=True),
}
"""What each field must be, in words and as a check of a value of the right type."""
_DEFAULTS: Final = {field.name: field.default for field in fields(JobRequest)}
_KINDS: Final = {field.name: str(field.type) for field in fields(JobRequest)}


def _unexpected(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{name}: found {_shown(value)}, expected {expected}")


def _shown(value: object) -> str:
    """A value in an error: short, printable ASCII, and never a container that may be deep."""
    if isinstance(value, Mapping):
        return f"an object with {len(value)} fields"
    if isinstance(value, list | tuple) and not all(type(item) in (int, str) for item in value):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    text = ascii(value[:80] if isinstance(value, str | list | tuple) else value)
    return text if len(text) <= 80 else text[:77] + "..."
