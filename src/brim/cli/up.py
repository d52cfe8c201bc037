"""``brim up``, ``down``, ``status`` and ``join``: the service of this machine, and this user's agent in it."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from brim.agent.folders import agent_folder, check_runtime_folder, runtime_folder, state_folder
from brim.api.wire import SCHEMA
from brim.cli.controller import client, controller_folder, joined_file, user
from brim.cli.job_table import printable, ranges, table
from brim.cli.locks import agent_runs, is_locked
from brim.cli.options import JsonOption, ObjectiveOption, OutputOption, complete_policy, output_of, whole
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import BrimError, ConfigError, NotFoundError, RefusedError, shown
from brim.live.policy_file import policy_digest, policy_path
from brim.units import counted

if TYPE_CHECKING:
    from brim.api.client import Client

app = typer.Typer()

DEFAULT_POLICY: Final = "backfill"
"""What users of Slurm expect: in order of submission, with gaps filled."""
DEVICES_MAX: Final = 10_000
"""Most CPU slots; ours: far more than a machine has cores."""
NUMBER_MAX: Final = 1_000_000
"""Largest limit on GPUs or jobs of a user; ours."""
UID_MAX: Final = (1 << 32) - 2
"""Largest id of a user on Linux; the one above it stands for none."""
STOP_MARGIN_S: Final = 10.0
"""Longest wait for the end of jobs beyond the time that they have; ours."""


@app.command(cls=UnconvertedCommand)
def up(
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices", metavar="N", help="Give out N CPU slots; by default, all GPUs, or a slot per core without any."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="POLICY", help="Preset or file that decides; by default, backfill.",
                     autocompletion=complete_policy),
    ] = None,
    objective: ObjectiveOption = None,
    allow: Annotated[
        str | None, typer.Option("--allow", metavar="USERS", help="Who else may use it, such as ann,bo.")
    ] = None,
    tcp: Annotated[
        str | None, typer.Option("--tcp", metavar="PORT", help="Also listen on 127.0.0.1, for callers with a token.")
    ] = None,
    user_gpus: Annotated[
        str | None, typer.Option("--user-gpus", metavar="N", help="Most GPUs that all jobs of one user may hold.")
    ] = None,
    user_jobs: Annotated[
        str | None,
        typer.Option("--user-jobs", metavar="N", help="Most jobs of one user in the queue; by default, 20000."),
    ] = None,
    predictability: Annotated[
        str | None,
        typer.Option("--predictability", metavar="FILE",
                     help="Classifier of jobs whose losses tell their end: a file of `brim predictability fit`."),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in this terminal, and show the controller's log.")
    ] = False,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Start nothing: write systemd user units that do, with these options.")
    ] = False,
) -> None:
    """Start the service of this machine, which stays: the controller, and this user's agent."""
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
        raise RefusedError("brim up needs the extra `live`: pip install 'brim[live]'")
    from brim.api.client import Client
    from brim.cli.compiling import compile_first, kernels

    if objective is not None:
        from brim.policies.presets import with_objective

        policy = with_objective(policy or DEFAULT_POLICY, objective)
    words = _words(devices, policy, _uids(allow), tcp, user_gpus, user_jobs, predictability)
    if systemd:
        _write_units(words, ["--controller", str(runtime_folder() / "agents.sock"), *_agent_devices(words)])
        return
    joined_file().unlink(missing_ok=True)  # who runs a controller uses it
    at = Client(runtime_folder() / "api.sock")
    given = {"--devices": devices, "--policy": policy, "--allow": allow, "--tcp": tcp, "--user-gpus": user_gpus,
             "--user-jobs": user_jobs, "--predictability": predictability}  # fmt: skip
    wished = {option: _pairs(words)[option] for option, value in given.items() if value is not None}
    if at.is_there():
        _already_up(at, wished)
        return
    compile_first(kernels())  # the first round would take a minute otherwise
    if foreground:
        _stay(words)
    try:
        folder = start_cluster(at, words)
    except RefusedError:
        if not at.is_there():
            raise
        _already_up(at, wished)  # another `brim up` was faster
        return
    print(_picture(at))
    print(f"socket {at.path}, log {folder / 'log'}; next: brim run -- COMMAND", file=sys.stderr)


