"""The mounted volumes that this process sees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mounted volume: which folder of it, where, of which type, and what it is."""

    root: str
    point: str
    kind: str
    source: str

    def __str__(self) -> str:
        return f"{self.point} ({self.kind})"


def mounts(table: str | None = None) -> Iterator[Mount]:
    """Yield the mounts, in order: of several on one point the last is the one to be seen.

    Args:
        table: Text of ``/proc/self/mountinfo``; None: as it is now.
    """
    text = TABLE.read_text(encoding="utf-8", errors="surrogateescape") if table is None else table
    for line in text.rstrip("\n").split("\n"):  # names may have other separators in them
        place, _, rest = line.partition(" - ")
        root, point = place.split(" ")[3:5]
        kind, source = rest.split(" ")[:2]
        yield Mount(_plain(root), _plain(point), kind, _plain(source))


def _plain(text: str) -> str:
    """Undo the octal escapes of the kernel: space, tab, newline, backslash."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
