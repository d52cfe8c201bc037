"""The verbs of ``brim``: in which module each is, and its line in the help. A module is imported when its verb is used.

Importing all of them takes a third of the CPU time of a command that answers at once, such as ``brim ps``.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import typer
from typer.models import TyperInfo

from brim.cli.unconverted import UnconvertedGroup, shown_by_name

VERBS: Final = {
    "up": ("up", "Start the service of this machine, which stays."),
    "down": ("up", "End the controller; jobs go on."),
    "status": ("up", "Show the controller, its devices, and who is connected."),
    "join": ("up", "Use the controller that another user of this machine runs."),
    "run": ("submit", "Submit a job, show its output, and end with its exit code."),
    "submit": ("submit", "Submit a command, a script or a YAML file."),
    "redo": ("submit", "Submit a job again."),
    "ps": ("ps", "Show the jobs that run or wait, and why."),
    "logs": ("logs", "Show what a job wrote."),
    "cancel": ("change", "End jobs."),
    "hold": ("change", "Do not start jobs until they are released."),
    "release": ("change", "Let jobs start that were held."),
    "requeue": ("change", "Stop running jobs and put them back into the queue."),
    "explain": ("change", "Explain why a job waits, and what would let it run."),
    "eta": ("eta", "Forecast when jobs start and end."),
    "history": ("ps", "Show the jobs that have ended."),
    "bill": ("bill", "Show what jobs and users held, used and cost."),
    "report": ("report", "Show how far simulated times are from recorded ones."),
    "token": ("token", "Make, list and revoke tokens for the API on TCP."),
    "doctor": ("doctor", "Check the service, its folders and this machine."),
    "demo": ("demo", "Run nine training jobs on a cluster of its own."),
    "profile": ("profile", "Measure the steps, memory and loader of a training script."),
    "sim": ("sim", "Replay a trace under other policies, and compare them."),
    "trace": ("trace", "Describe, convert and generate traces."),
    "policy": ("policy", "List, show, check and create policies."),
    "predictability": ("predictability", "Train the classifier of jobs whose end can be predicted."),
}
"""The verbs in the order of the help: the module in this folder, whose ``app`` has the verb or is it, and a line."""


class Verbs(UnconvertedGroup):
    """All verbs, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names; see ``TyperGroup``."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a verb; None if there is none of this name; see ``TyperGroup``."""
        if cmd_name not in VERBS:
            return None
        if cmd_name not in self.commands:
            found = _command(importlib.import_module(f"brim.cli.{VERBS[cmd_name][0]}").app, cmd_name)
            self.commands[cmd_name] = shown_by_name(found)
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs without importing them; see ``TyperGroup``."""
        width = formatter.width - 4 - max(map(len, VERBS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _cut(line, width)) for name, (_, line) in VERBS.items()])


def _command(app: typer.Typer, verb: str) -> Any:
    """Return a verb of an application, without the others, or the application itself, which is a group of this name."""
    for info in app.registered_commands:
        if info.callback is not None and verb == (info.name or typer.main.get_command_name(info.callback.__name__)):
            return typer.main.get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
    return typer.main.get_group_from_info(
        TyperInfo(app), pretty_exceptions_short=True, suggest_commands=True, rich_markup_mode=None
    )


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 4].rsplit(" ", 1)[0] + "..."
