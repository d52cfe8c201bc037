"""How a job ends: after its epochs or a number of steps, early by its script, preempted, or by an error."""

import contextlib
import os
import signal

import pytest
import torch
from torch import nn

import brim.train as bt
from brim.errors import UserError
from tests.train.gangs import on_ranks
from tests.train.models import JOBS, Rows, loss_of


def some_steps(last, epochs=3):
    run = bt.start(logical_workers=4, seed=5)
    model, optimizer, kind, _ = JOBS["mlp"]()
    run.prepare(model, optimizer)
    loader = run.loader(Rows(kind), 16, workers=0)
    bodies = 0
    for _ in run.epochs(epochs, steps=last):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            run.step()
        bodies += 1
    run.close()
    return run.digest(), run.steps_done, bodies


@pytest.mark.cases(1)
@pytest.mark.parametrize(("last", "steps", "bodies"), [(0, 0, 0), (3, 3, 1), (5, 5, 1), (7, 7, 2), (99, 15, 3)])
def test_a_job_may_end_after_a_number_of_steps(last, steps, bodies):
    found = {*on_ranks(1, some_steps, last), *on_ranks(2, some_steps, last)}
    assert {row[1:] for row in found} == {(steps, bodies)}
    assert len(found) == 1


def ends_of_own_epochs(folder):
    run = bt.start(checkpoint=folder)
    model = nn.Linear(20, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model, optimizer)
    loader, ended = run.loader(Rows("rows", 32), 16, workers=0), []
    for epoch in range(3):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            run.step()
        if run.epoch == epoch:
            optimizer.param_groups[0]["lr"] /= 2
            ended.append(epoch)
    run.finish()
    run.close()
    return ended, optimizer.param_groups[0]["lr"], run.digest()


@pytest.mark.slow
def test_a_finished_loop_without_run_epochs_does_not_run_the_end_of_an_epoch_again(tmp_path):
    first = ends_of_own_epochs(tmp_path)
    assert first[:2] == ([0, 1, 2], 0.1 / 8)
    assert ends_of_own_epochs(tmp_path) == ([], *first[1:])


def ends_early(folder, how, epochs=10):
    """A loop that its script leaves by ``break`` at the end of its second epoch, or in the middle of it."""
    run = bt.start(logical_workers=4, seed=5, checkpoint=folder)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader, bodies = run.loader(Rows("rows", 48), 16, workers=0), 0
    last = 5 if how == "in an epoch" else 6
    with contextlib.suppress(ZeroDivisionError):
        try:
            loop = run.epochs(epochs)  # kept, as a progress bar keeps it
            for epoch in loop:
                for x, y in run.steps(loader):
                    bodies += 1
                    run.backward(loss_of(model(x), y))
                    if run.step() and how == "in an epoch" and run.steps_done == last:
                        break
                if epoch >= 1:
                    if how == "fails":
                        1 / 0  # noqa: B018
                    break
        finally:
            if how == "fails":
                run.finish()
    if how != "fails":
        run.finish()
    run.close()
    return run.steps_done, run.digest(), bodies > 0


@pytest.mark.cases(1)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("how", ["at the end of an epoch", "in an epoch"])
def test_a_job_that_ended_early_does_no_step_when_it_is_started_again(tmp_path, how, ranks):
    steps = 5 if how == "in an epoch" else 6
    first = on_ranks(ranks, ends_early, tmp_path, how)
    assert first == [(steps, first[0][1], True)] * ranks
    for again in (1, 2):
        assert on_ranks(again, ends_early, tmp_path, how) == [(steps, first[0][1], False)] * again
    (trained_on,) = on_ranks(1, ends_early, tmp_path, how, 11)
    assert trained_on[0] > steps
    assert on_ranks(1, ends_early, tmp_path, how, 11) == [(*trained_on[:2], False)]


def ends_own_loop_early(folder, how, epochs=10):
    """A loop without ``run.epochs`` that its script leaves in the middle of its second epoch, or behind it."""
    run = bt.start(logical_workers=4, seed=5, checkpoint=folder)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader, bodies, ends = run.loader(Rows("rows", 48), 16, workers=0), 0, False
    for epoch in range(epochs) if how != "with run.epochs" else run.epochs(epochs):
        for x, y in run.steps(loader):
            bodies += 1
            run.backward(loss_of(model(x), y))
            if ends := run.step() and how == "in an epoch" and run.steps_done >= 5:
                break
        if ends or (how == "between epochs" and epoch == 1):
            break
    try:
        run.finish()
    finally:
        run.close()
    return run.steps_done, run.digest(), bodies > 0


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loop_without_run_epochs_left_in_an_epoch_does_no_step_when_it_is_started_again(tmp_path, ranks):
    first = on_ranks(ranks, ends_own_loop_early, tmp_path, "in an epoch")
    assert first == [(5, first[0][1], True)] * ranks
    saves = sorted(tmp_path.glob("save-*"))
    for again in (1, 2):
        assert on_ranks(again, ends_own_loop_early, tmp_path, "in an epoch") == [(5, first[0][1], False)] * again
        assert sorted(tmp_path.glob("save-*")) == saves
    assert on_ranks(1, ends_own_loop_early, tmp_path, "with run.epochs", 3)[0][::2] == (9, True)


