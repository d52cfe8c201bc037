"""Where the arguments of a place part are at fault. Compiled: docs/decisions/0005. ``inputs.py`` makes the sentence."""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.compiled import njit
from brim.core.arrays import IntArray
from brim.core.lifecycle import Phase
from brim.units import WHOLE_GPU

FINE: Final = -1
"""Row of arguments without a fault."""
ORDER, SIZES, NODES, JOBS, GRANTS = range(5)
"""What is at fault."""
_MOST: Final = 1 << 31
"""Above every size in GPUs; sums of so many stay within 64 bits."""
_STARTING, _RUNNING = int(Phase.STARTING), int(Phase.RUNNING)


@njit
def inputs_fault(
    types: int, order: IntArray, gpus: IntArray, phase: IntArray, gpus_now: IntArray, share_now: IntArray,
    share_milli: IntArray, cpu_milli: IntArray, mem_mib: IntArray, gpu_type: IntArray, node_gpus: IntArray,
    node_type: IntArray, held_job: IntArray, held_node: IntArray, held_gpu: IntArray,
) -> tuple[int, int]:
    """The first fault of the arguments of a place part, and its row, FINE if there is none.

    Args:
        types: GPU types of the cluster.
        order: Job rows, first served first (J,).
        gpus: GPUs wanted (J,).
        phase: Columns of the job table, as are the next six (J,).
        gpus_now: GPUs that each job holds.
        share_now: Thousandths of each of them.
        share_milli: Thousandths asked for.
        cpu_milli: Milli-cores per GPU.
        mem_mib: MiB per GPU.
        gpu_type: Type code, -1 for any.
        node_gpus: GPUs of each node (N,).
        node_type: Type code of each node (N,).
        held_job: Grants before the round, as are the next two (G,).
        held_node: Node.
        held_gpu: Index on the node.
    """
    size, counts = len(order), np.zeros(len(order), np.int64)
    for row in range(size):
        if order[row] < 0 or order[row] >= size:
            return ORDER, row
        counts[order[row]] += 1
    for row in range(size):
        if counts[row] != 1:
            return ORDER, row
        counts[row] = 0
    for row in range(size):
        if gpus[row] < 0 or gpus[row] >= _MOST:
            return SIZES, row
    for n in range(len(node_gpus)):
        if node_gpus[n] < 0 or node_gpus[n] >= _MOST or node_type[n] < 0 or node_type[n] >= types:
            return NODES, n
    for row in range(size):
        if gpu_type[row] < -1 or gpu_type[row] >= types or cpu_milli[row] < 0 or mem_mib[row] < 0:
            return JOBS, row
    for i in range(len(held_job)):
        if held_job[i] < 0 or held_job[i] >= size or held_node[i] < 0 or held_node[i] >= len(node_gpus):
            return GRANTS, i
    for i in range(len(held_job)):
        if held_gpu[i] < 0 or held_gpu[i] >= node_gpus[held_node[i]]:
            return GRANTS, i
        counts[held_job[i]] += 1
    for row in range(size):
        if counts[row] != (gpus_now[row] if phase[row] in (_STARTING, _RUNNING) else 0):
            return GRANTS, row
    for row in range(size):
        share = share_now[row] if phase[row] in (_STARTING, _RUNNING) else share_milli[row]
        if share <= 0 or share > WHOLE_GPU:
            return JOBS, row
    return FINE, FINE
