"""A job as a YAML file: every field is optional but ``run``, and says what the option of the same name says.

name: resnet
run: python train.py --epochs 90
workdir: .
env: {WANDB_PROJECT: demo}
resources: {gpu: "A100:1..8", cpu: 8, memory: 32GB, gpu_memory: 10GB, gpu_utilization: 60%}
elastic: {sizes: [1, 2, 4, 8], global_batch: 1024}
class: regular
devices: [gpu, cpu]
limits: {time: 12h, preempt_grace: 120s}
depends_on: [prep]
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brim.errors import ConfigError, shown
from brim.units import WHOLE_MAX

FILE_BYTES_MAX: Final = 1 << 16
_DEPTH_MAX: Final = 32
_CLASSES: Final = {"filler": "padding", "normal": "regular"}
"""Other words for a class, as people know them."""
_FIELDS: Final[Mapping[str, Mapping[str, str] | str]] = {
    "name": "name", "run": "", "workdir": "chdir", "env": "", "class": "class", "priority": "priority",
    "depends_on": "depends-on", "array": "array", "begin": "begin", "deadline": "deadline",
    "hold": "hold", "requeue": "requeue", "ranks": "ranks", "devices": "devices", "target_loss": "target-loss",
    "resources": {
        "gpu": "gpus", "cpu": "cpus", "memory": "mem", "gpu_memory": "gpu-mem", "gpu_utilization": "gpu-util",
    },
    "elastic": {"sizes": "gpus", "global_batch": "batch"},
    "limits": {"time": "time", "preempt_grace": "grace"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobFile:
    """A command, and the options of ``brim submit`` that the file says."""

    command: tuple[str, ...]
    options: Mapping[str, Any]


def read_jobfile(path: Path) -> JobFile:
    """Read a job.

    Raises:
        ConfigError: it is no YAML, has aliases or tags, is too long or deep, or has a field that does not exist.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: found over {FILE_BYTES_MAX} bytes, expected at most that")
    plain = _plain(data, path)
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: found no fields, expected `run: COMMAND` and others")
    options: dict[str, Any] = {}
    for field, value in plain.items():
        known = _FIELDS.get(field) if isinstance(field, str) else None
        if known is None:
            raise ConfigError(f"{path}: found the field {shown(field)}, expected one of {', '.join(_FIELDS)}")
        for leaf in _leaves(value):
            if isinstance(leaf, int) and abs(leaf) > WHOLE_MAX:
                expected = "a number of at most 18 digits, or a text in quotes"
                raise ConfigError(f"{path}: {field}: found {shown(leaf)}, expected {expected}")
            if "\0" in str(leaf):  # no word of a command, variable or path can have one
                raise ConfigError(f"{path}: {field}: found {shown(leaf)}, expected no NUL in it")
        if isinstance(known, str):
            if known and value != []:  # an empty list is none, such as of `depends_on`
                options[known] = _value(path, field, value)
            continue
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {field}: found {shown(value)}, expected fields such as {', '.join(known)}")
        for inner, each in value.items():
            if inner not in known:
                fields = ", ".join(known)
                raise ConfigError(f"{path}: {field}: found the field {shown(inner)}, expected one of {fields}")
            options[known[inner]] = _value(path, f"{field}.{inner}", each)
    options["class"] = _CLASSES.get(options.get("class", "regular"), options.get("class", "regular"))
    if "env" in plain:
        options["env"] = _env(path, plain["env"])
    return JobFile(_command(path, plain.get("run")), options)


def _plain(data: bytes, path: Path) -> Any:
    import yaml

    class _NoAliases(yaml.SafeLoader):
        """Safe, and without aliases: a small file cannot become a large one, or one without end."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.line + 1
                raise ConfigError(f"{path}, line {line}: found an alias, expected none")
            self.depth = getattr(self, "depth", 0) + 1
            if self.depth > _DEPTH_MAX:
                raise ConfigError(f"{path}: found more than {_DEPTH_MAX} levels, expected fewer")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            """A date or a time of day is the text that an option would have, and no moment or number of seconds."""
            tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
            is_time = kind is yaml.ScalarNode and (tag.endswith(":timestamp") or (implicit[0] and ":" in value))
            return self.DEFAULT_SCALAR_TAG if is_time else tag

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            before: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in before:
                    line = key.start_mark.line + 1
                    raise ConfigError(f"{path}, line {line}: found {shown(key.value)} a second time, expected it once")
                before.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(data, Loader=_NoAliases)  # a safe loader, see above
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: {getattr(error, 'problem', None) or 'found no YAML'}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: found a value that cannot be read, expected YAML") from None


def _leaves(value: Any) -> Iterator[Any]:
    """All names, texts and numbers in a value."""
    if isinstance(value, dict | list):
        for item in (*value, *(value.values() if isinstance(value, dict) else ())):
            yield from _leaves(item)
    else:
        yield value


def _value(path: Path, field: str, value: Any) -> Any:
    """A value as the text of an option; True and False for a switch."""
    if isinstance(value, bool) and field in ("hold", "requeue"):
        return value
    if isinstance(value, list) and all(isinstance(item, str | int) and not isinstance(item, bool) for item in value):
        return ",".join(map(str, value))
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        if field == "limits.preempt_grace" and isinstance(value, int):
            return f"{value}s"
        least, dots, _ = str(value).partition("..")  # "4..16" cores, "32GB..": at least
        return least if dots and field in ("resources.cpu", "resources.memory") else str(value)
    raise ConfigError(f"{path}: {field}: found {shown(value)}, expected a text or a number")


def _env(path: Path, value: Any) -> dict[str, str]:
    plain = isinstance(value, dict) and all(type(each) in (str, int, float) for each in (*value, *value.values()))
    if not plain:
        expected = "names and values, such as yes or null in quotes"
        raise ConfigError(f"{path}: env: found {shown(value)}, expected {expected}")
    return {str(name): str(each) for name, each in value.items()}


def _command(path: Path, run: Any) -> tuple[str, ...]:
    if isinstance(run, list) and run and all(isinstance(word, str) for word in run):
        return tuple(run)
    if isinstance(run, str) and run.strip():
        if "\n" in run.strip() or any(sign in run for sign in "|&;<>$`*"):
            return ("/bin/sh", "-c", run)  # the user's own shell, in the user's own job
        try:
            return tuple(shlex.split(run))
        except ValueError as error:
            raise ConfigError(f"{path}: run: {error}") from None
    found = "nothing" if run is None else repr(run)
    raise ConfigError(f"{path}: run: found {found}, expected a command")
