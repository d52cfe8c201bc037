"""The assumptions behind the result of a replay, as sentences."""

from __future__ import annotations

from brim.core.cluster import Cluster
from brim.core.trace import Trace
from brim.sim.overheads import Faults, Overheads
from brim.sim.truth import Truth, describe
from brim.units import show_duration


def assumptions(
    trace: Trace, cluster: Cluster, truth: Truth, overheads: Overheads, faults: Faults, gap_ms: int
) -> tuple[str, ...]:
    """List the assumptions of the replay."""

    def seconds(ms: int) -> str:
        return show_duration(ms / 1000)

    said = [f"The trace is synthetic ({trace.name})."] if trace.synthetic else []
    said += truth.sentences() + describe(trace, cluster)
    said.append(
        f"A preempted job holds its GPUs for {seconds(overheads.save_ms)} to save and loses no work; a restart takes "
        f"{seconds(overheads.restart_ms)}, a first start {seconds(overheads.start_ms)}."
    )
    said.append(
        f"A scheduling decision takes no time in the replay; two decisions are at least {seconds(gap_ms)} apart."
    )
    if faults.job_mtbf_ms:
        said.append(
            f"Jobs fail every {seconds(faults.job_mtbf_ms)} of running on average, are tried {faults.attempts_max} "
            f"times, and fall back to a checkpoint at most {seconds(overheads.checkpoint_ms)} old."
        )
    if faults.node_mtbf_ms:
        said.append(
            f"Each node fails every {seconds(faults.node_mtbf_ms)} on average and is away for "
            f"{seconds(faults.repair_ms)}; its jobs fall back to a checkpoint at most "
            f"{seconds(overheads.checkpoint_ms)} old."
        )
    if faults.drains:
        said.append(f"{sum(len(drain.nodes) for drain in faults.drains)} node drains are planned.")
    return tuple(said)
