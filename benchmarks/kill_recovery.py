"""Measure how long ranks stand still when others are killed without notice, with 50 MB of gradients: brim, torchft.

    python kill_recovery.py [--kills 200] [--torchft-kills 10]

Every kill is SIGKILL to one process or two at a random moment: of a training gang of two or four ranks, of a gang
that grows from two to four ranks while new ranks join and receive the state, or of a gang that saves before it leaves.
A kill counts as good if the others have done a new step at most 2 s after it, beyond the time of the step itself; if
the gang was saving, if it has saved and left within 15 s.

torchft (``torchft-nightly``) has two replicas of one process each, a lighthouse that misses heartbeats after 1 s (5 s
by default), and its defaults for everything else; if it is not installed, its line says so.
"""

import argparse
import collections
import contextlib
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import torchft_replicas  # noqa: E402
from resize import JOB, until  # noqa: E402

LIMIT_S, PATIENCE_S = 2.0, 15.0
KILLS_PER_GANG = 5
KINDS = (  # kind of victim, number of ranks, number of kills out of 100
    ("the last rank", 2, 25), ("the first rank", 2, 20), ("the last rank", 4, 10), ("the first rank", 4, 10),
    ("a middle rank", 4, 10), ("two ranks at once", 4, 10), ("a rank while others join", 2, 10),
)  # fmt: skip
SAVING = 5
"""Number of kills, out of 100, of the first rank of two while it saves before all leave."""


def steps_of(folder, pid):
    """Return (began, ended) of the steps of one process, in order."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / f"{pid}.steps").read_text().splitlines()
        return [tuple(map(float, line.split()[1:])) for line in lines if line.count(" ") == 2]
    return []


def beyond_step_s(folder, pids, killed_s):
    """Return the time from the kill to the first new step of any of these, without the step itself, or None."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        for pid in pids:
            ends = [ended for began, ended in steps_of(folder, pid) if began > killed_s]
            if len(ends) > 3:
                step_s = statistics.median(after - before for before, after in itertools.pairwise(ends))
                return max(0.0, ends[0] - killed_s - step_s)
        time.sleep(0.02)
    return None


def pids_of(status):
    """Return the processes of the members, in rank order."""
    by_id = {rank["id"]: rank["pid"] for rank in status["ranks"] if rank["alive"]}
    return [by_id[number] for number in status["members"] if number in by_id]


def is_whole(size):
    return lambda status: len(status["members"]) == size and all(
        rank["state"] == "joined" for rank in status["ranks"] if rank["id"] in status["members"]
    )


def victims_of(kind, pids, dice):
    match kind:
        case "the last rank":
            return pids[-1:]
        case "the first rank":
            return pids[:1]
        case "a middle rank":
            return [dice.choice(pids[1:-1])]
        case "two ranks at once":
            return dice.sample(pids, 2)
        case _:
            return [dice.choice(pids)]


def killed(gang, folder, kind, ranks, dice):
    """Kill once while the gang trains or grows."""
    from brim.gang.messages import ResizeRequest

    status = gang.until(is_whole(ranks), 60)
    until(lambda: all(len(steps_of(folder, pid)) > 2 for pid in pids_of(status)), 60, "training")
    if kind == "a rank while others join":
        gang.ask(ResizeRequest(2 * ranks))
        status = gang.until(lambda status: any(rank["state"] == "forming" for rank in status["ranks"]), 60)
    time.sleep(dice.uniform(0, 0.3))
    pids = pids_of(status)
    victims = victims_of(kind, pids, dice)
    for pid in victims:
        os.kill(pid, 9)
    found = beyond_step_s(folder, [pid for pid in pids if pid not in victims], time.monotonic())
    if found is not None:
        gang.ask(ResizeRequest(ranks))
    return found


def saved(zygote, dice):
    """Return whether the others save and leave when the rank that saves is killed."""
    from tests.elastic.storm import Gang

    from brim.gang.messages import PreemptRequest

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gang = Gang(folder, 2, folder, "--checkpoint", folder / "saved", zygote=zygote, job=JOB)
        try:
            status = gang.until(is_whole(2), 60)
            until(lambda: all(len(steps_of(folder, pid)) > 2 for pid in pids_of(status)), 60, "training")
            gang.ask(PreemptRequest())
            time.sleep(dice.uniform(0, 0.5))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids_of(status)[0], 9)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return gang.process.wait(PATIENCE_S) == 75 and bool(list((folder / "saved").glob("save-*")))
            return False
        finally:
            gang.close()


