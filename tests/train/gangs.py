"""A function on several ranks at once, in processes forked from one that has torch loaded."""

import multiprocessing
import os
import queue
import traceback

from brim.gang.environment import free_port

TIMEOUT_S = 60
PRELOAD = ["torch", "torch._dynamo", "brim.train.run", "brim.train.data.loader", "tests.train.models"]
"""The second is imported by the construction of the first optimizer, for seconds."""


def _rank(function, arguments, rank, size, port, answers):
    import torch

    torch.set_num_threads(1)
    if size > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        answers.put((rank, function(*arguments), None))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))


def on_ranks(size, function, *arguments, timeout_s=TIMEOUT_S):
    """What the function returns on each of ``size`` ranks, as torchrun would start them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    answers, port = context.Queue(), free_port()
    ranks = [
        context.Process(target=_rank, args=(function, arguments, rank, size, port, answers), daemon=True)
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    found = {}
    try:
        for _ in ranks:
            rank, result, error = answers.get(timeout=timeout_s)
            assert error is None, f"rank {rank} of {size}:\n{error}"
            found[rank] = result
    except queue.Empty:
        raise AssertionError(f"no answer of {size - len(found)} of {size} ranks after {timeout_s} s") from None
    finally:
        for rank in ranks:
            rank.join(5 if len(found) == size else 0)
            if rank.is_alive():
                rank.kill()
                rank.join()
    return [found[rank] for rank in range(size)]
