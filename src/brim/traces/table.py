"""Convert columns of text to typed columns; an error names the file and row of the value that does not fit.

Every reader goes through ``Table``: it splits lines, checks each value against its range, and counts what is dropped.
The readers decide which values are errors, repairs or drops.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.trace import NONE
from brim.errors import TraceError, shown
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.units import MS_PER_DAY, MS_PER_S, counted

LINE: Final = "\0line"
MAX_TIME_MS: Final = 4_102_444_800_000
"""2100-01-01: a submission beyond it, or that long after an unknown time 0, is corruption."""
MAX_RUN_MS: Final = 3_650 * MS_PER_DAY
"""Ten years: a run time beyond it is corruption."""
MAX_GPUS: Final = 1_000_000
MAX_GPU_MS: Final = (1 << 63) // 1_000
"""GPUs times run time of one job must leave room for thousandths of a GPU in 64 bits."""
MAX_AMOUNT: Final = 1 << 40
"""Milli-cores or MiB of one job."""
MISSING: Final = ("", "None", "Unknown", "NULL", "null")
"""Spellings of "not recorded" in published traces. NaN is not one: in a column of numbers it is corruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one file, each with the line it came from.

    Attributes:
        file: Path as the user gave it.
        frame: Columns as read, and the line number of each row in column ``LINE``.
        report: Where drops and repairs are counted.
    """

    file: str
    frame: pl.DataFrame
    report: ReadReport

    def __len__(self) -> int:
        return self.frame.height

    def __contains__(self, column: str) -> bool:
        return column in self.frame.columns

    def line(self, index: int) -> int:
        """Line of the file that a row came from."""
        return int(self.frame[LINE][index])

    def unusable(
        self, bad: BoolArray, column: str, expected: str, found: Callable[[int], str] | None = None
    ) -> TraceError:
        """Record the masked rows as unusable, and return the error of the first, for the caller to raise.

        Args:
            bad: Mask of the rows; at least one.
            column: Column of the bad values.
            expected: Description of a valid value.
            found: Describes the value of one row; None quotes it.
        """
        describe = found or (lambda index: shown(self.frame[column][index]))
        errors = [
            TraceError(self.file, row=self.line(index), column=column, found=describe(index), expected=expected)
            for index in np.flatnonzero(bad).tolist()
        ]
        for error in errors:
            self.report.unusable.setdefault(error.row or 0, error)
        return errors[0]

    def require(self, *columns: str) -> None:
        """Check that these columns exist.

        Raises:
            TraceError: a column is missing; the message names the nearest one that exists.
        """
        present = [column for column in self.frame.columns if column != LINE]
        for column in columns:
            if column not in present:
                near = difflib.get_close_matches(column, present, n=1)
                found = f"no such column (nearest: {near[0]!r})" if near else f"columns {', '.join(present[:12])}"
                raise TraceError(self.file, row=1, column=column, found=found, expected=f"a column {column!r}")

    def keep(self, mask: BoolArray) -> Table:
        """Keep the masked rows, without counting the others."""
        return self if mask.all() else replace(self, frame=self.frame.filter(pl.Series(mask)))

    def drop(self, mask: BoolArray, reason: str) -> Table:
        """Leave out the masked rows, and count them under the reason."""
        self.report.drop(reason, int(mask.sum()))
        return self.keep(~mask)

    def text(self, column: str) -> pl.Series:
        """Return stripped text, null where not recorded."""
        series = self.frame[column]
        if series.dtype != pl.String:
            series = self._castable(column).cast(pl.String)
        stripped = series.str.strip_chars()
        if stripped.str.len_bytes().sum() == series.str.len_bytes().sum() and not stripped.is_in(MISSING).any():
            return series
        return stripped.set(stripped.is_in(MISSING).fill_null(False), None)

    def blank(self, column: str) -> BoolArray:
        """Mark rows in which the column is not recorded."""
        return self.text(column).is_null().to_numpy()

    def number(
        self,
        column: str,
        expected: str,
        *,
        low: float = 0,
        high: float = MAX_AMOUNT,
        unit: float = 1,
        whole: bool = False,
        missing: int | None = None,
    ) -> IntArray:
        """Parse numbers, times ``unit``, rounded to integers.

        Args:
            column: Name of the column.
            expected: Description of a valid value, for the message.
            low: Least value before ``unit`` is applied.
            high: Greatest value before ``unit`` is applied.
            unit: Factor from the file's unit to brim's.
            whole: Whether a fraction is an error.
            missing: Result where nothing is recorded; with None, a missing value is an error.

        Raises:
            TraceError: a value is not a number, out of range, NaN, or missing where it must not be.
        """
        values = self._floats(column)
        with np.errstate(invalid="ignore"):
            good = (values >= low) & (values <= high)
        if whole:
            good &= values == np.rint(np.where(good, values, 0.5))
        if missing is not None and not good.all():
            blank = self.blank(column)
            values = np.where(blank, missing / unit, values)
            good |= blank
        if not good.all():
            raise self.unusable(~good, column, expected)
        return np.rint(values * unit).astype(np.int64)

    def seconds_ms(self, column: str, *, high_ms: int = MAX_TIME_MS, missing: int | None = None) -> IntArray:
        """Parse seconds, as milliseconds."""
        what = "seconds since the start, at most 130 years" if high_ms == MAX_TIME_MS else "seconds, at most ten years"
        return self.number(column, what, high=high_ms / MS_PER_S, unit=MS_PER_S, missing=missing)

    def gpus(self, column: str, *, low: int = 1) -> IntArray:
        """Parse a whole number of GPUs."""
        return self.number(column, f"a whole number of GPUs, {low} to {MAX_GPUS}", low=low, high=MAX_GPUS, whole=True)

    def clock_ms(
        self, column: str, *, missing: bool = False,
        expected: str = "a time like 2017-10-07 01:11:39 between 1970 and 2100",
    ) -> IntArray:
        """Parse wall-clock times as Unix milliseconds (UTC where no offset is written), NONE where not recorded.

        Raises:
            TraceError: a value is not a time, lies outside 1970 to 2100, or is missing where it must not be.
        """
        text = self.text(column)
        parsed = _parse_clock(text)
        values = parsed.fill_null(NONE).to_numpy().astype(np.int64)
        blank = text.is_null().to_numpy()
        bad = ((values < 0) | (values >= MAX_TIME_MS)) & ~blank
        if not missing:
            bad |= blank
        if bad.any():
            raise self.unusable(bad, column, expected)
        return values

    def ids(self, column: str) -> list[str]:
        """Return the ids of the rows.

        Raises:
            TraceError: an id is missing, or two rows have the same id.
        """
        return self.distinct(column, self.text(column))

    def distinct(self, column: str, text: pl.Series) -> list[str]:
        """Return the ids in ``text``, taken from the column.

        Raises:
            TraceError: an id is missing, or two rows have the same id.
        """
        if text.null_count():
            raise self.unusable(text.is_null().to_numpy(), column, "an id")
        again = ~text.is_first_distinct().to_numpy()
        if again.any():
            first = dict(zip(reversed(text.to_list()), reversed(self.frame[LINE].to_list()), strict=True))
            raise self.unusable(
                again, column, "each id once", lambda row: f"{shown(text[row])} again (first in row {first[text[row]]})"
            )
        return text.to_list()

    def names(self, column: str) -> tuple[IntArray, tuple[str, ...]]:
        """Encode the column by its sorted names; NONE where not recorded."""
        return coded(self.text(column))

    def statuses(self, column: str, known: Mapping[str, int], expected: str) -> IntArray:
        """Translate states.

        Raises:
            TraceError: a state is not known.
        """
        text = self.text(column).fill_null("")
        codes = text.replace_strict(list(known), list(known.values()), default=None, return_dtype=pl.Int64)
        if codes.null_count():
            raise self.unusable(codes.is_null().to_numpy(), column, expected)
        return codes.to_numpy()

    def _castable(self, column: str) -> pl.Series:
        series = self.frame[column]
        if series.dtype == pl.Null:  # a Parquet column in which nothing is recorded
            return series.cast(pl.String)
        if series.dtype != pl.String and not series.dtype.is_numeric():
            raise TraceError(
                self.file, column=column, found=f"values of type {series.dtype}", expected="numbers or text"
            )
        return series

    def _floats(self, column: str) -> FloatArray:
        series = self._castable(column)
        if series.dtype == pl.String:
            series = series.str.strip_chars()
        return series.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()


def coded(text: pl.Series) -> tuple[IntArray, tuple[str, ...]]:
    """Encode text by its sorted distinct values; NONE for null."""
    names = text.drop_nulls().unique().sort().to_list()
    if not names:
        return np.full(len(text), NONE, dtype=np.int64), ()
    codes = text.replace_strict(names, list(range(len(names))), default=NONE, return_dtype=pl.Int64)
    return codes.to_numpy(), tuple(names)


def parsed_once(text: pl.Series, column: pl.Expr) -> pl.DataFrame:
    """Evaluate expressions over column ``text`` once per distinct value; fast for long columns of few values."""
    distinct = pl.DataFrame({"text": text.unique()})
    table = distinct.select("text", column.struct.unnest())
    return pl.DataFrame({"text": text}).join(
        table, on="text", how="left", nulls_equal=True, maintain_order="left"
    ).drop("text")


OTHER_SEPARATORS: Final = (";", "\t", "|")
"""What other programs write between the columns of a CSV file."""


def header_share(line: str, columns: Sequence[str]) -> float:
    """Return the share of a format's columns that a header line names, whatever separates them.

    ``csv_table`` then says that another separator than commas was found.
    """
    present = {field.strip().strip('"') for field in re.split("[" + "".join((",", *OTHER_SEPARATORS)) + "]", line)}
    return len(present.intersection(columns)) / len(columns)


def csv_table(
    source: Source,
    report: ReadReport,
    *,
    separator: str = ",",
    quoted: bool = True,
    columns: Sequence[str] | None = None,
    wanted: Iterable[str] | None = None,
    skip_lines: int = 0,
    missing: Sequence[str] = MISSING,
    together: str | None = None,
    too_many: str = "",
) -> Table:
    """Split a file into columns of text; skip blank lines, and leave out rows already known to be unusable.

    A row that has more or fewer fields than the header is recorded as unusable, and left out.

    Args:
        source: The file.
        report: Its rows are counted here.
        separator: Between fields.
        quoted: Whether fields may stand in double quotes.
        columns: Names, where the file has no header line.
        wanted: Read only those of these that the file has; None reads all.
        skip_lines: Lines before the header.
        missing: Spellings of "not recorded".
        together: Id column; rows that share an id with an unusable row are left out with it.
        too_many: What may be wrong with a row of too many fields, for the message.

    Raises:
        TraceError: a name appears twice in the header, its names are separated otherwise, or there are no rows.
    """
    data, begin, first = source.data, 0, 1
    while first <= skip_lines or data.startswith(b"\n", begin):
        begin, first = _next_line(data, begin), first + 1
    if columns is None:
        after = _next_line(data, begin)
        names = _header(source.file, data[begin:after].decode("utf-8").rstrip("\n"), first, separator)
        begin, first = after, first + 1
    else:
        names = list(columns)
    body = data[begin:]
    quoted = quoted and b'"' in body
    kept = names if wanted is None else [name for name in names if name in set(wanted)]
    if not kept:
        found = f"a header of {shown(separator.join(names))}"
        expected = f"names of the format's columns, separated by {separator!r}"
        raise TraceError(source.file, row=first - 1, found=found, expected=expected)
    lines = _Lines(
        file=source.file, body=body, names=names, first=first, separator=separator, quoted=quoted, missing=missing,
        too_many=too_many,
    )  # fmt: skip
    frame = _split(lines, kept, report)
    empty = frame.select(pl.all_horizontal(pl.exclude(LINE).is_null())).to_series().to_numpy()
    table = Table(file=source.file, frame=frame, report=report).keep(~empty)
    return without_unusable(table, together)


def without_unusable(table: Table, together: str | None = None) -> Table:
    """Count the rows of a file, and leave out those already known to be unusable."""
    table.report.rows += len(table)
    bad = table.frame[LINE].is_in(list(table.report.unusable))
    if not bad.any():
        return table
    usable = table.keep(~bad.to_numpy())
    if together is None or together not in table:
        return usable
    tied = usable.frame[together].is_in(table.frame.filter(bad)[together].drop_nulls().to_list()).fill_null(False)
    return usable.drop(tied.to_numpy(), "another record of a job with a row that cannot be used")


def _next_line(data: bytes, begin: int) -> int:
    end = data.find(b"\n", begin)
    return len(data) if end < 0 else end + 1


def _header(file: str, line: str, row: int, separator: str) -> list[str]:
    try:
        names = [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error as error:
        found = f"a header that cannot be split ({error})"
        raise TraceError(file, row=row, found=found, expected="column names") from None
    other = max(OTHER_SEPARATORS, key=line.count)
    if separator == "," and len(names) == 1 and other in line:
        raise TraceError(file, row=row, found=f"columns separated by {other!r}", expected="commas")
    for name in names:
        if name and names.count(name) > 1:
            raise TraceError(file, row=row, column=name, found="the name twice", expected="each column once")
    return [name or f"\0unnamed{index}" for index, name in enumerate(names)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Lines below the header; ``first`` is the number of the first."""

    file: str
    body: bytes
    names: list[str]
    first: int
    separator: str
    quoted: bool
    missing: Sequence[str]
    too_many: str


