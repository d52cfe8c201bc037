"""From `brim run` at the command line to the first line of a job on an idle cluster, Python's own start included.

    .venv/bin/python benchmarks/first_line.py

A script that imports torch: three runs in a new state folder, one after another, before anything is known of the
environment; then, after the agent has been started again and its zygote has loaded, runs with the zygote warm. Beside
them, the script without brim and a plain command.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 5
PATIENCE_S = 60.0
ROUND_S = 1.2
"""Pause before each run. Rounds are a second apart, and the cluster is to be idle."""
SCRIPT = "import torch\nprint('first', torch.ones(2).sum().item(), flush=True)\n"


def first_line_s(words: list[str], env: dict[str, str], expected: bytes) -> float:
    """Time until a command has written a line; it must be the expected one."""
    began_s = time.monotonic()
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found_s = time.monotonic() - began_s
        process.stdout.read()
    if not line.startswith(expected) or process.returncode:
        raise SystemExit(f"{words}: found {line!r}, exit code {process.returncode}")
    return found_s


def wait_until_warm(folder: Path) -> float:
    """Time until a zygote with torch has loaded."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + PATIENCE_S:
        logs = [path for path in folder.glob("*.log") if path.name != "plain.log"]
        if any(b": ready after " in path.read_bytes() for path in logs):
            return time.monotonic() - began_s
        time.sleep(0.05)
    raise SystemExit(f"no zygote in {folder}")


def main() -> None:
    """Print the times in seconds."""
    folder = Path(tempfile.mkdtemp(prefix="brim-", dir="/tmp"))
    env = {**os.environ, "BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run")}
    brim = [sys.executable, "-m", "brim.cli.main"]
    script = folder / "script.py"
    script.write_text(SCRIPT)
    run = [*brim, "run", "--", sys.executable, str(script)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def times(words: list[str], expected: bytes, repeats: int = REPEATS) -> str:
        found = []
        for _ in range(repeats):
            time.sleep(ROUND_S)
            found.append(first_line_s(words, env, expected))
        return f"median {statistics.median(found):.2f}, " + " ".join(f"{each:.2f}" for each in found)

    try:
        subprocess.run([*brim, "up", "--devices", "2"], env=env, check=True, **quiet)
        print(f"new environment      {times(run, b'first', 3)}", flush=True)
        subprocess.run([*brim, "down", "--stop"], env=env, check=True, **quiet)
        subprocess.run([*brim, "up", "--devices", "2"], env=env, check=True, **quiet)
        print(f"zygote loaded        {wait_until_warm(folder / 'state' / 'agent' / 'zygotes'):.2f} after `brim up`")
        print(f"zygote warm          {times(run, b'first')}", flush=True)
        print(f"without brim         {times([sys.executable, str(script)], b'first')}")
        print(f"plain command        {times([*brim, 'run', '--', 'echo', 'first'], b'first')}")
        print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    finally:
        subprocess.run([*brim, "down", "--stop"], env=env, check=False, **quiet)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
