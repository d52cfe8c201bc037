"""Replays beside published simulators of the same jobs, in one run: CPU seconds, medians.

    python benchmarks/published.py [--pollux DIR] [--pai DIR] [--accasim DIR] [--python PATH] [--repeats N]

Without a folder, a row shows brim alone; the folders are not part of brim:

- ``--pollux``: ``simulator`` of github.com/petuum/adaptdl, branch osdi21-artifact. It needs numpy below 1.24, pandas
  below 2, scipy and autograd, and pymoo 0.4; ``--python`` names an interpreter that has them. Brim needs the same
  workloads and profiles in ``$BRIM_DATA/traces/pollux`` and ``$BRIM_DATA/profiles/pollux``.
- ``--pai``: ``cluster-trace-gpu-v2020/simulator`` of github.com/alibaba/clusterdata, with the same interpreter (numpy,
  matplotlib). All its GPUs and cores are one node, as in its published runs, so a job starts when enough GPUs are free
  anywhere. Ours are on nodes of 8, over which a job may be split at no cost, so it starts at the same moment.
- ``--accasim``: the folder of ``pip install --target DIR accasim==1.1.3``; it runs in this interpreter, whose numpy it
  uses. Its shortest job first neither preempts nor skips jobs.

Every replay runs in a process of its own, with one thread. It reads its input, replays, and reports its CPU seconds,
without imports and, for brim, without loading compiled kernels: a replay before the timed one does both.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

WORKLOAD, PROFILES = "traces/pollux/workloads/workload-6.csv", "profiles/pollux"
"""In the folder that ``BRIM_DATA`` names."""
POLLUX = {"tiresias": "tiresias-pollux", "optimus": "optimus", "pollux": "pollux"}
"""Policies of the published simulator, and ours."""
PAI_JOBS, PAI_NODES, PAI_PER_MIN = (20_000, 40_000, 80_000), 812, 1_000
SWF_JOBS, SWF_NODES, WARM_JOBS = 50_000, 73, 1_000
GPUS_PER_NODE = 8
SECOND_MS = 1_000


# --- one replay of brim, in a process of its own


def brim_pollux(data: str, policy: str) -> dict[str, float]:
    """Replay workload 6 of Pollux on the measured jobs; nothing is kept from an earlier replay."""
    from brim import traces
    from brim.core.cluster import parse_cluster
    from brim.policies.presets import PRESETS
    from brim.sim.truth_option import TruthOption
    from brim.sim.twin import ReplaySettings, replay

    begin = time.process_time()
    trace, _ = traces.read(Path(data, WORKLOAD))
    cluster, choice = parse_cluster("16x4xT4"), TruthOption(name="measured", profiles=Path(data, PROFILES))
    outcome = replay(
        trace, cluster, PRESETS[policy], ReplaySettings(overheads=choice.overheads()),
        truth=choice.build(trace, cluster),
    )
    return {"cpu_s": time.process_time() - begin, "mean_s": mean_s(outcome.finish_ms - trace.submit_ms)}


def brim_pai(path: str) -> dict[str, float]:
    """First come, first served, skipping what does not fit."""
    from brim.core.cluster import parse_cluster
    from brim.core.trace import trace_of
    from brim.policies.place.parts import Consolidate
    from brim.policies.presets import PRESETS
    from brim.sim.twin import ReplaySettings, replay

    begin = time.process_time()
    with Path(path).open() as file:
        rows = [(int(row["job_id"]), int(row["num_gpu"]), int(row["duration"])) for row in csv.DictReader(file)]
    trace = trace_of(
        name="pai", format="pai", job_id=[str(job) for job, _, _ in rows], gpus=[gpus for _, gpus, _ in rows],
        submit_ms=[job // PAI_PER_MIN * 60 * SECOND_MS for job, _, _ in rows],
        run_ms=[seconds * SECOND_MS for _, _, seconds in rows],
    )
    policy = replace(PRESETS["fifo"], name="skip", place=Consolidate("skip"))
    outcome = replay(trace, parse_cluster(f"{PAI_NODES}x{GPUS_PER_NODE}xV100"), policy, ReplaySettings(gap_ms=0))
    return {"cpu_s": time.process_time() - begin, "mean_s": mean_s(outcome.finish_ms - trace.submit_ms)}


def brim_swf(path: str, policy: str) -> dict[str, float]:
    """Replay an SWF file, a few of its jobs before the clock starts."""
    from brim import traces
    from brim.core.cluster import parse_cluster
    from brim.policies.presets import PRESETS
    from brim.sim.twin import ReplaySettings, replay

    cluster, settings = parse_cluster(f"{SWF_NODES}x{GPUS_PER_NODE}xV100"), ReplaySettings(gap_ms=0)
    replay(traces.limit(traces.read(path)[0], WARM_JOBS), cluster, PRESETS[policy], settings)
    begin = time.process_time()
    trace, _ = traces.read(path)
    outcome = replay(trace, cluster, PRESETS[policy], settings)
    return {"cpu_s": time.process_time() - begin, "mean_s": mean_s(outcome.finish_ms - trace.submit_ms)}


def mean_s(times_ms: np.ndarray) -> float:
    return float(times_ms.mean()) / SECOND_MS


def forget() -> None:
    """Drop what brim keeps of the profiles between replays in one process."""
    from brim.sim import truth_option
    from brim.sim.truths.least import least

    truth_option._applications.cache_clear()
    least.cache_clear()


# --- one replay of a peer, in a process of its own

PEER_POLLUX = """
import argparse, contextlib, io, json, sys, time
sys.path.insert(0, sys.argv[1])
import simulator
begin = time.process_time()
args = argparse.Namespace(workload=sys.argv[2], policy=sys.argv[3], min_nodes=16, max_nodes=None, num_gpus=4,
                          interval=60, interference=0.0, low_util=None, high_util=None, output=None)
