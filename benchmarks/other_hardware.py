"""Mean completion times of elastic policies on V100, P100, K80 and H100, over those of `pollux` at equal limits.

    python benchmarks/other_hardware.py [--policies NAMES] [--gpus TYPES] [--clusters NxM,...] [--loads L,...]
        [--seed S]

Models are those of ``beliefs/profiles``: Gavel's on V100, P100 and K80, and on H100 those of MLPerf for which samples
per second are known. MLPerf's laws of scaling have no parts: the exchange is chosen so that the law holds from 8 to 64
GPUs, on one node and across alike. A cell has ``JOBS`` elastic jobs, whose models are drawn evenly and whose arrivals
are Poisson over eight hours. Models differ in their median work, and the jobs of a model, too (log-normal). Larger
batches make less progress per sample. Work is scaled so that all of it, on one GPU each and at the best batch, takes
the load times what the cluster has in eight hours. All that the profiles do not say is ours.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from brim.beliefs.batching import GradientStatistics, best_batches, fewest_nodes
from brim.beliefs.library import Library, load
from brim.core.arrays import FloatArray
from brim.core.cluster import Cluster, parse_cluster
from brim.core.trace import NONE, Trace, trace_of
from brim.policies.presets import find_policy
from brim.sim.truths.parametric import ElasticJobs, Parametric
from brim.sim.twin import ReplaySettings, replay
from brim.units import MS_PER_H, MS_PER_S

PEER: Final = str(Path(__file__).with_name("pollux_x4.py"))
GPUS: Final = ("V100", "P100", "K80", "H100")
CLUSTERS: Final = ("6x4", "8x8", "32x4", "64x8")
LOADS: Final = (0.8, 1.6)
JOBS, HOURS = 160, 8
"""As many as in Pollux' lists."""
GPUS_MAX: Final = 64
SIGMA_MODELS, SIGMA_JOBS = 0.8, 1.0
"""Logarithmic spread of the median work of models, and of the work of jobs of one model."""
BATCHES: Final = 64
"""Largest global batch over the smallest, which is a quarter of what one GPU holds."""
NOISE: Final = 16.0
"""Gradient variance at the smallest batch over the squared gradient: the batch at which a sample is worth half."""
H100_BATCH: Final = 64
"""Samples that an H100 holds."""


def _scaled(library: Library) -> dict[str, tuple[FloatArray, int]]:
    """Step-time parameters of the H100 laws, and samples that one GPU holds."""
    found = {}
    for name, law in library.scaling.items():
        if not name.endswith("H100-SXM5-80GB") or law.quantity != "samples_per_s":
            continue
        compute_s = H100_BATCH / law.at_one
        at_8, at_64 = (compute_s * (n ** (1.0 - law.exponent) - 1.0) for n in (8, 64))
        growth_s = (at_64 - at_8) / np.log2(63 / 7)
        first_s = max(at_8 - growth_s * np.log2(7), 0.0)
        parameters = [0.15 * compute_s, 0.85 * compute_s / H100_BATCH, *2 * [first_s, growth_s], 1.0]
        found[name.split()[0]] = np.array(parameters), H100_BATCH
    return found


def models_of(gpu: str) -> dict[str, tuple[FloatArray, int]]:
    """Step-time parameters of the models that ran on several GPUs of a type, and samples that one GPU holds."""
    if gpu == "H100":
        return _scaled(load("mlperf"))
    steps = load("gavel").steps.values()
    return {one.name: (one.parameters, one.local_batch[1]) for one in steps
            if one.gpu_type == gpu and one.gpus_max > 1}


def drawn(gpu: str, cluster: Cluster, load_: float, seed: int) -> tuple[Trace, Parametric]:
    """The jobs of one cell; the random numbers are the same for all cells of a seed."""
    models, rng = models_of(gpu), np.random.default_rng(seed)
    model = rng.integers(len(models), size=JOBS)
    submit_ms = np.sort(rng.integers(HOURS * MS_PER_H, size=JOBS))
    medians = np.exp(SIGMA_MODELS * rng.standard_normal(len(models)))
    work = medians[model] * np.exp(SIGMA_JOBS * rng.standard_normal(JOBS))
    holds = np.array([most for _, most in models.values()])[model]
    one, batch_min = np.ones(JOBS, dtype=np.int64), np.maximum(holds // 4, 1)
    jobs = ElasticJobs(
        row=np.arange(JOBS), parameters=np.stack([parameters for parameters, _ in models.values()])[model],
        batch=batch_min, batch_min=batch_min, batch_max=batch_min * BATCHES, local_batch_min=np.maximum(holds // 16, 1),
        local_batch_max=holds, gpus_min=one, gpus_max=one * min(GPUS_MAX, cluster.num_gpus), profile=model,
        noise=GradientStatistics(one * NOISE, one * 1.0),
    )
    rate = best_batches(jobs.parameters, fewest_nodes(1, 8), jobs.limits, jobs.noise_or_nan)[0][:, 1]
    gpu_s = work / work.sum() * load_ * cluster.num_gpus * HOURS * MS_PER_H / MS_PER_S
    jobs = replace(jobs, samples=gpu_s * rate)
    trace = trace_of(
        name=f"{gpu} {load_:g}", format="drawn", synthetic=True, origin_ms=0, submit_ms=submit_ms, gpus=one,
        job_id=[f"j{job}" for job in range(JOBS)], run_ms=np.full(JOBS, NONE), profiles=list(models), profile=model,
        batch=batch_min,
    )
    return trace, Parametric(trace, cluster, jobs, seed=seed)


def mean_jct_s(name: str, trace: Trace, cluster: Cluster, truth: Parametric) -> float:
    """Mean completion time under a policy."""
    policy = find_policy(name)
    found = replay(trace, cluster, policy, ReplaySettings(gap_ms=policy.gap_ms), truth=truth)
    return float((found.finish_ms - trace.submit_ms).mean()) / MS_PER_S


def main() -> None:
    """Print a line for each cell, and the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="brim,goodput")
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--loads", default=",".join(map(str, LOADS)))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names, rows = options.policies.split(","), []
    print(f"{'GPU':5} {'nodes':6} {'load':>4}  pollux-x4  " + "  ".join(f"{Path(name).stem:>10}" for name in names))
    for gpu in options.gpus.split(","):
        for shape in options.clusters.split(","):
            for load_ in map(float, options.loads.split(",")):
                cluster = parse_cluster(f"{shape}x{gpu}")
                trace, truth = drawn(gpu, cluster, load_, options.seed)
                peer_s = mean_jct_s(PEER, trace, cluster, truth)
                rows.append([mean_jct_s(name, trace, cluster, truth) / peer_s for name in names])
                print(f"{gpu:5} {shape:6} {load_:4g}  {peer_s:8.0f}s  " + "  ".join(f"{x:10.3f}" for x in rows[-1]),
                      flush=True)
    means = np.exp(np.log(np.array(rows)).mean(axis=0))
    print(f"{'geometric mean':29}  " + "  ".join(f"{mean:10.3f}" for mean in means))
    print(f"{'largest':29}  " + "  ".join(f"{most:10.3f}" for most in np.array(rows).max(axis=0)))


if __name__ == "__main__":
    main()
