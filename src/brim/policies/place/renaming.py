"""Equal nodes, and the GPUs of a node, exchanged in a plan so that fewer running jobs have to move. Pure.

Shapes: J jobs, G grants.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brim.core.arrays import BoolArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants, NodeTable


def touched(snapshot: Snapshot, wanted: Grants) -> BoolArray:
    """Whether each job that holds GPUs loses one, or gets another (J,)."""
    held, size = snapshot.grants, len(snapshot.jobs)
    stays = np.bincount(wanted.job[np.isin(_codes(wanted), _codes(held))], minlength=size)
    had, has = (np.bincount(grants.job, minlength=size) for grants in (held, wanted))
    changed: BoolArray = snapshot.jobs.holds & ((stays != had) | (stays != has))
    return changed


def renamed(snapshot: Snapshot, wanted: Grants) -> Grants:
    """Return the grants with equal nodes exchanged, and GPUs within nodes, so that as many as possible stay.

    Nodes are equal if they have the same GPUs, cores and memory, take jobs, and are all awake or all asleep. Nodes
    with withheld GPUs stay as they are. Each class of equal nodes is an assignment of least cost, and so are the GPUs
    of each node; the grants come back unchanged if no fewer jobs would move. Ranks on CPU are not exchanged: with any,
    the grants are unchanged.
    """
    held, size = snapshot.grants, len(snapshot.jobs)
    changed = touched(snapshot, wanted)
    same_size = np.bincount(held.job, minlength=size) == np.bincount(wanted.job, minlength=size)
    if not (changed & same_size).any() or min(held.gpu.min(initial=0), wanted.gpu.min(initial=0)) < 0:
        return wanted
    kinds = _kinds(snapshot.nodes)
    concerned = np.union1d(held.node[changed[held.job]], wanted.node[changed[wanted.job]])
    name = np.arange(len(snapshot.nodes))
    for kind in np.unique(kinds[concerned]).tolist():
        nodes = concerned[kinds[concerned] == kind]
        if kind >= 0 and len(nodes) > 1:
            name[nodes] = nodes[_assigned(_overlap(held, wanted, nodes))]
    node, gpu = name[wanted.node], wanted.gpu.copy()
    for place in concerned[kinds[concerned] >= 0].tolist():
        there, here = np.flatnonzero(held.node == place), np.flatnonzero(node == place)
        shared = np.zeros((int(snapshot.nodes.gpus[place]),) * 2, dtype=np.int64)
        row, column = np.nonzero(wanted.job[here][:, None] == held.job[there])
        np.add.at(shared, (gpu[here][row], held.gpu[there][column]), 1)
        gpu[here] = _assigned(shared)[gpu[here]]
    order = np.lexsort((gpu, node, wanted.job))
    other = replace(
        wanted, job=wanted.job[order], node=node[order], gpu=gpu[order], share_milli=wanted.share_milli[order],
        revocable=wanted.revocable[order] if len(wanted.revocable) else wanted.revocable,
    )
    return other if touched(snapshot, other).sum() < changed.sum() else wanted


def _codes(grants: Grants) -> IntArray:
    """A number for each job, node and GPU (G,)."""
    code: IntArray = (grants.job << 40) + (grants.node << 16) + (grants.gpu + 1)
    return code


def _kinds(nodes: NodeTable) -> IntArray:
    """A number that equal nodes have in common (N,), -1 for nodes that are not exchanged."""
    asleep = nodes.asleep if nodes.asleep.size else np.zeros(len(nodes), dtype=np.bool_)
    columns = np.stack((nodes.gpu_type, nodes.gpus, nodes.cpu_milli, nodes.mem_mib, asleep.astype(np.int64)))
    kinds = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
    fixed = ~nodes.is_open
    if nodes.withheld.size:
        fixed = fixed | nodes.withheld.any(axis=1)
    return np.where(fixed, -1, kinds)


def _overlap(held: Grants, wanted: Grants, nodes: IntArray) -> IntArray:
    """GPUs that jobs wanted on one of these nodes have on another: rows wanted, columns held.

    It goes through the pairs of nodes of each job, which are few, and not through all nodes and jobs: in full rounds of
    benchmarks/round_latency.py (2,000 jobs, 250 nodes) at most 0.4 ms of CPU instead of up to 778.
    """
    (has_job, row, has), (had_job, column, had) = _on_nodes(wanted, nodes), _on_nodes(held, nodes)
    first, end = (np.searchsorted(had_job, has_job, side=side) for side in ("left", "right"))
    pairs = end - first
    of_row = np.repeat(np.arange(len(row)), pairs)
    of_column = np.arange(len(of_row)) - np.repeat(np.cumsum(pairs) - pairs - first, pairs)
    overlap = np.zeros((len(nodes),) * 2, dtype=np.int64)
    np.add.at(overlap, (row[of_row], column[of_column]), np.minimum(has[of_row], had[of_column]))
    return overlap


def _on_nodes(grants: Grants, nodes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Each job with each of these nodes on which it has GPUs, by its position among them, and how many it has there."""
    there = np.isin(grants.node, nodes)
    code = grants.job[there] * len(nodes) + np.searchsorted(nodes, grants.node[there])
    found, count = np.unique(code, return_counts=True)
    return found // len(nodes), found % len(nodes), count.astype(np.int64)


def _assigned(overlap: IntArray) -> IntArray:
    """For each row the column such that the sum of overlaps is largest; among equal sums, most rows keep their own."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - half a second that other policies do not need

    weight = overlap * (len(overlap) + 1) + np.eye(len(overlap), dtype=np.int64)
    columns: IntArray = linear_sum_assignment(weight, maximize=True)[1]
    return columns
