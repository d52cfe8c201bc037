"""Replace files as a whole: a reader sees the old content or the new one, never a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brim.errors import BrimError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` to write to; rename it to ``path`` at the end, remove it after a failure.

    If ``path`` is a symbolic link, the file it points to is replaced.

    Raises:
        BrimError: the file cannot be written, as on a full disk; ``path`` is unchanged.
    """
    target = path.resolve()
    part = _part(target)
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise BrimError(f"cannot write {path}: {reason}") from None
    finally:
        part.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Check that ``replacing`` can write beside the file, by doing so; the file itself is left alone.

    Raises:
        OSError: it cannot.
    """
    part = _part(path.resolve())
    part.touch()
    part.unlink()


def _part(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.part")
