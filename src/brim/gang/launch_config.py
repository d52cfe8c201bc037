"""What to launch, and the times from a request to stop to SIGKILL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from brim.gang.inherited import AS_IT_IS, Inherited

PRELOAD: Final = (
    "torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data", "torch._dynamo",
    "brim.train.run", "brim.train.data.loader",
)
"""``torch._dynamo`` is in the list because the first optimizer that is built imports it, which takes a second.
The last two are most of what a script with brim.train imports: half of the CPU time of a rank from fork to first step.
"""
PRELOAD_TIMEOUT_S: Final = 600.0
"""Longest wait for a zygote to be ready. Our choice: torch on a slow network file system takes minutes."""
GRACE_S: Final = 30.0
"""Time from an announced stop to SIGKILL. Our choice: the notice that large clouds give preemptible machines."""
TERM_S: Final = 5.0
"""The last part of the grace period, from SIGTERM to SIGKILL. Our choice."""
FAILURE_GRACE_S: Final = 5.0
"""Time from the exception of one rank to SIGKILL of the others. Our choice: they cannot continue, but may still write
files."""
FAILURE_REPORT_S: Final = 0.5
"""The part of that time before SIGTERM: a rank's death may be noticed before its exception is printed. Our choice."""
HANG_TIMEOUT_S: Final = 600.0
"""How long all other ranks wait before the one that does not counts as hung: as long as NCCL's own time-out."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """What to run and how.

    Args:
        command: The command of each rank; starts with the interpreter if it runs Python.
        nproc: Number of ranks at the start.
        control: Path of the socket that the supervisor listens on.
        cwd: Working directory of the ranks.
        inherits: Umask and limits of the ranks.
        cgroup: Folder of the cgroup that the ranks are put into; empty: none.
        env: Environment of the ranks, to which brim adds its own variables; None: that of this process.
        devices: Names for CUDA_VISIBLE_DEVICES, in the order of LOCAL_RANK; every rank sees all of them, but no CPU
            (``cpu0``). If empty, the variable is left unchanged.
        grace_s: Time from an announced stop to SIGKILL; SIGTERM comes ``term_s`` before its end.
        term_s: Time from SIGTERM to SIGKILL.
        failure_grace_s: Time from the exception of one rank to SIGKILL of the others.
        hang_timeout_s: How long all other ranks wait before the one that does not is killed.
        replacements_max: How many dead ranks are replaced within ``replacement_window_s``; after that, the others
            continue without them.
        replacement_window_s: How long a dead rank counts.
        keeps_size: Whether the gang trains on the number of ranks that it was asked for, and no fewer: the others wait
            for the rank that replaces a dead one, and fail where none does.
        log_folder: Folder for the output of each rank, in ``rank-ID.log``; None: this process's own output.
        zygote: Path of a listening zygote; None, or if it does not listen: start a private one.
        preload: Modules that the private zygote imports.
        is_gang: Whether the ranks get torchrun's variables, and one thread each unless ``env`` says otherwise. A
            command that is no training job of brim or torchrun is left alone with them.
        gang: The gang's id, which marks the environment of its processes; empty: a random one.
        fence: What requests must name, see ``ResizeRequest``.
    """

    command: tuple[str, ...]
    nproc: int
    control: str
    cwd: str
    env: Mapping[str, str] | None = None
    devices: tuple[str, ...] = ()
    grace_s: float = GRACE_S
    term_s: float = TERM_S
    failure_grace_s: float = FAILURE_GRACE_S
    hang_timeout_s: float = HANG_TIMEOUT_S
    replacements_max: int = 0
    replacement_window_s: float = float("inf")
    keeps_size: bool = False
    log_folder: str | None = None
    zygote: str | None = None
    preload: tuple[str, ...] = PRELOAD
    is_gang: bool = True
    gang: str = ""
    fence: tuple[int, ...] = ()
    inherits: Inherited = AS_IT_IS
    cgroup: str = ""
