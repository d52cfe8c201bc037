"""What a test that fails in the middle leaves behind."""

from __future__ import annotations

import sys

from brim.live.service import ClusterService
from tests.live.box import Box, in_state, running


def test_a_job_that_nobody_ends_is_gone_with_its_machine() -> None:
    """It would take a core from all tests after it."""
    box = Box()

    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, box.request(sys.executable, "-c", "while True: pass"))
        await in_state(service, job, "running")

    running(box, scenario)
    assert box.processes()
    box.close()
    assert not box.processes()
