"""One optimizer step: its micro-batches, the sums over ranks, the update. A step counts once it is committed.

If a collective fails in a step, its gradients are dropped and what the script may have changed is restored; the
remaining ranks repeat the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

import torch
from torch import Tensor

from brim.errors import UserError
from brim.gang.messages import MEASURED_EVERY_S
from brim.train.data.batches import Batches
from brim.train.environment import moved, seed_everything
from brim.train.gradients.buckets import Buckets, LocalReducer
from brim.train.gradients.consistency import ConsistencyCheck, Settings, require_equal_samples, text_checksum
from brim.train.gradients.noise import Rule
from brim.train.gradients.per_worker import PerWorker
from brim.train.gradients.step_summary import StepSummary, SummaryVector, same_changes
from brim.train.instrument import Instrument
from brim.train.job_state import CARRIED, JobState
from brim.train.membership.commands import Commands
from brim.train.membership.process_group import BrokenGroupError
from brim.train.membership.ranks import Ranks
from brim.train.models import named_parameters
from brim.train.state import Undo
from brim.units import counted

MEASURED_FIRST_S: Final = 1.0
"""Time that the first report of a configuration covers. Our choice: as often as progress is sent."""
SETTLING_STEPS: Final = 3
"""Steps of a new configuration that are not measured. Our choice: few, since a step may take a minute."""

FAST_RANKS_MAX: Final = 256
"""Ranks in fast mode, for which the summary has room."""


class MicroBatch:
    """A micro-batch of this rank.

    Attributes:
        first, last: Whether it is this rank's first or last in the step, of those without samples, too.
        begins, ends: Whether it is the first or last in the step that the script gets.
    """

    __slots__ = ("begins", "done", "ends", "first", "last", "noise", "share", "stepped")

    def __init__(self, first: bool, last: bool, share: float, noise: bool) -> None:
        self.first, self.last, self.share, self.noise = first, last, share, noise
        self.begins = self.ends = self.done = self.stepped = False


class StepPlan:
    """The plan of one step: the shares that this rank computes."""

    __slots__ = ("epoch", "mine", "noise", "samples", "shares", "state", "step", "total")

    def __init__(
        self, epoch: int, step: int, samples: list[int], total: int, mine: range, noise: bool, shares: int
    ) -> None:
        self.epoch, self.step, self.samples, self.total = epoch, step, samples, total
        self.mine, self.noise, self.shares = mine, noise, shares
        self.state: Any = 0  # checksum of this rank's parameters and buffers, and of `describe`

    def describe(self) -> str:
        """Describe the samples of the step, which are equal on every rank."""
        return f"{counted(self.total, 'sample')} in step {self.step} of epoch {self.epoch}"

    def empty_at_the_end(self) -> list[int]:
        """Return this rank's logical workers without samples behind its last one with samples."""
        return list(takewhile(lambda worker: not self.samples[worker], reversed(self.mine)))[::-1]

    def idle(self, ranks: int) -> list[int]:
        """Return the ranks that have no sample in this step, and so no iteration of ``run.steps``."""
        each = self.shares // ranks
        return [rank for rank in range(ranks) if not any(self.samples[rank * each : (rank + 1) * each])]


class StepTimer:
    """Measures step times between two reports, each of one configuration: ranks and global batch.

    A report never mixes configurations. The first of a configuration comes soon, so that a scheduler learns quickly
    what it has caused; the first steps, in which allocators and caches settle, are left out.
    """

    def __init__(self) -> None:
        self._configuration = (0, 0)
        self._settling = 0
        self._due_s = 0.0
        self._began_s = self._waited_s = 0.0
        self.sync_s = 0.0  # of the present step
        self._clear()

    def _clear(self) -> None:
        self._steps, self._step_s, self._sync_s = 0, 0.0, 0.0
        self.forget_waits()

    def forget_waits(self) -> None:
        """Leave waits for the loader out that were measured before now: its workers have changed."""
        self._waits, self._wait_s = 0, 0.0

    def begin(self) -> None:
        """Record that a step begins."""
        self._began_s, self.sync_s = time.perf_counter(), 0.0

    def end(self, ranks: int, samples: int, wait_s: float, *, is_whole: bool) -> None:
        """Record that the step was committed.

        Args:
            ranks: Ranks that have computed it.
            samples: Its samples.
            wait_s: The total of all waits for the loader so far.
            is_whole: Whether it had a whole global batch; others are not measured.
        """
        now = time.perf_counter()
        waited_s, self._waited_s = wait_s - self._waited_s, wait_s
        if not is_whole:
            return
        if (ranks, samples) != self._configuration:
            self._configuration, self._settling = (ranks, samples), SETTLING_STEPS
            self._clear()
        if self._settling:
            self._settling -= 1
            self._due_s = now + MEASURED_FIRST_S
            return
        self._step_s += now - self._began_s
        self._sync_s += self.sync_s
        self._wait_s += waited_s
        self._waits += 1
        self._steps += 1

    def due(self) -> dict[str, Any] | None:
        """Return the means since the last report, or None if no report is due."""
        now, n = time.perf_counter(), self._steps
        if not n or now < self._due_s:
            return None
        ranks, samples = self._configuration
        found = {
            "ranks": ranks, "global_batch": samples, "local_batch": samples // ranks, "step_s": self._step_s / n,
            "sync_s": self._sync_s / n, "loader_wait_s": self._wait_s / self._waits if self._waits else None,
        }  # fmt: skip
        self._due_s = now + MEASURED_EVERY_S
        self._clear()
        return found


