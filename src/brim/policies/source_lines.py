"""The source lines of a policy's parts, so that an error can point at the line that its author wrote."""

from __future__ import annotations

from inspect import unwrap
from types import TracebackType
from typing import Any

from brim.policies.sockets import SOCKETS, Policy


def line_of(part: Any, method: str = "__call__") -> str:
    """File and line of a method of the part, as ``mine.py:12``; empty if it is not written in Python.

    For a class that inherits the method, the line of its own first function, so that the file is its author's.
    """
    part = unwrap(part)
    for kind in type(part).__mro__:
        own = vars(kind)
        found = [own.get(method), own.get("__call__"), *own.values(), part if kind is type(part) else None]
        for code in (getattr(getattr(value, "fget", value), "__code__", None) for value in found):
            if code is not None and not code.co_filename.startswith("<"):
                return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def own_parts(policy: Policy) -> dict[str, object]:
    """The parts that are not part of brim, by socket."""
    parts = {socket: unwrap(getattr(policy, socket)) for socket in SOCKETS}
    return {socket: part for socket, part in parts.items() if not str(part.__module__).startswith("brim.")}


def own_lines(policy: Policy) -> str:
    """File and line of each part that is not part of brim, as ``mine.py:12 (order) or mine.py:30 (place)``."""
    lines = {socket: line_of(part) for socket, part in own_parts(policy).items()}
    return " or ".join(f"{line} ({socket})" for socket, line in lines.items() if line)


def raised_at(part: object, trace: TracebackType | None, method: str = "__call__") -> str:
    """File and line in the part's file that raised or made the call that raised; else the line of the method."""
    own = line_of(part, method)
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if own and file == own.rpartition(":")[0]:
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found or own
