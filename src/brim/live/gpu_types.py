"""Names of GPU types: of a machine, from what its driver calls its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from brim.core.gpu_names import words_of

ANY: Final = "gpu"
"""The type of GPUs that have nothing in their names in common."""


def type_of(names: Sequence[str]) -> str:
    """Return the type of GPUs with these names, at least one: the words with which all of them begin.

    Example:
        >>> type_of(["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"])
        'A100-SXM4'
        >>> type_of(["Tesla T4", "NVIDIA H200"])
        'gpu'
    """
    both = zip(*map(words_of, names), strict=False)
    words = [same[0] for same in takewhile(lambda same: len(set(map(str.casefold, same))) == 1, both)]
    found = "-".join(words)
    return found if found[:1].isalpha() else "-".join([ANY, *words])
