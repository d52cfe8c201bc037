"""The ``brim`` command as a real process, forked from one that has imported its modules."""

from __future__ import annotations

from tests import forked

MINE = """
from dataclasses import dataclass
import numpy as np
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.place.parts import Consolidate
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Policy

@dataclass(frozen=True)
class {name}:
    def __call__(self, snapshot, beliefs):
        {body}

policy = Policy(name="mine", order={name}(), size=AsAsked(), place=Consolidate(), feed=Even(), fill=NoFill())
"""
"""A user's policy file; ``body`` is what its order does."""


def brim(*args, timeout_s=240, **kwargs):
    return forked.run("-m", "brim.cli.main", *args, timeout_s=timeout_s, **kwargs)