def _split(lines: _Lines, kept: list[str], report: ReadReport) -> pl.DataFrame:
    """Return the wanted columns and the line of each row; rows that cannot be split are recorded and left out."""
    if not lines.body or lines.body.isspace():
        report.check_unusable(0)  # all rows may be unusable
        raise TraceError(lines.file, found="no rows", expected="at least one job")
    frame, reason = None, ""
    try:
        frame = _parsed(lines, lines.body, kept)
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0][:80]
    if frame is not None:
        blank_lines = int(frame.select(pl.all_horizontal(pl.all().is_null()).sum()).item())
        separators = (len(lines.names) - 1) * (frame.height - blank_lines)
        if not lines.quoted and lines.body.count(lines.separator.encode()) == separators:
            return frame.with_columns(_line_numbers(range(lines.first, lines.first + frame.height)))
    sound = _sound_rows(lines, report)
    if not sound:
        report.check_unusable(0)
    if frame is None or len(sound) < frame.height:
        try:
            frame = _parsed(lines, b"\n".join(row for _, row in sound) + b"\n", kept)
        except pl.exceptions.PolarsError as error:
            reason = str(error).partition("\n")[0][:80]
    if frame is None or len(sound) != frame.height:
        found = f"text that cannot be split ({reason})" if reason else "text that cannot be split"
        raise TraceError(lines.file, found=found, expected="one job per line")
    return frame.with_columns(_line_numbers([line for line, _ in sound]))


