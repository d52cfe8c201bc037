"""How well the twin predicts the live service: beliefs of one run of 40 jobs predict a different run of 40.

    .venv/bin/python benchmarks/live_fidelity.py [--policies backfill,srtf,elastic] [--repetitions 5]

The real service runs them: controller, agent, supervisors. Devices are emulated: jobs sleep for the time of each step
(``timed_job.py``), so that two cores can stand for eight devices. Under elastic policies, half of the jobs train on 1
to 4 devices (``timed_training.py``). For each policy: one run whose jobs tell what starts, stops and kinds of jobs
cost; then, several times, a run of other jobs (another mix of the kinds, other arrivals). ``brim report --fidelity
--jobs ... --learn ...`` compares each with the twin. The difference between two repetitions of the same jobs is what no
prediction can do better than.
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
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

from brim.api.client import Client
from brim.cli.capture import requests_of, work_of
from brim.cli.job_options import asked
from brim.live.requests import JobRequest
from brim.policies.presets import find_policy

DEVICES: Final = 8
WINDOW_S: Final = 40.0
"""Time in which the jobs of a run arrive."""
STEP_S: Final = 0.1
SCRIPT: Final = str(Path(__file__).with_name("timed_job.py"))
TRAINING: Final = str(Path(__file__).with_name("timed_training.py"))
MICRO_S: Final = 0.05
"""Time of a micro-batch, a quarter of a step of an elastic job on one device."""
BRIM: Final = (sys.executable, "-m", "brim.cli.main")
FIGURES: Final = {"makespan_s": ("makespan", 2.0), "jct_mean_s": ("mean JCT", 3.0)}
"""Figures with a target: points beyond the difference between two repetitions."""


class Kind(NamedTuple):
    """A kind of job: its devices, and its steps; how many of the 40 are of it in either run."""

    gpus: str
    steps: int
    learned: int
    predicted: int


RIGID: Final = {
    "small": Kind("1", 20, 10, 6), "short": Kind("2", 30, 10, 6), "mid": Kind("1", 60, 8, 10),
    "wide": Kind("4", 50, 6, 8), "long": Kind("2", 120, 4, 7), "whole": Kind("8", 40, 2, 3),
}  # fmt: skip
ELASTIC: Final = {
    "small": Kind("1", 20, 10, 6), "short": Kind("2", 30, 6, 6), "mid": Kind("1", 60, 4, 8),
    "net": Kind("1-4", 40, 12, 10), "large-net": Kind("1-4", 80, 8, 10),
}  # fmt: skip
"""The last two train: their steps take four micro-batches on one device, and one on four."""


def arrivals(counts: dict[str, int], seed: int) -> list[tuple[float, str]]:
    """Kinds in a drawn order at drawn times of the window, the first at 0."""
    draw = random.Random(seed)
    names = [name for name, count in counts.items() for _ in range(count)]
    draw.shuffle(names)
    times = [0.0, *sorted(draw.uniform(0, WINDOW_S) for _ in names[1:])]
    return list(zip(times, names, strict=True))


def request(name: str, kind: Kind, progress: Path) -> JobRequest:
    """Return one job of a kind, with its capture written; its time limit is half as long again, and 5 s."""
    words = [sys.executable, SCRIPT, str(progress), str(kind.steps), str(STEP_S)]
    given = {"name": name, "gpus": kind.gpus, "time": f"{round(kind.steps * STEP_S * 1.5 + 5)}s", "grace": "5s"}
    if "-" in kind.gpus:
        words = [sys.executable, TRAINING, str(kind.steps), str(MICRO_S)]
        given["time"] = "2m"
    (found,) = requests_of(work_of(words), asked(given), {})
    return found


def run(at: Client, kinds: dict[str, Kind], plan: list[tuple[float, str]], folder: Path) -> tuple[int, int]:
    """Submit jobs at their times, wait until all have ended, and return the first and the last id."""
    folder.mkdir()
    requests = [request(name, kinds[name], folder / str(place)) for place, (_, name) in enumerate(plan)]
    begin_s, ids = time.monotonic() + 0.5, []
    for (at_s, _), one in zip(plan, requests, strict=True):
        time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
        ids += at.submit([one])
    while at.jobs().jobs:
        time.sleep(0.5)
    return ids[0], ids[-1]


def brim(*words: str) -> str:
    """Run the command line, and return what it prints."""
    return subprocess.run([*BRIM, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def ratio_between(values: list[float]) -> list[float]:
    """Difference of each pair of repetitions, in percent of their mean."""
    return [200 * abs(one - other) / (one + other) for one, other in combinations(values, 2)]


def print_table(policy: str, results: list[dict[str, Any]]) -> None:
    """Print one policy's runs, what they differ by, and whether the target holds."""
    print(f"\n{policy}: {len(results)} repetitions")
    print(f"{'':12}{'live, s':>40}{'twin, s':>40}")
    for figure, (name, points) in FIGURES.items():
        totals = [result["predicted"]["totals"][figure] for result in results]
        live, twin = [total["live"] for total in totals], [total["twin"] for total in totals]
        errors = [100 * abs(total["error_ratio"]) for total in totals]
        between = ratio_between(live) or [0.0]
        print(f"{name:12}{' '.join(f'{value:.2f}' for value in live):>40}{' '.join(f'{v:.2f}' for v in twin):>40}")
        allowed = statistics.mean(between) + points
        print(
            f"{'':12}error {statistics.mean(errors):.1f}% (largest {max(errors):.1f}%); two repetitions differ by "
            f"{statistics.mean(between):.1f}% (largest {max(between):.1f}%); allowed {allowed:.1f}%: "
            f"{'reached' if statistics.mean(errors) <= allowed else 'MISSED'}"
        )
    for mode in ("predicted", "own_run_times"):
        errors = [abs(row["jct_error_s"]) for result in results for row in result[mode]["errors"]]
        mean_s = statistics.mean(row["jct_live_s"] for result in results for row in result[mode]["errors"])
        tenths = statistics.quantiles(errors, n=10)
        signed = [f"{100 * result[mode]['totals'][figure]['error_ratio']:+.1f}%" for figure in FIGURES
                  for result in results]  # fmt: skip
        print(
            f"{mode}: error of the JCT per job, {mean_s:.1f} s on average: median {statistics.median(errors):.2f} s, "
            f"90% within {tenths[8]:.2f} s, worst {max(errors):.2f} s; makespans and means {' '.join(signed)}"
        )
    found = [result["predicted"] for result in results]
    preempted = " ".join(f"{one['preemptions_live']}/{one['preemptions_twin']}" for one in found)
    print(f"preemptions live/twin: {preempted}; costs learned: {found[0]['costs']}")


