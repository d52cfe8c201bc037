"""Runs an unmodified training script for `brim profile`, and records how long each step takes.

    python -m brim.train.tools.profile.rank RECORD LOCAL_BATCH DRAIN SHARES script.py its arguments

Every rank computes LOCAL_BATCH samples per step (0: an eighth of the script's own batch); ``tune global_batch`` changes
it. With SHARES "-" they are one micro-batch, whatever logical workers and accumulation the script sets. With a number,
micro-batches have the samples that they have when the job trains with this global batch (0: the script's own). Learning
rates are zero, so that a changed batch cannot make the loss diverge. Checkpoints are neither read nor written. Training
has no end: the launcher stops it.

Rank 0 appends lines of JSON to RECORD: a ``header``, a ``supply`` for each number of loader workers in DRAIN ("1,2", or
"-" for none), then a ``step_s`` per committed step; the last step of an epoch may have fewer samples. A rank that runs
out of memory appends ``out_of_memory`` as its last line.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch

from brim.train.data.batches import Batches
from brim.train.gradients.update import Schedule
from brim.train.instrument import Instrument, attach
from brim.train.run import Run

FIRST_SHARE: Final = 8
"""The first local batch is the script's own divided by this, so that it fits if the script has run on one device."""
DRAIN_S: Final = 0.5
"""Shortest time over which a loader's supply is measured. Our choice."""
DRAIN_FETCHES: Final = 8
"""Fewest steps over which a loader's supply is measured. Our choice."""
POWER_EVERY_S: Final = 0.25
"""Time between two readings of the power, which NVML averages over up to a second. Our choice."""
NONE: Final = "-"
"""The value of DRAIN that measures no supply, and of SHARES for one micro-batch in a step."""
_OUT_OF_MEMORY: Final = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "nable to find an engine")
"""Parts of the messages of PyTorch, its CPU allocator, cuBLAS and cuDNN (which then finds no engine)."""

_cuda: Any = torch.cuda


class Profiler(Instrument):
    """Records the time of the steps of a run, which trains until it is stopped.

    Args:
        record: File to append to.
        local_batch: Samples of a rank in each step; 0: an eighth of the script's own batch.
        drain: Numbers of loader workers whose supply is measured first.
        shares: Global batch of which micro-batches are shares as in training, 0 for the script's own; None: each step
            of a rank is one micro-batch.
    """

    def __init__(self, record: Path, local_batch: int, drain: Sequence[int], shares: int | None) -> None:
        self._record, self._local_batch, self._drain, self._shares = record, local_batch, drain, shares
        self._workers: int | None = None
        self._run: Run | None = None
        self._power: Power | None = None
        self._own_batch = 0
        self._began_s = self._waited_s = 0.0

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Use no checkpoints, and one logical worker per rank, or the micro-batches of fast mode."""
        self._workers = options["logical_workers"]
        ranks = int(os.environ["WORLD_SIZE"]) if self._workers is not None and self._shares is None else None
        return options | {"checkpoint": None, "logical_workers": ranks}

    def schedule(self, factor: Schedule | None) -> Schedule:
        """Keep the learning rates at zero."""
        del factor
        return _standstill

    def epochs(self, number: int, steps: int | None) -> tuple[int, int | None]:
        """Train without end."""
        del number, steps
        return sys.maxsize, None

    def micro_batch(self, samples: int | None, global_batch: int) -> int | None:
        """Compute the step of a rank in one micro-batch, or in those of training."""
        if self._shares is None:
            return None
        return samples if self._workers is None else -(-(self._shares or global_batch) // self._workers)

    def before_steps(self, run: Run, loader: Any) -> bool:
        """Before the first step, record the header, measure the loader, and set the batch."""
        if self._own_batch:
            return False
        self._run, self._power = run, Power(run.device)
        self._own_batch = loader.global_batch
        first = self._local_batch or max(1, self._own_batch // FIRST_SHARE)
        if run.rank == 0:
            append(self._record, {"header": self._header(run, loader, first)})
            for workers, rate in supplies(loader, self._drain):
                append(self._record, {"supply": rate, "workers": workers})
        loader.set_global_batch(first * run.world_size)
        return True

    def _header(self, run: Run, loader: Any, first: int) -> dict[str, Any]:
        cuda = run.device.type == "cuda"
        return {
            "device": run.device.type, "device_name": _cuda.get_device_name(run.device) if cuda else cpu_name(),
            "gpus": _cuda.device_count() if cuda else 0, "memory_bytes": usable_bytes(run.device),
            "cpus": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads(),
            "torch": torch.__version__, "python": platform.python_version(), "samples": dataset_length(loader),
            "global_batch": self._own_batch, "local_batch": first, "loader_workers": loader.workers,
        }  # fmt: skip

    def step_begins(self, loader: Batches) -> None:
        """Begin to measure a step."""
        self._began_s, self._waited_s = time.perf_counter(), loader.wait_s

    def step_computed(self, samples: int, loader: Batches) -> None:
        """Record the time of the step, without the wait for the loader."""
        run, power = self._run, self._power
        assert run is not None
        assert power is not None
        if run.device.type == "cuda":
            _cuda.synchronize(run.device)
        took_s = time.perf_counter() - self._began_s
        wait_s = loader.wait_s - self._waited_s
        if run.rank == 0:
            append(self._record, {
                "step_s": took_s - wait_s, "loader_wait_s": wait_s, "local_batch": samples // run.world_size,
                "memory_bytes": peak_bytes(run.device), "power_w": power.now_w(),
            })  # fmt: skip


def _standstill(samples: int) -> float:
    del samples
    return 0.0


def append(record: Path, line: dict[str, Any]) -> None:
    """Append one line in a single write."""
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def supplies(loader: Any, counts: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield each number of workers with the samples per second that the loader then supplies if nothing else runs."""
    before = "auto" if not loader.supply.settled else loader.workers
    for workers in counts:
        loader.set_workers(workers)
        for _ in range(1 + 2 * workers * loader.supply.prefetch):  # start the workers and use up what was prefetched
            _fetch(loader)
        began_s, samples, fetches = time.perf_counter(), 0, 0
        while (took_s := time.perf_counter() - began_s) < DRAIN_S or fetches < DRAIN_FETCHES:
            samples += _fetch(loader)
            fetches += 1
        yield workers, samples / took_s
    if counts:
        loader.set_workers(before)


