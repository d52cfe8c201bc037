"""Reads and checks tables of measured application profiles; errors name file, row and column of a bad value.

The layout is Pollux's: ``placements.csv``, ``scalability.csv`` and one ``validation-B.csv`` per validated batch size.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import numpy as np

from brim.core.arrays import FloatArray, IntArray, frozen
from brim.errors import ConfigError

Placement: TypeAlias = tuple[int, ...]
Times: TypeAlias = tuple[float, float]
"""Seconds of one step, and of its exchange of gradients, which is part of the step."""
_Key = TypeVar("_Key")

PLACEMENTS: Final = "placements.csv"
SCALABILITY: Final = "scalability.csv"
VALIDATION: Final = "validation-"
STEP_S_MIN, STEP_S_MAX = 1e-6, 1e6
"""Steps faster than a microsecond or slower than eleven days are rejected as corrupt. Our choice."""
WHOLE_MAX: Final = 1 << 31
"""Numbers of samples, GPUs or nodes above this are rejected as corrupt. Our choice."""
AMOUNT_MAX: Final = 1e30
"""Progress and gradient statistics above this are rejected as corrupt. Our choice; Pollux's largest is 7.6e16."""
NOISE_MIN: Final = 1e-30
"""Least sum of gradient variance and square norm: if both are 0, the efficiency of a batch is undefined. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """Training at each validated batch size; shape suffixes: B batch sizes (ascending), E epochs.

    Attributes:
        batch_B: Validated global batch sizes.
        progress_E: Progress at the end of each epoch, the smallest over all batch sizes, in initial-batch iterations.
        grad_var_BE: Variance of the gradient.
        grad_sqr_BE: Squared norm of the gradient.
    """

    batch_B: IntArray
    progress_E: FloatArray
    grad_var_BE: FloatArray
    grad_sqr_BE: FloatArray


@lru_cache(maxsize=4_096)
def rotated(placement: Placement) -> Placement:
    """Rotate a placement to its smallest form: (2, 1, 1) and (1, 2, 1) become (1, 1, 2)."""
    return min(placement[start:] + placement[:start] for start in range(len(placement)))


def read_placements(file: Path) -> dict[Placement, dict[int, Times]]:
    """Read the times measured on each placement, by local batch; repeated measurements are averaged.

    Raises:
        ConfigError: the table cannot be read, or a placement has only one local batch.
    """
    rows = _rows(file, ("placement", "local_bsz", "step_time", "sync_time"))
    found: dict[Placement, dict[int, list[Times]]] = {}
    first_row: dict[Placement, int] = {}
    for row in rows:
        placement = rotated(row.placement("placement"))
        first_row.setdefault(placement, row.number)
        local_batch = row.whole("local_bsz", "samples per GPU, 1 or more")
        found.setdefault(placement, {}).setdefault(local_batch, []).append(row.times())
    for placement, curve in found.items():
        if len(curve) == 1:
            raise _error(file, first_row[placement], "local_bsz", f"{next(iter(curve))} alone for placement "
                         f"{shown(placement)}", "at least two local batches, to interpolate between")  # fmt: skip
    return {placement: _means(curve) for placement, curve in found.items()}


def grouped(curves: Mapping[Placement, Mapping[int, Times]]) -> dict[tuple[int, int, int], Times]:
    """Average over placements with the same number of nodes, GPUs and samples per GPU, in ascending order of these."""
    found: dict[tuple[int, int, int], list[Times]] = {}
    for placement, curve in curves.items():
        for local_batch, times in curve.items():
            found.setdefault((len(placement), sum(placement), local_batch), []).append(times)
    return _means(dict(sorted(found.items())))


def read_scalability(file: Path) -> dict[tuple[int, int, int], Times]:
    """Read the times by (nodes, GPUs, local batch), in the order of the file; repeated measurements are averaged.

    Raises:
        ConfigError: the table cannot be read.
    """
    found: dict[tuple[int, int, int], list[Times]] = {}
    for row in _rows(file, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")):
        nodes = row.whole("num_nodes", "nodes, 1 or more")
        gpus = row.whole("num_replicas", f"GPUs, at least one for each of {nodes} nodes", low=nodes)
        local_batch = row.whole("local_bsz", "samples per GPU, 1 or more")
        found.setdefault((nodes, gpus, local_batch), []).append(row.times())
    return _means(found)


def read_validation(folder: Path, epochs: int | None) -> Validation:
    """Read progress and gradient statistics at the end of each epoch, for every validated batch size.

    Args:
        folder: Folder of one application.
        epochs: Epochs that a job trains; None: as many as every file has.

    Raises:
        ConfigError: there are fewer than two batch sizes or too few epochs, or a value is impossible.
    """
    files = _by_batch(folder)
    tables = {batch: _epochs(files[batch]) for batch in sorted(files)}
    if epochs is None:
        epochs = min(len(table) for table in tables.values())
    for batch, table in tables.items():
        if len(table) < epochs:
            raise _error(files[batch], None, None, f"{len(table)} epochs", f"at least {epochs}")
    stacked = np.stack([table[:epochs] for table in tables.values()])
    return Validation(
        batch_B=frozen(np.array(list(tables), dtype=np.int64)),
        progress_E=frozen(stacked[:, :, 0].min(axis=0)),
        grad_sqr_BE=frozen(stacked[:, :, 1].copy()),
        grad_var_BE=frozen(stacked[:, :, 2].copy()),
    )


def shown(placement: Placement) -> str:
    """Format a placement for messages: ``1+1+2``."""
    return "+".join(map(str, placement))


def _by_batch(folder: Path) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for file in sorted(folder.glob(f"{VALIDATION}*.csv")):
        name = file.stem.removeprefix(VALIDATION)
        batch = int(name) if name.isascii() and name.isdigit() and len(name) <= len(str(WHOLE_MAX)) else 0
        if not 1 <= batch <= WHOLE_MAX:
            raise ConfigError(f"{file}: found {name!r}, expected a batch size, as in {VALIDATION}128.csv")
        if batch in found:
            raise ConfigError(f"{file}: found batch size {batch} again ({found[batch].name}), expected it once")
        found[batch] = file
    if len(found) < 2:
        names = ", ".join(file.name for file in found.values()) or "none"
        raise ConfigError(f"{folder}: found {names}, expected {VALIDATION}B.csv for at least two batch sizes B")
    return found


def _epochs(file: Path) -> FloatArray:
    """Return progress, squared norm and variance of the gradient of every row, shape (E, 3)."""
    values: list[tuple[float, float, float]] = []
    for row in _rows(file, ("progress", "grad_sqr", "grad_var")):
        last = values[-1][0] if values else 0.0
        progress = row.amount("progress", f"more than {last:g}, that of the row before" if values else "more than 0")
        if progress <= last:
            raise row.error("progress", f"more than {last:g}, that of the row before" if values else "more than 0")
        what = "a gradient statistic, 0 or more"
        square, variance = row.amount("grad_sqr", what), row.amount("grad_var", what)
        if square + variance < NOISE_MIN:
            raise row.error("grad_var", f"{NOISE_MIN:g} or more where grad_sqr is {square:g}")
        values.append((progress, square, variance))
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a table: its cells as text, and its number in the file."""

    file: Path
    number: int
    cells: Mapping[str, str]

    def error(self, column: str, expected: str) -> ConfigError:
        return _error(self.file, self.number, column, repr(self.cells[column])[:80], expected)

    def amount(self, column: str, expected: str, *, low: float = 0.0, high: float = AMOUNT_MAX) -> float:
        try:
            value = float(self.cells[column])
        except ValueError:
            raise self.error(column, expected) from None
        if not (low <= value <= high):  # false for NaN too
            raise self.error(column, expected)
        return value

    def whole(self, column: str, expected: str, *, low: int = 1) -> int:
        value = self.amount(column, expected, low=low, high=WHOLE_MAX)
        if value != math.floor(value):
            raise self.error(column, expected)
        return int(value)

    def placement(self, column: str) -> Placement:
        text = self.cells[column]
        if not (text and all(digit in "123456789" for digit in text)):
            raise self.error(column, "the GPUs of each node as digits from 1 to 9, like 112")
        return tuple(map(int, text))

    def times(self) -> Times:
        step_s = self.amount("step_time", f"seconds, {STEP_S_MIN:g} to {STEP_S_MAX:g}", low=STEP_S_MIN,
                             high=STEP_S_MAX)  # fmt: skip
        return step_s, self.amount("sync_time", f"seconds, 0 to step_time ({step_s:g})", high=step_s)


