"""What ranks take of GPUs and nodes, as sums. Compiled: docs/decisions/0005. ``core/checks.py`` makes the sentences.

Shapes: J jobs, N nodes, W the largest number of GPUs on a node, G ranks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.compiled import in_place, internal, njit
from brim.core.arrays import BoolArray, IntArray
from brim.core.trace import NONE
from brim.units import WHOLE_GPU

CORE_MILLI: Final = 1_000
"""Milli-cores of a core."""
FINE, GPU, CORES, MEMORY = range(4)
"""What is granted more than once."""


@internal
def cores_of_rank(cpu_milli: int, gpu: int, share_milli: int, loader_workers: int) -> int:
    """Milli-cores that a rank takes: those its job asks for, or that it has on CPU, and one core per loader worker."""
    if gpu < 0:
        cpu_milli = share_milli if share_milli > 0 else max(cpu_milli, CORE_MILLI)
    return cpu_milli + loader_workers * CORE_MILLI


@njit
def overfull(
    held: tuple[IntArray, IntArray, IntArray, IntArray, IntArray], acted: BoolArray, new: IntArray,
    cpu_milli: IntArray, mem_mib: IntArray, node_gpus: IntArray, node_cpu: IntArray, node_mem: IntArray,
    counts_loaders: bool,
) -> tuple[int, int, float]:
    """Sum what ranks take after a plan, and find what is granted more than once.

    Args:
        held: Job, node, gpu, share and loader workers of each rank before the plan (G,).
        acted: Jobs that give up what they hold (J,).
        new: The same columns, of the ranks that the plan grants (K, 5).
        cpu_milli: Milli-cores that each job asks for per rank (J,).
        mem_mib: MiB that each job asks for per rank (J,).
        node_gpus: GPUs of each node (N,).
        node_cpu: Milli-cores of each node (N,).
        node_mem: MiB of each node (N,).
        counts_loaders: Whether a loader worker takes a core of its own.

    Returns:
        What is granted more than once (FINE if nothing is), where, and how much: a GPU, counted as if all nodes had W,
        and thousandths; a node and milli-cores; or a node and MiB.
    """
    job, node, gpu, share, loaders = held
    width = 0
    for n in range(len(node_gpus)):
        width = max(width, node_gpus[n])
    shares, cores, mem = np.zeros(len(node_gpus) * width), np.zeros(len(node_gpus)), np.zeros(len(node_gpus))
    for i in range(len(job) + len(new)):
        if i < len(job):
            j, n, g, part, workers = job[i], node[i], gpu[i], share[i], loaders[i]
            if acted[j]:
                continue
        else:
            k = i - len(job)
            j, n, g, part, workers = new[k, 0], new[k, 1], new[k, 2], new[k, 3], new[k, 4]
        if g >= 0:
            shares[n * width + g] += part
        cores[n] += cores_of_rank(cpu_milli[j], g, part, workers if counts_loaders else 0)
        mem[n] += mem_mib[j]
    most = 0
    for at in range(len(shares)):
        if shares[at] > shares[most]:
            most = at
    if len(shares) and shares[most] > WHOLE_GPU:
        return GPU, most, shares[most]
    for n in range(len(node_gpus)):
        if cores[n] > node_cpu[n]:
            return CORES, n, cores[n]
    for n in range(len(node_gpus)):
        if mem[n] > node_mem[n]:
            return MEMORY, n, mem[n]
    return FINE, 0, 0.0


@in_place
def plainly_sound(
    new: IntArray, first: IntArray, gpus: IntArray, least: IntArray, most: IntArray, size_list: IntArray,
    gpu_type: IntArray, node_gpus: IntArray, node_type: IntArray, is_open: BoolArray, withheld: BoolArray,
) -> bool:
    """Whether every gang of a plan is whole, on GPUs alone, each of them open, in increasing order and of one type.

    False for some gangs that are sound as well, such as those with ranks on CPU or with a list of sizes.

    Args:
        new: Row of the job, node, gpu, share and loader workers of each rank, gang by gang (K, 5).
        first: Where each gang begins, and the number of ranks (A + 1,).
        gpus: GPUs that each job asks for (J,).
        least: Fewest that it can run on (J,).
        most: Most that it can run on (J,).
        size_list: NONE for a job that has no list of sizes (J,).
        gpu_type: Type that it asks for, NONE for any (J,).
        node_gpus: GPUs of each node (N,).
        node_type: Type of each node (N,).
        is_open: Whether each node takes new jobs (N,).
        withheld: Whether each GPU takes no new jobs (N, W), or empty.
    """
    if withheld.size:
        return False
    for a in range(len(first) - 1):
        begin, count = first[a], first[a + 1] - first[a]
        if count == 0:
            return False
        j, share = new[begin, 0], new[begin, 3]
        if size_list[j] != NONE or share <= 0 or share > WHOLE_GPU:
            return False
        if count != gpus[j] and (count < least[j] or count > most[j]):
            return False
        for i in range(begin, begin + count):
            n, g = new[i, 1], new[i, 2]
            if n < 0 or n >= len(node_gpus) or g < 0 or g >= node_gpus[n] or not is_open[n] or new[i, 3] != share:
                return False
            if node_type[n] != node_type[new[begin, 1]] or (gpu_type[j] != NONE and gpu_type[j] != node_type[n]):
                return False
            if i > begin and (n < new[i - 1, 1] or (n == new[i - 1, 1] and g <= new[i - 1, 2])):
                return False
    return True


@njit
def cores_of_ranks(
    cpu_milli: IntArray, job: IntArray, gpu: IntArray, share_milli: IntArray, loader_workers: IntArray
) -> IntArray:
    """``cores_of_rank`` of each rank (G,); loader workers may be empty."""
    cores = np.empty(len(job), np.int64)
    for i in range(len(job)):
        workers = loader_workers[i] if len(loader_workers) else 0
        cores[i] = cores_of_rank(cpu_milli[job[i]], gpu[i], share_milli[i], workers)
    return cores
