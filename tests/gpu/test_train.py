"""The training core on GPUs; skipped where there is none."""

import os

import pytest
import torch

from tests.train.gangs import on_ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def train(backend):
    import brim.train as bt
    from tests.train.models import JOBS, Rows, loss_of

    os.environ["BRIM_BACKEND"] = backend
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ["LOCAL_RANK"] = os.environ.get("RANK", "0")
    torch.use_deterministic_algorithms(True)
    run = bt.start(logical_workers=4, seed=5)
    model, optimizer, kind, _ = JOBS["conv"]()
    run.prepare(model, optimizer)
    loader = run.loader(Rows(kind), 16, workers=0)
    for _ in run.epochs(2):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            run.step()
    found = run.digest(), run.certificate()["gpu"]
    run.close()
    return found


def test_bits_are_equal_where_ranks_share_a_gpu():
    assert {*on_ranks(1, train, "gloo"), *on_ranks(2, train, "gloo")} == {on_ranks(4, train, "gloo")[0]}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_bits_are_equal_over_nccl():
    assert set(on_ranks(1, train, "nccl")) == set(on_ranks(2, train, "nccl"))
