"""The agent of the controller's own user, which is started again when it is gone.

systemd, where it does that, is faster; the lock of the agent's folder keeps a second one out.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from brim.agent.folders import agent_folder
from brim.agent.starting import start_process
from brim.errors import ConfigError

if TYPE_CHECKING:
    from brim.live.service import ClusterService

LOOK_S: Final = 1.0
AWAY_S: Final = 15.0
"""Time without an agent after which it is started again, if it has jobs: when these are held without it."""


async def keep_own_agent(service: ClusterService, words: Sequence[str]) -> None:
    """Start this user's agent again whenever it has been away for a while and jobs of the user have not ended.

    The while begins with the controller, so that whoever starts both has time to. Where another agent of this user
    runs, for another controller, the new one ends at once.

    Args:
        service: The service, recovered.
        words: Options of the agent.
    """
    uid, seen_s, started = os.getuid(), time.monotonic(), None
    while True:
        await asyncio.sleep(LOOK_S)
        if started is not None:
            started.poll()
        if service.has_agent(uid):
            seen_s = time.monotonic()
        elif time.monotonic() - seen_s > AWAY_S and service.has_jobs(uid):
            seen_s = time.monotonic()
            try:
                started = start_process("brim.agent", words, agent_folder())
            except (OSError, ConfigError) as error:  # a full volume, a file in the way: another time
                sys.stderr.write(f"brim: the agent cannot be started: {error}; trying again in {AWAY_S:g} s\n")
                sys.stderr.flush()
