"""A callback for Lightning's ``Trainer``: it saves and exits when its job is stopped, and resumes exactly.

    loader = ResumableLoader(dataset, batch_size=32, shuffle=True)
    trainer = Trainer(..., callbacks=[BrimCallback("out/job")])
    trainer.fit(model, loader, ckpt_path=newest_checkpoint("out/job"))

It saves at the end of every epoch, in place of Lightning's own ``ModelCheckpoint``, and keeps the newest two
checkpoints. Lightning neither saves the random generators nor continues within an epoch; the callback adds the former,
and `ResumableLoader` the latter. With a plain ``DataLoader``, only checkpoints of the end of an epoch resume exactly.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset

from brim.errors import ConfigError
from brim.train.integrations import manifests, random_state
from brim.train.integrations.handshake import Ending, Handshake
from brim.train.integrations.samplers import SeededSampler, generator_of_wrapped

try:
    from lightning.pytorch.callbacks import Callback, Checkpoint, LearningRateMonitor, ProgressBar
    from lightning.pytorch.core.hooks import ModelHooks
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "brim.train.callbacks.lightning needs lightning: pip install 'brim[integrations]'"
    ) from None

__all__ = ["BrimCallback", "ResumableLoader", "newest_checkpoint"]

KEEP: Final = 2
"""How many verified checkpoints are kept, as in brim's own loop."""

_FILE: Final = "lightning.ckpt"
_KEY: Final = "brim"


