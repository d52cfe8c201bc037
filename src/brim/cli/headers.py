"""Headers of a script: ``#BRIM`` lines hold options of ``brim submit``, ``#SBATCH`` lines those of Slurm's.

What of Slurm's has no meaning here is listed, never dropped in silence. As with Slurm, headers end at the first line
that is neither empty nor a comment.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brim.cli.job_options import asked, merged, read_dependencies, read_variables, read_words, valid_name
from brim.errors import ConfigError, shown
from brim.units import parse_memory_mib

_SHORT: Final = {
    "J": "job-name", "G": "gpus", "c": "cpus-per-task", "t": "time", "d": "dependency", "a": "array", "D": "chdir",
    "b": "begin", "H": "hold", "o": "output", "e": "error", "p": "partition", "A": "account", "N": "nodes",
    "n": "ntasks", "q": "qos", "C": "constraint", "w": "nodelist", "x": "exclude", "i": "input",
    "M": "clusters", "L": "licenses", "B": "extra-node-info", "F": "nodefile", "S": "core-spec", "m": "distribution",
    "O": "overcommit", "Q": "quiet", "V": "version", "W": "wait", "h": "help", "k": "no-kill", "s": "oversubscribe",
    "v": "verbose",
}  # fmt: skip
_LONG: Final = (
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster", "cluster-constraint",
    "clusters", "comment", "constraint", "container", "context", "contiguous", "core-spec", "cores-per-socket",
    "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution",
    "error", "exclude", "exclusive", "export", "export-file", "extra-node-info", "get-user-env", "gid",
    "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags",
    "help", "hint", "hold", "ignore-pbs", "input", "job-name", "kill-on-invalid-dep", "licenses", "mail-type",
    "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice",
    "no-kill", "no-requeue", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu",
    "ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode", "output", "overcommit",
    "oversubscribe", "parsable", "partition", "power", "prefer", "priority", "profile", "propagate", "qos",
    "quiet", "reboot", "requeue", "reservation", "signal", "sockets-per-node", "spread-job", "switches",
    "tasks-per-node", "test-only", "thread-spec", "threads-per-core", "time", "time-min", "tmp", "uid", "usage",
    "use-min-nodes", "verbose", "version", "wait", "wait-all-nodes", "wckey", "wrap",
)  # fmt: skip
"""Long options of sbatch 22.05, as it says that they are possible."""
_SAME_AS: Final = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}
_SWITCHES: Final = (
    "contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "nice", "no-kill", "no-requeue",
    "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot", "requeue", "spread-job", "test-only",
    "usage", "use-min-nodes", "verbose", "version", "wait",
)  # fmt: skip
"""Options of sbatch without a value, or whose value may be left out."""
_ONCE: Final = "the script is started once; `#BRIM --ranks per-gpu` starts it once per GPU"
_WHY: Final = {
    "output": "`brim logs` shows what the job writes", "error": "`brim logs` shows what the job writes",
    "open-mode": "logs are kept attempt by attempt", "partition": "there is one queue",
    "qos": "use --class or --priority",
    "account": "there are no accounts", "signal": "a job gets SIGTERM --grace before it is killed",
    "export": "the whole environment is taken along",
    "constraint": "a type of GPU is named as in --gres=gpu:TYPE:2", "nodes": "there is one node",
    "ntasks": _ONCE, "ntasks-per-node": _ONCE, "ntasks-per-gpu": _ONCE,
    "mem": "all memory of the node: brim keeps none for it",
    "exclusive": "GPUs are never shared without asking",
}  # fmt: skip
_GPUS: Final = "GPUs of one type, at least one, such as"
_READ: Final = "--gpus, --gpus-per-node, --gpus-per-task or --gres=gpu:2"
_EXPECTED: Final = {
    "gpus": f"{_GPUS} 2 or a100:2", "gpus-per-node": f"{_GPUS} 2 or a100:2", "gpus-per-task": f"{_GPUS} 2 or a100:2",
    "gres": f"{_GPUS} gpu:2 or gpu:a100:2", "gpus-per-socket": _READ, "tres-per-task": _READ,
    "dependency": "afterok, afterany or afternotok with job ids, such as afterok:3:4,afterany:5",
}


@dataclass(frozen=True, slots=True)
class Headers:
    """What headers say.

    Attributes:
        options: Options of ``brim submit``.
        ignored: Slurm's options that were ignored, each with the reason.
        slurm: Variables that Slurm would set for what its options say; None without any header of Slurm.
        slurm_name: Name of the job as Slurm's headers say it; empty without one.
    """

    options: Mapping[str, Any]
    ignored: tuple[str, ...]
    slurm: Mapping[str, str] | None
    slurm_name: str


def read_headers(text: str, file: str) -> Headers:
    """Read the headers of a script; ``#BRIM`` counts before ``#SBATCH``.

    Raises:
        ConfigError: an option of ``#BRIM`` does not exist, or a value cannot be read; with file and line.
    """
    ours: dict[str, Any] = {}
    theirs: dict[str, str] = {}
    lines: dict[str, str] = {}
    slurm = False
    for number, marker, rest in _marked(text):
        where = f"{file}, line {number}"
        try:
            words = shlex.split(rest, comments=True)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        if marker == "#BRIM":
            found = read_words(words, where)
            found["env"] = {**ours.get("env", {}), **found.get("env", {})}
            ours.update(found)
        else:
            slurm = True
            for name, value in _slurm_words(words, where):
                theirs[name], lines[name] = value, where
    options, ignored = _translated(theirs, lines)
    if not ours.get("env"):
        ours.pop("env", None)
    return Headers(merged(options, ours), tuple(ignored), _variables(theirs) if slurm else None,
                   theirs.get("job-name", ""))


def _variables(theirs: Mapping[str, str]) -> dict[str, str]:
    """What Slurm tells a script of its options, of those that scripts commonly read."""
    names = {"cpus-per-task": "SLURM_CPUS_PER_TASK", "cpus-per-gpu": "SLURM_CPUS_PER_GPU", "gpus": "SLURM_GPUS",
             "gpus-per-node": "SLURM_GPUS_PER_NODE", "gpus-per-task": "SLURM_GPUS_PER_TASK",
             "partition": "SLURM_JOB_PARTITION", "account": "SLURM_JOB_ACCOUNT"}  # fmt: skip
    found = {variable: theirs[name] for name, variable in names.items() if name in theirs}
    if "ntasks" in theirs and (theirs["ntasks"], theirs.get("nodes", "1")) == ("1", "1"):
        found |= {"SLURM_NTASKS": "1", "SLURM_NPROCS": "1"}
    for name, variable in (("mem", "SLURM_MEM_PER_NODE"), ("mem-per-cpu", "SLURM_MEM_PER_CPU"),
                           ("mem-per-gpu", "SLURM_MEM_PER_GPU")):  # fmt: skip
        if theirs.get(name, "0") != "0":
            found[variable] = str(parse_memory_mib(theirs[name]))
    return found


def _marked(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, marker and rest of each header line."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        for marker in ("#BRIM", "#SBATCH"):
            if line.startswith(marker) and line[len(marker) : len(marker) + 1] in ("", " ", "\t"):
                yield number, marker, line[len(marker) :]


def _slurm_words(words: Sequence[str], where: str) -> Iterator[tuple[str, str]]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _whole_name(name, where)
        elif word.startswith("-") and word[1:2] in _SHORT:
            name, value = _SHORT[word[1]], word[2:].removeprefix("=")
            equals = "=" if value else ""
        else:
            raise ConfigError(f"{where}: found {shown(word)}, expected an option of sbatch")
        if not equals and name not in _SWITCHES and rest and not rest[0].startswith("-"):
            equals, value = "=", rest.pop(0)
        if not equals and name in _LONG and name not in _SWITCHES:
            raise ConfigError(f"{where}: found --{name} without a value, expected one")
        yield name, value


def _whole_name(name: str, where: str) -> str:
    """The option that a name or its beginning means; one that sbatch does not know is left as it is."""
    possible = [each for each in _LONG if name and each.startswith(name)]
    if name in _LONG or not possible:
        return _SAME_AS.get(name, name)
    if len(possible) > 1:
        raise ConfigError(f"{where}: found --{name}, expected one of {', '.join(f'--{each}' for each in possible)}")
    return _SAME_AS.get(possible[0], possible[0])


def _translated(theirs: Mapping[str, str], lines: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    options: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in theirs.items():  # before the others, which count as often as these say
        if name in (*_COUNTS, *_GPU_COUNTS) and _LONG_NUMBER.search(value):
            raise ConfigError(f"{lines[name]}: --{name}: found {shown(value)}, expected at most 18 digits")
    means = {name: _one_of_line(name, theirs, lines[name]) for name in theirs}
    for name, value in theirs.items():
        found = means[name]
        if found is None:
            why = _WHY.get(name, "it has no meaning here")
            times = [f"--{other} counts {_times_of(other, theirs):g} times"
                     for other in theirs if _counts_in(name, other, theirs)]
            why += f"; {' and '.join(times)}" if times else ""
            ignored.append(f"--{name}={value}: {why}" if value else f"--{name}: {why}")
        else:
            options.update(found)
            if name == "gres":
                others = [part for part in _resources(value) if part != _gpus_of_gres(value)]
                ignored += [f"--gres={part}: brim gives out GPUs, cores and memory" for part in others]
    return options, ignored


def _one_of_line(name: str, theirs: Mapping[str, str], where: str) -> dict[str, Any] | None:
    try:
        return _one(name, theirs[name], theirs)
    except (ValueError, OverflowError, ConfigError):
        expected = _EXPECTED.get(name, "a value that brim can keep")
        raise ConfigError(f"{where}: --{name}: found {shown(theirs[name])}, expected {expected}") from None


_COUNTS: Final = ("ntasks-per-node", "ntasks", "nodes", "ntasks-per-gpu")
"""Options that say how often others count, in the order in which each is looked at beside those before it."""
_GPU_COUNTS: Final = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
"""Options that say how many GPUs; what others mean may depend on that."""
_LONG_NUMBER: Final = re.compile(r"\d{19}", re.ASCII)
_SAME: Final = {
    "chdir": "chdir", "priority": "priority", "array": "array",
}  # fmt: skip


def _counts_in(name: str, other: str, theirs: Mapping[str, str]) -> bool:
    """Whether what another option means is not the same without this one, nor those that are looked at later."""
    if name not in _COUNTS or other in _COUNTS:
        return False
    before = _without(theirs, _COUNTS[_COUNTS.index(name) :])
    return _one(other, theirs[other], before | {name: theirs[name]}) != _one(other, theirs[other], before)


def _times_of(other: str, theirs: Mapping[str, str]) -> float:
    """How often an option counts, as all nodes and tasks together say."""
    of_all, of_one = (_one(other, theirs[other], each) or {} for each in (theirs, _without(theirs, _COUNTS)))
    return _amount(of_all) / _amount(of_one)


def _without(theirs: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in theirs.items() if name not in names}


def _amount(found: Mapping[str, Any]) -> float:
    """The number of ``{"gpus": "a100:4"}``, ``{"cpus": "8"}`` or ``{"mem": "2048M"}``."""
    number = next(iter(found.values())).rpartition(":")[2].removesuffix("M")
    return 1.0 if number[:1].isalpha() else float(number)  # a type of GPU alone means one


def _one(name: str, value: str, theirs: Mapping[str, str]) -> dict[str, Any] | None:
    """Options of brim that one of Slurm's means; None if there are none."""
    gpus = _count(_gpus(theirs))
    tasks = _tasks(theirs)
    makes: dict[str, Callable[[], dict[str, Any]]] = {
        "gres": lambda: {"gpus": _checked_gpus(theirs)},
        "gpus": lambda: {"gpus": _checked_gpus(theirs)},
        "gpus-per-node": lambda: {"gpus": _checked_gpus(theirs)},
        "gpus-per-task": lambda: {"gpus": _checked_gpus(theirs), **_whole(value.rpartition(":")[2])},
        "cpus-per-task": lambda: {"cpus": f"{float(value) * tasks:g}"},
        "cpus-per-gpu": lambda: {"cpus": f"{float(value) * gpus:g}"},
        "mem": lambda: {"mem": f"{parse_memory_mib(value) * _nodes(theirs)}M"},
        "mem-per-cpu": lambda: {"mem": f"{round(parse_memory_mib(value) * _cores(theirs))}M"},
        "mem-per-gpu": lambda: {"mem": f"{parse_memory_mib(value) * gpus}M"},
        "time": lambda: {"time": _slurm_time(value)},
        "dependency": lambda: {"depends-on": _dependency(value)},
        "hold": lambda: {"hold": True},
        "requeue": lambda: {"requeue": True},
        "no-requeue": lambda: {"requeue": False},
        "nice": lambda: {"priority": str(-int(value or 100))},
        "begin": lambda: {"begin": _moment(value)},
        "deadline": lambda: {"deadline": _moment(value)},
        "export": lambda: _exported(value),
        "job-name": lambda: {"name": valid_name(value)},
    }
    if name in (*_SAME, "job-name") and not value:
        raise ConfigError(value)
    if name in _SAME:
        return {_SAME[name]: value}
    if name == "gpus-per-socket" or (name == "tres-per-task" and "gpu" in value):
        raise ConfigError(value)
    if name == "nodes" and value == "1":
        return {}
    if name in ("ntasks", "ntasks-per-node"):
        return {} if int(value) == 1 else None
    if name == "ntasks-per-gpu":
        return {"gpus": _gpus(theirs)} if int(value) and "ntasks" in theirs and not _named_gpus(theirs) else None
    if name == "gres" and not _gpus_of_gres(value):
        return None
    if name == "export" and "=" not in value:
        return None
    if name == "mem" and not parse_memory_mib(value):
        return None
    if name == "time" and value.lower() in ("0", "unlimited", "infinite"):
        return {}
    return makes[name]() if name in makes else None


