"""What a job asks for, as options: given on the command line, in headers of a script, or in a YAML file.

All three say the same things under the same names, as text. Of an option that is given twice the command line counts
before the headers, and these before the file.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_args

from brim.errors import ConfigError, shown
from brim.live.requests import (
    CORES_PER_GPU_MAX,
    COUNT_MAX,
    GRACE_S_MAX,
    JOBS_MAX,
    PRIORITY_MAX,
    DeviceKind,
    Ranks,
    ServiceClass,
)
from brim.units import MS_PER_S, parse_duration_ms, parse_memory_mib, parse_whole

SHORT: Final = {"n": "name", "g": "gpus", "c": "cpus", "t": "time", "p": "priority"}
VALUES: Final = (
    "name", "gpus", "cpus", "mem", "time", "priority", "class", "depends-on", "array", "chdir", "begin", "deadline",
    "grace", "batch", "ranks", "gpu-mem", "gpu-util", "devices", "target-loss",
)  # fmt: skip
"""Options with a value; ``env`` may be given several times."""
ALIASES: Final = {"dependency": "depends-on"}
"""Other names of options, as Slurm has them."""
SWITCHES: Final = {"hold": ("hold", True), "requeue": ("requeue", True), "no-requeue": ("requeue", False)}
_Read = TypeVar("_Read")
Options = Mapping[str, Any]
"""Values by option: a text, True or False for a switch, and a mapping for ``env``."""

_RANGE: Final = re.compile(r"(\d+)(?:-|\.\.)(\d+)", re.ASCII)
_GPU_TYPE: Final = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
_INDICES: Final = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LIMIT: Final = re.compile(r"(.*)%([1-9]\d*)", re.ASCII)
_AFTER: Final = re.compile(r"@|[A-Za-z0-9._-]{1,64}", re.ASCII)
_CONDITIONS: Final = {"afterok": "after", "afterany": "after_any", "afternotok": "after_not_ok"}
"""Fields of ``JobRequest``, by Slurm's word."""
_CLOCK_FORMATS: Final = ("%H:%M", "%H:%M:%S", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M",
                         "%Y-%m-%d %H:%M:%S")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job to wait for.

    Attributes:
        field: The field of ``JobRequest`` in which it belongs: how it must have ended.
        job: Its id or name, or ``@`` for the last one.
    """

    field: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What options say.

    Attributes:
        fields: Fields of ``JobRequest``, without ``name`` where none was given, and without those of dependencies.
        indices: Indices of the array; empty for a single job.
        after: What it waits for.
        env: Variables in addition to those of the caller.
        chdir: Working folder; empty for that of the caller.
    """

    fields: dict[str, Any]
    indices: tuple[int, ...]
    after: tuple[Dependency, ...]
    env: dict[str, str]
    chdir: str


def read_words(words: Sequence[str], where: str) -> dict[str, Any]:
    """Read options as on a command line: ``-g 4``, ``-g4``, ``--gpus 4``, ``--gpus=4``.

    Args:
        words: The words.
        where: File and line, for errors.

    Raises:
        ConfigError: an option does not exist, or has no value.
    """
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = SHORT.get(word[1:2], ""), "", word[2:]
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = ALIASES.get(name, name)
        if not word.startswith("-") or (name not in VALUES and name != "env" and name not in SWITCHES):
            known = ", ".join(f"--{each}" for each in _all())
            raise ConfigError(f"{where}: found {shown(word)}, expected one of {known}")
        if name in SWITCHES:
            option, found[option] = SWITCHES[name]
            continue
        if not equals and not (value and not word.startswith("--")):
            if not rest:
                raise ConfigError(f"{where}: found {word} without a value, expected one")
            value = rest.pop(0)
        if name == "env":
            found.setdefault("env", {}).update(read_variables([value], where))
        else:
            found[name] = value
    return found


def _all() -> list[str]:
    return [*VALUES, "env", *SWITCHES]


