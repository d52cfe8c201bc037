from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from brim.core.trace import trace_of
from brim.reports import summary as summary_module
from brim.reports.files import dump_json, packed_jobs, write_jobs
from brim.reports.summary import interval, results_json, summarise
from brim.reports.table import comparison, paired_difference

from .fakes import drawn_replay, drawn_trace, replay_of, runs_of

SCHEMA_KEYS = {
    "policy", "seed", "load", "jobs", "finished", "jct_mean_s", "jct_p50_s", "jct_p99_s", "jct_bound_s", "makespan_s",
    "makespan_bound_s", "queue_mean_s", "gpu_allocated_fraction", "gpu_busy_fraction", "cpu_busy_fraction",
    "energy_kwh", "energy_bound_kwh", "cost", "preemptions", "restarts", "lost_gpu_s", "rounds", "round_p99_ms",
    "wall_s",
}


@pytest.fixture(scope="module")
def replays():
    trace = drawn_trace(200, seed=3, load_gpus=16)
    return [
        drawn_replay(trace, "2x8xT4", policy, seed=seed, oracle=policy == "srtf")
        for policy in ("fifo", "srtf") for seed in (0, 1, 2)
    ]


def printed(renderable, width=220):
    console = Console(width=width, no_color=True, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        console.print(renderable)
    return console.export_text()


def test_results_have_the_published_keys_and_undefined_is_null(replays):
    payload = results_json(replays[0], summarise(replays))
    assert payload["schema"] == 1
    assert payload["cluster"] == "2x8xT4"
    assert set(payload["trace"]) >= {"name", "format", "synthetic", "jobs"}
    for row in payload["results"]:
        assert set(row) >= SCHEMA_KEYS | {"oracle", "estimates", "partial", "assumptions", "ftf_rho_mean"}
        assert row["energy_kwh"] is row["cost"] is row["cpu_busy_fraction"] is None
        assert all(isinstance(row[key], float) for key in ("wall_s", "lost_gpu_s", "jct_mean_s", "load"))
        assert row["jct_bound_s"] <= row["jct_mean_s"]


def test_jobs_that_ran_shorter_than_recorded_have_no_bound():
    trace = trace_of(name="t", format="test", job_id=["a"], submit_ms=[0], gpus=[1], run_ms=[10_000])
    resized = replay_of(trace, "1x2xT4", runs_of([(0, 0, 5000, [0, 1])]), [5000])
    (summary,) = summarise([resized])
    assert summary.bounds.jct_mean_s is None
    assert summary.jct_ratio is None
    assert "No lower bound" in printed(comparison([summary]))


def test_a_stopped_replay_is_reported_without_waiting_for_bounds(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("seconds of computing after Ctrl-C")

    monkeypatch.setattr(summary_module, "bounds", never)
    trace = drawn_trace(20, seed=0, load_gpus=8)
    cut = drawn_replay(trace, "1x8xT4", "fifo")
    finish = np.where(np.arange(20) < 10, cut.finish_ms, -1)
    (summary,) = summarise([dataclasses.replace(cut, finish_ms=finish, partial=True)])
    assert (summary.metrics.finished, summary.jct_ratio, summary.makespan_ratio) == (10, None, None)
    assert "No lower bound" in printed(comparison([summary]))


def test_json_refuses_nan():
    with pytest.raises(ValueError, match="Out of range float"):
        dump_json({"x": float("nan")})


def test_parquet_holds_every_job_of_every_replay_and_equal_input_gives_equal_bytes(replays, tmp_path):
    write_jobs(map(packed_jobs, replays), tmp_path / "a.parquet")
    write_jobs([packed_jobs(replay) for replay in replays], tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    table = pl.read_parquet(tmp_path / "a.parquet")
    assert len(table) == 6 * 200
    means = table.group_by("policy", "seed", maintain_order=True).agg(pl.col("jct_s").mean())["jct_s"].to_list()
    assert means == pytest.approx([s.metrics.jct_mean_s for s in summarise(replays)])


def test_what_did_not_happen_is_null(tmp_path):
    """a runs [1, 3) s and finishes, b starts at 3 s and is cut off, c never starts."""
    trace = trace_of(
        name="t", format="test", job_id=["a", "b", "c"], submit_ms=[0, 0, 0], gpus=[1, 1, 1], run_ms=[2000, 2000, -1],
        users=["x"], user=[0, -1, -1], share_milli=[500, 1000, 1000],
    )
    runs = runs_of([(0, 1000, 3000, [0]), (1, 3000, 4000, [0])])
    replay = replay_of(trace, "1x1xT4", runs, [3000, -1, -1], end_ms=4000, partial=True)
    write_jobs([packed_jobs(replay)], tmp_path / "a.parquet")
    rows = pl.read_parquet(tmp_path / "a.parquet").rows(named=True)
    assert [row["status"] for row in rows] == ["finished", "unfinished", "unfinished"]
    assert [row["jct_s"] for row in rows] == [3.0, None, None]
    assert [row["queue_s"] for row in rows] == [1.0, 3.0, None]
    assert [row["wait_s"] for row in rows] == [1.0, None, None]
    assert [row["user"] for row in rows] == ["x", None, None]
    assert [row["run_s"] for row in rows] == [2.0, 2.0, None]
    assert rows[0]["service_gpu_s"] == 1.0


def test_a_failed_write_leaves_the_previous_file(tmp_path):
    target = tmp_path / "a.parquet"
    target.write_bytes(b"before")

    def broken():
        yield packed_jobs(drawn_replay(drawn_trace(5, seed=0, load_gpus=8), "1x8xT4", "fifo"))
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        write_jobs(broken(), target)
    assert target.read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_interval_is_student_t():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.302652729911275 / np.sqrt(3))
    assert interval([5.0]).half_width is None


def test_table_shows_means_intervals_bounds_and_marks(replays):
    text = printed(comparison(summarise(replays)))
    assert "srtf (oracle)" in text
    assert "+-" in text
    assert "3 seeds" in text
    assert "Jobs are rigid." in text
    assert "PARTIAL" not in text


def test_jobs_of_replays_that_differ_in_number_are_told_as_a_range():
    traces = [drawn_trace(jobs, seed=3, load_gpus=16) for jobs in (50, 30, 60)]
    replays = [drawn_replay(trace, "2x8xT4", "fifo", seed=seed) for seed, trace in enumerate(traces)]
    elastic = [dataclasses.replace(one, gpus_max=one.gpus_max + 1) for one in replays]
    text = printed(comparison(summarise(elastic)), width=500)
    assert "\n30 to 60 jobs. No " in text
    assert "\n30 to 60 of the jobs are elastic" in text
    text = printed(comparison(summarise(replays[:1])), width=500)
    assert "\n50 jobs. No schedule" in text
    assert "elastic" not in text


def test_failed_jobs_of_several_seeds_are_said_to_be_of_all(replays):
    failed = [
        dataclasses.replace(one, metrics=dataclasses.replace(one.metrics, failed=2)) for one in summarise(replays[:3])
    ]
    assert "\nFailed jobs of all seeds, left out of every mean: fifo 6.\n" in printed(comparison(failed), width=500)
    assert "\nFailed jobs, left out of every mean: fifo 2.\n" in printed(comparison(failed[:1]), width=500)


def test_a_narrow_terminal_gets_fewer_columns_not_cut_figures(replays):
    text = printed(comparison(summarise(replays)), width=80)
    headings = next(line for line in text.splitlines() if line.startswith("policy"))
    assert "\u2026" not in text
    assert "JCT mean" in headings
    assert "rounds/s" not in headings
    assert "rounds/s" in text.partition("This terminal is too narrow for:")[2]  # said, not only left out


def test_names_are_not_read_as_markup():
    trace = drawn_trace(20, seed=1, load_gpus=8)
    text = printed(comparison(summarise([drawn_replay(trace, "1x8xT4", "[red]p[/red]", assumptions=("[x]",))])))
    assert "[red]p[/red]" in text
    assert "- [x]" in text


def test_differences_are_paired_by_seed(replays):
    summaries = summarise(replays)
    assert paired_difference(summaries[:3], summaries[3:]) is not None
    assert paired_difference(summaries[:1], summaries[3:]) is None


def test_table_says_partial_first_and_names_policies_with_their_own_assumptions():
    trace = drawn_trace(50, seed=1, load_gpus=8)
    whole = drawn_replay(trace, "1x8xT4", "fifo")
    finish = whole.finish_ms.copy()
    finish[10:] = -1
    cut = drawn_replay(trace, "1x8xT4", "las", partial=True, finish_ms=finish, assumptions=("Restarts cost 30 s.",))
    text = printed(comparison(summarise([whole, cut])))
    assert text.lstrip().startswith("PARTIAL: las stopped")
    assert "40 unfinished" in text
    assert "- las: Restarts cost 30 s." in text
