"""A function on several ranks at once, in processes forked from one that has torch loaded."""

import multiprocessing
import os
import pickle
import queue
import sys
import tempfile
import traceback
from pathlib import Path

from tests import forked, zygotes
from tests.ports import free_port

TIMEOUT_S = 60


def _rank(call, rank, size, port, answers):
    import torch

    torch.set_num_threads(1)
    if size > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        function, arguments = pickle.loads(call)
        answers.put((rank, pickle.dumps(function(*arguments)), None))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))


def start_ranks(folder, size, timeout_s):
    """In a process of its own: fork the ranks, and leave what they return, or what went wrong, in the folder."""
    context = multiprocessing.get_context("fork")
    answers, port, call = context.Queue(), free_port(), Path(folder, "call").read_bytes()
    ranks = [
        context.Process(target=_rank, args=(call, rank, size, port, answers), daemon=True) for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    found = {}
    try:
        for _ in ranks:
            rank, result, error = answers.get(timeout=timeout_s)
            if error is not None:
                sys.exit(f"rank {rank} of {size}:\n{error}")
            found[rank] = result
    except queue.Empty:
        sys.exit(f"no answer of {size - len(found)} of {size} ranks after {timeout_s} s")
    finally:
        for rank in ranks:
            rank.join(5 if len(found) == size else 0)
            if rank.is_alive():
                rank.kill()
                rank.join()
    for rank, result in found.items():
        Path(folder, str(rank)).write_bytes(result)


def on_ranks(size, function, *arguments, timeout_s=TIMEOUT_S):
    """What the function returns on each of ``size`` ranks, as torchrun would start them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "call").write_bytes(pickle.dumps((function, arguments)))
        start = f"from tests.train.gangs import start_ranks; start_ranks({folder!r}, {size}, {timeout_s})"
        forked.run(
            "-c", start, zygote=zygotes.of_tests(), cwd=zygotes.ROOT, timeout_s=timeout_s + 30, check=True
        )
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(size)]
