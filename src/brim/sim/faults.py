"""Faults of jobs and nodes in the twin, and when they happen. Policies do not see these parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.units import MS_PER_H


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Nodes that take no new jobs for some time, for example for maintenance."""

    nodes: tuple[int, ...]
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults of jobs and nodes. Draws depend on (seed, job, attempt) or (seed, node, count) only, never on the policy.

    Attributes:
        job_mtbf_ms: Mean running time to a job's own failure, 0 for never.
        attempts_max: Attempts after which a failing job is given up. 3: Philly's retry count (ATC 2019).
        node_mtbf_ms: Mean time to a node's failure, 0 for never.
        repair_ms: How long a failed node is away. 4 h, ours.
        drains: Planned maintenance.
    """

    job_mtbf_ms: int = 0
    attempts_max: int = 3
    node_mtbf_ms: int = 0
    repair_ms: int = 4 * MS_PER_H
    drains: tuple[Drain, ...] = ()

    @property
    def any(self) -> bool:
        """Whether any fault can happen."""
        return bool(self.job_mtbf_ms or self.node_mtbf_ms or self.drains)


_JOB, _NODE = 0, 1


def job_failure_ms(faults: Faults, seed: int, job: int, attempt: int) -> int:
    """Running time after which this attempt fails by itself."""
    return _exponential_ms(faults.job_mtbf_ms, seed, _JOB, job, attempt)


def node_failure_ms(faults: Faults, seed: int, node: int, count: int) -> int:
    """Time from being up to the node's next failure."""
    return _exponential_ms(faults.node_mtbf_ms, seed, _NODE, node, count)


def _exponential_ms(mean_ms: int, seed: int, stream: int, item: int, count: int) -> int:
    """Counter-based draw, which does not depend on the number of earlier draws."""
    bits = np.random.Philox(key=seed, counter=[stream, item, count, 0])
    return max(1, round(np.random.Generator(bits).exponential(mean_ms)))
