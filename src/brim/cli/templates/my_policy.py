"""A scheduling policy in one file: the job with the least estimated GPU time starts first; nothing is preempted.

Check it:  brim policy check my_policy.py
Replay it: brim sim run TRACE --cluster 8x8xV100 --policy my_policy.py
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.snapshot import Snapshot
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.place.parts import Consolidate
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Policy


@dataclass(frozen=True)
class SmallestWork:
    """Estimated run time x GPUs, smallest first; jobs that have waited ``patience_h`` hours come before all others."""

    patience_h: float = 24.0
    asks_run_times: ClassVar[bool] = True  # reports then say which estimates it used

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> np.ndarray:
        jobs = snapshot.jobs  # columns, one row per job that is not over
        work_ms = beliefs.run_times.total_ms(snapshot) * jobs.gpus
        patient = snapshot.now_ms - jobs.since_ms < self.patience_h * 3_600_000
        return np.lexsort((work_ms, patient, ~jobs.holds))  # the last key counts first: running jobs stay


policy = Policy(
    name="my-policy", order=SmallestWork(), size=AsAsked(), place=Consolidate(misfit="skip"), feed=Even(),
    fill=NoFill(), source="my_policy.py",
)