def _fetch(loader: Any) -> int:
    """Fetch and commit one step; return the number of its samples."""
    epoch, step, samples = loader.epoch, loader.step, 0
    for worker in range(loader.logical_workers):
        loader.fetch(epoch, step, worker)
        samples += loader.samples(epoch, step, worker)
    loader.commit(epoch, step)
    return samples


def dataset_length(loader: Any) -> int:
    """Return the number of samples in an epoch."""
    return int(loader.ledger()["length"])


def usable_bytes(device: torch.device) -> int | None:
    """Return the GPU memory that this process may use; None on a CPU, whose memory is shared with other processes."""
    if device.type != "cuda":
        return None
    free, _ = _cuda.mem_get_info(device)
    return int(free + _cuda.memory_reserved(device))


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of tensors since the last call; on a CPU, the peak resident memory of this process."""
    if device.type != "cuda":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = int(_cuda.max_memory_allocated(device))
    _cuda.reset_peak_memory_stats(device)
    return peak


class Power:
    """The power draw of a GPU, as NVML reports it."""

    def __init__(self, device: torch.device) -> None:
        self._device: torch.device | None = device if device.type == "cuda" else None
        self._asked_s = 0.0
        self._power_w: float | None = None

    def now_w(self) -> float | None:
        """Return watts, at most ``POWER_EVERY_S`` old; None without a GPU, NVML or its Python package."""
        now_s = time.perf_counter()
        if self._device is not None and now_s - self._asked_s >= POWER_EVERY_S:
            self._asked_s = now_s
            try:
                self._power_w = _cuda.power_draw(self._device) / 1000
            except Exception:  # nvidia-ml-py or the driver's support is missing; NVML has exceptions of its own
                self._device = self._power_w = None
        return self._power_w


def cpu_name() -> str:
    """Return the model name of the CPU, as Linux reports it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error is a lack of memory, so that a smaller batch may succeed."""
    says_so = isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    return says_so or isinstance(error, MemoryError)


def main(words: Sequence[str]) -> None:
    """Run the script in this process."""
    record, local_batch, (drain, shares, script) = Path(words[0]), int(words[1]), words[2:5]
    counts = [] if drain == NONE else [int(count) for count in drain.split(",")]
    attach(Profiler(record, local_batch, counts, None if shares == NONE else int(shares)))
    sys.argv = [script, *words[5:]]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    sys.excepthook = without_us(script, sys.excepthook)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        if is_out_of_memory(error):
            append(record, {"out_of_memory": True})
        raise


def without_us(script: str, before: Any) -> Any:
    """Return an exception hook that leaves out the frames above the script's own."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        here = trace
        while here is not None and here.tb_frame.f_code.co_filename != script:
            here = here.tb_next
        before(kind, error.with_traceback(here or trace), here or trace)

    return show


if __name__ == "__main__":
    main(sys.argv[1:])
