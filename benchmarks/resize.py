"""What a change from 2 to 4 ranks and back costs those who stay: brim against torchrun elastic, one after the other.

    python resize.py [--times 3] [--torchrun-times 1]

The job has 100 MB of state. Lost is the time between the last step on the old number of ranks and the first on the new
one. torchrun: two agents of two workers on this machine (``--nnodes=1:2``, c10d rendezvous, everything else as it
comes); the second agent joins, and later gets SIGTERM. Its workers restart from a snapshot; steps done again are not
counted.
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
JOB = HERE / "resize_job.py"
MEGABYTES = 2 * 12 * (1024 * 1024 + 1024) * 4 / 1e6


def steps_in(folder):
    """(size, began, ended) of every step that any rank has noted, in order of time."""
    rows = []
    for path in folder.glob("*.steps"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                size, began, ended = line.split()
                rows.append((int(size), float(began), float(ended)))
    return sorted(rows, key=lambda row: row[1])


def last_of(folder, size):
    """Whether some rank is training at this size now."""
    rows = steps_in(folder)
    return bool(rows) and rows[-1][0] == size and time.monotonic() - rows[-1][2] < 1


def gaps(folder):
    """Seconds between the last step at one size and the first at the next, by (from, to)."""
    found, rows = {}, steps_in(folder)
    for (size, _, _), (after, began, _) in itertools.pairwise(rows):
        if after != size:
            ended = max(end for kind, _, end in rows if kind == size and end <= began)
            found.setdefault((size, after), []).append(began - ended)
    return found


def until(holds, timeout_s, what):
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what}: not seen within {timeout_s} s")
        time.sleep(0.1)


def with_brim(times):
    from tests.elastic.storm import Gang, shared_zygote

    from brim.gang.protocol import AskResize

    with tempfile.TemporaryDirectory() as name, shared_zygote(Path(name)) as zygote:
        folder = Path(name)
        gang = Gang(folder, 2, folder, zygote=zygote, job=JOB)
        try:
            until(lambda: last_of(folder, 2), 60, "training")
            for target in [4, 2] * times:
                time.sleep(2.0)
                gang.ask(AskResize(target))
                until(lambda t=target: last_of(folder, t), 60, f"{target} ranks")
            time.sleep(1.0)
        finally:
            gang.close()
        return gaps(folder)


def with_torchrun(times):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def agent(is_host):
            command = [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=2",
                "--max-restarts=100", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=resize",
                "--local-addr=127.0.0.1", f"--rdzv-conf=is_host={int(is_host)}",
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--torchrun-times", type=int, default=1)
    options = parser.parse_args()
    print(f"{MEGABYTES:.0f} MB of state, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    ours, theirs = with_brim(options.times), with_torchrun(options.torchrun_times)
    for change in ((2, 4), (4, 2)):
        mine, other = statistics.median(ours[change]), statistics.median(theirs[change])
        print(
            f"{change[0]} -> {change[1]} ranks: brim {mine:.3f} s (most {max(ours[change]):.3f} of "
            f"{len(ours[change])}), torchrun elastic {other:.1f} s, {other / mine:.0f}x"
        )


if __name__ == "__main__":
    main()
