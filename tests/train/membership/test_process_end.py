"""SIGTERM asks the process of a rank to leave, and ends the processes that its script forks."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import time

import pytest

from brim.train.integrations.handshake import Handshake
from brim.train.membership.process_end import on_sigterm

FORK = multiprocessing.get_context("fork")


def ended(process) -> int:
    """Exit code of a process that was asked to end."""
    try:
        process.join(10)
        return process.exitcode
    finally:
        process.kill()


@pytest.mark.parametrize("install", [
    lambda asked: on_sigterm(lambda: asked.append(1)), lambda asked: Handshake().own_sigterm(),
])
def test_a_process_that_the_script_forks_ends_by_sigterm(install):
    install([])
    process = FORK.Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    assert ended(process) == -signal.SIGTERM


def test_a_process_that_is_forked_ends_though_the_script_put_a_handler_before_ours():
    on_sigterm(lambda: None)
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, functools.partial(ours))
    process = FORK.Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    assert ended(process) == -signal.SIGTERM


def test_a_handler_that_the_script_had_is_called_here_and_in_its_forks():
    seen, asked = [], []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    on_sigterm(lambda: asked.append(1))
    on_sigterm(lambda: asked.append(2))  # of a second run

    def child():
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(10 * len(seen) + len(asked))

    process = FORK.Process(target=child)
    process.start()
    assert ended(process) == 10
    os.kill(os.getpid(), signal.SIGTERM)
    assert (seen, asked) == ([signal.SIGTERM], [2])
