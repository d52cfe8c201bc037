"""The optimizer step after gradients are summed, the same on every rank: unscale, clip, scale the rates, update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from brim.errors import UserError

Schedule = Callable[[int], float]
"""Returns the factor on the learning rate for a number of samples consumed."""


class OptimizerUpdate:
    """The update that ``run.step`` makes with the gradients.

    Attributes:
        max_norm: Gradients with a larger norm over all parameters are scaled down to this norm; None: never.
        max_value: Elements of gradients are clamped to between minus and plus this value; None: never.
        schedule: Returns a factor on the learning rates for the number of samples consumed.
        factor: Another factor on the learning rates, for a changed batch size.
        norm: Norm of the last gradients before clipping, if it was computed.
    """

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []
        self.schedulers: list[Any] = []
        self.scaler: Any = None
        self.max_norm: float | None = None
        self.max_value: float | None = None
        self.schedule: Schedule | None = None
        self.factor = 1.0
        self.norm: Tensor | None = None
        self._scheduled: list[int | None] = []
        self._settings: list[list[dict[str, Any]]] = []
        self._stepping = False
        self._watch: Any = None

    def watch(self, trained: Collection[int]) -> None:
        """Refuse optimizer steps by the script from now on.

        Args:
            trained: The ``id`` of each parameter whose gradients are summed.
        """
        self._watch = register_optimizer_step_pre_hook(lambda optimizer, _, __: self._check_step(optimizer, trained))

    def forget(self) -> None:
        """Forget the optimizers, the schedules and the scaler."""
        self.optimizers.clear()
        self.schedulers.clear()
        self.scaler = None

    def close(self) -> None:
        """Allow optimizer steps by the script again."""
        if self._watch is not None:
            self._watch.remove()

    def _check_step(self, optimizer: Optimizer, trained: Collection[int]) -> None:
        if self._stepping:
            return
        if any(optimizer is ours for ours in self.optimizers):
            raise UserError("optimizer.step was called by the script: leave it to run.step, which calls it, too")
        if any(id(param) in trained for group in optimizer.param_groups for param in group["params"]):
            raise UserError(
                f"{type(optimizer).__name__}.step was called by the script, for parameters of a model given to "
                "run.prepare: give run.prepare the optimizer, too, and leave its step to run.step"
            )

    def clipping(self) -> dict[str, float | None]:
        """Return the clipping rules, on which the bits of a run depend."""
        return {"max_norm": self.max_norm} | ({} if self.max_value is None else {"max_value": self.max_value})

    def begin_step(self) -> None:
        """Copy the settings of the optimizers, for `restore`."""
        self._settings = [
            [
                {name: _copied(value) for name, value in group.items() if name != "params"}
                for group in optimizer.param_groups
            ]
            for optimizer in self.optimizers
        ]

    def restore(self) -> None:
        """Restore the settings of the start of an undone step; the script sets them again when the step is repeated."""
        for optimizer, settings in zip(self.optimizers, self._settings, strict=False):
            for group, before in zip(optimizer.param_groups, settings, strict=False):
                for name, value in before.items():
                    if isinstance(value, Tensor) and isinstance(group.get(name), Tensor):
                        group[name].copy_(value)
                    else:
                        group[name] = _copied(value)

    def scale(self) -> float:
        """Return the gradient scaler's factor on losses; 1 without a scaler."""
        return float(self.scaler.get_scale()) if self.scaler is not None else 1.0

    def apply(self, params: Sequence[Tensor], samples: int, *, want_norm: bool = False) -> None:
        """Update the parameters.

        Args:
            params: All parameters that have gradients.
            samples: Number of samples consumed before this step.
            want_norm: Compute `norm` even if nothing is clipped.
        """
        if self.scaler is not None:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        self.norm = None
        self._settings = []
        if self.max_norm is not None:
            self.norm = torch.nn.utils.clip_grad_norm_(params, self.max_norm)
        elif want_norm:
            self.norm = _norm(params)
        if self.max_value is not None:
            torch.nn.utils.clip_grad_value_(params, self.max_value)
        factor = self.factor * (self.schedule(samples) if self.schedule is not None else 1.0)
        for optimizer in self.optimizers:
            self._step(optimizer, factor)
        if self.scaler is not None:
            self.scaler.update()
        for scheduler in self.schedulers:
            scheduler.step()
        self._scheduled = [getattr(scheduler, "_step_count", None) for scheduler in self.schedulers]

    def check_schedules(self) -> None:
        """Raise if the script itself has stepped a schedule since the last update."""
        now = [getattr(scheduler, "_step_count", None) for scheduler in self.schedulers]
        if self._scheduled and now != self._scheduled:
            raise UserError(
                "a schedule was stepped by the script, and by run.step, too: leave it to run.step, which steps it once "
                "per optimizer step, or do not give it to run.prepare"
            )

    def schedules_were_loaded(self) -> None:
        """Accept that the schedules are at any step, since they were loaded from a state."""
        self._scheduled = []

    def _step(self, optimizer: Optimizer, factor: float) -> None:
        """Step with ``factor`` times the learning rates, then restore them, since schedules continue from them.

        An optimizer may have groups without a rate: there is nothing to scale in them.
        """
        groups = [group for group in optimizer.param_groups if "lr" in group]
        rates = [group["lr"] for group in groups]
        if factor != 1.0:
            for group in groups:
                group["lr"] = group["lr"] * factor
        self._stepping = True
        try:
            if self.scaler is not None:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        finally:
            self._stepping = False
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def _norm(params: Sequence[Tensor]) -> Tensor:
    norms = torch._foreach_norm([param.grad for param in params if param.grad is not None])
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.float().to(norms[0].device) for norm in norms]))
    return total


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
