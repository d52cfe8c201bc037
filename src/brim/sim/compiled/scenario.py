"""What decides a replay in a compiled loop."""

from __future__ import annotations

from dataclasses import dataclass

from brim.beliefs.runtime import RunTimes
from brim.core.cluster import Cluster
from brim.core.trace import Trace
from brim.policies.sockets import Policy
from brim.sim.overheads import Overheads
from brim.sim.truths.truth import Truth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """A trace on a cluster under a policy, without faults.

    Attributes:
        trace: The jobs.
        cluster: The cluster.
        policy: The policy.
        truth: How the jobs really run.
        run_times: The run times that the policy receives.
        overheads: Costs of changes.
        gap_ms: Shortest time between two rounds.
    """

    trace: Trace
    cluster: Cluster
    policy: Policy
    truth: Truth
    run_times: RunTimes
    overheads: Overheads
    gap_ms: int
