"""Names of GPU types: of a machine from what its driver calls its GPUs, and whether what a user asks for is one.

The driver says ``NVIDIA A100-SXM4-80GB``, users say ``A100``, ``a100-80gb`` or, as in Slurm, ``nvidia_a100``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, takewhile
from typing import Final

CPU: Final = "cpu"
"""The type of a device that is a part of a machine's cores."""
ANY: Final = "gpu"
"""The type of GPUs that have nothing in their names in common."""
_MAKERS: Final = ("nvidia", "tesla", "geforce", "quadro")
"""Words that say who made a GPU or for whom, and not which it is."""
_WORD: Final = re.compile(r"[A-Za-z0-9.]+", re.ASCII)


def type_of(names: Sequence[str]) -> str:
    """Return the type of GPUs with these names, at least one: the words with which all of them begin.

    Example:
        >>> type_of(["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"])
        'A100-SXM4'
        >>> type_of(["Tesla T4", "NVIDIA H200"])
        'gpu'
    """
    both = zip(*map(_words, names), strict=False)
    words = [same[0] for same in takewhile(lambda same: len(set(map(str.casefold, same))) == 1, both)]
    found = "-".join(words)
    return found if found[:1].isalpha() else "-".join([ANY, *words])


def is_of_type(asked: str, gpu_type: str) -> bool:
    """Whether every word of what is asked for is one of the type's, or several of them written as one.

    Example:
        >>> is_of_type("nvidia_a100", "A100-SXM4-80GB"), is_of_type("RTX4090", "RTX-4090"), is_of_type("A10", "A100")
        (True, True, False)
    """
    wanted, words = ([word.casefold() for word in _words(text)] for text in (asked, gpu_type))
    known = {"".join(words[first:end]) for first, end in combinations(range(len(words) + 1), 2)}
    return bool(wanted) and known.issuperset(wanted)


def _words(name: str) -> list[str]:
    return [word for word in _WORD.findall(name) if word.casefold() not in _MAKERS]
