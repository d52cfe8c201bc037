"""A machine with a controller's service and a real agent, for tests of both: commands, waiting, and what jobs say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from brim.agent.capture import write_capture
from brim.agent.folders import captures_folder
from brim.core.cluster import parse_cluster
from brim.live.controller import Controller
from brim.live.records import JobRecord
from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from tests import forked, zygotes

PATIENCE_S = 120
"""Longest wait for something that must happen; no test waits so long on a machine that works."""

RESUMES = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
with open(folder / "starts", "a") as file:
    print(os.getpid(), file=file)
while not (folder / "end").exists():
    time.sleep(0.02)
"""
"""Runs until a file tells it to end, and can be stopped at any time."""


class Box:
    """A machine of two CPU slots with the state of a controller, and an agent that is started once."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="brim-", dir="/tmp"))
        self.env = {
            **os.environ, "BRIM_STATE": str(self.folder / "s"), "BRIM_RUNTIME": str(self.folder / "r"),
        }
        (self.folder / "r").mkdir(mode=0o700)
        self.agent: forked.Process | None = None
        self.agents: list[forked.Process] = []
        self.keys = 0

    def start_agent(self) -> None:
        with open(self.folder / "agent.log", "ab") as log:
            self.agent = forked.Process(
                "-m", "tests.live.forked_agent", "--devices", 2, zygote=zygotes.of_tests(), cwd=str(forked.ROOT),
                env=self.env, output=log,
            )  # fmt: skip
        self.agents.append(self.agent)

    def service(self, policy: str | Policy = "srtf", cluster: str = "1x2xcpu") -> ClusterService:
        return ClusterService(
            self.folder / "s" / "controller", self.folder / "r" / "agents.sock", lambda: Controller(
                parse_cluster(cluster), find_policy(policy) if isinstance(policy, str) else policy, gap_ms=10,
            ),
        )

    def request(self, *command: str, env: dict[str, str] | None = None, **fields) -> JobRequest:
        """A request for a command that runs in this folder."""
        captures = captures_folder(self.folder / "s" / "agent")
        name, digest = write_capture(captures, command, {**os.environ, **(env or {})}, str(self.folder))
        return JobRequest(**{"name": "job", "capture": name, "digest": digest} | fields)

    def resumable(self, name: str, **fields) -> JobRequest:
        (self.folder / name).mkdir()
        return self.request(sys.executable, "-I", "-S", "-c", RESUMES, str(self.folder / name), **fields)

    def starts(self, name: str) -> list[int]:
        """Process ids of the job's starts."""
        path = self.folder / name / "starts"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def end(self, name: str) -> None:
        (self.folder / name / "end").touch()

    async def submit(self, service: ClusterService, *requests: JobRequest) -> list[int]:
        self.keys += 1
        return list(await service.submit(os.getuid(), "me", requests, f"key-{self.keys}"))

    def close(self) -> None:
        (self.folder / "end").touch()
        for name in os.listdir(self.folder):
            if (self.folder / name).is_dir():
                (self.folder / name / "end").touch()
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait(PATIENCE_S)
        while left := self.processes():  # jobs outlive an agent, and those of a test that failed would run for ever
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.02)
        for agent in self.agents:
            agent.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> list[psutil.Process]:
        """Those that run in this folder, or name it in their command line."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                    continue
                words = [process.cwd(), *process.cmdline()]
                if any(str(self.folder) in word for word in words):
                    found.append(process)
        return found


async def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    for _ in range(PATIENCE_S * 100):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


async def in_state(service: ClusterService, job: int, state: str) -> JobRecord:
    await until(lambda: service.job(job).state == state or service.job(job).has_ended, f"job {job} {state}")
    record = service.job(job)
    assert record.state == state, record
    return record


def running(
    box: Box, scenario: Callable[[ClusterService], Awaitable[None]], policy: str | Policy = "srtf",
    cluster: str = "1x2xcpu",
) -> None:
    """Run a scenario on a service with an agent."""

    async def whole() -> None:
        service = box.service(policy, cluster)
        await service.start()
        await service.recovered()
        try:
            if box.agent is None:
                box.start_agent()
            await until(lambda: service.status()["agents"] == 1, "an agent")
            await scenario(service)
        finally:
            await service.stop()

    asyncio.run(whole())


def run_and_kill(
    box: Box, scenario: Callable[[ClusterService], Awaitable[None]], policy: str | Policy, cluster: str = "1x2xcpu"
) -> None:
    """Run a scenario on a service in a process of its own, and kill that with SIGKILL when the scenario has ended."""
    says, said = os.pipe()
    child = os.fork()
    if not child:
        try:
            async def life() -> None:
                service = box.service(policy, cluster)
                await service.start()
                await service.recovered()
                await scenario(service)
                os.write(said, b".")
                await service.wait()

            asyncio.run(life())
        finally:
            os._exit(1)
    os.close(said)
    try:
        assert os.read(says, 1) == b".", "the scenario failed"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(says)
