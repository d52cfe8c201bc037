"""A soak of real processes: 25 s with 5 kills, and ten minutes with 60 with ``--full``. See ``world.py``."""

from __future__ import annotations

import pytest

from tests.live.soak.witness import hold
from tests.live.soak.world import soak
from tests.sampling import sample

SECONDS, KILLS = sample((600, 60), (25, 5))


@pytest.mark.slow
def test_jobs_go_on_as_if_nobody_had_killed_controller_and_agent() -> None:
    happened = soak(SECONDS, KILLS, seed=1)
    for what in ("kills of the controller", "kills of the agent", "lines of logs"):
        assert happened[what], happened  # silence is no proof
    assert happened["kills of the controller"] + happened["kills of the agent"] >= KILLS


@pytest.mark.parametrize(("job", "attempt", "devices", "seen"), [
    ("7", "3", [], 0), ("8", "1", ["cpu1"], 0), ("7", "4", ["cpu1"], 1), ("8", "1", ["cpu0"], 1),
])  # fmt: skip
def test_the_witness_sees_two_attempts_of_a_job_and_two_jobs_on_a_device(
    tmp_path, monkeypatch, job, attempt, devices, seen
) -> None:
    """Locks of one process do not conflict with each other where the holder is a process: here it is an open file."""
    monkeypatch.setenv("BRIM_JOB_ID", "7")
    monkeypatch.setenv("BRIM_ATTEMPT", "3")
    held = hold(tmp_path, ["cpu0"])
    monkeypatch.setenv("BRIM_JOB_ID", job)
    monkeypatch.setenv("BRIM_ATTEMPT", attempt)
    held += hold(tmp_path, devices)
    violations = tmp_path / "violations"
    found = violations.read_text().splitlines() if violations.exists() else []
    assert len(found) == seen, found
