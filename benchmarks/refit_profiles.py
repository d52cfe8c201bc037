"""Write src/brim/beliefs/profiles/*.toml again from the published measurements, byte for byte.

    python benchmarks/refit_profiles.py DATA [OUT]

DATA holds profiles/pollux, profiles/gavel, profiles/mlperf_training_v4.0 and dataloading in their publishers' formats.
OUT is the folder to write to, by default that of the package. The measurements are not copied.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

import brim.beliefs
from brim.beliefs import loading
from brim.beliefs.throughput import PARAMETERS, Fit, Observations, fit

WORKER = re.compile(r"\('(?P<model>[^(]+) \(batch size (?P<batch>\d+)\)', (?P<workers>\d+)\)")


NEEDED = ("pollux", "gavel", "mlperf_training_v4.0")
SENSITIVITY = "synergy_cpu_mem_sensitivity.csv"
IMAGE_MODELS = ("alexnet", "mobilenet", "res18", "res50", "shufflenet")
IMAGE_BYTES = 114_660.07
"""Mean stored bytes of an ImageNet image: record_length_bytes of resnet50 in MLPerf Storage v1.0."""
IMAGES = 1_281_167
"""Images of ImageNet's training set (Russakovsky et al., IJCV 2015)."""


def main(arguments: list[str]) -> None:
    if not 1 <= len(arguments) <= 2:
        sys.exit("usage: python benchmarks/refit_profiles.py DATA [OUT]")
    data = Path(arguments[0]) / "profiles"
    missing = [name for name in NEEDED if not (data / name).is_dir()]
    if missing:
        sys.exit(f"refit_profiles.py: {data}: no folder {', '.join(missing)}; DATA must hold profiles/{NEEDED[0]}, "
                 f"profiles/{NEEDED[1]} and profiles/{NEEDED[2]}")
    if not (data.parent / "dataloading" / SENSITIVITY).is_file():
        sys.exit(f"refit_profiles.py: {arguments[0]}: no file dataloading/{SENSITIVITY}")
    out = Path(arguments[1]) if len(arguments) > 1 else Path(brim.beliefs.__path__[0]) / "profiles"
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in (("pollux", pollux(data)), ("gavel", gavel(data)), ("mlperf", mlperf(data)),
                        ("synergy", synergy(data.parent / "dataloading"))):
        (out / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def head(title: str, source: str, licence: str, fitted: str) -> list[str]:
    return [
        f"# {title}. Written by benchmarks/refit_profiles.py; the fields are explained in beliefs/library.py.",
        f"source = {quoted(source)}", f"licence = {quoted(licence)}", f"fitted = {quoted(fitted)}",
    ]


def pollux(data: Path) -> Iterator[str]:
    yield from head(
        "Six training jobs on nodes of 4 NVIDIA T4 (Pollux, OSDI 2021)",
        "petuum/adaptdl, branch osdi21-artifact, commit c793c7089bd307462686339d29707925c461f9a9, simulator/traces",
        "Apache-2.0",
        "Step-time model of beliefs/throughput.py to all rows of placements.csv and scalability.csv, 1 to 64 GPUs.",
    )
    for folder in sorted((data / "pollux").iterdir()):
        placements = pl.read_csv(folder / "placements.csv", schema_overrides={"placement": pl.String})
        digits = [[int(digit) for digit in placement] for placement in placements["placement"]]
        more = pl.read_csv(folder / "scalability.csv")
        times = [np.concatenate([placements[name].to_numpy(), more[name].to_numpy()])
                 for name in ("local_bsz", "step_time", "sync_time")]
        seen = Observations(
            nodes=np.array([len(row) for row in digits] + more["num_nodes"].to_list()),
            gpus=np.array([sum(row) for row in digits] + more["num_replicas"].to_list()),
            local_batch=times[0].astype(np.float64), step_s=times[1], sync_s=times[2],
        )
        yield from step_entry(folder.name, "T4", seen, fit(seen))


def gavel(data: Path) -> Iterator[str]:
    yield from head(
        "Four model families on NVIDIA V100, P100 and K80 (Gavel, OSDI 2020)",
        "stanford-futuredata/gavel, commit c4fa40097339e9608ab71fd64c8bdea96a5e4a4c, "
        "scheduler/simulation_throughputs.json",
        "MIT",
        "Step-time model of beliefs/throughput.py to jobs running alone on 1 to 8 GPUs. Published are the steps per "
        "second summed over the workers, each with the named batch; computing is taken to last as long as on one GPU "
        "with that batch, the rest is exchange. Unconsolidated workers are taken to have a node each (ours). Jobs "
        "without a batch size (A3C, CycleGAN) are left out.",
    )
    with gzip.open(data / "gavel" / "simulation_throughputs.json.gz") as file:
        table = json.load(file)
    for gpu_type in ("v100", "p100", "k80"):
        rates = {
            (match["model"], int(match["batch"]), int(match["workers"]), spread): of_job["null"]
            for spread, key in ((False, gpu_type), (True, f"{gpu_type}_unconsolidated"))
            for job, of_job in table[key].items() if (match := WORKER.fullmatch(job)) and of_job["null"] > 0
        }
        for model in sorted({key[0] for key in rates}):
            seen = gavel_observations({key[1:]: rate for key, rate in rates.items() if key[0] == model})
            yield from step_entry(f"{model} {gpu_type.upper()}", gpu_type.upper(), seen, fit(seen))


def gavel_observations(rates: dict[tuple[int, int, bool], float]) -> Observations:
    """Turn steps per second by (batch, workers, spread) into observations."""
    rows = []
    for (batch, workers, apart), rate in sorted(rates.items()):
        if (batch, 1, False) in rates and not (workers == 1 and apart):
            step_s, alone_s = workers / rate, 1 / rates[batch, 1, False]
            rows.append((workers if apart else 1, workers, batch, step_s, max(step_s - alone_s, 0.0)))
    nodes, gpus, batches, steps, syncs = (np.array(column) for column in zip(*rows, strict=True))
    return Observations(nodes=nodes, gpus=gpus, local_batch=batches.astype(float), step_s=steps, sync_s=syncs)


def step_entry(name: str, gpu_type: str, seen: Observations, fitted: Fit) -> Iterator[str]:
    if not fitted.ok:
        raise SystemExit(f"{name}: {fitted.status}")
    yield from ("", "[[steps]]", f"name = {quoted(name)}", f"gpu_type = {quoted(gpu_type)}")
    for parameter, value in zip(PARAMETERS, fitted.parameters, strict=True):
        yield f"{parameter} = {number(value)}"
    yield f"residual = {number(fitted.residual)}"
    yield f"points = {fitted.points}"
    yield f"gpus_max = {seen.gpus.max()}"
    yield f"local_batch = [{seen.local_batch.min():.0f}, {seen.local_batch.max():.0f}]"


def mlperf(data: Path) -> Iterator[str]:
    yield from head(
        "Scaling of the MLPerf Training v4.0 results",
        "mlcommons/training_results_v4.0, commit 6fe954378efe4a1a1bd665550b18ff8f26018def, result logs",
        "Apache-2.0",
        "at_one * accelerators ** exponent, least squares of logarithms over the medians of each system size, for "
        "every benchmark and accelerator with two sizes at least. The quantity is the throughput logged (samples/s of "
        "the whole job) where it is, else the time to train (s), in which larger batches need more samples. Batch, "
        "software and submitter change along with the size and no run used one accelerator, so that the step-time "
        "model cannot be told apart. Two sizes fit exactly: an error of 0 says nothing there.",
    )
    runs = pl.read_parquet(data / "mlperf_training_v4.0" / "runs.parquet")
    runs = runs.filter((pl.col("status") == "success") & pl.col("duplicate_of").is_null())
    groups = runs.group_by("benchmark", "accel").agg(pl.len()).sort("benchmark", "accel")
    for benchmark, accelerator, _ in groups.rows():
        of_both = runs.filter((pl.col("benchmark") == benchmark) & (pl.col("accel") == accelerator))
        for quantity, column in (("samples_per_s", "throughput_median"), ("time_to_train_s", "duration_s")):
            sizes = of_both.drop_nulls(column).group_by("n_accel").agg(pl.col(column).median(), pl.len())
            if len(sizes) > 1:
                yield from scaling_entry(benchmark, accelerator, quantity, sizes.sort("n_accel").rows())
                break


def scaling_entry(
    benchmark: str, accelerator: str, quantity: str, sizes: Iterable[tuple[int, float, int]]
) -> Iterator[str]:
    counts, values, runs = (np.array(column) for column in zip(*sizes, strict=True))
    exponent, constant = np.polyfit(np.log(counts), np.log(values), 1)
    error = np.log(values) - (constant + exponent * np.log(counts))
    residual = 0.0 if len(counts) == 2 else float(np.sqrt(np.mean(error**2)))
    yield from ("", "[[scaling]]", f"name = {quoted(f'{benchmark} {accelerator}')}")
    yield f"quantity = {quoted(quantity)}"
    yield f"at_one = {number(np.exp(constant))}"
    yield f"exponent = {number(exponent)}"
    yield f"residual = {number(residual)}"
    yield f"points = {len(counts)}"
    yield f"runs = {runs.sum()}"
    yield f"accelerators = [{counts.min()}, {counts.max()}]"


def synergy(data: Path) -> Iterator[str]:
    yield from head(
        "Input pipelines of twelve models on one NVIDIA V100 (Synergy, OSDI 2022)",
        "msr-fiddle/synergy, commit 1bb2bed6edc9c5f953d0b7f0a40e4fdad053489c, simulator/models; bytes of images: "
        "mlcommons/storage_results_v1.0, commit 64c2ce48578aabb20cff572c0495564d289e4955",
        "MIT",
        "Model of beliefs/loading.py to the speeds on one GPU with the data set in memory (250 GB), relative to 3 "
        "cores and made absolute by batch and iteration time there. Fitted to 1, 3, 5, 9 and 24 cores; the other "
        "half, 2, 4, 6 and 12 cores, is unseen, and its error stands beside each entry. A core counts as a loader "
        "worker. The speeds are rounded by the publisher; they tell no serial part, which is 0 here. dataset_bytes "
        "is ImageNet's for image models, 0 (not known) for others.",
    )
    table = pl.read_csv(data / SENSITIVITY).filter((pl.col("gpus") == 1) & (pl.col("mem_gb_per_gpu") == 250))
    for model in sorted(table["model"].unique()):
        rows = table.filter(pl.col("model") == model).sort("cpu_per_gpu")
        cores = rows["cpu_per_gpu"].to_numpy().astype(np.float64)
        per_s = rows["rel_throughput"].to_numpy() * rows["batch"][0] / rows["iter_time_s"][0]
        chosen = np.arange(len(cores)) % 2 == 0
        fitted = loading.fit_training(cores[chosen], per_s[chosen])
        predicted = loading.rates(
            np.tile(fitted.parameters, (len(cores), 1)), cores, np.full(len(cores), np.inf)
        )
        unseen = float(np.sqrt(np.mean(np.log(predicted / per_s)[~chosen] ** 2)))
        values = fitted.parameters.copy()
        if model in IMAGE_MODELS:
            values[[loading.SAMPLE_BYTES, loading.DATASET_BYTES]] = IMAGE_BYTES, IMAGE_BYTES * IMAGES
        yield from ("", "[[loading]]", f"name = {quoted(model)}", 'gpu_type = "V100"')
        for parameter, value in zip(loading.PARAMETERS, values, strict=True):
            yield f"{parameter} = {number(value)}"
        yield f"residual = {number(fitted.residual if fitted.residual > EXACT else 0.0)}"
        yield f"points = {fitted.points}"
        yield f"# error of the {(~chosen).sum()} unseen speeds: {unseen:.1%}"


EXACT = 1e-6
"""A residual below this is that of the search, not of the model."""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def number(value: float) -> str:
    """Four digits: enough for what was measured, and equal on every machine."""
    text = f"{value:.4g}"
    return text if any(sign in text for sign in ".e") else f"{text}.0"


if __name__ == "__main__":
    main(sys.argv[1:])
