"""The loss that brim is told is what the script has reported; it is kept through a checkpoint."""

import numpy as np
import pytest
import torch

import brim.train as bt
from brim.errors import UserError


def begun(folder, steps):
    """A run that has trained for some steps, and reports losses of its own on the way."""
    run = bt.start(checkpoint=folder, seed=1)
    model = torch.nn.Linear(1, 1)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = run.loader([(torch.ones(1), torch.zeros(1))] * 8, 8, workers=0)
    told = []
    for epoch in run.epochs(steps):
        for x, y in run.steps(loader):
            run.backward(((model(x) - y) ** 2).mean())
            run.step()
        told.append(run._job.told_loss())
        if epoch == 1:
            run.report(loss=torch.tensor([7.0], requires_grad=True), accuracy=0.5)
    told.append(run._job.told_loss())
    loss = run.loss
    run.close()
    loader.close()
    return told, loss


def test_the_mean_of_the_step_is_told_until_the_script_reports_a_loss_and_after_a_restart_its_own(tmp_path):
    told, loss = begun(tmp_path, 3)
    assert told == [pytest.approx(loss), pytest.approx(loss), 7.0, 7.0]
    assert begun(tmp_path, 3)[0] == [7.0]  # nothing is left to train: what was told stands


@pytest.mark.parametrize(("loss", "told"), [
    (2, 2.0), (np.float32(0.5), 0.5), (float("inf"), float("inf")), (torch.tensor(3.0), 3.0), (None, None),
])
def test_numbers_of_any_kind_can_be_reported(loss, told):
    run = bt.start(seed=1)
    run.report(loss=loss)
    assert run._job.told_loss() == told
    run.close()


@pytest.mark.parametrize(("loss", "found"), [
    (torch.ones(3), r"a tensor of shape \(3,\)"), ("low", "'low'"), ([1.0], r"\[1.0\]"), ({}, r"\{\}"),
    (1 + 2j, r"\(1\+2j\)"), (torch.tensor(1 + 2j), r"tensor\(1.\+2.j\)"),
    pytest.param(10**400, "a number that no float can hold", id="huge"),
])
def test_what_is_no_loss_is_refused_in_a_line(loss, found):
    run = bt.start(seed=1)
    with pytest.raises(UserError, match=rf"^run.report\(loss=...\): found {found}, expected a number"):
        run.report(loss=loss)
    run.close()
