"""Checks the models and optimizers that are given to a run, and names their parameters."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from brim.errors import UserError
from brim.units import counted

WRAPPERS: Final = frozenset(
    {
        "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DTensor", "ZeroRedundancyOptimizer",
        "DeepSpeedEngine",
    }
)  # fmt: skip
"""Classes that shard state over ranks, or sum gradients over ranks themselves."""

COMPILED: Final = "_orig_mod"
"""The attribute in which ``torch.compile(model)`` keeps the model."""


def refuse_wrapped(thing: Any) -> None:
    """Refuse wrappers that do a part of the run's work; they are recognised by name, so that nothing is imported.

    Raises:
        UserError: the thing, or a part of it, is such a wrapper.
    """
    parts = [*thing.modules(), *thing.parameters()] if isinstance(thing, nn.Module) else [thing]
    for part in parts:
        if names := WRAPPERS & {kind.__name__ for kind in type(part).__mro__}:
            raise UserError(
                f"run.prepare got a {min(names)}, which is not supported: brim cannot save state that is sharded over "
                "ranks, and sums gradients itself. Give it the plain model and optimizer"
            )
    synchronised = [name for name, part in _modules(thing) if isinstance(part, nn.SyncBatchNorm)]
    if synchronised:
        where = synchronised[0] or "the model itself"
        raise UserError(
            f"run.prepare got a SyncBatchNorm ({where}), which needs a process group of fixed size: use BatchNorm. "
            "Each logical worker normalises with its own micro-batch, and the running statistics are the mean over all "
            "of them; for larger micro-batches use fewer logical workers"
        )


def _modules(thing: Any) -> Iterable[tuple[str, nn.Module]]:
    return thing.named_modules() if isinstance(thing, nn.Module) else ()


def refuse_several_losses(optimizer: Optimizer) -> None:
    """Refuse optimizers that compute the loss more than once per step, such as L-BFGS and sharpness-aware minimisation.

    Raises:
        UserError: the optimizer is one of these.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    needs_it = closure is not None and closure.default is inspect.Parameter.empty
    if isinstance(optimizer, torch.optim.LBFGS) or needs_it or hasattr(optimizer, "second_step"):
        raise UserError(
            f"run.prepare got {type(optimizer).__name__}, which needs several losses, or a closure, for each step: "
            "brim sums one gradient per step over the ranks. Use another optimizer"
        )


def single_samples(models: Iterable[nn.Module], loader: Any) -> str | None:
    """Return the warning for a batch-norm that will get a single sample in the last step of an epoch, if one will."""
    parts = [each for model in models for each in _modules(model)]
    norms = [name for name, part in parts if isinstance(part, _BatchNorm) and part.training]
    steps = getattr(loader, "steps_per_epoch", 0)
    if not norms or not steps:
        return None
    shares = [loader.samples(loader.epoch, steps - 1, worker) for worker in range(loader.logical_workers)]
    if 1 not in shares or sum(shares) == loader.global_batch:
        return None
    return (
        f"the last step of an epoch has {counted(sum(shares), 'sample')}, and some of its micro-batches have one: that "
        f"is too few for batch-norm ({plain_name(norms[0]) or 'the model itself'}), and an error of PyTorch where a "
        "channel has one value per sample; use run.loader(..., last='drop')"
    )


def told_loss(loss: Any) -> float | Tensor | None:
    """Return a loss that a script reports; a tensor stays one, and is read when it is sent.

    Raises:
        UserError: it is neither a real number, nor a tensor with one, nor None.
    """
    if loss is None:
        return None
    if isinstance(loss, Tensor) and loss.numel() == 1 and not loss.is_complex():
        return loss.detach()
    try:
        return float(loss)
    except OverflowError:
        shown = "a number that no float can hold"
    except (TypeError, ValueError, RuntimeError):  # the last is PyTorch's
        has_several = isinstance(loss, Tensor) and loss.numel() != 1
        shown = f"a tensor of shape {tuple(loss.shape)}" if has_several else reprlib.repr(loss)
    raise UserError(f"run.report(loss=...): found {shown}, expected a number or a tensor with one")


def plain_name(name: str) -> str:
    """Return the name of a parameter or buffer without the prefix that ``torch.compile`` adds."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def named_parameters(models: Iterable[nn.Module]) -> list[tuple[str, Tensor]]:
    """Return the trainable parameters, with names that are unique over all models.

    A parameter that several models hold is returned once, with its name in the first of them.
    """
    models = list(models)
    several = len(models) > 1
    found: dict[int, tuple[str, Tensor]] = {}
    for number, model in enumerate(models):
        for name, param in model.named_parameters():
            if param.requires_grad:
                found.setdefault(id(param), (plain_name(f"{number}.{name}" if several else name), param))
    return list(found.values())
