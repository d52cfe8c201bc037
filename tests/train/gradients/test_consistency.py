"""What is not equal on every rank, or would not be, ends the job by name."""

import pytest
import torch
from torch import nn

import brim.train as bt
from brim.errors import UserError
from brim.train.gradients.consistency import ConsistencyCheck
from tests.sampling import sample
from tests.train.gangs import on_ranks
from tests.train.models import Rows, loss_of


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(20, 8), nn.Linear(8, 5)
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("mask", torch.ones(70_000))

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def train(change, steps=6, before=None, samples=80, workers=4, after_step=None):
    """Train on this rank; what is said by the error that ends it, with the steps that were done."""
    run = bt.start(logical_workers=workers, seed=5, timeout_s=20)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if before is not None:
        before(model)
    run.prepare(model, optimizer)
    loader = run.loader(Rows("rows", samples), 16, workers=0)
    try:
        for _ in run.epochs(100, steps=steps):
            for x, y in run.steps(loader):
                change(run, model, optimizer)
                run.backward(loss_of(model(x), y))
                if run.step() and after_step is not None:
                    after_step(run, model, optimizer)
    except UserError as error:
        return str(error), run.steps_done
    else:
        return run.digest(), [group["lr"] for group in optimizer.param_groups]
    finally:
        run.close()


def unfrozen(run, model, _):
    if run.begins_step and run.steps_done == 3:
        model.head.bias.requires_grad_(True)


def frozen(model):
    model.head.bias.requires_grad_(False)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_parameter_that_is_unfrozen_later_is_named(ranks):
    for said, steps in on_ranks(ranks, train, unfrozen, 6, frozen):
        assert "parameter 'head.bias' was unfrozen after run.prepare" in said
        assert steps == 3


def another_group(run, _, optimizer):
    if run.begins_step and run.steps_done == 2:
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(4, 3))]})


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_parameter_of_no_prepared_model_is_named(ranks):
    for said, steps in on_ranks(ranks, train, another_group):
        assert r"shape (4, 3) (param_groups[1], number 0) that belongs to no model given to run.prepare" in said
        assert steps == 2


def test_an_optimizer_of_a_module_that_was_not_given_is_refused_at_once():
    model, other = nn.Linear(2, 2), nn.Linear(3, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()])
    with pytest.raises(UserError, match=r"\(3, 3\) \(param_groups\[0\], number 2\) that belongs to no model"):
        bt.start().prepare(model, optimizer)


def parameter_of_rank_0(run, model, _):
    if run.begins_step and run.steps_done == 2 and run.rank == 0:
        with torch.no_grad():
            model.body.weight[1, 2] += 1e-6


def sign_of_rank_1(run, model, _):
    if run.begins_step and run.steps_done == 2 and run.rank == 1:
        with torch.no_grad():
            model.head.bias[3].neg_()


def nothing(*_):
    pass


def scale_of_rank_3(run, model, _):
    if run.steps_done == 3 and run.rank == 3:
        model.scale.mul_(2)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("change", "ranks", "name", "other"),
    [
        (parameter_of_rank_0, 2, "parameter 'body.weight'", "rank 1 has other values than rank 0."),
        (sign_of_rank_1, 4, "parameter 'head.bias'", "rank 1 has other values than rank 0, 2, 3."),
        (scale_of_rank_3, 4, "buffer 'scale'", "rank 3 has other values than rank 0, 1, 2."),
    ],
)
@pytest.mark.parametrize("steps", [3, 200])
def test_a_change_on_one_rank_is_named(change, ranks, name, other, steps):
    when = (nothing, steps, None, 80, 4, change) if change is scale_of_rank_3 else (change, steps)
    for said, done in on_ranks(ranks, train, *when):
        assert f"{name} is not equal on all ranks" in said
        assert other in said
        assert ("call model.eval() before an evaluation" in said) == name.startswith("buffer")
        assert done == 3 or (steps > 3 and done <= 70)  # one of 7 pieces is looked at in every tenth step


def statistic_of_rank_0(run, model):
    if run.begins_step and run.steps_done == 11 and run.rank == 0:
        model[1].running_mean.add_(1)


def statistic_once_per_step(run, model):
    if run.begins_step and run.steps_done == 11:
        model[1].running_mean.add_(1)


def statistic_in_every_micro_batch(run, model):
    if run.steps_done == 11:
        model[1].running_mean.add_(1)


def bias_of_rank_1(run, model):
    if run.begins_step and run.steps_done == 2 and run.rank == 1:
        with torch.no_grad():
            model[2].bias.add_(1)


def train_with_statistics(change, skip=False, compile_it=False, steps=24):
    run = bt.start(logical_workers=4, seed=5, timeout_s=20)
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    norm = torch.compile(model[1], backend=compile_it) if compile_it else model[1]
    loader = run.loader(Rows("rows", 80), 16, workers=0)
    try:
        for _ in run.epochs(100, steps=steps):
            for x, y in run.steps(loader):
                change(run, model)
                hidden = model[0](x)
                if not skip or float(torch.rand(())) < 0.7:
                    hidden = norm(hidden)
                else:
                    hidden = hidden + 0 * (model[1].weight + model[1].bias)
                run.backward(loss_of(model[2](hidden), y))
                run.step()
    except UserError as error:
        return str(error), run.steps_done
    else:
        return run.digest(), run.steps_done
    finally:
        run.close()


