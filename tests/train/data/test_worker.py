"""The loading processes: they leave nothing behind, whoever dies and however, and hold on to nothing of others."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from brim.train.data import prefetch
from brim.train.data.loader import Loader
from tests import forked
from tests.train.data.datasets import Plain, Raising, Slow, Traced
from tests.train.data.loading import (
    descendants,
    living,
    named_memory,
    open_files,
    shared_maps,
    take,
    take_step,
    wait_until,
)

ROOT = Path(__file__).parents[3]
START_S = 60.0
"""Time that a program has: a fresh interpreter that imports torch takes seconds, and far more on a busy machine."""


def program(zygote: str | None, folder: Path, body: str) -> Future[subprocess.CompletedProcess[str]]:
    """A Python program that tells its own process id and those of its loader in a file, and goes on from there.

    Without a zygote with torch, it runs in a fresh interpreter.
    """
    head = """
        import os, signal, sys, threading, time
        from brim.train.data.loader import Loader
        from tests.train.data.datasets import Plain, Raising, Slow
    """
    code = textwrap.dedent(head) + textwrap.dedent(body)
    thread = ThreadPoolExecutor(1)
    if zygote is None:
        command = [sys.executable, "-c", code, str(folder / "shown")]
        return thread.submit(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=START_S)
    return thread.submit(forked.run, "-c", code, folder / "shown", zygote=zygote, cwd=ROOT)


SHOW = """
        while len(loader._pool.worker_ids()) < 3:
            time.sleep(0.01)
        with open(sys.argv[1], "w") as file:
            print(os.getpid(), *loader._pool.worker_ids(), file=file)
"""


def shown(folder: Path) -> list[int]:
    assert wait_until(lambda: (folder / "shown").exists() and (folder / "shown").read_text().endswith("\n"), START_S)
    return [int(word) for word in (folder / "shown").read_text().split()]


@pytest.mark.parametrize(("ending", "code"), [
    ("del loader; loader = Loader(Slow(0.01), 8, workers=2)", 0), ("raise ValueError('user')", 1), ("os._exit(4)", 4),
    ("os.kill(os.getpid(), signal.SIGKILL)", -9),
])
def test_no_process_is_left_when_the_interpreter_ends_without_close(zygote, tmp_path, ending, code):
    run = program(zygote if code else None, tmp_path, f"""
        loader = Loader(Slow(0.01), 8, workers=2)
        loader.fetch(0, 0, 0)
        {SHOW}
        {ending}
    """)
    processes = shown(tmp_path)
    assert len(processes) == 4
    ended = run.result()
    assert ended.returncode == code, ended.stderr
    assert wait_until(lambda: not living(processes))
    assert ended.stderr.count("Traceback") == ("ValueError" in ending)


@pytest.mark.timing
def test_close_leaves_no_process_no_file_and_no_memory():
    gc.collect()
    files, maps, named = open_files(), shared_maps(), named_memory([os.getpid()])
    loader = Loader(Slow(0.001), 8, workers=3)
    take_step(loader)
    processes = loader._pool.worker_ids()
    held = loader.fetch(0, 1, 0)
    assert named_memory([os.getpid(), *processes]) <= named  # only memory with a name outlives all of them
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 2
    loader.close()
    assert not living(processes)
    assert sorted(held[0].tolist()) == sorted(set(held[0].tolist()))
    del held
    assert sorted(open_files()) == sorted(files)
    assert (shared_maps(), named_memory([os.getpid()])) == (maps, named)


def test_a_loader_that_nobody_holds_ends_its_processes():
    loader = Loader(Slow(0.001), 8, workers=2)
    take_step(loader)
    processes = loader._pool.worker_ids()
    del loader
    gc.collect()
    assert not living(processes)


def test_an_exception_in_the_loop_leaves_nothing_after_the_with_block():
    files = open_files()
    processes = []

    def train() -> None:
        with Loader(Raising(50, ValueError("bad sample")), 8, shuffle=False, workers=2) as loader:
            take_step(loader)
            processes.extend(loader._pool.worker_ids())
            take(loader)

    with pytest.raises(ValueError, match="bad sample"):
        train()
    assert processes
    assert not living(processes)
    assert sorted(open_files()) == sorted(files)


def test_files_and_memory_do_not_grow_with_the_steps(monkeypatch):
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", 0)  # on a busy machine a batch may take long, and more be prefetched
    with Loader(Plain(4_000), 10, workers=2) as loader:
        for _ in range(20):
            take_step(loader)
        files, maps = len(open_files()), shared_maps()
        for _ in range(300):
            take_step(loader)
        assert len(open_files()) <= files + 4
        assert shared_maps() <= maps + 4


def test_workers_ignore_the_signals_of_the_training_process():
    with Loader(Plain(2_000), 8, workers=2) as loader:
        take_step(loader)
        assert wait_until(lambda: len(loader._pool.worker_ids()) == 3)
        before = loader._pool.worker_ids()
        for process in before:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(process, number)
        for _ in range(30):
            take_step(loader)
        assert loader._pool.worker_ids() == before


def test_handlers_of_the_training_process_do_not_run_in_workers(tmp_path):
    """A rank told to stop by a signal to its whole process group must not act once per worker."""
    path = tmp_path / "handled"
    before = signal.signal(signal.SIGUSR1, lambda *_: path.open("a").write(f"{os.getpid()}\n"))
    try:
        with Loader(Plain(), 8, workers=2) as loader:
            take_step(loader)
            for process in loader._pool.worker_ids():
                os.kill(process, signal.SIGUSR1)
            for _ in range(5):
                take_step(loader)
            assert not path.exists()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_killed_training_process_takes_its_workers_along_even_from_a_thread(zygote, tmp_path):
    """A loader made on a thread that has ended since: the kernel's word is only good for the main thread."""
    run = program(zygote, tmp_path, f"""
        made = []
        thread = threading.Thread(target=lambda: made.append(Loader(Slow(0.01), 8, workers=2)))
        thread.start(); thread.join(); time.sleep(0.1)
        loader = made[0]
        loader.fetch(0, 0, 0)
        {SHOW}
        time.sleep(60)
    """)
    processes = shown(tmp_path)
    assert len(living(processes)) == 4
    os.kill(processes[0], signal.SIGKILL)
    assert run.result().returncode == -signal.SIGKILL
    assert wait_until(lambda: not living(processes))


