"""A loop by hand with Hugging Face's ``Accelerator`` that saves and leaves when its job is to end, and resumes exactly.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loop = BrimLoop(accelerator, "out/job")
    for epoch in loop.epochs(3):
        for x, y in loop.batches(loader):
            accelerator.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            loop.step()

Exact on the same number of ranks, with ``DataLoaderConfiguration(use_seedable_sampler=True)``, and for datasets that
draw no random numbers, since Accelerate does not bring those back in the middle of an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brim.errors import UserError
from brim.train.callbacks import randomness, sealed
from brim.train.callbacks.handshake import Handshake

try:
    from accelerate import skip_first_batches
except ModuleNotFoundError:
    raise ModuleNotFoundError(f"{__name__} needs accelerate: pip install 'brim[integrations]'") from None

__all__ = ["BrimLoop"]

KEEP: Final = 2
"""Verified checkpoints that stay, as for brim's own loop."""

_NUMBERS: Final = ("epoch", "batch", "steps", "samples")


class BrimLoop:
    """Where the loop is. Made after ``accelerator.prepare``, it goes on from the newest checkpoint, if there is one.

    Attributes:
        epoch: Under way.
        batch: Batches of it that this rank has begun.
        steps: Optimizer steps that are done.
        samples: Samples of all ranks in batches that were begun.
    """

    def __init__(self, accelerator: Any, folder: str | os.PathLike[str]) -> None:
        self._accelerator, self._folder = accelerator, os.path.abspath(folder)
        self._handshake = Handshake()
        self._random: dict[str, Any] | None = None
        self.epoch = self.batch = self.steps = self.samples = 0
        accelerator.register_for_checkpointing(self)
        if not accelerator.use_seedable_sampler:
            self._handshake.say("use_seedable_sampler=False: the order of an epoch cannot be found again when resuming")
        path = sealed.newest_checkpoint(self._folder)
        if path is not None:
            accelerator.load_state(path)
            self._random = randomness.taken()
        self._handshake.begin(self.steps, path)

    def state_dict(self) -> dict[str, int]:
        """What Accelerate saves."""
        return {name: getattr(self, name) for name in _NUMBERS}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """What Accelerate gives back."""
        for name in _NUMBERS:
            setattr(self, name, state[name])

    def epochs(self, number: int) -> Iterator[int]:
        """Epochs still to do, of ``number``."""
        while self.epoch < number:
            yield self.epoch
            self.epoch, self.batch = self.epoch + 1, 0

    def batches(self, loader: Any) -> Iterator[Any]:
        """Batches of the epoch still to do. ``loader`` is one that ``accelerator.prepare`` gave back."""
        if not hasattr(loader, "set_epoch"):
            raise UserError("loop.batches got a loader that is not prepared, expected one of accelerator.prepare")
        left = len(loader) - self.batch
        rest = skip_first_batches(loader, self.batch) if self.batch else loader
        for one in (loader, rest):  # what is left out hides the sampler from the second, among several ranks
            one.set_epoch(self.epoch)
        batches = iter(rest) if left else iter(())
        for _ in range(left):
            found = next(batches)
            self._put_back()
            self.batch, self.samples = self.batch + 1, self.samples + loader.total_batch_size
            yield found
        for _ in batches:  # to its end: the loader says then that the epoch is over
            pass
        self._put_back()

    def step(self, loss: float | None = None) -> None:
        """After every batch: where that was an optimizer step, agree whether it is the last; then save and leave."""
        if not self._accelerator.sync_gradients:
            return
        self.steps += 1
        self._handshake.progress(self.steps, self.samples, loss)
        if (ending := self._handshake.agree(self.steps)) is not None:
            self._handshake.leave(ending, self.steps, self.save())

    def save(self) -> str:
        """Save and verify, on all ranks at once; where it is. The newest two stay."""
        path = os.path.join(self._folder, f"step-{self.steps}")
        self._accelerator.save_state(path)
        self._handshake.seal(path, self.steps)
        if self._handshake.rank == 0:
            sealed.keep_newest(self._folder, KEEP)
        return path

    def _put_back(self) -> None:
        """A loader that begins draws random numbers; a resumed one would draw them a second time."""
        if self._random is not None:
            randomness.put_back(self._random)
            self._random = None
