"""Logs stay below a size; what was dropped is said, and offsets do not change."""

import os

import pytest

from brim.agent.log_cap import cap_log, read_log

MIB = 1 << 20


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rank-0.log"
    path.touch()
    try:
        os.posix_fallocate(os.open(path, os.O_RDWR), 0, 1)
        path.write_bytes(b"x" * 3 * MIB)
        cap_log(path, MIB)
    except OSError as error:
        pytest.skip(f"this file system frees no part of a file: {error}")
    path.write_bytes(b"")
    return path


def whole(path, offset=0):
    return b"".join(data for _, data in read_log(path, offset))


def test_a_short_log_is_left_alone(path):
    path.write_bytes(b"line\n" * 200_000)
    assert cap_log(path, MIB) == 0
    assert path.read_bytes() == b"line\n" * 200_000


def test_the_beginning_and_the_end_of_a_long_log_stay_and_the_rest_is_counted(path):
    lines = b"".join(b"%07d\n" % number for number in range(MIB))  # 8 MiB
    path.write_bytes(lines)
    dropped = cap_log(path, MIB)
    text = whole(path)
    note = b"\n[brim: %d bytes dropped]\n" % dropped
    before, after = text.split(note)
    assert min(len(before), len(after)) >= MIB // 2
    assert before + lines[len(before) : len(before) + dropped] + after == lines
    assert path.stat().st_blocks * 512 <= 1.25 * MIB
    assert path.stat().st_size == len(lines)


def test_a_follower_reads_on_where_it_was_and_a_writer_goes_on(path):
    with path.open("ab") as log:
        log.write(b"a" * 8 * MIB)
        log.flush()
        offset = path.stat().st_size
        first = cap_log(path, MIB)
        log.write(b"b" * 8 * MIB + b"end\n")
        log.flush()
        second = cap_log(path, MIB)
        assert whole(path, offset).endswith(b"end\n")
    assert second > first
    assert whole(path).count(b"dropped") == 1
    assert b"[brim: %d bytes dropped]" % second in whole(path)
    assert path.stat().st_blocks * 512 <= 1.25 * MIB


def test_a_link_is_not_followed(path, tmp_path):
    path.write_bytes(b"x" * 4 * MIB)
    (tmp_path / "link.log").symlink_to(path)
    assert cap_log(tmp_path / "link.log", MIB) == 0
    assert path.read_bytes() == b"x" * 4 * MIB


def test_zero_bytes_that_a_job_has_written_stay(path):
    data = os.urandom(100_000) + bytes(200_000) + os.urandom(100_000) + bytes(10)
    path.write_bytes(data)
    assert whole(path) == data
    path.write_bytes(data * 20)
    dropped = cap_log(path, MIB)
    note = b"\n[brim: %d bytes dropped]\n" % dropped
    before, after = whole(path).split(note)
    assert before + after == (data * 20)[: len(before)] + (data * 20)[len(before) + dropped :]
