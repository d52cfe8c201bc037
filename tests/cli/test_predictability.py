"""``brim predictability fit``: three kinds of files, a file that can be read back, and refusals in one line."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import polars as pl
import pytest

from brim.beliefs.predictability import load
from brim.beliefs.predictability_training import check, prefixes
from brim.cli.predictability import runs_of
from brim.errors import UserError
from brim.live.requests import LOSS_MAX
from tests.cli.commands import brim

SAMPLES = np.arange(1, 41) * 10


def history(families: int = 3, each: int = 6, *, wanders: float = 0.12) -> pl.DataFrame:
    rng, tables = np.random.default_rng(0), []
    for number in range(families * each):
        loss = 0.9 / (0.01 * rng.uniform(0.5, 3) * SAMPLES + 1) + 0.1 + 0.002 * rng.standard_normal(40)
        if number % 2:
            loss = loss * np.exp(np.cumsum(wanders * rng.standard_normal(40)))
        loss[number % 7] = math.nan
        tables.append(pl.DataFrame({
            "job": number, "family": f"kind {number // each}", "samples": SAMPLES, "loss": loss, "planned": 400,
        }))
    return pl.concat(tables)


@pytest.mark.slow
def test_a_history_is_read_scored_and_written(tmp_path):
    file, out = tmp_path / "losses.csv", tmp_path / "mine.toml"
    history().write_csv(file)
    done = brim("predictability", "fit", file, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [one["name"] for one in said["scores"]][:5] == [
        "nearest neighbours", "logistic regression", "random forest", "support vectors", "perceptron"]
    read = load(str(out))
    assert list(read.names) == [row["name"] for row in said["features"] if row["used"]]
    assert "18 runs of 3 families" in read.about


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_every_kind_of_file_has_the_same_runs_and_no_other_column_is_read(tmp_path, ending):
    """A metric of the end, which would give the answer away, is planted beside the losses."""
    file = tmp_path / f"losses{ending}"
    planted = history().with_columns(final_accuracy=pl.col("job") % 2, final_loss=pl.col("loss").last().over("job"))
    getattr(planted, {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}[ending])(file)
    runs = runs_of(file)
    assert [run.family for run in runs] == [f"kind {number // 6}" for number in range(18)]
    for run, (_, rows) in zip(runs, history().group_by("job", maintain_order=True), strict=True):
        assert run._fields == ("family", "samples", "loss", "planned")
        np.testing.assert_array_equal(run.loss, rows["loss"].to_numpy())
        assert (run.samples.tolist(), run.planned) == (SAMPLES.tolist(), 400.0)


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_losses_that_are_not_finite_are_left_out_as_python_writes_them(tmp_path, ending):
    file = tmp_path / f"losses[1]*{ending}"  # a name, not a pattern
    rows = history().with_columns(loss=pl.when(pl.int_range(pl.len()) % 9 == 4).then(math.inf).otherwise("loss"))
    with file.open("w", newline="") as out:
        if ending == ".csv":
            writer = csv.DictWriter(out, rows.columns)
            writer.writeheader()
            writer.writerows(rows.iter_rows(named=True))
        else:
            out.writelines(json.dumps(row) + "\n" for row in rows.iter_rows(named=True))
    assert ("nan" if ending == ".csv" else "NaN") in file.read_text()
    losses = np.concatenate([run.loss for run in runs_of(file)])
    written = rows["loss"].to_numpy()
    np.testing.assert_array_equal(losses[np.isfinite(losses)], written[np.isfinite(written)])
    assert len(losses) == len(rows)


def test_losses_beyond_what_a_controller_takes_count_as_not_finite(tmp_path, capsys):
    file = tmp_path / "losses.parquet"
    huge = pl.when(pl.int_range(pl.len()) % 9 == 4).then(1e308).otherwise("loss")
    history().with_columns(loss=huge).write_parquet(file)
    runs = runs_of(file)
    assert max(np.nanmax(run.loss) for run in runs) <= LOSS_MAX
    assert len(prefixes(runs).family), "a warning of numpy would be an error here"
    said = f"brim: {file}: 80 rows with a loss beyond 1e+09 left out, the first is row 5\n"
    assert capsys.readouterr().err == said


def test_rows_without_progress_are_left_out_and_counted(tmp_path, capsys):
    file = tmp_path / "losses.csv"
    history().with_columns(samples=pl.col("samples") - 10).write_csv(file)
    assert len(runs_of(file)) == 18
    assert capsys.readouterr().err == f"brim: {file}: 18 rows without samples above 0 left out, the first is row 2\n"


def _without_a_column(rows):
    return rows.drop("loss")


def _words_for_losses(rows):
    return rows.with_columns(pl.lit("low").alias("loss"))


def _one_family(rows):
    return rows.with_columns(pl.lit("a").alias("family"))


def _three_losses(rows):
    return rows.group_by("job", maintain_order=True).head(3)


def _constant(rows):
    return rows.with_columns(pl.lit(2.0).alias("loss"))


def _words_for_plans(rows):
    return rows.with_columns(pl.lit("long").alias("planned"))


@pytest.mark.parametrize(("change", "said"), [
    (_without_a_column, "found no column 'loss', expected job, family, samples and loss"),
    (_words_for_losses, "losses.csv, row 2, column 'loss': found 'low', expected a number"),
    (_words_for_plans, "losses.csv, row 2, column 'planned': found 'long', expected a number"),
    (_one_family, "found one family only (a)"),
    (_three_losses, "no prefix of a run from which its end could be predicted (each run has too few losses, or equal"),
    (_constant, "(each run has too few losses, or equal ones)"),
    (lambda rows: rows.clear(), "losses.csv: found no rows, expected at least one"),
])  # fmt: skip
def test_a_history_that_teaches_nothing_is_refused_in_one_line(tmp_path, change, said):
    file = tmp_path / "losses.csv"
    change(history()).write_csv(file)
    with pytest.raises(UserError) as error:
        check(prefixes(runs_of(file)))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "text", "said"), [
    ("losses.txt", "", "expected a name that ends in .parquet, .csv"),
    ("losses.parquet", "none", "losses.parquet: found no table ("),
    ("losses.jsonl", "{", "losses.jsonl: found no table ("),
    ("losses.csv", "", "losses.csv: found no rows, expected job"),
    ("losses.jsonl", "", "losses.jsonl: found no rows"), ("losses.parquet", "", "losses.parquet: found no rows"),
    (None, "", "nowhere.csv: no such file"), ("folder.csv", None, "folder.csv: Is a directory"),
    ("losses.csv", "job,family,samples,loss,loss\na,x,1,2,3\n", "row 1, column 'loss': found the name twice, expected"),
    ("losses.csv", "job,family,samples,loss,planned,planned\na,x,1,2,5,5\n", "column 'planned': found the name twice"),
    ("losses.csv", "job,family,samples,loss,planned\na,x,1,2,-5\n", "row 2, column 'planned': found '-5', expected"),
    ("losses.csv", "job,family,samples,loss\na,x,1,2\n\n,x,1,2\n", "row 4, column 'job': found nothing, expected a"),
    ("losses.csv", "job,family,samples,loss\na,,1,2\n", "row 2, column 'family': found nothing, expected a number or"),
    ("losses.csv", "job,family,samples,loss\na,x,1,2\na,y,2,2\n",
     "row 3, column 'family': found 'y', expected 'x', as an earlier row of this job says"),
    ("losses.csv", "job,family,samples,loss,planned\na,x,1,2,\nb,x,1,2,7\na,x,2,2,5\na,x,3,2,\na,x,4,2,6\n",
     "row 6, column 'planned': found '6', expected 5.0, as an earlier row of this job says"),
    ("losses.csv", "job,family,samples,loss\na,x,1,2\na,x,many,2\n", "row 3, column 'samples': found 'many', expected"),
    ("losses.csv", "job,family,samples,loss\na,x,1,2\na,x,2,2,9\n", "row 3: found 5 fields, expected 4 fields"),
    ("losses.csv", "job,family,samples,loss\na,x,1,2\na,x,2\n", "row 3: found 3 fields, expected 4 fields"),
    ("losses.jsonl", '{"job": 1, "family": "x", "samples": 1, "loss": 2}\n{"job": 1, "samples": 1, "loss": 2}',
     "losses.jsonl, row 2, column 'family': found nothing, expected a number or a name"),
    ("losses.jsonl", '{"job": 1, "family": "x", "samples": 1, "loss": true}', "row 1, column 'loss': found True"),
    ("losses.jsonl", '{"job": [1], "family": "x", "samples": 1, "loss": 2}',
     "losses.jsonl: found a list or record in column 'job', expected a number or a name"),
])  # fmt: skip
def test_a_file_of_another_kind_is_refused_in_one_line(tmp_path, name, text, said):
    file = tmp_path / (name or "nowhere.csv")
    if text is None:
        file.mkdir()
    elif name:
        file.write_text(text)
    with pytest.raises(UserError) as error:
        runs_of(file)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_rows_out_of_order_are_counted_because_what_came_before_is_taken_as_undone(tmp_path, capsys):
    file = tmp_path / "losses.csv"
    file.write_text("job,family,samples,loss\na,x,,9\na,x,1,9\nb,x,5,9\na,x,2,8\nb,x,3,8\na,x,2,7\nb,x,1,8\n")
    runs_of(file)
    _, said = capsys.readouterr().err.splitlines()  # the first is about the row without samples
    assert said.startswith(f"brim: {file}: 2 rows with fewer samples than the row before of the same job: ")
    assert said.endswith("the first is row 6")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "said"), [("losses.csv", 2, "one family only"), ("no.csv", 2, "no such file")]
)
def test_a_refusal_is_one_line_on_stderr_and_nothing_is_written(tmp_path, name, code, said):
    out = tmp_path / "mine.toml"
    _one_family(history()).write_csv(tmp_path / "losses.csv")
    done = brim("predictability", "fit", tmp_path / name, "--out", out)
    assert (done.returncode, done.stdout) == (code, "")
    assert name in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert not out.exists()
