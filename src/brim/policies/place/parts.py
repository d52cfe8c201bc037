"""The place parts: each has one rule for choosing GPUs, and a rule for a gang that does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import remaining_ms
from brim.core.arrays import FloatArray, IntArray
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.errors import ConfigError
from brim.policies.place.free_resources import CONSOLIDATE, FRAGMENTATION, SPREAD, WORST_FIT
from brim.policies.place.inputs import as_before, check_inputs, without_cpu_ranks
from brim.policies.place.walk import RESERVE, SKIP, STOP, Held, Jobs, walk
from brim.policies.sockets import Sizes

Misfit = Literal["stop", "skip", "reserve"]
RULES: Final = (CONSOLIDATE, SPREAD, FRAGMENTATION, WORST_FIT)
MISFIT: Final[dict[str, int]] = {"stop": STOP, "skip": SKIP, "reserve": RESERVE}
_HELD, _STOPPING = int(Phase.HELD), int(Phase.STOPPING)
_RUNS = int(Reason.RUNS)
_WHY_HELD, _WHY_STOPPING = int(Reason.HELD), int(Reason.STOPPING)
NO_CLASSES: Final = np.zeros((0, 3))


@dataclass(frozen=True, slots=True)
class _Walked:
    """A walk down the order with one rule for choosing GPUs.

    Attributes:
        misfit: What to do when a gang does not fit: stop, skip it, or reserve the earliest moment at which it fits
            (EASY backfill). As in Slurm, a gang that needs nodes which are down or draining gets no reservation until
            they are back.
    """

    rule: ClassVar[int]
    misfit: Misfit = "skip"

    def __post_init__(self) -> None:
        if self.misfit not in tuple(MISFIT):  # of a type that cannot be hashed, such as a list, too
            raise ConfigError(f"misfit {self.misfit!r}: expected one of {', '.join(MISFIT)}")

    @property
    def asks_run_times(self) -> bool:
        """Whether the part reads run times: a reservation needs the expected ends of jobs."""
        return self.misfit == "reserve"

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """See ``Place``."""
        return _place(snapshot, beliefs, order, sizes, self.rule, self.misfit)


class Consolidate(_Walked):
    """Fewest nodes, best fit: place a gang where the fewest GPUs are left over."""

    __slots__ = ()
    rule = CONSOLIDATE


class Spread(_Walked):
    """Most free first: place each GPU of a gang on the node with the most free GPUs."""

    __slots__ = ()
    rule = SPREAD


class Fragmentation(_Walked):
    """Fewest stranded GPUs: place a gang where it adds least to the free GPUs that typical jobs cannot use.

    The typical jobs are those of the snapshot, waiting or running.

    Source:
        Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent,
        USENIX ATC 2023. Differs: the task classes come from the present jobs, not from a target workload.
    """

    __slots__ = ()
    rule = FRAGMENTATION


class WorstFit(_Walked):
    """Most free first, whole nodes: a gang fills the node with the most free GPUs, then the next.

    The GPUs of every job that leaves are free before the first job that starts is placed.

    Source:
        The Tiresias policy of Pollux's simulator, OSDI 2021 artifact.
    """

    __slots__ = ()
    rule = WORST_FIT

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """See ``Place``."""
        decided = _place(snapshot, beliefs, order, sizes, self.rule, self.misfit)
        jobs, held, runs = snapshot.jobs, snapshot.grants, decided.why == _RUNS
        leaves = jobs.holds & ~runs
        if not leaves.any():
            return decided
        kept = ~leaves[held.job]
        left = replace(
            snapshot, jobs=replace(jobs, phase=np.where(leaves, _STOPPING, jobs.phase)),
            grants=replace(
                held, job=held.job[kept], node=held.node[kept], gpu=held.gpu[kept], share_milli=held.share_milli[kept],
                revocable=held.revocable[kept] if len(held.revocable) else held.revocable,
            ),
        )
        sizes = replace(sizes, gpus=np.where(runs, sizes.gpus, 0))
        placed = _place(left, beliefs, order, sizes, self.rule, self.misfit)
        if not np.array_equal(placed.why == _RUNS, runs):  # there are too few cores or too little memory
            return decided
        return replace(placed, why=decided.why, blocker=decided.blocker)


def task_classes(snapshot: Snapshot) -> FloatArray:
    """GPUs, share and frequency of each class of present jobs, in increasing order (M, 3)."""
    asks = np.stack((snapshot.jobs.gpus, snapshot.jobs.share_milli))
    kinds, counts = np.unique(asks, axis=1, return_counts=True)
    return np.column_stack((kinds.T, counts / counts.sum()))


def _place(
    snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes, rule: int, misfit: Misfit
) -> Grants:
    if rule not in RULES or misfit not in MISFIT:
        raise ConfigError(f"rule {rule!r} with misfit {misfit!r}: expected a rule of "
                          f"brim.policies.place.free_resources, and one of {', '.join(MISFIT)}")
    given, snapshot = snapshot, without_cpu_ranks(snapshot)
    check_inputs(snapshot, order, sizes.gpus)
    jobs, nodes, held = snapshot.jobs, snapshot.nodes, snapshot.grants
    holds = jobs.holds
    share_milli = np.where(holds, jobs.share_now, jobs.share_milli)
    columns = Jobs(  # copies, because compiled code has other types for arrays that cannot be written to
        np.where(holds, jobs.gpus_now, sizes.gpus), share_milli, jobs.cpu_milli.copy(), jobs.mem_mib.copy(),
        jobs.gpu_type.copy(), holds, jobs.waits,
        _end_ms(snapshot, beliefs) if misfit == "reserve" else np.zeros(len(jobs)),
    )
    job, node, gpu, why, blocker = walk(
        order.copy(), sizes.gpus.copy(), columns, Held(held.job.copy(), held.node.copy(), held.gpu.copy()),
        nodes.gpu_type.copy(), nodes.gpus.copy(), nodes.cpu_milli.copy(), nodes.mem_mib.copy(), nodes.is_open.copy(),
        nodes.withheld.copy(), len(snapshot.gpu_types), MISFIT[misfit], rule,
        task_classes(snapshot) if rule == FRAGMENTATION else NO_CLASSES,
    )
    why[jobs.phase == _HELD] = _WHY_HELD
    why[jobs.phase == _STOPPING] = _WHY_STOPPING
    placed = Grants(job=job, node=node, gpu=gpu, share_milli=share_milli[job], why=why, blocker=blocker)
    return as_before(placed, given)


def _end_ms(snapshot: Snapshot, beliefs: Beliefs) -> FloatArray:
    """Expected end of each job if it runs from now on, ms (J,)."""
    return snapshot.now_ms + remaining_ms(beliefs.run_times, snapshot)
