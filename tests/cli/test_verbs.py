"""The table of verbs, whose modules are imported one by one."""

import inspect
import os
import re
import subprocess
import sys
import tomllib

import pytest
import typer

from brim.cli.main import app
from brim.cli.verbs import VERBS, Verbs
from tests.forked import ROOT

GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_the_table_can_be_loaded_and_has_help(verb):
    command = GROUP.get_command(None, verb)
    assert command.name == verb
    assert inspect.cleandoc(command.help)


def helps(command, path, parent=None):
    """The lines of the help of a command and of those below it, on a terminal of 80 columns."""
    context = command.context_class(command, info_name=path.split()[-1], parent=parent, max_content_width=80)
    yield from command.get_help(context).splitlines()
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from helps(command.get_command(context, name), f"{path} {name}", context)


def test_help_on_80_columns_cuts_no_line_and_names_all_values():
    lines = list(helps(GROUP, "brim"))
    assert lines[0].startswith("Usage: brim")
    assert len(lines) > 200
    assert not [line for line in lines if re.search(r"[a-z]\.\.\.$|<[a-z][^>]*>|\{[^}]*\}", line)]


HEAVY = {"numpy", "numba", "polars", "fastapi", "pydantic", "uvicorn", "rich", "asyncio", "http", "email", "yaml"}


@pytest.mark.parametrize(("words", "error"), [
    (["ps"], "NoControllerError"), (["submit", "-g", "1-2", "--env", "A=1", "true"], "NoControllerError"),
    (["cancel", "3"], "NoControllerError"), (["logs", "-f"], "NoControllerError"), (["submit", "-h"], "SystemExit"),
    (["submit", "-t", "soon", "true"], "ConfigError"),
])  # fmt: skip
def test_verbs_that_answer_at_once_import_nothing_heavy(words, error, tmp_path):
    code = f"""
import sys
from brim.cli.main import app
sys.argv[1:] = {words}
try:
    app(prog_name="brim")
except BaseException as end:
    print(type(end).__name__, *{{name.partition(".")[0] for name in sys.modules}})
"""
    env = {**os.environ, "BRIM_STATE": str(tmp_path / "state"), "BRIM_RUNTIME": str(tmp_path / "run")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    ended, *loaded = done.stdout.splitlines()[-1].split()
    assert ended == error
    assert not HEAVY & set(loaded)


def test_of_the_verbs_of_a_module_the_one_that_is_asked_for_is_built(monkeypatch):
    built, build = [], typer.main.get_command_from_info
    noted = lambda info, **more: built.append(info) or build(info, **more)  # noqa: E731
    monkeypatch.setattr(typer.main, "get_command_from_info", noted)
    assert Verbs(name="brim").get_command(None, "submit").name == "submit"
    assert len(built) == 1


def test_ctrl_c_while_the_command_is_imported_ends_it_in_silence():
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["brim"]
    module, _, function = script.partition(":")
    code = f"""
import sys
from {module} import {function}
class Interrupts:
    def find_spec(self, name, *rest):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
{function}()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
