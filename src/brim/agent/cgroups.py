"""The part of the cgroup tree (version 2) that belongs to this agent, if there is one: a cgroup for each attempt in it.

    TREE                what the agent was given: that of its unit (``Delegate=yes``), or any that was made for it
    TREE/agent          the agent, its zygotes, and the supervisors of attempts
    TREE/job-7-1        of attempt 1 of job 7: the zygote's fork of an attempt, its ranks, and all that these start

The kernel lets controllers (memory, pids) measure below a cgroup only while no process is in it itself, and systemd
puts the next agent of a unit just there. So they are on only if the agent was put into ``TREE/agent`` by who started
it, or if its unit takes them off again when it has ended, by whatever cause (``ExecStopPost``):

    python -m brim.agent.cgroups

No limit is ever set, and the controller of CPU time stays off: it would share cores out by attempts. What CPU time they
take is measured without it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from brim.agent import attempt_files
from brim.agent.effects import Key
from brim.agent.mounts import mounts
from brim.gang.cgroup import Cgroup

UNIT: Final = "brim-agent.service"
"""Name of the unit of this user's agent (``cli/systemd_units.py``), and so of its cgroup."""
LEAF: Final = "agent"
FILE: Final = "cgroups.json"
"""File in the agent's folder: what the agent that runs has found."""
CONTROLLERS: Final = ("memory", "pids")
_CONTROL: Final = ".control"
"""Where systemd puts the other commands of a unit that is delegated."""
_PREFIX: Final = "job-"


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupTree:
    """What the agent has of the cgroup tree.

    Attributes:
        path: Its folder; empty if it has none.
        missing: Why it has none; why it does not measure memory; empty if nothing is missing.
    """

    path: str = ""
    missing: str = ""

    def make(self, key: Key) -> str:
        """Make the cgroup of an attempt; return its folder, an empty text if there is none."""
        if not self.path:
            return ""
        path = Path(self.path, f"{_PREFIX}{key[0]}-{key[1]}")
        with contextlib.suppress(OSError):
            Cgroup(path).remove()  # of a job with this number in another state folder
            path.mkdir(0o755)
            return str(path)
        return ""

    def remove_empty(self) -> None:
        """Remove those of attempts that an agent before this one could not remove."""
        if self.path:
            for path in Path(self.path).glob(f"{_PREFIX}*"):
                if (found := Cgroup(path)).is_empty():
                    found.remove()


def take_tree() -> CgroupTree:
    """Find out whether the cgroup of this process belongs to it alone, and move into ``TREE/agent`` if it does."""
    own = _own_cgroup()
    if own is None:
        return CgroupTree(missing="no cgroups of version 2 are mounted here")
    was_below = own.name == LEAF and not (own.parent / "cgroup.procs").read_text().split()
    tree = own.parent if was_below else own
    if not (tree / "cgroup.kill").exists():
        return CgroupTree(missing=f"{tree} is the root of all cgroups, or this Linux is older than 5.14")
    others = {int(pid) for pid in (tree / "cgroup.procs").read_text().split()} - {os.getpid()}
    if others:
        return CgroupTree(missing=f"its cgroup {tree} is not its own: other processes are in it")
    leaf = Cgroup(tree / LEAF)
    try:
        leaf.path.mkdir(0o755, exist_ok=True)
        leaf.join()
    except OSError as error:
        return CgroupTree(missing=f"its cgroup {tree} is not delegated to it: {error.strerror}")
    if not was_below and own.name != UNIT:
        return CgroupTree(path=str(tree), missing=f"it was not started in a cgroup {LEAF!r} below its own")
    off = [name for name in CONTROLLERS if not _switch(tree, f"+{name}")]
    return CgroupTree(path=str(tree), missing=f"the controller {off[0]!r} is not available in {tree}" if off else "")


def note_tree(folder: Path, tree: CgroupTree) -> None:
    """Note what was found, for ``brim doctor``."""
    with contextlib.suppress(OSError):
        attempt_files.write_whole(folder, FILE, asdict(tree))


def noted_tree(folder: Path) -> CgroupTree | None:
    """Return what the newest agent with this folder has found; None if it was older than this file."""
    return attempt_files.read_fields(folder, FILE, CgroupTree)


def release_controllers() -> None:
    """Switch the controllers off, so that systemd can start the next agent of the unit while attempts go on."""
    own = _own_cgroup()
    if own is not None and own.name == _CONTROL:
        for name in CONTROLLERS:
            _switch(own.parent, f"-{name}")


def _switch(tree: Path, what: str) -> bool:
    with contextlib.suppress(OSError):
        (tree / "cgroup.subtree_control").write_text(what)
        return True
    return False


def _own_cgroup() -> Path | None:
    """Return the folder of the cgroup of this process; None if it cannot be seen."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "")
    for mount in mounts():
        if mount.kind == "cgroup2" and Path(own).is_relative_to(mount.root):
            path = Path(mount.point, Path(own).relative_to(mount.root))
            if (path / "cgroup.procs").exists():
                return path
    return None


if __name__ == "__main__":
    release_controllers()
