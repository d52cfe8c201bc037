"""Tests of my_policy.py; run them with pytest."""

from pathlib import Path

from brim.core.cluster import parse_cluster
from brim.policies.presets import find_policy
from brim.sim.twin import replay
from brim.testing import check_policy, job, small_trace

POLICY = find_policy(str(Path(__file__).with_name("my_policy.py")))
HOUR_S = 3600


def test_it_keeps_the_rules() -> None:
    """Random clusters and jobs; the message of a failure shows the smallest case that breaks a rule."""
    check_policy(POLICY, examples=25)


def test_the_job_with_the_least_estimated_gpu_time_starts_first() -> None:
    """One GPU, three jobs: while the first runs, the others wait, and the shorter estimate goes next."""
    trace = small_trace(
        job(at=0, run=10, limit=HOUR_S), job(at=1, run=20, limit=3 * HOUR_S), job(at=2, run=30, limit=2 * HOUR_S),
    )
    finish_ms = replay(trace, parse_cluster("1x1"), POLICY).finish_ms
    assert (finish_ms / 1000).tolist() == [10, 60, 40]
