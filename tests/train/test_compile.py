"""Compiled models: the bits are the same on every number of ranks, and checkpoints fit those of the plain model."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import brim.train as bt
from brim.errors import UserError
from tests import sampling
from tests.sampling import sample
from tests.train.gangs import on_ranks

WAYS = ("before prepare", "after prepare", "method", "part", "loss", "late", "between")
"""Late: not before the second micro-batch of the first step. Between: an evaluation after run.backward."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.dropout(torch.relu(self.norm(self.first(x)))))


def rows():
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(
        torch.randn(60, 8, generator=generator), torch.randn(60, 1, generator=generator)
    )


def train(way, backend, checkpoint=None, steps=8):
    """Digest and names; the last step of an epoch has other shapes."""
    torch._dynamo.reset()
    run = bt.start(logical_workers=4, checkpoint=checkpoint)
    model, loss_of = Net(), mse_loss
    if way == "before prepare":
        model = torch.compile(model, backend=backend)
    if way == "method":
        model.compile(backend=backend)
    if way == "part":
        model.first = torch.compile(model.first, backend=backend)
    model, _ = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    if way == "after prepare":
        model = torch.compile(model, backend=backend)
    whole = torch.compile(model, backend=backend) if way in ("late", "between") else model
    if way == "loss":
        loss_of = torch.compile(loss_of, backend=backend)
    loader = run.loader(rows(), 16, workers=0)
    for _ in run.epochs(2, steps=steps):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            if way == "between":
                evaluate(whole, x)
            run.step()
            if way == "late":
                model = whole
    run.close()
    return run.digest(), tuple(run.hashes())


@torch.no_grad()
def evaluate(model, x):
    model.eval()
    assert model(x).isfinite().all()
    model.train()


def train_and_read_gradients():
    """A compiled function that uses gradients before they are summed."""
    run = bt.start(logical_workers=4)
    model = Net()
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    norm = torch.compile(lambda params: sum(param.grad.norm() for param in params), backend="eager")
    for x, y in run.steps(run.loader(rows(), 16, workers=0)):
        run.backward(mse_loss(model(x), y))
        try:
            norm([*model.parameters()])
        except UserError as error:
            return str(error)
    return "the epoch ended without an error"


@pytest.fixture(scope="module")
def plain():
    return on_ranks(1, train, "not at all", "eager")[0]


def train_every_way():
    """What each way comes to, one after the other in this process."""
    return {way: train(way, "eager") for way in WAYS}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_compiled_model_has_the_names_and_bits_of_the_plain_one(plain, ranks):
    assert on_ranks(ranks, train_every_way) == ranks * [dict.fromkeys(WAYS, plain)]


def test_gradients_between_backward_and_step_are_refused_in_compiled_code_too():
    (said,) = on_ranks(1, train_and_read_gradients)
    assert said.startswith("gradients were used between run.backward and run.step")


def test_forward_and_backward_may_be_traced_ahead_of_time():
    sizes = sample((1, 2, 4), (1, 2))
    assert len({row for n in sizes for row in on_ranks(n, train, "before prepare", "aot_eager")}) == 1


@pytest.mark.parametrize(("first", "then"), [("before prepare", "not at all"), ("not at all", "before prepare")])
def test_a_checkpoint_fits_compiled_or_not(tmp_path, plain, first, then):
    on_ranks(2, train, first, "eager", tmp_path / "job", 3)
    assert on_ranks(1, train, then, "eager", tmp_path / "job") == [plain]


def compiled_for():
    """Sizes that are free in what is compiled."""
    free = []

    def backend(module, inputs):
        free.extend(one for one in inputs if isinstance(one, torch.SymInt))
        return module

    train("before prepare", backend)
    return len(free)


def test_each_shape_is_compiled_by_itself():
    """A kernel for free sizes has other bits, and is used for all shapes once another has been seen."""
    assert on_ranks(1, compiled_for) == [0]


def test_compiled_kernels_give_the_same_bits_on_every_number_of_ranks(tmp_path):
    """Of the first steps, all of one shape; with ``--full`` also of the others, and without a checkpoint between."""
    steps = sample(8, 3)

    def compiled(ranks, checkpoint=None, steps=steps):
        return on_ranks(ranks, train, "before prepare", "inductor", checkpoint, steps, timeout_s=600)

    alone = compiled(1)
    if sampling.full:
        assert {*compiled(2)} == {*alone}
    compiled(2, tmp_path / "job", steps // 2)
    assert compiled(1, tmp_path / "job") == alone
