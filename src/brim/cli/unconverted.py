"""Commands whose options are flags and texts, which need no conversion.

typer 0.29 imports pydantic as soon as it converts an option, also a text to a text, and a ``--help`` that was not
given. That import is half of the CPU time of a command that answers at once.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption


class _Option(TyperOption):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return self.callback(ctx, self, value) if self.callback else value


def _unconverted(params: list[Any]) -> list[Any]:
    for param in params:  # typer makes them itself and takes no class for them
        if type(param) is TyperOption:
            param.__class__ = _Option
    return params


class UnconvertedCommand(TyperCommand):
    """A command whose options have the values that were given: a text, or True or False."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See ``TyperCommand``."""
        return _unconverted(super().get_params(ctx))


class UnconvertedGroup(TyperGroup):
    """A group of commands whose own options have the values that were given."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See ``TyperGroup``."""
        return _unconverted(super().get_params(ctx))
