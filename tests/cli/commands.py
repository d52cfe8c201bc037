"""The ``brim`` command as a real process."""

from __future__ import annotations

import subprocess
import sys


def brim(*args, **kwargs):
    command = [sys.executable, "-m", "brim.cli.main", *map(str, args)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, **kwargs)
