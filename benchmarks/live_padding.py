"""A padding job on two devices beside regular jobs, live, and what the twin predicts of it.

    .venv/bin/python benchmarks/live_padding.py [--seconds 600] [--policy fifo] [--seed 1]

The real service runs them: controller, agent, supervisors. Devices are emulated: regular jobs sleep for the time of
each step (``timed_job.py``), and the padding job for that of each micro-batch (``timed_training.py``), so that two
cores can stand for two devices. Regular jobs of 5 to 40 s on one device arrive so that they use 45 % of both. At the
same time a second cluster runs the same regular jobs without padding: what they wait for is the difference.

The twin is told nothing of this run. Before it, a calibration measures the step times of the padding job alone on one
and on two devices, and, on a cluster of its own with other jobs, what starts, restarts, growths and leaving cost, and
what a regular job holds its device for beyond its work. Compared until the padding job has ended: the share of device
time that jobs hold, and the time that its samples take. Its bits are compared with those of a run alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from brim.agent.folders import log_folder
from brim.api.client import Client
from brim.cli.capture import requests_of, work_of
from brim.cli.job_options import asked
from brim.core.cluster import parse_cluster
from brim.core.replay import Replay
from brim.core.trace import NONE, JobClass, trace_of
from brim.live.recording import costs_of, recorded_jobs
from brim.live.requests import PADDING_GRACE_S, JobRequest
from brim.live.store.reading import Reader
from brim.live.store.state_folder import DATABASE
from brim.policies.presets import find_policy
from brim.sim.overheads import Overheads, PaddingCosts
from brim.sim.truths.parametric import ElasticJobs, Parametric
from brim.sim.twin import ReplaySettings, replay

DEVICES: Final = 2
LOAD: Final = 0.45
RUN_S: Final = (5.0, 40.0)
STEP_S: Final = 0.1
MICRO_S: Final = 0.05
BATCH: Final = 16
LOOK_S: Final = 0.1
WARM: Final = 3
"""Jobs that are run before anything is measured."""
ROUNDS: Final = 4
"""Times that the calibration lets regular jobs come to a padding job: alternately one, and one for each device."""
PATIENCE_S: Final = 180.0
SLACK_S: Final = 2.0
"""How much longer than the grace of the padding job a regular job may wait because of it."""
FOLDER: Final = Path(__file__).parent
TRAINING: Final = str(FOLDER / "timed_training.py")
BRIM: Final = (sys.executable, "-m", "brim.cli.main")
Arrivals = list[tuple[float, int]]


def arrivals(seconds: float, seed: int) -> Arrivals:
    """Times and steps of regular jobs, for half as long again as the padding job is meant to take."""
    draw, at_s, found = random.Random(seed), 0.0, Arrivals()
    mean_s = sum(RUN_S) / 2
    while (at_s := at_s + draw.expovariate(LOAD * DEVICES / mean_s)) < 1.5 * seconds:
        found.append((at_s, round(draw.uniform(*RUN_S) / STEP_S)))
    return found


def request(words: list[str], **given: str) -> JobRequest:
    """One job, with its capture written."""
    (found,) = requests_of(work_of(words), asked(given), {})
    return found


def warm(at: Client) -> None:
    """Let the agent load PyTorch: it forks what it starts from there."""
    for _ in range(WARM):
        at.submit([request([sys.executable, TRAINING, "4", "0"], name="warm", gpus="1-2")])
        until(at, lambda: not at.jobs().jobs)


def run_side(at: Client, plan: Arrivals, seconds: float, steps: int, folder: Path) -> dict[str, Any]:
    """Let regular jobs come and go, beside a padding job if it has steps; returns what was seen of them."""
    jobs = [
        request([sys.executable, str(FOLDER / "timed_job.py"), str(folder / str(row)), str(regular), str(STEP_S)],
                name=f"regular{row}", gpus="1")
        for row, (_, regular) in enumerate(plan)
    ]
    warm(at)
    begin_s, ids, held = time.monotonic(), list[int](), {True: 0.0, False: 0.0}
    pad = NONE
    if steps:
        words = [sys.executable, TRAINING, str(steps), str(MICRO_S)]
        (pad,) = at.submit([request(words, name="padding", gpus="1-2", **{"class": "padding"})])
    before_s = begin_s
    while True:
        now_s, present = time.monotonic(), at.jobs().jobs
        if all(job.id != pad for job in present) if steps else now_s > begin_s + seconds:
            break
        for job in present:
            held[job.id == pad] += len(job.devices) * (now_s - before_s)
        before_s = now_s
        while len(ids) < len(plan) and now_s >= begin_s + plan[len(ids)][0]:
            ids += at.submit([jobs[len(ids)]])
        time.sleep(LOOK_S)
    said: dict[str, Any] = {"length_s": time.monotonic() - begin_s, "regular_s": held[False], "padding_s": held[True]}
    found = [at.job(job) for job in ids]
    said["jct_ms"] = [job.ended_ms - job.submit_ms if job.state == "finished" else NONE for job in found]
    said["held_ms"] = [job.ended_ms - job.first_start_ms if job.state == "finished" else NONE for job in found]
    said["preemptions"] = sum(job.preemptions for job in found)
    if steps:
        job = at.job(pad)
        logs = sorted(log_folder(folder / "state" / "agent", pad, job.attempt).glob("rank-*.log"))
        said["padding"] = {
            "state": job.state, "time_ms": job.ended_ms - job.submit_ms, "attempts": job.attempt,
            "preemptions": job.preemptions, "lost_gpu_s": job.lost_gpu_s, "said": digest_of(*logs),
        }
    return said


def calibrate(at: Client, folder: Path) -> dict[str, Any]:
    """Let regular jobs of 2 s come to a padding job; returns what changes cost, medians of their times in ms."""
    warm(at)
    words = [sys.executable, TRAINING, "100000", str(MICRO_S)]
    (pad,) = at.submit([request(words, name="padding", gpus="1-2", **{"class": "padding"})])
    ids = []
    for turn in range(ROUNDS):
        until(at, lambda: all(job.id == pad and len(job.devices) == DEVICES and job.state == "running"
                              for job in at.jobs().jobs))
        time.sleep(2.0)  # it makes progress, and has something to save
        came = at.submit([
            request([sys.executable, str(FOLDER / "timed_job.py"), str(folder / f"{turn}-{one}"), "20", str(STEP_S)],
                    name="calibration", gpus="1")
            for one in range(1 + turn % DEVICES)
        ])
        until(at, lambda came=came: all(at.job(job).state == "finished" for job in came))
        ids += came
    at.command("cancel", [pad])
    until(at, lambda: not at.jobs().jobs)
    history = Reader(folder / "state" / "controller" / DATABASE).history()
    jobs = recorded_jobs(history.jobs, history.attempts, history.lines, history.seen_ms)
    of_pad = costs_of([one for one in jobs if one.job.id == pad])
    held = [at.job(job) for job in ids]
    return {
        "start_ms": round(statistics.median(job.ended_ms - job.first_start_ms - 20 * 1000 * STEP_S for job in held)),
        "restart_ms": of_pad.restart_ms, "restarts": of_pad.restarts, "save_ms": of_pad.save_ms, "saves": of_pad.saves,
        **resize_costs(history.lines, pad),
    }


def resize_costs(lines: tuple[str, ...], pad: int) -> dict[str, Any]:
    """Median of the time from a decision to grow, and from one to shrink, until the job goes on, by the journal."""
    took: dict[bool, list[int]] = {True: [], False: []}
    gpus, since = 0, None
    for record in map(json.loads, lines):
        for action in record.get("d", ()):
            if action.get("job") == pad and action["do"] in ("start", "resize"):
                after = len(action["setting"]["ranks"])
                since = (record["t"], after > gpus) if action["do"] == "resize" else None
                gpus = after
        if record.get("e") == "STARTED" and record["job"] == pad and since:
            took[since[1]].append(record["t"] - since[0])
            since = None
    return {
        "grow_ms": round(statistics.median(took[True])), "growths": len(took[True]),
        "shrink_ms": round(statistics.median(took[False])), "shrinks": len(took[False]),
    }


def until(at: Client, holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end_s:
            raise SystemExit(f"not seen within {PATIENCE_S:g} s; jobs: {at.jobs().jobs}")
        time.sleep(LOOK_S)


def digest_of(*logs: Path) -> str:
    """The line that says how many steps a job did and what it came to."""
    return next((line for log in logs for line in log.read_text().splitlines() if "sha256" in line), "nothing")


def alone(steps: int, micro_s: float, ranks: int = 1) -> tuple[float, str]:
    """Train without a cluster; returns the median time of a step in seconds, and what the job came to."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "brim.train.launch", "--nproc", str(ranks), TRAINING, str(steps), str(micro_s)]
        said = subprocess.run(words, check=True, capture_output=True, text=True, cwd=folder,
                              env={**os.environ, "BRIM_CKPT_DIR": folder}).stdout
    line = next(line for line in said.splitlines() if "sha256" in line)
    step = next(line for line in said.splitlines() if "ms per step" in line)
    return float(step.split()[2]) / 1000, line[line.index(str(steps)):]


