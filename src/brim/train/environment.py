"""The environment of a run: device, group, signals, random numbers and threads."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from random import seed as seed_python
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from brim.errors import ConfigError
from brim.gang.messages import Failed
from brim.train.membership.process_group import Group
from brim.train.membership.supervisor_client import Control

_c10d: Any = dist
_cuda: Any = torch.cuda
_made = 0
_meeting: tuple[Any, int, int] | None = None


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


def fix_threads() -> None:
    """Use ``OMP_NUM_THREADS`` threads, by default one, as ranks do: the order of sums depends on the number."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    torch.set_num_threads(int(said) if said.isdecimal() and int(said) else 1)


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
            "set WORLD_SIZE=1"
        )


def static_group(device: torch.device, timeout_s: float) -> Group | None:
    """Return the group of the ranks that ``torchrun`` started; None if it did not start several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "MASTER_ADDR" not in os.environ:
        return None
    global _made, _meeting  # noqa: PLW0603  (one store for the whole life of the process)
    if _meeting is None:
        _meeting = next(_c10d.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    store, rank, size = _meeting
    _made += 1
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) * 1000 + _made
    group = Group(rank, size, generation=generation, device=device, timeout_s=timeout_s)
    group.hosts_store = rank == 0
    group.connect(lambda: store)
    return group


class _OnSigterm:
    """Asks the run to leave, then calls the handler that was installed before."""

    def __init__(self, call: Callable[[], None], before: Any) -> None:
        self._call, self.before = call, before

    def __call__(self, number: int, frame: Any) -> None:
        self._call()
        if callable(self.before):
            self.before(number, frame)


def on_sigterm(call: Callable[[], None]) -> None:
    """On SIGTERM, call ``call``, which asks the run to leave, then the handler that was installed before.

    Of several runs in one process, only the newest is asked: a finished one would end the process at once.
    """
    before: Any = signal.getsignal(signal.SIGTERM)
    if isinstance(before, _OnSigterm):
        before = before.before
    signal.signal(signal.SIGTERM, _OnSigterm(call, before))


NO_DEFAULT_GROUP = "Default process group has not been initialized"
"""The beginning of PyTorch's message when a collective is called without a default group."""


def tell_exceptions(control: Control | None) -> None:
    """Report an exception that ends this process to the supervisor; explain PyTorch's error on a missing group."""
    before = sys.excepthook

    def tell(kind: Any, error: BaseException, trace: Any) -> None:
        if str(error).startswith(NO_DEFAULT_GROUP):
            error.add_note(
                "brim.train uses its own process group, and creates no default group: use run.gather, run.broadcast "
                "and run.reduce in place of torch.distributed"
            )
        if control is not None:
            control.send(Failed("".join(traceback.format_exception(kind, error, trace))))
        before(kind, error, trace)

    sys.excepthook = tell
