"""Half precision: the same bits on any number of ranks, after stops, and through a save that is interrupted."""

import os
import signal

import pytest
import torch
from torch import nn

import brim.train as bt
from brim.train.checkpoint.checkpointer import Checkpointer
from brim.train.checkpoint.files import RealFiles
from tests.train.gangs import on_ranks
from tests.train.models import Rows, loss_of


def mixed(kind, folder=None, stop_at=None):
    """Half precision, with and without a scaled loss; clipping, a schedule of PyTorch, a smaller last step."""
    run = bt.start(logical_workers=4, seed=3, checkpoint=folder)
    dtype = torch.bfloat16 if kind == "parameters" else torch.float32
    model = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 5)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    things = (model, optimizer, scaler) if kind == "scaler" else (model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    run.prepare(*things, schedule)
    run.clip(1.0)
    loader = run.loader(Rows("rows"), 16, workers=0)
    for _ in run.epochs(2):
        for x, y in run.steps(loader):
            if run.steps_done == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            with torch.autocast("cpu", torch.bfloat16, enabled=kind in ("autocast", "scaler")):
                loss = loss_of(model(x.to(dtype)).float(), y)
            run.backward(loss)
            run.step()
    rate = optimizer.param_groups[0]["lr"]
    found = run.digest(), run.loss, rate, scaler.get_scale() if kind == "scaler" else None
    run.close()
    return found


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["autocast", "parameters", "scaler"])
def test_half_precision_keeps_the_bits(kind):
    found = {result for ranks in (1, 2, 4) for result in on_ranks(ranks, mixed, kind)}
    assert len(found) == 1
    _, loss, rate, scale = found.pop()
    assert loss < 1.7
    assert rate == pytest.approx(1e-2 / 4)
    assert scale in (None, 8192.0)


def stopped_and_resumed(folder, stop_at):
    try:
        return mixed("scaler", folder, stop_at)
    except SystemExit as leaving:
        return leaving.code


def test_half_precision_is_carried_over_a_stop_and_to_other_sizes(tmp_path):
    assert on_ranks(2, stopped_and_resumed, tmp_path, 4) == [75, 75]
    assert on_ranks(4, stopped_and_resumed, tmp_path, 7) == [75] * 4
    assert on_ranks(1, stopped_and_resumed, tmp_path, None) == on_ranks(1, mixed, "scaler")


def stopped_while_saving(folder):
    """SIGTERM twice before the save, and at every file of it."""
    sync = RealFiles.sync

    def interrupted(self, handle):
        os.kill(os.getpid(), signal.SIGTERM)
        sync(self, handle)

    RealFiles.sync = interrupted
    code = stopped_and_resumed(folder, 3)
    (saved,) = folder.glob("save-*")
    return code, Checkpointer(folder, token=9).restore().step, saved.name


def test_signals_while_saving_change_nothing(tmp_path):
    assert on_ranks(1, stopped_while_saving, tmp_path) == [(75, 4, "save-00000001-step-4")]
