"""What a job runs: its words, environment and working folder, taken from where ``brim submit`` is called.

They stay in this user's own folder, as a capture that only this user's agent reads; the controller learns its digest.
The text of a shell script is copied, so that it can be edited while the job waits; a Python script is run where it is,
because it imports what lies beside it.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from brim.agent.capture import write_capture
from brim.agent.folders import RUNTIME_VARIABLE, STATE_VARIABLE, agent_folder, captures_folder
from brim.cli.headers import Headers, read_headers
from brim.cli.job_options import Asked, merged, valid_name
from brim.cli.slurm_calls import slurm_calls
from brim.errors import ConfigError
from brim.gang.inherited import of_this_process
from brim.live.requests import JobRequest, read_request

ENVIRONMENT_BYTES_MAX: Final = 1 << 20
"""Most bytes of command and environment; ours: Linux takes at most 2 MiB of both."""
SCRIPT_BYTES_MAX: Final = 1 << 20
_SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh")
_KEPT: Final = (STATE_VARIABLE, RUNTIME_VARIABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """What to run, and what its script or file says about it.

    Attributes:
        command: The words of the command.
        options: Options of ``brim submit``.
        ignored: Options of Slurm that have no meaning here, with the reason.
        name: Name of the job where none is given.
        slurm: Variables of Slurm that the options of a script's headers mean; None for what has no such headers.
        slurm_name: Name of the job as a script's headers of Slurm say it; empty without one.
        slurm_calls: Commands of Slurm that a script for Slurm calls and that know nothing of a job of brim.
    """

    command: tuple[str, ...]
    options: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    name: str
    slurm: Mapping[str, str] | None = None
    slurm_name: str = ""
    slurm_calls: tuple[str, ...] = ()


def work_of(words: Sequence[str]) -> Runnable:
    """Return what words mean: a YAML file, a script with its arguments, or a command.

    Raises:
        ConfigError: a file cannot be used.
    """
    path = Path(words[0])
    if path.suffix in (".yaml", ".yml") and (path.is_file() or not _on_path(words[0], os.environ)):
        if not path.is_file():
            raise ConfigError(f"there is no file {path.absolute()}")
        from brim.cli.jobfile import read_jobfile

        if len(words) > 1:
            raise ConfigError(f"{path}: found arguments after a YAML file, expected none: its `run` has the command")
        said = read_jobfile(path)
        inner = work_of(said.command)
        return Runnable(command=inner.command, options=merged(said.options, inner.options), ignored=inner.ignored,
                    name=valid_name(path.stem), slurm=inner.slurm, slurm_name=inner.slurm_name,
                    slurm_calls=inner.slurm_calls)
    if path.is_file() and ("/" in words[0] or not _on_path(words[0], os.environ)):
        return _script(path, words[1:])
    return Runnable(command=tuple(words), options={}, name=_name_of(words))


def _script(path: Path, arguments: Sequence[str]) -> Runnable:
    with path.open("rb") as file:
        data = file.read(SCRIPT_BYTES_MAX + 1)
    data = data.removeprefix(codecs.BOM_UTF8)  # before which neither the kernel nor a shell finds the first line
    first, _, _ = data.partition(b"\n")
    if b"\0" in data[:8_192]:
        if not os.access(path, os.X_OK):
            raise ConfigError(f"{path}: found neither text nor a program that may be run")
        return Runnable(command=(str(path), *arguments), options={}, name=_name_of((str(path), *arguments)))
    if len(data) > SCRIPT_BYTES_MAX:
        raise ConfigError(f"{path}: found over {SCRIPT_BYTES_MAX} bytes, expected a script of at most that")
    text = data.decode(errors="replace")  # a comment may be in Latin-1
    interpreter = _interpreter(first.decode(errors="replace"), path)
    headers: Headers = read_headers(text, str(path))
    shell = os.path.basename(interpreter[-1]) in _SHELLS or os.path.basename(interpreter[0]) in _SHELLS
    if shell and b"\r\n" in data:
        raise ConfigError(f"{path}: found line ends of Windows, which a shell takes as part of words: use "
                          f"`dos2unix`, or `sed -i 's/\\r$//' {shlex.quote(str(path))}`")
    script = _copied(data) if shell else str(path)
    return Runnable(command=(*interpreter, script, *arguments), options=headers.options, ignored=headers.ignored,
                name=valid_name(path.stem), slurm=headers.slurm, slurm_name=headers.slurm_name,
                slurm_calls=() if headers.slurm is None else slurm_calls(text))


def _interpreter(first: str, path: Path) -> tuple[str, ...]:
    if first.startswith("#!"):
        program, _, argument = first[2:].strip().partition(" ")  # as the kernel: one argument at most
        words = (program, *filter(None, [argument.strip()]))
        return tuple(argument.split()) if os.path.basename(program) == "env" and not argument.startswith("-") else words
    if path.suffix == ".py":
        return ("python" if _on_path("python", os.environ) else sys.executable,)
    if path.suffix in ("", ".sh", ".sbatch", ".slurm", ".bash"):
        return ("/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",)
    raise ConfigError(f"{path}: found no first line such as #!/bin/bash, expected one, or its interpreter before it")


def _copied(data: bytes) -> str:
    folder = agent_folder() / "scripts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
    except FileExistsError:
        if path.read_bytes() != data:  # another brim writes it, or was killed while it did
            path.write_bytes(data)
    return str(path)


def requests_of(
    work: Runnable, asked: Asked, after: Mapping[str, Sequence[int]], *, keep: bool = True
) -> list[JobRequest]:
    """Write the capture of a job, or of all jobs of an array, and return what to ask for.

    Args:
        work: What to run.
        asked: What its options say.
        after: Ids of the jobs to wait for, by the field of the request in which they belong.
        keep: Whether the capture is written; without it, the requests are for show.

    Raises:
        ConfigError: the command or the working folder does not exist, or the environment is too large.
        BrimError: a capture cannot be written.
    """
    cwd = _folder(asked.chdir)
    env = dict(os.environ)
    if "TORCHELASTIC_RUN_ID" in env:
        from brim.gang.environment import without_rank

        env = without_rank(env)
    env = {name: value for name, value in env.items() if not name.startswith("BRIM_") or name in _KEPT}
    if work.slurm is not None:  # not those of a job of Slurm in which it is submitted
        env = {name: value for name, value in env.items() if not name.startswith("SLURM_")}
        env.update(_slurm_variables(work, asked))
    env.update(asked.env)
    _check_command(work.command[0], env, cwd)
    _check_size(work.command, env)
    plain = {"name": work.name, **asked.fields, "capture": "0" * 32, "digest": "0" * 64, **after}
    request = read_request({**plain, "array_index": asked.indices[-1]} if asked.indices else plain)
    if keep:
        capture, digest = write_capture(
            captures_folder(agent_folder()), work.command, env, cwd, of_this_process(), slurm=work.slurm is not None,
            indices=asked.indices,
        )
        request = replace(request, capture=capture, digest=digest)
    return [replace(request, array_index=index) for index in asked.indices] or [request]


def _slurm_variables(work: Runnable, asked: Asked) -> dict[str, str]:
    """Variables of Slurm that are known before the job is; see ``brim.agent.slurm_variables`` for the others."""
    found = {
        "SLURM_JOB_NAME": asked.fields.get("name", work.name), "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": os.uname().nodename, "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", **(work.slurm or {}),
    }  # fmt: skip
    if asked.indices:
        found |= {
            "SLURM_ARRAY_TASK_COUNT": str(len(asked.indices)), "SLURM_ARRAY_TASK_MIN": str(asked.indices[0]),
            "SLURM_ARRAY_TASK_MAX": str(asked.indices[-1]),
        }  # fmt: skip
    return found


def _folder(chdir: str) -> str:
    try:
        folder = os.path.abspath(os.path.expanduser(chdir) if chdir else os.getcwd())
    except FileNotFoundError:
        raise ConfigError("the folder in which you are does not exist any more: change to another one") from None
    if not os.path.isdir(folder):
        raise ConfigError(f"--chdir: found {folder!r}, expected a folder that exists")
    return folder


def _check_command(command: str, env: Mapping[str, str], cwd: str) -> None:
    if "/" in command:
        path = os.path.join(cwd, command)
        if not os.path.isfile(path):
            is_folder = os.path.isdir(path)
            raise ConfigError(f"{path} is a folder, expected a program" if is_folder else f"there is no program {path}")
        if not os.access(path, os.X_OK):
            raise ConfigError(f"{path} may not be run: make it executable, or name its interpreter before it")
    elif not _on_path(command, env):
        raise ConfigError(f"there is no command {command!r} on your PATH, nor a file of that name in {cwd}")


def _on_path(command: str, env: Mapping[str, str]) -> bool:
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    found = (os.path.join(folder, command) for folder in folders if folder)
    return any(os.access(path, os.X_OK) and os.path.isfile(path) for path in found)


def _check_size(command: Sequence[str], env: Mapping[str, str]) -> None:
    sizes = {name: len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in env.items()}
    total = sum(sizes.values()) + sum(len(os.fsencode(word)) + 1 for word in command)
    if total > ENVIRONMENT_BYTES_MAX:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ConfigError(
            f"command and environment have {total} bytes, expected at most {ENVIRONMENT_BYTES_MAX}; the largest "
            f"variable, {largest}, has {sizes[largest]}"
        )


def _name_of(words: Sequence[str]) -> str:
    """A name from the script that a command runs, or from the command."""
    scripts = [word for word in words[1:] if word.endswith((".py", ".sh")) and not word.startswith("-")]
    base = os.path.basename(scripts[0] if scripts else words[0]).removesuffix(".py").removesuffix(".sh")
    return valid_name(base)
