"""Job ids for the shell to complete: this user's own, the newest first, with the name and state where it shows them.

A completion never fails and never waits: without a controller there is nothing to complete.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer

from brim.api.client import PAGE_MAX
from brim.cli.controller import client, user
from brim.cli.job_table import name_of
from brim.errors import BrimError

SHOWN_MAX: Final = 50
"""Most ids that are offered; ours: a screen."""


def complete_open_job(incomplete: str) -> list[tuple[str, str]]:
    """Return the jobs that have not ended and whose id begins so, each with its name and state."""
    return _jobs("active", incomplete)


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest jobs whose id begins so, each with its name and state."""
    return _jobs("all", incomplete)


JobArgument = Annotated[
    str, typer.Argument(
        metavar="[JOB]", help="Job id, job of an array such as 7_0, name, or @ for the last one.",
        autocompletion=complete_job,
    )
]  # fmt: skip


def complete_dependency(incomplete: str) -> list[tuple[str, str]]:
    """Return the same after a list of others, as ``--depends-on`` takes it: ``3,4`` or ``afterany:3:4``."""
    given = max(incomplete.rfind(","), incomplete.rfind(":")) + 1
    return [(incomplete[:given] + job, said) for job, said in _jobs("all", incomplete[given:])]


def _jobs(state: Literal["active", "all"], start: str) -> list[tuple[str, str]]:
    try:
        at = client()
        jobs = at.jobs(state, user=user(), limit=PAGE_MAX).jobs if at.is_there() else ()
    except (BrimError, OSError):
        return []
    found = [(str(job.id), f"{name_of(job)}, {job.state}") for job in reversed(jobs)]
    return [job for job in found if job[0].startswith(start)][:SHOWN_MAX]