def _parsed(lines: _Lines, body: bytes, kept: list[str]) -> pl.DataFrame:
    return pl.read_csv(
        body,
        has_header=False,
        separator=lines.separator,
        quote_char='"' if lines.quoted else None,
        schema=dict.fromkeys(lines.names, pl.String),
        columns=[lines.names.index(name) for name in kept],
        null_values=[spelling for spelling in lines.missing if spelling] or None,
    )


def _line_numbers(lines: Sequence[int]) -> pl.Series:
    return pl.Series(LINE, lines, dtype=pl.Int64)


def _sound_rows(lines: _Lines, report: ReadReport) -> list[tuple[int, bytes]]:
    """Return line and text of the rows with as many fields as the header; record the others as unusable."""
    texts = lines.body.split(b"\n")
    rows = csv.reader(
        (text.decode("utf-8") + "\n" for text in texts),
        delimiter=lines.separator,
        quoting=csv.QUOTE_MINIMAL if lines.quoted else csv.QUOTE_NONE,
    )
    expected, sound, begin = counted(len(lines.names), "field"), [], 0
    try:
        for fields in rows:
            end = min(rows.line_num, len(texts))
            if fields and len(fields) != len(lines.names):
                hint = lines.too_many if len(fields) > len(lines.names) else ""
                _book(lines, range(begin, end), counted(len(fields), "field"), expected + hint, report)
            elif fields and all(field == "" or field in lines.missing for field in fields):
                _book(lines, range(begin, end), "a row without values", "a job", report)
            elif fields:
                sound.append((lines.first + begin, b"\n".join(texts[begin:end])))
            begin = end
    except csv.Error as error:
        row, found = lines.first + rows.line_num, f"a broken field ({error})"
        raise TraceError(lines.file, row=row, found=found, expected="one job per line") from None
    return sound


