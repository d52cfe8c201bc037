"""``brim predictability fit``: train the classifier of predictable jobs on a cluster's own losses."""

from __future__ import annotations

import io
import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brim.cli.options import JsonOption, OutputOption, output_of, waiting
from brim.cli.outputs import check_outputs, console
from brim.cli.unconverted import UnconvertedGroup
from brim.errors import ConfigError, NotFoundError, one_line

if TYPE_CHECKING:
    import polars as pl

    from brim.beliefs.predictability_judging import Scores
    from brim.beliefs.predictability_training import Prefixes, TrainedClassifier, TrainingRun

_COLUMNS: Final = ("job", "family", "samples", "loss")
_EXPECTED: Final = "expected job, family, samples and loss, and planned where it is known"
_READERS: Final = {".parquet": "read_parquet", ".csv": "read_csv", ".jsonl": "read_ndjson", ".ndjson": "read_ndjson"}

_NOT_FINITE_JSON: Final = re.compile(rb"(?<=:)\s*(?:NaN|-?Infinity)(?=\s*[,}])")
"""What Python's ``json`` writes for a loss that is not finite, though JSON has no word for it."""
_NOT_FINITE: Final = ("nan", "inf", "-inf", "infinity", "-infinity")
"""What Python's ``csv`` writes for one, in lower case."""

app = typer.Typer(
    name="predictability", cls=UnconvertedGroup, no_args_is_help=True,
    help="Whether losses say where jobs end: train on your own history.",
)


@app.callback()
def _verb() -> None:
    """Whether losses say where jobs end: train on your own history."""


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
        except ConfigError as error:
            raise ConfigError(f"{history}: {error}") from None
        data = (f"{history.name}: {len(runs)} runs of {len({run.family for run in runs})} families, "
                f"{len(found.is_predictable)} prefixes, of which {found.is_predictable.mean():.0%} are predictable")
        trained = train(found, data)
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

    Raises:
        NotFoundError: the file cannot be read.
        ConfigError: it is of another kind, lacks a column, or has something else than numbers in one.
    """
    import numpy as np
    import polars as pl

    from brim.beliefs.predictability_training import TrainingRun
    from brim.live.requests import LOSS_MAX

    rows = _table(history)
    if rows.is_empty():
        raise ConfigError(f"{history}: found no rows, {_EXPECTED}")
    has_plan = "planned" in rows.columns
    for name in _COLUMNS:
        if name not in rows.columns:
            raise ConfigError(f"{history}: found no column {name!r}, {_EXPECTED}")
    for name in (*_COLUMNS, "planned"):
        if f"{name}_duplicated_0" in rows.columns:  # the name that Polars gives to the second
            raise ConfigError(f"{history}: found two columns {name!r}, {_EXPECTED}")
    for name in ("job", "family"):
        if rows[name].dtype.is_nested():
            raise ConfigError(f"{history}: found a list or record in column {name!r}, expected a number or a name")
    for name in ("samples", "loss", "planned") if has_plan else ("samples", "loss"):
        if rows[name].dtype == pl.String:
            rows = rows.with_columns(_without_not_finite(rows[name]))
        if rows[name].drop_nulls().len() and not rows[name].dtype.is_numeric():
            raise ConfigError(f"{history}: found something else than numbers in column {name!r}, {_EXPECTED}")
    if has_plan:
        not_positive = rows["planned"].cast(pl.Float64).fill_null(np.nan).to_numpy() <= 0
        if not_positive.any():
            found = rows["planned"][int(not_positive.argmax())]
            raise ConfigError(f"{history}: found {found} in column 'planned', expected more than 0 samples")
    runs = []
    for (_,), of in rows.drop_nulls(["job", "family"]).group_by("job", maintain_order=True):
        samples, loss = (of[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in ("samples", "loss"))
        loss = np.where(np.abs(loss) <= LOSS_MAX, loss, np.nan)  # as a controller does: squares of others overflow
        planned = of["planned"].cast(pl.Float64).drop_nulls().to_numpy() if has_plan else np.empty(0)
        runs.append(TrainingRun(str(of["family"][0]), samples, loss, float(planned[0]) if len(planned) else np.nan))
    return runs


def _without_not_finite(column: pl.Series) -> pl.Series:
    """The numbers of a column in which some are said not to be finite; the same column if it has other words, too."""
    import polars as pl

    numbers = column.set(column.str.strip_chars().str.to_lowercase().is_in(_NOT_FINITE).fill_null(value=False), None)
    found = numbers.cast(pl.Float64, strict=False)
    return found if found.null_count() == numbers.null_count() else column


def _table(history: Path) -> pl.DataFrame:
    import polars as pl

    reader = _READERS.get(history.suffix.lower())
    if reader is None:
        raise ConfigError(f"{history}: expected a name that ends in {', '.join(_READERS)}")
    try:
        content = history.read_bytes()  # of a path, Polars would take brackets and stars for a pattern
    except OSError as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or one_line(error)
        raise NotFoundError(f"cannot read {history}: {why}") from None
    if not content:
        return pl.DataFrame()
    options: dict[str, Any] = {"infer_schema_length": None} if reader != "read_parquet" else {}
    if reader == "read_ndjson":
        content = _NOT_FINITE_JSON.sub(b"null", content)
    try:
        found: pl.DataFrame = getattr(pl, reader)(io.BytesIO(content), **options)
    except pl.exceptions.PolarsError as error:
        raise ConfigError(f"{history}: found no table ({one_line(error)}), {_EXPECTED}") from None
    return found


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
