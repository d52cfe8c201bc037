"""The demo's training script learns the same whether or not somebody interrupts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from brim.live.executor import ENDS, Command, ReportKind
from brim.live.local import LocalExecutor
from tests.live.test_local import last, until


def digits(epochs: int, epoch_ms: int) -> Command:
    return Command(
        argv=(sys.executable, "-W", "error", "-m", "brim.live.digits", "--epochs", str(epochs), "--hidden", "16",
              "--seed", "3", "--epoch-ms", str(epoch_ms)),
        reports=True,
    )


def test_a_preempted_training_ends_with_the_same_parameters(tmp_path: Path) -> None:
    with LocalExecutor(2, tmp_path, grace_ms=10_000) as executor:
        executor.start(0, 1, (0,), digits(6, 150))
        executor.start(1, 1, (1,), digits(6, 0))
        until(executor, ReportKind.STARTED, seconds=20)
        executor.stop(0, 1)
        assert last(until(executor, *ENDS, seconds=20)).kind is ReportKind.STOPPED
        assert (tmp_path / "job-0" / "checkpoint" / "digits.npz").exists()
        executor.start(0, 2, (0,), digits(6, 0))
        heard = until(executor, *ENDS, seconds=20)
        assert last(heard).kind is ReportKind.FINISHED
        resumed_at = next(r.fraction for r in heard if r.job == 0 and r.kind is ReportKind.PROGRESS)
        assert 0 < resumed_at < 1
    interrupted = (tmp_path / "job-0" / "log").read_text().splitlines()
    straight = (tmp_path / "job-1" / "log").read_text().splitlines()
    assert interrupted[0].startswith("stopped after epoch")
    assert interrupted[1:] == straight
    assert straight[0].startswith("accuracy 0.")


def test_it_runs_outside_brim(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "brim.live.digits", "--epochs", "1", "--epoch-ms", "0"], cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("accuracy")
