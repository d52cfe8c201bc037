"""The state of a cluster as bytes, and back: what a journal can begin from instead of its first line.

A digest, then a NumPy archive of the columns and one JSON text of everything else. Nothing in it can run code when it
is read.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import IntArray
from brim.core.cluster import Cluster
from brim.core.ended_work import EndedWorkBook
from brim.core.joins import JoinBook
from brim.core.lifecycle import Phase
from brim.core.losses import LossBook
from brim.core.seen import SeenStepTimes
from brim.core.slowdowns import SeenSlowdowns
from brim.core.state import ClusterState
from brim.core.tables import JOB_COLUMNS, JOB_FLOAT_COLUMNS
from brim.core.trace import NONE
from brim.core.usage import UsageBook
from brim.errors import InvariantError

FORMAT: Final = 1
"""Version of the layout. A reader refuses another: the journal from its first line is the way out."""
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_PLAIN: Final = "plain"
_COLUMNS: Final = [*JOB_COLUMNS, *JOB_FLOAT_COLUMNS]
_NOT_KNOWN_BEFORE: Final = frozenset({
    "gpu_util_milli", "gpu_mem_mib", "loader_wait_ratio", "servers", "target_loss_ppm", "samples_max",
})
"""Columns that states of earlier versions lack; a job of which nothing is known has NONE or NaN there."""
_BY_SLOT: Final = ("block", "floats", "reported_ms", "granted")
_ID, _PHASE, _GPU_TYPE = (JOB_COLUMNS.index(name) for name in ("id", "phase", "gpu_type"))


def state_bytes(state: ClusterState, beside: Mapping[str, Any] | None = None) -> bytes:
    """Return the whole state as bytes, and plain data ``beside`` it. Changes nothing."""
    used, granted = state._used, state._num_granted
    arrays: dict[str, NDArray[Any]] = {
        "block": state._block[:, :used], "floats": state._floats[:, :used], "reported_ms": state._reported_ms[:used],
        "granted": state._granted[:, :granted], "up": state._up_N, "open": state._open_N,
        "withheld": state._withheld, "quarantined": state._quarantined, "asleep": state._asleep, "ended": state._ended,
        "usage": state._usage._usage_U, "runs": state._usage._runs_U2,
        **{f"memory.{socket}": block[:used] for socket, block in state._memory.items()},
    }
    plain = {
        "format": FORMAT, "cluster": str(state.cluster), "columns": _COLUMNS,
        "now_ms": state.now_ms, "users": list(state._usage._codes), "usage_at_ms": state._usage._at_ms,
        "size_lists": [list(sizes) for sizes in state._size_lists],
        "seen": [[job, state._seen._profile[job], _means(means)] for job, means in state._seen._of_job.items()],
        "seen_of_profile": [[profile, _means(means)] for profile, means in state._seen._of_profile.items()],
        "slowdowns": state._slowdowns.plain(), "ended_work": state._work.plain(),
        "losses": state._losses.plain(), "beside": dict(beside or {}),
    }
    if state.gaps is not None:
        arrays |= {"gaps.since_ms": state.gaps.since_ms, "gaps.past_ms": state.gaps.past_ms}
        plain["joins"] = state._joins.plain()
    arrays[_PLAIN] = np.frombuffer(json.dumps(plain, separators=(",", ":")).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return _digest(file.getvalue()) + file.getvalue()


def _digest(archive: bytes) -> bytes:
    return hashlib.sha256(archive).digest()


def state_of(data: bytes, cluster: Cluster) -> tuple[ClusterState, dict[str, Any]]:
    """Return the state that ``state_bytes`` wrote, and the plain data beside it.

    Raises:
        InvariantError: the bytes are damaged or no state, or that of another cluster or version.
    """
    arrays, plain = _read(data)
    _add_columns(arrays, plain)
    for what, expected in (("format", FORMAT), ("cluster", str(cluster)), ("columns", _COLUMNS)):
        if plain.get(what) != expected:
            raise InvariantError(f"the saved state has {what} {plain.get(what)!r}, expected {expected!r}")
    state = ClusterState(cluster, padding_apart="gaps.since_ms" in arrays)
    if state.gaps is not None:
        state.gaps.since_ms, state.gaps.past_ms = arrays.pop("gaps.since_ms"), arrays.pop("gaps.past_ms")
    state.now_ms = plain["now_ms"]
    _fill(state, arrays)
    state._size_lists = {tuple(sizes): code for code, sizes in enumerate(plain["size_lists"])}
    state._usage = _usage(plain, arrays)
    state._seen = _seen(plain)
    state._slowdowns = SeenSlowdowns.of_plain(plain.get("slowdowns", ()))
    state._work = EndedWorkBook(plain.get("ended_work", ()))  # states of earlier versions have none of these
    state._losses = LossBook(plain.get("losses", ()))
    state._joins = JoinBook.of_plain(plain.get("joins", {}))
    return state, plain["beside"]


def _add_columns(arrays: dict[str, NDArray[Any]], plain: dict[str, Any]) -> None:
    """Add the columns that the version which wrote the state did not have; nothing was known of them."""
    had = plain.get("columns")
    if had == _COLUMNS or not isinstance(had, list) or had != [name for name in _COLUMNS if name in had]:
        return
    if not {*_COLUMNS} - {*had} <= _NOT_KNOWN_BEFORE:
        return
    for name, columns, nothing in (("block", JOB_COLUMNS, NONE), ("floats", JOB_FLOAT_COLUMNS, np.nan)):
        saved, present = arrays[name], [column for column in columns if column in had]
        grown = np.full((len(columns), saved.shape[1]), nothing, dtype=saved.dtype)
        grown[[columns.index(column) for column in present]] = saved
        arrays[name] = grown
    plain["columns"] = _COLUMNS


def saved_cluster(data: bytes) -> str:
    """Return the cluster of a saved state.

    Raises:
        InvariantError: the bytes are no saved state.
    """
    return str(_read(data)[1].get("cluster"))


def state_on(state: ClusterState, cluster: Cluster, gpu_types: Mapping[int, int]) -> ClusterState:
    """Return the state on another cluster.

    Where its nodes have as many GPUs as before, these stay granted or withheld; elsewhere all are open.

    Args:
        state: The state; it is not used any more.
        cluster: The other cluster.
        gpu_types: Code there of the type that each job asks for, by job id; NONE for any.

    Raises:
        InvariantError: a job holds GPUs, and the nodes have others.
    """
    is_alike = np.array_equal(state.cluster.gpus_N, cluster.gpus_N)
    if state._num_granted and not is_alike:
        raise InvariantError(f"job {state._granted[0, 0]} holds GPUs, and cannot be moved to another cluster")
    moved = ClusterState(cluster, padding_apart=state.gaps is not None)
    of_nodes = ("_up_N", "_open_N", "_withheld", "_quarantined", "_asleep", "_node_columns", "gaps")
    names = ("_node_columns",) if is_alike else of_nodes
    fresh = {name: getattr(moved, name) for name in names}
    for name, value in {**vars(state), **fresh, "cluster": cluster}.items():
        setattr(moved, name, value)
    for job, code in gpu_types.items():
        moved._block[_GPU_TYPE, moved._slot(job)] = code
    return moved


def _read(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    digest, archive = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if digest != _digest(archive):  # reading a damaged archive raises whatever zlib, zipfile and NumPy do
        raise InvariantError(f"the saved state cannot be read: its {len(data):,} bytes are not those that were written")
    with np.load(io.BytesIO(archive), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads(arrays.pop(_PLAIN).tobytes())


def _fill(state: ClusterState, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put the saved columns into a fresh state."""
    state._used, state._num_granted = arrays["block"].shape[1], arrays["granted"].shape[1]
    slots = max(state._block.shape[1], 2 * state._used)
    for name in _BY_SLOT:
        saved = arrays[name]
        fresh = np.zeros((*saved.shape[:-1], slots if name != "granted" else max(slots, 2 * saved.shape[-1])),
                         dtype=saved.dtype)
        fresh[..., : saved.shape[-1]] = saved
        setattr(state, f"_{name}", fresh)
    for name, saved in arrays.items():
        if name.startswith("memory."):
            block: IntArray = np.zeros((slots, *saved.shape[1:]), dtype=np.int64)
            block[: len(saved)] = saved
            state._memory[name.removeprefix("memory.")] = block
    state._up_N, state._open_N, state._ended = arrays["up"], arrays["open"], arrays["ended"]
    state._withheld, state._quarantined = arrays["withheld"], arrays["quarantined"]
    state._asleep = arrays.get("asleep", state._asleep)  # states of earlier versions have none
    ids, phases = arrays["block"][_ID], arrays["block"][_PHASE]
    alive = np.flatnonzero(phases != NONE)
    most = int(ids.max(initial=0))
    state._slot_of = np.full(max(len(state._slot_of), 2 * most + 1), NONE, dtype=np.int64)
    state._slot_of[ids[alive]] = alive
    state._alive = len(alive)
    state.num_waiting = int((phases == Phase.PENDING).sum())


def _usage(plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> UsageBook:
    book = UsageBook()
    book._codes = {user: code for code, user in enumerate(plain["users"])}
    book._at_ms, book._usage_U, book._runs_U2 = plain["usage_at_ms"], arrays["usage"], arrays["runs"]
    return book


def _seen(plain: Mapping[str, Any]) -> SeenStepTimes:
    seen = SeenStepTimes()
    seen._of_job = {job: _read_means(means) for job, _, means in plain["seen"]}
    seen._profile = {job: profile for job, profile, _ in plain["seen"]}
    seen._of_profile = {profile: _read_means(means) for profile, means in plain["seen_of_profile"]}
    return seen


def _means(means: Mapping[tuple[int, int, int], tuple[int, float, float]]) -> list[list[float]]:
    return [[*key, *mean] for key, mean in means.items()]


def _read_means(rows: list[Any]) -> dict[tuple[int, int, int], tuple[int, float, float]]:
    return {(nodes, gpus, batch): (count, step_s, sync_s) for nodes, gpus, batch, count, step_s, sync_s in rows}
