"""Commands of Slurm that a shell script calls, found without running it.

What is quoted, a comment, or a here-document is no call, except a substitution within double quotes. What is called
by way of a variable, a function or another script is not found.
"""

from __future__ import annotations

import re
from typing import Final

_ASIDE: Final = re.compile(
    r"""
    \\. | '[^']*' | (?<![^\s;&|()`])\#[^\n]* | "(?P<quoted>(?:[^"\\]|\\.)*)"
    | (?<!<)<<-?[ \t]*(?P<quote>['"]?)(?P<end>\w+)(?P=quote)(?P<rest>[^\n]*)\n(?:[^\n]*\n)*?[ \t]*(?P=end)$
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
"""What a shell does not take for words: escaped, quoted, comments and here-documents."""
_SUBSTITUTED: Final = re.compile(r"\$\([^)]*\)?|`[^`]*`?")
_CALL: Final = re.compile(
    r"""
    (?:^|[;&|`]|(?<!=)\(|(?<!\S)\{)[ \t]*
    (?:(?:if|then|elif|else|while|until|do|time(?:[ ]-p)?|exec|nohup|command|env|!|\w+=[^\s()]*)[ \t]+)*
    (sbatch|salloc|srun|scancel|squeue|sacct|scontrol)(?=[\s;&|)`<>]|$)
    """,
    re.VERBOSE | re.MULTILINE,
)


def slurm_calls(script: str) -> tuple[str, ...]:
    """Return the commands of Slurm that a script calls, in the order of their first calls."""
    return tuple(dict.fromkeys(_CALL.findall(_ASIDE.sub(_words, script))))


def _words(aside: re.Match[str]) -> str:
    """What of it may be a call: nothing, substitutions, or what follows a here-document on its line."""
    if aside["quoted"] is not None:
        return "_".join(["", *_SUBSTITUTED.findall(aside["quoted"]), ""])
    if aside["end"] is not None:
        return aside["rest"]
    return "" if aside[0].startswith("#") else " " if aside[0] == "\\\n" else "_"
