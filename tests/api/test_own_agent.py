"""The agent of the controller's own user is started again, also after it could not be."""

from __future__ import annotations

import asyncio

import pytest

from brim.api import own_agent


class Away:
    """A service whose user's agent is away while jobs wait."""

    def has_agent(self, uid):
        return False

    def has_jobs(self, uid):
        return True


@pytest.mark.parametrize(("file", "why"), [
    ("state", "BRIM_STATE: found "), ("state/agent", "[Errno 17] File exists"),
], ids=["state", "agent"])  # fmt: skip
def test_an_agent_that_cannot_be_started_is_tried_again_and_the_log_says_why(
    monkeypatch, tmp_path, capsys, file, why
):
    monkeypatch.setenv("BRIM_STATE", str(tmp_path / "state"))
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("in the way of the folder")
    monkeypatch.setattr(own_agent, "LOOK_S", 0.0)
    monkeypatch.setattr(own_agent, "AWAY_S", 0.0)
    said = ""

    async def until_it_was_tried_twice():
        nonlocal said
        keeping = asyncio.create_task(own_agent.keep_own_agent(Away(), []))
        while said.count(f"the agent cannot be started: {why}") < 2:
            assert not keeping.done(), keeping.exception()
            await asyncio.sleep(0)
            said += capsys.readouterr().err
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping

    asyncio.run(asyncio.wait_for(until_it_was_tried_twice(), 60))
