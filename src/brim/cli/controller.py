"""Which controller a verb talks to, how a job is named at the command line, and whether this user's agent runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.agent.folders import RUNTIME_VARIABLE, agent_folder, check_runtime_folder, runtime_folder, state_folder
from brim.api.client import Client
from brim.errors import ConfigError, NotFoundError
from brim.live.requests import JOBS_MAX

if TYPE_CHECKING:
    from brim.live.records import JobRecord

LAST: Final = "@"
"""Stands for this user's newest job."""


def joined_file() -> Path:
    """The file with the runtime folder of another user's controller, which ``brim join`` writes."""
    return state_folder() / "joined"


def controller_folder() -> Path:
    """Return the runtime folder of the controller of this user: named by the environment, joined, or the user's own.

    Raises:
        RefusedError: the folder of a controller that was joined is not its owner's any more.
    """
    if os.environ.get(RUNTIME_VARIABLE):
        return runtime_folder()
    try:
        owner, _, folder = joined_file().read_text(encoding="utf-8").strip().partition(" ")
    except FileNotFoundError:
        return runtime_folder()
    with contextlib.suppress(FileNotFoundError):  # the client says that there is no controller
        check_runtime_folder(Path(folder), int(owner))
    return Path(folder)


def client() -> Client:
    """Return a client of the controller, which says so when that can write nothing."""
    return Client(controller_folder() / "api.sock", _warn)


def _warn(trouble: str) -> None:
    print(f"brim: the controller {trouble}; it goes on when it can, and what is shown may be old", file=sys.stderr)


def user() -> str:
    """Return the name of this user, as the controller knows it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def find_job(at: Client, word: str) -> JobRecord:
    """Return the job that a word names: an id, ``@`` for this user's newest, or the newest of a name.

    Raises:
        NotFoundError: there is none.
        ConfigError: the word can be none of these.
    """
    if word.isascii() and word.isdigit():
        return at.job(int(word))
    if word == LAST:
        jobs = at.jobs("all", user=user(), limit=1).jobs
        if not jobs:
            raise NotFoundError("you have no job yet")
        return jobs[-1]
    found = [job for job in at.jobs("all", user=user()).jobs if job.request.name == word]
    if not found:
        raise NotFoundError(f"you have no job {word!r}: expected a job id, the name of a job, or @ for the last one")
    return found[-1]


def find_jobs(at: Client, words: list[str]) -> list[JobRecord]:
    """Return the jobs that words name, each once; ``7-16`` are several ids; see ``find_job``.

    Raises:
        NotFoundError: one of them does not exist.
        ConfigError: a range has no ids, or too many.
    """
    found: dict[int, JobRecord] = {}
    for word in words:
        first, _, last = word.partition("-")
        if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
            job = find_job(at, word)
            found[job.id] = job
            continue
        if not 0 <= int(last) - int(first) < JOBS_MAX:
            raise ConfigError(f"found the range {word}, expected one of 1 to {JOBS_MAX} ids, such as 7-16")
        known = {job.id: job for job in at.jobs("all", user=user()).jobs}
        found.update((each, known.get(each) or at.job(each)) for each in range(int(first), int(last) + 1))
    return list(found.values())


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock on a file, as controllers and agents do while they run."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def agent_runs() -> bool:
    """Whether an agent of this user runs."""
    return is_locked(agent_folder() / "lock")
