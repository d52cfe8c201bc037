"""The result of one replay of a trace under one policy: the input of every report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from brim.core.arrays import FloatArray, IntArray, frozen, set_frozen_state
from brim.core.cluster import Cluster
from brim.core.power import PowerCurve
from brim.core.tables import EMPTY
from brim.core.trace import Trace
from brim.units import WHOLE_GPU

NOT_TOLD: Final[FloatArray] = frozen(np.empty(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Intervals in which a job held the same GPUs (R runs, in order of start).

    Attributes:
        job: Trace row.
        start_ms: When the job got the GPUs.
        end_ms: When the GPUs were free again.
        share_milli: Thousandths of each of its GPUs.
        first_gpu: Offset of the run's GPUs in ``gpu``, length R + 1.
        gpu: Global GPU indices (cluster.gpu_offset_N[node] + index on the node), of all runs in order.
        cores_milli: Milli-cores of its ranks, loader workers not counted; empty where these are not known. A job on CPU
            alone has runs without GPUs.
        gpus_busy: How many of its GPUs compute, mean over the run; empty where the truth does not tell it of every run,
            or where a compiled loop made the replay.
        cores_busy_milli: The same of its milli-cores.
    """

    job: IntArray
    start_ms: IntArray
    end_ms: IntArray
    share_milli: IntArray
    first_gpu: IntArray
    gpu: IntArray
    cores_milli: IntArray = field(default_factory=lambda: EMPTY)
    gpus_busy: FloatArray = field(default_factory=lambda: NOT_TOLD)
    cores_busy_milli: FloatArray = field(default_factory=lambda: NOT_TOLD)

    __setstate__ = set_frozen_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeps:
    """Intervals in which a node slept (S, in order of start). After each it takes time to wake.

    Attributes:
        node: Row of the cluster's nodes.
        start_ms: When it fell asleep.
        end_ms: When it began to wake, was lost, or when the replay ended.
        awake_ms: When jobs could begin on it; ``end_ms`` where it did not wake.
    """

    node: IntArray
    start_ms: IntArray
    end_ms: IntArray
    awake_ms: IntArray

    __setstate__ = set_frozen_state


NO_SLEEPS: Final = Sleeps(node=EMPTY, start_ms=EMPTY, end_ms=EMPTY, awake_ms=EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One trace, one cluster, one policy, one seed. Job columns have shape (J,); NONE (-1) means "did not happen".

    Attributes:
        trace: The replayed trace, after --from, --limit and --load.
        cluster: The cluster it was replayed on.
        policy: Preset name or file of the policy.
        oracle: Whether the policy received true run times.
        estimates: Which run times the policy received, as text ("none", "time limits", "true run times").
        seed: Seed of faults and draws.
        load: Arrival rate relative to the trace, 1.0 as recorded.
        run_ms: Run time at the size the user asked for; NONE where not known.
        ideal_run_ms: Least run time under any policy: ``run_ms`` for a job whose number of GPUs cannot change.
        ideal_gpu_ms: Least GPU time under any policy, shares counted as shares.
        gpus_min: Fewest GPUs the job could run on.
        gpus_max: Most GPUs the job could run on.
        first_start_ms: First time the job held GPUs.
        finish_ms: Time of completion.
        service_gpu_ms: GPU time held, stalls included, shares counted as shares.
        useful_gpu_ms: Part of the service whose work was kept.
        lost_gpu_ms: Part of the service whose work was rolled back.
        preemptions: Times the scheduler preempted the job.
        restarts: Times the job started again for any reason, resizes included.
        resizes: Times the scheduler moved it to other GPUs while it held some.
        failed: 1 where the job ended by exhausting its attempts.
        rejected: 1 where the policy rejected the job.
        rejected_ms: When the policy rejected the job.
        unmeasured: 1 for an elastic job of whose scaling a policy that chooses sizes knew nothing at its first start,
            that was not measured, and that kept the size its user asked for throughout.
        runs: Which job held which GPUs, and when.
        end_ms: Virtual time at which the replay ended.
        partial: Whether the replay was interrupted before all jobs ended.
        rounds: Number of scheduling rounds.
        round_s: Wall time of each round, seconds; empty where a compiled loop ran.
        wall_s: Wall time of the replay, seconds.
        assumptions: Assumptions behind the result, one sentence each.
        sleeps: Which nodes slept, and when.
        power: Power of a node for each GPU type of the cluster; empty where energy is not modelled.
    """

    trace: Trace
    cluster: Cluster
    policy: str
    oracle: bool
    estimates: str
    seed: int
    load: float
    run_ms: IntArray
    ideal_run_ms: IntArray
    ideal_gpu_ms: IntArray
    gpus_min: IntArray
    gpus_max: IntArray
    first_start_ms: IntArray
    finish_ms: IntArray
    service_gpu_ms: IntArray
    useful_gpu_ms: IntArray
    lost_gpu_ms: IntArray
    preemptions: IntArray
    restarts: IntArray
    resizes: IntArray
    failed: IntArray
    rejected: IntArray
    rejected_ms: IntArray
    unmeasured: IntArray
    runs: Runs
    end_ms: int
    partial: bool
    rounds: int
    round_s: FloatArray
    wall_s: float
    assumptions: tuple[str, ...]
    sleeps: Sleeps = NO_SLEEPS
    power: tuple[PowerCurve, ...] = ()

    __setstate__ = set_frozen_state

    @property
    def asked_gpu_ms(self) -> IntArray:
        """GPU time of each job at the size its user asked for, shares counted as shares; 0 where not known."""
        return self.trace.gpus * np.maximum(self.run_ms, 0) * self.trace.share_milli // WHOLE_GPU
