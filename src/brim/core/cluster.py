"""Clusters: node groups as users write them, and the columnar node table that policies read.

``16x4xT4`` is 16 nodes of 4 T4 each; ``64x8xV100:cpus=96,mem=768GB`` adds cores and memory per node; ``64x8`` is 64
nodes of 8 GPUs whose type has no name. Join several groups with ``+``, or list them in a TOML file.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from brim.core.arrays import IntArray, frozen, set_frozen_state
from brim.errors import ConfigError
from brim.units import parse_memory_mib

UNLIMITED: Final = 1 << 40
"""Milli-cores or MiB of a node whose cores or memory were not given: the constraint never binds."""
MAX_NODES: Final = 1_000_000
MAX_GPUS_PER_NODE: Final = 64

UNNAMED: Final = ""
"""GPU type of a cluster whose type was not given: any job may run there, whatever type it asks for."""

_GROUP = re.compile(r"(?:(\d{1,9})x)?(\d{1,9})x([A-Za-z][\w.-]*)(?::(.*))?", re.ASCII)
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
        raise ConfigError(f"cluster {text!r} is not understood: expected {_EXPECTED}")
    extras: dict[str, str] = {}
    for item in filter(None, (match[4] or "").split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in ("cpus", "mem"):
            raise ConfigError(f"cluster {text!r}: found {item!r}, expected cpus=N or mem=SIZE")
        extras[key] = value
    return NodeGroup(
        count=int(match[1] or 1),
        gpus=int(match[2]),
        gpu_type=match[3],
        cpu_milli=_parse_cpus(extras["cpus"], text) if "cpus" in extras else UNLIMITED,
        mem_mib=parse_memory_mib(extras["mem"]) if "mem" in extras else UNLIMITED,
    )


def _parse_cpus(value: str, where: str) -> int:
    try:
        return round(float(value) * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(f"cluster {where!r}: found cpus={value!r}, expected a number of cores") from None


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
    groups = []
    tables = data.get("group", [])
    if not isinstance(tables, list):
        raise ConfigError(f"cluster file {path}: expected [[group]] tables")
    for row, table in enumerate(tables, 1):
        known = {"nodes", "gpus", "type", "cpus", "mem"}
        where = f"cluster file {path}, group {row}"
        if not isinstance(table, dict) or not {"gpus"} <= set(table) <= known:
            other = next((repr(key) for key in table if key not in known), "no gpus")
            raise ConfigError(f"{where}: found {other}, expected gpus and any of nodes, type, cpus, mem")
        for key in ("nodes", "gpus"):
            if type(table.get(key, 1)) is not int:
                raise ConfigError(f"{where}: found {key}={table[key]!r}, expected a whole number")
        text = f"{table.get('nodes', 1)}x{table['gpus']}" + (f"x{table['type']}" if "type" in table else "")
        extras = ",".join(f"{key}={table[key]}" for key in ("cpus", "mem") if key in table)
        groups.append(_parse_group(f"{text}:{extras}" if extras else text))
    return cluster_of(tuple(groups))
