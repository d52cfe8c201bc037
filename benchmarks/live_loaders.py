"""Two real training jobs whose loaders want different numbers of cores: A-Dloader live, beside an even split.

    .venv/bin/python benchmarks/live_loaders.py [--seconds 60] [--cases mixed,alike,ample]

Service, agent, supervisors, ranks and loader processes are real; steps are waits, as a device would work
(``timed_loading.py``). Both jobs run at once, first each on a core of its own (an even split by cpuset, preset
adloader-even), then on both cores under adloader: the kernel balances, and the preset decides the loader workers. It
reckons a worker as a core whatever it uses, so the cluster is declared to have five cores: one for each main process,
which waits, and three for workers, for the two cores that there are.

Throughput of a job is relative to its steps without any wait for data; that of a case is the sum of both jobs, counted
in windows of 2 s. Windows in which processes of others used more than a tenth of a core are dropped, if any
is left then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Final

from brim.agent.capture import write_capture
from brim.agent.folders import captures_folder
from brim.core.cluster import parse_cluster
from brim.gang import processes
from brim.live.controller import Controller
from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.policies.presets import find_policy

JOB: Final = str(Path(__file__).with_name("timed_loading.py"))
CASES: Final = {"mixed": (1.4, 0.35), "alike": (1.2, 1.2), "ample": (0.35, 0.35)}
"""Cores that the loaders of the two jobs want. Alike, they want more than there are; ample, less than an even split."""
CORES: Final = 2
DECLARED: Final = 5
STEP_S: Final = 0.4
WINDOW_S: Final = 2.0
SETTLE_S: Final = 45.0
"""Until the preset has heard how long each job waits, has decided, and the loaders have found what they need."""
FOREIGN: Final = 0.1
PATIENCE_S: Final = 120.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def busy_s() -> tuple[float, float]:
    """CPU seconds that this machine has worked, and that this process and those below it have used."""
    everybody = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    all_s = (sum(map(int, everybody[:8])) - int(everybody[3]) - int(everybody[4])) / _TICKS
    mine = 0
    for pid in (os.getpid(), *(one.pid for one in processes.descendants(os.getpid()))):
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        mine += int(words[11]) + int(words[12])
    return all_s, mine / _TICKS


async def until(holds, what):
    """Wait for something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what}: not seen within {PATIENCE_S:g} s")
        await asyncio.sleep(0.1)


async def measured(policy: str, demands: tuple[float, ...], pinned: bool, seconds: float) -> tuple[list[float], str]:
    """Run both jobs; returns the sum of their throughputs in each window that is kept, and what is to be said of it."""
    with tempfile.TemporaryDirectory(prefix="brim-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "r").mkdir(mode=0o700)
        os.environ.update(BRIM_STATE=f"{name}/s", BRIM_RUNTIME=f"{name}/r", OMP_NUM_THREADS="1")
        cluster = parse_cluster(f"1x{CORES}xcpu:cpus={DECLARED}")
        service = ClusterService(
            folder / "s" / "controller", folder / "r" / "agents.sock", lambda: Controller(cluster, find_policy(policy)),
        )
        await service.start()
        await service.recovered()
        with (folder / "agent.log").open("w") as log:
            agent = subprocess.Popen([sys.executable, "-m", "brim.agent", "--devices", "2"], stdout=log, stderr=log)
        jobs, edges = [], list[tuple[float, float, float]]()
        try:
            await until(lambda: service.status()["agents"], "an agent")
            for row, cores in enumerate(demands):
                (folder / str(row)).mkdir()
                words = [sys.executable, JOB, str(folder / str(row)), str(STEP_S), str(cores)]
                if pinned:
                    words = ["/usr/bin/taskset", "-c", str(row), *words]
                capture, digest = write_capture(captures_folder(folder / "s" / "agent"), words, dict(os.environ), name)
                request = JobRequest(name=f"job{row}", capture=capture, digest=digest, ranks="per-gpu", grace_s=1.0)
                jobs += await service.submit(os.getuid(), "me", [request], f"key-{row}")
            await until(lambda: all((folder / str(row) / "times").exists() for row in range(2)), "training")
            await asyncio.sleep(SETTLE_S)
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                edges.append((time.monotonic(), *busy_s()))
                await asyncio.sleep(WINDOW_S)
            for job in jobs:
                await service.command(os.getuid(), "cancel", [job], may_change=bool)
            await until(lambda: all(service.job(job).has_ended for job in jobs), "the end")
            steps = [[line.split() for line in (folder / str(row) / "times").read_text().splitlines()]
                     for row in range(2)]
        finally:
            await service.stop()
            agent.terminate()
            agent.wait(PATIENCE_S)
    times = [[float(line[0]) for line in lines] for lines in steps]
    kept, foreign = [], []
    for before, after in pairwise(edges):
        span_s = after[0] - before[0]
        foreign.append(((after[1] - before[1]) - (after[2] - before[2])) / span_s)
        if foreign[-1] <= FOREIGN:
            kept.append((before[0], after[0]))
    quiet = len(kept)
    kept = kept or [(before[0], after[0]) for before, after in pairwise(edges)]
    sums = [sum(rate(one, *window) for one in times) * STEP_S for window in kept]
    each = ", ".join(f"{rate(one, edges[0][0], edges[-1][0]) * STEP_S:.3f}" for one in times)
    workers = " and ".join(f"{lines[-1][1]} (at most {lines[-1][2]})" for lines in steps)
    said = (f"{quiet} of {len(foreign)} windows quiet; loader workers {workers}; throughputs in all windows {each}; "
            f"others used {statistics.median(foreign):.2f} cores (median)")
    return sums, said


def rate(times: list[float], begin_s: float, end_s: float) -> float:
    """Steps per second in a window; a step counts by the part of it that lies in the window."""
    done = 0.0
    for before, after in pairwise(times):
        done += max(0.0, min(after, end_s) - max(before, begin_s)) / (after - before)
    return done / (end_s - begin_s)


def ideal(demands: tuple[float, ...]) -> float:
    """Gain if the cores were divided as is best, and nothing else cost time."""
    even = sum(min(1.0, CORES / len(demands) / cores) for cores in demands)
    left, best = float(CORES), 0.0
    for cores in sorted(demands):  # a core brings most where a job wants least
        best += min(1.0, left / cores)
        left = max(0.0, left - cores)
    return best / even - 1


def main() -> None:
    """Measure each case both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args()
    processes.become_subreaper()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for case in options.cases.split(","):
        means = []
        for policy, pinned in (("adloader-even", True), ("adloader", False)):
            sums, said = asyncio.run(measured(policy, CASES[case], pinned, options.seconds))
            means.append(statistics.mean(sums) if sums else float("nan"))
            spread = statistics.stdev(sums) if len(sums) > 1 else float("nan")
            print(f"{case}, {policy}: {means[-1]:.3f} of 2, deviation {spread:.3f} over {len(sums)} windows; {said}",
                  flush=True)
        best, gain = ideal(CASES[case]), means[1] / means[0] - 1
        part = f", {gain / best:.0%} of it" if best else ""
        print(f"{case}, demands {CASES[case]}: gain {gain:+.1%}, ideal {best:+.1%}{part}", flush=True)


if __name__ == "__main__":
    main()
