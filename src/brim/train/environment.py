"""What a run sets in its process: device, random numbers, threads, shapes."""

from __future__ import annotations

import hashlib
import os
import sys
from random import seed as seed_python
from typing import Any

import torch
from torch import Tensor

from brim.errors import ConfigError
from brim.gang.environment import DEVICES_VARIABLE
from brim.units import counted

_cuda: Any = torch.cuda


def seed_everything(*what: int | str) -> None:
    """Seed Python, PyTorch and, if it is loaded, NumPy from these values."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big") >> 1
    seed_python(number)
    if _cuda.is_initialized():
        torch.manual_seed(number)
    else:  # until then, each manual_seed stores a call for later, with its stack trace: 1 ms and memory never freed
        torch.default_generator.manual_seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number & 0xFFFFFFFF)


def moved(batch: Any, device: torch.device) -> Any:
    """Return the batch on the device; tensors inside the usual containers are moved, too."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: moved(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(value, device) for value in batch)
    return batch.to(device) if hasattr(batch, "to") else batch


def choose_device(wanted: str | torch.device | None) -> torch.device:
    """Return the requested device, else this rank's GPU, else the CPU."""
    device = torch.device(wanted if wanted is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        _cuda.init()
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def unused_devices() -> str:
    """Return a sentence if this job of brim has more devices than ranks, which is seldom meant; else nothing."""
    devices, ranks = len(os.environ.get(DEVICES_VARIABLE, "").split(",")), int(os.environ.get("WORLD_SIZE", "1"))
    if devices <= ranks:
        return ""
    return f"this job has {devices} devices and {counted(ranks, 'rank')}; `--ranks per-gpu` starts a rank for each"


def fix_threads() -> None:
    """Use ``OMP_NUM_THREADS`` threads, by default one, as ranks do: the order of sums depends on the number."""
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    torch.set_num_threads(int(threads) if threads.isdecimal() and int(threads) else 1)


def fix_shapes() -> None:
    """Let ``torch.compile`` compile each shape by itself.

    By default, it compiles for variable sizes when it sees a second shape, and uses that kernel for the first one, too:
    the bits of a micro-batch would depend on the shapes that this process has computed before.
    """
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.config.automatic_dynamic_shapes = False
        dynamo.config.fail_on_recompile_limit_hit = True  # otherwise, later shapes alone would run eager kernels


def refuse_tasks_of_slurm() -> None:
    """Refuse to start if ``srun`` has started several tasks and nothing has made them ranks of one job.

    Each task would be a job of its own, and they would take the checkpoint folder from each other. ``SLURM_NTASKS`` is
    no sign: it is also set in a batch script, which runs once. ``SLURM_STEP_NUM_TASKS`` is set in tasks of a step only.

    Raises:
        ConfigError: this process is one of several tasks of a step, and ``WORLD_SIZE`` is not set.
    """
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if "SLURM_PROCID" in os.environ and tasks.isdecimal() and int(tasks) > 1 and "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            f"srun started {tasks} tasks, and WORLD_SIZE is not set: start one task, which starts all ranks, by "
            f"srun -n 1 python -m brim.train.launch --nproc {tasks} SCRIPT, or torchrun; for {tasks} separate jobs, "
            "set WORLD_SIZE=1; in a batch script that was submitted from within such a task, which has its "
            "variables, unset SLURM_STEP_NUM_TASKS"
        )
