"""``brim predictability fit``: train the classifier of predictable jobs on a cluster's own losses."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brim.cli.options import JsonOption, OutputOption, output_of, waiting
from brim.cli.outputs import check_outputs, console
from brim.cli.unconverted import UnconvertedGroup
from brim.errors import ConfigError, one_line, shown
from brim.units import counted

if TYPE_CHECKING:
    import polars as pl

    from brim.beliefs.predictability_judging import Scores
    from brim.beliefs.predictability_training import Prefixes, TrainedClassifier, TrainingRun
    from brim.core.arrays import BoolArray, FloatArray
    from brim.traces.table import Table

_COLUMNS: Final = ("job", "family", "samples", "loss")
_EXPECTED: Final = "expected job, family, samples and loss, and planned where it is known"
_READERS: Final = {".parquet": "read_parquet", ".csv": "read_csv", ".jsonl": "read_ndjson", ".ndjson": "read_ndjson"}

_NOT_FINITE_JSON: Final = re.compile(rb"(?<=:)\s*(?:NaN|-?Infinity)(?=\s*[,}])")
"""What Python's ``json`` writes for a loss that is not finite, though JSON has no word for it."""

app = typer.Typer(
    name="predictability", cls=UnconvertedGroup, no_args_is_help=True,
    help="Train the classifier of jobs whose end can be predicted from their losses.",
)


@app.callback()
def _verb() -> None:
    """Train the classifier of jobs whose end can be predicted from their losses."""


