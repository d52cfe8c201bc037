"""Compares across ranks what must be equal on all of them: settings, parameters and buffers, and the samples of a step.

A few checksums of each rank travel with the gradients of a step (see `step_summary`). Where they differ, the ranks
exchange the values behind them, and the job ends with the name of what differs. Gradients are equal on every rank, so a
difference once made would stay, and nothing else would show it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from brim.errors import UserError
from brim.units import counted

WORD: Final = 1 << 24
"""Checksums are whole numbers below this, so that a float32 of the summary holds them exactly."""

STATE_EVERY: Final = 10
"""Steps between two comparisons of parameters and buffers. Ours: one costs some 20 us at least, in steps of 1 ms."""

STATE_PART: Final = 16
"""Each comparison covers one of this many parts. Ours: with `STATE_EVERY` all parts are covered in 160 steps. A step
reads all parameters more than twice (forward, backward, update), so comparisons add less than a thousandth to that."""

PIECE_ELEMENTS: Final = 1 << 16
"""Tensors are summed in pieces of this size, since a sum needs 8 bytes of memory per element. Ours."""

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Gather = Callable[[Any], list[Any]]
Settings = list[dict[str, Any]]


class ConsistencyCheck:
    """One rank's side of the comparisons.

    Args:
        models: Models whose parameters and buffers are compared.
        optimizers: Optimizers whose settings are compared.
        trained: Names of the parameters whose gradients are summed, by identity.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], trained: dict[int, str]) -> None:
        self._models, self._optimizers, self._trained = models, optimizers, trained
        self._places = _places(models)
        self._pieces = [
            (name, at)
            for name, (owner, key) in self._places.items()
            for at in range(0, owner[key].numel(), PIECE_ELEMENTS)
        ]
        self._settings: list[Any] = []
        self._settings_checksum = 0
        self._weights: dict[torch.device, Tensor] = {}
        self._untrained: list[Tensor] = []
        self._sizes: list[list[int]] = []
        self.check_trained()

    def check_trained(self) -> None:
        """Raise if the gradient of a trainable parameter is not summed over ranks.

        Raises:
            UserError: the parameter was unfrozen or added to an optimizer after ``run.prepare``, or its module was not
                given to ``run.prepare``.
        """
        sizes = [[len(group["params"]) for group in optimizer.param_groups] for optimizer in self._optimizers]
        if sizes != self._sizes:
            self._sizes = sizes
            known = {id(p): p for model in self._models for p in model.parameters()}
            known |= {id(p): p for o in self._optimizers for group in o.param_groups for p in group["params"]}
            self._untrained = [param for ident, param in known.items() if ident not in self._trained]
        for param in self._untrained:
            if param.requires_grad:
                raise UserError(self._left_out(param))

    def _left_out(self, param: Tensor) -> str:
        for model in self._models:
            for name, other in model.named_parameters():
                if other is param:
                    return (
                        f"parameter {name!r} was unfrozen after run.prepare, so its gradient is not summed over ranks: "
                        "unfreeze it before run.prepare; to train it only later, set the lr of its param_group to 0 "
                        "until then"
                    )
        group, place = next(
            (group, place)
            for optimizer in self._optimizers
            for group, row in enumerate(optimizer.param_groups)
            for place, other in enumerate(row["params"])
            if other is param
        )
        return (
            f"the optimizer trains a parameter of shape {tuple(param.shape)} (param_groups[{group}], number {place}) "
            "that belongs to no model given to run.prepare: give run.prepare the module that it is part of"
        )

    def settings_checksum(self) -> int:
        """Return a checksum of the settings in ``param_groups``."""
        now = [list(group.items()) for group in self.plain_settings()]
        if now != self._settings:
            self._settings = now
            self._settings_checksum = text_checksum(repr(now))
        return self._settings_checksum

    def plain_settings(self) -> Settings:
        """Return the settings whose value can be read without waiting for a GPU."""
        return [
            {name: _plain(value) for name, value in group.items() if name != "params" and _is_plain(value)}
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def state_checksum(self, step: int) -> Tensor | int:
        """Return a checksum of the part of parameters and buffers that is due after this step; 0 if none is."""
        if step % STATE_EVERY or not self._pieces:
            return 0
        each = -(-len(self._pieces) // STATE_PART)
        first = step // STATE_EVERY * each % len(self._pieces)
        return self._word(self._pieces[first : first + each])

    def _word(self, pieces: Sequence[tuple[str, int]]) -> Tensor:
        words = [self._sum(self._places[name], at) for name, at in pieces]
        device = words[0].device
        total = words[0] if len(words) == 1 else torch.stack([word.to(device) for word in words]).sum()
        return (total ^ (total >> 24) ^ (total >> 48)) & (WORD - 1)

    def _sum(self, place: tuple[Any, str], at: int) -> Tensor:
        """Sum the bits of all elements, each multiplied by its place."""
        tensor = place[0][place[1]].detach()
        piece = _flat(tensor)[at : at + PIECE_ELEMENTS]
        bits = piece.view(_BITS[piece.element_size()]) if piece.element_size() in _BITS else torch.view_as_real(piece)
        bits = bits if bits.dtype in _BITS.values() else bits.reshape(-1).view(torch.int64)
        weights = self._weights.get(tensor.device)
        if weights is None or len(weights) < len(bits):
            weights = self._weights[tensor.device] = torch.arange(1, 4 * PIECE_ELEMENTS, 2, device=tensor.device)
        return (bits.to(torch.int64) * weights[: len(bits)]).sum()

    def require_equal_settings(self, gather: Gather, idle: Sequence[int]) -> None:
        """Called on every rank where checksums differ: end the job with the name of the setting.

        Args:
            gather: Exchanges a value with all ranks.
            idle: Ranks that had no iteration in this step, and so could not change settings as the others did.

        Raises:
            UserError: settings differ between ranks that had an iteration.
        """
        rows: list[Settings] = gather(self.plain_settings())
        busy = [other for other in range(len(rows)) if other not in idle]
        expected = rows[busy[0]]
        for other in busy:
            for number, (group, wanted) in enumerate(zip(rows[other], expected, strict=False)):
                for name in group | wanted:
                    if repr(group.get(name)) != repr(wanted.get(name)):
                        raise UserError(
                            f"ranks differ in param_groups[{number}][{name!r}]: {group.get(name)} on rank {other}, "
                            f"{wanted.get(name)} on rank {busy[0]}. Set it on every rank, behind `if run.begins_step:`"
                        )
            if len(rows[other]) != len(expected):
                raise UserError(
                    f"ranks differ in param_groups: {len(rows[other])} on rank {other}, {len(expected)} on rank "
                    f"{busy[0]}"
                )

    def require_set_again(self, undone: Settings, restored: Settings) -> None:
        """Compare the settings of a repeated step with those it had when it was undone.

        The ranks that were in the step all repeat it, and other ranks may not be left, so that none would differ. Not
        for a rank without an iteration in the repeated step: it takes the settings of a rank that has one.

        Args:
            undone: Settings when the step was undone.
            restored: Settings after that, which are those of the start of the step.

        Raises:
            UserError: the script had changed a setting in the step, and has not changed it in the repeated one.
        """
        for number, rows in enumerate(zip(undone, restored, self.plain_settings(), strict=False)):
            was, start, now = rows
            for name in was.keys() & start.keys() & now.keys():
                if repr(was[name]) != repr(start[name]) == repr(now[name]):
                    raise UserError(
                        f"the script did not set param_groups[{number}][{name!r}] again when the step was repeated: it "
                        f"is {now[name]}, and was {was[name]} when the step was undone. Set it on every rank, behind "
                        "`if run.begins_step:`"
                    )

    @torch.no_grad()
    def require_equal_state(self, gather: Gather, steps: int) -> None:
        """Called on every rank: compare all parameters and buffers.

        Raises:
            UserError: a parameter or buffer differs.
        """
        words: list[Tensor] = [self._word([piece]).cpu() for piece in self._pieces]
        rows = gather([int(word) for word in words])
        for number, (name, _) in enumerate(self._pieces):
            column = [row[number] for row in rows]
            if len(set(column)) > 1:
                same = [str(rank) for rank, word in enumerate(column) if word == column[0]]
                other = [str(rank) for rank, word in enumerate(column) if word != column[0]]
                evaluates = ", or call model.eval() before an evaluation" if name.startswith("buffer") else ""
                raise UserError(
                    f"{name} is not equal on all ranks after {counted(steps, 'step')}: rank {', '.join(other)} has "
                    f"other values than rank {', '.join(same)}. The script has changed it outside of run.step, and not "
                    f"on every rank: change it on every rank{evaluates}"
                )


def require_equal_samples(gather: Gather, samples: str) -> None:
    """Called on every rank: compare the descriptions of the samples of the step.

    Raises:
        UserError: they differ.
    """
    described = gather(samples)
    for other, theirs in enumerate(described):
        if theirs != described[0]:
            raise UserError(
                f"ranks differ in the next step: {theirs} on rank {other}, {described[0]} on rank 0. Change the global "
                "batch on every rank, behind `if run.begins_step:`"
            )


def text_checksum(text: str) -> int:
    """Return a checksum of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=3).digest(), "big")


def _places(models: Sequence[nn.Module]) -> dict[str, tuple[Any, str]]:
    """Return owner and key of each parameter and buffer by name, since a module may replace a buffer's tensor."""
    found: dict[str, tuple[Any, str]] = {}
    for number, model in enumerate(models):
        where = f" of model {number}" if len(models) > 1 else ""
        for path, part in model.named_modules():
            for kind, owner in (("parameter", part._parameters), ("buffer", part._buffers)):
                for key, tensor in owner.items():
                    if tensor is not None and tensor.layout == torch.strided:
                        found[f"{kind} {f'{path}.{key}'.lstrip('.')!r}{where}"] = owner, key
    return found


def _flat(tensor: Tensor) -> Tensor:
    """Return all elements as a vector; a dense tensor in the order of its memory."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if torch.empty_like(tensor, device="meta").stride() == tensor.stride():
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.device.type == "cpu" and value.numel() == 1
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, tuple | list):
        return type(value)(_plain(each) for each in value)
    return value
