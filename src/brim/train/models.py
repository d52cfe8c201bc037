"""What a run takes of a model, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from torch import Tensor, nn

from brim.errors import UserError

WRAPPERS: Final = frozenset(
    {
        "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DTensor", "ZeroRedundancyOptimizer",
        "DeepSpeedEngine",
    }
)  # fmt: skip
"""Classes that shard state over ranks, or sum gradients over them by themselves."""

COMPILED: Final = "_orig_mod"
"""Where ``torch.compile(model)`` keeps the model."""


def refuse_wrapped(thing: Any) -> None:
    """Wrappers that do a part of the run's work; by name, so that nothing is imported for it.

    Raises:
        UserError: the thing, or a part of it, is one.
    """
    parts = [*thing.modules(), *thing.parameters()] if isinstance(thing, nn.Module) else [thing]
    for part in parts:
        if names := WRAPPERS & {kind.__name__ for kind in type(part).__mro__}:
            raise UserError(
                f"run.prepare got a {min(names)}, which is not supported: state sharded over ranks cannot be carried, "
                "and gradients are summed by brim. Give it the plain model and optimizer"
            )


def plain_name(name: str) -> str:
    """A name of a parameter or buffer without what ``torch.compile`` adds to it."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def named_parameters(models: Iterable[nn.Module]) -> list[tuple[str, Tensor]]:
    """Parameters that are trained, by names that are unique over all models."""
    several = len(list(models)) > 1
    return [
        (plain_name(f"{number}.{name}" if several else name), param)
        for number, model in enumerate(models)
        for name, param in model.named_parameters()
        if param.requires_grad
    ]