SOME = [(statistic_of_rank_0, 1), (statistic_once_per_step, 2), (statistic_of_rank_0, 2), (statistic_of_rank_0, 4)]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("change", "ranks", "compile_it"),
    [(*case, False) for case in SOME] + [(*case, "aot_eager") for case in SOME[: sample(4, 2)]],
)
def test_a_statistic_that_some_micro_batches_change_is_named(change, ranks, compile_it):
    rows = on_ranks(ranks, train_with_statistics, change, False, compile_it)
    for said, steps in rows:
        assert "buffer '1.running_mean' was changed by the script in some micro-batches" in said
        assert steps == 11


def unchanged(run, model):
    pass


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("change", "skip", "compile_it"),
    [
        (statistic_in_every_micro_batch, False, False), (statistic_in_every_micro_batch, False, "aot_eager"),
        (unchanged, True, False),
    ],
)  # fmt: skip
def test_statistics_that_all_micro_batches_change_or_that_a_model_skips_are_no_error(change, skip, compile_it):
    sizes = (1, sample(4, 2) if compile_it else 4)
    rows = [row for ranks in sizes for row in on_ranks(ranks, train_with_statistics, change, skip, compile_it)]
    assert len(set(rows)) == 1
    assert rows[0][1] == 24


def test_a_parameter_of_one_rank_is_named_and_not_the_statistics_of_the_step():
    for said, steps in on_ranks(2, train_with_statistics, bias_of_rank_1, False, False, 100):
        assert steps == 80  # the first comparison of this part, within a step
        assert "parameter '2.bias' is not equal" in said
        assert "buffer" not in said


def test_a_buffer_that_is_too_large_to_be_shared_may_not_change():
    run = bt.start()
    model = Network()
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows"), 16, workers=0)

    def loop():
        for x, y in run.steps(loader):
            model.mask[5] = 0
            run.backward(loss_of(model(x), y))
            run.step()

    with pytest.raises(UserError, match=r"buffer 'mask' \(torch.float32, 70000 elements\) changed in training"):
        loop()
    run.close()


def rate_of_rank_1(run, _, optimizer):
    if run.begins_step and run.steps_done == 2 and run.rank == 1:
        optimizer.param_groups[0]["lr"] = 0.05


def momentum_of_rank_0(run, _, optimizer):
    if run.begins_step and run.steps_done == 2 and run.rank == 0:
        optimizer.param_groups[0]["momentum"] = 0.8


@pytest.mark.parametrize(
    ("change", "ranks", "words"),
    [
        (rate_of_rank_1, 2, "param_groups[0]['lr']: 0.05 on rank 1, 0.1 on rank 0"),
        (rate_of_rank_1, 4, "param_groups[0]['lr']: 0.05 on rank 1, 0.1 on rank 0"),
        (momentum_of_rank_0, 2, "param_groups[0]['momentum']: 0.9 on rank 1, 0.8 on rank 0"),
    ],
)
def test_a_setting_of_one_rank_is_named_in_the_step_in_which_it_differs(change, ranks, words):
    for said, steps in on_ranks(ranks, train, change):
        assert words in said
        assert steps == 2


def train_with_batch_of_rank_1(samples, batch):
    run = bt.start(logical_workers=4, seed=5, timeout_s=20)
    model = Network()
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", samples), 16, workers=0)
    try:
        for _ in run.epochs(100, steps=6):
            for x, y in run.steps(loader):
                if run.begins_step and run.steps_done == 2 and run.rank == 1:
                    loader.set_global_batch(batch)
                run.backward(loss_of(model(x), y))
                run.step()
    except UserError as error:
        return str(error), run.steps_done
    else:
        return "", run.steps_done
    finally:
        run.close()


@pytest.mark.parametrize("batch", [4, 32])
def test_another_batch_on_one_rank_is_named_in_the_first_step_in_which_it_differs(batch):
    for said, steps in on_ranks(2, train_with_batch_of_rank_1, 160, batch):
        assert f"{batch} samples in step 3 of epoch 0 on rank 1, 16 samples in step 3 of epoch 0 on rank 0" in said
        assert steps == 3


def rate_by_hand(run, _, optimizer):
    if run.begins_step:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + run.steps_done)


def test_a_rank_without_samples_in_a_step_takes_the_settings_of_the_others():
    expected = on_ranks(1, train, rate_by_hand, 4, None, 18)[0]  # every other step has two samples, for two of four
    assert expected[1] == [0.1 / 4]
    for ranks in (2, 4):
        assert set(map(repr, on_ranks(ranks, train, rate_by_hand, 4, None, 18))) == {repr(expected)}


def test_every_part_of_the_state_is_looked_at_in_turn():
    model = Network()
    agreement = ConsistencyCheck([model], [], {id(param): "" for param in model.parameters()})
    period = [int(agreement.state_checksum(step)) for step in range(0, 160, 10)]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        for place in {0, tensor.numel() - 1}:
            flat = tensor.detach().view(-1)
            before = flat[place].item()
            flat[place] = -before
            assert [int(agreement.state_checksum(step)) for step in range(0, 160, 10)] != period, (name, place)
            flat[place] = before
    assert [int(agreement.state_checksum(step)) for step in range(0, 160, 10)] == period
    assert agreement.state_checksum(7) == 0
