"""A checkpoint of another library is resumed from only if every file is as it was written."""

import json
import os

import pytest

from brim.train.checkpoint.folder import CheckpointError
from brim.train.checkpoint.manifest import UnusableCheckpointError
from brim.train.integrations import manifests


def checkpoint(folder, step, ranks=1):
    path = folder / f"checkpoint-{step}"
    (path / "below").mkdir(parents=True)
    (path / "model.bin").write_bytes(bytes(range(200)) * step)
    (path / "below" / "part").write_bytes(b"x" * step)
    (path / "empty").touch()
    manifests.write_manifest(str(path), step=step, ranks=ranks)
    return path


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


DAMAGE = {
    "a bit": (lambda path: flip(path / "model.bin"), "does not have the SHA-256"),
    "a byte too few": (lambda path: os.truncate(path / "below" / "part", 1), "has 1 bytes, expected 20"),
    "a file gone": (lambda path: (path / "empty").unlink(), "has no empty"),
    "no manifest": (lambda path: (path / manifests.NAME).unlink(), "incomplete, or written without brim"),
    "half a manifest": (lambda path: os.truncate(path / manifests.NAME, 40), "is not JSON"),
    "a bit of the manifest": (lambda path: flip(path / manifests.NAME), manifests.NAME[5:]),
    "another manifest": (lambda path: (path / manifests.NAME).write_text('{"format": 1, "files": []}'), "SHA-256"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_one_before_is_used_and_the_bad_one_set_aside_and_reported(tmp_path, capsys, kind):
    good, bad = checkpoint(tmp_path, 9), checkpoint(tmp_path, 20)
    damage, words = DAMAGE[kind]
    damage(bad)
    assert manifests.newest_checkpoint(tmp_path) == str(good)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"brim: checkpoint {bad} cannot be used: " in said
    assert words in said
    assert not bad.exists()
    assert len(list(tmp_path.glob("aside-*-checkpoint-20"))) == 1
    assert manifests.newest_checkpoint(tmp_path) == str(good)
    assert not capsys.readouterr().err


def test_another_rank_comes_to_the_same_answer_and_leaves_renaming_to_rank_0(tmp_path, capsys, monkeypatch):
    good, bad = checkpoint(tmp_path, 9), checkpoint(tmp_path, 20)
    flip(bad / "model.bin")
    monkeypatch.setenv("RANK", "1")
    assert manifests.newest_checkpoint(tmp_path) == str(good)
    assert bad.exists()
    assert not capsys.readouterr().err


def test_newest_is_by_number_and_nothing_else_is_touched(tmp_path):
    assert manifests.newest_checkpoint(tmp_path / "nothing") is None
    for name in ("runs", "checkpoint-x", "aside-1234-checkpoint-99"):
        (tmp_path / name).mkdir()
    assert manifests.newest_checkpoint(tmp_path) is None
    paths = [checkpoint(tmp_path, step) for step in (100, 20, 3)]
    assert manifests.newest_checkpoint(tmp_path) == str(paths[0])
    manifests.keep_newest(str(tmp_path), 2)
    assert sorted(os.listdir(tmp_path)) == [
        "aside-1234-checkpoint-99", "checkpoint-100", "checkpoint-20", "checkpoint-x", "runs",
    ]  # fmt: skip


def test_a_checkpoint_written_anew_is_sealed_anew(tmp_path):
    path = checkpoint(tmp_path, 5, ranks=2)
    (path / "model.bin").write_bytes(b"other")
    with pytest.raises(UnusableCheckpointError):
        manifests.verify(str(path))
    manifests.write_manifest(str(path), step=5, ranks=4)
    assert manifests.ranks_of(str(path)) == 4
    assert {file["name"] for file in json.loads((path / manifests.NAME).read_text())["files"]} == {
        "model.bin", "below/part", "empty"
    }  # fmt: skip


def test_what_cannot_be_read_back_is_an_error(tmp_path, monkeypatch):
    real = manifests._sum
    monkeypatch.setattr(manifests, "_sum", lambda path, fresh: (real(path, fresh=fresh)[0], "lost" if fresh else "was"))
    with pytest.raises(CheckpointError, match=r"cannot be read back: .* does not have the SHA-256"):
        checkpoint(tmp_path, 1)
