"""``brim ps`` and ``brim history``: the queue of everybody, and what has ended."""

from __future__ import annotations

import json
import pwd
import sys
import time
from typing import Annotated, Final

import typer

from brim.api.client import Listing
from brim.api.wire import SCHEMA, plain_job
from brim.cli.controller import client
from brim.cli.job_table import history_rows, queue_rows, table
from brim.cli.options import JsonOption, OutputOption, output_of, whole
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import NotFoundError

app = typer.Typer()

WATCH_S: Final = 1.0
"""Time between two pictures; ours."""
_User = Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="Only the jobs of this user.")]


def _of(user: str | None, listing: Listing) -> str:
    """Of whom there is no job, in words; whoever has jobs need not have an account any more."""
    if not user:
        return ""
    try:
        pwd.getpwnam(user)
    except KeyError:
        if not listing.jobs:
            raise NotFoundError(f"there is no user {user!r} on this machine") from None
    return f" of {user}"


@app.command(cls=UnconvertedCommand)
def ps(
    user: _User = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep the picture up to date until Ctrl-C.")] = False,
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show the jobs that run or wait, of all users, and why they wait."""
    wanted = output_of(output, as_json)
    at = client()
    while True:
        listing = at.jobs(user=user or "")
        of = _of(user, listing)
        if wanted == "json":
            print(json.dumps({"schema": SCHEMA, "now_ms": listing.now_ms, "jobs": list(map(plain_job, listing.jobs))}))
        else:
            shown = table(queue_rows(listing.jobs, listing.now_ms))
            if watch and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            print(shown if listing.jobs else f"no job{of} runs or waits")
        if not watch:
            return
        sys.stdout.flush()
        time.sleep(WATCH_S)


@app.command(cls=UnconvertedCommand)
def history(
    user: _User = None,
    limit: Annotated[str, typer.Option("--limit", "-n", metavar="N", help="At most so many, the newest.")] = "20",
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show the jobs that have ended, with their exit codes."""
    wanted = output_of(output, as_json)
    most = whole(limit, "--limit", 1, 1_000)
    listing = client().jobs("ended", user=user or "", limit=most)
    of = _of(user, listing)
    if wanted == "json":
        print(json.dumps({"schema": SCHEMA, "now_ms": listing.now_ms, "jobs": list(map(plain_job, listing.jobs))}))
    else:
        print(table(history_rows(listing.jobs, listing.now_ms)) if listing.jobs else f"no job{of} has ended yet")
