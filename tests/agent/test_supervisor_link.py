"""What a supervisor's status means to the agent."""

import contextlib
import os
import selectors
import socket
import threading
import time

from brim.agent.supervisor_link import SupervisorLink, gang_seen
from brim.gang.codec import LINE_BYTES_MAX, encode
from brim.gang.messages import Response


def rank(number, **report):
    return {"id": number, "alive": True, "pid": 10 + number, "connected": True, **report}


def seen(*ranks, saved=None):
    return gang_seen((1, 1), {
        "ranks": ranks, "members": [one["id"] for one in ranks], "generation": 1, "state": "running", "saved": saved,
    }, ("cpu0", "cpu1"))


TIMES = {"global_batch": 64, "step_s": 0.5, "sync_s": 0.1, "loader_wait_s": 0.05}


def test_progress_has_samples_total_and_the_newest_checkpoint():
    told = seen(rank(0, step=7, samples=448, total=6400, loss=1.5, ranks=1, local_batch=64, **TIMES), saved=5).progress
    assert (told.step, told.samples, told.total, told.checkpoint_step) == (7, 448, 6400, 5)
    assert (told.samples_per_s, told.step_s, told.local_batch, told.global_batch) == (128.0, 0.5, 64, 64)


def test_a_gang_has_no_progress_before_its_first_step():
    assert seen(rank(0, step=0, generation=1)).progress is None


def test_times_measured_on_another_number_of_ranks_are_not_told():
    """Ranks that stayed in a resize still have the times of the group before."""
    before, after = {"ranks": 1, "local_batch": 64, **TIMES}, {"ranks": 2, "local_batch": 32, **TIMES}
    for stale in ((before, before), (before, {}), (after, {}), (after, before)):
        told = seen(*(rank(n, step=9, samples=576, **one) for n, one in enumerate(stale))).progress
        assert (told.samples, told.ranks) == (576, 2)
        assert (told.step_s, told.samples_per_s, told.local_batch) == (None, None, None)
    told = seen(*(rank(n, step=9, samples=576, **after) for n in range(2))).progress
    assert (told.step_s, told.samples_per_s, told.local_batch) == (0.5, 128.0, 32)


def test_the_rank_that_waits_most_for_data_says_how_long_a_step_waits_once_all_have_the_same_workers():
    one = {"ranks": 2, "local_batch": 32, "samples": 64, "loader_workers": 1, "loader_workers_max": 3, **TIMES}
    other = one | {"loader_wait_s": 0.25, "loader_workers": 2}
    told = seen(rank(0, **one), rank(1, **other)).progress
    assert (told.loader_wait_ratio, told.loader_workers, told.loader_workers_max) == (0.5, 2, 3)
    assert seen(rank(0, **one), rank(1, **other | {"loader_workers_max": 4})).progress.loader_wait_ratio is None
    assert seen(rank(0, **one), rank(1, **other | {"loader_wait_s": 0.75})).progress.loader_wait_ratio == 1.0


def test_a_supervisor_that_says_more_than_a_message_holds_is_connected_again(tmp_path):
    path, long = str(tmp_path / "c"), Response(True, "", {"text": "x" * 2 * LINE_BYTES_MAX})
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener, selectors.DefaultSelector() as selector:
        listener.bind(path)
        listener.listen()
        link = SupervisorLink((1, 1), os.getpid(), path, selector)
        assert link.connect()
        link.ask_status()
        supervisor, _ = listener.accept()

        def send():
            with contextlib.suppress(OSError):
                supervisor.sendall(encode(long))

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        deadline_s = time.monotonic() + 60
        while link.connected and time.monotonic() < deadline_s:
            selector.select(0.1)
            link.receive()
        assert not link.connected
        sender.join()
        supervisor.close()
        assert link.connect()
        link.close()
