"""For tests of brim, and of policies and executors written for it: readable builders and the conformance checks.

Hypothesis strategies are in ``brim.testing.strategies``, which needs the ``hypothesis`` package.
"""

from brim.testing.builders import Job, job, small_trace, snapshot_of, state_with
from brim.testing.conformance import check_policy
from brim.testing.conformance_executor import ExecutorViolation, check_executor
from brim.testing.rules import RULES, PolicyViolation

__all__ = [
    "RULES", "ExecutorViolation", "Job", "PolicyViolation", "check_executor", "check_policy", "job", "small_trace",
    "snapshot_of", "state_with",
]
