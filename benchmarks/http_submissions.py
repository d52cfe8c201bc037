"""Durable submissions per second over HTTP: `brim up` on the socket of its API, callers of brim's own client.

    .venv/bin/python benchmarks/http_submissions.py [--seconds 20]

One caller, then four (each in a process of its own, as commands are); every submission has one held job and a key, and
is answered when it is durable. Then 1,000 jobs in one submission, five times. Times are as the caller sees them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from brim.api.client import Client
from brim.live.requests import JobRequest

BRIM: Final = (sys.executable, "-m", "brim.cli.main")
REQUEST: Final = JobRequest(name="train.py", capture="0" * 32, digest="a" * 64, time_limit_s=3_600, hold=True)
JOBS_MAX: Final = 18_000
"""Jobs of one user that the queue takes, less those in bulk."""


def caller(socket: Path, seconds: float, jobs_max: int) -> list[float]:
    """Submit one job after the other; return the seconds of each."""
    at, began_s = Client(socket), time.monotonic()
    took_s: list[float] = []
    while time.monotonic() - began_s < seconds and len(took_s) < jobs_max:
        sent_s = time.monotonic()
        at.submit([REQUEST])
        took_s.append(time.monotonic() - sent_s)
    return took_s


def show(what: str, of_callers: list[list[float]]) -> None:
    """Print rate and percentiles of callers at the same time."""
    took_s, rate = [one for each in of_callers for one in each], sum(len(each) / sum(each) for each in of_callers)
    p99_ms = quantiles(took_s, n=100)[98] * 1000
    print(f"{what:14}{rate:8.0f}/s   p50 {median(took_s) * 1000:6.1f} ms   p99 {p99_ms:6.1f} ms   "
          f"most {max(took_s) * 1000:6.1f} ms   {len(took_s)} jobs")  # fmt: skip


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description="Durable submissions per second over HTTP.")
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    folder = Path(tempfile.mkdtemp(prefix="brim-"))
    env = {**os.environ, "BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run")}
    subprocess.run([*BRIM, "up", "--devices", "1"], env=env, check=True, stdout=subprocess.DEVNULL)
    socket = folder / "run" / "api.sock"
    try:
        show("one caller", [caller(socket, seconds, JOBS_MAX // 3)])
        with ProcessPoolExecutor(4) as callers:
            asked = [callers.submit(caller, socket, seconds, JOBS_MAX // 8) for _ in range(4)]
            show("four callers", [each.result() for each in asked])
        bulk = []
        for _ in range(5):
            sent_s = time.monotonic()
            Client(socket).submit([REQUEST] * 1_000)
            bulk.append(time.monotonic() - sent_s)
        print("1,000 in one: " + " ".join(f"{one:.2f} s" for one in bulk))
    finally:
        subprocess.run([*BRIM, "down", "--stop"], env=env, check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
