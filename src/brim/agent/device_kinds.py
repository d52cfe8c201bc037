"""What the processes of an attempt are told of the kind of their devices: GPUs, or a share of the machine's cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from brim.agent.protocol import ON_CPU
from brim.gang.environment import DEVICE_VARIABLE

_THREADS: Final = "OMP_NUM_THREADS"
_CORE_MILLI: Final = 1_000


def kind_of_device(devices: Sequence[int], cpu_milli: int, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an attempt on these devices.

    On CPU, a rank has no more threads than whole cores, and at least one; a job that asks for fewer keeps its number.
    Results may depend on the number of threads (docs/decisions/0010), so that a rank on one core has as many as it has
    on a GPU.

    Args:
        devices: Numbers of devices, or ``ON_CPU`` for each rank on CPU.
        cpu_milli: Milli-cores of each rank on CPU.
        env: The environment that the job was submitted with.
    """
    if ON_CPU not in devices:
        return {DEVICE_VARIABLE: "gpu"}
    cores, own = max(1, cpu_milli // _CORE_MILLI), env.get(_THREADS, "").split(",")[0].strip()
    threads = min(cores, int(own)) if own.isdecimal() and int(own) else cores
    return {DEVICE_VARIABLE: "cpu", _THREADS: str(threads)}
