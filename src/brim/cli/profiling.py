"""Measures one training script on this machine and writes its profile in the format of the profile library.

It measures steps by local batch on one rank up to the memory limit, then on more ranks; all-reduces by bytes; and the
loader's supply. The step-time model is fitted to the steps. What could not be measured is left out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from brim import __version__
from brim.beliefs import loading
from brim.beliefs.analyser import (
    BYTES_MAX_EXP,
    REPETITIONS,
    Analysis,
    ExchangeTimes,
    analyse,
    exchange_sizes,
    measure_exchange,
)
from brim.beliefs.throughput import PARAMETERS, Fit, Observations, fit
from brim.errors import ConfigError, UserError
from brim.train.tools.profile.gang import BoxExchange, Header, Script, ScriptSteps, largest_that_fits

CPU_RANKS: Final = (1, 2)
"""Default ranks without GPUs: enough to show the cost of an exchange; more ranks would share the processors."""
CPU_BATCH_RATIO: Final = 8
"""Default largest local batch without GPUs, in batches of the script. Ours: memory on CPUs sets no limit that the
system would survive, so the range needs one."""
CPU_BYTES_MAX_EXP: Final = 26
"""Largest all-reduce on CPUs: 64 MiB, the gradients of 16 million parameters. Ours: bandwidth is reached well
below, and 2 GiB on each of several ranks may be all the memory there is."""
PROBE_STEPS: Final = 3
"""Steps at each of two batches from which the memory limit of a GPU is estimated; ours."""
MEMORY_SHARE: Final = 0.95
"""Part of a GPU's memory that counts as usable; the rest is left for fragmentation. Ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMedians:
    """Steps at one local batch on some ranks: medians, except the peak of memory and the last power."""

    ranks: int
    local_batch: int
    step_s: float
    loader_wait_s: float
    memory_bytes: int
    power_w: float | None

    @property
    def samples_per_s(self) -> float:
        """Samples per second of all ranks, if the loader keeps up."""
        return self.ranks * self.local_batch / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The measurements of one script.

    Attributes:
        name: Name of the model in the library: the script's name without suffix.
        header: The device, and the script's own settings.
        command: The command as it was given.
        at: When the measurement began.
        took_s: Time of the whole measurement.
        steps: Measured steps by ranks and local batch, ascending.
        batch_max_fits: Whether the range, not the memory, limited the largest batch of one rank.
        supply: Samples per second of the loader by number of its processes.
        exchange: Times of all-reduces, None if only one rank was measured.
        fitted: The fitted step-time model.
    """

    name: str
    header: Header
    command: tuple[str, ...]
    at: datetime
    took_s: float
    steps: tuple[StepMedians, ...]
    batch_max_fits: bool
    supply: Mapping[int, float]
    exchange: ExchangeTimes | None
    fitted: Fit


def measure(script: Script, ranks: Sequence[int] | None = None, batch: tuple[int, int] | None = None) -> Profile:
    """Measure a script.

    Args:
        script: The script to measure.
        ranks: Numbers of ranks besides 1, ascending; by default up to those of this machine.
        batch: Smallest and largest local batch; by default an eighth of the script's own to the memory limit of a GPU,
            or to eight times its own on a CPU.

    Raises:
        ScriptError: the script failed.
        UserError: the script cannot be measured, or not in this range.
    """
    at, began_s = datetime.now(UTC), time.monotonic()
    with ScriptSteps(script, 1, local_batch=batch[0] if batch else 0, drain=loaders()) as alone:
        header = alone.header
        sizes = [size for size in _sizes(ranks, header) if size > 1]
        low, high = batch or (header.local_batch, _largest(alone, header))
        _check_range(low, high, header.samples)
        found = analyse(alone, batch_min=low, gpus_max=1, local_batch_max=high, local_batch_min=low)
    if not found.samples:
        raise UserError(f"{script.words[0]}: a local batch of {low} does not fit the memory: give a smaller --batch")
    steps = _rows(found, alone, 1)
    for size in sizes:
        steps += _together(script, size, low, found.local_batch_max, header.samples)
    exchange = None
    if sizes:
        largest = BYTES_MAX_EXP if header.gpus else CPU_BYTES_MAX_EXP
        box = BoxExchange(script, header.device, exchange_sizes(largest), REPETITIONS)
        exchange = measure_exchange(box, num_nodes=1, gpus_per_node=sizes[-1], bytes_max_exp=largest)
    return Profile(
        name=Path(script.words[0]).stem, header=header, command=script.words, at=at, took_s=time.monotonic() - began_s,
        steps=tuple(steps), batch_max_fits=found.local_batch_max == high, supply=alone.supply, exchange=exchange,
        fitted=fit(observations(steps)),
    )


def loaders() -> list[int]:
    """Numbers of loading processes to try: 0, and powers of two up to the number of processors."""
    return [0, *powers_of_two(len(os.sched_getaffinity(0)))]


def powers_of_two(most: int) -> list[int]:
    """The powers of two 1, 2, 4, ... up to ``most``."""
    return [1 << power for power in range(most.bit_length())]


def _sizes(ranks: Sequence[int] | None, header: Header) -> Sequence[int]:
    if ranks is None:
        return powers_of_two(header.gpus) if header.gpus else CPU_RANKS
    if header.gpus and max(ranks) > header.gpus:
        raise UserError(f"--ranks: found {max(ranks)}, expected at most {header.gpus}, the number of GPUs")
    return ranks


def _largest(alone: ScriptSteps, header: Header) -> int:
    """Largest local batch to measure if none was given."""
    if header.memory_bytes is None:
        return min(CPU_BATCH_RATIO * header.global_batch, header.samples)
    two = (header.local_batch, min(2 * header.local_batch, header.samples))
    if two[0] == two[1] or any(alone.step_s(each, PROBE_STEPS) is None for each in two):
        return two[1]
    seen = {each: alone.seen[each].memory_bytes for each in two}
    fits = largest_that_fits(seen, round(MEMORY_SHARE * header.memory_bytes))
    return min(max(fits, two[1]), header.samples) if fits else header.samples


def _check_range(low: int, high: int, samples: int) -> None:
    if high > samples:
        raise ConfigError(
            f"--batch: found up to {high}, expected at most the {samples} samples of the dataset: {low}-{samples}"
        )


def _together(script: Script, size: int, low: int, high: int, samples: int) -> list[StepMedians]:
    """Steps on several ranks, at the batches that one rank can hold."""
    high = min(high, samples // size)
    if high < low:
        raise UserError(f"--ranks: found {size}, but {samples} samples are fewer than {size} local batches of {low}")
    with ScriptSteps(script, size, local_batch=low) as steps:
        found = analyse(steps, batch_min=low, gpus_max=1, local_batch_max=high, local_batch_min=low)
    return _rows(found, steps, size)


def _rows(found: Analysis, measured: ScriptSteps, size: int) -> list[StepMedians]:
    rows = []
    for sample in found.samples:
        seen = measured.seen[sample.local_batch]
        rows.append(StepMedians(
            ranks=size, local_batch=sample.local_batch, step_s=sample.step_s,
            loader_wait_s=float(np.median(seen.waits_s)), memory_bytes=seen.memory_bytes, power_w=seen.power_w,
        ))  # fmt: skip
    return rows


def observations(steps: Iterable[StepMedians]) -> Observations:
    """The observations to which the step-time model is fitted; ranks count as GPUs of one node.

    The exchange time of a step is the difference from a step of the same local batch on one rank, interpolated linearly
    between measured batches. Slowdown of ranks that share processors or memory counts as exchange too.
    """
    rows = tuple(steps)
    alone = [row for row in rows if row.ranks == 1]
    batches, alone_s = [row.local_batch for row in alone], [row.step_s for row in alone]
    computing = [min(row.step_s, float(np.interp(row.local_batch, batches, alone_s))) for row in rows]
    return Observations(
        nodes=np.ones(len(rows), dtype=np.int64), gpus=np.array([row.ranks for row in rows]),
        local_batch=np.array([float(row.local_batch) for row in rows]), step_s=np.array([row.step_s for row in rows]),
        sync_s=np.array([row.step_s - each for row, each in zip(rows, computing, strict=True)]),
    )


def gpu_type(header: Header) -> str:
    """The type's name in cluster strings: H100 for "NVIDIA H100 80GB HBM3"."""
    if not header.gpus:
        return "cpu"
    name = header.device_name
    for maker in ("NVIDIA", "AMD", "Tesla", "Instinct"):
        name = name.removeprefix(maker).strip()
    return name.replace("-", " ").split()[0] if name else header.device_name


