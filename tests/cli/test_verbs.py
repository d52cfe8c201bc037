"""The table of verbs, whose modules are imported one by one."""

import inspect

import pytest
import typer

from brim.cli.main import app
from brim.cli.verbs import VERBS

GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_the_table_can_be_loaded_and_has_help(verb):
    command = GROUP.get_command(None, verb)
    assert command.name == verb
    assert inspect.cleandoc(command.help)


def test_the_lines_of_the_help_are_shown_whole():
    width = 80 - 4 - max(map(len, VERBS))
    assert not [line for _, line in VERBS.values() if len(line) > width or not line.endswith(".")]
