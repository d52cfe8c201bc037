"""Costs of changes in the twin, and its faults, with their sources. Policies do not see these parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from brim.errors import ConfigError
from brim.units import MS_PER_H, MS_PER_MIN, MS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Time that changes cost a job while it holds GPUs, in ms.

    Attributes:
        start_ms: From the first start to the first useful step. 0: run times recorded in traces contain it.
        save_ms: From the preemption decision until the GPUs are free. 5 s: our grace for padding, and of the order of
            Acme's blocking checkpoints (NSDI 2024).
        restart_ms: From GPUs granted again to the next useful step: load and warm-up. 30 s, as in Pollux (OSDI 2021).
        checkpoint_ms: Time between checkpoints; a failure loses the work since the last. 30 min, ours.
    """

    start_ms: int = 0
    save_ms: int = 5 * MS_PER_S
    restart_ms: int = 30 * MS_PER_S
    checkpoint_ms: int = 30 * MS_PER_MIN

    def __post_init__(self) -> None:
        for name, least in (("start_ms", 0), ("save_ms", 0), ("restart_ms", 0), ("checkpoint_ms", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"overheads: found {name}={getattr(self, name)}, expected at least {least}")

    @property
    def change_ms(self) -> int:
        """Time in which a job that is started or moved, and then left alone, makes lasting progress."""
        return self.checkpoint_ms + self.start_ms + self.save_ms + self.restart_ms

    @classmethod
    def of_pollux(cls) -> Overheads:
        """Any change of placement, the first included, stops the job for 30 s and loses no step.

        Source: Qiao et al., Pollux, OSDI 2021, section 5.3 (measured: 15 to 120 s), and its published simulator.
        """
        return cls(start_ms=30 * MS_PER_S, save_ms=0, restart_ms=30 * MS_PER_S)

    def times(self, factor: float) -> Overheads:
        """Scale the costs of changes (not the checkpoint interval): the ``--overheads x2`` of the command line.

        Raises:
            ConfigError: the factor is negative or not finite.
        """
        if not (math.isfinite(factor) and factor >= 0):
            raise ConfigError(f"overheads factor {factor}: expected a number from 0 up")
        return Overheads(
            start_ms=round(self.start_ms * factor), save_ms=round(self.save_ms * factor),
            restart_ms=round(self.restart_ms * factor), checkpoint_ms=self.checkpoint_ms,
        )


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