# --- the file


def as_toml(profile: Profile) -> str:
    """The profile as a file for beliefs/library.py, with the measurements in further tables."""
    return "\n".join(_lines(profile)) + "\n"


def _lines(profile: Profile) -> Iterator[str]:
    header, fitted, ranks = profile.header, profile.fitted, sorted({row.ranks for row in profile.steps})
    batches = [row.local_batch for row in profile.steps]
    device = f"{gpu_type(header)} ranks" if header.gpus else "CPU ranks"
    yield f"# Profile of {profile.name}, by `brim profile`; the fields are explained in docs/how-to-profile-a-job.md."
    yield f"source = {_text('measured by brim profile -- ' + ' '.join(profile.command))}"
    yield 'licence = "none: your own measurement"'
    yield "fitted = " + _text(
        f"Step-time model of beliefs/throughput.py to median steps on {', '.join(map(str, ranks))} {device} of one "
        f"node, without waits for the loader. Nothing was seen across nodes. The fit: {fitted.status}."
    )
    yield from ("", "[[steps]]", f"name = {_text(profile.name)}", f"gpu_type = {_text(gpu_type(header))}")
    yield from (f"{name} = {_real(value)}" for name, value in zip(PARAMETERS, fitted.parameters, strict=True))
    yield from (f"residual = {_real(fitted.residual)}", f"points = {fitted.points}", f"gpus_max = {ranks[-1]}")
    yield f"local_batch = [{min(batches)}, {max(batches)}]"
    if profile.supply:
        yield from _loading(profile)
    yield from _conditions(profile)
    for row in profile.steps:
        yield from ("", "[[measured]]", f"ranks = {row.ranks}", f"local_batch = {row.local_batch}")
        yield from (f"step_s = {_real(row.step_s)}", f"loader_wait_s = {_real(row.loader_wait_s)}")
        yield f"memory_bytes = {row.memory_bytes}"
        if row.power_w is not None:
            yield f"power_w = {_real(row.power_w)}"
    for workers, rate in profile.supply.items():
        yield from ("", "[[loader]]", f"workers = {workers}", f"samples_per_s = {_real(rate)}")
    if profile.exchange is not None:
        for gpus, row_S in zip(profile.exchange.gpus_K, profile.exchange.packed_s_KS, strict=True):
            yield from ("", "[[exchange]]", f"ranks = {gpus}")
            yield f"bytes = [{', '.join(f'{size:.0f}' for size in profile.exchange.bytes_S)}]"
            yield f"seconds = [{', '.join(map(_real, row_S))}]"


