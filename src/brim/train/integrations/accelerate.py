"""A loop with Hugging Face's ``Accelerator`` that saves and exits when its job is stopped, and resumes exactly.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loop = BrimLoop(accelerator, "out/job")
    for epoch in loop.epochs(3):
        for x, y in loop.batches(loader):
            accelerator.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            loop.step()

Resuming is exact on the same number of ranks, with ``DataLoaderConfiguration(use_seedable_sampler=True)``, and for
datasets and samplers that draw no random numbers, because Accelerate does not restore those in the middle of an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brim.errors import ConfigError, UserError
from brim.train.integrations import manifests, random_state
from brim.train.integrations.handshake import Handshake
from brim.train.integrations.samplers import set_epoch, why_not_resumable

try:
    from accelerate import skip_first_batches
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "brim.train.callbacks.accelerate needs accelerate: pip install 'brim[integrations]'"
    ) from None

__all__ = ["BrimLoop"]

KEEP: Final = 2
"""How many verified checkpoints are kept, as in brim's own loop."""

_NUMBERS: Final = ("epoch", "batch", "steps", "samples")


class BrimLoop:
    """The position of a training loop. Create it after ``accelerator.prepare``: it loads the newest checkpoint, if any.

    Args:
        accelerator: The ``Accelerator`` of the loop.
        folder: Folder of the checkpoints, which all ranks must see.

    Attributes:
        epoch: Current epoch.
        batch: Batches of this epoch that this rank has begun.
        steps: Optimizer steps done.
        samples: Samples in all batches begun, on all ranks.

    Raises:
        ConfigError: ``automatic_checkpoint_naming`` is set.
    """

    def __init__(self, accelerator: Any, folder: str | os.PathLike[str]) -> None:
        if accelerator.project_configuration.automatic_checkpoint_naming:
            raise ConfigError("automatic_checkpoint_naming must be False: Accelerate would save to another folder")
        self._accelerator, self._folder = accelerator, os.path.abspath(folder)
        self._handshake = Handshake()
        self._random: dict[str, Any] | None = None
        self._sampler_checked = not accelerator.use_seedable_sampler
        self.epoch = self.batch = self.steps = self.samples = 0
        accelerator.register_for_checkpointing(self)
        if not accelerator.use_seedable_sampler:
            self._handshake.say("use_seedable_sampler=False: the order of an epoch cannot be restored when resuming")
        path = manifests.newest_checkpoint(self._folder)
        if path is not None:
            accelerator.load_state(path)
            self._random = random_state.taken()
        self._handshake.begin(self.steps, path)

    def state_dict(self) -> dict[str, int]:
        """Return the position; Accelerate saves it in its checkpoints."""
        return {name: getattr(self, name) for name in _NUMBERS}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore a position; Accelerate calls this when it loads a checkpoint."""
        for name in _NUMBERS:
            setattr(self, name, state[name])

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the remaining epochs of ``number`` epochs in all."""
        while self.epoch < number:
            yield self.epoch
            self.epoch, self.batch = self.epoch + 1, 0

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the remaining batches of the epoch.

        Args:
            loader: A loader returned by ``accelerator.prepare``.

        Raises:
            UserError: the loader was not prepared.
        """
        if not hasattr(loader, "set_epoch"):
            raise UserError("loop.batches: the loader must be one that accelerator.prepare returned")
        if not self._sampler_checked and (why := why_not_resumable(loader)) is not None:
            self._handshake.say(why)
        self._sampler_checked = True
        left = len(loader) - self.batch
        rest = skip_first_batches(loader, self.batch) if self.batch else loader
        for one in (loader, rest):
            one.set_epoch(self.epoch)
        set_epoch(loader, self.epoch)  # of samplers that these do not reach on several ranks
        batches = iter(rest) if left else iter(())
        for _ in range(left):
            found = next(batches)
            self._put_back()
            self.batch, self.samples = self.batch + 1, self.samples + loader.total_batch_size
            yield found
        for _ in batches:  # the loader must be exhausted before it reports the end of the epoch
            pass
        self._put_back()

    def step(self, loss: float | None = None) -> None:
        """Call it after every batch. After an optimizer step, save and exit on all ranks if a stop was requested."""
        if not self._accelerator.sync_gradients:
            return
        self.steps += 1
        self._handshake.progress(self.steps, self.samples, loss)
        if (ending := self._handshake.agree(self.steps)) is not None:
            self._handshake.leave(ending, self.steps, self.save())

    def save(self) -> str:
        """Save and verify a checkpoint and return its path. All ranks must call it; the newest two are kept."""
        path = os.path.join(self._folder, f"step-{self.steps}")
        self._accelerator.save_state(path)
        self._handshake.write_manifest(path, self.steps)
        if self._handshake.rank == 0:
            manifests.keep_newest(self._folder, KEEP)
        return path

    def _put_back(self) -> None:
        """Restore the generators: a loader draws random numbers when it begins, a resumed one a second time."""
        if self._random is not None:
            random_state.put_back(self._random)
            self._random = None
