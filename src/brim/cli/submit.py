"""``brim submit``, ``brim run`` and ``brim redo``: ask for a job."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brim.api.wire import SCHEMA
from brim.cli.completion import JobArgument, complete_dependency
from brim.cli.controller import FollowedJob, client, find_awaited, find_job
from brim.cli.job_options import Asked, asked, merged, read_variables, valid_name
from brim.cli.job_table import printable
from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import BrimError, ConfigError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from brim.api.client import Client, JobIds
    from brim.cli.capture import Runnable
    from brim.live.requests import JobRequest

app = typer.Typer()

WAIT_S: Final = 0.2
"""Time between two looks at a job that is waited for; ours."""

_Words = Annotated[
    list[str],
    typer.Argument(metavar="FILE|COMMAND [ARGS]...", help="A script with its arguments, a YAML file, or a command."),
]
_Name = Annotated[str | None, typer.Option("--name", "-n", metavar="NAME", help="Name of the job.")]
_Gpus = Annotated[
    str | None,
    typer.Option("--gpus", "-g", metavar="N", help="GPUs: 4, a range 1-8, a list 1,2,4, or with a type, A100:4."),
]
_Cpus = Annotated[str | None, typer.Option("--cpus", "-c", metavar="N", help="Cores of the whole job.")]
_Mem = Annotated[
    str | None, typer.Option("--mem", metavar="SIZE", help="Memory of the whole job: 32G, or a number of MiB.")
]
_Time = Annotated[
    str | None,
    typer.Option("--time", "-t", metavar="TIME", help="Time limit of each attempt: 2:00:00, 90m or 1-12:00:00."),
]
_Priority = Annotated[
    str | None,
    typer.Option(
        "--priority", "-p", metavar="N",
        help="Larger is served first, by policy files that read it (no policy of brim does); by default, 0."
    ),
]
_Class = Annotated[
    str | None,
    typer.Option(
        "--class", metavar="CLASS",
        help="regular; padding, on idle GPUs only; or urgent, for policy files that read it (no policy of brim does)."
    ),
]
_After = Annotated[
    str | None,
    typer.Option(
        "--depends-on", "--dependency", metavar="JOBS", autocompletion=complete_dependency,
        help="Start after these succeeded: ids, 7-16, names, or @ for the last; or as Slurm: afterany:3:4, "
        "afternotok:5. A name or @ stands for all jobs of an array, at most 1,000.",
    ),
]
_Array = Annotated[
    str | None,
    typer.Option("--array", metavar="INDICES", help="One job for each index: 0-9 or 1,3,5; 0-99%4: 4 at a time."),
]
_Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="K=V", help="Set a variable; may be given several times.")
]
_Chdir = Annotated[str | None, typer.Option("--chdir", metavar="FOLDER", help="Working folder; by default, this one.")]
_Begin = Annotated[
    str | None, typer.Option("--begin", metavar="TIME", help="Not before: 14:30, 2026-11-23T08:00 or now+2h.")
]
_Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline", metavar="TIME", help="When it should have ended, as --begin; for policies that read it."
    ),
]
_Hold = Annotated[bool, typer.Option("--hold", help="Wait until `brim release`.")]
_Requeue = Annotated[
    bool | None,
    typer.Option(
        "--requeue/--no-requeue",
        help="Start again after a fault of the node or of another job, or on exit code 75, 85 or 99; the default. What "
        "fails otherwise, or is killed by a signal, is not started again.",
    ),
]
_Grace = Annotated[
    str | None,
    typer.Option(
        "--grace", metavar="TIME",
        help="From SIGTERM to SIGKILL when it has to stop, such as 2m; by default 30s, 5s for padding.",
    ),
]
_Batch = Annotated[
    str | None,
    typer.Option("--batch", metavar="N", help="Global batch or its range, 256 or 256-2048, for policies that tune it."),
]
_Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks", metavar="one|per-gpu",
        help="Start the command once (torchrun starts its own), or once per GPU, as for brim.train: the default of a "
             "range of GPUs.",
    ),
]
_GpuMem = Annotated[
    str | None,
    typer.Option(
        "--gpu-mem", metavar="SIZE",
        help="Most memory that it uses of each of its GPUs: 10G, or a number of MiB; jobs share a GPU only where both "
             "fit.",
    ),
]
_GpuUtil = Annotated[
    str | None,
    typer.Option(
        "--gpu-util", metavar="PART",
        help="Part of the time in which it keeps its GPUs busy when alone on them, such as 60%.",
    ),
]
_Devices = Annotated[
    str | None,
    typer.Option(
        "--devices", metavar="KINDS",
        help="Where it can run: gpu, the default; cpu; or gpu,cpu, for policies that exchange the two.",
    ),
]
_TargetLoss = Annotated[
    str | None,
    typer.Option(
        "--target-loss", metavar="LOSS", help="Loss at which its script ends, for policies that predict its end."
    ),
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Submit nothing; show where it would run now, or why it would wait.")
]
_Wait = Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and end with its exit code.")]
_Detach = Annotated[bool, typer.Option("--detach", "-d", help="Do not follow what it writes.")]
_SLURM_CALLS: Final = {
    "srun": " and will fail: leave `srun` out; torchrun, or `#BRIM --ranks per-gpu` for a command that is itself the "
            "job, starts a process per GPU",
    "scontrol": " and will fail: there is one node, its name is in SLURM_JOB_NODELIST, and a job that ends with 75 is "
                "started again",
    "sbatch": ": `brim submit` submits a job", "salloc": ": `brim run` runs a command on GPUs",
    "scancel": ": `brim cancel` cancels them", "squeue": ": `brim ps` shows them",
    "sacct": ": `brim history` shows them",
}  # fmt: skip
_SETTINGS: Final = {"allow_interspersed_args": False}


def _options(
    name: str | None, gpus: str | None, cpus: str | None, mem: str | None, time_limit: str | None, priority: str | None,
    job_class: str | None, after: str | None, array: str | None, env: Sequence[str] | None, chdir: str | None,
    begin: str | None, deadline: str | None, hold: bool, requeue: bool | None, grace: str | None, batch: str | None,
    ranks: str | None, gpu_mem: str | None, gpu_util: str | None, devices: str | None, target_loss: str | None,
) -> dict[str, Any]:
    """Options that were given, by their names."""
    given = {
        "name": name, "gpus": gpus, "cpus": cpus, "mem": mem, "time": time_limit, "priority": priority,
        "class": job_class, "depends-on": after, "array": array, "chdir": chdir, "begin": begin,
        "deadline": deadline, "hold": hold or None, "requeue": requeue, "grace": grace, "batch": batch, "ranks": ranks,
        "gpu-mem": gpu_mem, "gpu-util": gpu_util, "devices": devices, "target-loss": target_loss,
        "env": read_variables(env) if env else None,
    }  # fmt: skip
    return {option: value for option, value in given.items() if value is not None}


@app.command(cls=UnconvertedCommand, context_settings=_SETTINGS)
def submit(
    words: _Words, name: _Name = None, gpus: _Gpus = None, cpus: _Cpus = None, mem: _Mem = None,
    time_limit: _Time = None, priority: _Priority = None, job_class: _Class = None, after: _After = None,
    array: _Array = None, env: _Env = None, chdir: _Chdir = None, begin: _Begin = None, deadline: _Deadline = None,
    hold: _Hold = False, requeue: _Requeue = None, grace: _Grace = None,
    batch: _Batch = None, ranks: _Ranks = None, gpu_mem: _GpuMem = None, gpu_util: _GpuUtil = None,
    devices: _Devices = None, target_loss: _TargetLoss = None,
    wait: _Wait = False, dry_run: _DryRun = False,
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:
    """Submit a command, a script with #BRIM or #SBATCH headers, or a YAML file; print the id of the job.

    What stands on the command line counts before the headers of a script, and these before a YAML file.
    """
    given = _options(name, gpus, cpus, mem, time_limit, priority, job_class, after, array, env, chdir, begin,
                     deadline, hold, requeue, grace, batch, ranks, gpu_mem, gpu_util, devices, target_loss)
    wanted = output_of(output, as_json)
    work, wants = _read(words, given)
    at = client()
    ids = _submit(at, work, wants, dry_run, wanted, waits=wait)
    if wait and ids:
        raise typer.Exit(max(_wait(at, job) for job in ids))


@app.command(cls=UnconvertedCommand, context_settings=_SETTINGS)
def run(
    words: _Words, name: _Name = None, gpus: _Gpus = None, cpus: _Cpus = None, mem: _Mem = None,
    time_limit: _Time = None, priority: _Priority = None, job_class: _Class = None, after: _After = None,
    env: _Env = None, chdir: _Chdir = None,
    begin: _Begin = None, deadline: _Deadline = None, requeue: _Requeue = None, grace: _Grace = None,
    batch: _Batch = None, ranks: _Ranks = None, gpu_mem: _GpuMem = None, gpu_util: _GpuUtil = None,
    devices: _Devices = None, target_loss: _TargetLoss = None,
    detach: _Detach = False, dry_run: _DryRun = False,
) -> None:
    """Submit a job, show what it writes, and end with its exit code. Ctrl-C detaches; the job goes on."""
    given = _options(name, gpus, cpus, mem, time_limit, priority, job_class, after, None, env, chdir, begin,
                     deadline, False, requeue, grace, batch, ranks, gpu_mem, gpu_util, devices, target_loss)
    work, wants = _read(words, given)
    at = client()
    ids = _submit(at, work, wants, dry_run, "table" if detach else "none", waits=not detach)
    if ids and not detach:
        raise typer.Exit(_followed(at, ids[0]))


@app.command(cls=UnconvertedCommand)
def redo(
    job: JobArgument = "@",
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Submit a job again as it was, with the environment and working folder that it had."""
    from brim.agent.capture import read_capture, write_capture
    from brim.agent.folders import agent_folder, captures_folder
    from brim.cli.agents import ensure_agent
    from brim.cli.retention import KEPT_DAYS

    wanted = output_of(output, as_json)
    at = client()
    found = find_job(at, job)
    if found.uid != os.getuid():
        raise NotFoundError(f"job {found.id} is of user {found.user}, who alone can submit it again")
    before, folder = found.request, captures_folder(agent_folder())
    if found.has_ended and not (folder / f"{before.capture}.json").exists():
        raise NotFoundError(f"job {found.id}: its command was removed, as {KEPT_DAYS} days after the end of a job")
    what = read_capture(folder, before.capture, before.digest)
    capture, digest = write_capture(
        folder, what.command, what.env, what.cwd, what.inherits, slurm=what.slurm,
        indices=(before.array_index,) if what.indices else (),
    )  # fmt: skip
    again = replace(
        before, capture=capture, digest=digest, after=(), after_any=(), after_not_ok=(), begin_s=0, deadline_s=0,
        hold=False,
    )  # fmt: skip
    ids = _accepted(at, [again])
    ensure_agent(at)
    _warn(ids)
    _print(ids, (), wanted)