def _loading(profile: Profile) -> Iterator[str]:
    """The input pipeline beside one rank that computes as fast as with the script's own batch."""
    header = profile.header
    near = min(
        (row for row in profile.steps if row.ranks == 1), key=lambda row: abs(row.local_batch - header.global_batch)
    )
    workers, per_s = (np.array([*of], dtype=np.float64) for of in (profile.supply.keys(), profile.supply.values()))
    fitted = loading.fit_supply(workers, per_s, near.samples_per_s)
    yield from ("", "[[loading]]", f"name = {_text(profile.name)}", f"gpu_type = {_text(gpu_type(header))}")
    yield from (
        f"{name} = {_real(value)}" for name, value in zip(loading.PARAMETERS, fitted.parameters, strict=True)
    )
    yield from (f"residual = {_real(fitted.residual)}", f"points = {fitted.points}")


def _conditions(profile: Profile) -> Iterator[str]:
    header = profile.header
    largest = max(row.local_batch for row in profile.steps if row.ranks == 1)
    yield from ("", "[conditions]", f"command = [{', '.join(map(_text, profile.command))}]")
    yield from (f"at = {profile.at:%Y-%m-%dT%H:%M:%SZ}", f"took_s = {profile.took_s:.0f}")
    yield from (f"device = {_text(header.device_name)}", f"gpus = {header.gpus}", f"cpus = {header.cpus}")
    yield f"threads_per_rank = {header.threads}"
    yield from (f"torch = {_text(header.torch)}", f"python = {_text(header.python)}", f"brim = {_text(__version__)}")
    yield from (f"global_batch = {header.global_batch}", f"loader_workers = {header.loader_workers}")
    yield f"dataset_samples = {header.samples}"
    yield f"local_batch_max = {largest}"
    yield f"local_batch_max_ends = {_text('range' if profile.batch_max_fits else 'memory')}"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007F")


def _real(value: float) -> str:
    """Format a number with four digits, the precision of the measurements."""
    text = f"{value:.4g}"
    return text if any(sign in text for sign in ".e") else f"{text}.0"
