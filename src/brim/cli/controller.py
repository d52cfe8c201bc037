"""Which controller a verb talks to, and how a job is named at the command line."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.agent.folders import RUNTIME_VARIABLE, check_runtime_folder, runtime_folder, state_folder
from brim.agent.users import user_name
from brim.api.client import Client, NoControllerError
from brim.errors import ConfigError, NotFoundError, shown
from brim.live.requests import ID_MAX, JOBS_MAX, NONE
from brim.units import parse_whole

if TYPE_CHECKING:
    from brim.live.records import JobRecord

AWAY_S: Final = 600.0
"""Longest wait of a command that follows a job for the next controller; ours: an upgrade takes a minute or two."""
LAST: Final = "@"
"""Stands for this user's newest job."""
_IDS: Final = re.compile(r"(?P<first>[0-9]+)(?:-(?P<last>[0-9]+)|_(?P<indices>[0-9]+[0-9,:-]*|\[[0-9,:-]+\]))?")
"""Ids, or Slurm's name for jobs of an array."""


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


class FollowedJob:
    """A job that a command waits for, also while a controller has ended and the next one has not come.

    Args:
        at: A client of the controller.
        job: Job id.
    """

    def __init__(self, at: Client, job: int) -> None:
        self._at, self._found = at, at.job(job)
        self._away_since_s: float | None = None

    def look(self) -> JobRecord:
        """Return the job as it is; as it was last seen while there is no controller.

        Raises:
            NoControllerError: there has been none for too long, or this user may not use it any more.
        """
        try:
            self._found = self._at.job(self._found.id)
        except NoControllerError as error:
            now_s = time.monotonic()
            if self._away_since_s is None:
                self._away_since_s = now_s
                print(f"brim: no controller answers; job {self._found.id} goes on, and this waits for the next one",
                      file=sys.stderr)
            if now_s - self._away_since_s > AWAY_S or isinstance(error.__cause__, PermissionError):
                raise
        else:
            self._away_since_s = None
        return self._found


def _warn(trouble: str) -> None:
    print(f"brim: the controller {trouble}; it goes on when it can, and what is shown may be old", file=sys.stderr)


def user() -> str:
    """Return the name of this user, as the controller knows it."""
    return user_name(os.getuid())


def find_job(at: Client, word: str) -> JobRecord:
    """Return the job that a word names: an id, ``7_3`` of array 7, ``@`` for this user's newest, or a name's newest.

    Raises:
        NotFoundError: there is none.
        ConfigError: the word can be none of these, or names several jobs.
    """
    if word.isascii() and word.isdigit():
        return at.job(_id(word))
    if (match := _IDS.fullmatch(word)) and match["indices"]:
        first, *others = _ids(at, word)
        if others:
            raise ConfigError(f"found {word}, {len(others) + 1} jobs, expected one, such as {match['first']}_0")
        return at.job(first)
    if word == LAST:
        jobs = at.jobs("all", user=user(), limit=1).jobs
        if not jobs:
            raise NotFoundError("you have no job yet")
        return jobs[-1]
    found = [job for job in at.jobs("all", user=user()).jobs if job.request.name == word]
    if not found:
        expected = "a job id, one job of an array such as 7_0, the name of a job, or @ for the last one"
        raise NotFoundError(f"you have no job {shown(word)}: expected {expected}")
    return found[-1]


def find_ids(at: Client, words: Sequence[str], *, most: int = JOBS_MAX) -> list[int]:
    """Return the ids that words name, each once: ``7``, ``7-16``, ``7_0-3`` of array 7, or see ``find_job``.

    A name or ``@`` stands for all jobs of an array, if the job that it names is one of them.

    Whether there are jobs of the ids that are named as such is not asked.

    Raises:
        NotFoundError: there is no job of a name, or of an index of an array.
        ConfigError: a word names no job, or too many, or the words name more than ``most``.
    """
    found: dict[int, None] = {}
    for word in words:
        found |= dict.fromkeys(_ids(at, word))
    if len(found) > most:
        raise ConfigError(f"found {len(found)} jobs, expected at most {most}: name some of them")
    return list(found)


def find_awaited(at: Client, word: str) -> list[int]:
    """Return the ids that a word of ``--depends-on`` names, as ``find_ids``, but the first of an array names all of it.

    So it is in Slurm, where the array has the id of its first job. A job that is awaited must exist.

    Raises:
        NotFoundError: there is no such job.
        ConfigError: the word can name none.
    """
    if not (word.isascii() and word.isdigit()):
        return find_ids(at, [word])
    job = find_job(at, word)
    return _array(at, job) if job.id == job.array else [job.id]


def _array(at: Client, job: JobRecord) -> list[int]:
    """Ids of all jobs of an array."""
    listed = at.jobs("all", user=job.user, first=job.array, last=job.array + JOBS_MAX).jobs
    return [one.id for one in listed if one.array == job.array]


def _ids(at: Client, word: str) -> Sequence[int]:
    match = _IDS.fullmatch(word)
    if match is None:
        job = find_job(at, word)
        return [job.id] if job.array == NONE else _array(at, job)
    if match["indices"]:
        return _members(at, _id(match["first"]), match["indices"].strip("[]"))
    first = _id(match["first"])
    last = _id(match["last"] or match["first"])
    if not first <= last < first + JOBS_MAX:
        raise ConfigError(f"found range {word}, expected one of 1 to {JOBS_MAX} ids, such as 7-16")
    return range(first, last + 1)


def _id(word: str) -> int:
    return parse_whole(word, 1, ID_MAX, what="an id")


def _members(at: Client, array: int, text: str) -> list[int]:
    """Ids of an array's jobs with some indices. The ids of an array follow each other in the order of the indices."""
    from brim.cli.job_options import read_indices

    indices, head = read_indices(text), at.job(array)
    if head.array != array:
        raise NotFoundError(f"job {array} is not the first of an array, whose jobs {array}_{text} could be")
    reach = max(indices[-1] - head.request.array_index, 0)
    listed = at.jobs("all", user=head.user, first=array, last=array + reach).jobs
    ids = {job.request.array_index: job.id for job in listed if job.array == array}
    if missing := [index for index in indices if index not in ids]:
        raise NotFoundError(f"array {array} has no job with index {missing[0]}, or it ended long ago")
    return [ids[index] for index in indices]