def _read(words: Sequence[str], given: dict[str, Any]) -> tuple[Runnable, Asked]:
    """Read what is to run and what it asks for, and say what is ignored; no controller is needed for that."""
    from brim.cli.capture import work_of

    work = work_of(words)
    options = merged(work.options, given)
    wants = asked(options)
    for line in work.ignored:
        print(f"brim: ignored #SBATCH {line}", file=sys.stderr)
    for line in (*_changes(work, options), *_unread(wants.fields)):
        print(f"brim: {line}", file=sys.stderr)
    for call in work.slurm_calls:
        print(f"brim: the script calls {call}, which knows nothing of jobs of brim{_SLURM_CALLS[call]}",
              file=sys.stderr)
    return work, wants


def _submit(at: Client, work: Runnable, wants: Asked, dry_run: bool, wanted: str, *, waits: bool) -> list[int]:
    """Submit jobs, or show what would become of them. With ``waits``, one that can never run is refused."""
    from brim.cli.agents import ensure_agent
    from brim.cli.capture import requests_of
    from brim.cli.retention import remove_old
    from brim.live.requests import AFTER_MAX

    after: dict[str, list[int]] = {}
    for one in wants.after:
        found = find_awaited(at, one.job)
        if len(found) > AFTER_MAX:
            raise ConfigError(f"--depends-on {one.job}: found {len(found):,} jobs, expected at most {AFTER_MAX:,}")
        after.setdefault(one.field, []).extend(found)
    requests = requests_of(work, wants, after, keep=not dry_run)
    if dry_run:
        _show(at, work.command, requests, wanted)
        return []
    ids = _accepted(at, requests)
    if waits and ids.impossible:
        at.command("cancel", list(ids))
        raise RefusedError(f"{_impossible(ids)} can never run here, cancelled: {_reason(ids)}")
    _warn(ids)
    ensure_agent(at)
    if wanted != "none":
        _print(ids, work.ignored, wanted)
    remove_old(at)
    return ids


