"""Options that several commands share, and the parsing of their values. Light: imported at every start."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from brim.errors import ConfigError, shown
from brim.units import WHOLE_MAX, parse_whole

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells use it (128 + SIGINT)."""
OUTPUTS: Final = ("table", "json")
LISTING: Final = Path(__file__).parent.parent / "policies" / "listing.json"
"""The presets and parts for ``brim policy list``; `make regold` writes the file, and a test compares it."""

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="CLUSTER",
        help="64x8, 64x8xH100, 16x4xT4:cpus=48,mem=192GB, or a TOML file; by default the one that the trace "
             "records.",
    ),
]
AnonymiseOption = Annotated[
    bool, typer.Option("--anonymise", help="Write pseudonyms instead of the names of users, accounts and jobs.")
]
OutputOption = Annotated[str, typer.Option("--output", "-o", metavar="FORM", help="table or json.")]
ObjectiveOption = Annotated[
    str | None,
    typer.Option("--objective", metavar="jct|energy|cost|balanced", help="What the policy brim aims at; else jct."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]


def output_of(output: str, as_json: bool) -> str:
    """Return the output that the options select: table or json.

    Raises:
        ConfigError: ``--output`` is neither.
    """
    if output not in OUTPUTS:
        raise ConfigError(f"--output: found {shown(output)}, expected table or json")
    return "json" if as_json else output


def listing() -> dict[str, Any]:
    """Read the presets and parts from a file; importing them takes half a second."""
    found: dict[str, Any] = json.loads(LISTING.read_text(encoding="utf-8"))
    return found


def complete_policy(incomplete: str) -> list[str]:
    """Return completions for the shell: presets, and Python files in the typed folder."""
    folder, _, start = incomplete.rpartition("/")
    files = [f"{path.name}" for path in sorted(Path(folder or ".").glob("*.py")) if path.name.startswith(start)]
    names = [] if folder else [row["name"] for row in listing()["policies"] if row["name"].startswith(start)]
    return [*names, *(f"{folder}/{file}" if folder else file for file in files)]


def complete_policies(incomplete: str) -> list[str]:
    """Return completions for a list of names joined by commas, of which the last is incomplete."""
    given, comma, last = incomplete.rpartition(",")
    return [f"{given}{comma}{name}" for name in complete_policy(last) if name not in given.split(",")]


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on stderr, where it is a terminal, that the command is at work."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Begin the message of an error in the value of an option with the option's name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


def whole(text: str, option: str, least: int = 0, most: int = WHOLE_MAX, *, what: str = "a whole number") -> int:
    """Read a whole number from ``least`` to ``most``; errors say ``what`` it is.

    Raises:
        ConfigError: the text is no such number.
    """
    with naming(option):
        return parse_whole(text, least, most, what=what)


def numbers(text: str, option: str) -> list[float]:
    """Read ``0.7,0.9,1.1``.

    Raises:
        ConfigError: an item is not a positive number.
    """
    try:
        values = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = [float("nan")]
    if not all(0 < value < float("inf") for value in values):
        raise ConfigError(f"{option}: found {shown(text)}, expected numbers above 0, such as 0.9 or 0.7,0.9,1.1")
    return values
