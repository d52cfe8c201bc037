"""Measure a change from 2 to 4 devices and back that the controller decides, beside the same change asked of the gang.

    python live_resize.py [--times 5]

The job has 100 MB of state, the same as in resize.py, which explains the lost time. Service, agent, supervisor and
ranks run on this machine with 4 CPU slots, under a policy that shares devices equally: a second job arrives, so that
the first one shrinks, and ends, so that it grows. The line below asks a supervisor without controller and agent.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import resize  # noqa: E402
from brim.agent.capture import write_capture  # noqa: E402
from brim.agent.folders import captures_folder  # noqa: E402
from brim.core.cluster import parse_cluster  # noqa: E402
from brim.live.controller import Controller  # noqa: E402
from brim.live.requests import JobRequest  # noqa: E402
from brim.live.service import ClusterService  # noqa: E402
from brim.policies.presets import find_policy  # noqa: E402
from brim.policies.sockets import Sizes  # noqa: E402
from torchft_replicas import JOB  # noqa: E402

PATIENCE_S = 120
SETTLED_S = 2.0
"""Training between two changes, as in resize.py."""


@dataclass(frozen=True)
class InParts:
    """As many of four devices for each job as for every other, as far as its limits allow."""

    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order):
        jobs = snapshot.jobs
        return Sizes(gpus=np.clip(4 // max(len(jobs), 1), jobs.gpus_min, jobs.gpus_max))


POLICY = replace(find_policy("elastic"), name="equal parts", size=InParts(), period_ms=0)


async def until(holds, what):
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what}: not seen within {PATIENCE_S} s")
        await asyncio.sleep(0.05)


async def with_controller(times):
    """Return the seconds lost by ranks that stay, and from a decision's cause to the first step on the new number."""
    with tempfile.TemporaryDirectory(prefix="brim-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "r").mkdir(mode=0o700)
        (folder / "notes").mkdir()
        os.environ.update(BRIM_STATE=f"{name}/s", BRIM_RUNTIME=f"{name}/r", OMP_NUM_THREADS="1")
        service = ClusterService(
            folder / "s" / "controller", folder / "r" / "agents.sock",
            lambda: Controller(parse_cluster("1x4xcpu"), POLICY),
        )
        await service.start()
        await service.recovered()
        with (folder / "agent.log").open("w") as log:
            agent = subprocess.Popen([sys.executable, "-m", "brim.agent", "--devices", "4"], stdout=log, stderr=log)
        keys = iter(range(10**6))

        async def submit(*command, **fields):
            captures = captures_folder(folder / "s" / "agent")
            capture, digest = write_capture(captures, command, dict(os.environ), name)
            request = JobRequest(**{"name": "job", "capture": capture, "digest": digest} | fields)
            return (await service.submit(os.getuid(), "me", [request], f"key-{next(keys)}"))[0]

        try:
            await until(lambda: service.status()["agents"], "an agent")
            notes = folder / "notes"
            job = await submit(
                sys.executable, str(JOB), str(notes), gpus=4, gpus_min=1, gpus_max=4, ranks="per-gpu", batch=16,
            )
            await until(lambda: resize.last_of(notes, 4), "training on 4 devices")
            for _ in range(times):
                await asyncio.sleep(SETTLED_S)
                other = await submit("/bin/sleep", "1000", gpus=1, grace_s=0.0)
                await until(lambda: resize.last_of(notes, 2), "2 devices")
                await until(lambda other=other: service.job(other).state == "running", "the other job")
                await asyncio.sleep(SETTLED_S)
                await service.command(os.getuid(), "cancel", [other], may_change=bool)
                await until(lambda: resize.last_of(notes, 4), "4 devices again")
            assert service.job(job).attempt == 1
            await service.command(os.getuid(), "cancel", [job], may_change=bool)
            await until(lambda: service.job(job).has_ended, "the end")
        finally:
            await service.stop()
            agent.terminate()
            agent.wait(PATIENCE_S)
        return resize.gaps(notes)


def shown(name, lost):
    for change in resize.CHANGES:
        middle = statistics.median(lost[change])
        print(f"{change[0]} -> {change[1]}: {name} {middle:.3f} s "
              f"(least {min(lost[change]):.3f}, most {max(lost[change]):.3f} of {len(lost[change])})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    print(f"{resize.MEGABYTES:.0f} MB of state, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    alone = resize.with_brim(options.times)
    shown("brim.train alone", alone)
    decided = asyncio.run(with_controller(options.times))
    shown("decided by the controller", decided)
    for change in resize.CHANGES:
        more = statistics.median(decided[change]) - statistics.median(alone[change])
        print(f"{change[0]} -> {change[1]}: {more:+.3f} s beyond brim.train alone, target at most +0.1")


if __name__ == "__main__":
    main()
