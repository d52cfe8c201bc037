"""The agent of this user on this node.

    python -m brim.agent --devices 4                    four CPU slots, the controller of this user
    python -m brim.agent --controller PATH              the GPUs, the controller that listens on PATH

It runs until SIGTERM; attempts go on, and the next agent adopts them. Exit code
2: bad arguments; 4: another agent runs.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import selectors
import sys
from collections.abc import Sequence
from pathlib import Path

from brim.agent.agent import Agent
from brim.agent.cgroups import note_tree, take_tree
from brim.agent.devices import CpuSlots, Gpus
from brim.agent.folders import agent_folder, make_private, runtime_folder
from brim.errors import BrimError, ConfigError, RefusedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m brim.agent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--devices", type=int, metavar="N", help="use N CPU slots, not the GPUs")
    add("--controller", type=Path, metavar="PATH", help="the controller's socket for agents (default: this user's)")
    options = parser.parse_args(arguments)
    try:
        if options.devices is not None and options.devices < 1:
            raise ConfigError(f"--devices: found {options.devices}, expected at least 1")
        folder = agent_folder()
        make_private(folder)
        found = os.stat(folder)
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise RefusedError(f"{folder}: expected a folder that this user alone can write to")
        lock_fd = _lock(folder / "lock")
        try:
            cgroups = take_tree()
            note_tree(folder, cgroups)
            with selectors.DefaultSelector() as selector:
                node = Gpus(selector) if options.devices is None else CpuSlots(options.devices)
                controller = options.controller or runtime_folder() / "agents.sock"
                Agent(folder, controller, node, cgroups, selector).run()
        finally:
            os.close(lock_fd)
    except BrimError as error:
        sys.stderr.write(f"brim agent: {error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"brim agent: {error.filename or 'cannot go on'}: {error.strerror or error}\n")
        return 1
    return 0


def _lock(path: Path) -> int:
    """Lock the file for as long as this process lives, and write its id there; return the descriptor.

    Raises:
        RefusedError: another agent has it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(fd, 20).decode("ascii", "replace").strip()
        os.close(fd)
        raise RefusedError(f"an agent (process {holder}) already uses {path.parent}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


if __name__ == "__main__":
    sys.exit(main())
