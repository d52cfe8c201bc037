"""Parsing of option values that several verbs share. Light: imported at start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from brim.errors import ConfigError

OUTPUTS: Final = ("table", "json")

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="Cluster: 64x8xH100, 16x4xT4:cpus=48,mem=192GB, or a TOML file; what the record shows, if absent.",
    ),
]
AnonymiseOption = Annotated[
    bool, typer.Option("--anonymise", help="Pseudonyms for users, accounts and jobs in all that is written.")
]
OutputOption = Annotated[str, typer.Option("--output", "-o", help="table or json.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]


def output_of(output: str, as_json: bool) -> str:
    """Which output is wanted.

    Raises:
        ConfigError: neither table nor json.
    """
    if output not in OUTPUTS:
        raise ConfigError(f"--output: found {output!r}, expected one of {', '.join(OUTPUTS)}")
    return "json" if as_json else output


def tell_if_compiling() -> None:
    """Say on stderr why the first run on a machine takes longer."""
    from brim.compiled import is_cold

    if is_cold():
        print("brim: compiling the placement code; this happens once and takes some 20 s", file=sys.stderr)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal's stderr that something is going on."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def numbers(text: str, option: str) -> list[float]:
    """Read ``0.7,0.9,1.1``.

    Raises:
        ConfigError: a part is not a positive number.
    """
    try:
        values = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = [float("nan")]
    if not all(0 < value < float("inf") for value in values):
        raise ConfigError(f"{option}: found {text!r}, expected positive numbers such as 0.9 or 0.7,0.9,1.1")
    return values


def factor(text: str, option: str) -> float:
    """Read ``x2`` or ``2``.

    Raises:
        ConfigError: not a factor.
    """
    try:
        value = float(text.removeprefix("x"))
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{option}: found {text!r}, expected a factor such as x2")
    return value


def check_writable(*paths: Path | None) -> None:
    """Find out before an hour of replays that the folder for the results does not exist.

    Raises:
        ConfigError: a file cannot be written.
    """
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not os.access(folder, os.W_OK) or (path.exists() and not path.is_file()):
            raise ConfigError(f"cannot write {path}: expected a file name in an existing folder that can be written")
