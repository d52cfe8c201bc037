"""Buffers of a model: what is merged over micro-batches, what is reported, and what is refused."""

import contextlib
import io
import math

import pytest
import torch
from torch import nn

import brim.train as bt
from brim.errors import UserError
from tests.train.gangs import on_ranks
from tests.train.models import Rows, loss_of


class Remembers(nn.Module):
    """A model with a buffer that each forward pass changes in its own way."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.body = kind, nn.Linear(20, 5)
        dtype = torch.int64 if kind in ("calls", "longest", "tokens") else torch.float32
        dtype = torch.bool if kind == "flag" else dtype
        begins = {"least": math.inf, "least_of_all": 1e30, "zero": math.inf, "decays": 1.0, "flag": False}.get(kind, 0)
        self.register_buffer("memory", torch.full((70_000 if kind == "large" else 4,), begins, dtype=dtype))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                getattr(self, self.kind)(x)
        return self.body(x)

    def calls(self, _):
        self.memory += 1

    def longest(self, x):
        self.memory[0] = int(1000 * x.max())

    def extreme(self, x):
        self.memory.copy_(torch.minimum(self.memory, x.min()))

    def least(self, x):
        self.memory.copy_(torch.minimum(self.memory, x.min()))

    least_of_all = least

    def zero(self, _):
        self.memory.clamp_(max=0.0)

    def decays(self, _):
        self.memory.mul_(1e-8)

    def flag(self, _):
        self.memory.fill_(True)

    def tokens(self, x):
        self.memory += 16_777_217

    def queue(self, x):
        self.memory.copy_(x[0, :4])

    def mean(self, x):
        self.memory = 0.9 * self.memory + 0.1 * x.mean()  # another tensor in its place

    def large(self, x):
        self.memory[7] = x[0, 0]

    def grows(self, x):
        self.memory = torch.cat([self.memory, x[0, :1]])


def train(kind, logical_workers=4):
    run = bt.start(logical_workers=logical_workers, seed=5)
    model = Remembers(kind)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", 80), 16, workers=0)
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            for _ in run.epochs(1):
                for x, y in run.steps(loader):
                    run.backward(loss_of(model(x), y))
                    run.step()
            found = model.memory.tolist()
        except UserError as error:
            found = str(error)
        finally:
            run.close()
    return run.digest(), found, printed.getvalue()


def test_a_number_may_become_small_beside_what_it_was():
    for ranks in (1, 2):
        for _, found, said in on_ranks(ranks, train, "decays"):
            assert (max(map(abs, found)) < 1e-7, said) == (True, "")


def test_a_count_that_all_micro_batches_advance_equally_is_kept_in_silence():
    assert {(digest, repr(found), said) for n in (1, 2, 4) for digest, found, said in on_ranks(n, train, "calls")} == {
        (on_ranks(1, train, "calls")[0][0], "[5, 5, 5, 5]", "")
    }


@pytest.mark.parametrize("kind", ["extreme", "queue", "mean"])
def test_a_buffer_of_which_the_mean_is_taken_is_reported_once_by_name(kind):
    rows = [row for ranks in (1, 2) for row in on_ranks(ranks, train, kind)]
    assert len({digest for digest, _, _ in rows}) == 1
    for _, _, said in rows:
        assert said.count("brim: buffer 'memory' is changed in different ways by different micro-batches") == 1
        assert "wrong for a queue, a minimum or a maximum" in said


def test_a_buffer_that_is_replaced_by_another_tensor_is_merged_as_one_that_is_changed_in_place():
    _, found, _ = on_ranks(1, train, "mean")[0]
    assert found[0] != 0
    assert len(set(found)) == 1


@pytest.mark.cases(8)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("longest", "buffer 'memory' (torch.int64) is changed in different ways by different micro-batches"),
        ("large", "buffer 'memory' (torch.float32, 70000 elements) changed in training"),
        ("least", "buffer 'memory' (torch.float32) went from inf to "),
        ("least_of_all", "buffer 'memory' (torch.float32) went from 1.0000000150474662e+30 to "),
        ("zero", "buffer 'memory' (torch.float32) went from inf to 0.0 in one micro-batch"),
        ("flag", "buffer 'memory' (torch.bool, 4 elements) changed in training"),
        ("tokens", "buffer 'memory' (torch.int64) went from 0 to 16777217 in one micro-batch"),
        ("grows", "buffer 'memory' was torch.float32 [4] in run.prepare and is torch.float32 [5] now"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_buffer_that_cannot_be_merged_ends_the_job_by_name(kind, words, ranks):
    assert any(words in str(found) for _, found, _ in on_ranks(ranks, train, kind))


@pytest.mark.parametrize("kind", ["least", "least_of_all", "zero", "flag", "tokens"])
def test_with_one_logical_worker_buffers_are_those_of_a_loop_by_hand(kind):
    ((_, found, said),) = on_ranks(1, train, kind, 1)
    model, rows = Remembers(kind), Rows("rows", 80)
    for at in range(0, 80, 16):
        model(torch.stack([rows[n][0] for n in range(at, at + 16)]))
    assert (found, said) == (model.memory.tolist(), "")
