"""The agent of the controller's own user, which is started again when it is gone.

systemd, where it does that, is faster; the lock of the agent's folder keeps a second one out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from brim.agent.folders import agent_folder

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
            started, seen_s = _start(words), time.monotonic()


def _start(words: Sequence[str]) -> subprocess.Popen[bytes]:
    with open(agent_folder() / "log", "ab", opener=_private) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "brim.agent", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            start_new_session=True,
        )  # fmt: skip


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
