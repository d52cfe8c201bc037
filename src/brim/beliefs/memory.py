"""How much memory of each of its GPUs a job needs, on what that rests, and whether jobs fit a GPU together.

A peak that was measured is believed. Else an upper bound follows from the parameters and the largest batch that fits
one GPU: weights, gradients and optimizer states do not depend on the batch, the rest grows with it at most in
proportion. Of a job without either, nothing is believed, and it fits nowhere.

Source: EaCO (arXiv 2412.08294) asks for an estimate of peak memory before jobs share a GPU, and leaves open which.
The bound is ours.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.core.cluster import UNLIMITED
from brim.core.gpu_names import CPU, is_of_type, words_of
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE

_RTX_MIB: Final = {
    "2080Ti": 11_264, "3090": 24_576, "4090": 24_576, "5090": 32_768, "A5000": 24_576, "A6000": 49_152,
}
GPU_MIB: Final = {
    "K80": 12_288, "P4": 8_192, "P100": 12_288, "V100": 16_384, "T4": 16_384, "A10": 24_576, "A30": 24_576,
    "A40": 49_152, "A100": 40_960, "L4": 24_576, "L40": 49_152, "L40S": 49_152, "H100": 81_920, "H200": 144_384,
    "B200": 184_320, **_RTX_MIB, **{f"RTX{name}": mib for name, mib in _RTX_MIB.items()},
}
"""Memory of a GPU by type, of the smallest variant sold: NVIDIA's data sheets. A type's name may say another one."""
NOTHING, BATCH, PEAK = range(3)
BASES: Final = ("nothing", "parameters and batch", "peak")
"""On what the memory of a job rests, the best last."""
STATES: Final = 4
"""Copies of what ranks exchange: weights, gradients, and the two moments of Adam, all of one width. Leaner optimizers
need less; gradients in half the width of the rest are counted too low."""
CONTEXT_MIB: Final = 512
"""Memory of a process before its first tensor. Ours: contexts of CUDA take 300 to 600 MiB."""
_SIZE: Final = re.compile(r"(\d+)GB?", re.IGNORECASE)
_MIB: Final = 1 << 20


class MemoryUse(NamedTuple):
    """Memory that each job needs of each of its GPUs.

    Attributes:
        mib: MiB, NaN where nothing is believed (J,).
        basis: On which of ``BASES`` it rests (J,).
    """

    mib: FloatArray
    basis: IntArray


@functools.cache
def gpu_mib(gpu_type: str) -> int | None:
    """Memory of a GPU of this type, MiB: what its name says, or that of the smallest variant; None if not known.

    Example:
        >>> gpu_mib("A100-SXM4-80GB"), gpu_mib("A100"), gpu_mib("X1")
        (81920, 40960, None)
    """
    said = [int(match[1]) * 1024 for word in words_of(gpu_type) if (match := _SIZE.fullmatch(word))]
    return said[0] if said else next((mib for name, mib in GPU_MIB.items() if is_of_type(name, gpu_type)), None)


def memory_use(snapshot: Snapshot) -> MemoryUse:
    """Return what is believed of the memory of each job of a snapshot."""
    jobs = snapshot.jobs
    known = [gpu_mib(name) or 0 for name in snapshot.gpu_types]
    largest = max(known, default=0) if all(known) else 0  # without a type it may be meant for any
    of_gpu = np.array([*known, largest], dtype=np.float64)[jobs.gpu_type]  # -1, for any, is the last
    fixed = CONTEXT_MIB + STATES * jobs.gradient_bytes / _MIB
    batch = np.where(jobs.batch_now == NONE, jobs.batch, jobs.batch_now)
    gpus = np.maximum(np.where(jobs.gpus_now > 0, jobs.gpus_now, jobs.gpus), 1)
    local = np.minimum(-(-batch // gpus), jobs.local_batch_max)
    bounded = (jobs.gradient_bytes > 0) & (jobs.local_batch_max > 0) & (batch > 0) & (of_gpu > 0)
    grown = fixed + np.maximum(of_gpu - fixed, 0.0) * local / np.maximum(jobs.local_batch_max, 1)
    measured = jobs.gpu_mem_mib != NONE
    return MemoryUse(
        mib=np.where(measured, jobs.gpu_mem_mib, np.where(bounded, grown, np.nan)),
        basis=np.where(measured, PEAK, np.where(bounded, BATCH, NOTHING)),
    )


@functools.cache
def device_mib(gpu_type: str, node_mib: int, gpus: int) -> float | None:
    """Memory of a device of a node, MiB, None if not known: of a GPU its own, of a CPU slot its part of the node's.

    Args:
        gpu_type: Type of the devices.
        node_mib: Memory of the node, ``UNLIMITED`` where not known.
        gpus: Devices of the node.
    """
    if not is_of_type(CPU, gpu_type):
        return gpu_mib(gpu_type)
    return node_mib / gpus if node_mib != UNLIMITED else None


def fit(mib: Iterable[float], of_gpu: float | None, limit: float = 1.0) -> bool:
    """Whether jobs with these needs fit one GPU together; not if a need, or the GPU's memory, is not known.

    Args:
        mib: Need of each, MiB; NaN where not known.
        of_gpu: Memory of the GPU, MiB; None where not known.
        limit: Part of its memory that they may use, 0 to 1.
    """
    return of_gpu is not None and sum(mib) <= limit * of_gpu  # false for NaN