def main() -> None:
    """Run everything, and print a table for each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="backfill,srtf")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for the reports as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="brim-"))
    os.environ |= {"BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run")}
    at = Client(folder / "run" / "api.sock")
    try:
        for policy in options.policies.split(","):
            brim("up", "--devices", str(DEVICES), "--policy", policy)
            results, kinds = [], ELASTIC if find_policy(policy).resizes_running else RIGID
            learned = arrivals({name: kind.learned for name, kind in kinds.items()}, seed=1)
            predicted = arrivals({name: kind.predicted for name, kind in kinds.items()}, seed=2)
            before = run(at, kinds, learned, folder / f"{policy}-learned")
            for repetition in range(options.repetitions):
                ids = run(at, kinds, predicted, folder / f"{policy}-{repetition}")
                words = ("--jobs", "{}-{}".format(*ids), "--learn", "{}-{}".format(*before))
                results.append(json.loads(brim("report", "--fidelity", *words, "--json")))
                if options.out:
                    options.out.mkdir(exist_ok=True)
                    (options.out / f"{policy}-{repetition}.json").write_text(json.dumps(results[-1]))
            print_table(policy, results)
            brim("down", "--stop")
    finally:
        subprocess.run([*BRIM, "down", "--stop"], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if options.out:
            shutil.copytree(folder / "state" / "controller", options.out / "controller", dirs_exist_ok=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
