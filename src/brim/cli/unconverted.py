"""Groups and commands of ``brim``: usage errors in brim's own style, and options that need no conversion.

typer 0.29 imports pydantic as soon as it converts an option, also a text to a text, and a ``--help`` that was not
given. That import is half of the CPU time of a command that answers at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from brim.errors import ConfigError, shown

_UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""The base of all usage errors, which typer itself does not export; click has it too, for older versions of typer."""
_MissingParameter: Final[Any] = next(
    kind for kind in typer.BadParameter.__subclasses__() if kind.__name__ == "MissingParameter"
)


_EXPECTED: Final = {
    "int_parsing": "a whole number", "int_parsing_size": "a whole number of at most 18 digits",
    "float_parsing": "a number", "greater_than_equal": "{ge} or more", "less_than_equal": "at most {le}",
}  # fmt: skip
"""Kind of pydantic's error -> what brim says instead."""


class _Option(TyperOption):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return self.callback(ctx, self, value) if self.callback else value


class _NamedArgument(TyperArgument):
    """An argument that the help shows by its ``metavar`` alone."""

    def _usage_display_name(self) -> str:
        """What stands in the usage line, without brackets and dots beside those that ``metavar`` has itself."""
        return self.metavar or super()._usage_display_name()

    def display_type_rich(self, ctx: Any) -> str | None:
        """What stands behind the name: nothing, where typer would write ``<list[str]>``."""
        return None if self.metavar else super().display_type_rich(ctx)


class _Argument(_NamedArgument):
    def process_value(self, ctx: Any, value: Any) -> Any:
        if self.required and self.value_is_missing(value):
            raise _MissingParameter(ctx=ctx, param=self)
        return value


def shown_by_name(command: Any) -> Any:
    """Return the command, whose help shows its arguments by their ``metavar`` alone; None stays None."""
    for param in command.params if command is not None else ():
        if type(param) is TyperArgument:
            param.__class__ = _NamedArgument
    return command


def _unconverted(params: list[Any]) -> list[Any]:
    for param in params:  # typer makes them itself and takes no class for them
        if type(param) is TyperOption:
            param.__class__ = _Option
        elif type(param) in (TyperArgument, _NamedArgument):
            param.__class__ = _Argument
    return params


class UnconvertedCommand(TyperCommand):
    """A command whose options and arguments have the values that were given: texts, switches, lists of texts."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See ``TyperCommand``."""
        return _unconverted(super().get_params(ctx))


@contextmanager
def _as_config_errors() -> Iterator[None]:
    """Turn usage errors into brim's own, which are one line; a group without a command still shows its help."""
    try:
        yield
    except _UsageError as error:
        said = _found_and_expected(error) or error.format_message()
        if said.startswith("Usage:"):
            raise
        command = error.ctx.command_path if error.ctx else "brim"
        raise ConfigError(f"{said[:1].lower()}{said[1:].rstrip('.')}; see `{command} -h`") from None


def _found_and_expected(error: Any) -> str:
    """What an option was given and what it takes; empty if another mistake was made."""
    errors = getattr(error.__cause__, "errors", None)  # of pydantic
    if errors is None:
        return ""
    first = errors()[0]
    limits, given = first.get("ctx", {}), first["input"]
    expected = _EXPECTED.get(first["type"], "").format(**limits) or first["msg"]
    return f"{max(error.param.opts, key=len)}: found {shown(given)}, expected {expected}"


class UnconvertedGroup(TyperGroup):
    """A group of commands whose own options have the values that were given."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the group's own options; see ``TyperGroup``.

        Raises:
            ConfigError: an option does not exist or has a wrong value.
        """
        with _as_config_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; see ``TyperGroup``.

        Raises:
            ConfigError: one of its options or arguments does not exist, is missing or has a wrong value.
        """
        with _as_config_errors():
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command of the group; see ``TyperGroup``."""
        return shown_by_name(super().get_command(ctx, cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; see ``TyperGroup``.

        Raises:
            ConfigError: there is no such command.
        """
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            names = self.list_commands(ctx)
            near = [known for known in names if name.startswith(known)] or difflib.get_close_matches(name, names, n=1)
            path = ctx.command_path
            hint = f"did you mean '{path} {near[0]}'?" if near else f"expected one of {', '.join(names)}"
            raise ConfigError(f"there is no command '{path} {name}': {hint}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """See ``TyperGroup``."""
        return _unconverted(super().get_params(ctx))
