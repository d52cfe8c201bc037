"""What a gang is to run, how it may end, and the times of the kill ladder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from brim.gang.zygote import PRELOAD

GRACE_S: Final = 30.0
"""From an announced stop to SIGKILL. Ours: what preemptible machines of the large clouds give."""
TERM_S: Final = 5.0
"""The last part of the grace, after SIGTERM. Ours."""
FAILURE_GRACE_S: Final = 5.0
"""From the exception of one rank to SIGKILL of the others. Ours: they cannot go on, but may write what they have."""
LAST_WORDS_S: Final = 0.5
"""The part of it before SIGTERM: a peer's death may be noticed before the exception that caused it is shown. Ours."""
HANG_S: Final = 600.0
"""How long all other ranks wait before the one that does not is taken to hang: as long as NCCL's own time-out."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to run and how.

    Args:
        command: With the interpreter in front, where it is Python.
        nproc: Ranks to start with.
        control: Path of the socket to listen on.
        cwd: Folder to run in.
        env: What ranks get, apart from what brim sets; None: as this process.
        devices: Names for CUDA_VISIBLE_DEVICES, all visible to every rank, in the order of LOCAL_RANK; none: as it is.
        grace_s: From an announced stop to SIGKILL; the last ``term_s`` of it after SIGTERM.
        failure_grace_s: From the exception of one rank to SIGKILL of the others.
        hang_s: How long all other ranks wait before the one that does not is killed.
        replace: How many dead ranks may be replaced; otherwise the others go on without.
        log_folder: Each rank's output goes to ``rank-ID.log`` there; None: to ours.
        zygote: Path of a zygote that listens; None: one of our own.
        preload: What our own zygote imports.
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
    hang_s: float = HANG_S
    replace: int = 0
    log_folder: str | None = None
    zygote: str | None = None
    preload: tuple[str, ...] = PRELOAD


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. ``kind`` is ``finished``, ``preempted`` or ``failed``; ``code`` is what to exit with."""

    kind: str
    code: int
    detail: str = ""
