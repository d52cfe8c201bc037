"""A policy with a part of its own for each of the five decisions, and two traces on which each has something to decide.

    python benchmarks/five_decisions.py DATA FOLDER
    brim sim factorial FOLDER/pollux.csv -p benchmarks/five_decisions.py -c 8x4xT4:cpus=12,mem=192GB --truth measured \
        --profiles DATA/profiles/pollux --loading FOLDER/loading.toml
    brim sim factorial FOLDER/philly.csv -p benchmarks/five_decisions.py -c 2x8xV100:cpus=24,mem=500GB \
        --truth parametric --elastic-share 0.5 --loading synergy --power builtin

DATA is a folder with ``traces/pollux`` and ``traces/philly``. The first command writes published jobs, of which one in
ten, drawn, is a padding job. Those of Pollux load their data as the model of Synergy nearest to theirs; those of
Philly as a model of Synergy each, drawn. Classes and loaders are ours: neither trace has them. Nodes have three cores
for each GPU, as Synergy's. The preset ``brim`` keeps the plain order, arrival, since its sizes choose who runs; the
policy here has the order of ``tiresias``, so that there are five switches.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from brim import traces
from brim.beliefs.library import load
from brim.core.arrays import frozen
from brim.core.trace import JobClass, Trace
from brim.policies.presets import find_policy
from brim.traces import own
from brim.units import MS_PER_H

PADDING_SHARE = 0.1
PHILLY_JOBS = 160
PHILLY_GPUS_MAX, PHILLY_RUN_H_MAX = 16, 24
"""Larger and longer jobs of Philly are left out, so that 32 replays take minutes."""
FROM = "2017-10-01"
UTIL_MILLI, MEM_MIB = (100, 900), (1_000, 8_000)
"""Utilisation and memory of the GPUs of a job, drawn evenly, where jobs may share them. Ours."""
NEAREST = {"cifar10": "res18", "imagenet": "res50", "deepspeech2": "deepspeech", "bert": "bert", "yolov3": "mobilenet"}
"""Application of Pollux, and the model of Synergy whose loader it has here; NCF keeps its data in memory."""

policy = replace(find_policy("brim"), name="five", order=find_policy("tiresias").order, source="five_decisions.py")


def with_padding(trace: Trace, rng: np.random.Generator) -> Trace:
    """Let some of the jobs be padding jobs."""
    padding = rng.random(len(trace)) < PADDING_SHARE
    return replace(trace, job_class=frozen(np.where(padding, int(JobClass.PADDING), int(JobClass.REGULAR))))


def loading_of_pollux() -> str:
    """Synergy's library with the names of Pollux' applications."""
    text = (files("brim") / "beliefs" / "profiles" / "synergy.toml").read_text()
    head, *entries = re.split(r"(?m)^(?=\[\[loading\]\])", text)
    by_name = {re.findall(r'name = "(.*?)"', entry)[0]: entry for entry in entries}
    named = (by_name[model].replace(f'"{model}"', f'"{name}"', 1) for name, model in NEAREST.items())
    return head + "".join(named)


def main() -> None:
    """Write the traces and the loaders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    pollux, _ = traces.read(str(options.data / "traces" / "pollux" / "workloads-0.5" / "workload-1.csv"), None)
    own.write(with_padding(pollux, np.random.default_rng(0)), options.folder / "pollux.csv")
    (options.folder / "loading.toml").write_text(loading_of_pollux())
    whole, _ = traces.read(str(options.data / "traces" / "philly" / "philly_2017-09_2017-10.csv.gz"), None)
    rows = np.flatnonzero((whole.gpus <= PHILLY_GPUS_MAX) & (whole.run_ms <= PHILLY_RUN_H_MAX * MS_PER_H))
    began = int(np.searchsorted(whole.submit_ms[rows], october_ms(whole)))
    philly, rng = whole.take(rows[began : began + PHILLY_JOBS]), np.random.default_rng(0)
    models = tuple(sorted(load("synergy").loading))
    philly = replace(philly, profiles=models, profile=frozen(rng.integers(len(models), size=len(philly))))
    philly = with_padding(philly, rng)
    own.write(philly, options.folder / "philly.csv")
    jobs = len(philly)
    used = replace(philly, gpu_util_milli=frozen(rng.integers(*UTIL_MILLI, jobs)),
                   gpu_mem_mib=frozen(rng.integers(*MEM_MIB, jobs)))
    own.write(used, options.folder / "philly-used.csv")


def october_ms(trace: Trace) -> int:
    """When October began, on the trace's clock: before it the record is thin."""
    assert trace.origin_ms is not None
    return int(np.datetime64(FROM, "ms").astype(np.int64)) - trace.origin_ms


if __name__ == "__main__":
    main()
