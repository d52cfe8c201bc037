"""``brim doctor``: look at what `brim` needs on this machine, and say what to do about what is not so."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import typer

from brim.agent.cgroups import noted_tree
from brim.agent.folders import agent_folder, state_folder
from brim.api.wire import SCHEMA
from brim.cli.controller import client, controller_folder, user
from brim.cli.locks import agent_runs, is_locked
from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import BrimError
from brim.units import counted

if TYPE_CHECKING:
    from brim.live.store.reading import Reader

app = typer.Typer()

FREE_BYTES_MIN: Final = 1 << 30
"""Free space below which the store and the logs may soon stop: 1 GiB; ours."""
LOOK_AGAIN_S: Final = 0.5
"""Time in which a process that is about to end does so; ours."""
LINGER: Final = Path("/var/lib/systemd/linger")
RUNS_SYSTEMD: Final = Path("/run/systemd/system")


class Finding(NamedTuple):
    """What was looked at: whether it is well, and what to know or do."""

    level: Literal["ok", "note", "wrong"]
    text: str


@app.command(cls=UnconvertedCommand)
def doctor(output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """Check the service, its folders and this machine; exit code 1 if something is wrong."""
    wanted = output_of(output, as_json)
    found = [
        *_service(), *_folders(), *_stored(), *_left(), *_space(), *_logout(), *_containers(), *_programs(),
    ]  # fmt: skip
    if wanted == "json":
        print(json.dumps({"schema": SCHEMA, "findings": [each._asdict() for each in found]}))
    else:
        for each in found:
            print(f"{each.level:5}  {each.text}")
    if any(each.level == "wrong" for each in found):
        raise typer.Exit(1)


def _service() -> Iterator[Finding]:
    try:
        at = client()
    except BrimError as error:
        yield Finding("wrong", str(error))
        return
    lock, own = state_folder() / "controller" / "lock", at.path.parent
    if at.is_there():
        try:
            status = at.status()["status"]
        except BrimError as error:
            yield Finding("wrong", str(error))
            return
        yield Finding("ok", f"a controller answers at {at.path}: process {status['pid']}, policy {status['policy']}")
        if status.get("trouble"):
            yield Finding("wrong", f"the controller {status['trouble']}")
        known = any(agent["uid"] == os.getuid() for node in at.nodes() for agent in node["agents"])
        if known:
            yield Finding("ok", "your agent is connected")
        elif agent_runs():
            yield Finding("wrong", f"your agent runs, and is not connected: see {agent_folder() / 'log'}")
        else:
            yield Finding("note", "your agent does not run; `brim submit` starts it")
        for node in at.nodes():
            for device in node["devices"]:
                if device["state"] not in ("open", "unknown"):
                    said = f": {device['detail']}" if device["detail"] else ""
                    yield Finding("note", f"device {device['device']} ({device['name']}) is {device['state']}{said}")
    elif is_locked(lock):
        yield Finding("wrong", f"a controller holds {lock} and does not answer: see {lock.parent / 'log'}")
    elif at.path.exists():
        yield Finding("note", f"no controller runs; {at.path} is left from one that was killed: `brim up` replaces it")
    else:
        ended = at.error_that_ended_it()
        said = f"no controller runs at {own}{ended}: start one with `brim up`, or `brim join USER`"
        yield Finding("wrong" if ended else "note", said)


def _folders() -> Iterator[Finding]:
    for folder in (state_folder() / "controller", agent_folder(), controller_folder()):
        try:
            found = folder.lstat()
        except FileNotFoundError:
            continue
        mine = found.st_uid == os.getuid() or folder == controller_folder()
        if not stat.S_ISDIR(found.st_mode) or not mine or found.st_mode & 0o022:
            yield Finding("wrong", f"{folder}: expected a folder that its user alone can write to: chmod 700 {folder}")
        elif folder != controller_folder() and found.st_mode & 0o077:
            yield Finding("note", f"{folder} can be entered by others, and its files not read: chmod 700 {folder}")
        else:
            yield Finding("ok", f"{folder} is its user's alone")


def _stored() -> Iterator[Finding]:
    """What this user's controller has stored, whether it runs or not; changes nothing."""
    import sqlite3

    from brim.live.invariants import broken_in_store
    from brim.live.store.reading import Reader
    from brim.live.store.schema import MIGRATIONS
    from brim.live.store.state_folder import DATABASE

    database = state_folder() / "controller" / DATABASE
    if not database.is_file():
        return
    try:
        reader = Reader(database)
        try:
            if (version := reader.version()) != len(MIGRATIONS):
                yield _of_another_brim(database, version)
                return
            stored, said = reader.records(), reader.unsound()
            recovered = "" if said else _recovered(reader)
        finally:
            reader.close()
    except (sqlite3.Error, BrimError, ValueError, TypeError) as error:
        yield Finding("wrong", f"{database} cannot be read: {error}")
        return
    broken = (*broken_in_store(*stored), *said, *([recovered] if recovered else []))
    held = f"what is stored holds: {counted(len(stored.jobs), 'job')}, {counted(len(stored.attempts), 'attempt')}"
    yield from [Finding("wrong", f"{database}: {text}") for text in broken] or [Finding("ok", held)]


