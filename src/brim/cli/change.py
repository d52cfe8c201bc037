"""``brim cancel``, ``hold``, ``release``, ``requeue`` and ``explain``: one request for each job that is named."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from brim.api.wire import SCHEMA, plain_job
from brim.cli.completion import complete_job, complete_open_job
from brim.cli.controller import client, find_jobs
from brim.cli.job_table import printable
from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.unconverted import UnconvertedCommand

app = typer.Typer()

_Jobs = Annotated[
    list[str], typer.Argument(
        metavar="JOB...", help="Ids, ranges of ids such as 7-16, names, or @ for the last one.",
        autocompletion=complete_open_job,
    )
]


def _change(verb: Literal["cancel", "hold", "release", "requeue"], words: list[str], wanted: str) -> None:
    at = client()
    changed = [at.command(verb, job.id) for job in find_jobs(at, words)]
    if verb in ("release", "requeue"):  # what is to start needs the agent
        from brim.cli.agents import ensure_agent

        ensure_agent(at)
    if wanted == "json":
        print(json.dumps({"schema": SCHEMA, "jobs": list(map(plain_job, changed))}))
        return
    for job in changed:
        print(f"job {job.id}: {job.state}" + (f" ({printable(job.reason)})" if job.reason else ""))


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
    job: Annotated[
        str, typer.Argument(metavar="[JOB]", help="Job id, name, or @ for the last one.", autocompletion=complete_job)
    ] = "@",
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Explain why a job waits, and what would let it run."""
    wanted = output_of(output, as_json)
    at = client()
    (found,) = find_jobs(at, [job])
    answer = at.explain(found.id)
    if wanted == "json":
        print(json.dumps(answer))
        return
    for line in answer["text"].splitlines():
        print(printable(line))