def with_brim(kills, seed):
    """Return seconds beyond the step by kind; None for gangs that did not go on."""
    from tests import zygotes
    from tests.elastic.storm import Gang

    dice, found = random.Random(seed), collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as root, zygotes.shared(Path(root)) as zygote:
        for kind, ranks, share in KINDS:
            left = round(kills * share / 100)
            while left > 0:
                with tempfile.TemporaryDirectory() as name:
                    gang = Gang(Path(name), ranks, Path(name), zygote=zygote, job=JOB)
                    try:
                        for _ in range(min(left, KILLS_PER_GANG)):
                            left -= 1
                            found[kind, ranks].append(killed(gang, Path(name), kind, ranks, dice))
                            if found[kind, ranks][-1] is None:
                                print(f"stands still: {gang.status()}\n{gang.stderr()[-2000:]}", file=sys.stderr)
                                break
                    finally:
                        gang.close()
            print(line(f"brim, {kind} of {ranks}", found[kind, ranks]), flush=True)
        saves = [saved(zygote, dice) for _ in range(round(kills * SAVING / 100))]
        print(f"brim, the first rank of 2 as it saves: {sum(saves)} of {len(saves)} saved and left", flush=True)
    return [value for values in found.values() for value in values]


def line(name, values):
    """Print one row of the result."""
    times = sorted(value for value in values if value is not None)
    good = sum(value <= LIMIT_S for value in times)
    shown = f"; beyond the step median {statistics.median(times):.2f} s, most {times[-1]:.2f} s" if times else ""
    return f"{name}: {good} of {len(values)} within {LIMIT_S:g} s{shown}"


def with_torchft(kills, seed):
    """Return the seconds beyond the step after kills, and the survivor's pauses when replacements join."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, torchft_replicas.lighthouse() as address:
        folder = Path(name)

        def replica():
            return torchft_replicas.replica(folder, address)

        def steps_together(one, since_s):
            lines = (folder / f"{one.pid}.steps").read_text().splitlines() if steps_of(folder, one.pid) else []
            rows = [row.split() for row in lines if row.count(" ") == 2]
            return sum(row[0] == "2" and float(row[1]) > since_s for row in rows)

        survivor, victim = replica(), replica()
        gaps, joins = [], []
        try:
            for _ in range(kills):
                until(lambda v=victim: len(steps_of(folder, v.pid)) > 3, 120, "two replicas of torchft")
                until(lambda: steps_together(survivor, 0.0) > 3, 60, "two replicas of torchft")
                time.sleep(dice.uniform(0, 0.3))
                victim.kill()
                victim.wait()
                gaps.append(beyond_step_s(folder, [survivor.pid], time.monotonic()))
                joined_s = time.monotonic()
                victim = replica()
                until(lambda s=joined_s: steps_together(survivor, s) > 5, 120, "a new replica of torchft")
                joins.append(gap_at_join(folder, survivor.pid, joined_s))
        finally:
            for one in (survivor, victim):
                one.kill()
                one.wait()
    return gaps, joins


def gap_at_join(folder, pid, since_s):
    """Return the longest pause between two steps of the survivor since then, without a step."""
    ends = [ended for began, ended in steps_of(folder, pid) if began > since_s]
    pauses = [after - before for before, after in itertools.pairwise(ends)]
    return max(pauses) - statistics.median(pauses)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--torchft-kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"50 MB of gradients, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    ours = with_brim(options.kills, options.seed)
    print(line("brim, all kills in training", ours), flush=True)
    if not options.torchft_kills:
        return
    if torchft_replicas.MISSING:
        print(f"torchft: left out, {torchft_replicas.MISSING}")
        return
    gaps, joins = with_torchft(options.torchft_kills, options.seed)
    print(line("torchft, one replica of two", gaps))
    print(f"torchft, a replica joins: the other pauses {statistics.median(joins):.2f} s beyond the step (median)")


if __name__ == "__main__":
    main()
