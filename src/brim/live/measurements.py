"""What agents say, as far as it can be: measurements for the engine, numbers for the store.

Agents belong to users, and a user must not bring the controller down: a number that no column holds would.
"""

from __future__ import annotations

import math
from typing import Final

from brim.agent.protocol import AttemptProgress, AttemptSeen
from brim.beliefs.throughput import COMPUTE_S_MIN, STEP_S_MAX
from brim.core.events import Report, Sample
from brim.live.records import JobRecord
from brim.live.requests import COUNT_MAX, LOSS_MAX, NONE

SAMPLES_MAX: Final = 1e15
"""Largest number of samples believed: beyond it, doubles no longer count one by one."""
SPEED_MIN: Final = 1e-6
"""Lowest speed believed, in samples per second; ours: a sample in eleven days. Work that is lost is divided by it."""
SLOWDOWN_MAX: Final = 1e6
"""Largest slowdown beside neighbours believed, as a ratio; ours: a step of a second would take eleven days."""
EXIT_CODE_MAX: Final = 255
ANALYSIS_MAX: Final = 16
"""Step times of an analysis that are believed: twice as many as ``beliefs.analyser`` measures."""
PROCESSES_MAX: Final = 1_000
"""Processes of an attempt that are noted; ours: a gang of eight that has lost and replaced each a hundred times."""


def sound(value: float | None, least: float = 0.0, most: float = SAMPLES_MAX) -> float | None:
    """A number that an agent sent, None if it cannot be one."""
    return value if value is not None and least <= value <= most else None  # false for NaN, too


def exit_code(code: int) -> int:
    """An exit code as of a shell, NONE for what is none."""
    return code if 0 <= code <= EXIT_CODE_MAX else NONE


def energy_j(said: float) -> float:
    """Joules that an agent measured, NONE for what are none."""
    return float(said) if 0 <= said <= SAMPLES_MAX else NONE


def processes(said: tuple[int, ...]) -> tuple[int, ...]:
    """Processes that an agent named; none if they cannot be any."""
    fits = len(said) <= 2 * PROCESSES_MAX and len(said) % 2 == 0 and all(0 < number < 2**53 for number in said)
    return said if fits else ()


def analysis_of(seen: AttemptSeen) -> tuple[Sample, ...]:
    """Step times on one device that were measured before an attempt began; none if they cannot be any."""
    said = seen.analysis[: 2 * ANALYSIS_MAX]
    pairs = zip(said[::2], said[1::2], strict=False)
    return tuple(
        Sample(1, 1, local, step_us / 1_000_000, 0.0) for local, step_us in pairs
        if 0 < local <= COUNT_MAX and 0 < step_us <= STEP_S_MAX * 1_000_000
    )  # fmt: skip


def report_of(
    said: AttemptProgress, job: JobRecord, sizes: tuple[int, ...] = (), loader_workers: int = NONE,
    *, on_cpu: bool = False,
) -> Report | None:
    """What the engine is told of a measurement, None for nothing.

    Args:
        said: What the agent says.
        job: The job.
        sizes: The numbers of devices that the job can use, if the engine does not know them.
        loader_workers: Most loader workers of each rank that were decided, NONE for none: a wait for data that was
            measured with another number is not told.
        on_cpu: Whether its ranks are on CPU.
    """
    samples, speed = sound(said.samples), sound(said.samples_per_s, SPEED_MIN)
    if samples is None:
        return None
    step_s, sync_s = sound(said.step_s, most=STEP_S_MAX), sound(said.sync_s) or 0.0
    local, batch = sound(said.local_batch, most=COUNT_MAX), sound(said.global_batch, most=COUNT_MAX)
    seen: tuple[Sample, ...] = ()
    if step_s and local and 0 < said.ranks <= job.request.limits[1] and step_s - sync_s >= COMPUTE_S_MIN:
        seen = (Sample(1, 0 if on_cpu else said.ranks, int(local), step_s, sync_s),)
    noise = sound(said.gradient_noise)
    knows = noise is not None and job.request.batch > 0
    waits = sound(said.loader_wait_ratio)
    is_present = loader_workers == NONE or said.loader_workers_max in (None, loader_workers)
    total = sound(said.total)
    loss = math.nan if said.loss is None else said.loss if abs(said.loss) <= LOSS_MAX else math.inf  # also not a number
    return Report(
        samples_done=samples, samples_per_s=speed or 0.0, seen=seen, loss=loss,
        batch=int(batch) if batch and seen and job.request.batch == NONE else NONE,
        samples_max=int(total) if total else NONE,
        grad_var=(noise or 0.0) / job.request.batch if knows else math.nan, grad_sqr=1.0 if knows else math.nan,
        loader_wait_ratio=waits if waits is not None and waits <= 1 and is_present else math.nan,
        sizes=sizes if job.request.ranks == "per-gpu" else (),
    )
