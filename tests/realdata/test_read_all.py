"""Real files, where they are: $BRIM_DATA, or shared/data beside the repository. Their row counts are published."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim import traces

DATA = Path(os.environ.get("BRIM_DATA", Path(__file__).parents[3] / "shared" / "data"))
ROWS = {
    "traces/philly/philly_2017-09_2017-10.csv.gz": ("philly-csv", 52_849),
    **{f"traces/itp/cluster{number}.csv.gz": ("itp", rows) for number, rows in (
        ("01", 1_595), ("03", 3_011), ("04", 15_802), ("05", 3_629), ("06", 2_396), ("10", 260))},
    "traces/itp/195job.csv": ("itp", 195),
    **{f"traces/pollux/workloads{load}/workload-{number}.csv": ("pollux", rows) for number in range(1, 7)
       for load, rows in (("", 160), ("-0.5", 80), ("-1.5", 240), ("-2.0", 320), ("-realistic", 160))},
    "traces/gavel/max_min_fairness.trace": ("gavel", 96),
    "traces/gavel/minimize_makespan.trace": ("gavel", 100),
    **{f"traces/shockwave/{name}_dynamic.trace.gz": ("shockwave", rows) for name, rows in (
        ("120jobs_100_40_25", 120), ("220jobs_100_25_4", 220), ("460jobs_100_10_1", 460))},
    "schemas/acme_trace_seren_example.csv": ("acme", 2),
    "schemas/acme_trace_kalos_example.csv": ("acme", 2),
    "schemas/helios_cluster_log_example.csv": ("helios", 3),
    "schemas/philly_cluster_job_log_example.json": ("philly", 1),
    "restricted/alibaba_openb_2023/openb_pod_list_default.csv.gz": ("openb", 8_152),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_published_row_counts(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set BRIM_DATA")
    trace, report = traces.read(path)
    assert (report.format, report.rows) == ROWS[name]
    assert report.rows == len(trace) + sum(report.dropped.values())


def test_philly_extract_agrees_with_the_published_example_job():
    extract = DATA / "traces/philly/philly_2017-09_2017-10.csv.gz"
    log = DATA / "schemas/philly_cluster_job_log_example.json"
    if not (extract.exists() and log.exists()):
        pytest.skip(f"{extract} is not here; set BRIM_DATA")
    job, _ = traces.read(log)
    trace, _ = traces.read(extract)
    assert trace.origin_ms is not None
    assert job.origin_ms is not None
    same = (trace.submit_ms + trace.origin_ms == job.origin_ms) & (trace.gpus == job.gpus[0])
    assert trace.run_ms[same].tolist() == job.run_ms.tolist() == [193_256_000]
