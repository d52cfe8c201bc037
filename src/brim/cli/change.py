"""``brim cancel``, ``hold``, ``release``, ``requeue`` and ``explain``: one request for all jobs that are named."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import typer

from brim.api.wire import SCHEMA, plain_job
from brim.cli.completion import JobArgument, complete_open_job
from brim.cli.controller import client, find_ids, find_job
from brim.cli.job_table import printable
from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import BrimError, NotFoundError, RefusedError

app = typer.Typer()

_Jobs = Annotated[
    list[str], typer.Argument(
        metavar="JOB...", help="Ids, ranges such as 7-16, jobs of an array such as 7_0-3, names, or @ for the last.",
        autocompletion=complete_open_job,
    )
]


def _change(verb: Literal["cancel", "hold", "release", "requeue"], words: list[str], wanted: str) -> None:
    from brim.cli.agents import ensure_agent  # imports more than a command takes that starts no agent

    at = client()
    changed = at.command(verb, find_ids(at, words))
    if changed.jobs and verb in ("release", "requeue"):  # what is to start needs the agent
        ensure_agent(at)
    if wanted == "json":
        refused = [{"id": job, "detail": str(error)} for job, error in changed.refused.items()]
        print(json.dumps({"schema": SCHEMA, "jobs": list(map(plain_job, changed.jobs)), "refused": refused}))
    else:
        for job in changed.jobs:
            print(f"job {job.id}: {job.state}" + (f" ({printable(job.reason)})" if job.reason else ""))
    if changed.refused:
        *others, last = _refusals(verb, words, changed.refused.values())
        for error in others:
            print(f"brim: error: {error}", file=sys.stderr)
        raise last


def _refusals(verb: str, words: Sequence[str], errors: Iterable[BrimError]) -> Iterator[BrimError]:
    """The refusals of single jobs; of several jobs that do not exist, or have ended, one with their number."""
    several = {NotFoundError: "do not exist, or are not yours", RefusedError: f"have ended: there is nothing to {verb}"}
    by_kind: dict[type[BrimError], list[BrimError]] = {}
    for error in errors:
        by_kind.setdefault(type(error), []).append(error)
    for kind, alike in by_kind.items():
        if len(alike) > 1 and kind in several:
            yield kind(f"{len(alike)} jobs of {', '.join(words)} {several[kind]}")
        else:
            yield from alike


@app.command(cls=UnconvertedCommand)
def cancel(jobs: _Jobs, output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """End jobs: SIGTERM, and SIGKILL of all their processes after the time that they have."""
    _change("cancel", jobs, output_of(output, as_json))


@app.command(cls=UnconvertedCommand)
def hold(jobs: _Jobs, output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """Do not start jobs until they are released; what runs goes on."""
    _change("hold", jobs, output_of(output, as_json))


@app.command(cls=UnconvertedCommand)
def release(jobs: _Jobs, output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """Let jobs start that were held."""
    _change("release", jobs, output_of(output, as_json))


@app.command(cls=UnconvertedCommand)
def requeue(jobs: _Jobs, output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """Stop running jobs and put them back into the queue."""
    _change("requeue", jobs, output_of(output, as_json))


@app.command(cls=UnconvertedCommand)
def explain(
    job: JobArgument = "@",
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Explain why a job waits, and what would let it run.

    Of a running job: why it shares a device or not, and whether its end is believed predictable, since when and on
    what evidence.
    """
    wanted = output_of(output, as_json)
    at = client()
    answer = at.explain(find_job(at, job).id)
    if wanted == "json":
        print(json.dumps(answer))
        return
    for line in answer["text"].splitlines():
        print(printable(line))
