"""Files that are replaced as a whole: a reader sees the old content or the new one, never a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brim.errors import BrimError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to; renamed to ``path`` at the end, removed after a failure.

    A symbolic link stays one: the file it leads to is replaced.

    Raises:
        BrimError: the file cannot be written, as on a full disk; ``path`` is as it was.
    """
    target = path.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise BrimError(f"cannot write {path}: {reason}") from None
    finally:
        part.unlink(missing_ok=True)
