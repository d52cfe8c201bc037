"""How fast a quiet cluster reacts: plain commands one after the other, and an array of 100 short jobs.

    .venv/bin/python benchmarks/short_jobs.py [--policy fifo] [--python PATH/TO/python ...]

Four CPU slots, the real controller and agent. Times are of the clock and hold the start of Python; with several
interpreters, each of an environment with its own brim, they take turns. From the record of the array: what of a job's
time passes where, from the round that starts it to the round that books its end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from brim.api.client import Client
from brim.live.store.opening import connect

RUNS, ARRAY, PAUSE_S = 5, 100, 0.05


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def median_ms(state: Path, what: str) -> float:
    """The median of an expression over the attempts of the array."""
    with connect(next(state.rglob("*.db"))) as database:
        select = f"SELECT {what} FROM attempts JOIN jobs ON jobs.id = attempts.job WHERE job > ?"
        return statistics.median(value for (value,) in database.execute(select, (RUNS,)))


def measure(python: str, policy: str) -> None:
    """Measure one brim, and print it."""
    folder = Path(tempfile.mkdtemp(prefix="brim-", dir="/tmp"))
    env = {**os.environ, "BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run")}
    brim, quiet = [python, "-m", "brim.cli.main"], {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        subprocess.run([*brim, "up", "--devices", "4", "--policy", policy], env=env, check=True, **quiet)
        client, runs_s = Client(folder / "run" / "api.sock"), []
        for _ in range(RUNS):
            begin_s = time.monotonic()
            subprocess.run([*brim, "run", "--", "echo", "hi"], env=env, check=True, **quiet)
            runs_s.append(time.monotonic() - begin_s)
        before = client.status()["status"]
        begin_s, begin_cpu_s = time.monotonic(), cpu_s(before["pid"])
        subprocess.run([*brim, "submit", "--array", f"0-{ARRAY - 1}", "--", "true"], env=env, check=True, **quiet)
        submitted_s = time.monotonic() - begin_s
        while (now := client.status()["status"])["jobs"]:
            time.sleep(PAUSE_S)
        array_s, used_s = time.monotonic() - begin_s, cpu_s(before["pid"]) - begin_cpu_s
        finished = sum(job.state == "finished" for job in client.jobs("all", limit=1000).jobs)
        subprocess.run([*brim, "down", "--stop"], env=env, check=True, **quiet)
        print(f"{python}, {policy}, load {os.getloadavg()[0]:.1f}")
        print(f"  brim run -- echo hi: {' '.join(f'{run_s:.2f}' for run_s in runs_s)} s")
        print(f"  {ARRAY} jobs: {array_s:.1f} s, of which brim submit {submitted_s:.1f} s; {finished} of "
              f"{RUNS + ARRAY} finished; {now['rounds'] - before['rounds']} rounds; controller "
              f"{used_s:.1f} s CPU")  # fmt: skip
        parts = {"decided to begun": "begin_ms - decided_ms", "begun to ended": "attempts.end_ms - begin_ms"}
        state = folder / "state"
        found = [f"{name} {median_ms(state, what):.0f} ms" for name, what in parts.items()]
        print(f"  medians of a job: {', '.join(found)}")
    finally:
        subprocess.run([*brim, "down", "--stop"], env=env, check=False, **quiet)
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    for _ in range(options.repeats):
        for python in options.python:
            measure(python, options.policy)


if __name__ == "__main__":
    main()
