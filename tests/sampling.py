"""How much of a large enumeration runs: all of it with ``pytest --full`` (``make test-all``), else a sample.

Whoever calls ``sample`` says what the sample is. Only counts depend on it: every test runs either way.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

full = False
"""Set from the command line before tests are imported."""


def sample(whole: T, part: T) -> T:
    """``whole`` with ``--full``, else ``part``."""
    return whole if full else part
