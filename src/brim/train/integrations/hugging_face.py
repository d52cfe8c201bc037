"""A callback for Hugging Face's ``Trainer``: it saves and exits when its job is stopped, and resumes exactly.

    trainer = Trainer(model, args, train_dataset=..., callbacks=[BrimCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

Every checkpoint that the ``Trainer`` writes is verified and marked as complete. On the same number of ranks a resumed
run has the same parameters as one that was never stopped. This does not hold on another number of ranks, nor for
datasets and samplers that draw random numbers: the ``Trainer`` does not restore those in the middle of an epoch.
"""

from __future__ import annotations

import os
from typing import Any, Final

from brim.errors import ConfigError
from brim.train.integrations.handshake import Ending, Handshake
from brim.train.integrations.manifests import newest_checkpoint
from brim.train.integrations.samplers import set_epoch, why_not_resumable

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "brim.train.callbacks.hugging_face needs transformers: pip install 'brim[integrations]'"
    ) from None

__all__ = ["BrimCallback", "newest_checkpoint"]

_REFUSED: Final = {
    "save_only_model": "a checkpoint without the optimizer cannot be resumed",
    "save_on_each_node": "other nodes would have checkpoints that were not verified",
    "enable_jit_checkpoint": "it handles SIGTERM, too",
}


class BrimCallback(TrainerCallback):
    """Save, verify and exit when the job is stopped.

    Put it last among the callbacks: those after it are not called for the last checkpoint of a stopped job.
    """

    def __init__(self) -> None:
        self._handshake = Handshake()
        self._ending: Ending | None = None
        self._leaving = self._postponed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Report that this rank is ready; exit if a stop was requested while it was built.

        Raises:
            ConfigError: an option of the ``Trainer`` is set under which it could not resume.
        """
        for name, why in _REFUSED.items():
            if getattr(args, name, False):
                raise ConfigError(f"{name} must be False: {why}")
        resumed = _checkpoint(args, state) if state.global_step else None
        if resumed and args.ignore_data_skip:
            self._handshake.say("ignore_data_skip=True: the epoch starts over, so its batches will differ")
        if train_dataloader is not None and (reason := why_not_resumable(train_dataloader)):
            self._handshake.say(reason)
        self._handshake.begin(state.global_step, resumed)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Tell the samplers which epoch this is: with several ranks, the loader that skips batches does not."""
        if train_dataloader is not None:
            set_epoch(train_dataloader, int((state.epoch or 0) + 1e-6))  # a sum of fractions at the end of an epoch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Agree with the other ranks whether to stop after this step."""
        handshake, step = self._handshake, state.global_step
        samples = step * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        handshake.progress(step, samples, _loss(state))
        self._ending = handshake.agree(step)
        self._leaving = self._ending is not None and step < state.max_steps  # after the last step it is over anyway
        wanted = control.should_save or self._leaving
        at_end = float(state.epoch).is_integer()
        self._postponed, control.should_save = wanted and at_end, wanted and not at_end

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the checkpoint that was due after the last step, now that the epoch's evaluation is done."""
        control.should_save, self._postponed = control.should_save or self._postponed, False

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Verify the checkpoint; exit if the job is being stopped."""
        path = _checkpoint(args, state)
        self._handshake.write_manifest(path, state.global_step)
        if self._leaving and self._ending is not None:
            self._handshake.leave(self._ending, state.global_step, path)


def _checkpoint(args: Any, state: Any) -> str:
    return os.path.join(args.output_dir, f"checkpoint-{state.global_step}")


def _loss(state: Any) -> float | None:
    return next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), None)
