"""Measure the cost of a change from 2 to 4 ranks and back for the ranks that stay: brim, torchrun elastic and torchft.

    python resize.py [--times 3] [--others-times 1]

The job has 100 MB of state. The lost time is that between the last step on the old number of ranks and the first on
the new one, without steps on another number in between.

torchrun: two agents of two workers on this machine (``--nnodes=1:2``, c10d rendezvous); the second agent joins, and
later gets SIGTERM. Its workers restart from a snapshot; steps done again are not counted. It runs once with its
defaults, which include a wait of 30 s for further agents (``last_call_timeout``) while it has fewer than the most, and
once with ``last_call_timeout=1``.

torchft (``torchft-nightly``, left out where it is not installed): replicas of one process each; two join, and later two
get SIGTERM, which ends them at once: torchft has no other way to leave. Its lighthouse misses heartbeats after 1 s (5 s
by default); everything else has its default.
"""

import argparse
import contextlib
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import torchft_replicas  # noqa: E402
from torchft_replicas import JOB  # noqa: E402

CHANGES = ((2, 4), (4, 2))
MEGABYTES = 2 * 12 * (1024 * 1024 + 1024) * 4 / 1e6


def steps_in(folder, names="*"):
    """Return (size, began, ended) of every step that these processes have noted, in order of time."""
    rows = []
    for path in folder.glob(f"{names}.steps"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                size, began, ended = line.split()
                rows.append((int(size), float(began), float(ended)))
    return sorted(rows, key=lambda row: row[1])


def last_of(folder, size):
    """Return whether some rank is training at this size now."""
    rows = steps_in(folder)
    return bool(rows) and rows[-1][0] == size and time.monotonic() - rows[-1][2] < 1


def gaps(folder, names="*"):
    """Return the seconds without a step on the way from one of the sizes of `CHANGES` to the other, by (from, to)."""
    found, rows, left, lost = {}, steps_in(folder, names), 0, 0.0
    usual = {size: statistics.median(end - began for kind, began, end in rows if kind == size) for size, _, _ in rows}
    for (size, _, _), (after, _, ended) in itertools.pairwise(rows):
        if after == size:
            continue
        left = left or size
        began = ended - usual[after]  # torchft waits for the others within its step
        lost += began - max((end for kind, _, end in rows if kind == size and end <= began), default=began)
        if (left, after) in CHANGES:
            found.setdefault((left, after), []).append(lost)
        if after in (2, 4):
            left, lost = 0, 0.0
    return found


def until(holds, timeout_s, what):
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what}: not seen within {timeout_s} s")
        time.sleep(0.1)


def with_brim(times):
    from tests.elastic.storm import Gang
    from tests.zygotes import shared

    from brim.gang.messages import ResizeRequest

    with tempfile.TemporaryDirectory() as name, shared(Path(name)) as zygote:
        folder = Path(name)
        gang = Gang(folder, 2, folder, zygote=zygote, job=JOB)
        try:
            until(lambda: last_of(folder, 2), 60, "training")
            for target in [4, 2] * times:
                time.sleep(2.0)
                gang.ask(ResizeRequest(target))
                until(lambda t=target: last_of(folder, t), 60, f"{target} ranks")
            time.sleep(1.0)
        finally:
            gang.close()
        return gaps(folder)


def with_torchrun(times, last_call_s):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def agent(is_host):
            command = [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=2",
                "--max-restarts=100", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=resize",
                "--local-addr=127.0.0.1", f"--rdzv-conf=is_host={int(is_host)},last_call_timeout={last_call_s}",
                str(JOB), name, "--torchrun", f"{name}/snapshot",
            ]  # fmt: skip
            with (folder / "log").open("a") as log:
                # with the shared store, agents of torch 2.13 wait for one another for ever when one joins that runs
                # already: it does not publish the address again
                env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
                return subprocess.Popen(command, stdout=log, stderr=log, env=env)

        agents = [agent(is_host=True)]
        try:
            until(lambda: last_of(folder, 2), 120, "training")
            for _ in range(times):
                time.sleep(3.0)
                agents.append(agent(is_host=False))
                until(lambda: last_of(folder, 4), 180, "4 ranks")
                time.sleep(3.0)
                agents[-1].send_signal(signal.SIGTERM)
                until(lambda: last_of(folder, 2), 300, "2 ranks again")
                agents[-1].wait(60)
        finally:
            for one in reversed(agents):
                one.terminate()
                one.wait(60)
        return gaps(folder)


def with_torchft(times):
    with tempfile.TemporaryDirectory() as name, torchft_replicas.lighthouse() as address:
        folder = Path(name)
        replicas = [torchft_replicas.replica(folder, address) for _ in range(2)]
        try:
            until(lambda: last_of(folder, 2), 120, "training")
            for _ in range(times):
                time.sleep(3.0)
                replicas += [torchft_replicas.replica(folder, address) for _ in range(2)]
                until(lambda: last_of(folder, 4), 180, "4 replicas")
                time.sleep(3.0)
                for one in replicas[2:]:
                    one.terminate()
                    one.wait(60)
                del replicas[2:]
                until(lambda: last_of(folder, 2), 180, "2 replicas again")
        finally:
            for one in replicas:
                one.kill()
                one.wait(60)
        return gaps(folder, replicas[0].pid)  # a newcomer counts the wait for its first state as a step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--others-times", type=int, default=1)
    options = parser.parse_args()
    print(f"{MEGABYTES:.0f} MB of state, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    sides = {
        "brim": lambda: with_brim(options.times),
        "torchrun, last_call_timeout=30 (default)": lambda: with_torchrun(options.others_times, 30),
        "torchrun, last_call_timeout=1": lambda: with_torchrun(options.others_times, 1),
        "torchft": lambda: with_torchft(options.others_times),
    }
    ours = {}
    for name, measured in sides.items():
        if name == "torchft" and torchft_replicas.MISSING:
            print(f"torchft: left out, {torchft_replicas.MISSING}")
            continue
        lost = measured()
        ours = ours or lost
        for change in CHANGES:
            mine, this = statistics.median(ours[change]), statistics.median(lost[change])
            shown = f"{this:.3f} s (most {max(lost[change]):.3f} of {len(lost[change])})"
            ratio = "" if lost is ours else f", {this / mine:.0f} times brim's"
            print(f"{change[0]} -> {change[1]} ranks: {name} {shown}{ratio}", flush=True)


if __name__ == "__main__":
    main()
