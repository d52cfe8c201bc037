"""Keeps logs below a size, without a process between the job and its file.

A rank writes to its log itself, so that nothing is lost whichever of brim's processes is killed. When a log has become
too long, its middle is freed on disk (``FALLOC_FL_PUNCH_HOLE``): the beginning and the newest part stay, and a line at
the start of the gap says how many bytes were dropped. Offsets do not change, so a follower sees each byte once; the
rest of the gap reads as zero bytes, which ``read_log`` leaves out.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOG_BYTES_MAX: Final = 256 << 20
"""Most bytes of a log on disk, about: the first and the last half are kept. Ours: a million long lines."""
_BLOCK: Final = 1 << 16
_KEEP_SIZE_AND_PUNCH_HOLE: Final = 0x01 | 0x02
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def cap_log(path: Path, bytes_max: int = LOG_BYTES_MAX) -> int:
    """Free the middle of a log that takes more space than this; return the number of bytes freed so far, or 0.

    To be called repeatedly while the log grows; it acts when the log has grown by another half.

    Raises:
        OSError: there is no such log, or its file system frees no part of a file: the log stays whole.
    """
    half = max(_BLOCK, bytes_max // 2 // _BLOCK * _BLOCK)
    found = path.stat(follow_symlinks=False)
    start, end = half, (found.st_size - half) // _BLOCK * _BLOCK
    if found.st_blocks * 512 < 3 * half or end <= start:
        return 0
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _libc.fallocate(fd, _KEEP_SIZE_AND_PUNCH_HOLE, start, end - start) != 0:
            problem = ctypes.get_errno()
            raise OSError(problem, os.strerror(problem))
        os.pwrite(fd, f"\n[brim: {end - start} bytes dropped]\n".encode(), start)
    finally:
        os.close(fd)
    return end - start


def read_log(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield what a log contains from an offset on, without the gap that ``cap_log`` has made, and where each part ends.

    Zero bytes that the job has written stay.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        while True:
            try:
                start = os.lseek(file.fileno(), offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # there is no more of it
                    return
                raise
            hole = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            end = hole if hole - start < 2 * _BLOCK else start + _BLOCK
            data = os.pread(file.fileno(), end - start, start)
            offset = start + len(data)
            if offset == hole < os.fstat(file.fileno()).st_size:  # the rest of the block of the line about the gap
                data = data.rstrip(b"\0")
            yield offset, data
