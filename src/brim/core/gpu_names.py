"""Names of GPUs: whether one name is that of a type.

Drivers say ``NVIDIA A100-SXM4-80GB``, users say ``A100``, ``a100-80gb`` or, as in Slurm, ``nvidia_a100``.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Final

CPU: Final = "cpu"
"""The type of a device that is a part of a machine's cores."""
_MAKERS: Final = ("nvidia", "tesla", "geforce", "quadro")
"""Words that say who made a GPU or for whom, and not which it is."""
_WORD: Final = re.compile(r"[A-Za-z0-9.]+", re.ASCII)


def is_of_type(asked: str, gpu_type: str) -> bool:
    """Whether every word of what is asked for is one of the type's, or several of them written as one.

    Example:
        >>> is_of_type("nvidia_a100", "A100-SXM4-80GB"), is_of_type("RTX4090", "RTX-4090"), is_of_type("A10", "A100")
        (True, True, False)
    """
    wanted, words = ([word.casefold() for word in words_of(text)] for text in (asked, gpu_type))
    known = {"".join(words[first:end]) for first, end in combinations(range(len(words) + 1), 2)}
    return bool(wanted) and known.issuperset(wanted)


def words_of(name: str) -> list[str]:
    """Return the words of a name that say which GPU it is."""
    return [word for word in _WORD.findall(name) if word.casefold() not in _MAKERS]
