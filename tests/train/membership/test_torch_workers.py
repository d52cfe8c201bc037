"""SIGTERM to all processes of a job stops it as SIGTERM to a rank does, also while PyTorch's loaders have workers."""

import multiprocessing
import signal
import time
from pathlib import Path

import psutil
import pytest
from torch.utils.data import DataLoader, Dataset

from brim.train.membership.torch_workers import let_workers_outlive_sigterm
from tests import forked

JOB = Path(__file__).parents[1] / "jobs" / "evaluating_loop.py"


def evaluated(zygote, folder, *words):
    """What the job comes to; none of its workers is left."""
    done = forked.run(JOB, folder, *words, zygote=zygote, cwd=folder)
    workers = (folder / "workers").read_text().split()
    assert workers
    assert not any(psutil.pid_exists(int(pid)) for pid in workers)
    return done


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("method", "persistent"), [("fork", "persistent"), ("fork", "brief"), ("spawn", "persistent")]
)
def test_sigterm_to_all_processes_lets_the_workers_finish_and_saves(zygote, tmp_path, method, persistent):
    """It reaches the workers first; a spawned one has not begun by then."""
    done = evaluated(zygote, tmp_path, method, "TERM", persistent)
    batches = 15 if method == "spawn" else 14  # one came before the signal
    assert (done.returncode, done.stdout, done.stderr) == (75, f"{batches} batches\n", "")
    assert len(list((tmp_path / "saved").glob("save-*-step-3"))) == 1


def test_a_worker_that_is_killed_is_an_error_as_ever(zygote, tmp_path):
    done = evaluated(zygote, tmp_path, "fork", "KILL", "persistent")
    assert done.returncode == 1
    assert "is killed by signal: Killed" in done.stderr


class Forks(Dataset):
    """Each sample is the exit code of a process that was forked for it and asked to end."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        multiprocessing.current_process()._config["daemon"] = False
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        time.sleep(0.2)
        process.terminate()
        process.join(10)
        code = process.exitcode
        process.kill()
        return 0 if code is None else code


def test_a_process_that_a_worker_forks_ends_by_sigterm():
    let_workers_outlive_sigterm()
    assert [batch.tolist() for batch in DataLoader(Forks(), 1, num_workers=1)] == [[-signal.SIGTERM]]