@app.command()
def fit(
    history: Annotated[
        Path,
        typer.Argument(metavar="HISTORY",
                       help="A row for each reported loss (.parquet, .csv, .jsonl): job, family, samples, loss, and "
                       "planned, the samples at which its user planned the end."),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File to write.")
    ] = Path("predictability.toml"),
    licence: Annotated[
        str, typer.Option("--licence", metavar="TEXT", help="Licence of the history, for the file's card.")
    ] = "own",
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Train the classifier of predictable jobs on ended jobs.

    How good it is on families left out is shown.
    """
    from brim import __version__
    from brim.beliefs.predictability_judging import models
    from brim.beliefs.predictability_training import check, prefixes, toml, train
    from brim.replacing import replacing

    wanted = output_of(output, as_json)
    check_outputs({"--out": out}, [history])
    models()  # a missing scikit-learn is an error before anything is read
    runs = runs_of(history)
    with waiting("training"):
        found = prefixes(runs)
        try:
            check(found)
            data = (f"{history.name}: {len(runs)} runs of {len({run.family for run in runs})} families, "
                    f"{len(found.is_predictable)} prefixes, of which {found.is_predictable.mean():.0%} are predictable")
            trained = train(found, data)
        except ConfigError as error:
            raise ConfigError(f"{history}: {error}") from None
    text = toml(trained, {
        "data": data, "licence": licence, "fitted": f"{datetime.now(UTC):%Y-%m-%d}, brim {__version__}",
        "features": "of the losses until a prefix ends and of the planned end; no metric of the end is in any",
    })
    with replacing(out) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    if wanted == "json":
        print(json.dumps(_payload(out, found, trained), indent=2))
    else:
        _print(found, trained, data)
        print(out)


def runs_of(history: Path) -> list[TrainingRun]:
    """The runs of a history, in the order of their first rows.

    Losses that are not finite are left out, as are rows without progress and losses beyond what a controller takes,
    which are counted on stderr.

    Raises:
        ConfigError: the file cannot be read, is of another kind, or lacks a column.
        TraceError: a row has no job, no family, something else than a number, or another family or plan than an
            earlier row of its job.
    """
    import numpy as np
    import polars as pl

    from brim.beliefs.predictability_training import TrainingRun
    from brim.live.requests import LOSS_MAX

    table = _table(history)
    rows = table.frame
    if rows.is_empty():
        raise ConfigError(f"{history}: found no rows, {_EXPECTED}")
    for name in _COLUMNS:
        if name not in rows.columns:
            raise ConfigError(f"{history}: found no column {name!r}, {_EXPECTED}")
    for name in ("job", "family"):
        if rows[name].dtype.is_nested():
            raise ConfigError(f"{history}: found a list or record in column {name!r}, expected a number or a name")
        if (blank := table.blank(name)).any():
            raise table.unusable(blank, name, "a number or a name")
    found = {name: _numbers(table, name) for name in ("samples", "loss", "planned") if name in rows.columns}
    samples, loss = found["samples"], found["loss"]
    planned = found.get("planned", np.full(len(rows), np.nan))
    if (wrong := planned <= 0).any():
        raise table.unusable(wrong, "planned", "more than 0 samples")
    _check_same(table, "family", table.text("family"))
    _check_same(table, "planned", pl.Series(planned, nan_to_null=True))
    _count(table, ~(samples > 0), "without samples above 0")
    _say_resets(table, samples)
    huge = np.isfinite(loss) & (np.abs(loss) > LOSS_MAX)
    _count(table, huge, f"with a loss beyond {LOSS_MAX:g}")
    loss = np.where(np.abs(loss) <= LOSS_MAX, loss, np.nan)  # as a controller does: squares of others overflow
    runs = []
    for (_,), of in pl.DataFrame({"job": rows["job"]}).with_row_index().group_by("job", maintain_order=True):
        at = of["index"].to_numpy()
        known = planned[at][np.isfinite(planned[at])]
        runs.append(TrainingRun(str(rows["family"][int(at[0])]), samples[at], loss[at],
                                float(known[0]) if len(known) else np.nan))
    return runs


def _say_resets(table: Table, samples: FloatArray) -> None:
    """Say how many rows go back in samples: what a job had reported beyond is taken as undone by a restart."""
    import polars as pl

    rows = pl.DataFrame({"job": table.frame["job"], "samples": samples}).with_row_index("at")
    rows = rows.filter(pl.col("samples") > 0, ~pl.col("samples").is_nan())  # the others are left out
    back = rows.filter(pl.col("samples") < pl.col("samples").shift().over("job"))["at"]
    if len(back):
        first = table.line(back[0])
        print(f"brim: {table.file}: {counted(len(back), 'row')} with fewer samples than the row before of the "
              f"same job: rows before with as many or more are taken as undone by a restart; the first is row {first}",
              file=sys.stderr)


def _numbers(table: Table, column: str) -> FloatArray:
    """The numbers of a column; NaN where nothing is said, or that it is not finite.

    Raises:
        TraceError: a value is something else; the message names its row.
    """
    import numpy as np
    import polars as pl

    series = table.frame[column]
    is_text = series.dtype == pl.String
    if not is_text and not series.dtype.is_numeric() and series.drop_nulls().len():
        raise table.unusable(series.is_not_null().to_numpy(), column, "a number")
    text = table.text(column) if is_text else series
    numbers = text.cast(pl.Float64, strict=False)
    wrong = numbers.is_null() & text.is_not_null()
    if wrong.any():
        raise table.unusable(wrong.to_numpy(), column, "a number")
    return numbers.fill_null(np.nan).to_numpy()


def _check_same(table: Table, column: str, said: pl.Series) -> None:
    """Refuse a row that says something else than the first of its job that says anything."""
    import polars as pl

    rows = pl.DataFrame({"job": table.frame["job"], "said": said})
    first = rows.select(pl.col("said").drop_nulls().first().over("job")).to_series()
    other = (said != first).fill_null(value=False).to_numpy()
    if other.any():
        raise table.unusable(other, column, f"{shown(first[int(other.argmax())])}, as an earlier row of this job says")


def _count(table: Table, left_out: BoolArray, what: str) -> None:
    if left_out.any():
        rows, first = counted(int(left_out.sum()), "row"), table.line(int(left_out.argmax()))
        print(f"brim: {table.file}: {rows} {what} left out, the first is row {first}", file=sys.stderr)


def _table(history: Path) -> Table:
    """The rows of a history with their numbers: lines of a CSV file, else records.

    Raises:
        ConfigError: the file cannot be read, or is of another kind.
        TraceError: the rows of a CSV file cannot be split.
    """
    import polars as pl

    from brim.traces.report import ReadReport
    from brim.traces.source import open_source
    from brim.traces.table import LINE, Table, csv_table

    reader = _READERS.get(history.suffix.lower())
    if reader is None:
        raise ConfigError(f"{history}: expected a name that ends in {', '.join(_READERS)}")
    try:
        content = history.read_bytes()  # of a path, Polars would take brackets and stars for a pattern
    except OSError as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or one_line(error)
        raise ConfigError(f"cannot read {history}: {why}") from None
    report = ReadReport(file=str(history), format="losses")
    if not content:
        return Table(file=str(history), frame=pl.DataFrame(), report=report)
    if reader == "read_csv":
        table = csv_table(open_source(history), report)
        if report.unusable:
            raise report.first_unusable(1)[0]
        return table
    options: dict[str, Any] = {"infer_schema_length": None} if reader == "read_ndjson" else {}
    if reader == "read_ndjson":
        content = _NOT_FINITE_JSON.sub(b"null", content)
    try:
        found: pl.DataFrame = getattr(pl, reader)(io.BytesIO(content), **options)
    except pl.exceptions.PolarsError as error:
        raise ConfigError(f"{history}: found no table ({one_line(error)}), {_EXPECTED}") from None
    numbered = found.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(LINE))
    return Table(file=str(history), frame=numbered, report=report)


def _print(found: Prefixes, trained: TrainedClassifier, data: str) -> None:
    from rich import box
    from rich.table import Table

    screen = console()
    screen.print(data, markup=False, soft_wrap=True)
    for reason, count in found.cannot_say.items():
        print(f"{count} prefixes of which nothing can be said: {reason}")
    table = Table(title="Families left out, each in turn", title_justify="left", box=box.SIMPLE)
    for heading in ("classifier", "AUC", "95 %", "mean of families", "95 %", "balanced", "F1 of the rarer"):
        table.add_column(heading, justify="left" if heading == "classifier" else "right")
    for one in (*trained.scores, trained.single._replace(name=f"feature {trained.single.name}")):
        table.add_row(*_cells(one))
    screen.print(table)
    print(f"written: the logistic regression, of {', '.join(trained.classifier.names)}")


def _cells(one: Scores) -> tuple[str, ...]:
    cells = [one.name]
    for value, low, high in (one.auc, one.family_auc):
        cells += [f"{value:.3f}", f"{low:.2f}-{high:.2f}"]
    judges = one.name.startswith("feature")  # it has no probability, so no cut
    return (*cells, "-" if judges else f"{one.balanced:.3f}", "-" if judges else f"{one.minority_f1:.3f}")


def _payload(out: Path, found: Prefixes, trained: TrainedClassifier) -> dict[str, Any]:
    names = ("auc", "family_auc", "balanced", "minority_f1")
    return {
        "schema": 1, "file": str(out), "prefixes": len(found.is_predictable),
        "predictable": round(float(found.is_predictable.mean()), 4),
        "cannot_say": {str(reason): count for reason, count in found.cannot_say.items()},
        "scores": [{"name": one.name, **{name: _rounded(getattr(one, name)) for name in names}}
                   for one in (*trained.scores, trained.single)],
        "features": [{**row._asdict(), "used": row.name in trained.classifier.names} for row in trained.strengths],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_rounded(one) for one in value]
    return round(value, 4) if math.isfinite(value) else None
