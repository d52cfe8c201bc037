"""Replays of jobs that change their size: what the reports say of them, and what they measure them against."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from brim.core.trace import trace_of
from brim.reports.charts.lines import binned_mean
from brim.reports.files import packed_jobs, write_jobs
from brim.reports.metrics import finish_time_fairness, measure
from brim.reports.page import page
from brim.reports.summary import result_rows, results_json, summarise
from brim.reports.table import comparison

from .fakes import replay_of, runs_of
from .test_page import unpacked

TRACE = trace_of(
    name="t", format="test", job_id=["a", "b", "c"], submit_ms=[0, 0, 10_000], gpus=[2, 2, 4],
    profile=[0, 1, -1], profiles=["bert", "vgg"], batch=[32, 64, -1],
)


def elastic(**changes):
    """Job a takes GPU 0, then 0 to 3; b takes two as asked; c is turned away after 5 s."""
    runs = runs_of([(0, 0, 20_000, [0]), (1, 0, 20_000, [1, 2]), (0, 20_000, 40_000, [0, 1, 2, 3])])
    columns = {
        "run_ms": [60_000, 20_000, 30_000], "ideal_run_ms": [30_000, 15_000, 30_000],
        "ideal_gpu_ms": [80_000, 30_000, 120_000], "gpus_min": [1, 1, 4], "gpus_max": [4, 4, 4],
        "resizes": [1, 0, 0], "restarts": [1, 0, 0], "rejected": [0, 0, 1], "rejected_ms": [-1, -1, 15_000],
        "unmeasured": [0, 1, 0],
    }
    arrays = {name: np.array(column, dtype=np.int64) for name, column in columns.items()}
    return replay_of(TRACE, "1x4xT4", runs, [40_000, 20_000, -1], **({"policy": "elastic"} | arrays | changes))


def printed(replays, width=220):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(comparison(summarise(replays)))
    return console.export_text()


def test_figures_of_elastic_jobs():
    found = measure(elastic())
    assert (found.finished, found.rejected, found.unfinished, found.elastic, found.unmeasured) == (2, 1, 0, 2, 1)
    assert found.rejected_fraction == pytest.approx(1 / 3)
    assert (found.resizes, found.restarts, found.preemptions) == (1, 1, 0)
    assert found.makespan_s == 40.0
    assert finish_time_fairness(elastic()).tolist() == [40 / 60, 20 / 20]


def test_bounds_are_those_of_elastic_jobs():
    """Alone, a needs 30 s and b 15 s; 110 GPU-s on 4 GPUs are 27.5 s."""
    (summary,) = summarise([elastic()])
    assert summary.bounds.jct_mean_s == 22.5
    assert summary.bounds.makespan_s == 30.0
    faster = elastic(ideal_run_ms=np.array([50_000, 15_000, 30_000]))
    assert summarise([faster])[0].bounds.jct_mean_s is None  # held 40 s: it cannot need 50


def test_replays_whose_jobs_need_different_things_have_bounds_of_their_own():
    one, other = summarise([elastic(), elastic(ideal_run_ms=np.array([20_000, 15_000, 30_000]))])
    assert one.bounds != other.bounds


def headings(text):
    """The line that names the columns of the table."""
    (line,) = (line for line in text.splitlines() if line.lstrip().startswith("policy"))
    return line


def test_rare_columns_show_only_where_there_is_something_in_them():
    rigid = elastic(
        policy="fifo", resizes=np.zeros(3, dtype=np.int64), unmeasured=np.zeros(3, dtype=np.int64),
        rejected=np.zeros(3, dtype=np.int64), rejected_ms=np.full(3, -1),
    )
    both, alone = printed([rigid, elastic()]), printed([rigid])
    for heading in ("resize", "rejected", "unmeasured"):
        assert heading in headings(both)
        assert heading not in headings(alone)
    assert "2 of the jobs are elastic" in both
    assert "No schedule of these jobs, at any size and batch they may have" in both
    assert "Rejected jobs are left out of every mean" in both
    assert "their scaling was not known" in both
    assert "rigid jobs" in printed([replace(rigid, gpus_min=TRACE.gpus, gpus_max=TRACE.gpus,
                                            ideal_gpu_ms=rigid.ideal_run_ms * TRACE.gpus)])


def test_results_and_job_table_tell_of_sizes_batches_and_who_was_turned_away(tmp_path):
    replay = elastic()
    summaries = summarise([replay])
    (row,) = result_rows(summaries)
    assert (row["rejected"], row["resizes"], row["elastic"], row["unmeasured"]) == (1, 1, 2, 1)
    assert results_json(replay, summaries)["trace"]["gpu_h"] == pytest.approx((120 + 40 + 120) / 3600)
    write_jobs([packed_jobs(replay)], tmp_path / "a.parquet")
    rows = pl.read_parquet(tmp_path / "a.parquet").rows(named=True)
    assert [r["status"] for r in rows] == ["finished", "finished", "rejected"]
    assert [r["application"] for r in rows] == ["bert", "vgg", None]
    assert [r["batch"] for r in rows] == [32, 64, None]
    assert [(r["gpus_min"], r["gpus_max"], r["resizes"]) for r in rows] == [(1, 4, 1), (1, 4, 0), (4, 4, 0)]
    assert [(r["run_s"], r["ideal_run_s"], r["ideal_gpu_s"]) for r in rows] == [
        (60.0, 30.0, 80.0), (20.0, 15.0, 30.0), (30.0, 30.0, 120.0),
    ]


def test_the_page_speaks_of_elastic_jobs():
    text = page([elastic()], command="brim sim run")
    assert "elastic jobs: 2" in text
    assert "at any size and batch they may have" in text
    assert "rigid" not in text.replace("Jobs are rigid.", "")
    assert unpacked(text)["jobs"]["gpus_as"] == " asked"


def test_who_was_turned_away_no_longer_waits():
    from brim.reports.charts.lines import _queue_steps

    times, steps = _queue_steps(elastic())
    assert binned_mean(times, steps, np.array([10_000.0, 15_000.0, 40_000.0])).tolist() == [1.0, 0.0]
