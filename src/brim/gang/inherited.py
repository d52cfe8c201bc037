"""What a process inherits from who starts it, besides environment and folder: its umask and its soft limits.

A job gets those of the shell in which it was submitted, as with Slurm, which takes the soft ones too. What is above
a hard limit of the process becomes that limit.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

NONE: Final = -1
UMASK_MAX: Final = 0o777
_LIMITS: Final = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name) for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # the same as RLIMIT_NOFILE
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What is inherited.

    Attributes:
        umask: File mode creation mask; ``NONE`` leaves it as it is.
        limits: Soft limits by name, such as ``nofile``, in the units of setrlimit(2); -1 for no limit.
    """

    umask: int = NONE
    limits: Mapping[str, int] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"umask": self.umask, "limits": dict(self.limits)}

    def set(self) -> None:
        """Set them for this process and all that it will start."""
        if self.umask != NONE:
            os.umask(self.umask)
        for name, limit in self.limits.items():
            if name in _LIMITS:  # other systems have others
                _set_soft(_LIMITS[name], limit)

    @contextlib.contextmanager
    def for_a_child(self) -> Iterator[None]:
        """Set them until the end of the block, in which one process is started."""
        before = of_this_process()
        try:
            self.set()
            yield
        finally:
            before.set()


AS_IT_IS: Final = Inherited()
"""Leaves everything as it is."""


def of_this_process() -> Inherited:
    """Return what this process would pass on."""
    mask = os.umask(0o077)
    os.umask(mask)
    return Inherited(umask=mask, limits={name: resource.getrlimit(kind)[0] for name, kind in sorted(_LIMITS.items())})


def read_inherited(plain: Mapping[str, Any]) -> Inherited:
    """Return it from plain data; the inverse of ``Inherited.plain``, of which parts may be missing.

    Raises:
        ValueError: the data are of another form.
    """
    umask, limits = plain.get("umask", NONE), plain.get("limits", {})
    if type(umask) is not int or not NONE <= umask <= UMASK_MAX or not isinstance(limits, dict):
        raise ValueError(f"umask: found {umask!r}, expected {NONE} to {UMASK_MAX}; limits: expected names and numbers")
    for name, limit in limits.items():
        if type(name) is not str or type(limit) is not int or not NONE <= limit < 1 << 63:
            raise ValueError(f"limit {name!a}: found {limit!r}, expected a whole number from {NONE}")
    return Inherited(umask=umask, limits=limits)


def _set_soft(kind: int, limit: int) -> None:
    soft, hard = resource.getrlimit(kind)
    endless = resource.RLIM_INFINITY
    wanted = hard if limit == endless or (hard != endless and limit > hard) else limit
    if wanted != soft:
        resource.setrlimit(kind, (wanted, hard))
