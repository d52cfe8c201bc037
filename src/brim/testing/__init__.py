"""For tests of brim and of policies written for it: readable builders and the conformance check.

Hypothesis strategies are in ``brim.testing.strategies``, which needs the ``hypothesis`` package.
"""

from brim.testing.builders import Job, job, small_trace, snapshot_of, state_with
from brim.testing.conformance import check_policy
from brim.testing.rules import RULES, PolicyViolation

__all__ = ["RULES", "Job", "PolicyViolation", "check_policy", "job", "small_trace", "snapshot_of", "state_with"]