def twin(plan: Arrivals, samples: float, step_s: tuple[float, float], overheads: Overheads, policy: str) -> Replay:
    """What the twin says of the same regular jobs, and of a padding job of so many samples."""
    cluster, count = parse_cluster(f"1x{DEVICES}xcpu"), len(plan)
    trace = trace_of(
        name="live", format="live", job_id=["padding", *(f"regular{row}" for row in range(count))],
        submit_ms=[0, *(round(1000 * at_s) for at_s, _ in plan)], gpus=[1] * (count + 1),
        run_ms=[1, *(round(1000 * steps * STEP_S) for _, steps in plan)], batch=[BATCH, *([NONE] * count)],
        job_class=[JobClass.PADDING, *([JobClass.REGULAR] * count)], size_lists=((1, 2),),
        size_list=[0, *([NONE] * count)],
    )
    one, row = np.array([BATCH]), trace.job_id.index("padding")
    beyond = max(step_s[1] - step_s[0] / 2, 0.0)
    truth = Parametric(trace, cluster, ElasticJobs(
        row=np.array([row]), parameters=np.array([[0.0, step_s[0] / BATCH, beyond, 0.0, beyond, 0.0, 1.0]]), batch=one,
        batch_min=one, batch_max=one, local_batch_min=np.array([1]), local_batch_max=one, gpus_min=np.array([1]),
        gpus_max=np.array([DEVICES]), samples=np.array([samples]),
    ))
    return replay(trace, cluster, find_policy(policy), ReplaySettings(overheads=overheads, gap_ms=10), truth=truth)


