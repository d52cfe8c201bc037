"""Elastic, preemptible PyTorch training whose results depend on neither resizes nor preemptions (docs/decisions/0010).

A script calls ``run = brim.train.start(logical_workers=4)``, then ``run.prepare(model, optimizer)``,
``run.loader(dataset, global_batch=256)``, ``for epoch in run.epochs(10)``, ``for batch in run.steps(loader)``,
``run.backward(loss)``, ``run.step()``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brim.train.gradients.buckets import UnusedParameterError
    from brim.train.gradients.noise import Noise
    from brim.train.membership.process_group import BrokenGroupError
    from brim.train.run import Run, start

__all__ = ["BrokenGroupError", "Noise", "Run", "UnusedParameterError", "start"]

_HOMES = {
    "BrokenGroupError": "membership.process_group", "Noise": "gradients.noise", "Run": "run",
    "UnusedParameterError": "gradients.buckets", "start": "run",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import torch only when it is needed: ``brim.train.launch`` starts faster without it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"brim.train.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
