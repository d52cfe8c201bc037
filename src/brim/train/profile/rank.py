"""A script as `brim profile` runs it: unmodified, without end, saying how long each step took.

    python -m brim.train.profile.rank RECORD LOCAL_BATCH DRAIN script.py its arguments

Every rank computes one micro-batch of LOCAL_BATCH samples a step (0: an eighth of the script's own batch), whatever
the script says of logical workers and accumulation; ``tune global_batch`` changes it. Learning rates are held at zero,
since a changed batch must not make the loss diverge. Checkpoints are neither read nor written. It ends when it is told.

Rank 0 appends lines of JSON to RECORD: ``header``, a ``supply`` for each of DRAIN numbers of loading processes ("1,2",
"-" for none), then a ``step_s`` per committed step, the last of an epoch may have fewer samples. Any rank may say
``out_of_memory`` last.
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
from typing import Any, Final, cast

import torch

from brim.train import session
from brim.train.batches import Batches
from brim.train.steps import Plan

FIRST_SHARE: Final = 8
"""The first local batch is this part of the script's own. Ours: it fits wherever the script has run on one device."""
DRAIN_S: Final = 0.5
"""A loader's supply is timed for so long at least; ours."""
DRAIN_FETCHES: Final = 8
"""And over so many batches; ours."""
POWER_EVERY_S: Final = 0.25
"""Between two questions for the power, which NVML averages over up to a second; ours."""
NONE: Final = "-"
"""In place of numbers of loading processes."""
_OUT_OF_MEMORY: Final = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "nable to find an engine")
"""What PyTorch, its allocator for the CPU, cuBLAS and cuDNN (which also finds no engine then) say."""

_cuda: Any = torch.cuda


