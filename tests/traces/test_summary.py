"""The summary counts right, and the command line shows it."""

from __future__ import annotations

import json
import math
import re

import pytest
from typer.testing import CliRunner

from brim import traces
from brim.cli.trace import app
from brim.core.cluster import parse_cluster
from brim.errors import TraceError
from tests.cli.commands import brim

from .examples import EXAMPLES, save


@pytest.fixture
def helios(tmp_path):
    return save(tmp_path, *EXAMPLES["helios"])


def test_figures(helios):
    figures = traces.summary(traces.read(helios)[0], parse_cluster("1x4xT4"))
    assert (figures.jobs, figures.users, figures.groups) == (2, 2, 2)
    assert figures.duration_mean_s == 1_920
    assert figures.gpu_hours == pytest.approx(1 + 4 * 240 / 3_600)
    assert [(size.gpus, size.jobs) for size in figures.sizes] == [(1, 1), (4, 1)]
    assert figures.duration_by_decade == {1: 0, 10: 0, 100: 0, 1_000: 1, 10_000: 1}
    assert figures.status_fraction["failed"] == 0.5
    assert figures.with_limit_fraction == 0
    assert figures.load == pytest.approx(figures.gpu_hours / 4 / (1 / 3_600))


def test_trace_without_run_times_has_nan_not_zero(tmp_path):
    figures = traces.summary(traces.read(save(tmp_path, *EXAMPLES["gavel"]))[0], parse_cluster("1x4xT4"))
    assert math.isnan(figures.duration_mean_s)
    assert math.isnan(figures.load)


def test_info_puts_the_payload_on_stdout_and_the_rest_on_stderr(helios):
    result = CliRunner().invoke(app, ["info", str(helios), "--cluster", "1x4xT4", "--json"])
    facts = json.loads(result.stdout)
    assert facts["schema"] == 1
    assert facts["jobs"] == 2
    assert facts["read"]["dropped"] == {"asks for no GPU": 1, "never started": 1}
    assert "dropped 1: asks for no GPU" in result.stderr
    table = CliRunner().invoke(app, ["info", str(helios)])
    assert "jobs by number of GPUs" in table.stdout
    assert "\x1b" not in table.stdout


@pytest.mark.cases(8)
@pytest.mark.parametrize("key", EXAMPLES)
def test_info_shows_every_format(tmp_path, key):
    path = save(tmp_path, *EXAMPLES[key])
    for option in ("--output=table", "--output=json"):
        assert CliRunner().invoke(app, ["info", str(path), option]).exit_code == 0


def test_synth_and_convert(tmp_path):
    made, converted = tmp_path / "a.csv", tmp_path / "b.parquet"
    result = CliRunner().invoke(app, ["synth", "acme", str(made), "-n", "50", "-c", "8x8xA100", "--load", "0.5"])
    assert result.stdout.strip() == str(made)
    assert "synthetic" in result.stderr
    assert CliRunner().invoke(app, ["convert", str(made), str(converted)]).exit_code == 0
    assert "synthetic" in CliRunner().invoke(app, ["info", str(converted)]).stdout


def test_errors_reach_the_caller(tmp_path):
    assert isinstance(CliRunner().invoke(app, ["info", str(tmp_path / "absent")]).exception, TraceError)


def test_gpu_hours_are_unknown_where_run_times_are(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("job_id,submit_ms,gpus\na,0,1\n")
    done = brim("trace", "info", path)
    (line,) = (line.split() for line in done.stdout.splitlines() if "GPU-hours" in line)
    assert line == ["GPU-hours", "-"]
    facts = json.loads(brim("trace", "info", path, "--json").stdout)
    assert facts["gpu_hours"] is None
    assert [size["gpu_hours"] for size in facts["sizes"]] == [None]


@pytest.mark.parametrize(("run_ms", "shown"), [
    (1_836_000, "0.51"), (360, "0.0001"), (4_500_000, "1.25"), (360_000_000, "100"), (4_444_440_000, "1,235"),
])  # fmt: skip
def test_gpu_hours_have_three_digits(tmp_path, run_ms, shown):
    path = tmp_path / "a.csv"
    path.write_text(f"job_id,submit_ms,gpus,run_ms\na,0,1,{run_ms}\n")
    assert re.search(rf"GPU-hours +{re.escape(shown)}, 100% by 1-GPU jobs", brim("trace", "info", path).stdout)


def test_gpu_hours_of_a_size_are_unknown_where_its_run_times_are(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("job_id,submit_ms,gpus,run_ms\na,0,1,\nb,1,2,3600000\n")
    facts = json.loads(brim("trace", "info", path, "--json").stdout)
    assert facts["gpu_hours"] == 2
    assert [size["gpu_hours"] for size in facts["sizes"]] == [None, 2]
    assert "2, 100% by 2-GPU jobs " in brim("trace", "info", path).stdout
