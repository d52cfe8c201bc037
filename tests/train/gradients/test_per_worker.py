"""Values of logical workers, and carried values: committed with the step, equal on every number of ranks."""

import pytest
import torch
from torch import nn

import brim.train as bt
from brim.errors import UserError
from tests.train.gangs import on_ranks
from tests.train.models import Rows, loss_of

WORKERS = 4


class Recurrent(nn.Module):
    """The hidden state of the last step goes in, the new one comes out."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(20, 8), nn.Linear(8, 5)

    def forward(self, x, hidden):
        hidden = self.cell(x, hidden)
        return self.out(hidden), hidden


def parts():
    torch.manual_seed(3)
    model = Recurrent()
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def recurrent(samples, checkpoint=None, steps=None):
    """Digest, losses, and what was carried."""
    run = bt.start(logical_workers=WORKERS, checkpoint=checkpoint)
    hidden = run.per_worker("hidden", torch.zeros(4, 8))
    seen = run.carry("seen", {"loss": None})
    run.prepare(*(made := parts()))
    loader = run.loader(Rows("rows", samples), 16, workers=0, shuffle=False)
    losses = []
    for _ in run.epochs(2, steps=steps):
        for x, y in run.steps(loader):
            output, new = made[0](x, hidden.value[: len(x)])
            if len(x) == 4:
                hidden.value = new
            run.backward(loss_of(output, y))
            if run.step():
                losses.append(run.loss)
                seen["loss"] = run.loss
    run.close()
    return run.digest(), losses, seen, hidden.state_dict()["all"].tolist()


def by_hand():
    """The same in one batch, with one hidden state for all samples."""
    model, optimizer = parts()
    rows, hidden, losses = Rows("rows", 64), torch.zeros(16, 8), []
    for step in range(8):
        place = slice(step % 4 * 16, step % 4 * 16 + 16)
        output, hidden = model(rows.x[place], hidden.detach())
        loss = loss_of(output, rows.y[place])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, hidden.detach()


def test_a_hidden_state_goes_from_step_to_step_as_in_a_plain_loop():
    torch.set_num_threads(1)
    losses, hidden = by_hand()
    _, found, _, values = recurrent(64)
    assert found == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(torch.tensor(values).view(16, 8), hidden)


@pytest.mark.parametrize("samples", [64, 66])
def test_hidden_states_are_equal_on_every_number_of_ranks(samples):
    """Of 66 the last step of an epoch has two: two workers have none, and keep their value."""
    found = [row for ranks in (1, 2, 4) for row in on_ranks(ranks, recurrent, samples)]
    assert len({(digest, str(values)) for digest, _, _, values in found}) == 1


def test_hidden_states_and_values_come_from_the_checkpoint(tmp_path):
    folder = tmp_path / "job"
    on_ranks(2, recurrent, 64, folder, 3)
    (resumed,) = on_ranks(1, recurrent, 64, folder, 8)
    (alone,) = on_ranks(1, recurrent, 64)
    assert (resumed[0], resumed[1], resumed[2:]) == (alone[0], alone[1][3:], alone[2:])
    (finished,) = on_ranks(1, recurrent, 64, folder, 8)
    assert finished[2] == alone[2]  # filled in place though no step was made


def after_backward(run, hidden, x):
    hidden.value = torch.zeros(4, 8)


def outside(run):
    hidden = run.per_worker("hidden", torch.zeros(4, 8))
    return hidden.value


def late(run):
    run.prepare(nn.Linear(2, 2))
    run.per_worker("hidden", torch.zeros(4, 8))


def twice(run):
    run.per_worker("hidden", torch.zeros(4, 8))
    run.per_worker("hidden", torch.zeros(4, 8))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (outside, "the value of 'hidden' was used outside of run.steps"),
        (late, "run.per_worker after run.prepare, expected before"),
        (twice, "run.per_worker got the name 'hidden' twice"),
        (lambda run: run.per_worker("count", torch.zeros(3, dtype=torch.int64)), "got torch.int64, expected tensors"),
        (lambda run: run.per_worker("count", [1.0]), "got float, expected tensors of"),
        (lambda run: run.carry("best", 0.5), "run.carry 'best' got a float, expected a dict, or state_dict"),
    ],
)
def test_misuse_is_named(mistake, words):
    with pytest.raises(UserError, match=words):
        mistake(bt.start(logical_workers=WORKERS))


def test_fast_mode_has_no_logical_workers():
    with pytest.raises(UserError, match="fast mode has no logical workers"):
        bt.start().per_worker("hidden", torch.zeros(2))


@pytest.mark.parametrize(
    ("value", "words"),
    [(torch.zeros(3, 8), r"was float32\[4, 8\] first and is float32\[3, 8\] now"), (None, "after run.backward")],
)
def test_a_value_that_would_be_lost_is_refused(value, words):
    run = bt.start(logical_workers=WORKERS)
    hidden = run.per_worker("hidden", torch.zeros(4, 8))
    run.prepare(*(made := parts()))
    x, y = next(iter(run.steps(run.loader(Rows("rows", 64), 16, workers=0))))
    output, new = made[0](x, hidden.value)
    if value is None:
        run.backward(loss_of(output, y))
    with pytest.raises(UserError, match=words):
        hidden.value = new if value is None else value
    run.close()
