"""Devices of an agent that never returns: given on when nothing is left there, and shown as kept before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from brim.agent.attempt_files import PIDS, PidsFile, read_fields
from brim.agent.folders import attempt_folder
from brim.agent.protocol import OPEN, REPORTS, VERSION, AgentHello, DeviceSeen, Synced
from brim.core.cluster import parse_cluster
from brim.gang.processes import find_process
from brim.live import controller as controller_module
from brim.live import service as service_module
from brim.live import vacancy
from brim.live.records import AttemptRecord
from brim.live.service import ClusterService
from brim.live.vacancy import vacancy_of
from brim.policies.presets import find_policy
from tests.live.box import Box, in_state, until

OTHER = 4_001


def attempt(*processes: int) -> AttemptRecord:
    return AttemptRecord(job=1, number=1, uid=1, state="running", decided_ms=100, processes=processes)


def test_an_attempt_is_gone_when_its_processes_or_the_boot_they_lived_in_are_and_else_nobody_knows(monkeypatch) -> None:
    me = find_process(os.getpid())
    assert me is not None
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert vacancy_of(attempt(me.pid, me.start_ticks), -1) == "alive"
    assert vacancy_of(attempt(ended.pid, 7, me.pid, me.start_ticks), -1) == "alive"
    assert vacancy_of(attempt(me.pid, me.start_ticks - 1), -1) == "gone"  # another process has the id now
    assert vacancy_of(attempt(ended.pid, 7), -1) == "gone"
    assert vacancy_of(attempt(), -1) == "unknown"
    assert vacancy_of(attempt(me.pid, me.start_ticks), 100) == "gone"  # the machine was started since
    monkeypatch.setattr(vacancy, "sees_others", lambda: False)
    assert vacancy_of(attempt(ended.pid, 7), -1) == "unknown"


def other_agent(path: Path) -> tuple[int, int]:
    """An agent of another user, which sees both devices open; its process, and a pipe that tells of its first start."""
    says, said = os.pipe()
    child = os.fork()
    if child:
        os.close(said)
        return child, says
    try:
        os.setresuid(OTHER, OTHER, OTHER)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            hello = AgentHello(version=VERSION, user="x", boot_id="b", devices=("cpu0", "cpu1"))
            for report in (hello, DeviceSeen(device=0, state=OPEN), DeviceSeen(device=1, state=OPEN), Synced()):
                connection.sendall(REPORTS.encode(report))
            while b"start_attempt" not in connection.recv(1 << 16):
                pass
            os.write(said, b"started")
            signal.pause()
    finally:
        os._exit(0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can connect as another user")
def test_devices_of_a_dead_agent_whose_processes_are_dead_are_given_to_another_user(box: Box, monkeypatch) -> None:
    monkeypatch.setattr(controller_module, "PATIENCE_MS", 300)
    monkeypatch.setattr(service_module, "LOOK_S", 0.1)

    async def scenario() -> None:
        service = ClusterService(
            box.folder / "s" / "controller", box.folder / "r" / "agents.sock",
            lambda: controller_module.Controller(parse_cluster("1x2xcpu"), find_policy("fifo"), gap_ms=10),
            allowed=frozenset({OTHER}),
        )
        await service.start()
        await service.recovered()
        for folder in (box.folder, box.folder / "r"):
            folder.chmod(0o711)
        child, says = other_agent(box.folder / "r" / "agents.sock")
        try:
            box.start_agent()
            await until(lambda: service.status()["agents"] == 2, "two agents")
            [mine] = await box.submit(service, box.resumable("mine", gpus=2))
            await in_state(service, mine, "running")
            await until(lambda: box.starts("mine"), "a start")
            [theirs] = await service.submit(OTHER, "x", [box.request("true", gpus=2)], "k")
            assert box.agent is not None
            box.agent.kill()
            box.agent.wait()
            box.agent = None
            await until(lambda: "still runs" in service.nodes()[0]["devices"][0]["detail"], "the kept device is shown")
            assert service.nodes()[0]["devices"][0]["job"] == mine
            pids = read_fields(attempt_folder(box.folder / "s" / "agent", mine, 1), PIDS, PidsFile)
            assert pids is not None
            assert service.job(theirs).state == "pending"
            for pid in (pids.pid, box.starts("mine")[0]):
                with contextlib.suppress(ProcessLookupError):  # the second may go with the first
                    os.kill(pid, signal.SIGKILL)
            await until(lambda: service.job(theirs).attempt == 1, "the devices are given on")
            assert await asyncio.to_thread(os.read, says, 10) == b"started"
            record = service.job(mine)
            assert (record.state, record.devices) == ("stopping", ())
            box.start_agent()  # it comes back after all, and the job goes on when there is room
            await until(lambda: service.job(mine).state in ("pending", "held"), "its end is known")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(says)
            await service.stop()

    asyncio.run(scenario())