def start_cluster(at: Client, words: Sequence[str]) -> Path:
    """Start a controller with these options, and this user's agent; return the folder of the controller.

    Raises:
        BrimError: one of them ended, or does not answer.
    """
    from brim.agent.starting import start_process
    from brim.cli.agents import ensure_agent, wait_for

    folder = state_folder() / "controller"
    started = start_process("brim.api.serve", words, folder)
    wait_for(at.is_recovered, started, "the controller", folder / "log")
    ensure_agent(at)
    wait_for(lambda: bool(at.status()["status"]["agents"]), started, "the agent", agent_folder() / "log")
    return folder


def _words(
    devices: str | None, policy: str | None, allowed: Sequence[int], tcp: str | None, user_gpus: str | None,
    user_jobs: str | None, predictability: str | None,
) -> list[str]:
    """Options of the controller."""
    return [
        *_devices(devices), "--policy", _policy(policy or DEFAULT_POLICY), "--allow", ",".join(map(str, allowed)),
        *_port(tcp), *_number("--user-gpus", user_gpus), *_number("--user-jobs", user_jobs),
        *_predictability(predictability),
    ]  # fmt: skip


def _write_units(controller: Sequence[str] | None, agent: Sequence[str]) -> None:
    from brim.cli.systemd_units import unit_texts, units_folder, write_units

    texts = unit_texts(controller, agent, os.environ)
    for path in write_units(units_folder(), texts):
        print(path)
    start = f"systemctl --user daemon-reload; systemctl --user enable --now {' '.join(texts)}"
    first, ends = ("brim down; ", "both") if controller is not None else ("", "it, and your jobs")
    print(f"next: {first}{start}; loginctl enable-linger {user()}, or a logout ends {ends}", file=sys.stderr)


def _agent_devices(words: Sequence[str]) -> Sequence[str]:
    """The options of the agent that follow from those of the controller."""
    return words[:2] if words[0] == "--devices" else []


def _devices(text: str | None) -> list[str]:
    """Options of the controller for its devices: CPU slots if they are asked for, or there is no GPU."""
    from brim.cli.agents import gpu_names
    from brim.live.gpu_types import type_of

    if text is None:
        found = gpu_names()
        if not found:
            return ["--devices", str(len(os.sched_getaffinity(0)))]
        return ["--gpus", str(len(found)), "--gpu-type", type_of(found)]
    return ["--devices", str(whole(text, "--devices", 1, DEVICES_MAX))]


def _port(text: str | None) -> list[str]:
    return [] if text is None else ["--tcp", str(whole(text, "--tcp", 1, 65_535, what="a port"))]


def _number(option: str, text: str | None) -> list[str]:
    return [] if text is None else [option, str(whole(text, option, 1, NUMBER_MAX))]


def _predictability(text: str | None) -> list[str]:
    """The option for a classifier that can be read, as the controller, which works in another folder, can find it."""
    from brim.beliefs.predictability import load

    if text is None:
        return []
    load(text)
    return ["--predictability", str(Path(text).absolute())]


