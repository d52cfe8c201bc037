"""What the processes of an attempt have used: a value without behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NONE: Final = -1
"""A number that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What all processes of a cgroup have used, as the kernel measured it; ``NONE``: not measured here.

    Attributes:
        cpu_ms: CPU time.
        memory_peak_bytes: Most memory at one time, with the files that they kept in memory.
        processes_peak: Most processes and threads at one time.
        oom_kills: Processes that the kernel killed because memory was short.
        oom_at_limit: How often a memory limit of the cgroup itself, or of one below it, left no memory; 0 with
            ``oom_kills`` above 0: memory was short outside.
    """

    cpu_ms: int = NONE
    memory_peak_bytes: int = NONE
    processes_peak: int = NONE
    oom_kills: int = NONE
    oom_at_limit: int = NONE


NOT_MEASURED: Final = Usage()
