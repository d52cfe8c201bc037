"""Infer a cluster from a record: the nodes that jobs ran on, and the most that was in use at once on each.

The inferred cluster is a lower bound. A node that never ran a GPU job is not seen; a node has at least the GPUs, cores
and memory that its jobs held at once. Nodes whose names differ only in digits and that have the same GPU type are
assumed to be alike, each as large as the largest of them. A job on several nodes is assumed to hold equally many GPUs
on each if their number divides evenly; otherwise it holds at least one on each, and at least the mean on one of them.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Final

import numpy as np
import polars as pl

from brim.core.cluster import MAX_GPUS_PER_NODE, Cluster, NodeGroup, cluster_of
from brim.core.trace import natural_key
from brim.traces.report import ReadReport
from brim.units import WHOLE_GPU

UNNAMED_TYPE: Final = "GPU"
"""GPU type where the record names none."""
MAX_NODES_OF_JOB: Final = 100_000
_PART: Final = re.compile(r"([^,\[\]]*)(?:\[([\d,-]+)\])?")
_NAME: Final = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")


def node_names(text: str) -> list[str]:
    """Expand a Slurm node list such as ``n[1-3,07],login``; return an empty list for any other text."""
    names: list[str] = []
    if " " in text:  # "None assigned"
        return names
    for item in _NAME.findall(text):
        parts = [(match[1], match[2]) for match in _PART.finditer(item) if match[0]]
        choices = [[stem + number for number in _numbers(numbers)] for stem, numbers in parts]
        if not all(choices) or sum(map(len, choices)) > MAX_NODES_OF_JOB:
            return []
        names += ["".join(pieces) for pieces in itertools.islice(itertools.product(*choices), MAX_NODES_OF_JOB)]
    return names


def _numbers(ranges: str | None) -> list[str]:
    """Expand ``1-3,07``; a node without brackets has one empty number."""
    if ranges is None:
        return [""]
    numbers: list[str] = []
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) + len(last) > 12:
            return []
        count = int(last or first) - int(first) + 1
        if not 0 < count <= MAX_NODES_OF_JOB:
            return []
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(first) + count)]
    return numbers


def cluster_seen(held: pl.DataFrame, report: ReadReport) -> Cluster | None:
    """Infer the cluster from what jobs held, and describe it in the report; None where no node is named.

    Args:
        held: One row per attempt that started: ``nodes`` (a list of names), ``start`` and ``end`` (ms, null while it
            runs), ``gpu_milli``, ``cpu_milli`` and ``mem_mib`` of all its nodes together, ``type`` (null for none).
        report: Receives the description.
    """
    held = held.with_columns(pl.col("nodes").list.len().alias("count")).filter(
        (pl.col("count") > 0) & (pl.col("gpu_milli") > 0)
    )
    if not held.height:
        return None
    gpus = pl.col("gpu_milli") / WHOLE_GPU
    parts = pl.when(gpus % pl.col("count") == 0).then(pl.col("count")).otherwise(pl.max_horizontal(gpus, "count"))
    shared = held.with_columns(
        *(((pl.col(name) / parts).floor()).cast(pl.Int64) for name in ("gpu_milli", "cpu_milli", "mem_mib")),
        ((gpus / pl.col("count")).ceil() * WHOLE_GPU).cast(pl.Int64).alias("most_milli"),
    ).explode("nodes")
    nodes = _most_at_once(shared).join(_types(shared), on="nodes").with_columns(
        pl.col("nodes").str.replace_all(r"\d+", "#").alias("stem")
    )
    alike = nodes.group_by("stem", "type").agg(
        pl.len().alias("count"), pl.col("gpu_milli", "cpu_milli", "mem_mib").max(),
        (pl.col("gpu_milli") < pl.col("gpu_milli").max()).sum().alias("smaller"),
    )  # fmt: skip
    most = int(alike["gpu_milli"].max()) // WHOLE_GPU  # type: ignore[arg-type]  # a number: there are rows
    if most > MAX_GPUS_PER_NODE:
        report.cluster = f"{most:,} GPUs in use at once on one node, so no cluster is inferred"
        return None
    rows = sorted(alike.iter_rows(named=True), key=lambda row: (natural_key(row["stem"]), row["type"]))
    cluster = cluster_of(tuple(_group(row) for row in rows))
    smaller = int(alike["smaller"].sum())
    report.cluster = (
        f"{cluster}, {cluster.num_gpus:,} GPUs on the nodes that jobs ran on: the most that jobs held at once on each "
        "kind of node; nodes that never ran a GPU job are not seen"
        + (f"; {smaller:,} never held as many GPUs as others of their kind" if smaller else "")
    )
    return cluster


def _group(row: dict[str, Any]) -> NodeGroup:
    """Make a group of nodes, in whole GPUs, cores and GB."""
    extras = {
        name: -(-row[name] // unit) * unit for name, unit in (("cpu_milli", 1_000), ("mem_mib", 1_024)) if row[name]
    }
    return NodeGroup(count=row["count"], gpus=-(-row["gpu_milli"] // WHOLE_GPU), gpu_type=row["type"], **extras)


def _most_at_once(shared: pl.DataFrame) -> pl.DataFrame:
    """Return for each node the most GPUs, cores and memory in use at once; ends count before starts."""
    names = shared["nodes"].unique()
    code = shared["nodes"].replace_strict(names, range(len(names)), return_dtype=pl.Int64).to_numpy()
    ended = shared["end"].is_not_null().to_numpy()
    node = np.concatenate((code[ended], code))
    at_ms = np.concatenate((shared["end"].drop_nulls().to_numpy(), shared["start"].to_numpy()))
    order = np.lexsort((at_ms, node))  # stable: at one moment, ends stand before starts
    first = np.flatnonzero(np.diff(node[order], prepend=-1))
    most = {"nodes": names}
    for name in ("gpu_milli", "cpu_milli", "mem_mib"):
        amount = shared[name].to_numpy()
        in_use = np.cumsum(np.concatenate((-amount[ended], amount))[order])
        before = np.concatenate(([0], in_use))[first]
        most[name] = pl.Series(np.maximum.reduceat(in_use, first) - before)
    single = shared.group_by("nodes").agg(pl.col("most_milli").max())
    together = pl.DataFrame(most).join(single, on="nodes")
    return together.with_columns(pl.max_horizontal("gpu_milli", "most_milli").alias("gpu_milli"))


def _types(shared: pl.DataFrame) -> pl.DataFrame:
    """Return for each node the GPU type that held the most GPU time, ignoring case."""
    spelled = shared.select(
        "nodes", "gpu_milli", pl.col("type").alias("spelling"), pl.col("type").str.to_lowercase().alias("type")
    )
    named = spelled.filter(pl.col("type").is_not_null())
    best = named.group_by("nodes", "type").agg(pl.col("gpu_milli").sum()).sort(
        ["nodes", "gpu_milli", "type"], descending=[False, True, False]
    ).unique("nodes", keep="first")  # fmt: skip
    spelling = named.sort("spelling").unique("type", keep="first").select("type", "spelling")
    chosen = best.join(spelling, on="type").select("nodes", pl.col("spelling").alias("type"))
    everything = spelled.select("nodes").unique().join(chosen, on="nodes", how="left")
    return everything.with_columns(pl.col("type").fill_null(UNNAMED_TYPE))
