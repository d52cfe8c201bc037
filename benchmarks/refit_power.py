"""Write src/brim/beliefs/profiles/power.toml again from published measurements, byte for byte.

    python benchmarks/refit_power.py DATA [OUT]

DATA holds power/acme_cdf and power/mlperf_h100 in their publishers' formats; EaCO's ten rows are in this file. OUT is
the file to write. The measurements are not copied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from scipy.optimize import least_squares

import brim.beliefs

EACO_UTILISATION = (4.72, 11.17, 36.61, 48.01, 40.25, 55.16, 61.06, 52.24, 66.99, 96.64)
EACO_WATTS = (712, 959, 1330, 1533, 1390, 1506, 1644, 1541, 1713, 1944)
"""Mean GPU utilisation in percent, and mean power: EaCO, arXiv 2412.08294, table of measured job sets."""
EACO_IDLE_W = 560.0
"""Not in the paper: 8 idle V100 of some 40 W and an idle server of two CPUs. Fitted too, it would be 356 W."""


def main(arguments: list[str]) -> None:
    if not 1 <= len(arguments) <= 2:
        sys.exit("usage: python benchmarks/refit_power.py DATA [OUT]")
    data = Path(arguments[0]) / "power"
    missing = [name for name in ("acme_cdf", "mlperf_h100") if not (data / name).is_dir()]
    if missing:
        sys.exit(f"refit_power.py: {data}: no folder {', '.join(missing)}")
    out = Path(arguments[1]) if len(arguments) > 1 else Path(brim.beliefs.__path__[0]) / "profiles" / "power.toml"
    lines = [
        "# Power of nodes by the mean utilisation of their GPUs. Written by benchmarks/refit_power.py; the fields are",
        "# explained in core/power.py.", *v100(), *a100(data / "acme_cdf"), *h100(data / "mlperf_h100"),
    ]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def v100() -> Iterator[str]:
    u, watts = np.array(EACO_UTILISATION) / 100, np.array(EACO_WATTS, dtype=float)
    fit = least_squares(lambda p: EACO_IDLE_W + p[0] * u ** p[1] - watts, (1400.0, 0.6))
    yield from entry(
        "V100", EACO_IDLE_W, EACO_IDLE_W + fit.x[0], fit.x[1], float(np.abs(fit.fun).max()),
        "EaCO, arXiv 2412.08294: 2 Xeon Gold 6240 and 8 V100, ten job sets", "figures of a paper",
        "Least squares of full_w and exponent with idle_w given; residual_w is the largest error.",
    )


def a100(data: Path) -> Iterator[str]:
    rows = pl.read_csv(data / "server_power.csv.gz")
    percent, watts = rows["cdf_pct_gpu_server_power_w"].to_numpy(), rows["gpu_server_power_w"].to_numpy()
    idle_w, full_w = np.interp((5, 99), percent, watts)
    yield from entry(
        "A100", idle_w, full_w, 1.0, None,
        "InternLM/AcmeTrace, commit 6d6ac9cd15f3b01151ac6ba00ecddd9156f0dc73: GPU servers of 8 A100", "CC-BY-4.0",
        "5th and 99th percentile of the power of all GPU servers as idle and full; the exponent is not in the data, 1 "
        "is assumed.",
    )


def h100(data: Path) -> Iterator[str]:
    rows = pl.read_parquet(data / "power_series_1node.parquet").filter(
        (pl.col("feed") == "ac") & pl.col("node").str.starts_with("node") & (pl.col("power_w") > 500)
    )
    idle_w, full_w = np.percentile(rows["power_w"].to_numpy(), (2, 99))
    yield from entry(
        "H100", idle_w, full_w, 1.0, None,
        "mlcommons/training_results_v4.0, commit 6fe954378efe4a1a1bd665550b18ff8f26018def: nodes of 8 H100 at the wall",
        "Apache-2.0",
        "2nd percentile (before a run begins) and 99th percentile of the readings as idle and full; the exponent is "
        "not in the data, 1 is assumed.",
    )


def entry(
    gpu_type: str, idle_w: float, full_w: float, exponent: float, residual_w: float | None, source: str, licence: str,
    fitted: str,
) -> Iterator[str]:
    yield from (
        "", "[[node]]", f'gpu_type = "{gpu_type}"', "gpus = 8", f"idle_w = {idle_w:.0f}", f"full_w = {full_w:.0f}",
        f"exponent = {exponent:.3f}",
    )
    if residual_w is not None:
        yield f"residual_w = {residual_w:.0f}"
    yield from (f'source = "{source}"', f'licence = "{licence}"', f'fitted = "{fitted}"')


if __name__ == "__main__":
    main(sys.argv[1:])
