"""Reads NVML, in a process of its own: a driver in trouble can block a call for ever, and the agent must not wait.

    python -P -m brim.agent.nvml

For each line on stdin it writes one line of JSON: ``{"gpus": [{"uuid", "name", "memory_mib", "utilisation_ratio",
"power_w", "energy_j", "pids", "error"}, ...]}``, or ``{"error": text}``. It ends at the end of stdin.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def main() -> int:
    """Answer until stdin ends."""
    for _ in sys.stdin:
        try:
            answer = look()
        except Exception as error:  # whatever the library raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


def look() -> dict[str, Any]:
    """Return what NVML says now.

    Raises:
        Exception: there is no NVML, or it does not work.
    """
    import pynvml  # noqa: PLC0415  # of the extra `live`; absent on a machine without GPU

    pynvml.nvmlInit()
    return {"gpus": [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]}


def _gpu(pynvml: Any, index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    found: dict[str, Any] = {"uuid": pynvml.nvmlDeviceGetUUID(handle), "error": ""}

    def measure(name: str, call: Callable[[], Any]) -> Any:
        """Return a value that not every GPU has; None if this one has not."""
        try:
            return call()
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission, pynvml.NVMLError_FunctionNotFound):
            return None
        except pynvml.NVMLError as error:
            found["error"] = f"{name}: {error}"
            return None

    found["name"] = measure("name", lambda: pynvml.nvmlDeviceGetName(handle)) or ""
    memory = measure("memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    utilisation = measure("utilisation", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    power = measure("power", lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    pids: set[int] = set()
    for call in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        pids |= {process.pid for process in measure("processes", partial(call, handle)) or []}
    found["memory_mib"] = (memory or 0) >> 20
    found["utilisation_ratio"] = (utilisation or 0) / 100
    found["power_w"] = (power or 0) / 1000
    energy = measure("energy", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    found["energy_j"] = None if energy is None else energy / 1000
    found["pids"] = sorted(pids)
    return found


if __name__ == "__main__":
    sys.exit(main())
