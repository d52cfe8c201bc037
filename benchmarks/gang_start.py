"""Measure the time from the order to start a gang until its last rank has finished its first collective.

Script, supervisor and machine are the same; ranks forked from a running zygote and fresh interpreters take turns.

    python gang_start.py [--ranks 4] [--rounds 5] [--optimizer]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from brim.gang.launch_config import LaunchConfig
from brim.gang.supervisor import Supervisor

SCRIPT = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if "--optimizer" in sys.argv:
    torch.optim.Adam(torch.nn.Linear(8, 8).parameters())
total = torch.ones(1)
dist.all_reduce(total)
now_s = time.monotonic()
assert total.item() == dist.get_world_size()
open(f"{sys.argv[1]}/{dist.get_rank()}", "w").write(repr(now_s))
dist.destroy_process_group()
"""


@contextlib.contextmanager
def zygote(folder: Path) -> Iterator[tuple[str, float]]:
    """Start a listening zygote; yield its path, and how long it took to be ready."""
    path = str(folder / "zygote")
    start_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "brim.gang.zygote", "--listen", path], stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        while b"listening" not in process.stderr.readline():
            assert process.poll() is None
        yield path, time.monotonic() - start_s
    finally:
        process.terminate()
        process.wait()


def start(folder: Path, path: str, ranks: int, words: list[str], *, fork: bool) -> tuple[float, float]:
    """Return the seconds to the last rank's first collective, and to the end of all processes."""
    for old in folder.glob("[0-9]*"):
        old.unlink()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "BRIM_ZYGOTE": "on" if fork else "off"}
    command = (sys.executable, str(folder / "script.py"), str(folder), *words)
    start_s = time.monotonic()
    config = LaunchConfig(command, ranks, str(folder / "s"), str(folder), env=env, zygote=path)
    result = Supervisor(config).run()
    end_s = time.monotonic()
    assert result.exit_code == 0, result
    first = [float((folder / str(rank)).read_text()) for rank in range(ranks)]
    return max(first) - start_s, end_s - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--optimizer", action="store_true", help="construct an optimizer before the collective")
    options = parser.parse_args()
    words = ["--optimizer"] if options.optimizer else []
    with tempfile.TemporaryDirectory(prefix="brim-bench-") as name, zygote(Path(name)) as (path, ready_s):
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        start(folder, path, options.ranks, words, fork=True)
        forked, fresh, ends = [], [], []
        for _ in range(options.rounds):
            for _ in range(3):
                first_s, end_s = start(folder, path, options.ranks, words, fork=True)
                forked.append(first_s)
                ends.append(end_s)
            fresh.append(start(folder, path, options.ranks, words, fork=False)[0])
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    what = ", with an optimizer" if words else ""
    print(f"gang of {options.ranks} to its first collective{what} (median [least, most])")
    print(f"  zygote (ready after {ready_s:.1f} s, once)  {_spread(forked)} s; to its end {_spread(ends)} s")
    print(f"  fresh interpreters               {_spread(fresh)} s")
    ratio = statistics.median(fresh) / statistics.median(forked)
    print(f"  ratio {ratio:.0f}x, least against least {min(fresh) / min(forked):.0f}x")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


if __name__ == "__main__":
    main()
