"""The data of the Gantt chart: which job held which GPU when, reduced to the size of a page.

A replay becomes a raster: one row per GPU (per group of nodes if there are too many GPUs), one column per equal stretch
of time, and in each cell the job that held the row's GPUs at the middle of the stretch. A run narrower than a column
appears in proportion to its length, so that the texture keeps its true density. Rows are stored as run lengths.
There are more columns than a screen has, so that one can zoom in; the page's script thins them again to what it draws.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brim.compiled import njit
from brim.core.arrays import IntArray
from brim.core.cluster import Cluster
from brim.core.replay import Replay
from brim.core.trace import NONE, Trace
from brim.reports.metrics import SIZE_CLASSES, run_end_ms, size_class
from brim.units import counted, show_duration

MAX_ROWS: Final = 192
_COLUMNS: Final = (9600, 4800, 2400, 1200, 900, 600, 450, 300, 200, 120, 60, 30)
_MAX_SEGMENTS: Final = 480_000
"""Limit for all policies together: about 0.8 MB of the page, and at most as many job names."""
_MAX_SEGMENTS_EACH: Final = 160_000
_MAX_NAME: Final = 40
_NAMED_OWNERS: Final = 7
_LEVELS: Final = 4
"""Shades in which a row of several GPUs shows how many of them are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Owners of a trace's jobs: the largest by GPU time have names, the others are joined.

    Attributes:
        kind: "user", "group" or "size".
        names: Owners that have a colour; the last is "others" where there are more.
        code: Index into names per job, shape (J,).
    """

    kind: str
    names: tuple[str, ...]
    code: IntArray


def owners_of(replay: Replay) -> Owners:
    """Choose the owners that get a colour: groups where the trace has them, else users, else size classes."""
    trace, gpu_ms = replay.trace, replay.asked_gpu_ms
    for kind, code, names in (("group", trace.group, trace.groups), ("user", trace.user, trace.users)):
        if (code >= 0).any():
            weight = np.bincount(code[code >= 0], weights=gpu_ms[code >= 0], minlength=len(names))
            order = np.argsort(-weight, kind="stable")
            order = order[: _NAMED_OWNERS]
            place = np.full(len(names) + 1, len(order), dtype=np.int64)
            place[order] = np.arange(len(order))
            place[NONE] = len(order)
            shown = tuple(names[owner] for owner in order)
            colour = place[code]
            return Owners(kind=kind, names=(*shown, "others") if (colour == len(order)).any() else shown, code=colour)
    return Owners(kind="size", names=SIZE_CLASSES, code=size_class(trace))


def gantt_data(replays: Sequence[Replay], owners: Owners) -> dict[str, Any]:
    """Return all policies' rasters and the jobs they show; arrays stay arrays until ``packed``.

    Returns:
        ``rows``, ``nodes`` (rows at which a node starts), ``end_s``, ``origin_ms``, ``owners``, ``sizes``; ``people``,
        the users (or groups) by name, most jobs first, with ``people_jobs``; ``jobs`` with ``id``, ``owner``, ``size``,
        ``gpus``, ``who`` (index into people + 1, 0 nobody); per policy ``columns``, ``len``, ``job`` (index into
        jobs + 1, 0 idle), ``level``.
    """
    first = replays[0]
    rows_N = rows_of_nodes(first.cluster)
    budget = min(_MAX_SEGMENTS_EACH, _MAX_SEGMENTS // len(replays))
    end_ms = max([replay.end_ms for replay in replays] + [1])
    found = [_thinned(replay, rows_N, end_ms, budget) for replay in replays]
    shown = np.unique(np.concatenate([job for _, _, job, _ in found]))
    shown = shown[shown >= 0]
    trace = first.trace
    names, place = people(trace)
    code = people_code(trace)
    return {
        "rows": int(rows_N[-1][-1] + 1) if rows_N else 0,
        "nodes": _node_rows(rows_N),
        "end_s": end_ms / 1000,
        "origin_ms": trace.origin_ms,
        "owners": list(owners.names),
        "sizes": list(SIZE_CLASSES),
        "people": [_short(name) for name in names],
        "people_jobs": np.bincount(place[code[code >= 0]], minlength=len(names)).astype("<u4"),
        "jobs": {
            "id": [_short(trace.job_id[job]) for job in shown],
            "owner": owners.code[shown].astype("<u1"),
            "size": size_class(trace)[shown].astype("<u1"),
            "gpus": trace.gpus[shown].astype("<u4"),
            "gpus_as": " asked" if (first.gpus_min < first.gpus_max).any() else "",
            "who": (place[code[shown]] + 1).astype("<u4"),
        },
        "policies": [
            {
                "name": replay.policy, "columns": columns, "len": length.astype("<u2"),
                "job": np.where(job >= 0, np.searchsorted(shown, job) + 1, 0).astype("<u4"),
                "level": level.astype("<u1"),
            }
            for replay, (columns, length, job, level) in zip(replays, found, strict=True)
        ],
    }


def packed(data: dict[str, Any]) -> str:
    """Return base64 of deflated bytes: the length of a JSON text (4 bytes), the text, the arrays it points to.

    The JSON refers to an array as ``{"at": offset after the text, "size": bytes per number, "count": numbers}``.
    Numbers of several bytes are stored place by place (all lowest bytes first), which deflates better.
    """
    parts: list[bytes] = []
    offset = 0

    def placed(array: object) -> dict[str, int]:
        nonlocal offset
        if not isinstance(array, np.ndarray):
            raise TypeError(f"found {type(array).__name__}, expected an array")
        planes = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize).T
        parts.append(planes.tobytes())
        here, offset = offset, offset + array.nbytes
        return {"at": here, "size": array.dtype.itemsize, "count": len(array)}

    text = json.dumps(data, separators=(",", ":"), default=placed).encode()
    return base64.b64encode(zlib.compress(b"".join((len(text).to_bytes(4, "little"), text, *parts)), 9)).decode()


def people(trace: Trace) -> tuple[list[str], IntArray]:
    """Return users (else groups) with jobs, most jobs first, and the place of each code among them; NONE's is last."""
    names = trace.users if (trace.user >= 0).any() else trace.groups
    code = people_code(trace)
    jobs = np.bincount(code[code >= 0], minlength=len(names))
    order = np.argsort(-jobs, kind="stable")
    order = order[jobs[order] > 0]
    place = np.full(len(names) + 1, NONE, dtype=np.int64)
    place[order] = np.arange(len(order))
    return [names[person] for person in order], place


