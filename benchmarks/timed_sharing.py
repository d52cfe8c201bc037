"""A job whose device is a core: each step computes for a part of its time, and waits for the rest.

    python benchmarks/timed_sharing.py FOLDER STEP_S BUSY

Alone on its core a step takes STEP_S, of which it computes the part BUSY. It appends the time of each step to
FOLDER/times.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    """Compute and wait until it is stopped."""
    folder, step_s, busy = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    with (folder / "times").open("a", buffering=1) as file:
        while True:
            until_s = time.thread_time() + busy * step_s
            while time.thread_time() < until_s:
                pass
            if busy < 1:
                time.sleep((1 - busy) * step_s)
            print(time.monotonic(), file=file)


if __name__ == "__main__":
    main()