def _rows(file: Path, columns: tuple[str, ...]) -> list[_Row]:
    """Split a table into rows; blank lines are skipped."""
    reader = csv.reader(_text(file).splitlines())
    rows: list[_Row] = []
    header: list[str] = []
    try:
        for fields in reader:
            if not any(map(str.strip, fields)):
                continue
            if not header:
                header = _header(file, fields, reader.line_num, columns)
            elif len(fields) != len(header):
                raise _error(file, reader.line_num, None, f"{len(fields)} fields", f"{len(header)}")
            else:
                rows.append(_Row(file, reader.line_num, dict(zip(header, map(str.strip, fields), strict=True))))
    except csv.Error as error:
        raise _error(file, reader.line_num, None, f"text that cannot be split ({error})", "a table") from None
    if not rows:
        raise _error(file, None, None, "no rows" if header else "an empty file", f"a table of {', '.join(columns)}")
    return rows


def _header(file: Path, fields: list[str], row: int, columns: tuple[str, ...]) -> list[str]:
    header = [field.strip() for field in fields]
    for column in columns:
        if header.count(column) != 1:
            found = "the name twice" if column in header else f"columns {', '.join(header)[:80]}"
            raise _error(file, row, column, found, f"a column {column!r}")
    return header


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file, expected a table of measurements") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: binary data, expected UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _means(measured: dict[_Key, list[Times]]) -> dict[_Key, Times]:
    return {
        key: (math.fsum(step for step, _ in times) / len(times), math.fsum(sync for _, sync in times) / len(times))
        for key, times in measured.items()
    }


def _error(file: Path, row: int | None, column: str | None, found: str, expected: str) -> ConfigError:
    where = f"{file}" + (f", row {row}" if row is not None else "") + (f", column {column!r}" if column else "")
    return ConfigError(f"{where}: found {found}, expected {expected}")
