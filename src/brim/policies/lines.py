"""Where the parts of a policy stand in source files, so that an error can point at its user's own line."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from brim.policies.sockets import Policy

SOCKETS: Final = ("order", "size", "place", "feed", "fill")


def line_of(part: object) -> str:
    """File and line of the part's ``__call__``, as ``mine.py:12``; empty where it is not written in Python."""
    code = getattr(type(part).__call__, "__code__", None) or getattr(part, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def own_parts(policy: Policy) -> dict[str, object]:
    """The parts that do not come with brim, by socket."""
    parts = {socket: getattr(policy, socket) for socket in SOCKETS}
    return {socket: part for socket, part in parts.items() if not str(part.__module__).startswith("brim.")}


def raised_at(part: object, trace: TracebackType | None) -> str:
    """File and line of the part's file that raised, or called what raised; else where the part stands."""
    own = line_of(part)
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if own and file == own.rpartition(":")[0]:
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found or own
