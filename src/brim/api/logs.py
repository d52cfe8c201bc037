"""What jobs of the controller's own user wrote. The logs of others are in folders that only they can read."""

from __future__ import annotations

import os
import stat
from typing import Final

from brim.agent.folders import agent_folder, log_folder
from brim.errors import NotFoundError, RefusedError
from brim.live.records import JobRecord

PART_BYTES_MAX: Final = 1 << 20
"""Most bytes of one answer; ours."""


def read_log(job: JobRecord, rank: int, offset: int) -> bytes:
    """Return a part of the log of the newest attempt of a job.

    Raises:
        RefusedError: the job is another user's, whose agent keeps its logs.
        NotFoundError: there is no such log.
    """
    if job.uid != os.getuid():
        raise RefusedError(f"the log of job {job.id} is kept by the agent of user {job.user}, who alone can read it")
    path = log_folder(agent_folder(), job.id, job.attempt) / f"rank-{rank}.log"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise NotFoundError(f"job {job.id} has written nothing as rank {rank} in attempt {job.attempt}") from None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RefusedError(f"the log of job {job.id} is not a file")
        file.seek(offset)
        return file.read(PART_BYTES_MAX)
