"""Measure the time from a request to leave until the last process is gone, with 100 MB of state to save.

    python preempt.py [--times 5] [--ranks 2]

The same run measures the time of a step, and the time this disk needs for the bytes (a synchronous save of the same
size: written, synced, read back and compared). The rest is the overhead.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def save_s(folder):
    """A synchronous save of the same state by a process that does nothing else."""
    import torch

    from brim.train.checkpoint.checkpointer import Checkpointer

    state = {f"t{number}": torch.randn(1024, 1025) for number in range(24)}
    saver = Checkpointer(folder)
    saver.reserve(state)
    began = time.monotonic()
    saver.save(1, state, {}, wait=True)
    return time.monotonic() - began


def preempted(zygote, ranks):
    """Return the seconds from the request to the end of the last process, and those of the median step before."""
    from tests.elastic.storm import Gang

    from brim.gang.messages import PreemptRequest
    from resize import JOB, last_of, steps_in, until

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gang = Gang(folder, ranks, folder, "--checkpoint", folder / "saved", zygote=zygote, job=JOB)
        try:
            until(lambda: last_of(folder, ranks), 60, "training")
            time.sleep(1.5)
            began = time.monotonic()
            gang.ask(PreemptRequest())
            code = gang.process.wait(60)
            took = time.monotonic() - began
        finally:
            gang.close()
        assert code == 75, gang.stderr()
        assert list((folder / "saved").glob("save-*"))
        return took, statistics.median(ended - begun for _, begun, ended in steps_in(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    from tests.zygotes import shared

    from resize import MEGABYTES

    taken, steps, disk = [], [], []
    with tempfile.TemporaryDirectory() as name, shared(Path(name)) as zygote:
        for number in range(options.times):
            took, step = preempted(zygote, options.ranks)
            taken.append(took)
            steps.append(step)
            disk.append(save_s(Path(name) / f"alone{number}"))
    total, step, alone = (statistics.median(values) for values in (taken, steps, disk))
    print(f"{MEGABYTES:.0f} MB, {options.ranks} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"request to last process gone {total:.2f} s (most {max(taken):.2f} of {len(taken)}); a step {step:.3f} s; "
          f"a synchronous save of as much {alone:.2f} s; beyond both {total - step - alone:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
