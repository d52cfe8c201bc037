"""Checkpoints that rotted or belong to something else, and places where they cannot be read or written."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
import traceback
from pathlib import Path

import pytest
import torch

from brim.train.checkpoint.checkpointer import (
    Checkpointer,
    CheckpointError,
    MismatchError,
)
from brim.train.checkpoint.files import RealFiles
from brim.train.checkpoint.manifest import _checksum
from tests import forked
from tests.train.checkpoint.simulated_disk import ROOT, Disk
from tests.train.checkpoint.test_crash import same, state
from tests.train.checkpoint.test_faults import SHARD, quiet, save  # noqa: F401 - a fixture


def saved_twice(folder: Path) -> Path:
    checkpointer = Checkpointer(folder)
    save(checkpointer, 1)
    save(checkpointer, 2)
    return folder / "save-00000002-step-2"


def rewrite(path: Path, change) -> None:
    body = json.loads(path.read_text())
    body.pop("sha256")
    change(body)
    path.write_text(json.dumps(body | {"sha256": _checksum(body)}))


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


BAD = {
    "a truncated shard": (lambda at: os.truncate(at / SHARD, 700), r"has 700 bytes, the manifest says 1,\d+"),
    "an empty shard": (lambda at: os.truncate(at / SHARD, 0), "has 0 bytes"),
    "a bit of a shard": (lambda at: flip(at / SHARD, 900), "does not have the SHA-256 of the manifest"),
    "a bit of a header": (lambda at: flip(at / SHARD, 20), "does not have the SHA-256 of the manifest"),
    "a missing shard": (lambda at: (at / SHARD).unlink(), "No such file"),
    "a folder for a shard": (lambda at: ((at / SHARD).unlink(), (at / SHARD).mkdir()), "bytes, the manifest says"),
    "a missing manifest": (lambda at: (at / "manifest.json").unlink(), "No such file"),
    "an empty manifest": (lambda at: os.truncate(at / "manifest.json", 0), "manifest.json is not JSON"),
    "half a manifest": (lambda at: os.truncate(at / "manifest.json", 200), "manifest.json is not JSON"),
    "a manifest of zeros": (lambda at: (at / "manifest.json").write_bytes(bytes(900)), "manifest.json is not JSON"),
    "a manifest that is a list": (lambda at: (at / "manifest.json").write_text("[]"), "no format number"),
    "a bit of the manifest": (lambda at: (at / "manifest.json").write_text(
        (at / "manifest.json").read_text().replace('"step": 2', '"step": 3')), "SHA-256 that it contains"),
    "a future format": (lambda at: rewrite(at / "manifest.json", lambda body: body.update(format=2)),
                        "format 2, this brim reads up to 1: update brim"),
    "an unknown type": (lambda at: rewrite(at / "manifest.json", lambda body: body["tensors"].update(
        {"model.scale": ["float3", []]})), "no type called 'float3'"),
    "a file for a folder": (lambda at: (at.rename(at.parent / "x"), at.write_text("")), "Not a directory"),
    "an empty folder": (lambda at: (at.rename(at.parent / "x"), at.mkdir()), "No such file"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_checkpoint_is_set_aside_in_words_and_the_one_before_is_used(tmp_path, what):
    break_it, reason = BAD[what]
    break_it(saved_twice(tmp_path))
    restored = Checkpointer(tmp_path).restore()
    assert (restored.step, restored.meta) == (1, {"step": 1})
    assert same(1, restored.tensors)
    (bad,) = restored.set_aside
    assert bad.step == 2
    assert re.search(reason, bad.reason)
    assert (tmp_path / bad.name).exists()
    again = Checkpointer(tmp_path).restore()
    assert (again.step, again.set_aside) == (1, ())
    checkpointer = Checkpointer(tmp_path)
    save(checkpointer, 2)
    assert checkpointer.restore().step == 2


def test_when_everything_is_bad_nobody_starts_from_the_beginning_unasked(tmp_path):
    newest = saved_twice(tmp_path)
    flip(newest / SHARD, 900)
    flip(tmp_path / "save-00000001-step-1" / SHARD, 900)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of the checkpoints.*remove them or use another folder"):
            Checkpointer(tmp_path).restore()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOMEM])
def test_a_process_that_cannot_read_does_not_blame_the_files(number):
    disk = Disk()
    checkpointer = Checkpointer(ROOT, files=disk)
    save(checkpointer, 1)
    save(checkpointer, 2)

    def refuse(kind: str, path: str) -> None:
        if kind == "open":
            raise OSError(number, os.strerror(number), path)

    disk.before = refuse
    with pytest.raises(CheckpointError, match=f"restoring in /disk: {os.strerror(number)}") as refused:
        checkpointer.restore()
    assert "".join(traceback.format_exception(refused.value)).count("Traceback") == 1
    disk.before = lambda kind, path: None
    assert checkpointer.restore().step == 2


def test_a_checkpoint_that_its_writer_deletes_while_it_is_read_is_not_called_bad():
    disk = Disk()
    checkpointer = Checkpointer(ROOT, files=disk, keep=1)
    save(checkpointer, 1)

    def newer(kind: str, path: str) -> None:
        if kind == "open" and path.endswith("safetensors"):
            disk.before = lambda kind, path: None
            save(checkpointer, 2)

    disk.before = newer
    restored = Checkpointer(ROOT, files=disk).restore()
    assert (restored.step, restored.set_aside) == (2, ())


def test_nothing_saved_is_none(tmp_path):
    assert Checkpointer(tmp_path / "not" / "there").restore() is None
    assert not (tmp_path / "not").exists()
    assert Checkpointer(tmp_path).restore() is None
    (tmp_path / "writing-00000000-0123abcd-1").mkdir()
    assert Checkpointer(tmp_path).restore() is None


def test_a_checkpoint_of_another_model_is_refused_with_the_first_tensors_that_differ(tmp_path):
    saved_twice(tmp_path)
    model = {name: tensor for name, tensor in state(0).items() if name.startswith("model.")}
    assert Checkpointer(tmp_path).restore(model, within="model.").step == 2
    with pytest.raises(MismatchError, match=r"optimizer.average: checkpoint bfloat16 \[300\], model has none"):
        Checkpointer(tmp_path).restore(model)
    short = model | {"model.weight": torch.zeros(7)}
    for wrong, said in (
        (short, r"1 of 2 .* model.weight: checkpoint float32 \[200\], model float32 \[7\]"),
        (model | {"model.scale": torch.zeros(())}, r"model.scale: checkpoint float64 \[\], model float32 \[\]"),
        (model | {"model.more": torch.zeros(())}, r"model.more: checkpoint has none, model float32 \[\]"),
        ({"model.weight": torch.zeros(200)}, r"model.scale: checkpoint float64 \[\], model has none"),
        ({f"model.{name}": torch.zeros(1) for name in "abcdef"}, "8 of 8 tensors differ.*and 5 more"),
    ):
        with pytest.raises(MismatchError, match=said):
            Checkpointer(tmp_path).restore(wrong, within="model.")
    assert Checkpointer(tmp_path).restore().step == 2, "nothing was set aside"


def test_what_cannot_be_saved_is_said_before_anything_is_written(tmp_path):
    checkpointer = Checkpointer(tmp_path / "new")
    for tensors, meta, said in (
        ({"a": torch.zeros(2).to_sparse()}, {}, "tensor 'a' is torch.sparse_coo"),
        ({"a": torch.zeros(2, device="meta")}, {}, "on meta: only dense tensors"),
        ({}, {"a": {"b": [1, torch.zeros(1)]}}, r"meta.a.b\[1\] is a Tensor"),
        ({}, {"a": (1, 2)}, "meta.a is a tuple"),
        ({}, {"a": {1: 2}}, "meta.a has the key 1"),
    ):
        with pytest.raises(TypeError, match=said):
            checkpointer.save(1, tensors, meta)
    with pytest.raises(ValueError, match="__metadata__"):
        checkpointer.save(1, {"__metadata__": torch.zeros(1)}, {})
    with pytest.raises(ValueError, match="step is -1"):
        checkpointer.save(-1, {}, {})
    for option, value in (("keep", 0), ("token", -1), ("job_id", "a/b")):
        with pytest.raises(ValueError, match=f"{option} is {value!r}"):
            Checkpointer(tmp_path, **{option: value})
    assert not (tmp_path / "new").exists()


def test_a_folder_behind_a_symbolic_link_and_one_on_another_file_system_are_fine(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save(Checkpointer(tmp_path / "link" / "deep" / "er"), 1)
    assert Checkpointer(tmp_path / "real" / "deep" / "er").restore().step == 1
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK):
        (tmp_path / "away").symlink_to(memory / f"brim-test-{os.getpid()}")
        (memory / f"brim-test-{os.getpid()}").mkdir()
        try:
            checkpointer = Checkpointer(tmp_path / "away", keep=1)
            for step in (1, 2, 3):
                save(checkpointer, step)
            assert checkpointer.restore().step == 3
        finally:
            shutil.rmtree(memory / f"brim-test-{os.getpid()}")


def test_a_checkpoint_that_is_a_link_is_read_and_its_target_is_not_deleted(tmp_path):
    newest = saved_twice(tmp_path / "a")
    newest.rename(tmp_path / "elsewhere")
    newest.symlink_to(tmp_path / "elsewhere")
    checkpointer = Checkpointer(tmp_path / "a", keep=1)
    assert checkpointer.restore().step == 2
    save(checkpointer, 3)
    assert not newest.is_symlink()
    assert (tmp_path / "elsewhere" / "manifest.json").exists()


def test_a_link_that_leads_nowhere_or_a_file_where_the_folder_should_be_is_said(tmp_path):
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone" / "away")
    (tmp_path / "file").write_text("")
    for place, said in (("nowhere", "File exists"), ("file", "Not a directory|File exists")):
        with pytest.raises(CheckpointError, match=said):
            save(Checkpointer(tmp_path / place), 1)


DENIED = """
import os, sys, torch
from brim.train.checkpoint.checkpointer import Checkpointer, CheckpointError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for act in (lambda c: c.save(9, {"a": torch.zeros(1)}, {}, wait=True), lambda c: c.restore()):
    try:
        print("step", act(Checkpointer(sys.argv[1])).step)
    except CheckpointError as error:
        print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("mode", "said"), [
    (0o555, ["saving step 9 in .*: Permission denied .*; this user must be allowed to read and write", "step 1"]),
    (0o000, ["saving step 9 in .*: Permission denied", "restoring in .*: Permission denied"]),
])  # fmt: skip
def test_a_folder_that_is_not_ours_is_said_and_nothing_is_set_aside(zygote, mode, said):
    with tempfile.TemporaryDirectory() as above:  # pytest's own are closed to other users
        os.chmod(above, 0o755)
        denied(zygote, Path(above) / "theirs", mode, said)


def denied(zygote: str, place: Path, mode: int, said: list[str]) -> None:
    save(Checkpointer(place), 1)
    place.chmod(mode)
    done = forked.run("-c", DENIED, place, zygote=zygote)
    place.chmod(0o755)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line, wanted in zip(lines, said, strict=True):
        assert re.search(wanted, line), line
    assert Checkpointer(place).restore().step == 1


class Short(RealFiles):
    """The kernel takes and gives a few bytes at a time."""

    def read(self, handle: int, into: memoryview) -> int:
        return super().read(handle, into[:37])


def test_writes_that_are_taken_in_small_parts_are_carried_on(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:101]))
    save(Checkpointer(tmp_path), 1)
    monkeypatch.undo()
    assert same(1, Checkpointer(tmp_path).restore().tensors)


def test_reads_that_come_in_small_parts_are_put_together(tmp_path):
    save(Checkpointer(tmp_path, files=Short()), 1)
    assert same(1, Checkpointer(tmp_path, files=Short()).restore().tensors)
