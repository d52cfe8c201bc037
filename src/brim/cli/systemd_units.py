"""Units of systemd for the service of this machine and this user's agent: ``brim up --systemd``, ``join --systemd``.

Both kill only their own process (``KillMode=process``): jobs go on when one is stopped or fails, and the next takes
them over. systemd starts either again when it fails; without lingering, a logout ends both and the jobs. The agent's
cgroup is delegated to it, for a cgroup of each attempt (``brim.agent.cgroups``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from brim.agent.cgroups import UNIT
from brim.agent.folders import RUNTIME_VARIABLE, STATE_VARIABLE
from brim.errors import ConfigError

CONTROLLER: Final = "brim.service"
AGENT: Final = UNIT
RESTART_S: Final = 2
"""Time after which systemd starts again what has failed; ours."""
_KEPT: Final = (STATE_VARIABLE, RUNTIME_VARIABLE, "XDG_STATE_HOME", "LD_LIBRARY_PATH")
"""Variables that say where things are; the manager of user units does not have those of a shell."""
_UNIT: Final = """\
[Unit]
Description={description}
{order}
[Service]
ExecStart={command}
{environment}{more}KillMode=process
Restart=on-failure
RestartSec={restart_s}
RestartPreventExitStatus=2 3 4

[Install]
WantedBy=default.target
"""


def units_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which systemd looks for units of this user."""
    return Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or Path.home()) / ".config") / "systemd" / "user"


def unit_texts(controller: Sequence[str] | None, agent: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the units, by name.

    Args:
        controller: Arguments of ``brim.api.serve``; None: another user runs it, and only the agent has a unit.
        agent: Arguments of ``brim.agent``.
        env: The environment; the variables that say where brim's folders are stand in the units.

    Raises:
        ConfigError: a word has a control character, which no unit can have.
    """
    environment = "".join(f"Environment={_quoted(f'{name}={env[name]}')}\n" for name in _KEPT if env.get(name))
    texts = {}
    delegated = f"Delegate=yes\nExecStopPost=-{_command('brim.agent.cgroups', ())}\n"
    after = "" if controller is None else f"After={CONTROLLER}\n"
    for name, module, words, description, order, more in (
        (CONTROLLER, "brim.api.serve", controller, "brim: the controller of this machine", "", ""),
        (AGENT, "brim.agent", agent, "brim: the agent of this user", after, delegated),
    ):
        if words is None:
            continue
        texts[name] = _UNIT.format(
            description=description, order=order, command=_command(module, words), environment=environment,
            more=more, restart_s=RESTART_S,
        )  # fmt: skip
    return texts


def write_units(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write units into a folder, and return their paths.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _command(module: str, words: Sequence[str]) -> str:
    return " ".join(_quoted(word).replace("$", "$$") for word in (sys.executable, "-m", module, *words))


def _quoted(text: str) -> str:
    """A word as systemd reads it: quoted, and without its specifiers."""
    if not text.isprintable():
        raise ConfigError(f"found {text!a}, expected no control characters: a unit of systemd cannot have them")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