def newest_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the file of the newest complete and undamaged checkpoint; None if there is none."""
    found = manifests.newest_checkpoint(folder)
    return None if found is None else os.path.join(found, _FILE)


class BrimCallback(Checkpoint):
    """Save, verify and exit when the job is stopped. Put it last among the callbacks.

    Args:
        folder: Folder of the checkpoints, which all ranks must see.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.path.abspath(folder)
        self._handshake = Handshake()
        self._ending: Ending | None = None
        self._saved: list[dict[str, Any]] = []
        self._step, self._due = 0, False

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the state of every rank's random generators and loaders to the checkpoint."""
        loaders = [loader.state_dict() for loader in _resumable(trainer)]
        checkpoint[_KEY] = self._handshake.gather({"random": random_state.taken(), "loaders": loaders})

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Read these states from the checkpoint; they are restored when training begins."""
        self._saved = checkpoint.get(_KEY, [])

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Let SIGTERM wait for the beginning of training."""
        self._handshake.own_sigterm()  # Lightning's own handler would end the job with exit code 0, and save nothing

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Report that this rank is ready; exit if a stop was requested while it was built."""
        handshake, loaders, self._step = self._handshake, _resumable(trainer), trainer.global_step
        handshake.own_sigterm()
        handshake.begin(self._step, os.path.dirname(str(trainer.ckpt_path)) if self._saved else None)
        if len(loaders) < len(trainer.fit_loop._combined_loader.flattened):
            handshake.say("a plain DataLoader cannot resume within an epoch: use ResumableLoader for equal bits")
        if len(self._saved) == handshake.size:
            mine = self._saved[handshake.rank]
            for loader, state in zip(loaders, mine["loaders"], strict=False):
                loader.load_state_dict(state)
            random_state.put_back(mine["random"])
            if any(0 < loader.state_dict()["batches"] < len(loader) for loader in loaders):
                for name in _begin_epochs(trainer, pl_module):
                    handshake.say(
                        f"Lightning does not call on_train_epoch_start of {name} where a job resumes within an epoch: "
                        "what it sets for this epoch is missing unless a checkpoint has it"
                    )
        self._saved = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After an optimizer step, agree with the other ranks whether to stop."""
        step = trainer.global_step
        if step == self._step:
            return
        self._step = step
        loss = trainer.callback_metrics.get("loss")
        batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        samples = batches * self._handshake.size * (getattr(trainer.train_dataloader, "batch_size", None) or 0)
        self._handshake.progress(step, samples, None if loss is None else float(loss))
        self._ending = self._handshake.agree(step)
        if not self._is_busy(trainer, batch_idx) and (self._ending is not None or self._due):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save at the end of every epoch.

        With ``max_steps``, Lightning resumes from there differently than it would have continued. The checkpoint is
        then written one step later, unless every epoch has a single step.
        """
        for loader in _resumable(trainer):
            loader.end_epoch()
        self._due = trainer.max_steps != -1 and trainer.num_training_batches > trainer.accumulate_grad_batches
        if not self._due:
            self._save(trainer)

    def _is_busy(self, trainer: Any, batch_idx: int) -> bool:
        """Return whether validation or the end of the epoch follows this batch."""
        every = trainer.val_check_batch
        validates = every not in (None, 1) and trainer.enable_validation and (batch_idx + 1) % every == 0
        return bool(trainer.is_last_batch or validates or _is_over(trainer))

    def _save(self, trainer: Any) -> None:
        """Save and verify a checkpoint; exit if a stop was requested and training is not over anyway."""
        path, self._due = os.path.join(self._folder, f"step-{trainer.global_step}"), False
        trainer.save_checkpoint(os.path.join(path, _FILE))
        self._handshake.write_manifest(path, trainer.global_step)
        if self._handshake.rank == 0:
            manifests.keep_newest(self._folder, KEEP)
        if self._ending is not None and not _is_over(trainer):
            self._handshake.leave(self._ending, trainer.global_step, path)


class ResumableLoader(DataLoader[Any]):
    """A ``DataLoader`` that resumes in the middle of an epoch: it loads and discards the batches already trained on.

    The order of an epoch and the seeds of the worker processes come from the epoch's number and a seed drawn when the
    job began. Samplers may draw from the global generators, or have a ``generator`` or ``set_epoch``; one that draws
    otherwise must not depend on what was drawn before. A ``generator`` goes on from the seed that it was given if
    Lightning splits the sampler over several ranks, and is seeded anew for each epoch otherwise. The loader needs
    `BrimCallback`, because Lightning does not report the end of an epoch in time.
    """

    _seed: int | None = None
    _epoch = _batches = 0
    _drawn_from: torch.Tensor | None = None
    """State of the wrapped sampler's generator from which this epoch was drawn; None before."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the seed, the epoch, how many of its batches were yielded, what a sampler draws from."""
        generator, drawn_from = generator_of_wrapped(self), self._drawn_from
        if generator is not None and drawn_from is None:
            drawn_from = generator.get_state()
        return {"seed": self._seed, "epoch": self._epoch, "batches": self._batches, "drawn_from": drawn_from}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position."""
        self._seed, self._epoch, self._batches = state["seed"], state["epoch"], state["batches"]
        self._drawn_from = state.get("drawn_from")

    def end_epoch(self) -> None:
        """Move to the next epoch, unless no batch of this one was yielded."""
        if self._batches:
            self._epoch, self._batches, self._drawn_from = self._epoch + 1, 0, None

    def __iter__(self) -> Any:
        """Yield the remaining batches of the epoch. It starts at the first ``next``: state is loaded after ``iter``.

        Raises:
            ConfigError: the dataset is iterable.
        """
        if isinstance(self.dataset, IterableDataset):
            raise ConfigError("ResumableLoader needs a map-style dataset, not an IterableDataset")
        return self._rest()

    @property
    def _index_sampler(self) -> Any:
        """What the iterators of PyTorch draw from, if they begin an epoch: a sampler of places or of batches."""
        return SeededSampler(super()._index_sampler, lambda: (self._seed or 0, self._epoch))

    def _rest(self) -> Iterator[Any]:
        if self._seed is None:
            self._seed = int(torch.randint(1 << 62, ()).item())
        if self._batches >= len(self):
            self.end_epoch()
        self.generator = torch.Generator()
        self.generator.manual_seed(self._seed + self._epoch)
        samplers: list[Any] = [self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)]
        for each in samplers:
            if isinstance(getattr(each, "generator", 0), torch.Generator | None):  # and none of NumPy
                with contextlib.suppress(AttributeError):  # it cannot be set
                    each.generator = self.generator
            if hasattr(each, "set_epoch"):
                each.set_epoch(self._epoch)
        if (generator := generator_of_wrapped(self)) is not None:
            if self._drawn_from is not None:
                generator.set_state(self._drawn_from)
            self._drawn_from = generator.get_state()
        before = random_state.taken()
        batches = super().__iter__()
        if self._batches:
            next(islice(batches, self._batches, self._batches), None)
            random_state.put_back(before)
        for batch in batches:
            self._batches += 1
            yield batch


def _begin_epochs(trainer: Any, pl_module: Any) -> list[str]:
    """Return the names of the module and of callbacks that do something when an epoch begins, but show progress."""
    found = [] if type(pl_module).on_train_epoch_start is ModelHooks.on_train_epoch_start else [pl_module]
    found += [
        each for each in trainer.callbacks
        if type(each).on_train_epoch_start is not Callback.on_train_epoch_start
        and not isinstance(each, ProgressBar | LearningRateMonitor)
    ]  # fmt: skip
    return [type(each).__name__ for each in found]


def _resumable(trainer: Any) -> list[ResumableLoader]:
    loaders = trainer.fit_loop._combined_loader.flattened
    return [loader for loader in loaders if isinstance(loader, ResumableLoader)]


def _is_over(trainer: Any) -> bool:
    """Return whether the last step or the last epoch is done."""
    loop = trainer.fit_loop
    steps = trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps
    epochs = trainer.max_epochs not in (None, -1) and loop.epoch_progress.current.processed >= trainer.max_epochs
    return bool(steps or epochs)
