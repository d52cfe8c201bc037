"""The state of a job on one rank: what is saved in checkpoints and sent to ranks that lack it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from brim.errors import ConfigError, UserError
from brim.train.checkpoint.flatten import flatten_state
from brim.train.checkpoint.saving import Checkpoints
from brim.train.data.batches import Batches
from brim.train.gradients.noise import Noise
from brim.train.gradients.update import OptimizerUpdate
from brim.train.membership.commands import Commands
from brim.train.membership.evaluation import ALONE
from brim.train.membership.ranks import Ranks
from brim.train.position import Position
from brim.train.state import Lambda, State, copied

CARRIED: Final = "user."
"""What the names of the objects given to ``run.carry`` begin with."""

CARRIED_LOOKS: Final = 2
"""Ours: what a script puts into carried objects in a step or after an epoch has been there once by then."""


class JobState:
    """The state that is equal on every rank after every committed step, as `Rendezvous` and checkpoints use it.

    Attributes:
        parts: Models, optimizers and all other objects with a state.
        update: The optimizers' update.
        position: Where the job is.
        loader: The loader of the training data, once the script has made it.
        tuned_loader: Settings of the loader that a command has changed in this start of the job: values by method.
        noise: The estimate of the gradient noise, once there is a loader.
        loss: Mean loss of the last committed step.
        told: The loss that the script has reported last, if it has reported any: a number or a tensor.
        on_received: Called when the state of another rank was loaded.
    """

    def __init__(
        self, position: Position, ranks: Ranks, commands: Commands, checkpoints: Checkpoints | None, *,
        logical_workers: int | None, seed: int, settings: Callable[[], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        self.parts, self.update, self.position = State(), OptimizerUpdate(), position
        self.loader: Batches | None = None
        self.tuned_loader: dict[str, int] = {}
        self.noise: Noise | None = None
        self.loss: Tensor | None = None
        self.told: float | Tensor | None = None
        self.on_received: Callable[[], None] = lambda: None
        self._ranks, self._commands, self._checkpoints = ranks, commands, checkpoints
        self._workers, self.seed, self._settings = logical_workers, seed, settings
        self._before_loader: dict[str, Any] | None = None  # a loaded state, until the script has made its loader
        self._after_epoch: tuple[dict[str, Tensor], Any] | None = None
        self._after_steps: tuple[dict[str, Tensor], Any] | None = None
        self._looks: Counter[str] = Counter()
        self.parts.parts["run"] = Lambda(self._give_numbers, self._take_numbers)

    # -- as `rendezvous` uses it

    @property
    def step(self) -> int:
        """Number of committed steps."""
        return self.position.step

    @step.setter
    def step(self, value: int) -> None:
        self.position.step = value

    @property
    def closed(self) -> bool:
        """Whether the code at the end of the epoch has run since the last step, or is running now."""
        return self.position.closed or self.position.evaluates_at_the_end

    def seen(self, closed: bool) -> None:
        """Receive whether `closed` is true on any rank with the most steps."""
        self.position.closed_elsewhere = closed

    @property
    def tuned(self) -> int:
        """Number of the newest command to tune that has been applied."""
        return self._commands.tuned

    def mark(self) -> list[int]:
        """Return numbers that are equal on all ranks with the same state."""
        return [self.position.step, self.position.samples]

    def begin(self) -> None:
        """Begin from the newest checkpoint, or with the state that was built.

        Raises:
            ConfigError: the checkpoint does not fit this script.
        """
        checkpoints = self._checkpoints
        saved = checkpoints.restore(self._settings()) if checkpoints is not None else None
        if checkpoints is None or saved is None:
            self.position.step = 0
            return
        try:
            self.parts.take(*saved)
        except ConfigError as error:
            raise ConfigError(
                f"the checkpoint in {checkpoints.folder} does not fit: {error}; or use another folder"
            ) from None
        self.position.end_is_unclear = self.position.ended_early == [] and self.position.closed

    def give(self) -> tuple[dict[str, Tensor], Any]:
        """Return the state without copying, with the values that belong to this start of the job alone."""
        tensors, tree = self.to_save()
        token = 0 if self._checkpoints is None else self._checkpoints.token
        return tensors, {"state": tree, "token": token, "tuned": self._commands.tuned, "loader": self.tuned_loader}

    def take(self, tensors: dict[str, Tensor], tree: Any) -> None:
        """Use a complete received state."""
        self._after_steps = None
        self.parts.take(tensors, tree["state"])
        self._keep_if_ahead()
        self._commands.tuned, self.tuned_loader = tree["tuned"], tree["loader"]
        self._tune_loader()
        self.on_received()
        if self._checkpoints is not None:
            self._checkpoints.belong_to(tree["token"])

    def _tune_loader(self) -> None:
        for change, value in self.tuned_loader.items():
            if hasattr(self.loader, change):
                getattr(self.loader, change)(value)

    def check_carried(self, when: str) -> None:
        """Look over the carried objects, `CARRIED_LOOKS` times at each kind of moment: a save may come hours later.

        Raises:
            UserError: one has a value that cannot be saved.
        """
        if self._looks[when] == CARRIED_LOOKS:
            return
        self._looks[when] += 1
        for name, part in self.parts.parts.items():
            if name.startswith(CARRIED):
                state = part.state_dict()
                try:
                    flatten_state(state, prefix=name.removeprefix(CARRIED))
                except (TypeError, ValueError, RuntimeError) as error:  # the last by PyTorch
                    raise UserError(f"run.carry: {error}") from None

    # -- the end of an epoch

    def to_save(self) -> tuple[dict[str, Tensor], Any]:
        """Return the state for checkpoints and other ranks.

        While the code at the end of an epoch runs, this is the state from before that code, since whoever takes the
        state runs that code from its beginning.
        """
        kept = self._after_epoch if self._after_epoch is not None else self._after_steps
        return kept if kept is not None else self.parts.give()

    def end_steps(self) -> None:
        """All ranks have committed the last step of the epoch: the code behind the loop over ``run.steps`` begins."""
        self.position.evaluations = 0
        if self._ranks.rendezvous is None or self._ranks.size == 1:
            return  # no rank can take the state before that code has ended
        self._after_steps = self.parts.give_copied()

    @property
    def is_ahead(self) -> bool:
        """Whether the state is from behind the end of the epoch that the script is in."""
        return self._after_epoch is not None

    def _keep_if_ahead(self) -> None:
        """The state is another rank's now. Keep a copy if that rank has ended the epoch that this script is in.

        The script then leaves the loop over ``run.steps`` and runs the code behind it, which must not change that
        state: the other rank has run that code already.
        """
        position, at = self.position, self.position.script_epoch
        ended = at is not None and (
            position.epoch > at or (position.closed and position.is_over) or position.is_ended_early
        )
        self._after_epoch = copied(self.parts.give()) if ended else None

    def catch_up(self) -> bool:
        """The script has ended the epoch: undo what it has changed in a kept state; return whether there was one."""
        if (kept := self._after_epoch) is None:
            return False
        self.position.script_epoch = self._after_epoch = None
        self.parts.take(*kept)
        return True

    def close_epoch(self) -> None:
        """The code behind the loop over ``run.steps`` has run: who takes the state from now on continues behind it."""
        self.use_present_state()
        if self.catch_up():
            return
        self.position.script_epoch, self.position.closed = None, True
        if self.loader is not None:
            self.position.epoch = self.loader.epoch
        self.changed_without_step()

    def leave_epoch(self) -> None:
        """The script has left its loops: the epoch in which that was, if any, is over if its steps are."""
        position, loader = self.position, self.loader
        if position.script_epoch is not None:  # a loop without run.epochs, or one left by break
            if position.is_over or (loader is not None and loader.epoch > position.script_epoch):
                self.close_epoch()
            elif not self.catch_up():
                self.changed_without_step()
        self.use_present_state()
        position.script_epoch = None

    def end_early(self) -> None:
        """The script has left its loop, if over ``run.epochs`` by ``break``: it is over when it starts again."""
        if not self.position.is_ended_early:
            self.position.ended_early = self.position.limits
            self.changed_without_step()
        self.position.limits = None

    def changed_without_step(self) -> None:
        """The state was changed since the last step, and must be saved even if the state after that step was."""
        if self._checkpoints is not None:
            self._checkpoints.state_changed()

    def use_present_state(self) -> None:
        """Save and give the state as it is from now on."""
        self._after_steps, self.position.evaluations = None, 0

    def evaluation_place(self) -> str:
        """Return the place in the script where this rank evaluates now or next; "" if there is none.

        It has the number of the evaluation since the step, or the code at the end of the epoch, has begun: ranks that
        are in different evaluations do not exchange values. A rank that joins when the steps of an epoch are done runs
        the code at the end of the epoch, too. One that has received a state from behind that end runs it alone.
        """
        if self.is_ahead:
            return ALONE
        position, loader = self.position, self.loader
        done = loader is not None and not position.closed and (loader.epoch > position.epoch or position.is_over)
        if position.evaluating:
            outside = "at the end" if position.evaluates_at_the_end else "before the steps"
            return f"{'in a step' if position.in_body else outside} {position.evaluations}"
        return "at the end 1" if done else ""

    # -- the run's own numbers

    def use_loader(self, loader: Batches) -> None:
        """Train on this loader, from the place of a state that was loaded before."""
        self.loader = loader
        self._tune_loader()
        if self.noise is None:
            self.noise = Noise(loader.global_batch)
        if (state := self._before_loader) is not None:
            self._load_late(loader, state)
            self._before_loader = None

    def mean_loss(self) -> float | None:
        """Return the mean loss over the global batch of the last committed step."""
        return None if self.loss is None else float(self.loss)

    def told_loss(self) -> float | None:
        """Return the loss that the script has reported last, else the mean loss of the last committed step."""
        return self.mean_loss() if self.told is None else float(self.told)

    def samples_total(self) -> int | None:
        """Return the samples of the whole job, as far as the script has said; None: not known.

        Steps count with the present global batch, epochs with the samples that are left in the loader.
        """
        position, loader = self.position, self.loader
        if loader is None or not position.limits:
            return None
        epochs, steps = position.limits
        left = [] if steps is None else [(steps - position.steps_done) * loader.global_batch]
        per_epoch = getattr(loader, "samples_per_epoch", None)
        if epochs is not None and epochs < sys.maxsize and per_epoch is not None:
            left.append(max(epochs * per_epoch - position.samples, 0))
        return position.samples + min(left) if left else None

    def _give_numbers(self) -> dict[str, Any]:
        loader, noise, late, position = self.loader, self.noise, self._before_loader or {}, self.position
        return {
            "step": position.step, "samples": position.samples, "workers": self._workers, "seed": self.seed,
            "epoch": position.epoch, "closed": position.closed, "ended_early": position.ended_early,
            "loss": self.mean_loss(), "told": None if self.told is None else float(self.told),
            "loader": late.get("loader") if loader is None else loader.state_dict(),
            "noise": late.get("noise") if noise is None else noise.state_dict(),
        }  # fmt: skip

    def _take_numbers(self, state: dict[str, Any]) -> None:
        for option, name, ours in (("logical_workers", "workers", self._workers), ("seed", "seed", self.seed)):
            if state[name] != ours:
                raise ConfigError(f"the state has {option}={state[name]!r}, this run {ours!r}: make them equal")
        position = self.position
        position.step, position.samples, position.epoch = state["step"], state["samples"], state["epoch"]
        position.closed = state.get("closed", True)  # checkpoints of earlier versions do not say
        position.ended_early = state.get("ended_early")
        loss = state.get("loss")
        self.loss = None if loss is None else torch.tensor(loss)
        self.told = state.get("told")
        self.update.schedules_were_loaded()
        if self.loader is None:
            self._before_loader = state
        else:
            self._load_late(self.loader, state)

    def _load_late(self, loader: Batches, state: dict[str, Any]) -> None:
        if state["loader"] is not None:
            asked = loader.global_batch
            loader.load_state_dict(state["loader"])
            if self._ranks.rank == 0 and loader.global_batch != asked:
                sys.stderr.write(
                    f"brim: using the global batch of the checkpoint, {loader.global_batch}, not {asked} as in "
                    "the script: change it with tune, or use another folder\n"
                )
        if state["noise"] is not None:
            self.noise = self.noise or Noise(1)
            self.noise.load_state_dict(state["noise"])
