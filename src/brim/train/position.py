"""Where a job is: committed steps, samples and epochs, and the place of the user's script among them."""

from __future__ import annotations

from brim.train.membership.rendezvous import NO_STATE


class Position:
    """The numbers that a committed step moves, which are equal on every rank, and where this rank's script is.

    Attributes:
        step: Number of committed steps, or `NO_STATE`.
        samples: Number of samples in committed steps.
        epoch: The present epoch; the next one begins when the code behind the loop over ``run.steps`` has run.
        closed: Whether that code has run since the last step.
        closed_elsewhere: Whether it has on a rank with the most steps, as known when the group was formed.
        last_step: Step after which the job ends, if the script says so.
        limits: Epochs and steps that the script has asked ``run.epochs`` for, while it is in that loop; empty in a loop
            without ``run.epochs``.
        ended_early: The `limits` of the loop that the script has left by ``break``, or that is without ``run.epochs``,
            before ``run.finish``. This is part of the state: until another step is committed, a loop with the same
            limits is over.
        end_is_unclear: Whether the job was started from a checkpoint of a loop without ``run.epochs`` that ended
            between two epochs: whether it has ended early, or was shorter then, cannot be known.
        script_epoch: The epoch whose steps, or the code behind them, the script is in.
        calls: How often the script has begun an epoch.
        in_body: Whether the script is in the body of its loop over ``run.steps``.
        evaluating: Whether the script is in ``run.evaluate``: a broken group then leads to another attempt.
        evaluations: How often the script has called ``run.evaluate`` since the step, or the code after the loop over
            ``run.steps``, has begun.
        finished: Whether ``run.finish`` has done its work.
    """

    def __init__(self) -> None:
        self.step = NO_STATE
        self.samples = self.epoch = self.calls = self.evaluations = 0
        self.closed = True
        self.closed_elsewhere = self.in_body = self.evaluating = self.finished = self.end_is_unclear = False
        self.last_step: int | None = None
        self.limits: list[int | None] | None = None
        self.ended_early: list[int | None] | None = None
        self.script_epoch: int | None = None

    @property
    def steps_done(self) -> int:
        """Number of committed steps."""
        return max(self.step, 0)

    @property
    def is_over(self) -> bool:
        """Whether the last step of the job is committed, where the script has named it."""
        return self.last_step is not None and self.steps_done >= self.last_step

    @property
    def is_ended_early(self) -> bool:
        """Whether the script, on some rank or in an earlier start, has ended the loop that it is in here."""
        return self.limits is not None and self.limits == self.ended_early

    @property
    def evaluates_at_the_end(self) -> bool:
        """Whether the script evaluates behind the steps of an epoch, and not in the body of the loop or before it."""
        return self.evaluating and not self.in_body and self.script_epoch is not None

    def begin_epoch(self) -> int:
        """Record that the script has begun to iterate over the steps of an epoch; return how often it had before."""
        before, self.calls = self.calls, self.calls + 1
        return before

    def commit(self, samples: int) -> None:
        """Move past a step of so many samples."""
        self.step += 1
        self.samples += samples
        self.closed = self.closed_elsewhere = False
        self.ended_early = None
