"""``python -m brim.agent`` forked from the zygote of all tests, so that it has torch: its own zygote is forked, too.

What that imports takes 5 s of CPU time for each agent whose jobs train. A process is forked before the agent begins; it
becomes the first zygote with torch that the agent starts, as a child of the agent, if that would begin with the same
variables that are read at the start of an interpreter. All else is as in an agent that a user starts.
``tests/agent`` and ``tests/cli`` have agents that start such a zygote themselves.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

from brim.agent import __main__ as agent
from brim.agent import zygotes
from brim.gang import processes, zygote
from brim.gang.fork_safety import READ_AT_STARTUP, is_this_python
from brim.gang.launch_config import PRELOAD
from tests.forked import THREADS


def read_at_startup(env) -> dict[str, str]:
    """The variables among them that change how an interpreter with torch begins."""
    return {name: value for name, value in env.items() if name.startswith(READ_AT_STARTUP)}


class Spare:
    """The process that waits until the agent starts a zygote with torch; it ends with the agent."""

    def __init__(self) -> None:
        self.env = read_at_startup(os.environ)
        self.connection, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self.connection.close()
            processes.end_with_parent(parent)
            self._wait(theirs)
        theirs.close()

    def popen(self, words, *, env, stdout, **options):
        """Start a zygote, as ``subprocess.Popen`` does."""
        where = words.index("--preload")
        if not (
            self.pid and words[where + 1] == ",".join(PRELOAD) and is_this_python(words[0], os.environ)
            and read_at_startup(env) == self.env
        ):
            return subprocess.Popen(words, env=env, stdout=stdout, **options)
        assert words[:3] == [words[0], "-c", zygote.PROGRAM]
        with self.connection:
            socket.send_fds(self.connection, [json.dumps([words[3:], env]).encode()], [stdout.fileno()])
        pid, self.pid = self.pid, 0
        return SimpleNamespace(pid=pid)

    @staticmethod
    def _wait(connection: socket.socket) -> None:
        said, fds, _, _ = socket.recv_fds(connection, 1 << 20, 1)
        if not said:
            os._exit(0)  # the agent has ended without
        (log,), (words, env) = fds, json.loads(said)
        os.setsid()
        with open(os.devnull, "rb") as nothing:
            for fd, number in ((nothing.fileno(), 0), (log, 1), (log, 2)):
                os.dup2(fd, number)
        connection.close()
        os.close(log)
        os.environ.clear()
        os.environ.update(env)
        os.chdir("/")
        sys.path.pop(0)
        zygote.main(words)
        sys.exit()


if __name__ == "__main__":
    spare = Spare()
    for name in THREADS:
        del os.environ[name]
    zygotes.subprocess = SimpleNamespace(Popen=spare.popen, DEVNULL=subprocess.DEVNULL)
    sys.exit(agent.main())
