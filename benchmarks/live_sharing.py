"""Jobs that share a core, live: how much slower their steps are, and what is believed of jobs never seen together.

    .venv/bin/python benchmarks/live_sharing.py [--seconds 5] [--times 5] [--core 1]

Service, agent, supervisors and jobs are real. The jobs are pinned to one core, which stands for a device that takes
turns between its residents; everything else runs on the other cores. Each step of a job computes for a part of its time
and waits for the rest (``timed_sharing.py``); their steps differ in length, so that they do not fall into step. Several
times over, each job runs alone, then all run together. Windows in which processes of others used more than a
twentieth of the core are dropped, and said.

What is predicted is told only which part of its time each job computes: the rule that policies ask of jobs without a
history, and, beside it, the rule that was published with EaCO's table (no slowdown while the core is not full).
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
from brim.beliefs.beliefs import Beliefs
from brim.beliefs.interference import DemandRule
from brim.core.cluster import parse_cluster
from brim.gang import processes
from brim.live.controller import Controller
from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.policies.presets import find_policy

JOB: Final = str(Path(__file__).with_name("timed_sharing.py"))
SETS: Final = ((1.0, 1.0), (0.6, 0.3), (0.5, 0.5), (0.8, 0.4), (0.3, 0.3), (0.6, 0.3, 0.2), (0.5, 0.5, 0.5))
"""Part of its time in which each job computes."""
STEPS_S: Final = (0.1, 0.07, 0.13)
SETTLE_S: Final = 1.0
FOREIGN: Final = 0.05
PATIENCE_S: Final = 60.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def busy_s(core: int) -> float:
    """CPU seconds that a core has worked."""
    words = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} ")).split()
    return (sum(map(int, words[1:9])) - int(words[4]) - int(words[5])) / _TICKS


async def until(holds, what):
    """Wait for something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what}: not seen within {PATIENCE_S:g} s")
        await asyncio.sleep(0.05)


class Bench:
    """The service with one device, and the jobs that run on it now."""

    def __init__(self, service: ClusterService, folder: Path, core: int) -> None:
        self.service, self.folder, self.core, self.keys = service, folder, core, 0

    async def steps_s(self, rows: tuple[int, ...], demands: tuple[float, ...], seconds: float) -> list[float] | None:
        """Run some of the jobs together; returns the step time of each, None where others disturbed."""
        jobs, places = [], []
        for row in rows:
            self.keys += 1
            places.append(self.folder / str(self.keys))
            places[-1].mkdir()
            words = ["/usr/bin/taskset", "-c", str(self.core), sys.executable, "-I", "-S", JOB, str(places[-1]),
                     str(STEPS_S[row]), str(demands[row])]
            captures = captures_folder(self.folder / "s" / "agent")
            capture, digest = write_capture(captures, words, dict(os.environ), str(self.folder))
            request = JobRequest(  # little use is declared, so that the policy lets all of them share
                name=f"job{row}", capture=capture, digest=digest, grace_s=1.0, gpu_util_milli=50, gpu_mem_mib=100)
            jobs += await self.service.submit(os.getuid(), "me", [request], f"key-{self.keys}")
        await until(lambda: all((place / "times").exists() for place in places), "steps of all jobs")
        await asyncio.sleep(SETTLE_S)
        begin_s, worked_s, used_s = time.monotonic(), busy_s(self.core), self._used_s()
        await asyncio.sleep(seconds)
        span_s = time.monotonic() - begin_s
        foreign = (busy_s(self.core) - worked_s - (self._used_s() - used_s)) / span_s
        times = [[float(line) for line in (place / "times").read_text().split()] for place in places]
        for job in jobs:
            await self.service.command(os.getuid(), "cancel", [job], may_change=bool)
        await until(lambda: all(self.service.job(job).has_ended for job in jobs), "the end")
        if foreign > FOREIGN:
            return None
        return [1 / rate(one, begin_s, begin_s + span_s) for one in times]

    def _used_s(self) -> float:
        """CPU seconds that processes of the jobs have used."""
        ticks = 0
        for one in processes.descendants(os.getpid()):
            try:
                if JOB.encode() not in Path(f"/proc/{one.pid}/cmdline").read_bytes():
                    continue
                words = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            ticks += int(words[11]) + int(words[12])
        return ticks / _TICKS


def rate(times: list[float], begin_s: float, end_s: float) -> float:
    """Steps per second in a window; a step counts by the part of it that lies in the window."""
    done = 0.0
    for before, after in pairwise(times):
        done += max(0.0, min(after, end_s) - max(before, begin_s)) / (after - before)
    return done / (end_s - begin_s)


def published(demands: tuple[float, ...]) -> float:
    """Slowdown where there is none until the core is full."""
    return max(1.0, sum(demands))


async def measure(seconds: float, repeats: int, core: int) -> None:
    """Print a line for each set of jobs."""
    with tempfile.TemporaryDirectory(prefix="brim-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "r").mkdir(mode=0o700)
        os.environ.update(BRIM_STATE=f"{name}/s", BRIM_RUNTIME=f"{name}/r")
        cluster = parse_cluster("1x1xV100")
        service = ClusterService(folder / "s" / "controller", folder / "r" / "agents.sock",
                                 lambda: Controller(cluster, find_policy("eaco"), Beliefs()))  # judges no steps
        await service.start()
        await service.recovered()
        with (folder / "agent.log").open("w") as log:
            agent = subprocess.Popen([sys.executable, "-m", "brim.agent", "--devices", "1"], stdout=log, stderr=log)
        try:
            await until(lambda: service.status()["agents"], "an agent")
            bench = Bench(service, folder, core)
            for demands in SETS:
                await _one_set(bench, demands, seconds, repeats)
        finally:
            await service.stop()
            agent.terminate()
            agent.wait(PATIENCE_S)


async def _one_set(bench: Bench, demands: tuple[float, ...], seconds: float, repeats: int) -> None:
    ratios: list[list[float]] = [[] for _ in demands]
    dropped = 0
    for _ in range(repeats):
        alone = [await bench.steps_s((row,), demands, seconds) for row in range(len(demands))]
        together = await bench.steps_s(tuple(range(len(demands))), demands, seconds)
        if together is None or any(one is None for one in alone):
            dropped += 1
            continue
        for row, (step_s, one) in enumerate(zip(together, alone, strict=True)):
            assert one is not None
            ratios[row].append(step_s / one[0])
    said = f"{' + '.join(f'{demand:g}' for demand in demands)}"
    if not ratios[0]:
        print(f"{said}: others used the core each time", flush=True)
        return
    believed = DemandRule().slowdowns(demands)
    for demand, found, ratio in zip(demands, ratios, believed, strict=True):
        median = statistics.median(found)
        print(f"{said}, job of {demand:g}: {median:.2f} ({min(found):.2f} to {max(found):.2f}, {len(found)} times, "
              f"{dropped} dropped), believed {ratio:.2f} ({ratio / median - 1:+.0%}), published rule "
              f"{published(demands):.2f} ({published(demands) / median - 1:+.0%})", flush=True)


def main() -> None:
    """Measure each set of jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--core", type=int, default=1)
    options = parser.parse_args()
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {options.core})
    processes.become_subreaper()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    asyncio.run(measure(options.seconds, options.times, options.core))


if __name__ == "__main__":
    main()
