"""The settings on which the bits of a run depend, so that a claim of equal bits can be checked later.

If all of these settings are equal, bits are equal on every number of ranks. The code of the script and the data matter,
too, and are not among the settings.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from brim.errors import RefusedError

VERSION: Final = 1

_backends: Any = torch.backends

NOT_BINDING: Final = frozenset({"python", "ranks", "brim"})
"""Entries that are recorded and do not change bits."""


def settings(
    *, logical_workers: int | None, seed: int, device: torch.device, dtypes: Iterable[torch.dtype] = (), ranks: int = 1,
    rules: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the present settings as plain JSON.

    Args:
        logical_workers: Number of logical workers in exact mode; None in fast mode, whose bits depend on the number of
            ranks.
        seed: Seed of the run.
        device: Device of the model.
        dtypes: Types of the parameters.
        ranks: Present number of ranks.
        rules: Other settings on which results depend.
    """
    found: dict[str, Any] = {
        "version": VERSION,
        "exact": logical_workers is not None,
        "logical_workers": logical_workers,
        "seed": seed,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "dtypes": sorted({str(dtype).removeprefix("torch.") for dtype in dtypes}),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": _setting(torch.get_float32_matmul_precision),
        "fp32_precision": _fp32_precision(),
        "mkl": _backends.mkl.is_available(),
        "mkldnn": _backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled),
        "flush_denormal": _flushes_denormals(),
        "ranks": ranks,
        "rules": dict(rules or {}),
    }
    return found | (_cuda(device) if device.type == "cuda" else {})


def _cuda(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "capability": [properties.major, properties.minor],
        "cuda": torch.version.cuda,
        "cudnn": _backends.cudnn.version(),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "tf32_matmul": _setting(lambda: bool(torch.backends.cuda.matmul.allow_tf32)),
        "tf32_cudnn": _setting(lambda: bool(torch.backends.cudnn.allow_tf32)),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    }


def _fp32_precision() -> dict[str, str]:
    """Return the precision of float32 inside of operations, by the names of PyTorch 2.9 and later."""
    wanted = (("cuda", "matmul"), ("cudnn", "conv"), ("cudnn", "rnn"), ("mkldnn", "matmul"), ("mkldnn", "conv"))
    parts: dict[str, Any] = {f"{back}.{name}": getattr(getattr(_backends, back), name, None) for back, name in wanted}
    return {name: part.fp32_precision for name, part in parts.items() if hasattr(part, "fp32_precision")}


def _setting(ask: Callable[[], Any]) -> Any:
    """Return a setting; None if it was set by a new name, and PyTorch refuses to read it by the old one."""
    try:
        return ask()
    except RuntimeError:
        return None


def _flushes_denormals() -> bool:
    return bool(torch.tensor(1e-320, dtype=torch.float64).mul(1.0).item() == 0.0)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two sets of settings that may change bits; if empty, expect equal bits."""
    names = sorted((set(one) | set(other)) - NOT_BINDING)
    return [
        f"{name}: {one.get(name)!r} and {other.get(name)!r}" for name in names if one.get(name) != other.get(name)
    ]


def caveats(one: Mapping[str, Any]) -> list[str]:
    """Describe the settings under which even the same machine may produce other bits."""
    found = []
    if not one.get("exact"):
        found.append("fast mode: bits depend on the number of ranks; use start(logical_workers=V)")
    if one.get("device") == "cuda":
        if not one.get("deterministic_algorithms"):
            found.append("torch.use_deterministic_algorithms(True) is not set: some CUDA kernels add in any order")
        if one.get("cudnn_benchmark"):
            found.append("torch.backends.cudnn.benchmark is set: each process chooses kernels by timing")
    return found


def require_equal(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `RefusedError` if two sets of settings differ in a setting that may change bits."""
    if found := differences(saved, now):
        raise RefusedError("this run cannot repeat the bits of the saved one: " + "; ".join(found))
