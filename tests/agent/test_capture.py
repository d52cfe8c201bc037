"""An agent runs what its user has signed, and nothing else."""

import hashlib
import json
import os

import pytest

from brim.agent.capture import CAPTURE_BYTES_MAX, read_capture, remove_capture, write_capture
from brim.errors import ConfigError, RefusedError
from brim.gang.inherited import AS_IT_IS, Inherited


def test_a_capture_is_read_as_it_was_written_and_only_by_its_user(tmp_path):
    name, digest = write_capture(tmp_path / "captures", ["echo", "a b"], {"A": "x=y"}, "/srv")
    capture = read_capture(tmp_path / "captures", name, digest)
    assert (capture.command, capture.env, capture.cwd) == (("echo", "a b"), {"A": "x=y"}, "/srv")
    assert os.stat(tmp_path / "captures" / f"{name}.json").st_mode & 0o777 == 0o600


def test_umask_limits_and_what_slurm_is_told_are_signed_too_and_may_be_missing(tmp_path):
    inherits = Inherited(umask=0o27, limits={"nofile": 64})
    capture = read_capture(tmp_path, *write_capture(tmp_path, ["true"], {}, "/", inherits, slurm=True))
    assert (capture.inherits, capture.slurm) == (inherits, True)
    content = b'{"version": 1, "command": ["true"], "env": {}, "cwd": "/"}'
    (tmp_path / f"{'a' * 32}.json").write_bytes(content)
    before = read_capture(tmp_path, "a" * 32, hashlib.sha256(content).hexdigest())
    assert (before.inherits, before.slurm) == (AS_IT_IS, False)


def test_an_array_has_one_capture_which_an_older_agent_refuses(tmp_path):
    name, digest = write_capture(tmp_path, ["true"], {}, "/", indices=(2, 5))
    assert read_capture(tmp_path, name, digest).indices == (2, 5)
    assert json.loads((tmp_path / f"{name}.json").read_text())["version"] == 2


def test_a_capture_that_nobody_will_run_goes_with_its_folder(tmp_path):
    folder = tmp_path / "captures"
    (one, _), (other, _) = (write_capture(folder, ["true"], {}, "/") for _ in range(2))
    remove_capture(folder, one)
    assert [path.stem for path in folder.iterdir()] == [other]
    remove_capture(folder, other)
    assert not folder.exists()
    remove_capture(folder, other)


def test_a_capture_that_no_agent_would_read_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="have 5400108 bytes as JSON, expected at most 4194304"):
        write_capture(tmp_path, ["true"], {"A": "\1" * 900_000}, "/")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../" + "a" * 32, "A" * 32, "", "a" * 32 + "\n", "0" * 32])
def test_a_name_that_is_none_is_refused(tmp_path, name):
    with pytest.raises(RefusedError, match="capture"):
        read_capture(tmp_path, name, "0" * 64)


@pytest.mark.parametrize("what", ["content", "link", "fifo", "writable", "digest", "huge", "folder"])
def test_what_its_user_has_not_signed_is_refused(tmp_path, what):
    name, digest = write_capture(tmp_path, ["true"], {}, "/")
    path = tmp_path / f"{name}.json"
    other = tmp_path / "other"
    if what == "content":
        path.write_text(path.read_text().replace("true", "evil"))
    elif what == "link":
        path.rename(other)
        path.symlink_to(other)
    elif what in ("fifo", "folder"):
        path.unlink()
        (os.mkfifo if what == "fifo" else os.mkdir)(path)
    elif what == "writable":
        path.chmod(0o666)
    elif what == "huge":
        path.write_bytes(b" " * (CAPTURE_BYTES_MAX + 1))
    else:
        digest = "\ud800"
    with pytest.raises(RefusedError, match=name):
        read_capture(tmp_path, name, digest)


@pytest.mark.parametrize("content", [
    "[" * 50_000, "3", "{}", '{"version": 2, "command": ["a"], "env": {}, "cwd": "/"}',
    '{"version": 2, "command": ["a"], "env": {}, "cwd": "/", "indices": ["1"]}',
    '{"version": 1, "command": [], "env": {}, "cwd": "/"}', '{"version": 1, "command": "ls", "env": {}, "cwd": "/"}',
    '{"version": 1, "command": ["a"], "env": {"A": 3}, "cwd": "/"}',
    json.dumps({"version": 1, "command": ["a\0b"], "env": {}, "cwd": "/"}),
    '{"version": 1, "command": ["a"], "env": {}, "cwd": "/", "umask": 9999}',
])  # fmt: skip
def test_a_signed_capture_that_is_not_one_is_refused(tmp_path, content):
    path = tmp_path / f"{'a' * 32}.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(RefusedError, match="expected"):
        read_capture(tmp_path, "a" * 32, hashlib.sha256(content.encode()).hexdigest())