def _changes(work: Runnable, options: Mapping[str, Any]) -> Iterator[str]:
    """Say, a line each, in what a job differs from what its script for Slurm asks for."""
    said, kept = work.slurm_name, valid_name(work.slurm_name)
    if said not in ("", kept) and options["name"] == kept:
        yield f"name {said!r} has characters that brim does not keep: the job is {kept}"
    if work.slurm is not None and "gpus" not in options and "devices" not in options:
        yield "no GPU is asked for: brim gives the job one"


def _unread(fields: Mapping[str, Any]) -> Iterator[str]:
    """Say, a line each, what of a request only a policy of one's own reads."""
    priority = fields.get("priority", 0)
    for is_given, what in ((priority, f"priority {priority}"), (fields.get("job_class") == "urgent", "class urgent")):
        if is_given:
            yield f"{what} counts only under a policy file that reads it: no policy of brim does"


def _accepted(at: Client, requests: Sequence[JobRequest]) -> JobIds:
    """Submit jobs of one capture, which does not stay behind if they were not accepted."""
    from brim.agent.capture import remove_capture
    from brim.agent.folders import agent_folder, captures_folder

    try:
        return at.submit(requests)
    except BrimError:
        if not at.may_have_arrived:
            remove_capture(captures_folder(agent_folder()), requests[0].capture)
        raise


