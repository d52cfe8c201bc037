"""An order for AITurbo's comparison that trusts predictions of every job, as schedulers by prediction do.

Shapes: J jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.policies.allocations import as_asked, merged, present, remaining_s
from brim.sim.reproduce.aiturbo import MEDIAN_S, RUN_S_MAX


@dataclass(frozen=True, slots=True)
class ShortestByCurve:
    """The shortest remaining time first, which the curve through the losses says of each job, predictable or not.

    No classifier is asked, and no user's plan. A job without a curve, or whose curve says that it runs on for longer
    than any job does, has a fixed time left.

    Attributes:
        prior_s: That time.

    Source:
        The curve, its fit to all jobs, and a fixed rest where the fit fails or exceeds a bound: Peng et al., Optimus,
        EuroSys 2018, and its code (github.com/pengyanghua/optimus: 20 of at most 100 epochs). Differs: the time is the
        median of a data set (``MEDIAN_S``), because jobs here have no epochs; Optimus chooses sizes, not an order.
    """

    prior_s: float = MEDIAN_S

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        has = merged(present(snapshot), as_asked(snapshot))
        left_s = remaining_s(snapshot, beliefs, has, beliefs.progress.of_jobs(snapshot).by_curve)
        return np.lexsort((~snapshot.jobs.holds, np.where(left_s <= RUN_S_MAX, left_s, self.prior_s)))
