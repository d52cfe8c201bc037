"""The service with the real store, the real agent and real commands: submit, preempt, resume, kill, adopt."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from brim.agent.protocol import OPEN, QUARANTINED, REPORTS, VERSION, AgentHello, DeviceSeen
from brim.core.cluster import parse_cluster
from brim.errors import ConfigError, NotFoundError, RefusedError
from brim.live import engine_thread
from brim.live import service as service_module
from brim.live.billing import bill_of
from brim.live.controller import Controller
from brim.live.recording import recorded_jobs
from brim.live.records import JobRecord
from brim.live.requests import UNIX_S_MAX
from brim.live.service import COMMAND_S, ClusterService
from brim.live.store.errors import KeyReusedError, NotAcceptedError
from brim.policies.presets import find_policy
from tests.live.box import PATIENCE_S, Box, in_state, run_and_kill, running, until
from tests.live.in_parts import InParts

TWO_SLOTS = parse_cluster("1x2xcpu-slot")
EQUAL_PARTS = replace(find_policy("elastic"), name="equal", size=InParts(2), gap_ms=0, period_ms=0)


def test_a_job_that_may_begin_in_a_thousand_years_keeps_nobody_waiting(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        [late] = await box.submit(service, box.request("true", begin_s=UNIX_S_MAX))
        await until(lambda: service.job(late).state == "held", "the hold")
        [job] = await box.submit(service, box.request("true"))
        await in_state(service, job, "finished")
        assert service.job(late).state == "held"

    running(box, scenario)


def test_a_policy_that_does_not_return_is_told_and_keeps_no_service_from_ending(box: Box, monkeypatch) -> None:
    monkeypatch.setattr(engine_thread, "STALL_S", 0.5)
    monkeypatch.setattr(engine_thread, "JOIN_S", 0.5)
    goes_on = threading.Event()

    class Hangs:
        def __call__(self, snapshot, beliefs):
            assert not len(snapshot.jobs) or goes_on.wait(PATIENCE_S)
            return snapshot.jobs.id

    async def scenario(service: ClusterService) -> None:
        assert service.trouble == ""
        [job] = await box.submit(service, box.request("true"))
        await until(lambda: service.trouble, "the trouble")
        assert re.fullmatch(r"has waited \d+ s for its policy: nothing starts meanwhile", service.trouble)
        assert service.job(job).state == "pending"

    began_s = time.monotonic()
    running(box, scenario, replace(find_policy("fifo"), name="hangs", order=Hangs()))
    assert time.monotonic() - began_s < PATIENCE_S
    goes_on.set()


def test_a_job_is_preempted_for_a_shorter_one_and_comes_back_by_itself(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        changes: list[JobRecord] = []

        async def watch() -> None:
            async for job in service.subscribe():
                changes.append(job)  # noqa: PERF401 - it is read while this goes on

        watching = asyncio.create_task(watch())
        [long] = await box.submit(service, box.resumable("long", gpus=2, time_limit_s=3_600))
        await in_state(service, long, "running")
        await until(lambda: box.starts("long"), "a first start")
        [short] = await box.submit(service, box.resumable("short", gpus=1, time_limit_s=60))
        await in_state(service, short, "running")
        assert service.job(long).state == "pending"
        assert (service.job(long).preemptions, service.job(long).failures) == (1, 0)
        assert service.nodes()[0]["devices"][service.job(short).devices[0]]["job"] == short
        assert service.explain(long).startswith(f"job {long} ")
        box.end("short")
        done = await in_state(service, short, "finished")
        assert (done.exit_code, done.attempt) == (0, 1)
        await in_state(service, long, "running")
        await until(lambda: len(box.starts("long")) == 2, "a second start")
        box.end("long")
        done = await in_state(service, long, "finished")
        assert (done.attempt, done.preemptions, done.exit_code) == (2, 1, 0)
        states = [job.state for job in changes if job.id == long]
        assert [state for n, state in enumerate(states) if not n or state != states[n - 1]] == [
            "pending", "starting", "running", "stopping", "pending", "starting", "running", "finished",
        ]
        watching.cancel()

    running(box, scenario)


def test_a_plain_job_is_not_started_over_for_those_that_come_later(box: Box) -> None:
    """Wider ones, under the preset that makes room for them if a job saves; a job that reports nothing may not."""

    async def scenario(service: ClusterService) -> None:
        script = "echo $$ >> starts; until [ -e end ]; do sleep 0.05; done"
        [plain] = await box.submit(service, box.request("sh", "-c", script))
        await until((box.folder / "starts").exists, "a start")
        await in_state(service, plain, "running")
        wide = []
        for _ in range(3):
            wide += await box.submit(service, box.request("true", gpus=2))
            decided = service.status()["rounds"]
            await until(lambda decided=decided: service.status()["rounds"] > decided, "a round")
        assert [service.job(job).state for job in (plain, *wide)] == ["running", *["pending"] * 3]
        (box.folder / "end").touch()
        for job in (plain, *wide):
            ended = await in_state(service, job, "finished")
            assert (ended.attempt, ended.preemptions) == (1, 0)
        assert len((box.folder / "starts").read_text().splitlines()) == 1

    running(box, scenario, replace(find_policy("brim"), gap_ms=0, period_ms=100))


@pytest.mark.slow
def test_what_a_preempted_job_that_does_not_save_has_done_is_lost_work(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        [long] = await box.submit(service, box.request("sleep", "600", gpus=2, time_limit_s=3_600))
        await in_state(service, long, "running")
        await asyncio.sleep(1.0)
        [short] = await box.submit(service, box.request("true", time_limit_s=60))
        await in_state(service, short, "finished")
        await until(lambda: service.job(long).attempt == 2, "a second start")
        job, attempts = service.job(long), service._store.reads.attempts(long)
        assert job.lost_gpu_s > 2 * 1.0
        [taken] = bill_of(recorded_jobs([job], attempts, [], service.now_ms()), TWO_SLOTS, service.now_ms()).taken
        first_ms = attempts[0].end_ms - attempts[0].decided_ms
        assert job.lost_gpu_s <= taken.thrown_away_gpu_s == 2 * first_ms / 1000
        await service.command(os.getuid(), "cancel", [long], may_change=bool)
        await in_state(service, long, "cancelled")

    running(box, scenario)


@pytest.mark.slow
def test_a_job_that_ends_while_the_controller_is_suspended_has_not_run_until_that_goes_on(box: Box) -> None:
    """Nothing is read meanwhile; its agent lives and has said so at once."""

    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, box.request("sleep", "1"))
        await in_state(service, job, "running")
        time.sleep(4)
        record = await in_state(service, job, "finished")
        [attempt] = service._store.reads.attempts(job)
        assert 1_000 <= attempt.end_ms - attempt.begin_ms < 2_500, attempt
        assert record.ended_ms == attempt.end_ms < service.now_ms() - 1_000

    running(box, scenario)


def test_commands_of_users(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        uid = os.getuid()
        one = box.resumable("one")
        [job] = await box.submit(service, one)
        await in_state(service, job, "running")
        assert (await service.submit(uid, "me", [one], "key-1")) == (job,)
        with pytest.raises(KeyReusedError):
            await service.submit(uid, "me", [box.request("true")], "key-1")
        [held] = await box.submit(service, box.request("true", hold=True))
        assert service.job(held).state == "held"
        released = await service.command(uid, "release", [held], may_change=bool)
        assert released[held].state in ("starting", "running", "finished")
        await in_state(service, held, "finished")
        foreign = await service.command(uid, "cancel", [job], may_change=lambda _: False)
        assert str(foreign[job]) == f"there is no job {job} of yours"
        many = [99, job, *await box.submit(service, *[box.request("true", hold=True)] * 3), job]
        answers = await service.command(uid, "cancel", many, may_change=bool)
        assert list(answers) == many[:-1]
        assert type(answers[99]) is NotFoundError
        assert answers[job].state in ("stopping", "cancelled")  # it may have ended before the answer
        assert [answers[each].state for each in many[2:-1]] == ["cancelled"] * 3
        await in_state(service, job, "cancelled")
        again = (await service.command(uid, "cancel", [job], may_change=bool))[job]
        assert (type(again), str(again)) == (
            RefusedError, f"job {job} has ended as cancelled: there is nothing to cancel"
        )
        [missing] = await box.submit(service, box.request("/no/such/command", attempts_max=1))
        await until(lambda: service.job(missing).has_ended, "an end")
        assert service.job(missing).state == "failed"
        history = service.engine.store.reads.history()
        assert history.since_ms == 0, "a new cluster's journal is whole"
        [impossible] = await box.submit(service, box.request("true", gpus=3))
        await until(lambda: service.job(impossible).holds, "a hold")
        assert service.explain(impossible) == (
            f"job {impossible} is held: impossible: it needs 3 GPUs, the cluster has 2."
        )

    running(box, scenario, "fifo")


def test_a_command_that_is_handled_before_its_caller_is_told_that_it_is_durable_is_answered_at_once(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        [held] = await box.submit(service, box.request("true", hold=True))
        answers = asyncio.create_task(service.command(os.getuid(), "cancel", [held], may_change=bool))
        await asyncio.sleep(0)
        time.sleep(0.5)  # while other calls of the event loop go on, such as a long listing
        answered = await asyncio.wait_for(answers, COMMAND_S / 2)
        assert answered[held].state == "cancelled"

    running(box, scenario)


def test_a_watcher_that_has_read_nothing_is_ended_with_the_service(box: Box, monkeypatch) -> None:
    monkeypatch.setattr(service_module, "CHANGES_KEPT", 1)
    watching = []

    async def scenario(service: ClusterService) -> None:
        changes = service.subscribe()
        watching.append(changes)
        first = asyncio.create_task(anext(changes))
        await asyncio.sleep(0)
        [job] = await box.submit(service, box.request("true", hold=True))
        assert (await first).id == job
        await box.submit(service, box.request("true", hold=True))  # which is the only one kept
        await until(lambda: len(service.jobs()) == 2, "the change")

    running(box, scenario)


@pytest.mark.slow
def test_a_training_job_shrinks_for_another_and_grows_again_in_one_attempt(box: Box) -> None:
    trainer = Path(__file__).parents[1] / "agent" / "trainer.py"
    log = box.folder / "s" / "agent" / "attempts" / "1-1" / "log" / "rank-0.log"
    limits = {"gpus": 1, "gpus_min": 1, "gpus_max": 2, "ranks": "per-gpu", "batch": 16}

    def said(text: str) -> bool:
        return log.exists() and text in (["", *log.read_text().splitlines()])[-1]

    async def scenario(service: ClusterService) -> None:
        env = {"BRIM_CKPT_DIR": str(box.folder / "c")}
        command = (sys.executable, str(trainer), str(box.folder / "end"))
        [long] = await box.submit(service, box.request(*command, env=env, **limits))
        await until(lambda: said("size 2"), "training on two devices")
        await until(lambda: service.job(long).samples_done > 0, "progress")
        [short] = await box.submit(service, box.resumable("short"))
        await in_state(service, short, "running")
        assert len(service.job(long).devices) == 1
        await until(lambda: said("size 1"), "training on one device")
        box.end("short")
        await in_state(service, short, "finished")
        await until(lambda: said("size 2"), "training on two devices again")
        await in_state(service, long, "running")  # the agent tells so after the ranks have written it
        assert service.job(long).attempt == 1
        (box.folder / "end").touch()
        await in_state(service, long, "finished")

    running(box, scenario, EQUAL_PARTS)


def test_a_killed_controller_is_followed_by_one_that_adopts_what_runs(box: Box) -> None:
    requests = [box.resumable("a"), box.resumable("b")]
    box.start_agent()

    async def before(service: ClusterService) -> None:
        for job in await box.submit(service, *requests):
            await in_state(service, job, "running")

    run_and_kill(box, before, "fifo")

    async def scenario(service: ClusterService) -> None:
        assert [service.job(job).state for job in (1, 2)] == ["running"] * 2
        [third] = await box.submit(service, box.resumable("c", gpus=2))
        box.end("a")
        await in_state(service, 1, "finished")
        assert service.job(2).state == "running"
        box.end("b")
        await in_state(service, 2, "finished")
        await in_state(service, third, "running")
        box.end("c")
        await in_state(service, third, "finished")
        assert [service.job(job).attempt for job in (1, 2, third)] == [1, 1, 1]
        assert [len(box.starts(name)) for name in "abc"] == [1, 1, 1]

    box.keys += 1
    running(box, scenario, "fifo")


def test_an_agent_of_another_version_or_of_other_devices_is_not_used(box: Box) -> None:
    async def scenario() -> None:
        service = box.service()
        await service.start()
        await service.recovered()
        try:
            for hello in (
                AgentHello(version=VERSION + 1, user="me", boot_id="b", devices=("cpu0", "cpu1")),
                AgentHello(version=VERSION, user="me", boot_id="b", devices=("cpu0",)),
            ):
                reader, writer = await asyncio.open_unix_connection(str(box.folder / "r" / "agents.sock"))
                writer.write(REPORTS.encode(hello))
                assert await reader.read() == b""
                writer.close()
            assert service.status()["agents"] == 0
        finally:
            await service.stop()

    asyncio.run(scenario())


def test_a_state_of_a_device_that_does_not_exist_is_shown_to_nobody(box: Box) -> None:
    async def scenario() -> None:
        service = box.service("fifo")
        await service.start()
        await service.recovered()
        try:
            _, writer = await asyncio.open_unix_connection(str(box.folder / "r" / "agents.sock"))
            for report in (
                AgentHello(version=VERSION, user="me", boot_id="b", devices=("cpu0", "cpu1")),
                DeviceSeen(device=0, state=OPEN), DeviceSeen(device=0, state="\ud800"),
                DeviceSeen(device=1, state=QUARANTINED),
            ):
                writer.write(REPORTS.encode(report))
            await until(lambda: service.nodes()[0]["devices"][1]["state"] == QUARANTINED, "the last report")
            assert [device["state"] for device in service.nodes()[0]["devices"]] == [OPEN, QUARANTINED]
            writer.close()
        finally:
            await service.stop()

    asyncio.run(scenario())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can connect as another user")
def test_an_agent_of_a_user_who_was_not_allowed_is_refused(box: Box) -> None:
    async def scenario() -> None:
        service = ClusterService(
            box.folder / "s" / "controller", box.folder / "r" / "agents.sock",
            lambda: Controller(parse_cluster("1x2xcpu"), find_policy("fifo")), allowed=frozenset({4_001}),
        )
        await service.start()
        await service.recovered()
        try:
            (box.folder / "r").chmod(0o711)
            box.folder.chmod(0o711)
            for uid, wait_s, what in ((4_001, 1.0, "stays"), (4_002, PATIENCE_S, "closed")):
                assert await asyncio.to_thread(_connect_as, uid, box.folder / "r" / "agents.sock", wait_s) == what
        finally:
            await service.stop()

    asyncio.run(scenario())


def _connect_as(uid: int, path: Path, wait_s: float) -> str:
    """Connect as another user, say hello, and tell whether the connection stays open for this time."""
    says, said = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.settimeout(wait_s)
                hello = AgentHello(version=VERSION, user="x", boot_id="b", devices=("cpu0", "cpu1"))
                try:
                    connection.sendall(REPORTS.encode(hello))
                    os.write(said, b"stays" if connection.recv(1) else b"closed")
                except TimeoutError:
                    os.write(said, b"stays")
                except OSError:
                    os.write(said, b"closed")
        finally:
            os._exit(0)
    os.close(said)
    os.waitpid(child, 0)
    with open(says, "rb") as file:
        return file.read().decode()


def test_before_the_engine_is_loaded_jobs_are_shown_and_taken_and_the_rest_is_refused(box: Box) -> None:
    """After a kill the first answers come from the store alone; what is accepted is decided later, once."""
    loaded = threading.Event()

    def controller() -> Controller:
        loaded.wait(PATIENCE_S)
        return Controller(parse_cluster("1x2xcpu"), find_policy("fifo"), gap_ms=10)

    async def scenario() -> None:
        before = box.service("fifo")
        await before.start()
        await before.recovered()
        [held] = await box.submit(before, box.resumable("held", hold=True))
        await before.stop()
        service = ClusterService(box.folder / "s" / "controller", box.folder / "r" / "agents.sock", controller)
        await service.start()
        try:
            assert [job.id for job in service.jobs()] == [held]
            request = box.resumable("new")
            [new] = await service.submit(os.getuid(), "me", [request], "once")
            assert list(await service.submit(os.getuid(), "me", [request], "once")) == [new]
            await until(lambda: len(service.jobs()) == 2, "the new job is shown")
            for asked in (service.status, service.nodes, lambda: service.explain(held)):
                with pytest.raises(NotAcceptedError, match="has just been started"):
                    asked()
            loaded.set()
            await service.recovered()
            box.start_agent()
            await in_state(service, new, "running")
            assert service.job(held).state == "held"
            assert service.status()["policy"] == "fifo"
            box.end("new")
            await in_state(service, new, "finished")
            assert len(box.starts("new")) == 1
        finally:
            loaded.set()
            await service.stop()

    asyncio.run(scenario())


def test_a_policy_that_cannot_be_used_ends_the_service_although_it_answers(box: Box) -> None:
    async def scenario() -> None:
        service = box.service("nonsense")
        await service.start()
        try:
            with pytest.raises(ConfigError, match="nonsense"):
                await service.recovered()
        finally:
            await service.stop()

    asyncio.run(scenario())
