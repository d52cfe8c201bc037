"""An elastic job whose model is not known: its steps are timed on its first grant, and it then trains as without."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from tests.live.box import Box, in_state, run_and_kill, running, until

TRAINER = Path(__file__).parents[1] / "agent" / "trainer.py"
SLOW = Path(__file__).parent / "timed_job.py"


def training(box: Box, folder: str, **fields) -> JobRequest:
    """A job for one device or both, of a batch of 16; a file in this folder ends it."""
    (box.folder / folder).mkdir()
    limits = {"gpus": 1, "gpus_min": 1, "gpus_max": 2, "ranks": "per-gpu", "batch": 16, "local_batch_max": 16}
    env = {"BRIM_CKPT_DIR": str(box.folder / folder / "c")}
    return box.request(sys.executable, str(TRAINER), str(box.folder / folder / "end"), env=env,
                       **{"name": "model"} | limits | fields)  # fmt: skip


def measured(service: ClusterService) -> set[tuple[int, int]]:
    """GPUs and local batches of which step times are known."""
    state = service.engine._controller.scheduler.state
    seen = state.freeze(state.now_ms).seen
    return set(zip(seen.gpus.tolist(), seen.local_batch.tolist(), strict=True))


@pytest.mark.slow
def test_a_job_is_analysed_on_its_first_grant_and_its_like_is_not(box: Box) -> None:
    attempts = box.folder / "s" / "agent" / "attempts"

    async def scenario(service: ClusterService) -> None:
        [first] = await box.submit(service, training(box, "first"))
        await until(lambda: "its steps are timed first" in service.job(first).reason, "an analysis")
        await in_state(service, first, "running")
        analysed = json.loads((attempts / "1-1" / "analysis.json").read_text())["steps"]
        assert analysed[::2] == [8, 9, 11, 12, 14, 16]
        assert {(1, local) for local in analysed[::2]} <= measured(service)
        box.end("first")
        done = await in_state(service, first, "finished")
        assert (done.attempt, done.failures) == (1, 0)
        [second] = await box.submit(service, training(box, "second"))
        await in_state(service, second, "running")
        assert not (attempts / "2-1" / "analysis.json").exists()
        box.end("second")
        await in_state(service, second, "finished")

    running(box, scenario, "elastic")


def processes_with(*words: str) -> list[str]:
    """Command lines of all processes that have these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(word in line for word in words):
                found.append(line)
    return found


def slow(box: Box, folder: str) -> JobRequest:
    """A job whose analysis takes long."""
    (box.folder / folder).mkdir()
    limits = {"gpus": 1, "gpus_min": 1, "gpus_max": 2, "ranks": "per-gpu", "batch": 16, "local_batch_max": 16}
    return box.request(sys.executable, str(SLOW), str(box.folder / folder / "end"), "0.5", "2", name=folder, **limits)


def test_a_job_that_is_cancelled_while_it_is_analysed_leaves_nothing(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, slow(box, "cancelled"))
        ranks = ("tools.profile.rank", str(box.folder / "cancelled"))  # other tests have some, too
        await until(lambda: processes_with(*ranks), "ranks of the analysis")
        await service.command(os.getuid(), "cancel", [job], may_change=bool)
        await in_state(service, job, "cancelled")
        assert not processes_with(str(box.folder / "cancelled"))
        [attempt] = service.engine.store.reads.history().attempts
        assert (attempt.outcome, attempt.detail) == ("stopped", "cancelled while its steps were timed"), "at once"

    running(box, scenario, "elastic")


@pytest.mark.slow
def test_an_analysis_goes_on_without_agent_and_controller(box: Box) -> None:
    """They are killed while it runs: the job then trains in its first attempt, and what was measured is known."""
    box.start_agent()

    async def before(service: ClusterService) -> None:
        await box.submit(service, training(box, "first"))
        await until(lambda: processes_with(str(box.folder / "first")), "ranks of the analysis")

    run_and_kill(box, before, "elastic")
    assert box.agent is not None
    box.agent.kill()
    box.agent.wait()
    box.agent = None

    async def scenario(service: ClusterService) -> None:
        job = await in_state(service, 1, "running")
        assert job.attempt == 1
        await until(lambda: {(1, 8), (1, 16)} <= measured(service), "what was measured")
        box.end("first")
        await in_state(service, 1, "finished")

    running(box, scenario, "elastic")


def test_a_script_that_is_not_of_brim_train_is_run_once(box: Box) -> None:
    script = box.folder / "plain.py"
    script.write_text("import sys\nopen(sys.argv[1], 'a').write('ran ')\n")

    async def scenario(service: ClusterService) -> None:
        limits = {"gpus": 1, "gpus_min": 1, "gpus_max": 2, "ranks": "per-gpu", "batch": 16, "local_batch_max": 16}
        [job] = await box.submit(service, box.request(sys.executable, str(script), str(box.folder / "said"), **limits))
        await in_state(service, job, "finished")
        assert (box.folder / "said").read_text() in ("ran ", "ran ran "), "once for each rank"
        log = box.folder / "s" / "agent" / "attempts" / "1-1" / "log" / "analysis" / "rank-0.log"
        assert log.read_text() == f"{script} does not name brim.train, so it is not run to be measured\n"

    running(box, scenario, "elastic")