def _whole(text: str) -> dict[str, Any]:
    """Nothing; a text that is no number is an error."""
    int(text)
    return {}


def _nodes(theirs: Mapping[str, str]) -> int:
    """Nodes that are asked for, of a range the least; without a number, as many as the tasks need."""
    if "nodes" in theirs or "ntasks" not in theirs or "ntasks-per-node" not in theirs:
        return _number(theirs, "nodes")
    return math.ceil(_number(theirs, "ntasks") / _number(theirs, "ntasks-per-node"))


def _tasks(theirs: Mapping[str, str]) -> int:
    if "ntasks" in theirs:
        return _number(theirs, "ntasks")
    if "ntasks-per-gpu" in theirs:  # which sbatch does not take beside --gpus-per-task
        return _count(_gpus(_without(theirs, ["gpus-per-task"]))) * _number(theirs, "ntasks-per-gpu")
    return _nodes(theirs) * _number(theirs, "ntasks-per-node")


def _cores(theirs: Mapping[str, str]) -> float:
    return float(theirs.get("cpus-per-task") or 1) * _tasks(theirs)


def _number(theirs: Mapping[str, str], name: str) -> int:
    """The number that an option says; 1 if there is none, which is refused elsewhere."""
    text = theirs.get(name, "").partition("-")[0]
    return max(1, int(text)) if text.isascii() and text.isdigit() else 1


