"""Everything that is equal on every rank after a committed step, as one nested state."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from brim.errors import ConfigError
from brim.train.checkpoint.flatten import flatten_state, unflatten_state
from brim.train.models import plain_name


class Stateful(Protocol):
    """An object with a state: a schedule, a gradient scaler, a loader, or an object of the user."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any) -> Any:
        """Load a state."""


class Values:
    """The state of a dict of plain values, which is changed in place."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def state_dict(self) -> dict[str, Any]:
        """Return a copy."""
        return dict(self._values)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the values."""
        self._values.clear()
        self._values.update(state)


class Undo:
    """Copies of the state of the user's objects at the start of a step, to be loaded again if the step is undone."""

    def __init__(self) -> None:
        self._copies: list[tuple[Stateful, Any]] = []

    def begin_step(self, parts: Iterable[Stateful]) -> None:
        """Copy the state of these objects."""
        self._copies = [(part, copied(part.state_dict())) for part in parts]

    def restore(self) -> None:
        """Load the copies, and make new ones, since an object may keep what it has loaded."""
        for part, state in self._copies:
            part.load_state_dict(state)
        self.begin_step([part for part, _ in self._copies])

    def forget(self) -> None:
        """Free the copies, since the step is committed."""
        self._copies = []


class State:
    """The state that a job saves and shares.

    Attributes:
        models, optimizers: In the order in which ``prepare`` got them.
        parts: Other objects with a state, by name.
    """

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.parts: dict[str, Stateful] = {}

    def forget(self, kept: Mapping[str, Stateful]) -> None:
        """Forget models, optimizers and all other objects but these."""
        self.models.clear()
        self.optimizers.clear()
        self.parts = dict(kept)

    def give(self) -> tuple[dict[str, Tensor], Any]:
        """Return named tensors, not copied, and JSON for the rest."""
        state = {
            "model": [_model_tensors(model) for model in self.models],
            "optimizer": [_optimizer_state(optimizer) for optimizer in self.optimizers],
            "part": {name: part.state_dict() for name, part in self.parts.items()},
            "numbers": {},  # part of the format, and always empty
        }
        return flatten_state(state)

    def give_copied(self) -> tuple[dict[str, Tensor], Any]:
        """Return the same, with copies of all tensors but those that only optimizers change.

        These are parameters that an optimizer updates, and the optimizer's own tensors, such as moments.
        """
        updated = {param.data_ptr() for optimizer in self.optimizers for param in _params(optimizer)}
        tensors, tree = self.give()
        kept = {name for name in tensors if name.startswith("optimizer.") and name.split(".")[2] == "state"}
        kept |= {name for name, t in tensors.items() if name.startswith("model.") and t.data_ptr() in updated}
        return {name: t if name in kept else copied(t) for name, t in tensors.items()}, tree

    def take(self, tensors: Mapping[str, Tensor], tree: Any) -> None:
        """Load a state.

        Raises:
            ConfigError: the state does not fit this script; nothing was changed.
        """
        state = unflatten_state(tensors, tree)
        self._check(state)
        with torch.no_grad():
            for model, values in zip(self.models, state["model"], strict=True):
                for name, tensor in _model_tensors(model).items():
                    tensor.copy_(values[name])
        for optimizer, values in zip(self.optimizers, state["optimizer"], strict=True):
            _load_optimizer(optimizer, values)
        for name, part in self.parts.items():
            part.load_state_dict(state["part"][name])

    def _check(self, state: Any) -> None:
        for kind, ours in (("model", self.models), ("optimizer", self.optimizers)):
            if len(state[kind]) != len(ours):
                raise ConfigError(f"the state has {len(state[kind])} {kind}s, this script prepared {len(ours)}")
        for model, values in zip(self.models, state["model"], strict=True):
            _check_model(_model_tensors(model), values)
        for optimizer, values in zip(self.optimizers, state["optimizer"], strict=True):
            kind, saved = type(optimizer).__name__, values.get("type")
            if saved not in (None, kind):
                raise ConfigError(f"the state is of another optimizer: {saved}, this script uses {kind}")
            here, there = _sizes(optimizer), [len(group["params"]) for group in values["groups"]]
            if here != there:
                raise ConfigError(f"the state has parameter groups of {there} parameters, the optimizer of {here}")
        if missing := sorted(set(self.parts) ^ set(state["part"])):
            raise ConfigError(f"these parts are in the state or in this script, but not in both: {', '.join(missing)}")

    def digest(self) -> str:
        """Return the SHA-256 of parameters, buffers and optimizer state."""
        state: dict[str, Any] = {
            "model": [_model_tensors(model) for model in self.models],
            "optimizer": [_optimizer_state(optimizer)["state"] for optimizer in self.optimizers],
        }
        return hashlib.sha256("".join(f"{n} {h}\n" for n, h in sorted(hashes(state).items())).encode()).hexdigest()

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of every tensor that `digest` covers, to find the first that differs."""
        return hashes(
            {
                "model": [_model_tensors(model) for model in self.models],
                "optimizer": [_optimizer_state(optimizer)["state"] for optimizer in self.optimizers],
            }
        )


def copied(state: Any) -> Any:
    """Return a deep copy of a nested state; tensors are detached, so a loss that still has its graph can be copied."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        copy_of = copy.copy(state)
        copy_of.update({key: copied(value) for key, value in state.items()})
        return copy_of
    if type(state) in (list, tuple):
        return type(state)(copied(value) for value in state)
    return state if isinstance(state, int | float | str | bytes | None) else copy.deepcopy(state)