def _book(lines: _Lines, rows: range, found: str, expected: str, report: ReadReport) -> None:
    """Record the lines of one row as unusable; an unclosed quote joins many lines into one row."""
    for line in range(lines.first + rows.start, lines.first + rows.stop):
        if line not in report.unusable:
            report.unusable[line] = TraceError(lines.file, row=line, found=found, expected=expected)
    report.rows += len(rows)


def _parse_clock(text: pl.Series) -> pl.Series:
    """Parse times as Unix milliseconds; null where that fails."""
    sample = next((value for value in text.head(1_000) if value), "")
    separator = "T" if "T" in sample else " "
    offset = "%:z" if sample[-6:-5] in ("+", "-") and ":" in sample[-5:] else ""
    shape = f"%Y-%m-%d{separator}%H:%M:%S"
    if sample.endswith("Z"):
        text, offset = text.str.replace("Z$", "+00:00"), "%:z"
    parsed = _strptime(text, shape + offset)
    if parsed.null_count() > text.null_count():
        parsed = parsed.fill_null(_strptime(text, f"{shape}%.f{offset}"))
    return parsed


def _strptime(text: pl.Series, shape: str) -> pl.Series:
    try:
        times = text.str.to_datetime(shape, time_unit="ms", strict=False, time_zone="UTC" if "%:z" in shape else None)
    except pl.exceptions.PolarsError:
        return pl.Series([None] * len(text), dtype=pl.Int64)
    return times.cast(pl.Int64)
