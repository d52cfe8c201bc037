"""A job whose devices are emulated: its steps end at given times after its start, whatever the cores are busy with.

    python benchmarks/timed_job.py FILE STEPS STEP_S

So it goes on as a GPU does: a step whose end is noticed late does not delay the next. It writes the number of steps
done into FILE after each, and goes on there when it is started again.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    """Run the steps that are left."""
    path, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    done = 0
    if os.path.exists(path):
        with open(path) as file:
            done = int(file.read())
    begin_s = time.monotonic() - done * step_s
    for step in range(done, steps):
        time.sleep(max(0.0, begin_s + (step + 1) * step_s - time.monotonic()))
        with open(f"{path}.new", "w") as file:
            file.write(str(step + 1))
        os.replace(f"{path}.new", path)


if __name__ == "__main__":
    main()
