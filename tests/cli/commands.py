"""The ``brim`` command as a real process, forked from one that has imported its modules."""

from __future__ import annotations

import subprocess
import sys

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


def brim(*args, **kwargs):
    if args[:1] == ("policy",):  # with Hypothesis, which may report an ignored exception when a forked process ends
        command = [sys.executable, "-m", "brim.cli.main", *map(str, args)]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, **kwargs)
    return forked.run("-m", "brim.cli.main", *args, timeout_s=240, **kwargs)
