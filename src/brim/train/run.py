"""What a training script calls: connects the user's loop with ranks that can join, leave and die.

A step is V/P micro-batches on each of P ranks, one update, one commit (`step`). Everything else happens between two
steps (`coordinator`): acting on commands that all ranks have received, forming a new group, saving, leaving. If a
collective fails in a step, the run drops its gradients, restores the buffers of its start, and the remaining ranks
repeat the step.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from brim.errors import ConfigError, UserError
from brim.gang.messages import Leaving
from brim.train import instrument, reproducibility
from brim.train.arguments import folder, function, positive, whole
from brim.train.checkpoint.saving import Checkpoints
from brim.train.coordinator import Coordinator
from brim.train.data.batches import Batches
from brim.train.data.options import check_options
from brim.train.environment import (
    choose_device,
    fix_shapes,
    fix_threads,
    refuse_tasks_of_slurm,
    seed_everything,
    unused_devices,
)
from brim.train.gradients.buckets import LocalReducer
from brim.train.gradients.noise import Noise, Rule, rule_for
from brim.train.gradients.per_worker import PerWorker
from brim.train.gradients.tree import is_power_of_two
from brim.train.gradients.update import Schedule
from brim.train.job_state import CARRIED, JobState
from brim.train.membership.commands import Commands
from brim.train.membership.evaluation import Operation, random_numbers_kept, reduced
from brim.train.membership.process_end import on_sigterm, report_exceptions
from brim.train.membership.process_group import BrokenGroupError
from brim.train.membership.ranks import Ranks
from brim.train.membership.rendezvous import NO_STATE
from brim.train.models import refuse_several_losses, refuse_wrapped, single_samples, told_loss
from brim.train.position import Position
from brim.train.saves import Saves
from brim.train.state import Values, place_optimizer
from brim.train.step import TrainingStep
from brim.units import counted

T = TypeVar("T")

TIMEOUT_MAX_S: Final = 1e8
"""Three years, in place of an infinite time: the clocks of PyTorch and of sockets take none."""
TIMEOUT_S: Final = 300.0
"""Longest time in one collective. Ours: longer than an evaluation that one rank makes while the others wait."""

NOISE_EVERY: Final = 10
"""Steps between two estimates of the gradient noise. Ours: the norms cost about a fiftieth of a step on a CPU."""

EVALUATION_ATTEMPTS: Final = 20
"""Times that an evaluation is called before the run gives up. Ours: fewer ranks die in one evaluation."""


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

    The class is long because it has all calls of a training script, with their documentation; what they do is in the
    objects that it is made of.

    Attributes:
        device: The device of this rank.
        values: The last values given to `report`.
    """

    def __init__(
        self, *, logical_workers: int | None, seed: int, device: str | torch.device | None,
        checkpoint: str | os.PathLike[str] | None, timeout_s: float, noise_every: int | None,
    ) -> None:  # fmt: skip
        self._instrument = instrument.attached()
        options = self._instrument.options({"logical_workers": logical_workers, "checkpoint": checkpoint})
        logical_workers, checkpoint = options["logical_workers"], options["checkpoint"]
        if logical_workers is not None:
            logical_workers = whole(logical_workers, "logical_workers", 1, other=" that is a power of two, or None")
            if not is_power_of_two(logical_workers):
                raise ConfigError(f"logical_workers={logical_workers}: expected a power of two (1, 2, 4, 8, ...)")
        if noise_every is not None:
            noise_every = whole(noise_every, "noise_every", 1, other=", or None for never")
        seed = whole(seed, "seed", 0)
        timeout_s = min(positive(timeout_s, "timeout_s", unit=" seconds"), TIMEOUT_MAX_S)
        checkpoint = None if checkpoint is None else folder(checkpoint, "checkpoint")
        refuse_tasks_of_slurm()
        if logical_workers is not None:
            fix_threads()
        self.device = choose_device(device)
        self.values: dict[str, Any] = {}
        self._workers, self.seed, self._noise_every = logical_workers, seed, noise_every
        self._warned = False
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()  # a loader that nobody holds ends by itself
        self._per_worker: list[PerWorker] = []
        self._training: TrainingStep | None = None
        self._position, self._commands = Position(), Commands()
        self._ranks = Ranks(self.device, timeout_s, lambda: self._position.steps_done)
        if self._ranks.client is not None and self.rank == 0 and (words := unused_devices()):
            sys.stderr.write(f"brim: {words}\n")
        checkpoints = None if checkpoint is None else Checkpoints(checkpoint)
        self._job = JobState(
            self._position, self._ranks, self._commands, checkpoints, logical_workers=logical_workers, seed=seed,
            settings=self.settings,
        )  # fmt: skip
        self._job.update.schedule = self._instrument.schedule(None)
        self._coordinator = Coordinator(
            self._job, self._ranks, self._commands, Saves(self._job, self._ranks, checkpoints, self.settings),
            logical_workers=logical_workers, close=self.close,
        )  # fmt: skip
        if threading.current_thread() is threading.main_thread():
            on_sigterm(self._coordinator.request_leave)
        self._restore_excepthook = report_exceptions(self._ranks.client)
        atexit.register(self.close)
        seed_everything(seed, "build")

    # -- what the user calls ---------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Place among the ranks, from 0; it can change at steps, when ranks join or leave."""
        return self._ranks.place[0]

    @property
    def world_size(self) -> int:
        """Present number of ranks."""
        return self._ranks.place[1]

    @property
    def steps_done(self) -> int:
        """Number of committed optimizer steps."""
        return self._position.steps_done

    @property
    def samples(self) -> int:
        """Number of samples in committed steps."""
        return self._position.samples

    @property
    def epoch(self) -> int:
        """The present epoch; the next one begins when the code after the loop over `steps` has run."""
        return self._position.epoch

    @property
    def begins_step(self) -> bool:
        """Whether this micro-batch is the first one of an optimizer step on this rank.

        It is True again when the step is repeated because a rank joined or died, and in the first step of a rank that
        joins. Put code that runs once per step, such as setting a learning rate, behind it and before ``run.backward``.
        """
        micro = self._training.micro if self._training is not None else None
        return micro is not None and micro.begins

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

        Raises:
            UserError: the run cannot train one of them. It then has none of them, and may be given others; models
                stay on the device.
        """
        if unused not in ("error", "zeros"):
            raise ConfigError(f"unused={unused!r}: expected 'error' or 'zeros'")
        if self._training is not None:
            raise UserError("run.prepare was called twice; give it all models and optimizers at once")
        others = dict(self._job.parts.parts)
        try:
            training = self._make_training(things, unused, lr_rule)
        except BaseException:
            self._job.parts.forget(others)
            self._job.update.forget()
            raise
        self._training = self._coordinator.training = training
        training.on_broken = self._coordinator.drop_step
        self._fix_shapes()
        return things[0] if len(things) == 1 else things

    def _make_training(self, things: Sequence[Any], unused: str, lr_rule: str | Rule) -> TrainingStep:
        for thing in things:
            self._take_in(thing)
        parts = self._job.parts
        for optimizer in parts.optimizers:
            place_optimizer(optimizer)
        if not parts.models:
            raise UserError("run.prepare got no model, expected at least one torch.nn.Module")
        first = parts.optimizers[0] if parts.optimizers else None
        rule = rule_for(first, lr_rule) if isinstance(lr_rule, str) else lr_rule
        return TrainingStep(
            self._job, self._ranks, self._commands, self._per_worker, self.device, unused=unused, rule=rule,
            logical_workers=self._workers, noise_every=self._noise_every, instrument=self._instrument,
        )  # fmt: skip

    def _fix_shapes(self) -> None:
        if self._workers is not None:
            fix_shapes()

    def _take_in(self, thing: Any) -> None:
        if isinstance(thing, type):
            raise UserError(f"run.prepare got the class {thing.__name__}, expected an object of it, made by calling it")
        refuse_wrapped(thing)
        if isinstance(thing, nn.Module):
            lazy = [name for name, tensor in (*thing.named_parameters(), *thing.named_buffers()) if is_lazy(tensor)]
            if lazy:
                raise UserError(f"run.prepare got a model whose {lazy[0]} has no shape yet: call the model once before")
            thing.to(self.device)
            self._job.parts.models.append(thing)
        elif isinstance(thing, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UserError(
                "run.prepare got ReduceLROnPlateau, which steps on a measured value: give it to run.carry(name, it), "
                "and step it yourself with the same value on every rank"
            )
        elif isinstance(thing, Optimizer):
            refuse_several_losses(thing)
            self._job.parts.optimizers.append(thing)
            self._job.update.optimizers.append(thing)
        elif hasattr(thing, "unscale_") and hasattr(thing, "update"):
            self._job.update.scaler = thing
            self._job.parts.parts["scaler"] = thing
        elif hasattr(thing, "step") and hasattr(thing, "state_dict"):
            self._job.update.schedulers.append(thing)
            self._job.parts.parts[f"scheduler{len(self._job.update.schedulers)}"] = thing
        else:
            kind = type(thing).__name__
            raise UserError(f"run.prepare got a {kind}, expected models, optimizers, schedules, scalers")

    def carry(self, name: str, thing: Any) -> Any:
        """Save and share the state of one more object, which must be equal on every rank; return the object.

        Args:
            name: A unique name.
            thing: An object with ``state_dict`` and ``load_state_dict``, or a dict of plain values, which is filled
                in place when a state is loaded: ``best = run.carry("best", {"loss": None})``. Numbers of NumPy come
                back as Python's. In a gang of several ranks its state is copied at the start of every step, and loaded
                again if the step is undone.
        """
        part = Values(thing) if isinstance(thing, dict) else thing
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            kind = type(thing).__name__
            raise UserError(f"run.carry {name!r} got a {kind}, expected a dict, or state_dict and load_state_dict")
        self._add_part("run.carry", f"{CARRIED}{name}", part)
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
        if self._training is not None:
            raise UserError("run.per_worker after run.prepare, expected before it")
        made = PerWorker(name, first, self._workers, self.device)
        self._add_part("run.per_worker", f"worker.{name}", made)
        self._per_worker.append(made)
        return made

    def _add_part(self, call: str, name: str, part: Any) -> None:
        if name in self._job.parts.parts:
            raise UserError(f"{call} got the name {name.partition('.')[2]!r} twice, expected a unique name")
        if self._position.step != NO_STATE:
            raise UserError(f"{call} after the first step was asked for, expected before run.epochs")
        self._job.parts.parts[name] = part

    def loader(self, dataset: Any, global_batch: int | None = None, **options: Any) -> Any:
        """Make a loader. The first one made is for training.

        Args:
            dataset: Map-style or iterable, see `brim.train.data.loader.Loader`.
            global_batch: Samples of one optimizer step over all ranks; it has no default.
            options: Those of `brim.train.data.loader.Loader`: ``workers``, ``prefetch``, ``collate``, ``pin_memory``
                (by default on a GPU), ``shuffle``, ``last``, ``length``, ``sample_rng``, ``timeout_s``,
                ``batch_range``, and ``seed`` (by default that of the run). In fast mode also ``micro_batch``: the most
                samples of one micro-batch; gradients are accumulated over several.

        Raises:
            ConfigError: an option is none of these, or its value cannot be used.
        """
        from brim.train.data.loader import Loader  # noqa: PLC0415  (imports multiprocessing, which a rank may not need)

        micro_batch = options.pop("micro_batch", None)
        check_options(options, Loader)
        if global_batch is None:
            raise ConfigError("run.loader: found no global_batch, expected the samples of a step on all ranks")
        options.setdefault("seed", self.seed)
        options.setdefault("pin_memory", self.device.type == "cuda")
        loader = Loader(dataset, global_batch, logical_workers=self._workers or 1, **options)
        self._loaders.add(loader)
        if micro_batch is not None:
            micro_batch = whole(micro_batch, "micro_batch", 1)
        micro_batch = self._instrument.micro_batch(micro_batch, global_batch)
        if micro_batch is not None:
            self._coordinator.micro_batch = micro_batch
        if self._job.loader is None:
            self._coordinator.use_loader(loader)
        return loader

    def epochs(self, number: int, *, steps: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, out of ``number``.

        A script may leave this loop by ``break`` and call `finish`, on every rank. If the job is then started again
        with the same arguments, none is left.

        Args:
            number: Epochs of the whole job.
            steps: End after so many optimizer steps of the whole job, also within an epoch. Unlike a ``break`` it holds
                for a rank, too, that learns of the last step from another.
        """
        position, job = self._position, self._job
        number = whole(number, "run.epochs: number", 0)
        steps = None if steps is None else whole(steps, "run.epochs: steps", 0, other=", or None")
        number, position.last_step = self._instrument.epochs(number, steps)
        position.limits = [number, position.last_step]
        self._coordinator.form()
        while position.epoch < number and not (position.is_over and position.closed) and not position.is_ended_early:
            before = position.calls = position.epoch
            yield before
            if position.finished:
                raise UserError("run.finish was called in the loop over run.epochs, which goes on: call it after it")
            job.update.check_schedules()
            if not (position.is_over or position.is_ended_early) and (job.loader is None or job.loader.epoch == before):
                if position.calls == before:
                    raise UserError("an epoch without a step: iterate over run.steps(loader) in it")
                raise UserError(
                    f"run.steps was left in epoch {before} before its end: to end early use run.epochs(..., steps=N), "
                    "or leave the loop over run.epochs, too, and call run.finish()"
                )
            job.close_epoch()
        position.limits = None
        self.finish()

    def steps(self, loader: Batches) -> Iterator[Any]:
        """Micro-batches of the epoch, each followed by ``run.backward`` and ``run.step``."""
        training, coordinator, position = self._training, self._coordinator, self._position
        if training is None:
            raise UserError("run.steps before run.prepare(model, optimizer)")
        if position.finished:
            raise UserError("run.steps after run.finish: call run.finish once, after the last loop")
        if position.limits is None:  # a loop without run.epochs
            position.limits = []
        self._fix_shapes()
        coordinator.use_loader(loader)
        self._job.catch_up()  # a loop without run.epochs
        coordinator.form()
        self._warn_once(loader)
        if self._instrument.before_steps(self, loader):
            position.epoch = position.calls = loader.epoch
            coordinator.assign()
        call = position.begin_epoch()
        if call < position.epoch:
            return
        if position.is_ended_early:
            if position.end_is_unclear:
                raise UserError(
                    f"the job in the checkpoint has called run.finish after {counted(position.epoch, 'epoch')} of a "
                    "loop without run.epochs: whether it has ended early, or this loop is longer, cannot be known; to "
                    "train on, iterate over run.epochs, or use another folder"
                )
            return
        if call > position.epoch:  # a loop without run.epochs
            self._job.close_epoch()
        epoch = position.script_epoch = position.epoch
        began = position.steps_done
        self._job.check_carried("before the steps")
        while True:
            if position.steps_done > began:
                self._job.check_carried("after a step")
            coordinator.between_steps()
            if self._instrument.between_steps(self, self._job.parts):
                coordinator.stop()
            if self._job.is_ahead:
                return
            if loader.epoch == epoch and not position.is_over:
                yield from training.run(loader)
            elif coordinator.all_are_at_the_end():
                self._job.end_steps()
                return

    def _warn_once(self, loader: Batches) -> None:
        """On one rank, before the first step here: tell what will go wrong only at the end of the epoch."""
        if not self._warned and self.rank == 0 and (words := single_samples(self._job.parts.models, loader)):
            sys.stderr.write(f"brim: {words}\n")
        self._warned = True

    def backward(self, loss: Tensor) -> None:
        """Backward of this micro-batch; ``loss`` is the mean over its samples."""
        if self._training is None:
            raise UserError("run.backward outside of run.steps, or twice in one iteration: call it once, with the sum")
        self._training.backward(loss)

    def clip(self, max_norm: float | None = None, *, max_value: float | None = None) -> None:
        """Clip the summed gradients before every update from now on; without arguments, stop clipping.

        Args:
            max_norm: Scale all gradients down to this norm over all parameters, as ``clip_grad_norm_`` does.
            max_value: Clamp every element to plus and minus this, as ``clip_grad_value_`` does.

        Raises:
            ConfigError: one is not more than 0.
        """
        if max_norm is not None:
            max_norm = positive(max_norm, "run.clip: max_norm", other=", or None not to clip")
        if max_value is not None:
            max_value = positive(max_value, "run.clip: max_value", other=", or None not to clip")
        self._job.update.max_norm, self._job.update.max_value = max_norm, max_value

    def schedule(self, factor: Schedule) -> None:
        """Multiply the learning rates, where groups have one, by ``factor(samples consumed)`` in every step.

        Raises:
            ConfigError: it is no function.
        """
        function(factor, "run.schedule: factor", "a function from the samples consumed to a factor")
        self._job.update.schedule = self._instrument.schedule(factor)

    def step(self) -> bool:
        """After the last micro-batch of a step, update the parameters and commit the step.

        Returns:
            True if this rank has committed a step. A rank whose step was undone gets False, and may then receive a
            later state from another rank, so it never gets True for that step. Use `begins_step`, not this value, to
            run code once per step.
        """
        if self._training is None:
            raise UserError("run.step without run.backward before it")
        return self._training.end_micro_batch()

    def evaluate(self, function: Callable[[], T]) -> T:
        """Call an evaluation that uses `gather`, `broadcast` or `reduce`, and return its result.

        If a rank dies meanwhile, the others form a new group and call the function again, with the `rank` and
        `world_size` of the ranks that take part; the function should have no side effects. Its random numbers depend on
        the seed and the step alone, and are the same on every rank. They do not change those of training.

        Raises:
            UserError: the call is behind a `step` that was committed, in a gang: a rank that joins meanwhile would miss
                what the script does after it.
            BrokenGroupError: the group broke `EVALUATION_ATTEMPTS` times in a row.
        """
        if self._ranks.rendezvous is not None and self._training is not None and self._training.is_committed:
            raise UserError(
                "run.evaluate in the body of run.steps after run.step: a rank that joins meanwhile would miss what "
                "follows; call it behind `if run.begins_step:`, before run.backward, or after the loop over run.steps"
            )
        self._position.evaluations += 1
        self._position.evaluating = True
        try:
            with random_numbers_kept(self.device):
                attempts = 0
                while True:
                    attempts += 1
                    try:
                        self._coordinator.form()
                        self._ranks.evaluation.restrict()
                        seed_everything(self.seed, "evaluate", self.steps_done)
                        return function()
                    except BrokenGroupError as error:
                        if attempts == EVALUATION_ATTEMPTS:
                            words = f"an evaluation broke its group {attempts} times: {error}"
                            raise BrokenGroupError(words) from error
                        self._ranks.evaluation.everybody()
                        self._coordinator.drop_step(error)
        finally:
            self._position.evaluating = False

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in rank order: any objects that can be pickled, including tensors.

        Every rank must call it. Use it for values of an evaluation, not for gradients.

        Raises:
            BrokenGroupError: a rank has died; within `evaluate` that function is called again.
            UserError: a rank did not call it within ``timeout_s``, or has no micro-batch in this step.
        """
        self._in_group()
        training = self._training
        if training is not None and training.micro is not None and training.plan is not None:
            idle = training.plan.idle(self.world_size)
            if idle:
                raise UserError(
                    f"run.gather, run.broadcast or run.reduce inside run.steps: rank {idle[0]} has no sample in this "
                    "step, so it does not make this call; call it between two epochs, or use run.loader(..., "
                    "last='drop')"
                )
        with self._ranks.in_collective("run.gather, run.broadcast or run.reduce"):
            self._ranks.evaluation.restrict()
            return self._ranks.evaluation.gather(value)

    def _in_group(self) -> None:
        if self._training is None:
            raise UserError("run.gather, run.broadcast or run.reduce before run.prepare(model, optimizer)")
        self._coordinator.form()

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
        """Report values such as the loss; tensors are read only when the values are sent.

        The newest ``loss`` is what brim is told once a second, and what it believes the end of the job from; without
        one, it is told the mean loss of the last step.

        Raises:
            UserError: the loss is neither a number nor a tensor with one element.
        """
        if "loss" in values:
            self._job.told = told_loss(values["loss"])
        self.values.update(values)
        self._coordinator.report_progress()

    @property
    def loss(self) -> float | None:
        """Mean loss over the global batch of the last committed step; None before the first one."""
        return self._job.mean_loss()

    @property
    def noise(self) -> Noise | None:
        """The present estimate of the gradient noise."""
        return self._job.noise

    def digest(self) -> str:
        """Return the SHA-256 over parameters, buffers and optimizer state."""
        return self._job.parts.digest()

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each tensor that `digest` covers, by name."""
        return self._job.parts.hashes()

    def settings(self) -> dict[str, Any]:
        """Return the settings on which the bits of this run depend; see `brim.train.reproducibility`."""
        dtypes = {p.dtype for model in self._job.parts.models for p in model.parameters()}
        batch = self._job.loader.global_batch if self._job.loader is not None else None
        return reproducibility.settings(
            logical_workers=self._workers, seed=self.seed, device=self.device, dtypes=dtypes, ranks=self.world_size,
            rules={"global_batch": batch, **self._job.update.clipping()},
        )  # fmt: skip

    def finish(self) -> None:
        """Save the last state, once all ranks have committed the last step; a rank that has not may need this state."""
        self._coordinator.finish()

    def close(self) -> None:
        """Leave the group, close the loaders of the run, and remove the hooks from the parameters; called at exit."""
        atexit.unregister(self.close)
        if self._position.finished and self._commands.leave_requested:
            self._ranks.send(Leaving(self._commands.applied, self._position.step))
        if not self._position.finished:
            self._coordinator.report_finished()
        self._ranks.abort()
        if self._training is not None:
            self._training.buckets.use(LocalReducer())
            self._training.buckets.close()
        self._job.update.close()
        self._restore_excepthook()
        self._ranks.close()
        for loader in [*self._loaders]:
            loader.close()