def profiled(record: Path, local_batch: int, drain: Sequence[int]) -> type[session.Run]:
    """A run that says how long its steps take, and goes on until it is told to end."""

    class Profiled(session.Run):
        """A `Run` under measurement."""

        def __init__(self, **options: Any) -> None:
            exact = options["logical_workers"] is not None
            ranks = int(os.environ["WORLD_SIZE"]) if exact else None
            super().__init__(**options | {"checkpoint": None, "logical_workers": ranks})
            self._update.schedule = _standstill
            self._power = Power(self.device)
            self._own_batch = 0
            self._began_s = self._waited_s = 0.0

        def schedule(self, factor: Any) -> None:
            """Learning rates stay at zero."""

        def epochs(self, number: int, *, steps: int | None = None) -> Iterator[int]:
            """Epochs without end."""
            del number, steps
            return super().epochs(sys.maxsize)

        def steps(self, loader: Any) -> Iterator[Any]:
            """As ever; before the first step, what is known by then, and how fast the loader is."""
            if self._buckets is not None and not self._own_batch:
                self._attach(loader)
                self._form()
                self._own_batch = loader.global_batch
                first = local_batch or max(1, self._own_batch // FIRST_SHARE)
                if self.rank == 0:
                    append(record, {"header": self._header(loader, first)})
                    for workers, rate in supplies(loader, drain):
                        append(record, {"supply": rate, "workers": workers})
                self.epoch = self._calls = loader.epoch  # draining has moved the cursor
                loader.set_global_batch(first * self.world_size)
                self._assign()
            return super().steps(loader)

        def _fast_shares(self, global_batch: int, micro_batch: int | None) -> int:
            del global_batch, micro_batch
            return self.world_size

        def _header(self, loader: Any, first: int) -> dict[str, Any]:
            cuda = self.device.type == "cuda"
            return {
                "device": self.device.type, "device_name": _cuda.get_device_name(self.device) if cuda else cpu_name(),
                "gpus": _cuda.device_count() if cuda else 0, "memory_bytes": usable_bytes(self.device),
                "cpus": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads(),
                "torch": torch.__version__, "python": platform.python_version(), "samples": dataset_length(loader),
                "global_batch": self._own_batch, "local_batch": first, "loader_workers": loader.workers,
            }  # fmt: skip

        def _plan_step(self, loader: Any) -> Plan:
            self._began_s, self._waited_s = time.perf_counter(), loader.wait_s
            return super()._plan_step(loader)

        def _commit(self, plan: Plan) -> None:
            if self.device.type == "cuda":
                _cuda.synchronize(self.device)
            took_s = time.perf_counter() - self._began_s
            wait_s = cast(Batches, self._loader).wait_s - self._waited_s
            super()._commit(plan)
            if self.rank == 0:
                append(record, {
                    "step_s": took_s - wait_s, "loader_wait_s": wait_s, "local_batch": plan.total // self.world_size,
                    "memory_bytes": peak_bytes(self.device), "power_w": self._power.now_w(),
                })  # fmt: skip

    return Profiled


def _standstill(samples: int) -> float:
    del samples
    return 0.0


def append(record: Path, line: dict[str, Any]) -> None:
    """Add one line, whole."""
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def supplies(loader: Any, counts: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Samples per second that a loader gives to whoever does nothing else, by number of loading processes."""
    before = "auto" if not loader.supply.settled else loader.workers
    for workers in counts:
        loader.set_workers(workers)
        for _ in range(1 + 2 * workers * loader.supply.prefetch):  # processes are there, and what was ahead is gone
            _fetch(loader)
        began_s, samples, fetches = time.perf_counter(), 0, 0
        while (took_s := time.perf_counter() - began_s) < DRAIN_S or fetches < DRAIN_FETCHES:
            samples += _fetch(loader)
            fetches += 1
        yield workers, samples / took_s
    if counts:
        loader.set_workers(before)


def _fetch(loader: Any) -> int:
    """Take all of a step, and go past it; returns its samples."""
    epoch, step, samples = loader.epoch, loader.step, 0
    for worker in range(loader.logical_workers):
        loader.fetch(epoch, step, worker)
        samples += loader.samples(epoch, step, worker)
    loader.commit(epoch, step)
    return samples


def dataset_length(loader: Any) -> int:
    """Samples of an epoch."""
    return int(loader.ledger()["length"])


def usable_bytes(device: torch.device) -> int | None:
    """Memory of the device that this process may fill; None on a CPU, which it shares with others."""
    if device.type != "cuda":
        return None
    free, _ = _cuda.mem_get_info(device)
    return int(free + _cuda.memory_reserved(device))


def peak_bytes(device: torch.device) -> int:
    """Most memory of tensors since this was last asked; on a CPU, most resident memory of this process so far."""
    if device.type != "cuda":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = int(_cuda.max_memory_allocated(device))
    _cuda.reset_peak_memory_stats(device)
    return peak


class Power:
    """What a GPU draws, by NVML; nothing where there is none, or no Python package for it."""

    def __init__(self, device: torch.device) -> None:
        self._device: torch.device | None = device if device.type == "cuda" else None
        self._asked_s = 0.0
        self._power_w: float | None = None

    def now_w(self) -> float | None:
        """Watts, at most a moment old."""
        now_s = time.perf_counter()
        if self._device is not None and now_s - self._asked_s >= POWER_EVERY_S:
            self._asked_s = now_s
            try:
                self._power_w = _cuda.power_draw(self._device) / 1000
            except Exception:  # no nvidia-ml-py, or no driver that says it: NVML has errors of its own
                self._device = self._power_w = None
        return self._power_w


def cpu_name() -> str:
    """As Linux calls it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may go where this one did not."""
    says_so = isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    return says_so or isinstance(error, MemoryError)


def main(words: Sequence[str]) -> None:
    """Become the script."""
    record, local_batch, drain, script = Path(words[0]), int(words[1]), words[2], words[3]
    counts = [] if drain == NONE else [int(count) for count in drain.split(",")]
    session.Run = profiled(record, local_batch, counts)  # type: ignore[misc]
    sys.argv = [script, *words[4:]]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    sys.excepthook = without_us(script, sys.excepthook)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        if is_out_of_memory(error):
            append(record, {"out_of_memory": True})
        raise


def without_us(script: str, before: Any) -> Any:
    """An exception hook that shows the frames from the script's own on."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        here = trace
        while here is not None and here.tb_frame.f_code.co_filename != script:
            here = here.tb_next
        before(kind, error.with_traceback(here or trace), here or trace)

    return show


if __name__ == "__main__":
    main(sys.argv[1:])