def _warn(ids: JobIds) -> None:
    """Say which jobs can never run on this machine, in a line."""
    if ids.impossible:
        is_held = "are held" if len(ids.impossible) > 1 else "is held"
        print(f"brim: {_impossible(ids)} {is_held} and can never run here: {_reason(ids)}", file=sys.stderr)


def _impossible(ids: JobIds) -> str:
    first, *others = ids.impossible
    return f"job {first} and {len(others)} more" if others else f"job {first}"


def _reason(ids: JobIds) -> str:
    return printable(next(iter(ids.impossible.values())))


def _print(ids: Sequence[int], ignored: Sequence[str], wanted: str) -> None:
    """Print the ids of jobs that were accepted.

    Raises:
        BrimError: they cannot be printed; it names them, so that nobody submits the jobs again.
    """
    named = str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
    told = json.dumps({"schema": SCHEMA, "ids": list(ids), "ignored": list(ignored)}) if wanted == "json" else named
    try:
        print(told, flush=True)
    except BrokenPipeError:  # its reader has ended, and wants no more
        raise
    except OSError as error:
        raise BrimError(f"submitted as {named}, which cannot be written to standard output: {error.strerror}") from None


def _show(at: Client, command: Sequence[str], requests: Sequence[JobRequest], wanted: str) -> None:
    """Show what would be submitted, and what would happen to it."""
    outcome = at.dry_run(requests)
    hidden = ("capture", "digest", "attempts_max")
    plain = [{name: value for name, value in each.record().items() if name not in hidden} for each in requests]
    if wanted == "json":
        would = {name: outcome[name] for name in ("devices", "preempts", "text")}
        print(json.dumps({"schema": SCHEMA, "command": list(command), "jobs": plain, "outcome": would}))
        return
    import shlex

    print(f"command: {shlex.join(command)}")
    for name, value in plain[0].items():
        print(_in_words(name, value))
    if len(plain) > 1:
        print(f"jobs: {len(plain)}, of which this is the first")
    for line in outcome["text"].splitlines():
        print(printable(line))


_UNITS: Final = {"s": "s", "mib": "MiB"}


def _in_words(name: str, value: Any) -> str:
    """A field of a request, with the unit that its name ends in."""
    what, _, unit = name.rpartition("_")
    if isinstance(value, list):
        return f"{name}: {','.join(map(str, value))}"
    if name in ("begin_s", "deadline_s"):
        return f"{what}: {datetime.fromtimestamp(value).astimezone():%Y-%m-%d %H:%M:%S}"
    if unit == "milli":
        return f"{what}: {value / 10:g}%"
    return f"{what}: {value} {_UNITS[unit]}" if unit in _UNITS else f"{name}: {value}"


def _wait(at: Client, job: int) -> int:
    """Wait until a job has ended; return the exit code for the command line."""
    told, followed = "", FollowedJob(at, job)
    while not (found := followed.look()).has_ended:
        if found.state == "held" and found.reason not in ("", told):
            told = found.reason
            print(f"brim: job {job} waits: {printable(told)}", file=sys.stderr)
        time.sleep(WAIT_S)
    why = f": {found.reason}" if found.reason not in ("", found.state) else ""
    print(f"brim: job {job} {found.state}{why}", file=sys.stderr)
    if found.state == "finished":
        return 0
    return found.exit_code if found.exit_code > 0 else 1


def _followed(at: Client, job: int) -> int:
    from brim.cli.logs import follow

    print(f"brim: job {job}; Ctrl-C detaches, and the job goes on", file=sys.stderr)
    try:
        if at.job(job).request.ranks == "per-gpu":
            print("brim: it has a process for each GPU: this shows rank 0, and "
                  f"`brim logs -f --rank 1 {job}` the next", file=sys.stderr)
        follow(at, job, 0)
        return _wait(at, job)
    except KeyboardInterrupt:
        print(f"\nbrim: detached; job {job} goes on: see `brim logs -f {job}`, or end it with `brim cancel {job}`",
              file=sys.stderr)
        return 130

