"""Check the files that a command writes, which must replace no input, and keep standard output for the result alone."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from brim.errors import ConfigError, RefusedError
from brim.replacing import check_replaceable

if TYPE_CHECKING:
    from rich.console import Console

WIDE: Final = 10_000
"""Width where no terminal sets a limit: lines are not folded, and tables keep all their columns."""


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[str | Path | None] = ()) -> None:
    """Check, before an hour of replays, that the results can be written and replace nothing that the command reads.

    Args:
        outputs: Files to write, by the option that names them; None for options that were not given.
        inputs: Files and folders that the command reads.

    Raises:
        ConfigError: a file cannot be written, or two options name the same file.
        RefusedError: a file would replace an input, also through a symbolic or hard link.
    """
    given = {option: path for option, path in outputs.items() if path is not None}
    read = [Path(path) for path in inputs if path]
    taken: dict[Path, str] = {}
    for option, path in given.items():
        _check_writable(option, path)
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise ConfigError(f"{other} and {option} name the same file, {path}: give them different names")
        for source in read:
            if _replaces(path, source):
                same = "a file" if path == source else f"part of {source}" if source.is_dir() else f"the file {source}"
                raise RefusedError(f"{option}: {path} is {same} that this command reads; give another file name")


def _check_writable(option: str, path: Path) -> None:
    folder = path.resolve().parent
    try:
        if path.is_dir():
            raise ConfigError(f"{option}: cannot write {path}: it is a folder; give a file name")
        if path.exists() and not path.is_file():
            raise ConfigError(f"{option}: cannot write {path}: it is not a regular file")
        if not folder.is_dir():
            raise ConfigError(f"{option}: cannot write {path}: there is no folder {folder}")
        check_replaceable(path)
    except OSError as error:
        raise ConfigError(f"{option}: cannot write {path}: folder {folder} says: {error.strerror}") from None


def _replaces(path: Path, source: Path) -> bool:
    """Return whether writing the file would replace the input, or a file of it if the input is a folder."""
    try:
        if source.is_dir():
            return path.exists() and any(os.path.samefile(path, inside) for inside in source.rglob("*"))
        return path.exists() and os.path.samefile(path, source)
    except OSError:  # an input that does not exist: its reader reports it
        return False


@contextmanager
def payload() -> Iterator[TextIO]:
    """Keep standard output for the result alone: send what other code writes there meanwhile to standard error.

    Policies are their users' programs and may print, also in the processes that replay them.
    """
    out = sys.stdout
    try:
        ours = os.dup(out.fileno())
    except (io.UnsupportedOperation, ValueError, OSError):  # closed, or not a file, as in tests that capture it
        sys.stdout = sys.stderr
        try:
            yield out
        finally:
            sys.stdout = out
        return
    out.flush()
    os.dup2(sys.stderr.fileno(), out.fileno())
    try:
        with os.fdopen(os.dup(ours), "w", encoding=out.encoding, errors=out.errors) as result:
            yield result
    finally:
        out.flush()  # what was printed meanwhile
        os.dup2(ours, out.fileno())
        os.close(ours)


def console(file: TextIO | None = None) -> Console:
    """Return a console as wide as the terminal; without a terminal, no line is folded and no column dropped."""
    from rich.console import Console

    target = file or sys.stdout
    return Console(file=target, width=None if target.isatty() else WIDE, highlight=False)