def _uids(text: str | None) -> list[int]:
    found = set()
    for name in filter(None, (text or "").split(",")):
        try:
            is_uid = name.isascii() and name.isdigit()
            found.add(whole(name, "--allow", 0, UID_MAX, what="a user id") if is_uid else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise ConfigError(f"--allow: found {shown(name)}, expected users of this machine, such as ann,bo") from None
    return sorted(found)


def _policy(text: str) -> str:
    """A policy as the controller, which works in another folder, can find it."""
    return str(Path(text).absolute()) if policy_path(text) else text


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Options of a controller with their values."""
    return dict(zip(words[::2], words[1::2], strict=True))


def _already_up(at: Client, wished: Mapping[str, str]) -> None:
    """Say so, and start the agent if it is missing.

    Raises:
        RefusedError: what was wished is not so: it has to be started anew. No agent is started then.
    """
    from brim.cli.agents import ensure_agent, wait_until

    wait_until(at.is_recovered, at.is_there)  # another `brim up` may have just started it
    status = at.status()["status"]
    devices = counted(status["devices"], "device")
    print(f"already up: process {status['pid']}, policy {status['policy']}, {devices}")
    runs = _options_of(status["pid"])
    if changes := _differences(wished, runs, status.get("policy_digest")):
        raise RefusedError(
            f"{'; '.join(changes)}: to change that, `brim down`, then `brim up` with all options that it is to have; "
            "jobs go on meanwhile"
        )
    ensure_agent(at)


def _options_of(pid: int) -> dict[str, str]:
    """The options of a controller that runs."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return _pairs(command[command.index("brim.api.serve") + 1 : -1])


def _up_again(runs: Mapping[str, str]) -> str:
    """The `brim up` that starts a controller with these options."""
    found = {option: _named(option, value) for option, value in runs.items() if not option.startswith("--gpu")}
    given = (word for option, value in found.items() if value and value != DEFAULT_POLICY for word in (option, value))
    return shlex.join(["brim", "up", *given])


def _named(option: str, value: str) -> str:
    """A value as its user would give it: names, not ids, of users."""
    from brim.agent.users import user_name

    return ",".join(user_name(int(uid)) for uid in filter(None, value.split(","))) if option == "--allow" else value


def _differences(wished: Mapping[str, str], runs: Mapping[str, str], digest: str | None) -> list[str]:
    """Say in what a controller differs from what is wished; ``digest`` is that of its policy file when it read it."""
    changes = [
        f"it runs {f'with {option} {_named(option, runs[option])}' if runs.get(option) else f'without {option}'}, "
        f"not {_named(option, value) or 'with none'}"
        for option, value in wished.items() if value != runs.get(option)
    ]  # fmt: skip
    policy = wished.get("--policy", "")
    if digest and policy == runs.get("--policy") and digest != policy_digest(policy):
        changes.append(f"it runs {policy} as that was when it was started, and the file has changed since")
    return changes


def _stay(words: list[str]) -> None:
    """Become the controller; the agent is started beside it, and connects when it answers."""
    from brim.agent.starting import start_process

    if not agent_runs():
        start_process("brim.agent", _agent_devices(words), agent_folder())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "brim.api.serve", *words])


@app.command(cls=UnconvertedCommand)
def down(
    stop: Annotated[
        bool, typer.Option("--stop", help="Also hold this user's jobs, stop them, and end the agent.")
    ] = False,
) -> None:
    """End the controller. Jobs go on under their users' agents, and the next `brim up` takes them over."""
    from brim.cli.agents import end_process, holder_of

    lock, agent_lock = state_folder() / "controller" / "lock", agent_folder() / "lock"
    if not is_locked(lock):
        none = f"no controller of {user()} runs"
        if is_locked(agent_lock):
            none += f"; the agent does (process {holder_of(agent_lock)}): `brim up`, then `brim down --stop`, ends both"
        raise NotFoundError(none)
    from brim.api.client import Client

    at = Client(runtime_folder() / "api.sock")
    going_on = [job for job in at.jobs().jobs if job.devices]
    if stop:
        _stop_jobs(at)
        going_on = [job for job in at.jobs().jobs if job.devices]
    again = _up_again(_options_of(holder_of(lock)))
    pid = end_process(lock, "the controller")
    print(f"the controller (process {pid}) has ended")
    if stop and is_locked(agent_lock):
        print(f"the agent (process {end_process(agent_lock, 'the agent')}) has ended")
    elif is_locked(agent_lock):
        print(f"the agent (process {holder_of(agent_lock)}) stays" + ("" if going_on else ", without jobs"))
    for job in going_on:
        whose = "" if job.uid == os.getuid() else f" of {job.user}"
        print(f"job {job.id}{whose} goes on, on {counted(len(job.devices), 'device')}")
    print(f"next: {again}", file=sys.stderr)