def people_code(trace: Trace) -> IntArray:
    """Return the code of each job's user, or of its group where no user is recorded, shape (J,)."""
    return trace.user if (trace.user >= 0).any() else trace.group


def rows_of_nodes(cluster: Cluster) -> list[range]:
    """Return the rows of each node: one per GPU, or one for neighbouring nodes with more than ``MAX_ROWS`` GPUs."""
    if cluster.num_gpus <= MAX_ROWS:
        offset = cluster.gpu_offset_N
        return [range(int(offset[node]), int(offset[node + 1])) for node in range(cluster.num_nodes)]
    together = -(-cluster.num_nodes // MAX_ROWS)
    return [range(node // together, node // together + 1) for node in range(cluster.num_nodes)]


def caption(cluster: Cluster, end_ms: int) -> str:
    """Describe the rows and columns of the chart."""
    rows_N = rows_of_nodes(cluster)
    if cluster.num_gpus <= MAX_ROWS:
        row = "one row per GPU, nodes set apart"
    else:
        together = sum(rows == rows_N[0] for rows in rows_N)
        nodes = "one row per node" if together == 1 else f"one row per {together} nodes"
        row = f"{nodes}: colour of the job with most of the GPUs, paler where fewer of them are held"
    return f"{counted(cluster.num_gpus, 'GPU')} over {show_duration(end_ms / 1000)}, {row}."


def raster(
    replay: Replay, rows_N: Sequence[range], *, end_ms: int, columns: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return job and number of GPUs held per cell, each of shape (rows, columns); job is NONE where the row is idle."""
    cluster, runs = replay.cluster, replay.runs
    row_of_gpu = np.zeros(cluster.num_gpus, dtype=np.int64)
    for node, rows in enumerate(rows_N):
        start, stop = int(cluster.gpu_offset_N[node]), int(cluster.gpu_offset_N[node + 1])
        row_of_gpu[start:stop] = np.array(rows) if len(rows) == stop - start else rows[0]
    width = end_ms / columns
    first = np.ceil(runs.start_ms / width - 0.5).astype(np.int64)
    last = np.minimum(np.ceil(run_end_ms(replay) / width - 0.5).astype(np.int64), columns)
    share = runs.share_milli / 1000
    job = np.full((int(row_of_gpu.max(initial=0)) + 1, columns), NONE, dtype=np.int32)
    held = np.zeros(job.shape, dtype=np.float32)
    most = np.zeros(job.shape, dtype=np.float32)
    _paint(runs.job, np.maximum(first, 0), last, runs.first_gpu, row_of_gpu[runs.gpu], share, job, held, most)
    return job, held


def _thinned(
    replay: Replay, rows_N: Sequence[range], end_ms: int, budget: int
) -> tuple[int, IntArray, NDArray[np.int32], IntArray]:
    """Return the finest raster that fits the budget, as run lengths: columns, length, job, level."""
    gpus_per_row = np.bincount(
        np.concatenate([np.array(rows) for rows in rows_N]) if replay.cluster.num_gpus <= MAX_ROWS
        else np.repeat([rows[0] for rows in rows_N], replay.cluster.gpus_N)
    )
    for columns in _COLUMNS:
        job, held = raster(replay, rows_N, end_ms=end_ms, columns=columns)
        level = np.ceil(np.minimum(held / gpus_per_row[:, None], 1) * _LEVELS - 1e-3).astype(np.int64)
        changes = (job[:, 1:] != job[:, :-1]) | (level[:, 1:] != level[:, :-1])
        if changes.sum() + len(job) <= budget or columns == _COLUMNS[-1]:
            break
    starts = np.concatenate((np.ones((len(job), 1), dtype=np.bool_), changes), axis=1).ravel()
    begin = np.flatnonzero(starts)
    length = np.diff(np.append(begin, job.size))
    return columns, length, job.ravel()[begin], level.ravel()[begin]


def _paint(
    run_job: IntArray, first: IntArray, last: IntArray, first_gpu: IntArray, row: IntArray, share: NDArray[np.float64],
    job: NDArray[np.int32], held: NDArray[np.float32], most: NDArray[np.float32],
) -> None:
    """Paint runs in turn; neighbouring GPUs in one row are painted together, and the larger part of a row shows."""
    for run in range(len(run_job)):
        if first[run] >= last[run]:
            continue
        at, stop = first_gpu[run], first_gpu[run + 1]
        while at < stop:
            together = at
            while together < stop and row[together] == row[at]:
                together += 1
            gpus = (together - at) * share[run]
            for column in range(first[run], last[run]):
                held[row[at], column] += gpus
                if gpus > most[row[at], column]:
                    most[row[at], column] = gpus
                    job[row[at], column] = run_job[run]
            at = together


_paint = njit(_paint)


def _node_rows(rows_N: Sequence[range]) -> list[int]:
    return sorted({rows[0] for rows in rows_N}) if any(len(rows) > 1 for rows in rows_N) else []


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "\u2026"
