"""Durable submissions per second through the store of a controller, beside plain sqlite3 with the same settings.

One caller after the other, 64 callers at once, and 1,000 jobs in one submission; then how long a controller takes to
read 10,000 queued jobs. The plain table has one column with the same text, in WAL with ``synchronous=FULL``: what the
disk allows. The ways take turns in every repeat, because disks and neighbours vary.

    python benchmarks/submissions.py [--repeats N] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from brim.live.requests import JobRequest
from brim.live.store.rows import request_text
from brim.live.store.store import Store
from brim.live.store.transactions import Submission

SINGLE, CALLERS, EACH, BULK, QUEUED = 500, 64, 16, 1_000, 10_000
REQUEST = JobRequest(name="train.py", capture="0" * 32, digest="a" * 64, gpus=2, time_limit_s=3_600, gpu_type="H200")


def submission(key: str, jobs: int = 1) -> Submission:
    return Submission(uid=1_000, user="ann", key=key, requests=(REQUEST,) * jobs)


def plain(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "plain.db", isolation_level=None)
    assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, request TEXT)")
    return connection


def plain_insert(connection: sqlite3.Connection, jobs: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO jobs (request) VALUES (?)", [(request_text(REQUEST),)] * jobs)
    connection.execute("COMMIT")


def timed(calls: int, call: Callable[[int], object]) -> list[float]:
    """Seconds of each call, one after the other."""
    taken = []
    for number in range(calls):
        begin = time.perf_counter()
        call(number)
        taken.append(time.perf_counter() - begin)
    return taken


def together(store: Store, repeat: int) -> tuple[float, list[float]]:
    """Seconds until all callers have their answers, and those of each answer."""
    taken: list[float] = []
    begin = threading.Barrier(CALLERS + 1)

    def submit(caller: int) -> None:
        begin.wait()
        key = f"together-{repeat}-{caller}"
        taken.extend(timed(EACH, lambda number: store.accept(submission(f"{key}-{number}")).result()))

    threads = [threading.Thread(target=submit, args=(caller,)) for caller in range(CALLERS)]
    for thread in threads:
        thread.start()
    begin.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start, taken


def p99_ms(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.99)] * 1e3


def rates(folder: Path, repeats: int) -> None:
    """Print the rates of all ways, by repeat, and their medians."""
    store, connection = Store(folder / "controller", lambda _: None), plain(folder)
    rows = []
    print(f"{'jobs/s':>8} {'plain, one':>12} {'store, one':>12} {'p99 ms':>8} {f'{CALLERS} callers':>12} {'p99 ms':>8} "
          f"{'plain, 1,000':>14} {'store, 1,000':>14}")  # fmt: skip
    for repeat in range(repeats):
        plain_one = timed(SINGLE, lambda _: plain_insert(connection, 1))
        one = timed(SINGLE, lambda number, r=repeat: store.accept(submission(f"one-{r}-{number}")).result())
        whole_s, many = together(store, repeat)
        plain_bulk = timed(3, lambda _: plain_insert(connection, BULK))
        bulk = timed(3, lambda number, r=repeat: store.accept(submission(f"bulk-{r}-{number}", BULK)).result())
        rows.append((SINGLE / sum(plain_one), SINGLE / sum(one), p99_ms(one), CALLERS * EACH / whole_s, p99_ms(many),
                     BULK / median(plain_bulk), BULK / median(bulk)))  # fmt: skip
        show(str(repeat + 1), rows[-1])
    show("median", tuple(map(median, zip(*rows, strict=True))))
    store.close()
    connection.close()


def show(name: str, row: tuple[float, ...]) -> None:
    one, store_one, p99, many, many_p99, bulk, store_bulk = row
    print(f"{name:>8} {one:>12,.0f} {store_one:>12,.0f} {p99:>8.1f} {many:>12,.0f} {many_p99:>8.1f} {bulk:>14,.0f} "
          f"{store_bulk:>14,.0f}")  # fmt: skip


def recovery(folder: Path) -> None:
    """Print how long opening and reading a store with many queued jobs takes."""
    store = Store(folder / "controller", lambda _: None)
    for part in range(QUEUED // BULK):
        store.accept(submission(f"k{part}", BULK)).result()
    store.close()
    begin, cpu = time.perf_counter(), time.process_time()
    store = Store(folder / "controller", lambda _: None)
    jobs = store.load().jobs
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    print(f"open and read {len(jobs):,} queued jobs: {wall_s:.2f} s, {cpu_s:.2f} s of CPU time")
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="brim-submissions-", dir=options.folder))
    try:
        rates(folder, options.repeats)
        recovery(folder / "recovery")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