def test_a_connection_of_a_killed_rank_closes_at_once_although_its_workers_inherited_it():
    one, other = socket.socketpair()
    with one, Loader(Slow(0.01), 8, workers=2) as loader:
        loader.fetch(0, 0, 0)
        other.close()
        one.settimeout(START_S)
        assert one.recv(1) == b""
        loader.fetch(0, 1, 0)


def test_files_a_dataset_reads_from_stay_open(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(100)))

    class FromFile(Plain):
        def __init__(self) -> None:
            super().__init__(100)
            self.file = path.open("rb")

        def __getitem__(self, index: int) -> int:
            return os.pread(self.file.fileno(), 1, index)[0]

    dataset = FromFile()
    with dataset.file, Loader(dataset, 10, shuffle=False, workers=2) as loader:
        assert [value for batch in take(loader) for value in batch.tolist()] == list(range(100))


def test_the_number_of_workers_follows_while_it_runs():
    with Loader(Plain(100_000), 4, workers=1) as loader:
        for wanted in (3, 1, 0, 2, 4, 2):
            loader.set_workers(wanted)

            def there(wanted: int = wanted) -> bool:
                take_step(loader)
                return len(loader._pool.worker_ids()) - 1 == wanted

            assert wait_until(there), (wanted, loader._pool.worker_ids())


def test_workers_can_be_killed_all_the_time():
    others = {*descendants(os.getpid())}  # of tests before this one; some may end meanwhile
    with Loader(Plain(3_000), 4, workers=2) as loader:
        kills, seen = 0, []
        while loader.epoch == 0:
            step = loader.step
            if step % 40 == 0:
                victims = loader._pool.worker_ids()
                os.kill(victims[(step // 40) % len(victims)], signal.SIGKILL)
                kills += 1
            seen += loader.fetch(0, step, 0)[0].tolist()
            loader.commit(0, step)
        assert kills >= 18
        assert sorted(seen) == list(range(3_000))
        assert wait_until(lambda: take_step(loader) and len({*descendants(os.getpid())} - others) == 3)


def test_workers_that_have_themselves_traced_go_on():
    with Loader(Traced(), 8, workers=2, timeout_s=20) as loader:
        take_step(loader)
        before = sorted(loader._pool.worker_ids())
        take(loader)
        assert sorted(loader._pool.worker_ids()) == before, "nobody has died"


def test_a_process_forked_from_a_zygote_with_threads_can_load(zygote, tmp_path):
    """As a rank is: torch preloaded, used before the fork, and threads of its own that hold torch's locks after it."""
    run = program(zygote, tmp_path, """
        import torch
        torch.rand(300, 300) @ torch.rand(300, 300)
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            sys.exit(os.waitstatus_to_exitcode(status))
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                torch.rand(200, 200) @ torch.rand(200, 200)
                torch.rand(100_000)
        threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
        [thread.start() for thread in threads]
        for round in range(12):
            ids = []
            with Loader(Plain(), 8, workers=2, timeout_s=20) as loader:
                while loader.epoch == 0:
                    step = loader.step
                    ids += loader.fetch(0, step, 0)[0].tolist()
                    loader.commit(0, step)
                    if step == 3:
                        loader.set_workers(3)
        assert sorted(ids) == list(range(103))
        print("done", flush=True)
        stop.set()
        os._exit(0)
    """)
    ended = run.result()
    assert (ended.stdout, ended.returncode) == ("done\n", 0), ended.stderr


def test_a_fork_of_the_training_process_does_not_end_its_workers():
    with Loader(Plain(), 8, workers=1) as loader:
        take_step(loader)
        child = os.fork()
        if child == 0:
            loader.close()
            os._exit(0)
        os.waitpid(child, 0)
        take(loader)
        assert len(living(loader._pool.worker_ids())) == 2


def test_threads_of_training_do_not_stop_a_loader_from_being_made():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with Loader(Plain(), 8, workers=2) as loader:
            take(loader)
    finally:
        stop.set()
        thread.join()
