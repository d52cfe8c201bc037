"""The step-time model against measured jobs: fitted to 1 to 4 GPUs, asked about 8 and 16."""

from __future__ import annotations

import sys

import numpy as np
import polars as pl
import pytest

from brim.beliefs import throughput
from brim.beliefs.throughput import Fit, Observations, fit, spread, step_s
from tests.realdata.test_read_all import DATA

PROFILES = DATA / "profiles" / "pollux"
APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


def measured(application: str) -> Observations:
    """All rows of both tables: placements of up to 16 GPUs on 4 nodes, then 6 to 64 GPUs on 6 to 16 nodes."""
    if not (PROFILES / application).exists():
        pytest.skip(f"{PROFILES / application} is not here; set BRIM_DATA")
    placements = pl.read_csv(PROFILES / application / "placements.csv", schema_overrides={"placement": pl.String})
    digits = [[int(digit) for digit in placement] for placement in placements["placement"]]
    more = pl.read_csv(PROFILES / application / "scalability.csv")
    both = pl.concat([placements.select("local_bsz", "step_time", "sync_time"),
                      more.select("local_bsz", "step_time", "sync_time")])
    return Observations(
        nodes=np.array([len(row) for row in digits] + more["num_nodes"].to_list()),
        gpus=np.array([sum(row) for row in digits] + more["num_replicas"].to_list()),
        local_batch=both["local_bsz"].to_numpy().astype(float),
        step_s=both["step_time"].to_numpy(), sync_s=both["sync_time"].to_numpy(),
    )


def rows(seen: Observations, keep: np.ndarray) -> Observations:
    return Observations(**{name: getattr(seen, name)[keep] for name in Observations.__slots__})


def predicted(fitted: Fit, seen: Observations) -> np.ndarray:
    return step_s(fitted.parameters, seen.nodes, seen.gpus, seen.local_batch) / seen.step_s


def trained_on(seen: Observations, most: int) -> tuple[Fit, float, int]:
    """Fit to at most so many GPUs; mean absolute relative error on 8 and 16, and how many rows those are."""
    fitted = fit(rows(seen, seen.gpus <= most))
    unseen = rows(seen, np.isin(seen.gpus, (8, 16)))
    assert fitted.ok
    return fitted, float(np.abs(predicted(fitted, unseen) - 1).mean()), len(unseen)


def test_four_gpus_tell_of_eight_and_sixteen_within_fifteen_percent(capsys):
    errors, table = [], ["", "application  fitted  residual  predicted  error"]
    for application in APPLICATIONS:
        fitted, error, unseen = trained_on(measured(application), 4)
        errors.append(error)
        table.append(f"{application:12} {fitted.points:6} {fitted.residual:9.3f} {unseen:10} {error:6.1%}")
    table.append(f"{'mean':41} {np.mean(errors):6.1%}")
    with capsys.disabled():
        sys.stdout.write("\n".join(table) + "\n")
    assert np.mean(errors) <= 0.15
    assert max(errors) <= 0.20


def test_an_exchange_that_grows_with_every_gpu_would_miss_by_far(monkeypatch):
    """Why the model departs from Pollux's ``beta * (k - 2)``."""
    seen = [measured(application) for application in APPLICATIONS]
    ours = np.mean([trained_on(each, 4)[1] for each in seen])
    monkeypatch.setattr(throughput, "_doublings", lambda gpus: np.maximum(gpus - 2, 0).astype(float))
    assert np.mean([trained_on(each, 4)[1] for each in seen]) > 2 * ours


@pytest.mark.parametrize("most", [2, 4, 8])
def test_the_stated_uncertainty_is_of_the_size_of_the_error(most):
    """Errors in units of the stated spread have a root mean square of about one."""
    scaled = []
    for application in APPLICATIONS:
        seen = measured(application)
        known, unknown = rows(seen, seen.gpus <= most), rows(seen, seen.gpus > most)
        fitted = fit(known)
        stated = spread(fitted, known, unknown.nodes, unknown.gpus, unknown.local_batch)
        scaled.append(np.log(predicted(fitted, unknown)) / stated)
    assert 0.4 < np.sqrt(np.mean(np.concatenate(scaled) ** 2)) < 1.5
