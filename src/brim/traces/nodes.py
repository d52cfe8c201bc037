"""Infer a cluster from a record: the nodes that jobs ran on, and the most that was in use at once on each.

A node that never ran a GPU job is not seen; a node has at least the GPUs, cores and memory that its jobs held at once.
Nodes whose names differ only in digits and that have the same GPU type are assumed to be alike, each as large as the
largest of them, so the inferred cluster may be smaller or larger than the real one. A node of which a job was given
more than it asked for, and as many cores as any node of its kind has, was given whole: it has exactly that job's GPUs.
The record does not say how a job on several nodes divided
its GPUs: certain is one on each, the mean on one of them, and all of them on the nodes of one kind together. Cores and
memory are assumed to be divided as the GPUs are.
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
from brim.units import WHOLE_GPU, counted

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
            runs; equal if it is not certain how long it held its GPUs), ``gpus``, their ``type`` (null for none), and
            ``gpu_milli``, ``cpu_milli`` and ``mem_mib`` of each of them; and ``more``, whether more GPUs and cores
            were given than asked for.
        report: Receives the description.
    """
    held = held.with_columns(pl.col("nodes").list.len().alias("count")).filter(
        (pl.col("count") > 0) & (pl.col("gpus") > 0) & (pl.col("gpu_milli") > 0)
    )
    if not held.height:
        return None
    on_one = pl.col("count") == 1
    sure = pl.when(on_one).then(pl.col("gpus")).otherwise((pl.col("gpus") >= pl.col("count")).cast(pl.Int64))
    shared = held.with_row_index("attempt").with_columns(sure.alias("sure")).explode("nodes")
    kinds = _types(shared).with_columns(pl.col("nodes").str.replace_all(r"\d+", "#").alias("stem")).with_columns(
        pl.struct("stem", "type").rank("dense").alias("kind")
    )
    shared = shared.drop("type").join(kinds, on="nodes")
    nodes = _at_least(shared, "nodes", -(-pl.col("gpus") // pl.col("count"))).join(kinds, on="nodes")
    kinds = _split(kinds, nodes, shared.filter(pl.col("more") & (pl.col("count") == 1)))
    nodes = nodes.drop("kind").join(kinds.select("nodes", "kind"), on="nodes")
    shared = shared.drop("kind").join(kinds.select("nodes", "kind"), on="nodes")
    alike = nodes.group_by("kind", "stem", "type").agg(
        pl.len().alias("count"), pl.col(*_AMOUNTS).max(),
        (pl.col("gpu_milli") < pl.col("gpu_milli").max()).sum().alias("smaller"),
        (pl.col("gpu_milli").max() - pl.col("gpu_milli")).sum().alias("unseen"),
    )  # fmt: skip
    together = _most_at_once(_of_kinds(shared), "kind").rename({"gpu_milli": "together"}).select("kind", "together")
    alike = alike.join(together, on="kind").with_columns(
        pl.max_horizontal("gpu_milli", -(-pl.col("together") // pl.col("count"))).alias("gpu_milli")
    )
    most = int(alike["gpu_milli"].max()) // WHOLE_GPU  # type: ignore[arg-type]  # a number: there are rows
    if most > MAX_GPUS_PER_NODE:
        report.cluster = f"{most:,} GPUs in use at once on one node, so no cluster is inferred"
        return None
    rows = sorted(
        alike.iter_rows(named=True), key=lambda row: (natural_key(row["stem"]), row["type"], -row["gpu_milli"])
    )
    cluster = cluster_of(tuple(_group(row) for row in rows))
    smaller, unseen = int(alike["smaller"].sum()), int(alike["unseen"].sum()) // WHOLE_GPU
    divided = int(held.select((~on_one & (pl.col("gpus") > pl.col("count"))).sum()).item())
    report.cluster = (
        f"{cluster}, {counted(cluster.num_gpus, 'GPU')} on the nodes that jobs ran on: the most that jobs held at "
        "once on each kind of node; nodes that never ran a GPU job are not seen"
        + (f"; {smaller:,} never held as many GPUs as others with like names, and {unseen:,} of these GPUs are only "
           "assumed" if smaller else "")
        + (f"; how many GPUs each node gave is not recorded for runs on several nodes ({divided:,} of them)"
           if divided else "")
    )
    return cluster


_AMOUNTS: Final = ("gpu_milli", "cpu_milli", "mem_mib")


def _split(kinds: pl.DataFrame, nodes: pl.DataFrame, more: pl.DataFrame) -> pl.DataFrame:
    """Put nodes that were given whole, and have other GPUs than the rest of their kind, into kinds of their own.

    Args:
        kinds: ``nodes``, ``stem``, ``type`` and ``kind`` of each node.
        nodes: The most in use at once on each node.
        more: Attempts on one node that were given more than they asked for.
    """
    given = more.group_by("nodes").agg(
        (pl.col("gpus") * pl.col("gpu_milli")).max().alias("whole"),
        (pl.col("gpus") * pl.col("cpu_milli")).max().alias("cores"),
    )
    largest = nodes.with_columns(pl.col("cpu_milli", "gpu_milli").max().over("kind").name.prefix("most "))
    whole = largest.join(given, on="nodes").filter(
        (pl.col("cores") >= pl.col("most cpu_milli")) & (pl.col("whole") >= pl.col("gpu_milli"))
        & (pl.col("whole") < pl.col("most gpu_milli"))
    )  # fmt: skip
    return kinds.join(whole.select("nodes", "whole"), on="nodes", how="left").with_columns(
        pl.struct("kind", "whole").rank("dense").alias("kind")
    )


def _of_kinds(shared: pl.DataFrame) -> pl.DataFrame:
    """Return one row per attempt and kind of node: all its GPUs if it ran on one kind, else what is sure on each node.

    Args:
        shared: One row per attempt and node.
    """
    parts = shared.group_by("attempt", "kind").agg(
        pl.col("start", "end", "gpus", "count", *_AMOUNTS).first(), pl.col("sure").sum(), pl.len().alias("here")
    )
    return parts.with_columns(pl.when(pl.col("here") == pl.col("count")).then("gpus").otherwise("sure").alias("sure"))


def _group(row: dict[str, Any]) -> NodeGroup:
    """Make a group of nodes, in whole GPUs, cores and GB."""
    extras = {
        name: -(-row[name] // unit) * unit for name, unit in (("cpu_milli", 1_000), ("mem_mib", 1_024)) if row[name]
    }
    return NodeGroup(count=row["count"], gpus=-(-row["gpu_milli"] // WHOLE_GPU), gpu_type=row["type"], **extras)


def _at_least(shared: pl.DataFrame, key: str, gpus: pl.Expr) -> pl.DataFrame:
    """Return for each node the most in use at once, and at least these GPUs of every attempt on it."""
    single = shared.group_by(key).agg((gpus * pl.col(name)).max().alias(f"{name} of one") for name in _AMOUNTS)
    together = _most_at_once(shared, key).join(single, on=key)
    return together.select(key, *(pl.max_horizontal(name, f"{name} of one").alias(name) for name in _AMOUNTS))


def _most_at_once(shared: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return for each value of ``key`` the most that was surely in use at once; ends count before starts."""
    places = shared[key].unique()
    code = shared[key].replace_strict(places, range(len(places)), return_dtype=pl.Int64).to_numpy()
    ended = shared["end"].is_not_null().to_numpy()
    place = np.concatenate((code[ended], code))
    at_ms = np.concatenate((shared["end"].drop_nulls().to_numpy(), shared["start"].to_numpy()))
    order = np.lexsort((at_ms, place))  # stable: at one moment, ends stand before starts
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    most = {key: places}
    for name in _AMOUNTS:
        amount = (shared["sure"] * shared[name]).cast(pl.Int64).to_numpy()
        in_use = np.cumsum(np.concatenate((-amount[ended], amount))[order])
        before = np.concatenate(([0], in_use))[first]
        most[name] = pl.Series(np.maximum.reduceat(in_use, first) - before)
    return pl.DataFrame(most)


def _types(shared: pl.DataFrame) -> pl.DataFrame:
    """Return for each node the GPU type that jobs held most of, ignoring case."""
    spelled = shared.select(
        "nodes", (pl.col("gpus") * pl.col("gpu_milli") / pl.col("count")).alias("gpu_milli"),
        pl.col("type").alias("spelling"), pl.col("type").str.to_lowercase().alias("type"),
    )
    named = spelled.filter(pl.col("type").is_not_null())
    best = named.group_by("nodes", "type").agg(pl.col("gpu_milli").sum()).sort(
        ["nodes", "gpu_milli", "type"], descending=[False, True, False]
    ).unique("nodes", keep="first")  # fmt: skip
    spelling = named.sort("spelling").unique("type", keep="first").select("type", "spelling")
    chosen = best.join(spelling, on="type").select("nodes", pl.col("spelling").alias("type"))
    everything = spelled.select("nodes").unique().join(chosen, on="nodes", how="left")
    return everything.with_columns(pl.col("type").fill_null(UNNAMED_TYPE))
