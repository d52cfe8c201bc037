"""A callback for Hugging Face's ``Trainer``: it saves and leaves when its job is to end, and resumes exactly.

    trainer = Trainer(model, args, train_dataset=..., callbacks=[BrimCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

Every checkpoint that the ``Trainer`` writes is verified and marked. On the same number of ranks a resumed run comes to
the parameters of one that was never stopped. Not so: on another number of ranks, and for datasets that draw random
numbers, since the ``Trainer`` does not bring those back in the middle of an epoch.
"""

from __future__ import annotations

import os
from typing import Any, Final

from brim.errors import ConfigError
from brim.train.callbacks.handshake import Ending, Handshake
from brim.train.callbacks.sealed import newest_checkpoint

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:
    raise ModuleNotFoundError(f"{__name__} needs transformers: pip install 'brim[integrations]'") from None

__all__ = ["BrimCallback", "newest_checkpoint"]

_REFUSED: Final = {
    "save_only_model": "a checkpoint without optimizer cannot be resumed from",
    "save_on_each_node": "ranks of other nodes would find checkpoints that were not verified",
    "enable_jit_checkpoint": "it answers SIGTERM, too",
}


class BrimCallback(TrainerCallback):
    """Put it last among the callbacks: those after it are not told of the checkpoint with which the job leaves."""

    def __init__(self) -> None:
        self._handshake = Handshake()
        self._ending: Ending | None = None
        self._leaving = self._postponed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say that this rank is ready; leave if the end was asked for while it was built."""
        for name, why in _REFUSED.items():
            if getattr(args, name, False):
                raise ConfigError(f"{name}=True: {why}; expected False")
        resumed = _checkpoint(args, state) if state.global_step else None
        if resumed and args.ignore_data_skip:
            self._handshake.say("ignore_data_skip=True: the epoch begins anew, its batches will be others")
        self._handshake.begin(state.global_step, resumed)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Agree whether this step is the last."""
        handshake, step = self._handshake, state.global_step
        samples = step * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        handshake.progress(step, samples, _loss(state))
        self._ending = handshake.agree(step)
        self._leaving = self._ending is not None and step < state.max_steps  # after the last one the job is done anyway
        wanted = control.should_save or self._leaving
        at_end = float(state.epoch).is_integer()
        self._postponed, control.should_save = wanted and at_end, wanted and not at_end

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save what was due with the last step of the epoch: what belongs to the epoch, an evaluation, comes before."""
        control.should_save, self._postponed = control.should_save or self._postponed, False

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Verify what was saved; leave if it was saved for that."""
        path = _checkpoint(args, state)
        self._handshake.seal(path, state.global_step)
        if self._leaving and self._ending is not None:
            self._handshake.leave(self._ending, state.global_step, path)


def _checkpoint(args: Any, state: Any) -> str:
    return os.path.join(args.output_dir, f"checkpoint-{state.global_step}")


def _loss(state: Any) -> float | None:
    return next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), None)
