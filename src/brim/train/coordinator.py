"""What a run does between two steps: act on commands, form groups, save, leave.

All ranks act on a command after the same step, the first one in which every rank has received it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import takewhile
from typing import Any, NoReturn

from brim.errors import ConfigError, UserError
from brim.gang.messages import (
    PREEMPTED,
    Error,
    Finished,
    Leaving,
    Prepare,
    ResizeGroup,
    StepMeasurements,
    Stop,
    TuneSettings,
)
from brim.train.data.assignment import assign
from brim.train.data.batches import Batches
from brim.train.gradients.buckets import LocalReducer, make_reducer
from brim.train.job_state import JobState
from brim.train.membership.commands import Commands
from brim.train.membership.process_group import BrokenGroupError
from brim.train.membership.ranks import Ranks
from brim.train.membership.rendezvous import NO_STATE, JobEndedError, NotAMemberError, share_state
from brim.train.saves import Saves
from brim.train.step import TrainingStep
from brim.units import counted


class Coordinator:
    """Keeps one rank in step with the supervisor and the other ranks.

    The class is long because whatever may happen between two steps meets here: commands, lost ranks, saves, the end.

    Args:
        job: The state of the job.
        ranks: The group of this rank.
        commands: Which commands were received and applied.
        saves: Saves the state.
        logical_workers: V in exact mode.
        close: Called before this rank exits.

    Attributes:
        training: The computation of steps, once models are prepared.
        micro_batch: In fast mode, the largest number of samples in a micro-batch.
    """

    def __init__(
        self, job: JobState, ranks: Ranks, commands: Commands, saves: Saves, *, logical_workers: int | None,
        close: Callable[[], None],
    ) -> None:  # fmt: skip
        self._job, self._ranks, self._commands, self._saves = job, ranks, commands, saves
        self._workers, self._close = logical_workers, close
        self.training: TrainingStep | None = None
        self.micro_batch: int | None = None
        self._first_step: int | None = None  # committed steps when this rank was in a group for the first time

    # -- between two steps

    def between_steps(self) -> None:
        """Act on the commands that all ranks have received."""
        self._share_step()
        if self.training is not None:
            self.training.between_steps()
        self._ranks.evaluation.everybody()
        self.form()
        self._act_on_commands()
        if self._commands.leave_agreed:
            self._leave(PREEMPTED, self._commands.applied)
        self._saves.between_steps()

    def _share_step(self) -> None:
        """Send the state to the ranks that had no sample in the newest step, or receive it.

        The script's code for that step has not run on them: what it has changed comes with the state. If a rank dies,
        the next group shares the state of the rank with the most steps, as ever.
        """
        group, before = self._ranks.group, self._job.step
        if self.training is None or not self.training.lacking or group is None:
            return
        try:
            with self._ranks.in_collective("the state of a step without samples for every rank"):
                share_state(group, self._job)
        except BrokenGroupError as error:
            self.drop_step(error)
            return
        if self._job.step != before:
            self.assign()

    def _act_on_commands(self) -> None:
        client, member, commands = self._ranks.client, self._ranks.rendezvous, self._commands
        if client is None or member is None:
            return
        agreed = client.commands(commands.applied, commands.agreed)
        for tune in takewhile(lambda command: isinstance(command, TuneSettings), agreed):
            commands.applied = tune.command  # part of the step: others that have committed it may have taken it up
            self._act(tune)
        if client.is_over(member.generation):
            self.drop_step(BrokenGroupError(f"generation {member.generation} is over"))
            self.form()
            if self.training is not None:
                self.training.broken = False  # no step was under way: the next one is not left after a micro-batch
        while found := client.commands(commands.applied, commands.agreed):
            commands.applied = found[0].command
            self._act(found[0])
        commands.applied = max(commands.applied, member.command)
        client.forget(commands.applied)
        self.report_progress()

    def _act(self, command: Any) -> None:
        member = self._ranks.rendezvous
        assert member is not None
        match command:
            case ResizeGroup() if command.generation > member.generation:
                self._enter(command)
            case Prepare():
                self._leave(PREEMPTED, command.command)
            case Stop():
                self._leave(0, command.command)
            case TuneSettings():
                self._tune(command)
                self._commands.tuned = command.command

    def _tune(self, command: TuneSettings) -> None:
        loader: Any = self._job.loader
        wanted = {
            "set_global_batch": command.global_batch, "set_workers": command.loader_workers,
            "set_prefetch": command.prefetch, "set_workers_max": command.loader_workers_max,
        }  # fmt: skip
        for change, value in wanted.items():
            if value is not None and hasattr(loader, change):
                try:
                    getattr(loader, change)(value)
                    if change != "set_global_batch":  # that one is part of the loader's state
                        self._job.tuned_loader[change] = value
                        if self.training is not None:
                            self.training.timer.forget_waits()
                except UserError as error:  # equal on all ranks, which go on with what they have
                    self._ranks.send(Error(str(error)))
        self._job.changed_without_step()
        self.assign()

    def report_progress(self) -> None:
        """Report progress and step times to the supervisor, if they are due; nothing before the first step here."""
        client, job = self._ranks.client, self._job
        if client is None:
            return
        if self._first_step is None:
            self._first_step = job.position.steps_done
        if job.position.steps_done > self._first_step:
            client.progress(job.position.steps_done, job.position.samples, job.told_loss, job.samples_total)
        if self.training is not None and (found := self.training.timer.due()) is not None:
            noise = job.noise.scale_samples if job.noise is not None else None
            client.send(StepMeasurements(
                job.position.steps_done, gradient_noise=noise, loader_workers=getattr(job.loader, "workers", None),
                loader_workers_max=getattr(job.loader, "workers_max", None), **found,
            ))  # fmt: skip

    # -- the group

    def form(self) -> None:
        """Join a group if this rank is in none, and take its common state."""
        member = self._ranks.rendezvous
        if member is None:
            if self._job.step == NO_STATE:
                self._begin_without_supervisor()
            return
        if member.formed:
            return
        try:
            if member.generation == 0:
                member.join(self._job, self.sizes())
            else:
                member.again(self._job)
        except NotAMemberError:
            self._leave_unsaved()
        except JobEndedError as ended:
            self._end_alone(ended)
        self._formed()

    def _enter(self, command: ResizeGroup) -> None:
        assert self._ranks.rendezvous is not None
        if self.training is not None:
            self.training.buckets.use(LocalReducer())
        try:
            self._ranks.rendezvous.enter(command, self._job)
        except NotAMemberError:
            self._leave_unsaved()
        except JobEndedError as ended:
            self._end_alone(ended)
        self._formed()

    def _begin_without_supervisor(self) -> None:
        group = self._ranks.group
        if group is not None and group.size > 1:
            self._check_size(group.size)
            share_state(group, self._job)
        else:
            self._job.begin()
        self._formed()

    def _formed(self) -> None:
        ranks = self._ranks
        self._check_size(ranks.size)
        if ranks.rendezvous is not None:
            self._commands.group_formed(ranks.rendezvous.command)
        if self.training is not None:
            self.training.buckets.use(make_reducer(ranks.group, exact=self._workers is not None))
            self.training.micro, self.training.lacking = None, False
        ranks.evaluation.use(ranks.group, self._job.evaluation_place())
        self._saves.group_formed()
        self.assign()

    def drop_step(self, error: BrokenGroupError) -> None:
        """A collective failed: undo the step, and report the group as broken.

        Raises:
            BrokenGroupError: no supervisor can form another group.
        """
        if self._ranks.rendezvous is None:
            raise error
        self._ranks.abort()
        if self.training is not None:
            self.training.drop()
        self._ranks.rendezvous.broken(str(error), self._job.step)

    def sizes(self) -> tuple[int, ...]:
        """Return the possible numbers of ranks of this run; empty: any."""
        if self._workers is None:
            return ()
        return tuple(1 << k for k in range(self._workers.bit_length()))

    def _check_size(self, size: int) -> None:
        if self._workers is not None and self._workers % size:
            sizes = ", ".join(str(n) for n in self.sizes())
            raise ConfigError(
                f"{counted(size, 'rank')} with logical_workers={self._workers}: expected one of {sizes} ranks"
            )

    # -- the loader

    def use_loader(self, loader: Batches) -> None:
        """Train on this loader.

        Raises:
            UserError: the run trains on another one, or it is no loader of brim.
        """
        if self._job.loader is loader:
            return
        if not isinstance(loader, Batches):
            raise UserError(
                f"run.steps got a {type(loader).__name__}, expected the loader that run.loader(dataset, global_batch) "
                "makes: it shares the samples of a step out over the ranks, whose number may change"
            )
        if self._job.loader is not None:
            raise UserError("run.steps got a second loader: use the first one made; others are for evaluation")
        self._job.use_loader(loader)
        if self._job.step != NO_STATE:
            self.assign()

    def assign(self) -> None:
        """Announce to the loader which shares of the next steps this rank computes."""
        if self._job.loader is not None:
            assign(
                self._job.loader, self._ranks.rank, self._ranks.size, logical_workers=self._workers,
                micro_batch=self.micro_batch,
            )  # fmt: skip

    # -- the end

    def all_are_at_the_end(self) -> bool:
        """Wait until all ranks have committed the last step; False if a rank has died and others may be elsewhere.

        A rank that lacks the step takes the state here and then runs the code at the end of the epoch itself. Where
        another rank has run that code already, all had come here in the group before.
        """
        group = self._ranks.group
        if group is None or self._job.position.closed_elsewhere:
            return True
        try:
            with self._ranks.in_collective("the end of the epoch"):
                group.share([0])  # as `save_together`, where ranks may be that have run the code
        except BrokenGroupError as error:
            self.drop_step(error)
            return False
        self._ranks.evaluation.begin_step()  # all ranks run the code at the end of the epoch from here
        return True

    def finish(self) -> None:
        """Save the last state, once all ranks have committed the last step; a rank that has not may need this state."""
        self._job.leave_epoch()
        if self._job.position.limits is not None and sys.exc_info()[0] is None:  # else an exception has ended the loop
            self._job.end_early()
        self._ranks.evaluation.everybody()
        while True:
            try:
                self._save_together()
                break
            except BrokenGroupError as error:
                self.drop_step(error)
                self.form()
        self._job.position.finished = True
        self.report_finished()  # now, since a script may end by os._exit
        if self._commands.leave_requested:
            raise SystemExit(PREEMPTED)

    def stop(self) -> NoReturn:
        """Save and end between two steps. The script has left no loop: what is behind the steps runs in the next start.

        Raises:
            SystemExit: always.
        """
        self._job.position.limits = self._job.position.script_epoch = None
        self.finish()
        self._close()
        raise SystemExit(0)

    def report_finished(self) -> None:
        """Tell the supervisor that the training of this rank has ended."""
        if self._job.step != NO_STATE:
            self._ranks.send(Finished(self._job.step, self._job.position.finished))

    def request_leave(self) -> None:
        """Handle SIGTERM. Once all steps are done and saved, there is no step to wait for."""
        self._commands.leave_requested = True
        if self._job.position.finished:
            raise SystemExit(PREEMPTED)

    def _save_together(self, command: int | None = None) -> None:
        self._saves.save_together(self.training.consistency if self.training is not None else None, command)

    def _leave(self, code: int, command: int) -> None:
        """Save the state, wait until that is done, and exit."""
        if not self._saves.exist and self._ranks.rank == 0 and code == PREEMPTED:
            why = "start(checkpoint=...) names no folder to save to"
            sys.stderr.write(f"brim: lost {counted(self._job.position.steps_done, 'step')}: {why}\n")
        try:
            self._save_together(command)
        except BrokenGroupError as error:
            if self._ranks.rendezvous is None:
                raise SystemExit(code) from None
            self.drop_step(error)
            self.form()
            return
        self._exit(code, Leaving(command, self._job.step))

    def _leave_unsaved(self) -> None:
        """The new group is without this rank."""
        command = self._ranks.rendezvous.command if self._ranks.rendezvous is not None else 0
        self._exit(0, Leaving(command, self._job.position.steps_done))

    def _end_alone(self, ended: JobEndedError) -> None:
        """The job ends while this rank is in no group: each rank with state saves it, and the last may publish."""
        command = ended.command
        self._saves.save_alone(command.command)
        code = 0 if isinstance(command, Stop) else PREEMPTED
        self._exit(code, Leaving(command.command, self._job.position.steps_done))

    def _exit(self, code: int, message: Leaving) -> None:
        self._job.position.limits = None  # the script has not left its loop, even if it catches the exit
        self._ranks.send(message)
        self._close()
        raise SystemExit(code)