def _checked_gpus(theirs: Mapping[str, str]) -> str:
    """GPUs as ``--gpus`` takes them; what it does not take, or a second type of them, is an error."""
    if sum(map(_is_gpus, _resources(theirs.get("gres", "")))) > 1:
        raise ConfigError(theirs["gres"])
    text = _gpus(theirs)
    asked({"gpus": text})
    return text


def _gpus(theirs: Mapping[str, str]) -> str:
    """GPUs as ``--gpus`` takes them: those that are named, else as many as the tasks imply, else one."""
    if text := _named_gpus(theirs):
        return text
    if "ntasks" in theirs and "ntasks-per-gpu" in theirs:
        return str(math.ceil(_number(theirs, "ntasks") / _number(theirs, "ntasks-per-gpu")))
    return "1"


def _named_gpus(theirs: Mapping[str, str]) -> str:
    """GPUs as ``--gpus`` takes them, from whichever of Slurm's options names them; empty if none does."""
    if text := theirs.get("gpus"):
        return text
    text = theirs.get("gpus-per-node") or ""
    if not text and (gres := _gpus_of_gres(theirs.get("gres", ""))):
        text = gres.partition("(")[0].removeprefix("gpu").removeprefix(":") or "1"
    if text:
        return _times(text, _nodes(theirs))
    if text := theirs.get("gpus-per-task"):
        return _times(text, _tasks(theirs))
    return ""