class TrainingStep:
    """Computes the steps of a run on this rank, one at a time.

    Args:
        job: The state, with the models and optimizers that were prepared.
        ranks: The ranks that compute the step together.
        commands: Set at the end of each step to what all ranks know then.
        per_worker: Values of logical workers.
        device: The device of this rank.
        unused: How to treat a parameter without gradient: "error" or "zeros".
        rule: Factor on the learning rates for a changed batch.
        logical_workers: V in exact mode.
        noise_every: Steps between two estimates of the gradient noise; None: never.
        instrument: Observes the steps.

    Attributes:
        micro: The current micro-batch of the script; None between two steps.
        plan: The plan of the newest step.
        broken: A collective has failed since the step began: it will be repeated.
        lacking: Some ranks had no sample in the newest step, and so no iteration of the script's loop. They have not
            committed the step, and take the state of the others before the next one.
        on_broken: Called with the error when a collective of the step fails.
    """

    def __init__(
        self, job: JobState, ranks: Ranks, commands: Commands, per_worker: Sequence[PerWorker], device: torch.device, *,
        unused: str, rule: Rule | None, logical_workers: int | None, noise_every: int | None, instrument: Instrument,
    ) -> None:  # fmt: skip
        self._job, self._ranks, self._commands, self._device = job, ranks, commands, device
        self._per_worker, self._rule, self._noise_every = per_worker, rule, noise_every
        models, optimizers = job.parts.models, job.parts.optimizers
        self.timer = StepTimer()
        self.micro: MicroBatch | None = None
        self.plan: StepPlan | None = None
        self.broken = self.lacking = False
        self.on_broken: Callable[[BrokenGroupError], None] = _raise
        self._undo = Undo()
        self._undoable = False  # the step has begun and is not committed
        self._instrument = instrument
        self._undone: set[int] = set()  # steps that were undone for the instrument
        self._to_set_again: tuple[int, Settings, Settings] | None = None  # see `ConsistencyCheck.require_set_again`
        self._summary = SummaryVector(models, logical_workers or FAST_RANKS_MAX, per_worker)
        named = named_parameters(models)
        trained = {id(param): name for name, param in named}
        self.consistency = ConsistencyCheck(models, optimizers, trained)
        self.buckets = Buckets(named, self._summary.size, unused=unused)  # last, since it leaves hooks
        job.update.watch(trained)
        job.on_received = self._state_received

    def run(self, loader: Batches) -> Iterator[Any]:
        """Yield the micro-batches of the next step; the script calls `backward` and `end_micro_batch` after each."""
        job, plan = self._job, self._plan(loader)
        self.plan = plan
        self._ranks.evaluation.begin_step()
        job.position.evaluations = 0
        self._begin_undoable()
        if self._ranks.size > 1:
            plan.state = self.consistency.state_checksum(job.position.steps_done) ^ text_checksum(plan.describe())
        self.timer.begin()
        filled = [worker for worker in plan.mine if plan.samples[worker]]
        for worker in range(plan.mine.start, filled[-1] + 1 if filled else plan.mine.start):
            micro = self._begin_micro(plan, worker)
            if not plan.samples[worker]:
                self._add_empty(micro)
                continue
            self.micro = micro
            micro.begins, micro.ends = worker == filled[0], worker == filled[-1]
            batch = moved(loader.fetch(plan.epoch, plan.step, worker), self._device)
            seed_everything(job.seed, "step", job.position.steps_done, worker)
            self.buckets.unmark()
            job.position.in_body = True
            yield batch
            job.position.in_body = False
            if self.broken:
                self._restore()  # what the rest of the iteration has changed
                return
            if not micro.done or (micro.ends and not micro.stepped):
                call = "run.step" if micro.done else "run.backward"
                raise UserError(f"{call} was not called in this iteration of run.steps")
        if not filled:
            self._finish()
        job.update.check_schedules()
        self.micro = None

    def _begin_micro(self, plan: StepPlan, worker: int) -> MicroBatch:
        first, last = worker == plan.mine[0], worker == plan.mine[-1]
        if not first:
            self._summary.restore()
        for each in self._per_worker:
            each.begin_micro(worker)
        return MicroBatch(first, last, plan.samples[worker] / plan.total, plan.noise)

    def _plan(self, loader: Batches) -> StepPlan:
        self._instrument.step_begins(loader)
        epoch, step, shares = loader.epoch, loader.step, loader.logical_workers
        samples = [loader.samples(epoch, step, worker) for worker in range(shares)]
        each = shares // self._ranks.size
        mine = range(self._ranks.rank * each, (self._ranks.rank + 1) * each)
        even = len(set(samples)) == 1 and shares > 1
        every = self._noise_every
        noise = bool(every) and even and self._job.position.steps_done % (every or 1) == 0
        return StepPlan(epoch, step, samples, sum(samples), mine, noise, shares)

    def backward(self, loss: Tensor) -> None:
        """Backward of this micro-batch; ``loss`` is the mean over its samples."""
        if self.broken:
            return  # an evaluation in this iteration has found the group broken: the step is done again
        micro, scaler = self.micro, self._job.update.scaler
        if micro is None or micro.done:
            raise UserError("run.backward outside of run.steps, or twice in one iteration: call it once, with the sum")
        if not isinstance(loss, Tensor):
            kind = type(loss).__name__
            raise UserError(f"run.backward got a {kind}, expected the loss as a tensor: the mean over the batch")
        if loss.numel() != 1:
            raise UserError(f"the loss has shape {tuple(loss.shape)}, expected one number: the mean over the batch")
        micro.done = True
        norms: list[Tensor] = []
        self.buckets.begin_micro(first=micro.first, last=micro.last, norms=_squares(norms) if micro.noise else None)
        scaled = loss if micro.share == 1.0 else loss * micro.share
        scaled = scaler.scale(scaled) if scaler is not None else scaled
        scaled.backward()
        self.buckets.end_micro(lambda: self._leaf(micro, loss, norms))

    def end_micro_batch(self) -> bool:
        """End this micro-batch; after the last one, update the parameters and commit; return whether it did."""
        if self.broken:
            return False
        micro = self.micro
        if micro is None or not micro.done:
            raise UserError("run.step without run.backward before it")
        if not micro.ends or micro.stepped:
            return False
        micro.stepped = True
        return self._finish()

    @property
    def is_committed(self) -> bool:
        """Whether the script is in the body of its loop over ``run.steps`` behind a step that it has committed."""
        return self.micro is not None and self.micro.stepped

    def _leaf(self, micro: MicroBatch, loss: Tensor, norms: list[Tensor]) -> Tensor:
        assert self.plan is not None
        leaf_sq = None
        if norms:
            weight = (micro.share * self._job.update.scale()) ** 2 * self.plan.shares
            leaf_sq = torch.stack([norm.to(norms[0].device) for norm in norms]).sum() / weight
        numbers = (self._ranks.rank, self._numbers(self.plan)) if micro.last else None
        return self._summary.leaf(micro.share, loss, leaf_sq, numbers)

    def _numbers(self, plan: StepPlan) -> list[int | Tensor]:
        """Return the numbers that this rank sends to all others at the end of a step: see `StepSummary`."""
        client, leave = self._ranks.client, self._commands.leave_requested
        newest = client.newest_command if client is not None else 0
        if self._ranks.size == 1:
            return [newest, leave, 0, 0]
        return [newest, leave, self.consistency.settings_checksum(), plan.state]

    def _add_empty(self, micro: MicroBatch) -> None:
        """Add a leaf of zeros for a share without samples, in the last step of an epoch."""
        self.buckets.begin_micro(first=micro.first, last=micro.last)
        self.buckets.end_micro(lambda: self._leaf(micro, torch.zeros((), device=self._device), []), empty=True)

    def _finish(self) -> bool:
        """Sum over the ranks, update the parameters, commit."""
        plan, ranks, job = self.plan, self._ranks, self._job
        assert plan is not None
        self.consistency.check_trained()
        idle = plan.idle(ranks.size)
        before = self._to_set_again
        if before is not None and before[0] == job.position.steps_done and ranks.rank not in idle:
            self.consistency.require_set_again(*before[1:])
        for worker in plan.empty_at_the_end():
            self._add_empty(self._begin_micro(plan, worker))
        late = self._device.type == "cuda" and ranks.rendezvous is None and not idle
        if self._device.type == "cuda" and not late:  # else the rest of backward would count as exchange
            torch.cuda.current_stream(self._device).synchronize()
        began_s = time.perf_counter()
        try:
            with ranks.in_collective():
                total = self.buckets.finish()
                summary = self._summary.read(total, ranks.size, late=late)
            group = ranks.group
            if group is not None and group.aborted:
                raise BrokenGroupError(f"the group of generation {group.generation} has ended")
            if self._undoes():  # here, since all ranks have committed the step before
                raise BrokenGroupError("brim.train.check undoes this step")
            self._require_equal(summary, idle)
        except BrokenGroupError as error:
            undone = self.consistency.plain_settings()
            self.on_broken(error)
            if self._undoes():
                self._undone.add(job.position.step + 1)
            else:
                self._to_set_again = job.position.steps_done, undone, self.consistency.plain_settings()
            return False
        self.timer.sync_s += time.perf_counter() - began_s
        self._commands.agreed, self._commands.leave_agreed = min(summary.newest_commands, default=0), summary.leave
        self.lacking = bool(idle)
        if ranks.rank in idle:
            self._restore()
            self._undoable = False
            self._undo.forget()
            return False
        self._summary.apply(total)
        self._change_parameters(plan, summary.leaf_sq)
        self._commit(plan)
        job.loss = summary.loss
        return True

    def _require_equal(self, summary: StepSummary, idle: list[int]) -> None:
        """On every rank: compare settings and state where the checksums of the ranks differ."""
        compared = self._ranks.compared
        if not same_changes([word for rank, word in enumerate(summary.changes) if rank not in idle]):
            rows = compared(self._summary.changes)
            raise UserError(self._summary.unequal_changes([row for of_rank in rows for row in of_rank]))
        if len({word for rank, word in enumerate(summary.settings) if rank not in idle}) > 1:
            self.consistency.require_equal_settings(compared, idle)
        if len(set(summary.state)) > 1:
            self._summary.restore()  # else the changes of this step, which differ between ranks, would count
            assert self.plan is not None
            require_equal_samples(compared, self.plan.describe())
            self.consistency.require_equal_state(compared, self._job.position.steps_done)

    def _change_parameters(self, plan: StepPlan, leaf_sq: Tensor) -> None:
        job, update = self._job, self._job.update
        if job.noise is not None and self._rule is not None and plan.total:
            scale = job.loader.global_batch / job.noise.base if job.loader is not None else 1.0
            update.factor = self._rule(job.noise, scale) if scale != 1.0 else 1.0
        update.apply(self.buckets.params, job.position.samples, want_norm=plan.noise)
        if plan.noise and job.noise is not None and update.norm is not None:
            job.noise.add(plan.shares, plan.total, float(leaf_sq), float(update.norm) ** 2)

    def _commit(self, plan: StepPlan) -> None:
        job, loader = self._job, self._job.loader
        assert loader is not None
        self._instrument.step_computed(plan.total, loader)
        is_whole = plan.total == loader.global_batch
        loader.commit(plan.epoch, plan.step)
        job.position.commit(plan.total)
        self._undoable = False
        self._undo.forget()
        self.timer.end(max(self._ranks.size, 1), plan.total, loader.wait_s, is_whole=is_whole)

    # -- a step that is not committed

    def between_steps(self) -> None:
        """No step is under way."""
        self.broken = self.lacking = self._undoable = False

    def drop(self) -> None:
        """A collective failed: forget the gradients of the step, and restore what the script may have changed."""
        self.broken, self.micro = True, None
        self.buckets.use(LocalReducer())
        self._restore()

    def _state_received(self) -> None:
        if self._undoable:  # in an evaluation within a step: the rest of the iteration is undone to this state
            self._begin_undoable()

    def _begin_undoable(self) -> None:
        """Copy what the script may change in a step: buffers, settings of optimizers, and what `carry` was given."""
        self._summary.begin_step()
        self._job.update.begin_step()
        parts = self._job.parts.parts.items() if self._can_be_undone() else ()
        self._undo.begin_step(part for name, part in parts if name.startswith(CARRIED))
        self._undoable = True

    def _can_be_undone(self) -> bool:
        """Whether another rank, or the instrument, can make this rank undo the step that begins."""
        return (self._ranks.rendezvous is not None and self._ranks.size > 1) or self._undoes()

    def _undoes(self) -> bool:
        step = self._job.position.step + 1
        return step not in self._undone and self._instrument.undoes(step)

    def _restore(self) -> None:
        """Restore the copies of the start of the step, unless it is committed."""
        if self._undoable:
            self._summary.restore()
            self._job.update.restore()
            self._undo.restore()


def _raise(error: BrokenGroupError) -> None:
    raise error


def _squares(into: list[Tensor]) -> Any:
    def take(leaf: list[Tensor]) -> None:
        norms = torch._foreach_norm(leaf)
        into.append(torch.stack([norm.float() for norm in norms]).square().sum())

    return take
