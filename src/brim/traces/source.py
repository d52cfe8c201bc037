"""Load the bytes of a trace file, decompress them and check that they are text; the readers interpret them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from brim.errors import TraceError

UNPACK: Final = {
    b"\x1f\x8b": ("gzip", gzip.decompress), b"BZh": ("bzip2", bz2.decompress), b"\xfd7zXZ\0": ("xz", lzma.decompress),
}  # fmt: skip
"""First bytes -> name of the compression, and its inverse."""
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
ZIP_MAGIC: Final = b"PK\x03\x04"
TAR_MAGIC: Final = b"ustar"
_TAR_AT: Final = 257
PARQUET_MAGIC: Final = b"PAR1"
STDIN: Final = "-"
"""The path that means standard input."""
COMMENT: Final = b";"
"""Begins a comment in the Standard Workload Format, and a row in no format."""
HEAD_BYTES: Final = 1 << 16
"""Enough to see the header and some rows of every format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, unpacked; text has neither byte order mark nor carriage returns.

    Attributes:
        file: Path as the user gave it.
        data: The whole content.
        unusable: Line -> what is wrong with it, for lines that are not UTF-8 text; they are blank in ``data``.
    """

    file: str
    data: bytes
    unusable: Mapping[int, TraceError] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """File name without its folder."""
        return Path(self.file).name

    @property
    def is_parquet(self) -> bool:
        """Whether the content says that it is Parquet."""
        return self.data.startswith(PARQUET_MAGIC)

    @property
    def head(self) -> list[str]:
        """First lines, the last one possibly cut; none for Parquet."""
        return [] if self.is_parquet else self.data[:HEAD_BYTES].decode("utf-8", errors="replace").split("\n")

    @property
    def first_line(self) -> str:
        """First line that is not blank."""
        return next((line for line in self.head if line.strip()), "")


def open_source(path: str | Path) -> Source:
    """Read a file, or standard input for ``-``, and decompress it.

    Raises:
        TraceError: the file is missing, a folder, unreadable, empty, broken, binary, or its header is not UTF-8.
    """
    file = str(path)
    try:
        if file == STDIN:
            file = "standard input"
            if sys.stdin is None:  # the caller has closed it
                raise TraceError(file, found="a closed stream", expected="a trace")
            data = sys.stdin.buffer.read()
        else:
            data = Path(path).read_bytes()
    except FileNotFoundError:
        raise TraceError(file, found="no such file") from None
    except IsADirectoryError:
        raise TraceError(file, found="a folder", expected="a trace file, or a folder with the tables of PAI") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(file, found=f"cannot be read: {reason[:1].lower()}{reason[1:]}") from None
    data = _unpacked(file, data)
    if data.startswith(PARQUET_MAGIC):
        return Source(file=file, data=data)
    text = _text(file, data)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return _without_odd_lines(file, text)
    return Source(file=file, data=text)


def check_text(source: Source, format: str) -> Source:
    """Return the source; readers of text take what is checked here.

    Raises:
        TraceError: it is Parquet.
    """
    if source.is_parquet:
        raise TraceError(source.file, found="a Parquet file", expected=f"text in the format {format}")
    return source


def _unpacked(file: str, data: bytes) -> bytes:
    if data.startswith(ZSTD_MAGIC):
        raise TraceError(file, found="a file compressed by zstd", expected="text, gzip, bzip2 or xz; unzstd unpacks it")
    if data.startswith(ZIP_MAGIC):
        raise TraceError(file, found="a zip archive", expected="text, gzip, bzip2 or xz; unzip unpacks it")
    for magic, (name, unpack) in UNPACK.items():
        if data.startswith(magic):
            try:
                return unpack(data)
            except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
                reason = "cut short" if isinstance(error, EOFError) else str(error)
                raise TraceError(file, found=f"a broken {name} file ({reason})", expected="an intact one") from None
    return data


def _text(file: str, data: bytes) -> bytes:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TraceError(file, found="UTF-16 text", expected="UTF-8 text")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data[_TAR_AT : _TAR_AT + len(TAR_MAGIC)] == TAR_MAGIC:
        raise TraceError(file, found="a tar archive", expected="one file of it; tar -xf unpacks it")
    if b"\0" in data:
        row = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise TraceError(file, row=row, found="a zero byte (binary data)", expected="text or Parquet")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not data or data.isspace():
        raise TraceError(file, found="the file is empty")
    return data


def _without_odd_lines(file: str, data: bytes) -> Source:
    """Blank the lines that are not UTF-8 text; refuse the file if such a line is its header or it is JSON.

    Comments, which begin with ``;``, need no decoding: odd bytes in them are replaced. The header of brim's own CSV
    comes after a line that begins with ``#``, perhaps in quotes.
    """
    lines = data.split(b"\n")
    above = (b"#", b'"#')
    first = next((index for index, line in enumerate(lines) if line.strip() and not line.startswith(above)), len(lines))
    is_json, unusable = data.lstrip().startswith((b"[", b"{")), {}
    for index, line in enumerate(lines):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            if line.lstrip().startswith(COMMENT):
                lines[index] = line.decode("utf-8", errors="replace").encode()
                continue
            found, expected = f"byte 0x{line[error.start]:02x}", "UTF-8 text; iconv -f latin1 -t utf-8 may convert it"
            unusable[index + 1] = TraceError(file, row=index + 1, found=found, expected=expected)
            if index <= first or is_json:
                raise unusable[index + 1] from None
            lines[index] = b""
    return Source(file=file, data=b"\n".join(lines), unusable=unusable)
