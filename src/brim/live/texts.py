"""Texts that agents send, as they can be stored and shown. Agents belong to users, who may say anything."""

from __future__ import annotations

from typing import Final

TEXT_MAX: Final = 500
"""Characters of a text that are kept; ours: some lines of a screen."""


def text(said: str) -> str:
    """A text that an agent sent, on one line and of bounded length."""
    return "".join(c if c.isprintable() else " " for c in said[:TEXT_MAX])
