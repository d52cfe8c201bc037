"""How much slower steps of a training job are beside the jobs with which it shares devices, from times of real steps.

A step time is compared with that of the same job alone on as many devices at the same batch, else with that of an
earlier job of its model. Nothing is said while the company is new: the times that are reported are means of several
seconds, of which some were spent in the company before.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, NamedTuple

from brim.agent.protocol import AttemptProgress
from brim.live.holds import profile_of
from brim.live.ledger import Ledger
from brim.live.measurements import sound
from brim.live.records import AttemptRecord, JobRecord
from brim.units import MS_PER_S

SETTLED_MS: Final = 25 * MS_PER_S
"""Time in the same company after which a reported step time is of it alone. Ours: ranks report means of 10 s
(``train.step.MEASURED_EVERY_S``), agents look every second, and a neighbour that begins loads its files first."""
MODELS_MAX: Final = 1_000
"""Step times alone that are kept, the newest; ours: 100 kB."""


class _Steps(NamedTuple):
    """A configuration in which step times can be compared."""

    profile: int
    ranks: int
    batch: int


class _Company(NamedTuple):
    """The attempts with which one shares devices, and since when."""

    others: frozenset[tuple[int, int]]
    since_ms: int


class StepSlowdowns:
    """The step times of jobs alone, and who is beside whom. A restart of the controller forgets them.

    Args:
        ledger: The attempts.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._company: dict[int, _Company] = {}
        self._alone_s: OrderedDict[_Steps, float] = OrderedDict()

    def ratio(self, said: AttemptProgress, job: JobRecord, attempt: AttemptRecord, now_ms: int) -> float:
        """Slowdown that a job's measurement shows, at least 1; NaN while it is alone or nothing is known.

        Args:
            said: The measurement.
            job: The job.
            attempt: Its attempt.
            now_ms: Cluster time of it.
        """
        others = frozenset(
            (other, found.number) for device in attempt.devices for other in self._ledger.jobs_on(device) - {job.id}
            if (found := self._ledger.of(other)) is not None
        )
        company = self._company.get(job.id)
        if company is None or company.others != others:
            company = self._company[job.id] = _Company(others, now_ms)
        step_s, batch = sound(said.step_s), sound(said.global_batch)
        if not step_s or not batch or now_ms - company.since_ms < SETTLED_MS:
            return math.nan
        steps = _Steps(profile_of(job), said.ranks, int(batch))
        if not others:
            self._alone_s[steps] = step_s
            self._alone_s.move_to_end(steps)
            if len(self._alone_s) > MODELS_MAX:
                self._alone_s.popitem(last=False)
            return math.nan
        alone_s = self._alone_s.get(steps)
        return math.nan if alone_s is None else max(1.0, step_s / alone_s)

    def forget(self, job: int) -> None:
        """An attempt of a job has ended."""
        self._company.pop(job, None)