def _times(gpus: str, count: int) -> str:
    """So many times these GPUs; the text as it is if it is neither number nor type, which is refused elsewhere."""
    kind, colon, number = gpus.rpartition(":")
    if count > 1 and number[:1].isalpha():
        return f"{gpus}:{count}"
    return f"{kind}{colon}{int(number) * count}" if number.isascii() and number.isdigit() else gpus


def _gpus_of_gres(value: str) -> str:
    """The GPUs of ``gpu:2,tmpdir:10G``; empty without any."""
    return next(filter(_is_gpus, _resources(value)), "")


def _resources(gres: str) -> list[str]:
    return gres.removeprefix("gres:").split(",")


def _is_gpus(resource: str) -> bool:
    return bool(re.match(r"gpu\b", resource))


def _exported(value: str) -> dict[str, Any]:
    """The variables that ``ALL,NAME=VALUE`` sets; names without a value are in the environment already."""
    return {"env": read_variables([part for part in value.split(",") if "=" in part])}


def _moment(value: str) -> str:
    """A time as brim takes it: a bare number after ``now+`` is seconds, and a unit is a whole word."""
    match = re.fullmatch(r"now\+(\d+)(second|minute|hour|day|week)?s?", value, re.ASCII)
    return f"now+{match[1]}{(match[2] or 's')[0]}" if match else value


def _count(gpus: str) -> int:
    last = gpus.rpartition(":")[2]
    return int(last) if last.isascii() and last.isdigit() else 1


def _slurm_time(value: str) -> str:
    """A time as ``--time`` takes it: a bare number is minutes."""
    return f"{int(value)}m" if value.isascii() and value.isdigit() else value


def _dependency(value: str) -> str:
    """Dependencies as ``--depends-on`` takes them, which reads Slurm's words; alone, ``singleton`` would be a name."""
    if ":" not in value:
        raise ConfigError(value)
    read_dependencies(value)
    return value
