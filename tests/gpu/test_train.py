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
    found = run.digest(), run.settings()["gpu"]
    run.close()
    return found


START_S = 300
"""Four processes that each wake a driver."""


def test_bits_are_equal_where_ranks_share_a_gpu():
    one, two, four = (on_ranks(size, train, "gloo", timeout_s=START_S) for size in (1, 2, 4))
    assert {*one, *two} == {four[0]}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_bits_are_equal_over_nccl():
    assert set(on_ranks(1, train, "nccl", timeout_s=START_S)) == set(on_ranks(2, train, "nccl", timeout_s=START_S))


def test_what_was_said_is_read_once_it_is_there():
    from brim.train.gradients.step_summary import SummaryVector

    vector = SummaryVector([torch.nn.Linear(2, 2).cuda()], ranks=4)
    total = torch.zeros(vector.size, device="cuda")
    newest_commands = []
    for step in range(4):
        torch.cuda._sleep(200_000_000)  # the device lags behind the host, here by a tenth of a second a step
        total[2] = step + 7
        newest_commands.append(vector.read(total, 4, late=True).newest_commands[0])
    assert newest_commands == [0, 7, 8, 9]


def test_a_device_without_a_number_and_an_optimizer_that_begins_with_state():
    import brim.train as bt
    from tests.train.models import Rows

    run = bt.start(device="cuda", seed=1)
    assert run.device.index is not None
    model = torch.nn.Linear(20, 5)
    run.prepare(model, torch.optim.Adagrad(model.parameters()))
    for _ in run.epochs(1):
        for x, y in run.steps(run.loader(Rows("rows"), 16, workers=0)):
            run.backward(torch.nn.functional.cross_entropy(model(x), y))
            run.step()
    assert run.loss < 3
    run.close()


def test_a_group_of_one_over_nccl():
    from brim.train.membership.process_group import BrokenGroupError, ProcessGroup, open_store

    device = torch.device("cuda", 0)
    store, _, _ = open_store(60)
    group = ProcessGroup(0, 1, generation=1, device=device, timeout_s=60)
    group.connect(lambda: store)
    assert group.nccl
    assert group.share([3, 4]) == [[3, 4]]
    vector = torch.arange(8.0, device=device)
    out = torch.empty_like(vector)
    group.all_to_all(out, vector).wait()
    group.all_gather(out, vector).wait()
    group.all_reduce(out).wait()
    assert out.tolist() == vector.tolist()
    group.abort()
    group.abort()
    with pytest.raises(BrokenGroupError):
        group.share([1])
    group.close()
