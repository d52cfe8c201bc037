"""Replicas of torchft that do the job of resize_job.py, one process each: for resize.py and kill_recovery.py."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).resolve().parent / "resize_job.py"
HEARTBEAT_MS = 1000
"""Time after which a lighthouse considers a replica gone; the default is 5 s."""
JOIN_MS = 60_000
"""How long a lighthouse waits for living replicas that have not asked yet: the default of its command. With 100 ms, the
default in Python, replicas with unequal step times leave each other out in turns."""
MISSING = "" if importlib.util.find_spec("torchft") else "it is not installed (pip install torchft-nightly)"


@contextlib.contextmanager
def lighthouse():
    """Yield the address of a lighthouse that lets training go on with the replicas present."""
    os.environ.setdefault("RUST_LOG", "error")
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=JOIN_MS, quorum_tick_ms=100,
        heartbeat_timeout_ms=HEARTBEAT_MS,
    )  # fmt: skip
    try:
        yield "http://127.0.0.1:" + server.address().rpartition(":")[2]
    finally:
        server.shutdown()


def replica(folder, address):
    """Start one more process, which notes its steps in the folder."""
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, str(JOB), str(folder), "--torchft", address], stdout=log, stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