def lacking(plan: Arrivals, side: dict[str, Any]) -> list[float]:
    """Time in seconds that each finished regular job held a device and did not work."""
    return [held / 1000 - steps * STEP_S for held, (_, steps) in zip(side["held_ms"], plan, strict=False) if held > 0]


def report(plan: Arrivals, sides: dict[str, Any], steps: int, policy: str) -> None:
    """Print both sides, and how far they are apart."""
    padded, without, costs = sides["padded"], sides["without"], sides["calibration"]
    step_s = costs["step_s"]
    overheads = Overheads(
        start_ms=costs["start_ms"], restart_ms=costs["restart_ms"], save_ms=costs["save_ms"],
        resize_ms=costs["shrink_ms"], padding=PaddingCosts(
            join_ms=costs["grow_ms"],  # the rank that was there goes on meanwhile, here as in the twin
            change_ms=costs["shrink_ms"], grace_ms=round(1000 * PADDING_GRACE_S),
        ),
    )
    found = twin(plan, steps * BATCH, step_s, overheads, f"{policy}+padding")
    pad, runs = found.trace.job_id.index("padding"), found.runs
    until_ms = int(found.finish_ms[pad])
    shares = []
    for mine in (runs.job != pad, runs.job == pad):
        held = np.clip(np.minimum(runs.end_ms, until_ms) - runs.start_ms, 0, None) * np.diff(runs.first_gpu)
        shares.append(float(held[mine].sum()) / (DEVICES * until_ms))
    live = [padded[name] / (DEVICES * padded["length_s"]) for name in ("regular_s", "padding_s")]
    job, twin_s = padded["padding"], until_ms / 1000
    live_s = job["time_ms"] / 1000
    more = [(one - other) / 1000 for one, other in zip(padded["jct_ms"], without["jct_ms"], strict=False)
            if one > 0 and other > 0]
    print(f"{policy}: padding of {steps} steps in {job['attempts']} attempts, {job['lost_gpu_s']:.1f} GPU-s lost; "
          f"a step alone takes {1000 * step_s[0]:.1f} ms, on two devices {1000 * step_s[1]:.1f} ms")
    print(f"held by regular jobs: live {live[0]:.1%}, twin {shares[0]:.1%}")
    print(f"held by all jobs:     live {sum(live):.1%}, twin {sum(shares):.1%}: {sum(live) / sum(shares) - 1:+.1%}, "
          "target 5 %")
    print(f"the padding job:      live {live_s:.1f} s, twin {twin_s:.1f} s: {live_s / twin_s - 1:+.1%}, target 5 %; "
          f"preempted live {job['preemptions']}, twin {int(found.preemptions[pad])}; resized in the twin "
          f"{int(found.resizes[pad])}")
    print(f"later than without:   {len(more)} regular jobs: median {statistics.median(more):+.2f} s, most "
          f"{max(more):+.2f} s, allowed {PADDING_GRACE_S + SLACK_S:g} s")
    own_ms = 1000 * statistics.median(lacking(plan, without))
    print(f"calibrated before:    {costs}; in the run, regular jobs held devices {own_ms:.0f} ms beyond their work")
    print(f"regular jobs preempted: {padded['preemptions']}")
    same = alone(steps, 0.0)[1] in job["said"]
    print(f"bits of the padding job: {'the same as alone' if same else 'OTHERS THAN ALONE'} ({job['said']})")


