"""What `brim ps` and `brim submit` cost beside Python's own start, with 1,000 jobs in the queue of a real controller.

    .venv/bin/python benchmarks/live_cli.py

CPU time of the command's process (user and system), which other processes disturb less than the clock; the minimum and
the median of repeats that alternate between the commands.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from brim.api.client import Client
from brim.live.requests import JobRequest

JOBS = 1_000
REPEATS = 15


def cpu_ms(words: list[str], env: dict[str, str]) -> float:
    """CPU time of a process, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, env=env, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def main() -> None:
    """Print a table."""
    folder = Path(tempfile.mkdtemp(prefix="brim-"))
    env = {**os.environ, "BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run")}
    brim = [sys.executable, "-m", "brim.cli.main"]
    try:
        subprocess.run([*brim, "up", "--devices", "4"], env=env, check=True, stdout=subprocess.DEVNULL)
        held = JobRequest(name="job", capture="0" * 32, digest="0" * 64, hold=True)
        Client(folder / "run" / "api.sock").submit([held] * JOBS)
        commands = {
            "python -c ''": [sys.executable, "-c", ""],
            "brim ps": [*brim, "ps"],
            "brim submit --hold true": [*brim, "submit", "--hold", "true"],
            "brim --version": [*brim, "--version"],
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(REPEATS):
            for name, words in commands.items():
                found[name].append(cpu_ms(words, env))
        start = {"min": min(found["python -c ''"]), "median": statistics.median(found["python -c ''"])}
        print(f"{'command':26}{'CPU ms, min':>14}{'median':>10}{'beyond Python, min':>22}{'median':>10}")
        for name, times in found.items():
            least, middle = min(times), statistics.median(times)
            print(f"{name:26}{least:14.0f}{middle:10.0f}{least - start['min']:22.0f}{middle - start['median']:10.0f}")
    finally:
        subprocess.run([*brim, "down", "--stop"], env=env, check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