with contextlib.redirect_stdout(io.StringIO()):
    _, times = simulator.simulate(args)
print(json.dumps({"cpu_s": time.process_time() - begin, "mean_s": float(sum(times.values()) / len(times))}))
"""
PEER_PAI = """
import json, logging, sys, time
sys.path.insert(0, sys.argv[1])
from simulator import Simulator
logging.basicConfig(level=logging.WARNING)
begin = time.process_time()
jobs, gpus, per_min = map(int, sys.argv[3:6])
sim = Simulator(csv_file=sys.argv[2], alloc_policy=8, preempt_policy=2, sort_node_policy=0, num_nodes=1, num_gpus=gpus,
                num_cpus=round(23.22 * gpus), pattern=0, hetero=False, num_spare_node=0, arrival_rate=per_min,
                num_jobs_limit=jobs, gpu_type_matching=0)
((done, mean_s, _, _),) = sim.simulator_go(repeat=1)
assert done == jobs, (done, jobs)
print(json.dumps({"cpu_s": time.process_time() - begin, "mean_s": mean_s}))
"""
PEER_ACCASIM = """
import collections, collections.abc, json, os, sys, time
sys.path.append(sys.argv[1])
collections.Mapping = collections.abc.Mapping  # gone from there in Python 3.10
from accasim.base.allocator_class import FirstFit
from accasim.base.scheduler_class import ShortestJobFirst
from accasim.base.simulator_class import Simulator
os.chdir(sys.argv[4])
begin = time.process_time()
Simulator(sys.argv[2], sys.argv[3], ShortestJobFirst(FirstFit()), scheduling_output=True, statistics_output=False,
          show_statistics=False, RESULTS_FOLDER_NAME="results").start_simulation()