def _stop_jobs(at: Client) -> None:
    """Hold this user's jobs, and stop those that run; other users' agents are not ours to command."""
    import time

    mine = [job for job in at.jobs(user=user()).jobs if job.uid == os.getuid()]
    if free := [job.id for job in mine if "user" not in job.holds]:
        at.command("hold", free)
    if running := [job.id for job in mine if job.devices]:
        at.command("requeue", running)
    end = time.monotonic() + max((job.request.grace_s for job in mine if job.devices), default=0) + STOP_MARGIN_S
    while left := [job for job in at.jobs(user=user()).jobs if job.uid == os.getuid() and job.devices]:
        if time.monotonic() > end:
            raise BrimError(f"job {left[0].id} has not ended in time, and nothing else was ended: see `brim status`")
        time.sleep(0.1)
    if mine:
        held = f"{counted(len(mine), 'job')} {'is' if len(mine) == 1 else 'are'}"
        ids = " ".join(ranges([job.id for job in mine]))
        print(f"{held} held; after the next `brim up`, `brim release {ids}` lets them start")


@app.command(cls=UnconvertedCommand)
def status(output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """Show the controller, its devices, and the agents that are connected."""
    wanted = output_of(output, as_json)
    at = client()
    if wanted == "json":
        print(json.dumps({**at.status(), "nodes": at.nodes(), "schema": SCHEMA}))
    else:
        print(_picture(at))


def _picture(at: Client) -> str:
    said = at.status()
    facts, nodes = said["status"], at.nodes()
    jobs = at.jobs().jobs
    running = sum(bool(job.devices) for job in jobs)
    lines = [
        f"policy {facts['policy']}, {counted(facts['devices'], 'device')}, "
        f"{counted(running, 'job')} {'runs' if running == 1 else 'run'}, {len(jobs) - running} wait "
        f"(controller: process {facts['pid']}, brim {facts['version']})"
    ]
    if facts.get("trouble"):
        lines.append(f"trouble: the controller {printable(str(facts['trouble']))}")
    rows: list[tuple[str, ...]] = [("DEVICE", "NAME", "STATE", "JOB", "DETAIL")]
    for node in nodes:
        for device in node["devices"]:
            jobs_on = ",".join(map(str, device["jobs"])) or "-"
            facts_of = (device["device"], device["name"], device["state"], jobs_on)
            rows.append((*map(str, facts_of), str(device["detail"]) or "-"))
        agents = ", ".join(agent["user"] for agent in node["agents"]) or "none"
        lines.append(f"node {printable(node['name'])}; agents: {printable(agents)}")
    return "\n".join([*lines, table(rows)])


@app.command(cls=UnconvertedCommand)
def join(
    who: Annotated[
        str | None, typer.Argument(metavar="[USER|FOLDER]", help="Who runs the controller, or its runtime folder.")
    ] = None,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Start no agent: write a systemd user unit that does.")
    ] = False,
) -> None:
    """Use the controller of another user from now on; give your own name to return to yours.

    Without a name, show which one is used.
    """
    from brim.api.client import Client
    from brim.cli.agents import agent_words, end_process, start_agent

    if who is None:
        print(controller_folder())
        return
    if "/" in who:
        folder = Path(who).absolute()
        owner = folder.lstat().st_uid
    else:
        try:
            owner = pwd.getpwnam(who).pw_uid
        except KeyError:
            raise NotFoundError(f"there is no user {who!r} on this machine") from None
        folder = runtime_folder({}, owner)
    try:
        check_runtime_folder(folder, owner)
    except FileNotFoundError:
        raise NotFoundError(f"{who} runs no controller: there is no folder {folder}") from None
    at = Client(folder / "api.sock")
    devices = at.status()["status"]["devices"]  # also: whether this user may
    joined_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if owner == os.getuid() and folder == runtime_folder({}):
        joined_file().unlink(missing_ok=True)
    else:
        fd = os.open(joined_file(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(f"{owner} {folder}\n")
    lock = agent_folder() / "lock"
    if is_locked(lock):  # it serves another controller; its jobs go on, and the next agent adopts them
        end_process(lock, "the agent")
    if systemd:
        _write_units(None, agent_words(at))
    else:
        start_agent(at)
    print(f"joined {folder}: {counted(devices, 'device')}", file=sys.stderr if systemd else sys.stdout)
