"""Place parts that let jobs share GPUs on trial: what they remember, and when sharing is undone.

A set of residents is on trial from the moment at which it meets until each of them has reported its slowdown. Then it
is judged once; one that nobody can judge is refused as soon as that is known. If it is refused, the job that came last
leaves and returns to the queue, the others have what they had, and sets with the same figures are not tried again for
some time. A job that was undone twice is not tried any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.events import Kind
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.policies.place.inputs import as_before, check_inputs, without_cpu_ranks
from brim.policies.place.residents import Gpu, Occupancy, observed, residents, signature
from brim.policies.sockets import Sizes
from brim.units import MS_PER_H

BACK_OFF_MS: Final = 24 * MS_PER_H
"""Time for which a set that was undone is not tried again. Ours: EaCO names none."""
UNDONE_MAX: Final = 2
"""Trials of a job that were undone, after which it has GPUs of its own. Ours."""
_SINCE, _STATE, _SET, _UNDONE, _BARRED, _UNTIL = range(6)
_TOLD, _JUDGED = 1, 2
_OFF: Final = (int(Phase.PENDING), int(Phase.STOPPING))


@dataclass(frozen=True, slots=True)
class OnTrial(ABC):
    """Strict first come, first served, with sharing. Subclasses say who may join whom, and what is refused.

    Per job it remembers: when its present set met (ms + 1), whether the set has reported or was judged, the signature
    of the set; how often it was undone, with which set, and until when that is barred.
    """

    acts_when_idle: ClassVar[bool] = True
    shares_gpus: ClassVar[bool] = True
    asks_run_times: ClassVar[bool] = True
    wakes_on: ClassVar[frozenset[Kind]] = frozenset({Kind.REPORTED})
    memory_columns: ClassVar[int] = 6

    @abstractmethod
    def serve(self, occupancy: Occupancy, row: int, barred: frozenset[int]) -> bool:
        """Give a waiting job GPUs, alone or with others; return whether it got any.

        Args:
            occupancy: The cluster; it changes.
            row: The job.
            barred: Signatures of sets that are not tried again; None of all sets for this job.
        """

    @abstractmethod
    def refuses(
        self, occupancy: Occupancy, gpus: tuple[Gpu, ...], rows: Sequence[int], ratios: Sequence[float]
    ) -> bool:
        """Whether a set is refused, given the slowdown that each of its jobs has reported; the last came last."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """See ``Place``."""
        given, snapshot = snapshot, without_cpu_ranks(snapshot)
        check_inputs(snapshot, order, sizes.gpus)
        occupancy = Occupancy(snapshot, beliefs, sizes, self._undone(snapshot, beliefs, sizes))
        memo, waits = snapshot.jobs.memo, snapshot.jobs.waits & (sizes.gpus > 0)
        barred = frozenset(memo[memo[:, _UNTIL] > snapshot.now_ms, _BARRED].tolist())
        queue = order[waits[order]]
        for place, row in enumerate(queue.tolist()):
            alone = memo[row, _UNDONE] >= UNDONE_MAX
            if occupancy.place_alone(row) if alone else self.serve(occupancy, row, barred):
                continue
            if not alone:
                occupancy.say_unknown(row)
            behind = queue[place + 1 :]
            occupancy.why[behind], occupancy.blocker[behind] = Reason.BEHIND, row
            break
        return as_before(occupancy.grants(), given)

    def _undone(self, snapshot: Snapshot, beliefs: Beliefs, sizes: Sizes) -> dict[int, Reason]:
        """The jobs that leave, because a set was refused in its only judgement, or cannot be judged."""
        memo = snapshot.jobs.memo
        told = set(np.flatnonzero(memo[:, _STATE] == _TOLD).tolist())
        untold = set(np.flatnonzero((memo[:, _SINCE] > 0) & (memo[:, _STATE] == 0)).tolist())
        if not told and not (untold and beliefs.judges_steps):
            return {}
        occupancy, leaving = Occupancy(snapshot, beliefs, sizes, {}), {}
        for gpus, rows in occupancy.sets.items():
            if len(rows) == 1:
                continue
            last = max(rows, key=lambda row: (int(snapshot.jobs.running_since_ms[row]), row))
            ratios = observed(snapshot, rows) if told.intersection(rows) else ()
            if untold.intersection(rows) and not occupancy.unjudged.isdisjoint(rows):
                leaving[last] = Reason.NOTHING_KNOWN
            elif ratios:
                turn = [*(row for row in rows if row != last), last]
                ratio_of = dict(zip(rows, ratios, strict=True))
                if self.refuses(occupancy, gpus, turn, [ratio_of[row] for row in turn]):
                    leaving[last] = Reason.UNDONE
        return leaving

    def settled(self, snapshot: Snapshot, beliefs: Beliefs) -> bool:
        """See ``sockets``: no set is on trial."""
        jobs, memo = snapshot.jobs, snapshot.jobs.memo
        for rows in residents(snapshot).values():
            since = int(jobs.since_ms[rows].max()) + 1
            if len(rows) > 1 and not ((memo[rows, _SINCE] == since) & (memo[rows, _STATE] == _JUDGED)).all():
                return False
        return True

    def remember(self, snapshot: Snapshot) -> IntArray:
        """See ``sockets``: follow the trials."""
        jobs, before = snapshot.jobs, snapshot.jobs.memo
        after = np.zeros_like(before)
        after[:, _UNDONE:] = before[:, _UNDONE:]
        for rows in residents(snapshot).values():
            if len(rows) > 1:
                since = int(jobs.since_ms[rows].max()) + 1
                has_told = bool(observed(snapshot, rows))
                for row in rows:
                    was_told = before[row, _SINCE] == since and before[row, _STATE] >= _TOLD
                    state = (_JUDGED if was_told else _TOLD) if has_told else 0
                    after[row, :_UNDONE] = since, state, signature(snapshot, rows)
        off = (before[:, _SINCE] > 0) & np.isin(jobs.phase, _OFF)
        after[off, _UNDONE] += 1
        after[off, _BARRED], after[off, _UNTIL] = before[off, _SET], snapshot.now_ms + BACK_OFF_MS
        return after