def read_variables(texts: Sequence[str], where: str = "--env") -> dict[str, str]:
    """Read ``K=V`` items.

    Raises:
        ConfigError: an item is not of this form.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(name) or "\0" in value:
            raise ConfigError(f"{where}: found {shown(text)}, expected NAME=VALUE")
        found[name] = value
    return found


def merged(*sources: Options) -> dict[str, Any]:
    """Join options; those of a later source count before those of an earlier one, variable by variable for ``env``."""
    both: dict[str, Any] = {}
    for source in sources:
        env = {**both.get("env", {}), **source.get("env", {})}
        both.update(source)
        if env:
            both["env"] = env
    return both


def asked(options: Options) -> Asked:
    """Return what options say.

    Raises:
        ConfigError: a value cannot be read; the message names the option, what was found and what was expected.
    """
    fields: dict[str, Any] = {"attempts_max": 1}  # what fails is not repeated; faults of the node do not count
    if "name" in options:
        fields["name"] = options["name"]
    fields.update(_read(_gpus, "gpus", options.get("gpus", "1"), _GPUS))
    if "cpus" in options:
        fields["cpus_per_gpu"] = _number("cpus", options["cpus"]) / fields["gpus"]
        if fields["cpus_per_gpu"] > CORES_PER_GPU_MAX:
            raise _unclear("cpus", options["cpus"], f"at most {CORES_PER_GPU_MAX:,.0f} cores for each GPU")
    if "mem" in options:
        fields["mem_mib_per_gpu"] = math.ceil(_mem_mib("mem", options["mem"], fields["gpus"]) / fields["gpus"])
    if "gpu-mem" in options:
        fields["gpu_mem_mib"] = _mem_mib("gpu-mem", options["gpu-mem"], 1)
        if not fields["gpu_mem_mib"]:
            raise _unclear("gpu-mem", options["gpu-mem"], "a size such as 24GB, above 0")
    if "gpu-util" in options:
        fields["gpu_util_milli"] = _part_milli("gpu-util", options["gpu-util"])
    if "time" in options:
        fields["time_limit_s"] = max(1, _duration_ms("time", options["time"]) // MS_PER_S)
    if "grace" in options:
        fields["grace_s"] = _seconds("grace", options["grace"])
        if fields["grace_s"] > GRACE_S_MAX:
            raise _unclear("grace", options["grace"], "a duration up to 24h, such as 90 (seconds) or 5m")
        if fields["grace_s"] > fields.get("time_limit_s", math.inf):
            raise _unclear("grace", options["grace"], f"no more than --time, which is {options['time']}")
    if "priority" in options:
        expected = f"a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
        fields["priority"] = _read(_priority, "priority", options["priority"], expected)
    if "class" in options:
        fields["job_class"] = _one_of("class", options["class"], get_args(ServiceClass))
    if "ranks" in options:
        fields["ranks"] = _one_of("ranks", options["ranks"], get_args(Ranks))
    if "devices" in options:
        fields["devices"] = _devices(options["devices"])
    if "target-loss" in options:
        fields["target_loss"] = _number("target-loss", options["target-loss"])
        if not fields["target_loss"]:
            raise _unclear("target-loss", options["target-loss"], "a loss above 0")
    if "begin" in options:
        fields["begin_s"] = _moment("begin", options["begin"])
    if "deadline" in options:
        fields["deadline_s"] = _moment("deadline", options["deadline"])
        if fields["deadline_s"] <= time.time():
            raise _unclear("deadline", options["deadline"], "a time to come")
    if "batch" in options:
        fields.update(_read(_batch, "batch", options["batch"], _BATCH))
    fields.update({switch: options[switch] for switch in ("hold", "requeue") if switch in options})
    indices, limit = _indices(options["array"]) if "array" in options else ((), None)
    if limit is not None:
        fields["array_limit"] = limit
    after = read_dependencies(options.get("depends-on", ""))
    if "depends-on" in options and not after:  # an id that a script failed to get must not let the job start
        raise _unclear("depends-on", options["depends-on"], "job ids or names; to wait for none, leave the option out")
    return Asked(fields=fields, indices=indices, after=after, env=dict(options.get("env", {})),
                 chdir=options.get("chdir", ""))


def _one_of(option: str, text: str, known: Sequence[str]) -> str:
    if text not in known:
        raise _unclear(option, text, f"{', '.join(known[:-1])} or {known[-1]}")
    return text


def _devices(text: str) -> tuple[str, ...]:
    """Kinds of device, in one order."""
    kinds, known = [word.strip() for word in text.split(",")], get_args(DeviceKind)
    if len(set(kinds)) < len(kinds) or not set(kinds) <= set(known):
        raise _unclear("devices", text, "gpu, cpu or gpu,cpu")
    return tuple(kind for kind in known if kind in kinds)


def _gpus(text: str) -> dict[str, Any]:
    kind, colon, count = text.rpartition(":")
    found: dict[str, Any] = {}
    if not colon and _GPU_TYPE.fullmatch(text):
        kind, count = text, "1"
    if kind:
        if not _GPU_TYPE.fullmatch(kind):
            raise ConfigError(text)
        found["gpu_type"] = kind
    if "," in count:
        sizes = sorted({parse_whole(each, 1) for each in count.split(",")})
        return {**found, "gpus": sizes[0], "sizes": sizes}
    if match := _RANGE.fullmatch(count):
        least = parse_whole(match[1], 1)
        return {**found, "gpus": least, "gpus_min": least, "gpus_max": parse_whole(match[2], least)}
    return {**found, "gpus": parse_whole(count, 1)}


_GPUS: Final = "a number, a range or a list, such as 4, 1-8, 1,2,4 or A100:4"
_BATCH: Final = "a number, or a range from the smaller to the larger, such as 32-256"


def _batch(text: str) -> dict[str, int]:
    if match := _RANGE.fullmatch(text):
        least = parse_whole(match[1])
        return {"batch": least, "batch_min": least, "batch_max": parse_whole(match[2], least)}
    return {"batch": parse_whole(text)}


def _priority(text: str) -> int:
    return parse_whole(text, -PRIORITY_MAX, PRIORITY_MAX)


def read_dependencies(text: str) -> tuple[Dependency, ...]:
    """Read ``3,prep,@`` and, with Slurm's words, ``afterok:3:4,afterany:5,afternotok:6``.

    Raises:
        ConfigError: the text is neither.
    """
    found = []
    for part in filter(None, re.split(r"[,\s]+", text)):
        condition, colon, rest = part.partition(":")
        jobs = rest.split(":") if colon else [part]
        if (colon and condition not in _CONDITIONS) or not all(map(_AFTER.fullmatch, jobs)):
            raise _unclear("depends-on", part, "job ids or names, such as 3,4 or prep, or @ for the last job; or one "
                                               f"of {', '.join(_CONDITIONS)} with such jobs, as in afterany:3:4")
        found += [Dependency(_CONDITIONS[condition] if colon else "after", job) for job in jobs]
    return tuple(found)


def _indices(text: str) -> tuple[tuple[int, ...], int | None]:
    """Indices, and how many of their jobs may run at the same time: ``0-99%4``."""
    limited = _LIMIT.fullmatch(text)
    indices = read_indices(limited[1] if limited else text)
    return indices, _read(parse_whole, "array", limited[2], "a number of jobs after %") if limited else None


def read_indices(text: str) -> tuple[int, ...]:
    """Return the indices of an array's jobs, ascending: ``0-9``, ``1,3,5`` or ``0-100:10``.

    Raises:
        ConfigError: the text is none of these, or has too many.
    """
    expected = "indices such as 0-9, 1,3,5 or 0-100:10, and with %4 at the end at most 4 jobs at the same time"
    found: set[int] = set()
    for part in text.split(","):
        steps = _read(_steps, "array", part, expected)
        if not 0 < len(steps) <= JOBS_MAX:
            raise _unclear("array", text, f"{expected}, at most {JOBS_MAX} of them")
        found.update(steps)
    if len(found) > JOBS_MAX:
        raise _unclear("array", text, f"at most {JOBS_MAX} indices")
    return tuple(sorted(found))


def _steps(text: str) -> range:
    match = _INDICES.fullmatch(text)
    if not match:
        raise ConfigError(text)
    return range(parse_whole(match[1]), parse_whole(match[2] or match[1]) + 1, parse_whole(match[3] or "1", 1))


def _moment(option: str, text: str) -> int:
    """Unix time in seconds of ``now+2h``, ``2h``, ``14:30`` (the next one) or ``2026-11-23T08:00``."""
    now = time.time()
    stripped = text.strip()
    for form in _CLOCK_FORMATS:
        try:
            parsed = time.strptime(stripped, form)
        except ValueError:
            continue
        if form.startswith("%H"):
            today = time.localtime(now)
            at = time.mktime((*today[:3], *parsed[3:6], 0, 0, -1))
            return int(at if at > now else at + 86_400)
        return max(1, int(time.mktime((*parsed[:6], 0, 0, -1))))  # before 1970 is long ago, too
    try:
        delay = "0s" if stripped == "now" else stripped.removeprefix("now+")
        if ":" in delay:
            raise ConfigError(delay)
        return int(now + parse_duration_ms(delay) / MS_PER_S)
    except ConfigError:
        raise _unclear(option, text, "a time or a delay, such as 14:30, 2026-11-23T08:00 or now+2h") from None


def _seconds(option: str, text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else _duration_ms(option, text) / MS_PER_S


def _duration_ms(option: str, text: str) -> int:
    return _read(parse_duration_ms, option, text, "a duration such as 90s, 90m, 1h30m, 2d or 02:00:00, up to a century")


def _mem_mib(option: str, text: str, gpus: int) -> int:
    expected = "a size such as 24GB or 512MiB, up to 2,047 TB for each GPU"
    mem_mib = _read(parse_memory_mib, option, text, expected)
    if mem_mib > COUNT_MAX * gpus:
        raise _unclear(option, text, expected)
    return mem_mib


def _read(parse: Callable[[str], _Read], option: str, text: str, expected: str) -> _Read:
    try:
        return parse(text)
    except ConfigError:
        raise _unclear(option, text, expected) from None


def _number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise _unclear(option, text, "a number of at least 0")
    return value


def _part_milli(option: str, text: str) -> int:
    """Thousandths of ``60%`` or ``0.6``; a bare 60 could mean either, and is refused."""
    try:
        part = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        part = math.nan
    if not 0 < part <= 1:
        raise _unclear(option, text, "a part of the time, such as 60% or 0.6")
    return max(1, round(part * 1000))


def _unclear(option: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"--{option}: found {shown(text)}, expected {expected}")


def valid_name(text: str) -> str:
    """A text with what a name may not have replaced."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:64] or "job"
