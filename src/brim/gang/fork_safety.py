"""Whether a fork of this interpreter can stand in for a fresh ``python script.py args``.

``parse_command`` reads a command line. The functions whose names end in ``obstacle`` return why a fork is not possible:
because of the command, of what this process has loaded and opened, or of what a library finds in a forked child.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

FORBID_VARIABLE: Final = "BRIM_ZYGOTE"
"""Environment: ``off`` turns forking off, so every rank is a fresh interpreter. A site hook may set it."""
READ_AT_STARTUP: Final = (
    "PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_", "ATEN_", "TORCH_",
    "PYTORCH_", "MALLOC_", "LC_", "LANG", "GLIBC_", "TCMALLOC_",
)  # fmt: skip
"""Prefixes of variables that an interpreter or a library reads once, at start. Our list, from their documentation."""
_GPU_DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
_STARTUP_CWD: Final = os.getcwd()


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A parsed Python command; ``kind`` is ``script``, ``folder``, ``module`` or ``code``."""

    kind: str
    target: str
    args: tuple[str, ...]
    unbuffered: bool = False


def is_this_python(program: str, env: Mapping[str, str]) -> bool:
    """Whether the program is this interpreter, in this environment. Its folder counts, since venvs differ."""
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        return False
    same_folder = os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(sys.executable))
    return same_folder and os.path.realpath(found) == os.path.realpath(sys.executable)


def parse_command(command: Iterable[str], cwd: str) -> PythonCommand | str:
    """Return what ``python ...`` would run, or why that needs a fresh interpreter.

    ``command`` does not include the interpreter.
    """
    words = list(command)
    unbuffered = False
    while words and words[0] == "-u":
        unbuffered = True
        words.pop(0)
    if not words or words[0] == "-":
        return "it reads its program from standard input"
    if words[0] in ("-m", "-c") and len(words) > 1:
        kind = "module" if words[0] == "-m" else "code"
        return PythonCommand(kind, words[1], tuple(words[2:]), unbuffered)
    if words[0].startswith("-"):
        return f"the interpreter option {words[0]}"
    path = os.path.join(cwd, words[0])
    if words[0].endswith((".pyc", ".pyw")):
        return "it is a compiled file"
    kind = "folder" if os.path.isdir(path) or _is_zip(path) else "script"
    return PythonCommand(kind, words[0], tuple(words[1:]), unbuffered)


def command_obstacle(
    command: PythonCommand, env: Mapping[str, str], cwd: str, startup_env: Mapping[str, str]
) -> str | None:
    """Return why this interpreter, started with ``startup_env``, cannot stand in for a fresh one; None if it can."""
    if env.get(FORBID_VARIABLE) == "off":
        return f"{FORBID_VARIABLE}=off"
    for name in sorted(env.keys() | startup_env.keys()):
        if name.startswith(READ_AT_STARTUP) and env.get(name) != startup_env.get(name):
            return f"{name} is {env.get(name)!r} for the rank and was {startup_env.get(name)!r} when the zygote started"
    if any(not os.path.isabs(entry) for entry in env.get("PYTHONPATH", "/").split(":")) and cwd != _STARTUP_CWD:
        return "PYTHONPATH has relative folders"
    return _shadowed_module(first_path(command, cwd))


def process_obstacle(threads: int) -> str | None:
    """Return why this interpreter must never be forked; None if forking is safe.

    A site hook or a preloaded module may have started threads or opened a GPU, neither of which survives a fork.
    """
    if os.environ.get(FORBID_VARIABLE) == "off":
        return f"{FORBID_VARIABLE}=off, set by a site hook"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "CUDA is initialised in the zygote"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (path := os.readlink(f"/proc/self/fd/{fd}")).startswith(_GPU_DEVICES):
                return f"the zygote has {path} open"
    if threads > 1:
        return f"{threads - 1} threads run in the zygote: a site hook or a preloaded module started them"
    return None


def child_obstacle() -> str | None:
    """In a forked child, return why a library does not work after the fork; None if all do."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda._is_in_bad_fork():
        return "CUDA's driver was touched in the zygote"
    return None


def _is_zip(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\3\4"
    except OSError:
        return False


def first_path(command: PythonCommand, cwd: str) -> str:
    """Return the entry that Python puts at the front of ``sys.path``."""
    if command.kind == "script":
        return os.path.dirname(os.path.realpath(os.path.join(cwd, command.target)))
    return {"module": cwd, "code": "", "folder": os.path.join(cwd, command.target)}[command.kind]


def _shadowed_module(first: str) -> str | None:
    """Name a module beside the script that would be imported here from elsewhere, since its name is already loaded."""
    try:
        names = os.listdir(first or ".")
    except OSError:
        return None
    for entry in names:
        name, _, rest = entry.partition(".")
        loaded = sys.modules.get(name)
        if loaded is None or (rest and rest[-2:] not in ("py", "so")):
            continue
        if name in ("__main__", *sys.builtin_module_names):
            continue
        path = os.path.join(first, entry)
        if not rest and not os.path.exists(os.path.join(path, "__init__.py")):
            continue
        origin = getattr(loaded, "__file__", None)
        frozen = getattr(getattr(loaded, "__spec__", None), "origin", None) == "frozen"
        inside = os.path.join(path, "__init__.py") if not rest else path
        if not frozen and not (origin and os.path.exists(origin) and os.path.samefile(origin, inside)):
            return f"{path} would be imported by a fresh interpreter; here {name} is already loaded from {origin}"
    return None