def _of_another_brim(database: Path, version: int) -> Finding:
    from brim.live.store.schema import MIGRATIONS

    said = f"{database} has tables of version {version}, and those of this brim have version {len(MIGRATIONS)}"
    if version > len(MIGRATIONS):
        return Finding("wrong", f"{said}: a newer brim wrote it, install that one again")
    return Finding("note", f"{said}: an older brim wrote it, and the next start of the controller brings it up to date "
                           "after a copy: `brim down` if one runs, then `brim up`")


def _recovered(reader: Reader) -> str:
    """What is wrong with the controller that goes on from what is stored; empty if nothing is (I3 to I6, I8, I22)."""
    from brim.core.cluster import parse_cluster
    from brim.live.controller import Controller
    from brim.live.inputs import Submit
    from brim.live.invariants import check_controller
    from brim.policies.presets import find_policy

    setting, found = reader.setting(), reader.recovered()
    if setting is None:
        return ""  # no controller has decided yet
    controller = Controller(parse_cluster(setting.cluster), find_policy("fifo"))  # it decides nothing
    try:
        controller.recover(found.snapshot, found.lines, found.jobs, found.attempts, 0)
        check_controller(controller)
    except BrimError as error:
        return f"a controller cannot go on from here: {error}"
    coming = {given.job.id for given in found.inputs if isinstance(given, Submit)}
    lost = sorted({job.id for job in found.jobs} - controller.jobs.keys() - coming)
    return f"job {lost[0]} is in neither the journal nor the inbox: it will never be decided on" if lost else ""


def _left() -> Iterator[Finding]:
    """Processes of attempts that have ended: two looks, since the last ones of an attempt may be about to end."""
    from brim.agent.adoption import outlived
    from brim.agent.boot_clock import boot_id

    attempts, boot = agent_folder() / "attempts", boot_id()
    found = set(outlived(attempts, boot))
    if found:
        time.sleep(LOOK_AGAIN_S)
        found &= set(outlived(attempts, boot))
    for (job, attempt), pid in sorted(found):
        yield Finding("wrong", f"process {pid} of attempt {attempt} of job {job} lives, and that attempt has ended")


def _space() -> Iterator[Finding]:
    folder = state_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    level: Literal["ok", "wrong"] = "ok" if free >= FREE_BYTES_MIN else "wrong"
    yield Finding(level, f"{free / (1 << 30):.1f} GiB are free for state and logs in {folder}")


def _logout() -> Iterator[Finding]:
    if RUNS_SYSTEMD.exists() and os.getuid() and not (LINGER / user()).exists():
        yield Finding("note", f"a logout may end your agent and jobs: loginctl enable-linger {user()}")
        yield Finding("note", "what fails is not started again: `brim up --systemd` writes units that do so")


def _containers() -> Iterator[Finding]:
    """What holds the processes of a job together, as the agent that runs has found it."""
    tree = noted_tree(agent_folder()) if agent_runs() else None
    if tree is None:
        return
    if not tree.path:
        yield Finding("note", f"jobs have no cgroups: {tree.missing}; units of `brim up --systemd` have them")
        held = "processes of a job are known by descent, session and a mark, and end with it"
        yield Finding("note", f"{held}; one that hides from all three while brim itself is killed stays")
        return
    yield Finding("ok", f"each job has a cgroup in {tree.path}: the kernel ends all its processes, and says so")
    if tree.missing:
        yield Finding("note", f"the memory and processes of jobs are not measured: {tree.missing}")


def _programs() -> Iterator[Finding]:
    import importlib.util

    for module, purpose in (("fastapi", "brim up"), ("yaml", "YAML files"), ("torch", "brim.train")):
        if importlib.util.find_spec(module) is None:
            yield Finding("note", f"{module} is not installed, which {purpose} needs")
    yield Finding("note", "brim cannot keep anybody from using a GPU without it: such GPUs are withheld")
