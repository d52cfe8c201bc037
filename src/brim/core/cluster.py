"""Clusters: node groups as users write them, and the columnar node table that policies read.

``16x4xT4`` is 16 nodes of 4 T4 each; ``64x8xV100:cpus=96,mem=768GB`` adds cores and memory per node; ``64x8`` is 64
nodes of 8 GPUs whose type has no name. Join several groups with ``+``, or list them in a TOML file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from brim.core.arrays import IntArray, frozen, set_frozen_state
from brim.errors import ConfigError, shown
from brim.units import parse_memory_mib

UNLIMITED: Final = 1 << 40
"""Milli-cores or MiB of a node whose cores or memory were not given: the constraint never binds."""
MAX_NODES: Final = 1_000_000
MAX_GPUS_PER_NODE: Final = 64

UNNAMED: Final = ""
"""GPU type of a cluster whose type was not given: any job may run there, whatever type it asks for."""

_TYPE = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
_GROUP = re.compile(rf"(?:(\d{{1,9}})x)?(\d{{1,9}})x({_TYPE.pattern})(?::(.*))?", re.ASCII)
_UNNAMED_GROUP = re.compile(r"(\d{1,9})x(\d{1,9})()(?::(.*))?", re.ASCII)
_EXPECTED = "NODESxGPUS[xTYPE][:cpus=N,mem=SIZE], for example 64x8, 64x8xH100 or 16x4xT4:cpus=48,mem=192GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Identical nodes. ``cpu_milli`` and ``mem_mib`` are per node; UNLIMITED where not given."""

    count: int
    gpus: int
    gpu_type: str
    cpu_milli: int = UNLIMITED
    mem_mib: int = UNLIMITED

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_NODES:
            raise ConfigError(f"cluster {self}: found {self.count} nodes, expected 1 to {MAX_NODES}")
        if not 1 <= self.gpus <= MAX_GPUS_PER_NODE:
            raise ConfigError(f"cluster {self}: found {self.gpus} GPUs per node, expected 1 to {MAX_GPUS_PER_NODE}")
        if not (0 < self.cpu_milli <= UNLIMITED and 0 < self.mem_mib <= UNLIMITED):
            raise ConfigError(f"cluster {self}: cpus and mem must be above zero and below a billion")

    def __str__(self) -> str:
        extras = [f"cpus={self.cpu_milli / 1000:g}"] if self.cpu_milli != UNLIMITED else []
        extras += [f"mem={self.mem_mib / 1024:g}GB"] if self.mem_mib != UNLIMITED else []
        kind = f"x{self.gpu_type}" if self.gpu_type else ""
        return f"{self.count}x{self.gpus}{kind}" + (":" + ",".join(extras) if extras else "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cluster:
    """A cluster: its groups, and one row per node in group order (N nodes). Clusters of equal groups are equal.

    Attributes:
        groups: As given.
        gpu_types: Names behind the codes in ``gpu_type_N``; case makes no difference between types.
        gpu_type_N: Code of the node's GPU type.
        gpus_N: GPUs per node.
        cpu_milli_N: Milli-cores per node.
        mem_mib_N: MiB per node.
        gpu_offset_N: Global index of the node's first GPU, length N + 1.
    """

    groups: tuple[NodeGroup, ...]
    gpu_types: tuple[str, ...]
    gpu_type_N: IntArray
    gpus_N: IntArray
    cpu_milli_N: IntArray
    mem_mib_N: IntArray
    gpu_offset_N: IntArray

    __setstate__ = set_frozen_state

    @property
    def num_nodes(self) -> int:
        """Number of nodes in all groups."""
        return len(self.gpus_N)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs in all groups."""
        return int(self.gpu_offset_N[-1])

    def __eq__(self, other: object) -> bool:
        return self.groups == other.groups if isinstance(other, Cluster) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.groups)

    def __str__(self) -> str:
        return "+".join(str(group) for group in self.groups)


def cluster_of(groups: tuple[NodeGroup, ...]) -> Cluster:
    """Lay node groups out as columns.

    Raises:
        ConfigError: there is no group, or only some of several groups name their GPU type.
    """
    if not groups:
        raise ConfigError("cluster: expected at least one node group")
    spelled: dict[str, str] = {}  # a100 and A100 are one type; the first spelling is kept
    names = [spelled.setdefault(group.gpu_type.casefold(), group.gpu_type) for group in groups]
    types = tuple(spelled.values())
    if len(types) > 1 and UNNAMED in types:
        raise ConfigError(f"cluster {'+'.join(map(str, groups))}: name the GPU type of every group or of no group")
    counts = [group.count for group in groups]

    def column(values: list[int]) -> IntArray:
        return frozen(np.repeat(np.asarray(values, dtype=np.int64), counts))

    gpus_N = column([group.gpus for group in groups])
    return Cluster(
        groups=groups,
        gpu_types=types,
        gpu_type_N=column([types.index(name) for name in names]),
        gpus_N=gpus_N,
        cpu_milli_N=column([group.cpu_milli for group in groups]),
        mem_mib_N=column([group.mem_mib for group in groups]),
        gpu_offset_N=frozen(np.concatenate(([0], np.cumsum(gpus_N))).astype(np.int64)),
    )


def parse_cluster(text: str) -> Cluster:
    """Read a cluster string or, where it names a ``.toml`` file, that file.

    Raises:
        ConfigError: the text or file does not describe a cluster.

    Example:
        >>> parse_cluster("2x4xT4+1x8xV100:cpus=96").num_gpus
        16
    """
    if text.endswith(".toml"):
        return _read_toml(Path(text))
    return cluster_of(tuple(_parse_group(part.strip()) for part in text.split("+")))


def _parse_group(text: str) -> NodeGroup:
    match = _GROUP.fullmatch(text) or _UNNAMED_GROUP.fullmatch(text)
    if not match:
        raise ConfigError(f"cluster {shown(text)} is not understood: expected {_EXPECTED}")
    extras: dict[str, str] = {}
    for item in filter(None, (match[4] or "").split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in ("cpus", "mem"):
            raise ConfigError(f"cluster {shown(text)}: found {shown(item)}, expected cpus=N or mem=SIZE")
        if key in extras:
            raise ConfigError(f"cluster {shown(text)}: found {key} twice, expected it once")
        extras[key] = value
    return NodeGroup(
        count=int(match[1] or 1),
        gpus=int(match[2]),
        gpu_type=match[3],
        **_amounts(f"cluster {shown(text)}", extras),
    )


def _amounts(where: str, extras: Mapping[str, object]) -> dict[str, int]:
    """Read ``cpus`` and ``mem``, as far as they are given; errors show them as they were written."""
    found = {}
    if "cpus" in extras:
        try:
            found["cpu_milli"] = round(float(str(extras["cpus"])) * 1000)
        except (ValueError, OverflowError):
            found["cpu_milli"] = 0
        if not 0 < found["cpu_milli"] <= UNLIMITED:
            expected = "a number of cores above zero and below a billion"
            raise ConfigError(f"{where}: found cpus={shown(extras['cpus'])}, expected {expected}")
    if "mem" in extras:
        try:
            found["mem_mib"] = parse_memory_mib(str(extras["mem"]))
        except (ConfigError, ValueError):  # ValueError: a whole number that is too long to be shown
            found["mem_mib"] = 0
        if not 0 < found["mem_mib"] <= UNLIMITED:
            expected = "a size above zero and below a billion GB, such as 192GB or 512MiB"
            raise ConfigError(f"{where}: found mem={shown(extras['mem'])}, expected {expected}")
    return found


def _read_toml(path: Path) -> Cluster:
    """Read ``[[group]]`` tables with gpus and optional nodes, type, cpus, mem."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"cluster file {path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"cluster file {path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cluster file {path}: {error}") from None
    except ValueError:  # Python reads no whole number of so many digits
        raise ConfigError(f"cluster file {path}: found a number of thousands of digits, expected fewer") from None
    tables = data.get("group")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        found = "a 'group' that is none" if tables is not None else ", ".join(map(repr, data)) or "nothing"
        raise ConfigError(f"cluster file {path}: found {found}, expected [[group]] tables")
    where = f"cluster file {path}, group"
    return cluster_of(tuple(_group_of(table, f"{where} {row}") for row, table in enumerate(tables, 1)))


def _group_of(table: Mapping[str, object], where: str) -> NodeGroup:
    known = ("nodes", "gpus", "type", "cpus", "mem")
    if not {"gpus"} <= table.keys() <= {*known}:
        other = next((repr(key) for key in table if key not in known), "no gpus")
        raise ConfigError(f"{where}: found {other}, expected gpus and any of nodes, type, cpus, mem")
    numbers = {}
    for key, most in (("nodes", MAX_NODES), ("gpus", MAX_GPUS_PER_NODE)):
        value = table.get(key, 1)
        if type(value) is not int or not 1 <= value <= most:
            raise ConfigError(f"{where}: found {key}={shown(value)}, expected a whole number, 1 to {most}")
        numbers[key] = value
    name = table.get("type", UNNAMED)
    if not isinstance(name, str) or ("type" in table and not _TYPE.fullmatch(name)):
        expected = "a letter, then letters, digits, _ . or -, such as V100"
        raise ConfigError(f"{where}: found type={shown(name)}, expected {expected}")
    return NodeGroup(count=numbers["nodes"], gpus=numbers["gpus"], gpu_type=name, **_amounts(where, table))