def side(name: str, options: argparse.Namespace, steps: int) -> dict[str, Any]:
    """Run one cluster; with padding or without."""
    folder = Path(tempfile.mkdtemp(prefix="brim-", dir="/tmp"))
    os.environ |= {"BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run")}
    policy = options.policy if name == "without" else f"{options.policy}+padding"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        subprocess.run([*BRIM, "up", "--devices", str(DEVICES), "--policy", policy], check=True, **quiet)
        at = Client(folder / "run" / "api.sock")
        if name == "calibration":
            return calibrate(at, folder)
        plan = arrivals(options.seconds, options.seed)
        return run_side(at, plan, options.seconds, steps if name == "padded" else 0, folder)
    finally:
        subprocess.run([*BRIM, "down", "--stop"], check=False, **quiet)
        if options.keep and name == "padded":
            shutil.copytree(folder / "state" / "controller", options.keep, dirs_exist_ok=True)
        shutil.rmtree(folder)


def main() -> None:
    """Run it, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="time that the padding job should take, about")
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the controller's state")
    parser.add_argument("--side", choices=("calibration", "padded", "without"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = round(options.seconds * (1 - LOAD) * DEVICES / (4 * MICRO_S))
    if options.side:
        print(json.dumps(side(options.side, options, steps)))
        return
    print(f"{options.seconds:.0f} s, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    sides = dict[str, Any]()
    for names in (("calibration",), ("padded", "without")):
        running = {
            name: subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--side", name], stdout=subprocess.PIPE,
                                   text=True)
            for name in names
        }
        sides |= {name: json.loads(one.communicate()[0]) for name, one in running.items()}
        if "calibration" in names:
            sides["calibration"]["step_s"] = alone(100, MICRO_S)[0], alone(100, MICRO_S, 2)[0]
            print(f"calibrated: {sides['calibration']}, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"load at the end {os.getloadavg()[0]:.1f}", flush=True)
    if options.keep:
        (options.keep / "sides.json").write_text(json.dumps(sides))
    report(arrivals(options.seconds, options.seed), sides, steps, options.policy)


if __name__ == "__main__":
    main()