def hashes(state: Any) -> dict[str, str]:
    """Return the SHA-256 of every tensor in a nested state, by name, and that of the rest as ``""``."""
    tensors, tree = flatten_state(state)
    found = {name: hashlib.sha256(_raw(tensor)).hexdigest() for name, tensor in tensors.items()}
    return found | {"": hashlib.sha256(repr(tree).encode()).hexdigest()}


def _raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, as without compiling, including buffers that PyTorch does not save."""
    return {plain_name(name): param.detach() for name, param in model.named_parameters()} | {
        plain_name(name): buffer.detach() for name, buffer in model.named_buffers()
    }


def _check_model(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    if missing := sorted(set(ours) ^ set(theirs)):
        raise ConfigError(f"the state is of another model: only one of the two has {', '.join(missing[:5])}")
    for name, tensor in ours.items():
        if tensor.shape != theirs[name].shape or tensor.dtype != theirs[name].dtype:
            raise ConfigError(
                f"the state is of another model: {name} is {theirs[name].dtype} {list(theirs[name].shape)} in the "
                f"state, {tensor.dtype} {list(tensor.shape)} in this script"
            )


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _sizes(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return what ``state_dict`` returns, without additions by hooks."""
    index = {id(param): number for number, param in enumerate(_params(optimizer))}
    return {
        "type": type(optimizer).__name__,
        "state": {index[id(param)]: dict(values) for param, values in optimizer.state.items() if id(param) in index},
        "groups": [
            {name: value for name, value in group.items() if name != "params"} | {"params": [0] * len(group["params"])}
            for group in optimizer.param_groups
        ],
    }


def _load_optimizer(optimizer: Optimizer, values: Mapping[str, Any]) -> None:
    """Load a state bit for bit: unlike ``load_state_dict``, this casts nothing to another type."""
    params = _params(optimizer)
    on_device = _counts_on_device(optimizer)
    optimizer.state.clear()
    for number, state in values["state"].items():
        param = params[number]
        optimizer.state[param] = {
            name: _placed(value, param, counter=name == "step" and not on_device[number])
            for name, value in state.items()
        }
    for group, saved in zip(optimizer.param_groups, values["groups"], strict=True):
        group.update({name: value for name, value in saved.items() if name != "params"})


def place_optimizer(optimizer: Optimizer) -> None:
    """Move state that the optimizer created before the model was moved (as Adagrad does) to the model's device."""
    on_device = dict(zip(map(id, _params(optimizer)), _counts_on_device(optimizer), strict=True))
    for param, state in optimizer.state.items():
        counts = on_device.get(id(param), False)
        state.update({n: _placed(v, param, counter=n == "step" and not counts) for n, v in state.items()})


def _counts_on_device(optimizer: Optimizer) -> list[bool]:
    """Return for each parameter whether the optimizer keeps its step count on the parameter's device."""
    return [
        bool(group.get("capturable") or group.get("fused"))
        for group in optimizer.param_groups
        for _ in group["params"]
    ]


def _placed(value: Any, param: Tensor, *, counter: bool) -> Any:
    """Return a value on its parameter's device and in its layout; a counter stays where it is."""
    if not isinstance(value, Tensor):
        return value
    if counter:
        return value.clone()
    placed = value.to(param.device)
    if placed.shape == param.shape and placed.stride() != param.stride():
        return torch.empty_like(param, dtype=placed.dtype).copy_(placed)
    return placed.clone() if placed.untyped_storage().nbytes() != placed.nbytes else placed


class Lambda:
    """An object with a state, made of two functions."""

    def __init__(self, give: Callable[[], Any], take: Callable[[Any], None]) -> None:
        self._give, self._take = give, take

    def state_dict(self) -> Any:
        """Return the state."""
        return self._give()

    def load_state_dict(self, state: Any) -> None:
        """Load a state."""
        self._take(state)