def test_a_loop_without_run_epochs_left_between_epochs_is_refused_when_it_asks_for_more(tmp_path):
    (first,) = on_ranks(1, ends_own_loop_early, tmp_path, "between epochs")
    assert first[::2] == (6, True)
    assert on_ranks(1, ends_own_loop_early, tmp_path, "whole", 2) == [(*first[:2], False)]  # asks for no more
    with pytest.raises(UserError, match=r"called run\.finish after 2 epochs of a loop without run\.epochs"):
        ends_own_loop_early(tmp_path, "whole")
    assert on_ranks(1, ends_own_loop_early, tmp_path, "with run.epochs", 3)[0][::2] == (9, True)


def test_a_loop_after_run_finish_is_refused(tmp_path):
    run = bt.start(checkpoint=tmp_path)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", 48), 16, workers=0)

    def finishes_every_epoch():
        for _ in range(2):
            for x, y in run.steps(loader):
                run.backward(loss_of(model(x), y))
                run.step()
            run.finish()

    with pytest.raises(UserError, match=r"run\.steps after run\.finish"):
        finishes_every_epoch()
    assert run.steps_done == 3
    run.close()


def receives_the_early_end():
    """Rank 0 has left both loops; rank 1 receives that state in the middle of the epoch, and does not leave them."""
    run = bt.start(logical_workers=4, seed=5)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader, ends = run.loader(Rows("rows", 48), 16, workers=0), []
    for epoch in run.epochs(2):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            if run.step() and run.steps_done == 2:
                run._position.ended_early = [2, None]
                tensors, tree = run._job.give()
                run._position.ended_early = None
                run._job.take({name: value.clone() for name, value in tensors.items()}, tree)
        ends.append((epoch, run.steps_done))
        model.bias.data.zero_()
    run.close()
    return ends, bool(model.bias.any())  # what the code at the end of the epoch did is undone


def test_a_rank_that_receives_the_state_of_an_early_end_ends_too():
    assert on_ranks(1, receives_the_early_end) == [([(0, 2)], True)]


def test_a_job_that_fails_has_not_ended_early(tmp_path):
    found = [on_ranks(1, ends_early, tmp_path, "fails")[0][::2] for _ in range(2)]
    assert found == [(6, True), (9, True)]


def test_a_preempted_job_has_not_ended_early_even_if_its_script_goes_on_to_the_end(tmp_path):
    steps = []
    for signals in (True, False):
        run = bt.start(seed=5, checkpoint=tmp_path)
        model = nn.Linear(20, 5)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = run.loader(Rows("rows", 48), 16, workers=0)
        with contextlib.suppress(SystemExit):
            for _ in run.epochs(2):
                for x, y in run.steps(loader):
                    if signals and run.steps_done == 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    run.backward(loss_of(model(x), y))
                    run.step()
        with contextlib.suppress(SystemExit):
            run.finish()
        steps.append(run.steps_done)
        run.close()
    assert steps == [2, 6]


def test_a_run_that_is_finished_in_its_loop_is_told_so():
    run = bt.start()
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", 48), 16, workers=0)

    def finishes_every_epoch():
        for _ in run.epochs(2):
            for x, y in run.steps(loader):
                run.backward(loss_of(model(x), y))
                run.step()
            run.finish()

    with pytest.raises(UserError, match=r"run\.finish was called in the loop over run\.epochs"):
        finishes_every_epoch()
    run.close()


@pytest.mark.parametrize(("micro_batches", "said"), [
    (0, r"an epoch without a step: iterate over run\.steps"),
    (2, r"left in epoch 0 before its end: to end early use run\.epochs"),  # within the first step
    (8, r"left in epoch 0 before its end: to end early use run\.epochs"),
])  # fmt: skip
def test_an_epoch_that_is_left_early_is_no_silent_end(micro_batches, said):
    run = bt.start(logical_workers=4)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows"), 16, workers=0)

    def train_a_little():
        for _ in run.epochs(3):
            for number, (x, y) in enumerate(run.steps(loader) if micro_batches else (), 1):
                run.backward(loss_of(model(x), y))
                run.step()
                if number == micro_batches:
                    break

    with pytest.raises(UserError, match=said):
        train_a_little()