print("RESULT", json.dumps({"cpu_s": time.process_time() - begin}))
"""


def child(command: Sequence[str]) -> dict[str, float]:
    """Run one replay with one thread and return what it prints last."""
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | single, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command[:4]))}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1].removeprefix("RESULT "))
    return found


def brim(*words: str) -> list[str]:
    return [sys.executable, __file__, "--one", *words]


def row(what: str, ours: Sequence[str], peer: Sequence[str] | None, repeats: int, said: str = "") -> None:
    """Print one row; brim and the peer take turns."""
    runs: dict[str, list[dict[str, float]]] = {"brim": [], "peer": []}
    for _ in range(repeats):
        runs["brim"].append(child(ours))
        if peer is not None:
            runs["peer"].append(child(peer))
    took = {name: statistics.median(run["cpu_s"] for run in each) for name, each in runs.items() if each}
    line = f"{what:38} brim {took['brim']:8.2f} s, mean {runs['brim'][0]['mean_s']:,.1f} s"
    if peer is not None:
        line += f"   peer {took['peer']:9.2f} s"
        if "mean_s" in runs["peer"][0]:
            line += f", mean {runs['peer'][0]['mean_s']:,.1f} s"
        line += f"   {took['peer'] / took['brim']:.1f} x"
    print(f"{line}   {said}".rstrip(), flush=True)


# --- inputs


def write_pai(path: Path, jobs: int) -> None:
    """PAI-shaped jobs of whole GPUs, as the CSV of the published simulator; gangs are of one instance."""
    from brim.traces import synthesize

    trace = synthesize("pai", jobs=jobs, seed=1)
    seconds = np.maximum(trace.run_ms // SECOND_MS, 1)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("job_id", "num_gpu", "num_cpu", "duration", "submit_time", "num_inst", "user"))
        for job, (size, length) in enumerate(zip(trace.gpus.tolist(), seconds.tolist(), strict=True)):
            table.writerow((job, size, 0, length, job // PAI_PER_MIN * 60, 1, "u"))


def write_swf(path: Path) -> None:
    """Philly-shaped jobs as SWF, with their own run times as requested times, so that estimates are exact."""
    from brim.core.cluster import parse_cluster
    from brim.traces import synthesize

    cluster = parse_cluster(f"{SWF_NODES}x{GPUS_PER_NODE}xV100")
    trace = synthesize("philly", jobs=SWF_JOBS, seed=1, cluster=cluster, load=0.9)
    with path.open("w") as file:
        file.write(f"; UnixStartTime: 0\n; MaxNodes: {SWF_NODES}\n; MaxProcs: {SWF_NODES * GPUS_PER_NODE}\n")
        rows = zip((trace.submit_ms // SECOND_MS).tolist(), np.maximum(trace.run_ms // SECOND_MS, 1).tolist(),
                   trace.gpus.tolist(), strict=True)
        for job, (submit, run, gpus) in enumerate(rows, 1):
            file.write(f"{job} {submit} -1 {run} {gpus} -1 -1 {gpus} {run} -1 1 1 1 1 1 1 -1 -1\n")


def main() -> None:
    """Print one line per row."""
    parser = argparse.ArgumentParser()
    for name in ("pollux", "pai", "accasim"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("pollux", "pai", "accasim"), help="one group of rows")
    parser.add_argument("--policies", default="tiresias,optimus,pollux", help="of the rows of Pollux")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run = {"pollux": brim_pollux, "pai": brim_pai, "swf": brim_swf}[options.one[0]]
        if run is not brim_swf:
            run(*options.one[1:])
            forget()
        print(json.dumps(run(*options.one[1:])))
        return
    if options.only in (None, "pollux"):
        pollux_rows(options.pollux, options.python, options.policies.split(","), options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        if options.only in (None, "pai"):
            for jobs in PAI_JOBS:
                path = Path(folder, "pai.csv")
                write_pai(path, jobs)
                gpus = PAI_NODES * GPUS_PER_NODE
                peer = [options.python, "-c", PEER_PAI, options.pai, path, str(jobs), str(gpus), str(PAI_PER_MIN)]
                beside = options.pai is not None and jobs == PAI_JOBS[0]
                row(f"PAI, {jobs:,} jobs, FIFO that skips", brim("pai", str(path)), peer if beside else None,
                    options.repeats, f"{gpus:,} GPUs")
        if options.only in (None, "accasim"):
            path, system = Path(folder, "jobs.swf"), Path(folder, "system.json")
            write_swf(path)
            system.write_text(json.dumps({"groups": {"g": {"core": GPUS_PER_NODE}}, "resources": {"g": SWF_NODES}}))
            peer = [sys.executable, "-c", PEER_ACCASIM, options.accasim, path, system, folder]
            for policy in ("srtf", "sjf"):
                row(f"AccaSim SJF beside {policy}, {SWF_JOBS:,} jobs", brim("swf", str(path), policy),
                    peer if options.accasim else None, options.repeats)


def pollux_rows(folder: Path | None, python: str, policies: Sequence[str], repeats: int) -> None:
    """Workload 6 of Pollux under the policies of its simulator, and ours beside them."""
    data = os.environ.get("BRIM_DATA")
    if not data or not Path(data, WORKLOAD).exists():
        print(f"Pollux: BRIM_DATA is {data or 'not set'}; expected a folder that holds {WORKLOAD} and {PROFILES}")
        return
    for theirs in policies:
        peer = [python, "-W", "ignore", "-c", PEER_POLLUX, folder, Path(data, WORKLOAD), theirs]
        row(f"Pollux workload 6, {theirs}", brim("pollux", data, POLLUX.get(theirs, theirs)),
            peer if folder is not None and theirs in POLLUX else None, repeats)


if __name__ == "__main__":
    main()
