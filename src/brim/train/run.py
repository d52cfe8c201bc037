"""A training run: connects the user's loop with ranks that can join, leave and die.

A step is V/P micro-batches on each of P ranks, one update, one commit. Everything else happens between two steps:
acting on commands that all ranks have received, forming a new group, saving, leaving. If a collective fails in a step,
the run drops its gradients, restores the buffers of its start, and the remaining ranks repeat the step.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from brim.errors import ConfigError, UserError
from brim.gang.messages import (
    PREEMPTED,
    Error,
    Finished,
    Leaving,
    Prepare,
    ResizeGroup,
    Saved,
    StepMeasurements,
    Stop,
    TuneSettings,
)
from brim.train import reproducibility
from brim.train.checkpoint.checkpointer import Saving
from brim.train.checkpoint.saving import Checkpoints
from brim.train.data.batches import Batches
from brim.train.data.options import check_options
from brim.train.environment import (
    choose_device,
    fix_shapes,
    fix_threads,
    moved,
    on_sigterm,
    refuse_tasks_of_slurm,
    seed_everything,
    static_group,
    tell_exceptions,
)
from brim.train.evaluation import ALONE, Evaluation, Operation, random_numbers_kept, reduced
from brim.train.gradients.all_reduce import is_power_of_two
from brim.train.gradients.buckets import Alone, Buckets, summer
from brim.train.gradients.consistency import Agreement
from brim.train.gradients.noise import Noise, Rule, rule_for
from brim.train.gradients.per_worker import PerWorker
from brim.train.gradients.step_summary import Summary, Tail, same_changes
from brim.train.gradients.update import Schedule, Update
from brim.train.membership.process_group import BrokenGroupError, Group
from brim.train.membership.rendezvous import NEW, EndedError, Membership, NotWantedError, share_state
from brim.train.membership.supervisor_client import Control
from brim.train.models import named_parameters, refuse_several_losses, refuse_wrapped
from brim.train.state import Lambda, State, Undo, Values, copied, place_optimizer
from brim.train.step import Meter, Micro, Plan

T = TypeVar("T")

TIMEOUT_S: Final = 300.0
"""Longest time in one collective. Ours: longer than an evaluation that one rank makes while the others wait."""

EVALUATION_ATTEMPTS: Final = 20
"""Times that an evaluation is called before the run gives up. Ours: fewer ranks die in one evaluation."""

NOISE_EVERY: Final = 10
"""Steps between two estimates of the gradient noise. Ours: the norms cost about a fiftieth of a step on a CPU."""

LOOK_S: Final = 0.2
"""How often the other ranks check whether the rank that saves is done. Ours."""

USER: Final = "user."
"""What the names of the objects given to `Run.carry` begin with."""

_SAVE: Final = "the save at the end"

FAST_RANKS_MAX: Final = 256
"""Ranks in fast mode, for which the tail has room."""


def start(
    *, logical_workers: int | None = None, seed: int = 0, device: str | torch.device | None = None,
    checkpoint: str | os.PathLike[str] | None = None, timeout_s: float = TIMEOUT_S,
    noise_every: int | None = NOISE_EVERY,
) -> Run:  # fmt: skip
    """Begin a run: in a gang of brim, in the ranks of ``torchrun``, or as one process.

    Args:
        logical_workers: V, a power of two, for exact mode: the same bits on every number of ranks that divides V.
            PyTorch then uses ``OMP_NUM_THREADS`` threads, or one, since sums depend on it. None: fast mode, with the
            same samples and batches and other rounding.
        seed: Seed of parameters built after this call, and of every micro-batch.
        device: By default this rank's GPU, else the CPU.
        checkpoint: Folder to restore from and save to.
        timeout_s: Longest time in one collective.
        noise_every: Steps between two estimates of the gradient noise; None: never.

    Raises:
        ConfigError: an argument is out of range, or ``srun`` has started several tasks that are not ranks of one job.
    """
    return Run(
        logical_workers=logical_workers, seed=seed, device=device, checkpoint=checkpoint, timeout_s=timeout_s,
        noise_every=noise_every,
    )  # fmt: skip


class Run:
    """One training job, as seen from one rank. Made by `start`.

    Attributes:
        device: The device of this rank.
        samples: Number of samples in committed steps.
        epoch: The present epoch; the next one begins when the code after the loop over `steps` has run.
        values: The last values given to `report`.
    """

    def __init__(
        self, *, logical_workers: int | None, seed: int, device: str | torch.device | None,
        checkpoint: str | os.PathLike[str] | None, timeout_s: float, noise_every: int | None,
    ) -> None:  # fmt: skip
        if logical_workers is not None and not is_power_of_two(logical_workers):
            raise ConfigError(f"logical_workers={logical_workers}: expected a power of two (1, 2, 4, 8, ...)")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s}: expected more than 0 seconds")
        if noise_every is not None and noise_every < 1:
            raise ConfigError(f"noise_every={noise_every}: expected at least 1, or None for never")
        refuse_tasks_of_slurm()
        if logical_workers is not None:
            fix_threads()
        self.device = choose_device(device)
        self.values: dict[str, Any] = {}
        self._workers, self.seed, self._timeout_s, self._noise_every = logical_workers, seed, timeout_s, noise_every
        self._state, self._update, self._undo = State(), Update(), Undo()
        self._per_worker: list[PerWorker] = []
        self._buckets: Buckets | None = None
        self._tail: Tail | None = None
        self._agreement: Agreement | None = None
        self._loader: Batches | None = None
        self._noise: Noise | None = None
        self._rule: Rule | None = None
        self._pending_state: dict[str, Any] | None = None
        self.samples = self.epoch = 0
        self._step = NEW
        self._calls = 0
        self._micro: Micro | None = None
        self._plan: Plan | None = None
        self._agreed = self._acted = self._tuned = 0
        self._leave_asked = self._leave_agreed = self._broken = self._through = False
        self._closed = True  # the code behind the loop over `steps` has run since the last step
        self._closed_elsewhere = self._in_body = False
        self._script_epoch: int | None = None  # the epoch whose steps, or the code behind them, the script is in
        self._kept: tuple[dict[str, Tensor], Any] | None = None  # a received state from behind the end of that epoch
        self._undoable = False  # a step is under way: it has begun and is not committed
        self._loss: Tensor | None = None
        self._meter = Meter()
        self._group: Group | None = None
        self._checkpoints: Checkpoints | None = None if checkpoint is None else Checkpoints(checkpoint)
        self._state.parts["run"] = Lambda(self._give_numbers, self._take_numbers)
        self._carried = _Carried(self)
        self._evaluation = Evaluation(self.device, timeout_s)
        self._control = Control.from_environment()
        self._membership: Membership | None = None
        if self._control is not None:
            self._membership = Membership(self._control, self.device, timeout_s)
        else:
            self._group = static_group(self.device, timeout_s)
        if threading.current_thread() is threading.main_thread():
            on_sigterm(self._ask_to_leave)
        tell_exceptions(self._control)
        atexit.register(self.close)
        seed_everything(seed, "build")

    # -- what the user calls ---------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Place among the ranks, from 0; it can change when ranks join or leave."""
        if (place := self._evaluation.place) is not None:
            return place[0]
        if self._membership is not None:
            return self._membership.rank
        return self._group.rank if self._group is not None else 0

    @property
    def world_size(self) -> int:
        """Present number of ranks."""
        if (place := self._evaluation.place) is not None:
            return place[1]
        if self._membership is not None:
            return self._membership.size
        return self._group.size if self._group is not None else 1

    @property
    def steps_done(self) -> int:
        """Number of committed optimizer steps."""
        return max(self._step, 0)

    @property
    def begins_step(self) -> bool:
        """Whether this micro-batch is the first one of an optimizer step on this rank.

        It is True again when the step is repeated because a rank joined or died, and in the first step of a rank that
        joins. Put code that runs once per step, such as setting a learning rate, behind it and before ``run.backward``.
        """
        return self._micro is not None and self._micro.begins

    @property
    def logical_workers(self) -> int | None:
        """V in exact mode."""
        return self._workers

    def prepare(
        self, *things: Any, unused: Literal["error", "zeros"] = "error", lr_rule: str | Rule = "auto"
    ) -> Any:
        """Add models, optimizers, schedules of PyTorch and a gradient scaler to the run, and return them.

        Models are moved to the device and otherwise left unchanged.

        Args:
            things: Models, optimizers, schedules and a scaler, in any order.
            unused: How to treat a parameter without gradient in a micro-batch: "error" or "zeros".
            lr_rule: Factor on the learning rate when the batch changes: "auto", "none", "linear", "sqrt", "adascale".
        """
        if unused not in ("error", "zeros"):
            raise ConfigError(f"unused={unused!r}: expected 'error' or 'zeros'")
        for thing in things:
            self._take_in(thing)
        for optimizer in self._state.optimizers:
            place_optimizer(optimizer)
        if self._buckets is not None:
            raise UserError("run.prepare was called twice; give it all models and optimizers at once")
        if not self._state.models:
            raise UserError("run.prepare got no model, expected at least one torch.nn.Module")
        first = self._state.optimizers[0] if self._state.optimizers else None
        self._rule = rule_for(first, lr_rule) if isinstance(lr_rule, str) else lr_rule
        self._tail = Tail(self._state.models, self._workers or FAST_RANKS_MAX, self._per_worker)
        named = named_parameters(self._state.models)
        self._buckets = Buckets(named, self._tail.size, unused=unused)
        trained = {id(param): name for name, param in named}
        self._agreement = Agreement(self._state.models, self._state.optimizers, trained)
        self._update.watch(trained)
        self._fix_shapes()
        return things[0] if len(things) == 1 else things

    def _fix_shapes(self) -> None:
        if self._workers is not None:
            fix_shapes()

    def _take_in(self, thing: Any) -> None:
        refuse_wrapped(thing)
        if isinstance(thing, nn.Module):
            thing.to(self.device)
            self._state.models.append(thing)
        elif isinstance(thing, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UserError(
                "run.prepare got ReduceLROnPlateau, which steps on a measured value: give it to run.carry(name, it), "
                "and step it yourself with the same value on every rank"
            )
        elif isinstance(thing, Optimizer):
            refuse_several_losses(thing)
            self._state.optimizers.append(thing)
            self._update.optimizers.append(thing)
        elif hasattr(thing, "unscale_") and hasattr(thing, "update"):
            self._update.scaler = thing
            self._state.parts["scaler"] = thing
        elif hasattr(thing, "step") and hasattr(thing, "state_dict"):
            self._update.schedulers.append(thing)
            self._state.parts[f"scheduler{len(self._update.schedulers)}"] = thing
        else:
            kind = type(thing).__name__
            raise UserError(f"run.prepare got a {kind}, expected models, optimizers, schedules, scalers")

    def carry(self, name: str, thing: Any) -> Any:
        """Save and share the state of one more object, which must be equal on every rank; return the object.

        Args:
            name: A unique name.
            thing: An object with ``state_dict`` and ``load_state_dict``, or a dict of plain values, which is filled
                in place when a state is loaded: ``best = run.carry("best", {"loss": None})``. In a gang of several
                ranks its state is copied at the start of every step, and loaded again if the step is undone.
        """
        part = Values(thing) if isinstance(thing, dict) else thing
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            kind = type(thing).__name__
            raise UserError(f"run.carry {name!r} got a {kind}, expected a dict, or state_dict and load_state_dict")
        self._add_part("run.carry", f"{USER}{name}", part)
        return thing

    def per_worker(self, name: str, first: Tensor | Sequence[Tensor]) -> PerWorker:
        """Keep a value for each logical worker from step to step, such as the hidden state of a recurrent network.

        ``value`` is that of the logical worker of the present micro-batch; a value assigned to it is committed with
        the step. Call this before `prepare`.

        Args:
            name: A unique name.
            first: One tensor of floats, or several: the value of every worker before the first step.
        """
        if self._workers is None:
            raise UserError("run.per_worker in fast mode has no logical workers: expected start(logical_workers=V)")
        if self._tail is not None:
            raise UserError("run.per_worker after run.prepare, expected before it")
        made = PerWorker(name, first, self._workers, self.device)
        self._add_part("run.per_worker", f"worker.{name}", made)
        self._per_worker.append(made)
        return made

    def _add_part(self, call: str, name: str, part: Any) -> None:
        if name in self._state.parts:
            raise UserError(f"{call} got the name {name.partition('.')[2]!r} twice, expected a unique name")
        if self._step != NEW:
            raise UserError(f"{call} after the first step was asked for, expected before run.epochs")
        self._state.parts[name] = part

    def loader(self, dataset: Any, global_batch: int, **options: Any) -> Any:
        """Make a loader with the options of `brim.train.data.loader.Loader`. The first one made is for training.

        In fast mode ``micro_batch`` bounds the samples of one micro-batch: gradients are accumulated over several.
        """
        from brim.train.data.loader import Loader, checked  # noqa: PLC0415  (imports multiprocessing, which a rank may not need)

        micro_batch = options.pop("micro_batch", None)
        check_options(options, Loader)
        options.setdefault("seed", self.seed)
        options.setdefault("pin_memory", self.device.type == "cuda")
        loader = Loader(dataset, global_batch, logical_workers=self._workers or 1, **options)
        if micro_batch is not None:
            self._micro_batch = checked(micro_batch, "micro_batch", 1, sys.maxsize)
        if self._loader is None:
            self._attach(loader)
        return loader

    _micro_batch: int | None = None

    def _fast_shares(self, global_batch: int, micro_batch: int | None) -> int:
        ranks = self.world_size
        per_rank = 1 if micro_batch is None else -(-global_batch // (ranks * micro_batch))
        return ranks * per_rank

    def epochs(self, number: int, *, steps: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, out of ``number``.

        Args:
            number: Epochs of the whole job.
            steps: End after so many optimizer steps of the whole job, also within an epoch. Unlike a ``break`` it holds
                for a rank, too, that learns of the last step from another.
        """
        self._last_step = steps
        self._form()
        while self.epoch < number and not (self._over() and self._closed):
            before = self.epoch
            self._calls = before
            yield before
            self._update.check_schedules()
            if not self._over() and (self._loader is None or self._loader.epoch == before):
                if self._loader is not None and self._loader.step == 0:
                    raise UserError("an epoch without a step: iterate over run.steps(loader) in it")
                raise UserError(
                    f"run.steps was left in epoch {before} before its end: to end early use run.epochs(..., steps=N), "
                    "or leave the loop over run.epochs, too, and call run.finish()"
                )
            self._close_epoch()
        self.finish()

    def _close_epoch(self) -> None:
        """The code behind the loop over `steps` has run: who takes the state from now on goes on behind it."""
        if self._take_kept():
            return
        self._script_epoch, self._closed = None, True
        if self._loader is not None:
            self.epoch = self._loader.epoch

    def _was_received(self) -> None:
        """The state is another rank's now. Keep a copy if that rank has ended the epoch that this script is in.

        The script then leaves the loop over `steps` and runs the code behind it, which must not change that state: the
        other rank has run that code already.
        """
        at = self._script_epoch
        ended = at is not None and (self.epoch > at or (self._closed and self._over()))
        self._kept = copied(self._state.give()) if ended else None

    def _take_kept(self) -> bool:
        """The script has ended the epoch: undo what it has changed in a kept state; return whether there was one."""
        if (kept := self._kept) is None:
            return False
        self._script_epoch = self._kept = None
        self._state.take(*kept)
        return True

    def _give(self) -> tuple[dict[str, Tensor], Any]:
        """Return the state for checkpoints and other ranks."""
        return self._kept if self._kept is not None else self._state.give()

    def steps(self, loader: Batches) -> Iterator[Any]:
        """Micro-batches of the epoch, each followed by ``run.backward`` and ``run.step``."""
        if self._buckets is None:
            raise UserError("run.steps before run.prepare(model, optimizer)")
        self._fix_shapes()
        self._attach(loader)
        self._take_kept()  # a loop without run.epochs
        self._form()
        call, self._calls = self._calls, self._calls + 1
        if call < self.epoch:
            return
        if call > self.epoch:  # a loop without run.epochs
            self._close_epoch()
        epoch = self._script_epoch = self.epoch
        while True:
            self._boundary()
            if self._kept is not None:
                return
            if loader.epoch == epoch and not self._over():
                yield from self._one_step(loader)
            elif self._all_are_at_the_end():
                return

    def _all_are_at_the_end(self) -> bool:
        """Wait until all ranks have committed the last step; False if a rank has died and others may be elsewhere.

        A rank that lacks the step takes the state here and then runs the code at the end of the epoch itself. Where
        another rank has run that code already, all had come here in the group before.
        """
        group = self._live_group()
        if group is None or self._closed_elsewhere:
            return True
        try:
            with self._in_collective("the end of the epoch"):
                group.share([0])  # as `_save_together`, where ranks may be that have run the code
        except BrokenGroupError as error:
            self._drop_step(error)
            return False
        return True

    _last_step: int | None = None

    def _over(self) -> bool:
        return self._last_step is not None and self.steps_done >= self._last_step

    def backward(self, loss: Tensor) -> None:
        """Backward of this micro-batch; ``loss`` is the mean over its samples."""
        micro, buckets, tail = self._micro, self._buckets, self._tail
        if self._broken:
            return  # an evaluation in this iteration has found the group broken: the step is done again
        if micro is None or micro.done or buckets is None or tail is None:
            raise UserError("run.backward outside of run.steps, or twice in one iteration: call it once, with the sum")
        if loss.numel() != 1:
            raise UserError(f"the loss has shape {tuple(loss.shape)}, expected one number: the mean over the batch")
        micro.done = True
        norms: list[Tensor] = []
        buckets.begin_micro(first=micro.first, last=micro.last, norms=_squares(norms) if micro.noise else None)
        scaled = loss if micro.share == 1.0 else loss * micro.share
        scaled = self._update.scaler.scale(scaled) if self._update.scaler is not None else scaled
        scaled.backward()
        buckets.end_micro(lambda: self._leaf(micro, loss, norms))

    def _leaf(self, micro: Micro, loss: Tensor, norms: list[Tensor]) -> Tensor:
        assert self._tail is not None
        assert self._plan is not None
        leaf_sq = None
        if norms:
            weight = (micro.share * self._update.scale()) ** 2 * self._plan.shares
            leaf_sq = torch.stack([norm.to(norms[0].device) for norm in norms]).sum() / weight
        said = (self.rank, self._words()) if micro.last else None
        return self._tail.leaf(micro.share, loss, leaf_sq, said)

    def _words(self) -> list[int | Tensor]:
        """Return the numbers that this rank sends to all others at the end of a step: see `step_summary.Summary`."""
        heard = self._control.heard if self._control is not None else 0
        if self._agreement is None or self._plan is None or self._size() == 1:
            return [heard, self._leave_asked, 0, 0]
        return [heard, self._leave_asked, self._agreement.settings_word(), self._plan.state]

    def clip(self, max_norm: float | None = None, *, max_value: float | None = None) -> None:
        """Clip the summed gradients before every update from now on; without arguments, stop clipping.

        Args:
            max_norm: Scale all gradients down to this norm over all parameters, as ``clip_grad_norm_`` does.
            max_value: Clamp every element to plus and minus this, as ``clip_grad_value_`` does.
        """
        self._update.max_norm, self._update.max_value = max_norm, max_value

    def schedule(self, factor: Schedule) -> None:
        """Multiply the learning rates by ``factor(samples consumed)`` in every step."""
        self._update.schedule = factor

    def step(self) -> bool:
        """After the last micro-batch of a step, update the parameters and commit the step.

        Returns:
            True if this rank has committed a step. A rank whose step was undone gets False, and may then receive a
            later state from another rank, so it never gets True for that step. Use `begins_step`, not this value, to
            run code once per step.
        """
        if self._broken:
            return False
        micro = self._micro
        if micro is None or not micro.done:
            raise UserError("run.step without run.backward before it")
        if not micro.last or micro.stepped:
            return False
        micro.stepped = True
        return self._finish_step()

    def evaluate(self, function: Callable[[], T]) -> T:
        """Call an evaluation that uses `gather`, `broadcast` or `reduce`, and return its result.

        If a rank dies meanwhile, the others form a new group and call the function again, with the `rank` and
        `world_size` of the ranks that take part; the function should have no side effects. Its random numbers depend on
        the seed and the step alone, and are the same on every rank. They do not change those of training.

        Raises:
            BrokenGroupError: the group broke `EVALUATION_ATTEMPTS` times in a row.
        """
        self._evaluation.again = True
        try:
            with random_numbers_kept(self.device):
                attempts = 0
                while True:
                    attempts += 1
                    try:
                        self._form()
                        self._evaluation.restrict()
                        seed_everything(self.seed, "evaluate", self.steps_done)
                        return function()
                    except BrokenGroupError as error:
                        if attempts == EVALUATION_ATTEMPTS:
                            words = f"an evaluation broke its group {attempts} times: {error}"
                            raise BrokenGroupError(words) from error
                        self._evaluation.everybody()
                        self._drop_step(error)
        finally:
            self._evaluation.again = False

    def _evaluates(self) -> str:
        """Return the place in the script where this rank evaluates now or next; "" if there is none.

        A rank that joins when the steps of an epoch are done runs the code at the end of the epoch, too. One that has
        received a state from behind that end runs it alone.
        """
        if self._kept is not None:
            return ALONE
        loader = self._loader
        done = loader is not None and not self._closed and (loader.epoch > self.epoch or self._over())
        if self._evaluation.again:
            return "at the end" if self._evaluates_at_the_end() else "in a step"
        return "at the end" if done else ""

    def _evaluates_at_the_end(self) -> bool:
        return self._evaluation.again and not self._in_body

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in rank order: any objects that can be pickled, including tensors.

        Every rank must call it. Use it for values of an evaluation, not for gradients.

        Raises:
            BrokenGroupError: a rank has died; within `evaluate` that function is called again.
            UserError: a rank did not call it within ``timeout_s``, or has no micro-batch in this step.
        """
        self._in_group()
        if self._micro is not None and self._plan is not None and (idle := self._plan.idle(self._size())):
            raise UserError(
                f"run.gather, run.broadcast or run.reduce inside run.steps: rank {idle[0]} has no sample in this step, "
                "so it does not make this call; call it between two epochs, or use run.loader(..., last='drop')"
            )
        with self._in_collective("run.gather, run.broadcast or run.reduce"):
            self._evaluation.restrict()
            return self._evaluation.gather(value)

    def _in_group(self) -> None:
        if self._buckets is None:
            raise UserError("run.gather, run.broadcast or run.reduce before run.prepare(model, optimizer)")
        self._form()

    def broadcast(self, value: Any = None, *, source: int = 0) -> Any:
        """Return the value of rank ``source`` on every rank; see `gather`."""
        self._in_group()
        if not 0 <= source < self.world_size:
            raise UserError(f"run.broadcast(source={source}): expected a rank from 0 to {self.world_size - 1}")
        return self.gather(value if self.rank == source else None)[source]

    def reduce(self, value: Any, operation: Operation = "sum") -> Any:
        """Return the sum, "min" or "max" of a number or tensor over all ranks, on every rank; see `gather`.

        Values are added in rank order, so all ranks get the same bits. A sum of floats depends on the number of ranks;
        a sum of whole numbers (samples, correct answers) does not.
        """
        return reduced(self.gather(value), operation)

    def report(self, **values: Any) -> None:
        """Report values such as the loss; tensors are read only when the values are sent."""
        self.values.update(values)
        self._tell_progress()

    @property
    def loss(self) -> float | None:
        """Mean loss over the global batch of the last committed step."""
        return None if self._loss is None else float(self._loss)

    @property
    def noise(self) -> Noise | None:
        """The present estimate of the gradient noise."""
        return self._noise

    def digest(self) -> str:
        """Return the SHA-256 over parameters, buffers and optimizer state."""
        return self._state.digest()

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each tensor that `digest` covers, by name."""
        return self._state.hashes()

    def certificate(self) -> dict[str, Any]:
        """Return the settings on which the bits of this run depend; see `brim.train.reproducibility`."""
        dtypes = {p.dtype for model in self._state.models for p in model.parameters()}
        batch = self._loader.global_batch if self._loader is not None else None
        return reproducibility.certificate(
            logical_workers=self._workers, seed=self.seed, device=self.device, dtypes=dtypes, ranks=self.world_size,
            rules={"global_batch": batch, **self._update.clipping()},
        )  # fmt: skip

    def finish(self) -> None:
        """Save the last state, once all ranks have committed the last step; a rank that has not may need this state."""
        self._take_kept()
        self._script_epoch = None
        self._evaluation.everybody()
        while True:
            try:
                self._save_together()
                break
            except BrokenGroupError as error:
                self._drop_step(error)
                self._form()
        self._through = True
        self._say_finished()  # now, since a script may end by os._exit
        if self._leave_asked:
            raise SystemExit(PREEMPTED)

    def _say_finished(self) -> None:
        if self._control is not None and self._step != NEW:
            self._control.send(Finished(self._step, self._through))

    def close(self) -> None:
        """Leave the group; called at exit."""
        atexit.unregister(self.close)
        if self._through and self._leave_asked and self._control is not None:
            self._control.send(Leaving(self._acted, self._step))
        if not self._through:
            self._say_finished()
        if self._group is not None:
            self._group.abort()
        if self._membership is not None and self._membership.group is not None:
            self._membership.group.abort()
        if self._buckets is not None:
            self._buckets.use(Alone())
        self._update.close()
        if self._membership is not None:
            self._membership.close()
        if self._group is not None:
            self._group.close()
            self._group = None
        if self._control is not None:
            self._control.close()

    # -- one step --------------------------------------------------------------------------------------------------

    def _one_step(self, loader: Batches) -> Iterator[Any]:
        plan, buckets = self._plan_step(loader), self._buckets
        self._plan = plan
        assert buckets is not None
        assert self._tail is not None
        assert self._agreement is not None
        self._evaluation.begin_step()
        self._begin_undoable()
        if self._size() > 1:
            plan.state = self._agreement.state_word(self.steps_done)
        self._meter.begin()
        begins = True
        for index, worker in enumerate(plan.mine):
            first, last = index == 0, index == len(plan.mine) - 1
            if not first:
                self._tail.restore()
            share = plan.samples[worker] / plan.total
            micro = self._micro = Micro(first, last, share, plan.noise)
            for each in self._per_worker:
                each.begin_micro(worker)
            if plan.samples[worker] == 0:
                self._empty(micro)
                continue
            micro.begins, begins = begins, False
            batch = moved(loader.fetch(plan.epoch, plan.step, worker), self.device)
            seed_everything(self.seed, "step", self.steps_done, worker)
            buckets.unmark()
            self._in_body = True
            yield batch
            self._in_body = False
            if self._broken:
                self._undo_step()  # what the rest of the iteration has changed
                return
            if not micro.done or (last and not micro.stepped):
                call = "run.step" if micro.done else "run.backward"
                raise UserError(f"{call} was not called in this iteration of run.steps")
        self._update.check_schedules()
        self._micro = None

    def _begin_undoable(self) -> None:
        """Copy what the script may change in a step: buffers, settings of optimizers, and what `carry` was given."""
        assert self._tail is not None
        self._tail.begin_step()
        self._update.begin_step()
        parts = self._state.parts.items() if self._can_be_undone() else ()
        self._undo.begin_step(part for name, part in parts if name.startswith(USER))
        self._undoable = True

    def _can_be_undone(self) -> bool:
        """Whether another rank can make this rank undo the step that begins."""
        return self._membership is not None and self._size() > 1

    def _undo_step(self) -> None:
        """Restore the copies of the start of the step, unless it is committed."""
        if self._undoable:
            assert self._tail is not None
            self._tail.restore()
            self._update.restore()
            self._undo.restore()

    def _empty(self, micro: Micro) -> None:
        """Add a leaf of zeros for a share without samples, in the last step of an epoch."""
        assert self._buckets is not None
        self._buckets.begin_micro(first=micro.first, last=micro.last)
        self._buckets.end_micro(lambda: self._leaf(micro, torch.zeros((), device=self.device), []), empty=True)
        if micro.last:
            self._finish_step()

    def _plan_step(self, loader: Batches) -> Plan:
        epoch, step, shares = loader.epoch, loader.step, loader.logical_workers
        samples = [loader.samples(epoch, step, worker) for worker in range(shares)]
        each = shares // self._size()
        mine = range(self.rank * each, (self.rank + 1) * each)
        even = len(set(samples)) == 1 and shares > 1
        noise = bool(self._noise_every) and even and self.steps_done % (self._noise_every or 1) == 0
        return Plan(epoch, step, samples, sum(samples), mine, noise, shares)

    def _finish_step(self) -> bool:
        buckets, tail, plan = self._buckets, self._tail, self._plan
        assert buckets is not None
        assert tail is not None
        assert plan is not None
        assert self._agreement is not None
        self._agreement.check_trained()
        idle = plan.idle(self._size())
        late = self.device.type == "cuda" and self._membership is None and not idle
        if self.device.type == "cuda" and not late:  # else the rest of backward would count as exchange
            torch.cuda.current_stream(self.device).synchronize()
        began_s = time.perf_counter()
        try:
            with self._in_collective():
                total = buckets.finish()
                said = tail.read(total, self._size(), late=late)
            group = self._live_group()
            if group is not None and group.aborted:
                raise BrokenGroupError(f"the group of generation {group.generation} has ended")
            self._require_equal(said, idle)
        except BrokenGroupError as error:
            self._drop_step(error)
            return False
        self._meter.sync_s += time.perf_counter() - began_s
        tail.apply(total)
        self._change_parameters(plan, said.leaf_sq)
        self._commit(plan)
        self._loss = said.loss
        self._agreed, self._leave_agreed = min(said.heard, default=0), said.leave
        return True

    def _require_equal(self, said: Summary, idle: list[int]) -> None:
        """On every rank: compare settings and state where the checksums of the ranks differ."""
        assert self._agreement is not None
        assert self._tail is not None
        if not same_changes([word for rank, word in enumerate(said.changes) if rank not in idle]):
            rows = self._compared(self._tail.changes)
            raise UserError(self._tail.unequal_changes([row for of_rank in rows for row in of_rank]))
        if len(set(said.settings)) > 1:
            self._agreement.require_equal_settings(self._compared, self.rank, idle)
        if len(set(said.state)) > 1:
            self._tail.restore()  # else the changes of this step, which differ between ranks, would count
            self._agreement.require_equal_state(self._compared, self.steps_done)

    def _compared(self, value: Any, what: str = "step") -> list[Any]:
        with self._in_collective(what):
            return self._evaluation.gather(value)

    def _change_parameters(self, plan: Plan, leaf_sq: Tensor) -> None:
        assert self._buckets is not None
        if self._noise is not None and self._rule is not None and plan.total:
            scale = self._loader.global_batch / self._noise.base if self._loader is not None else 1.0
            self._update.factor = self._rule(self._noise, scale) if scale != 1.0 else 1.0
        self._update.apply(self._buckets.params, self.samples, want_norm=plan.noise)
        if plan.noise and self._noise is not None and self._update.norm is not None:
            self._noise.add(plan.shares, plan.total, float(leaf_sq), float(self._update.norm) ** 2)

    def _commit(self, plan: Plan) -> None:
        assert self._loader is not None
        self._loader.commit(plan.epoch, plan.step)
        self._step += 1
        self._undoable = False
        self._undo.forget()
        self._closed = self._closed_elsewhere = False
        self.samples += plan.total
        self._meter.end(plan.total // max(self._size(), 1), self._loader.wait_s)

    def _drop_step(self, error: BrokenGroupError) -> None:
        """A collective failed: undo the step."""
        if self._membership is None:
            raise error
        self._broken = True
        self._micro = None
        group = self._membership.group
        if group is not None:
            group.abort()
        if self._buckets is not None:
            self._buckets.use(Alone())
        self._undo_step()
        self._membership.broken(str(error), self._step)

    # -- between two steps -----------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        """Act on the commands that all ranks have received."""
        self._broken = self._through = self._undoable = False
        self._evaluation.everybody()
        self._form()
        control, member = self._control, self._membership
        if control is not None and member is not None:
            agreed = control.commands(self._acted, self._agreed)
            for tune in takewhile(lambda command: isinstance(command, TuneSettings), agreed):
                self._acted = tune.command  # part of the step: others that have committed it may have taken it up
                self._act(tune)
            if control.is_over(member.generation):
                self._drop_step(BrokenGroupError(f"generation {member.generation} is over"))
                self._form()
                self._broken = False  # no step was under way: the next is not left after its first micro-batch
            while commands := control.commands(self._acted, self._agreed):
                self._acted = commands[0].command
                self._act(commands[0])
            self._acted = max(self._acted, member.command)
            control.forget(self._acted)
            self._tell_progress()
        if self._leave_agreed:
            self._leave(PREEMPTED, self._acted)
        self._autosave()

    def _act(self, command: Any) -> None:
        assert self._control is not None
        assert self._membership is not None
        match command:
            case ResizeGroup() if command.generation > self._membership.generation:
                self._enter(command)
            case Prepare(new_size=0):
                self._leave(PREEMPTED, command.command)
            case Stop():
                self._leave(0, command.command)
            case TuneSettings():
                self._tune(command)
                self._tuned = command.command

    def _tune(self, command: TuneSettings) -> None:
        loader: Any = self._loader
        wanted = {
            "set_global_batch": command.global_batch, "set_workers": command.loader_workers,
            "set_prefetch": command.prefetch,
        }  # fmt: skip
        for change, value in wanted.items():
            if value is not None and hasattr(loader, change):
                try:
                    getattr(loader, change)(value)
                except UserError as error:  # equal on all ranks, which go on with what they have
                    assert self._control is not None
                    self._control.send(Error(str(error)))
        self._assign()

    def _form(self) -> None:
        """Join a group if this rank is in none, and take its common state."""
        member = self._membership
        if member is None:
            if self._step == NEW:
                self._begin_static()
            return
        if member.formed:
            return
        try:
            if member.generation == 0:
                member.join(self._carried, self._sizes())
            else:
                member.again(self._carried)
        except NotWantedError:
            self._go()
        except EndedError as ended:
            self._end_alone(ended)
        self._formed()

    def _enter(self, command: ResizeGroup) -> None:
        assert self._membership is not None
        assert self._buckets is not None
        self._buckets.use(Alone())
        try:
            self._membership.enter(command, self._carried)
        except NotWantedError:
            self._go()
        except EndedError as ended:
            self._end_alone(ended)
        self._formed()

    def _begin_static(self) -> None:
        if self._group is not None and self._group.size > 1:
            self._check_size(self._group.size)
            share_state(self._group, self._carried)
        else:
            self._carried.begin()
        self._formed()

    def _formed(self) -> None:
        self._check_size(self._size())
        member = self._membership
        if member is not None:
            self._acted = max(self._acted, member.command)
            self._agreed = self._acted  # new ranks have received, and agreed on, no more than this
        if self._buckets is not None:
            self._buckets.use(summer(self._live_group(), exact=self._workers is not None))
        self._evaluation.use(self._live_group(), self._evaluates())
        self._leave_agreed = False
        self._micro = None
        if self._checkpoints is not None:
            self._checkpoints.is_ours(self.rank == 0)
        self._assign()

    def _assign(self) -> None:
        loader: Any = self._loader
        if loader is None:
            return
        if self._workers is None:
            shares = self._fast_shares(loader.global_batch, self._micro_batch)
            if loader.logical_workers != shares:
                loader.set_logical_workers(shares)
        elif loader.logical_workers != self._workers:
            raise ConfigError(
                f"the loader has {loader.logical_workers} logical workers, the run {self._workers}: use run.loader(...)"
            )
        each = loader.logical_workers // self._size()
        loader.assign(loader.epoch, loader.step, range(self.rank * each, (self.rank + 1) * each))

    def _attach(self, loader: Batches) -> None:
        if self._loader is loader:
            return
        if self._loader is not None:
            raise UserError("run.steps got a second loader: use the first one made; others are for evaluation")
        self._loader = loader
        if self._noise is None:
            self._noise = Noise(loader.global_batch)
        if self._pending_state is not None:
            self._load_late(self._pending_state)
            self._pending_state = None
        if self._step != NEW:
            self._assign()

    # -- leaving ---------------------------------------------------------------------------------------------------

    def _leave(self, code: int, command: int) -> None:
        """Save the state, wait until that is done, and exit."""
        if self._checkpoints is None and self.rank == 0 and code == PREEMPTED:
            why = "start(checkpoint=...) names no folder to save to"
            sys.stderr.write(f"brim: {self.steps_done} steps are lost: {why}\n")
        try:
            self._save_together(command)
        except BrokenGroupError as error:
            if self._membership is None:
                raise SystemExit(code) from None
            self._drop_step(error)
            self._form()
            return
        if self._control is not None:
            self._control.send(Leaving(command, self._step))
        self.close()
        raise SystemExit(code)

    def _go(self) -> None:
        """The new group is without this rank."""
        if self._control is not None and self._membership is not None:
            self._control.send(Leaving(self._membership.command, self.steps_done))
        self.close()
        raise SystemExit(0)

    def _end_alone(self, ended: EndedError) -> None:
        """The job ends while this rank is in no group: each rank with state saves it, and the last may publish."""
        command = ended.command
        if self._step > 0 and self._checkpoints is not None:
            self._checkpoints.take_over()
            self._end_save(self._begin_save(announced=True), command.command)
        if self._control is not None:
            self._control.send(Leaving(command.command, self.steps_done))
        self.close()
        raise SystemExit(0 if isinstance(command, Stop) else PREEMPTED)

    def _ask_to_leave(self) -> None:
        """Handle SIGTERM. Once all steps are done and saved, there is no step to wait for."""
        self._leave_asked = True
        if self._through:
            raise SystemExit(PREEMPTED)

    def _autosave(self) -> None:
        if self._checkpoints is not None and self.rank == 0 and self._step > 0 and self._checkpoints.due():
            self._begin_save(announced=False)

    def _begin_save(self, *, announced: bool) -> Saving:
        assert self._checkpoints is not None
        return self._checkpoints.begin(self._step, self._give(), self.certificate(), announced=announced)

    def _end_save(self, saving: Saving, command: int | None) -> None:
        assert self._checkpoints is not None
        path = self._checkpoints.end(saving)
        if path is not None and command is not None and self._control is not None:
            self._control.send(Saved(command, self._step, path))

    def _save_together(self, command: int | None = None) -> None:
        """Save the state before an end; return on all ranks once that is done. One rank saves.

        The other ranks check repeatedly, so that a long save is not one long collective. If the rank that saves dies,
        they notice it at once and still have the state.

        Raises:
            BrokenGroupError: a rank has died.
        """
        saving: Saving | None = None
        checkpoints, group = self._checkpoints, self._live_group()
        if group is not None and self._agreement is not None and self._step > 0:
            self._agreement.require_equal_state(lambda value: self._compared(value, _SAVE), self._step)
        if checkpoints is not None and self.rank == 0 and self._step > 0 and not checkpoints.has_end(self._step):
            saving = self._begin_save(announced=True)
        while group is not None:
            with self._in_collective(_SAVE):
                done = group.share([int(saving is None or saving.done)])
            if all(row == [1] for row in done):
                break
            if saving is not None:
                saving.wait_a_while(LOOK_S)
        if saving is not None:
            self._end_save(saving, command)

    # -- small things ----------------------------------------------------------------------------------------------

    def _live_group(self) -> Group | None:
        return self._membership.group if self._membership is not None else self._group

    def _size(self) -> int:
        return self.world_size

    def _sizes(self) -> tuple[int, ...]:
        """Return the possible numbers of ranks of this run; empty: any."""
        if self._workers is None:
            return ()
        return tuple(1 << k for k in range(self._workers.bit_length()))

    def _check_size(self, size: int) -> None:
        if self._workers is not None and self._workers % size:
            sizes = ", ".join(str(n) for n in self._sizes())
            raise ConfigError(f"{size} ranks with logical_workers={self._workers}: expected one of {sizes} ranks")

    @contextlib.contextmanager
    def _in_collective(self, what: str = "step") -> Iterator[None]:
        if self._control is not None and self._membership is not None:
            self._control.waiting(self._membership.generation, self.steps_done, what)
        try:
            yield
        finally:
            if self._control is not None:
                self._control.going_on()

    def _tell_progress(self) -> None:
        if self._control is None:
            return
        self._control.progress(self.steps_done, self.samples, lambda: self.loss)
        if (found := self._meter.due()) is not None:
            noise = self._noise.scale_samples if self._noise is not None else None
            self._control.send(StepMeasurements(self.steps_done, gradient_noise=noise, **found))

    def _give_numbers(self) -> dict[str, Any]:
        loader, noise, late = self._loader, self._noise, self._pending_state or {}
        return {
            "step": self._step, "samples": self.samples, "workers": self._workers, "seed": self.seed,
            "epoch": self.epoch, "closed": self._closed, "loss": self.loss,
            "loader": late.get("loader") if loader is None else loader.state_dict(),
            "noise": late.get("noise") if noise is None else noise.state_dict(),
        }  # fmt: skip

    def _take_numbers(self, state: dict[str, Any]) -> None:
        for option, name, ours in (("logical_workers", "workers", self._workers), ("seed", "seed", self.seed)):
            if state[name] != ours:
                raise ConfigError(f"the state has {option}={state[name]!r}, this run {ours!r}: make them equal")
        self._step, self.samples, self.epoch = state["step"], state["samples"], state["epoch"]
        self._closed = state.get("closed", True)  # checkpoints of earlier versions do not say
        loss = state.get("loss")
        self._loss = None if loss is None else torch.tensor(loss)
        self._update.schedules_were_loaded()
        if self._loader is None:
            self._pending_state = state
        else:
            self._load_late(state)

    def _load_late(self, state: dict[str, Any]) -> None:
        assert self._loader is not None
        if state["loader"] is not None:
            asked = self._loader.global_batch
            self._loader.load_state_dict(state["loader"])
            if self.rank == 0 and self._loader.global_batch != asked:
                sys.stderr.write(
                    f"brim: using the global batch of the checkpoint, {self._loader.global_batch}, not {asked} as in "
                    "the script: change it with tune, or use another folder\n"
                )
        if state["noise"] is not None:
            self._noise = self._noise or Noise(1)
            self._noise.load_state_dict(state["noise"])


class _Carried:
    """The state of a run, as membership sees it."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def step(self) -> int:
        """Number of committed steps."""
        return self._run._step

    @step.setter
    def step(self, value: int) -> None:
        self._run._step = value

    @property
    def closed(self) -> bool:
        """Whether the code at the end of the epoch has run since the last step, or is running now."""
        return self._run._closed or self._run._evaluates_at_the_end()

    def seen(self, closed: bool) -> None:
        """Receive whether `closed` is true on any rank with the most steps."""
        self._run._closed_elsewhere = closed

    @property
    def tuned(self) -> int:
        """Number of the newest `tune` that has been applied."""
        return self._run._tuned

    def mark(self) -> list[int]:
        """Return numbers that are equal on all ranks with the same state."""
        run = self._run
        return [run._step, run.samples]

    def begin(self) -> None:
        """Begin from the newest checkpoint, or with the state that was built."""
        run = self._run
        saved = run._checkpoints.restore(run.certificate()) if run._checkpoints is not None else None
        if saved is None:
            self._run._step = 0
        else:
            try:
                self._run._state.take(*saved)
            except ConfigError as error:
                folder = run._checkpoints.folder if run._checkpoints is not None else ""
                raise ConfigError(f"the checkpoint in {folder} does not fit: {error}; or use another folder") from None

    def give(self) -> tuple[dict[str, Tensor], Any]:
        """Return the state without copying, with the values that belong to this start of the job alone."""
        tensors, tree = self._run._give()
        checkpoints = self._run._checkpoints
        return tensors, {
            "state": tree, "token": 0 if checkpoints is None else checkpoints.token, "tuned": self._run._tuned,
        }  # fmt: skip

    def take(self, tensors: dict[str, Tensor], tree: Any) -> None:
        """Use a complete received state."""
        self._run._state.take(tensors, tree["state"])
        self._run._was_received()
        self._run._tuned = tree["tuned"]
        if self._run._undoable:  # in an evaluation within a step: the rest of the iteration is undone to this state
            self._run._begin_undoable()
        if self._run._checkpoints is not None:
            self._run._checkpoints.belong_to(tree["token"])


def _squares(into: list[Tensor]) -> Any:
    def take(leaf: list[Tensor]) -> None:
        norms = torch._foreach_norm(leaf)
        into.append(torch.stack([norm.float() for norm in norms]).square().sum())

    return take
