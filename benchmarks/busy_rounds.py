"""Answers of the API while rounds decide for 10,000 startable jobs: a real controller, HTTP on its socket.

    .venv/bin/python benchmarks/busy_rounds.py [--seconds 30] [--policy backfill]

The controller is a process of its own. An agent that is played here says that each job runs, and a moment later that it
has finished, so that every round has devices to give; the queue is kept full. Three questions are asked in turn, 20 of
them a second, by one caller; the times are as the caller sees them. What it takes without any rounds is asked first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from brim.agent.protocol import (
    ENDED,
    OPEN,
    ORDERS,
    REPORTS,
    RUNNING,
    VERSION,
    AgentHello,
    AttemptSeen,
    DeviceSeen,
    StartAttempt,
    Synced,
)
from brim.api.client import Client
from brim.live.requests import JobRequest

JOBS, DEVICES, BULK = 10_000, 8, 1_000
PAUSE_S = 0.05
RUN_S = 0.3
REQUEST = JobRequest(name="job", capture="0" * 32, digest="0" * 64, time_limit_s=60)


def play_agent(path: Path, stop: threading.Event) -> None:
    """Obey every start: running at once, finished after a moment."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        names = tuple(f"cpu{number}" for number in range(DEVICES))
        hello = AgentHello(version=VERSION, user="me", boot_id="b", devices=names)
        for report in (hello, *(DeviceSeen(device=number, state=OPEN) for number in range(DEVICES)), Synced()):
            connection.sendall(REPORTS.encode(report))
        connection.settimeout(0.02)
        decoder, ends = ORDERS.decoder(), list[tuple[float, StartAttempt]]()
        known: set[tuple[int, int]] = set()
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                for order in decoder.feed(connection.recv(1 << 16)):
                    if isinstance(order, StartAttempt) and (order.job, order.attempt) not in known:
                        known.add((order.job, order.attempt))
                        connection.sendall(REPORTS.encode(seen(order, RUNNING)))
                        ends.append((time.monotonic() + RUN_S, order))
            while ends and ends[0][0] <= time.monotonic():
                connection.sendall(REPORTS.encode(seen(ends.pop(0)[1], ENDED, outcome="finished", exit_code=0)))


def seen(order: StartAttempt, state: str, **more) -> AttemptSeen:
    return AttemptSeen(job=order.job, attempt=order.attempt, sequence=order.sequence, state=state,
                       devices=() if state == ENDED else order.devices, **more)  # fmt: skip


def ask(client: Client, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each answer, by question."""
    questions = {
        "submit one job": lambda: client.submit([REQUEST]), "status": client.status,
        "newest 100 jobs": lambda: client.jobs(limit=100),
    }
    found: dict[str, list[float]] = {name: [] for name in questions}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, question in questions.items():
            begin = time.perf_counter()
            question()
            found[name].append((time.perf_counter() - begin) * 1e3)
            time.sleep(PAUSE_S)
    return found


def show(title: str, found: dict[str, list[float]]) -> None:
    print(f"{title:34}{'answers':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    for name, times in found.items():
        ranked = sorted(times)
        print(f"  {name:32}{len(ranked):9}{ranked[len(ranked) // 2]:9.1f}{ranked[int(len(ranked) * 0.99)]:9.1f}"
              f"{ranked[-1]:9.1f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--policy", default="backfill")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="brim-", dir="/tmp"))
    env = {**os.environ, "BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run")}
    words = [sys.executable, "-m", "brim.api.serve", "--devices", str(DEVICES), "--policy", options.policy]
    controller = subprocess.Popen(words, env=env)
    client, stop = Client(folder / "run" / "api.sock"), threading.Event()
    try:
        while not client.is_there():
            time.sleep(0.1)
        client.submit([REQUEST])
        while client.job(1).state != "held":  # without an agent nothing starts
            time.sleep(0.5)
        client.command("cancel", [1])
        show("no rounds, empty queue", ask(client, options.seconds / 3))
        for _ in range(JOBS // BULK):
            client.submit([REQUEST] * BULK)
        agent = threading.Thread(target=play_agent, args=(folder / "run" / "agents.sock", stop))
        agent.start()
        while not any(job.state == "finished" for job in client.jobs("all", limit=JOBS).jobs):
            time.sleep(0.5)
        before, begin = client.status()["status"], time.monotonic()
        found = ask(client, options.seconds)
        after, wall_s = client.status()["status"], time.monotonic() - begin
        show(f"{JOBS:,} startable jobs, {options.policy}", found)
        rounds = after["rounds"] - before["rounds"]
        print(f"rounds: {rounds} in {wall_s:.0f} s; {after['jobs']:,} jobs not ended; load {os.getloadavg()[0]:.1f} on "
              f"{os.cpu_count()} cores")  # fmt: skip
    finally:
        stop.set()
        controller.send_signal(signal.SIGTERM)
        controller.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
