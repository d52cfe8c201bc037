"""What is removed of jobs that ended long ago: captures, copied scripts, and the folders of attempts with their logs.

The client does it, once a day after a submission, because it may ask which jobs live and because the files are its
user's. A job is removed whole, its capture first: without that, no agent starts the job again, whatever it is told.
Checkpoints are never removed, since they may be what the job was run for.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.agent.folders import agent_folder, captures_folder
from brim.cli.controller import user

if TYPE_CHECKING:
    from brim.api.client import Client

KEPT_DAYS: Final = 30
"""Days after its end for which a job can be looked at and done again; ours: a month."""
KEPT_JOBS: Final = 10_000
"""Most ended jobs of which something is kept, the newest; ours: the largest array."""
_DAY_S: Final = 86_400
_MARK: Final = "cleaned"
"""File whose time says when this was last done."""


def remove_old(at: Client) -> None:
    """Remove what is old, if that has not been done today; living jobs are those that the controller names."""
    folder, now_s = agent_folder(), time.time()
    with contextlib.suppress(FileNotFoundError):
        if abs(now_s - (folder / _MARK).stat().st_mtime) < _DAY_S:
            return
    jobs = at.jobs(user=user()).jobs
    with contextlib.suppress(OSError):  # a full disk or a folder in use: another day
        (folder / _MARK).touch(0o600)
        os.utime(folder / _MARK, (now_s, now_s))
        remove_ended(folder, {job.id for job in jobs}, {job.request.capture for job in jobs}, now_s)


def remove_ended(folder: Path, living: Collection[int], captures: Collection[str], now_s: float) -> list[int]:
    """Remove the jobs in an agent's folder that ended too long ago, or before too many others; return their ids.

    Args:
        folder: The agent's folder.
        living: Ids of the jobs that have not ended.
        captures: Their captures, also of those that were never started.
        now_s: Unix time.
    """
    import shutil

    kept, ended = set(captures), []
    for job, attempts in _attempts_of(folder / "attempts").items():
        if job in living or not all(map(_is_over, attempts)):
            kept |= _captures_of(attempts)
        else:
            ended.append((max(map(_ended_s, attempts)), job, attempts))
    ended.sort(reverse=True)
    removed = []
    for place, (ended_s, job, attempts) in enumerate(ended):
        mine = _captures_of(attempts)
        is_young = place < KEPT_JOBS and now_s - ended_s < KEPT_DAYS * _DAY_S
        if is_young or mine & kept:  # an array has one capture, and without its folder a job of it could run again
            kept |= mine
            continue
        for capture in mine:
            (captures_folder(folder) / f"{capture}.json").unlink(missing_ok=True)
        for attempt in attempts:
            shutil.rmtree(attempt)
        removed.append(job)
    _remove_unused(folder, kept, now_s)
    return removed


def _attempts_of(parent: Path) -> Mapping[int, list[Path]]:
    found: dict[int, list[Path]] = {}
    for path in sorted(parent.glob("*-*")):
        job, _, attempt = path.name.partition("-")
        if job.isdecimal() and attempt.isdecimal():
            found.setdefault(int(job), []).append(path)
    return found


def _is_over(attempt: Path) -> bool:
    """Whether the controller knows the end of an attempt, and no process of it is left."""
    from brim.agent import attempt_files  # which a submission does not need
    from brim.agent.attempt import is_running

    return (attempt / attempt_files.FORGOTTEN).exists() and not is_running(attempt)


def _ended_s(attempt: Path) -> float:
    from brim.agent import attempt_files

    end = attempt / attempt_files.END
    return (end if end.exists() else attempt).stat().st_mtime


def _captures_of(attempts: Iterable[Path]) -> set[str]:
    from brim.agent import attempt_files

    found = set()
    for attempt in attempts:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.add(str(json.loads((attempt / attempt_files.FENCE).read_bytes())["capture"]))
    return found - {""}


def _remove_unused(folder: Path, kept: Collection[str], now_s: float) -> None:
    """Remove old captures of jobs that never started, and scripts that no capture runs."""
    scripts = set()
    for path in captures_folder(folder).glob("*.json"):
        if path.stem not in kept and now_s - path.stat().st_mtime >= KEPT_DAYS * _DAY_S:
            path.unlink(missing_ok=True)
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            scripts |= set(json.loads(path.read_bytes())["command"])
    for path in (folder / "scripts").glob("*"):
        if str(path) not in scripts and now_s - path.stat().st_mtime >= KEPT_DAYS * _DAY_S:
            path.unlink(missing_ok=True)
