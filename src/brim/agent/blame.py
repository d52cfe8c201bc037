"""Who is to blame for a failed attempt, by evidence only: its job, its node, or a neighbour on the node.

The job is, unless something says otherwise. A job that was killed by a plain signal 9, of which nobody measured why, is
blamed itself.

- A device of it is lost, or NVML does not answer: the node.
- The volume of its files takes nothing more: the node (the attempt itself notes that, ``attempt.py``).
- The kernel killed a process of it because memory was short, though no limit of the attempt's own was reached and it
  used no more than it may: a neighbour that uses more than *it* may, if there is one; else the node.

What an attempt may use is what its job asked for; without that, the share of the machine's memory that its devices are
of all devices. Attempts that share a device by time slicing have contexts of their own, so that a fault ends the one
that makes it; all lose a device that is lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from brim.agent.effects import AttemptEnd, Key
from brim.agent.protocol import BLAME_JOB, BLAME_NEIGHBOUR, BLAME_NODE, FAILED, QUARANTINED, DeviceSeen

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """An attempt with processes on the node, and what memory it may use.

    Attributes:
        key: Job and attempt.
        devices: Its devices.
        mem_mib_per_gpu: Memory that its job asked for per device; 0 if it asked for none.
        cgroup: Folder of its cgroup; empty if it has none.
    """

    key: Key
    devices: tuple[int, ...]
    mem_mib_per_gpu: int = 0
    cgroup: str = ""

    def may_use_bytes(self, num_devices: int) -> int:
        """Memory that it may use on a node with this many devices."""
        if self.mem_mib_per_gpu:
            return len(self.devices) * self.mem_mib_per_gpu * _MIB
        return memory_bytes(self.cgroup) * len(self.devices) // num_devices


def blamed(
    end: AttemptEnd, resident: Resident, others: Iterable[Resident], devices: Iterable[DeviceSeen]
) -> AttemptEnd:
    """Return the end of an attempt with whom to blame, and why in its detail.

    Args:
        end: The end as the attempt itself wrote it down.
        resident: The attempt.
        others: All other attempts with processes on the node, as far as they are known.
        devices: The present state of all devices.
    """
    if end.outcome != FAILED or end.blame != BLAME_JOB:
        return end
    devices = tuple(devices)
    lost = [one for one in devices if one.device in resident.devices and one.state == QUARANTINED]
    if lost:
        detail = f"{end.detail}; device {lost[0].device}: {lost[0].detail}"
        return replace(end, blame=BLAME_NODE, detail=detail)
    if end.usage.oom_kills <= 0 or end.usage.oom_at_limit != 0 or end.usage.memory_peak_bytes < 0:
        return end
    may_bytes = resident.may_use_bytes(len(devices))
    used = f"it used {end.usage.memory_peak_bytes // _MIB} MiB at most of the {may_bytes // _MIB} MiB that it may"
    if end.usage.memory_peak_bytes > may_bytes:
        return replace(end, detail=f"{end.detail}; {used}")
    for other in others:
        has_bytes, its_bytes = present_bytes(other.cgroup), other.may_use_bytes(len(devices))
        if has_bytes > its_bytes:
            who = f"job {other.key[0]} uses {has_bytes // _MIB} MiB of the {its_bytes // _MIB} MiB that it may"
            return replace(end, blame=BLAME_NEIGHBOUR, detail=f"{end.detail}; {used}, {who}")
    return replace(end, blame=BLAME_NODE, detail=f"{end.detail}; {used}: the machine's memory was short")


def memory_bytes(cgroup: str) -> int:
    """Memory of the machine, or of the smallest part of it to which an outer cgroup limits this one."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in Path(cgroup).parents if cgroup else ():
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            found = min(found, int((folder / "memory.max").read_text()))
    return found


def present_bytes(cgroup: str) -> int:
    """Memory that the processes of a cgroup have now, without files that the kernel could drop; -1 if not measured."""
    if not cgroup:
        return -1
    with contextlib.suppress(OSError, ValueError):
        lines = (line.split() for line in Path(cgroup, "memory.stat").read_text().splitlines())
        parts = {name: int(number) for name, number in lines}
        return parts["anon"] + parts["shmem"]
    return -1
