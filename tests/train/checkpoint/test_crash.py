"""Kill -9 and power cuts at every file operation: what was verified comes back, and what was before it is there too."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from brim.train.checkpoint import folder as folders
from brim.train.checkpoint import reading
from brim.train.checkpoint.checkpointer import Checkpointer, CheckpointError
from brim.train.checkpoint.files import RealFiles
from brim.train.checkpoint.folder import Folder
from brim.train.checkpoint.manifest import MANIFEST, UnusableCheckpointError
from tests import forked
from tests.sampling import sample
from tests.train.checkpoint.simulated_disk import ROOT, Disk, Op, after_kill, after_power_cut

CUTS = sample(20_000, 2_000)
"""The sample is the first tenth: each cut is drawn by its own number."""
CUTS_OF_A_BROKEN_PROTOCOL = 3_000
SAVES = 5


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def state(step: int) -> dict[str, torch.Tensor]:
    """Three tensors in two shards, more than one sector each."""
    return {
        "model.weight": torch.arange(step, step + 200, dtype=torch.float32),
        "model.scale": torch.tensor(step, dtype=torch.float64),
        "optimizer.average": torch.full((300,), step + 0.5, dtype=torch.bfloat16),
    }


def same(step: int, tensors: dict[str, torch.Tensor]) -> bool:
    wanted = state(step)
    return tensors.keys() == wanted.keys() and all(torch.equal(tensors[name], wanted[name]) for name in wanted)


def record(kind: type[Checkpointer], *, keep: int = 2, damage_write: int = -1) -> list[Op]:
    """The operations of five saves by two processes, the second with a higher token; "ack" after each verified one."""
    disk = Disk(damage_write=damage_write)
    for step in range(1, SAVES + 1):
        if step in (1, 4):
            checkpointer = kind(ROOT, files=disk, keep=keep, token=step, shard_bytes=900, chunk_bytes=1024)
            checkpointer.restore()
        try:
            checkpointer.save(step, state(step), {"step": step}, wait=True)
        except CheckpointError:
            continue
        disk.note(Op("ack", step))
    return disk.log


def acked(log: list[Op], until: int) -> list[int]:
    return [op.at for op in log[:until] if op.kind == "ack"]


def check(disk: Disk, verified: list[int], *, clean: bool = True) -> None:
    """The promise: the newest verified checkpoint (or a newer one, if it is complete) is what comes back."""
    restored = Checkpointer(ROOT, files=disk, token=99).restore()
    if restored is None:
        assert not verified, f"nothing is left, {verified[-1]} was verified"
        return
    assert restored.step >= max(verified, default=0), f"{restored.step} came back, {verified[-1]} was verified"
    assert same(restored.step, restored.tensors), "other tensors"
    assert restored.meta == {"step": restored.step}
    if clean:
        assert not restored.set_aside, f"seen half written or half deleted: {restored.set_aside}"


def check_all(disk: Disk) -> None:
    """Whatever has the name of a checkpoint is one: never half written, never half deleted."""
    folder = Folder(ROOT, files=disk, fsync=True, job_id="", token=0)
    for name in folder.saved():
        try:
            read = reading._read(folder, name, None, ())
        except (UnusableCheckpointError, OSError) as error:
            raise AssertionError(f"{name}: {error}") from error
        assert same(read.step, read.tensors)


def spoil_newest(disk: Disk) -> None:
    """The newest checkpoint rots after it was verified."""
    newest = Checkpointer(ROOT, files=disk)._folder.saved()[0]
    inside = disk.folders[disk.folders[0][newest]]
    disk.files[inside["manifest.json"]][40] ^= 4


def test_killed_at_every_operation_what_was_verified_comes_back():
    log = record(Checkpointer)
    assert len(log) > 90
    assert acked(log, len(log)) == [1, 2, 3, 4, 5]
    for until in range(len(log) + 1):
        for part in (0.0, 0.5):
            disk = after_kill(log, until, part=part)
            check(disk, acked(log, until))
            check_all(disk)


def test_killed_at_every_operation_the_one_before_is_there_too():
    log = record(Checkpointer)
    for until in range(len(log) + 1):
        verified = acked(log, until)
        if len(verified) >= 2:
            disk = after_kill(log, until)
            spoil_newest(disk)
            check(disk, verified[:-1], clean=False)


def test_killed_at_every_operation_the_next_process_saves_and_leaves_no_rubbish():
    log = record(Checkpointer)
    for until in range(0, len(log) + 1, 3):
        disk = after_kill(log, until, part=0.3)
        Checkpointer(ROOT, files=disk, token=10).save(50, state(50), {"step": 50}, wait=True)
        check(disk, [50])
        assert not [name for name in disk.names(ROOT) if name.startswith(("writing", "trash", "aside"))]
        assert len([name for name in disk.names(ROOT) if name.startswith("fence")]) == 1


def cut_often(log: list[Op], cuts: int, *, seed: int, rot: bool = False) -> None:
    for cut in range(cuts):
        rng = random.Random(f"{seed} {cut}")
        until = rng.randrange(len(log) + 1)
        disk = after_power_cut(log, until, rng)
        verified = acked(log, until)
        try:
            check(disk, verified)
            if cut % 8 == 1:
                check_all(disk)
            if rot and cut % 4 == 0 and len(verified) >= 2:
                spoil_newest(disk)
                check(disk, verified[:-1], clean=False)
        except (AssertionError, CheckpointError) as error:
            raise AssertionError(f"seed {seed}, cut {cut} before operation {until}: {error}") from error


def test_power_cuts_lose_nothing_that_was_verified():
    cut_often(record(Checkpointer), CUTS, seed=1, rot=True)


def test_a_second_power_cut_while_the_next_process_saves_loses_nothing_either():
    log = record(Checkpointer)
    for cut in range(1_000):
        rng = random.Random(f"twice {cut}")
        until = rng.randrange(len(log) + 1)
        base = after_power_cut(log, until, rng)
        disk = base.copy()
        Checkpointer(ROOT, files=disk, token=10, shard_bytes=900).save(50, state(50), {"step": 50}, wait=True)
        again = [*disk.log, Op("ack", 50)]
        then = rng.randrange(len(again) + 1)
        check(after_power_cut(again, then, rng, base=base), acked(log, until) + acked(again, then))


def test_power_cuts_after_silent_damage_lose_nothing_that_was_verified():
    for write in range(15):
        for keep in (1, 2):
            log = record(Checkpointer, keep=keep, damage_write=write)
            assert len(acked(log, len(log))) == SAVES - 1
            for cut in range(60):
                rng = random.Random(f"{write} {cut}")
                until = rng.randrange(len(log) + 1)
                check_despite_damage(after_power_cut(log, until, rng), acked(log, until))


def check_despite_damage(disk: Disk, verified: list[int]) -> None:
    try:
        check(disk, verified, clean=False)
    except CheckpointError:  # only the damaged one was there, and nobody was told that it is good
        assert not verified


class NoSyncOfParent(Checkpointer):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._folder.sync = lambda: None


class NoSyncOfFolder(Checkpointer):
    def _write_files(self, writing, step, meta):
        self._folder.fsync = False
        return super()._write_files(writing, step, meta)

    def _write_file(self, name, data):
        self._folder.fsync = True
        sums = super()._write_file(name, data)
        self._folder.fsync = not name.endswith("manifest.json")
        return sums

    def _verify(self, name, step, written):
        self._folder.fsync = True
        self._folder.sync()
        super()._verify(name, step, written)


class NoSyncOfFiles(Checkpointer):
    def _write_file(self, name, data):
        self._folder.fsync = False
        try:
            return super()._write_file(name, data)
        finally:
            self._folder.fsync = True


class NoSyncOfManifest(Checkpointer):
    def _write_file(self, name, data):
        self._folder.fsync = not name.endswith("manifest.json")
        try:
            return super()._write_file(name, data)
        finally:
            self._folder.fsync = True


class ManifestBeforeShards(Checkpointer):
    """Publishes as soon as the manifest is there; the shards follow."""

    def _write(self, step, meta):
        self._folder.claim()
        writing = self._folder.new_writing()
        self._files.make_folder(self._folder.path(writing))
        written = {shard.file: self._copy.image(shard) for shard in self._copy.shards}
        sums = [hashlib.sha256(image).hexdigest() for image in written.values()]
        manifest = self._manifest(step, sums, meta)
        self._write_file(f"{writing}/{MANIFEST}", manifest)
        name = self._folder.publish(writing, step)
        for file, image in written.items():
            self._write_file(f"{name}/{file}", image)
        self._files.sync_folder(self._folder.path(name))
        self._verify(name, step, written | {MANIFEST: manifest})
        self._delete_older(name)
        return name


class DeleteBeforeVerify(Checkpointer):
    def _verify(self, name, step, written):
        self._delete_older(name)
        super()._verify(name, step, written)


class DeleteBeforePublish(Checkpointer):
    def _write_files(self, writing, step, meta):
        for name in self._folder.saved():
            self._folder.discard(name)
        return super()._write_files(writing, step, meta)


class NoVerify(Checkpointer):
    def _verify(self, name, step, written):
        pass


class DeleteInPlace(Checkpointer):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._folder.discard = self._folder._delete


class DeleteUnderUnsyncedName(Checkpointer):
    def _delete_older(self, newest):
        self._folder.fsync = False
        super()._delete_older(newest)
        self._folder.fsync = True


HONEST_DISK = (NoSyncOfParent, NoSyncOfFolder, NoSyncOfFiles, NoSyncOfManifest, ManifestBeforeShards,
               DeleteBeforePublish, DeleteInPlace, DeleteUnderUnsyncedName)  # fmt: skip


@pytest.mark.parametrize("broken", HONEST_DISK)
def test_power_cuts_find_a_broken_protocol(broken):
    log = record(broken, keep=1)
    with pytest.raises(AssertionError, match="seed 1, cut"):
        cut_often(log, CUTS_OF_A_BROKEN_PROTOCOL, seed=1)


@pytest.mark.parametrize("broken", [DeleteBeforeVerify, NoVerify])
def test_silent_damage_finds_a_broken_protocol(broken):
    log = record(broken, keep=1, damage_write=14)
    with pytest.raises(AssertionError, match="seed 1, cut"):
        cut_often(log, CUTS_OF_A_BROKEN_PROTOCOL, seed=1)


def test_the_sound_protocol_passes_where_the_broken_ones_fail():
    cut_often(record(Checkpointer, keep=1), CUTS_OF_A_BROKEN_PROTOCOL, seed=1)
    log = record(Checkpointer, keep=1, damage_write=14)
    for cut in range(CUTS_OF_A_BROKEN_PROTOCOL // 10):
        rng = random.Random(f"1 {cut}")
        until = rng.randrange(len(log) + 1)
        check_despite_damage(after_power_cut(log, until, rng), acked(log, until))


CHILD = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from brim.train.checkpoint.checkpointer import Checkpointer
from brim.train.checkpoint.files import RealFiles
from tests.train.checkpoint.test_crash import Killing, state

folder, points = sys.argv[1], 0
while True:
    here = f"{folder}/{points}"
    child = os.fork()
    if child == 0:
        checkpointer = Checkpointer(here, files=Killing(points), shard_bytes=900, chunk_bytes=1024)
        for step in (1, 2, 3):
            checkpointer.save(step, state(step), {"step": step}, wait=True)
            with open(f"{folder}/{points}.acked", "a") as acked:
                print(step, file=acked)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        sys.exit(os.WEXITSTATUS(status))
    assert os.WTERMSIG(status) == signal.SIGKILL
    points += 1
"""


CHANGING = (
    "make_folder", "create", "write", "sync", "close", "sync_folder", "rename", "remove", "remove_folder",
)  # fmt: skip


class Killing(RealFiles):
    """Kills its own process before the n-th operation that changes something."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __getattribute__(self, name: str):
        if name in CHANGING:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
        return super().__getattribute__(name)


def test_a_real_process_killed_at_every_operation_leaves_what_it_was_told_is_safe(tmp_path: Path, zygote: str):
    forked.run("-c", CHILD, tmp_path, zygote=zygote, cwd=Path(__file__).parents[3], timeout_s=120, check=True)
    points = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert len(points) > 60
    for point in points:
        told = tmp_path / f"{point}.acked"
        verified = [int(line) for line in told.read_text().split()] if told.exists() else []
        restored = Checkpointer(tmp_path / str(point)).restore()
        assert (restored.step if restored else 0) >= max(verified, default=0)
        assert restored is None or (same(restored.step, restored.tensors) and not restored.set_aside)
    assert verified == [1, 2, 3]


def test_the_names_that_mark_a_checkpoint_are_those_of_the_folder():
    assert folders.number_of("save-00000012-step-340") == 12
    assert folders.step_of("save-00000012-step-340") == 340
