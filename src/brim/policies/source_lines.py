"""The source lines of a policy's parts, so that an error can point at the line that its author wrote."""

from __future__ import annotations

from types import TracebackType

from brim.policies.sockets import SOCKETS, Policy


def line_of(part: object) -> str:
    """File and line of the part's ``__call__``, as ``mine.py:12``; empty if it is not written in Python.

    For a class that inherits ``__call__``, the line of its own first function, so that the file is its author's.
    """
    for kind in type(part).__mro__:
        own = vars(kind)
        found = [own.get("__call__"), *own.values(), part if kind is type(part) else None]
        for code in (getattr(getattr(value, "fget", value), "__code__", None) for value in found):
            if code is not None and not code.co_filename.startswith("<"):
                return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def own_parts(policy: Policy) -> dict[str, object]:
    """The parts that are not part of brim, by socket."""
    parts = {socket: getattr(policy, socket) for socket in SOCKETS}
    return {socket: part for socket, part in parts.items() if not str(part.__module__).startswith("brim.")}


def raised_at(part: object, trace: TracebackType | None) -> str:
    """File and line in the part's file that raised or made the call that raised; else the line of the part."""
    own = line_of(part)
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if own and file == own.rpartition(":")[0]:
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found or own
