"""The first forecast of every job that waits, whether somebody asks or not: else the hit rate is of those asked about.

Once no job has been submitted for a while, a process of the lowest priority reads what is stored, forecasts the new
jobs that still wait, and prints when they are expected to start. The next one starts after a multiple of the CPU time
that it took. So neither the event loop nor a round waits for it, and it takes a small share of one core at most.

    python -m brim.foresight.first_forecasts DATABASE POLICY USER_GPUS NOW_MS < ids of jobs
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from brim.errors import BrimError
from brim.live.records import StartForecast
from brim.live.service import ClusterService

CALM_S: Final = 3.0
"""Time without submissions after which forecasts are made; ours. A job that has started by then did not wait."""
CALM_MAX_S: Final = 30.0
"""Longest wait for such a time; ours."""
CPU_FRACTION: Final = 0.1
"""Most of one core that forecasts take over time; ours."""
CPU_S_MAX: Final = 60
"""CPU time of one process, which the kernel ends after it; ours: several times what the longest queue takes."""
NICE: Final = 19
"""What the kernel knows as the lowest priority."""


class FirstForecasts:
    """Writes down the first forecasts of a service's jobs. All methods are called in its event loop.

    Args:
        service: The service.
        database: Path of what it stores.
        policy: Its policy: a preset, or a file.
        user_gpus: Most GPUs that the jobs of a user may have at the same time; NONE for no quota.
        predictability: File of its classifier; empty for that which comes with brim.
    """

    def __init__(
        self, service: ClusterService, database: Path, policy: str, user_gpus: int, predictability: str = ""
    ) -> None:
        self._service = service
        self._words = (str(database), policy, str(user_gpus), predictability)
        self._new: set[int] = set()
        self._came = asyncio.Event()

    async def run(self) -> None:
        """Go on until cancelled."""
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                await self._calm()
                jobs, self._new = sorted(filter(self._waits, self._new)), set()
                if jobs:
                    cpu_s = await self._forecast(jobs)
                    await asyncio.sleep(cpu_s * (1 / CPU_FRACTION - 1))
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        newest = max((job.id for job in self._service.jobs()), default=0)
        while True:  # a watcher that was too slow is ended, and begins again
            async for job in self._service.subscribe():
                if job.id > newest:
                    newest = job.id
                    self._new.add(newest)
                    self._came.set()

    async def _calm(self) -> None:
        """Wait until jobs have been submitted, and then for a while without."""
        await self._came.wait()
        end = time.monotonic() + CALM_MAX_S
        while self._came.is_set() and time.monotonic() < end:
            self._came.clear()
            await asyncio.sleep(CALM_S)
        self._came.clear()

    def _waits(self, number: int) -> bool:
        job = self._service.job(number)
        return job is not None and not job.has_ended and job.first_start_ms < 0

    async def _forecast(self, jobs: Sequence[int]) -> float:
        """Forecast these jobs, and return the CPU time that it took in seconds."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "brim.foresight.first_forecasts", *self._words, str(self._service.now_ms()),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:  # no process can be started at present
            sys.stderr.write(f"brim controller: no forecasts: {error}\n")
            return float(CPU_S_MAX)
        try:
            said, _ = await process.communicate(json.dumps(jobs).encode())
        except BaseException:
            process.kill()
            raise
        if process.returncode:
            return float(CPU_S_MAX)
        found = json.loads(said)
        starts = {int(job): StartForecast(*times_ms) for job, times_ms in found["starts_ms"].items()}
        if starts:
            try:
                await asyncio.wrap_future(self._service.engine.store.note_forecasts(starts, found["policy"]))
            except BrimError as error:  # the next ones may be written again
                sys.stderr.write(f"brim controller: forecasts are not written: {error}\n")
        return float(found["cpu_s"])


def main(arguments: Sequence[str]) -> int:
    """Forecast the jobs named on standard input, and print when they are expected to start; return the exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # of a controller that was killed meanwhile, nobody reads the answer
    answer = open(os.dup(sys.stdout.fileno()), "w")  # noqa: SIM115 - until this process ends
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a user's policy prints is no answer
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    from brim.core.cluster import parse_cluster  # noqa: PLC0415 - the engine: not before the priority is low
    from brim.foresight.foresight import forecasts_of, starts_of  # noqa: PLC0415
    from brim.live.believed import believed  # noqa: PLC0415
    from brim.live.controller import Controller  # noqa: PLC0415
    from brim.live.situation import situation_of  # noqa: PLC0415
    from brim.live.store.reading import Reader  # noqa: PLC0415
    from brim.policies.presets import find_policy  # noqa: PLC0415

    database, policy, user_gpus, predictability, now_ms = arguments
    jobs = json.load(sys.stdin)
    reader = Reader(Path(database))
    try:
        setting, found = reader.setting(), reader.recovered()
        assert setting is not None  # a controller has decided under it
        controller = Controller(
            parse_cluster(setting.cluster), find_policy(policy), believed(predictability), gap_ms=setting.gap_ms,
            gap_job_us=setting.gap_job_us, user_gpus=int(user_gpus),
        )
        controller.recover(found.snapshot, found.lines, found.jobs, found.attempts, int(now_ms))
        situation = situation_of(controller, int(now_ms))
        starts = starts_of(forecasts_of(situation, reader, jobs, asks_ends=False), situation.now_ms)
        named = situation.scheduler.policy.name
    except BrimError as error:
        sys.stderr.write(f"brim controller: no forecasts: {error}\n")
        return error.exit_code
    finally:
        reader.close()
    with answer:
        json.dump({"starts_ms": starts, "policy": named, "cpu_s": time.process_time()}, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
