"""The loop: the same bits on every number of ranks, and what it says when it is used wrongly."""

import contextlib
import gc
import os
import signal
import sys

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import brim.train as bt
from brim.errors import ConfigError, UserError
from tests.sampling import sample
from tests.train.gangs import on_ranks
from tests.train.models import JOBS, Rows, loss_of

WORKERS = 4


def train(name, epochs=2, workers=WORKERS, batch=16, **options):
    """Two epochs whose last steps are smaller; what every rank must agree on."""
    run = bt.start(logical_workers=workers, seed=5, noise_every=2, **options)
    model, optimizer, kind, max_norm = JOBS[name]()
    model, optimizer = run.prepare(model, optimizer)
    run.clip(max_norm)
    run.schedule(lambda samples: 1 / (1 + samples / 100))
    loader = run.loader(Rows(kind), batch, workers=0)
    losses = []
    for _ in run.epochs(epochs):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            if run.step():
                losses.append(run.loss)
        run.report(loss=losses[-1])
    result = run.digest(), tuple(losses), run.samples, run.steps_done, run.noise.state_dict()
    run.close()
    loader.close()
    return result


def train_all(names):
    return {name: train(name) for name in names}


NAMES = [*JOBS][: sample(4, 3)]
"""The last has 50 MB of gradients: ``tests/elastic/test_storms.py`` compares its bits in the sample, too."""


@pytest.fixture(scope="module")
def alone():
    return on_ranks(1, train_all, NAMES)[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_bits_are_equal_on_every_number_of_ranks(alone, ranks):
    for found in on_ranks(ranks, train_all, NAMES):
        assert found == alone


def test_training_learns_and_counts_samples(alone):
    for name, (_, losses, samples, steps, noise) in alone.items():
        assert samples == 2 * 78, name
        assert steps == 10
        assert sum(losses[5:9]) < sum(losses[:4]), name
        assert noise["steps"] == 4  # not at step 4, whose shares differ


def by_hand(name):
    """The same job without brim.train, as a check of what exact mode computes."""
    from brim.train.data.loader import Loader
    from brim.train.environment import seed_everything

    seed_everything(5, "build")
    model, optimizer, kind, max_norm = JOBS[name]()
    loader = Loader(Rows(kind), 16, logical_workers=WORKERS, seed=5, workers=0)
    step, losses = 0, []
    for epoch in range(2):
        while loader.epoch == epoch:
            samples = [loader.samples(epoch, loader.step, worker) for worker in range(WORKERS)]
            rates = [group["lr"] for group in optimizer.param_groups]
            optimizer.zero_grad()
            losses.append(0.0)
            for worker, count in enumerate(samples):
                x, y = loader.fetch(epoch, loader.step, worker)
                seed_everything(5, "step", step, worker)
                loss = loss_of(model(x), y) * (count / sum(samples))
                loss.backward()
                losses[-1] += loss.item()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            done = step * 16 - (2 if step > 4 else 0)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] / (1 + done / 100)
            optimizer.step()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            loader.commit(epoch, loader.step)
            step += 1
    return losses


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_the_losses_are_those_of_a_loop_by_hand(alone, name):
    torch.set_num_threads(1)
    assert alone[name][1] == pytest.approx(by_hand(name), rel=1e-3)


def fast(name, micro_batch=None):
    run = bt.start(seed=5)
    model, optimizer, kind, _ = JOBS[name]()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    run.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5))
    run.clip(0.5)
    loader = run.loader(Rows(kind), 16, workers=0, micro_batch=micro_batch)
    sizes = []
    for _ in run.epochs(2):
        for x, y in run.steps(loader):
            sizes.append(len(x))
            run.backward(loss_of(model(x), y))
            run.step()
    run.close()
    return [p.detach().numpy() for p in model.parameters()], sizes


def misuse(kind):
    """What is said when the loop is written wrongly."""
    run = bt.start(logical_workers=None if kind == "clip alone" else 4)
    model = nn.Linear(20, 5)
    left_out = nn.Linear(2, 2)
    both = nn.ModuleDict({"used": model, "left_out": left_out})
    optimizer = torch.optim.SGD((both if kind == "unused" else model).parameters(), lr=0.1)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    run.prepare(both if kind == "unused" else model, optimizer, rates)
    loader = run.loader(Rows("rows"), 18 if kind == "batch" else 16, workers=0)
    for x, y in run.steps(loader):
        loss = loss_of(model(x), y)
        if kind == "shape":
            loss = loss.expand(2)
        if kind != "no backward":
            run.backward(loss)
        if kind == "twice":
            run.backward(loss_of(model(x), y))
        if kind == "clip values":
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        elif kind.startswith("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if kind == "optimizer":
            optimizer.step()
        if kind != "no step":
            run.step()
        if kind == "optimizer after" and run.steps_done == 2:
            optimizer.step()
        if kind == "another optimizer" and run.steps_done:
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        if kind == "schedule" and run.steps_done:
            rates.step()
        if kind == "frozen" and run.steps_done == 1:
            model.bias.requires_grad_(False)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("unused", UserError, "no gradient for left_out.weight, left_out.bias"),
        ("frozen", UserError, r"no gradient for bias: bias was frozen .* after run.prepare"),
        ("batch", ConfigError, "global_batch=18 is not a multiple of 4"),
        ("shape", UserError, "expected one number"),
        ("twice", UserError, "once"),
        ("no backward", UserError, "run.step without run.backward"),
        ("no step", UserError, "run.step was not called"),
        ("clip", UserError, "to clip use run.clip"),
        ("clip alone", UserError, "to clip use run.clip"),
        ("clip values", UserError, r"run.clip\(max_value=...\)"),
        ("optimizer", UserError, "optimizer.step was called by the script: leave it to run.step"),
        ("optimizer after", UserError, "optimizer.step was called by the script: leave it to run.step"),
        ("another optimizer", UserError, "SGD.step was called by the script, for parameters of a model given to"),
        ("schedule", UserError, "stepped by the script, and by run.step, too"),
    ],
)
def test_misuse_is_named(kind, error, words):
    with pytest.raises(error, match=words):
        misuse(kind)


def test_a_refused_second_prepare_changes_nothing():
    run = bt.start(logical_workers=4)
    first, second = nn.Linear(20, 5), nn.Linear(20, 5)
    run.prepare(first, torch.optim.SGD(first.parameters(), lr=0.1))
    before = run.hashes()
    with pytest.raises(UserError, match="called twice"):
        run.prepare(second, torch.optim.SGD(second.parameters(), lr=0.1))
    assert run.hashes() == before
    run.close()


class Repeated(nn.Module):
    """A layer that is used three times, each time in a checkpoint of activations."""

    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.out, self.reentrant = nn.Linear(20, 20), nn.Linear(20, 5), reentrant

    def forward(self, x):
        x = x.requires_grad_()
        for _ in range(3):
            x = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return self.out(x)


def test_a_reentrant_checkpoint_of_a_layer_that_is_used_again_is_named():
    for reentrant in (False, True):
        run = bt.start(logical_workers=4)
        model = Repeated(reentrant)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        x, y = next(run.steps(run.loader(Rows("rows"), 16, workers=0)))
        loss = loss_of(model(x), y)
        with contextlib.ExitStack() as fails:
            if reentrant:
                fails.enter_context(pytest.raises(UserError, match=r"'layer.*second gradient.* use_reentrant=False"))
            run.backward(loss)
        run.close()


@pytest.mark.parametrize("wrong", ["thing", "rule", "model"])
def test_a_refused_prepare_leaves_nothing_and_another_may_follow(wrong):
    run = bt.start(logical_workers=4)
    first, second = nn.Linear(20, 5), nn.Linear(20, 5)
    rates = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(first.parameters(), lr=0.1), 4)
    others = {"thing": (first, rates, "text"), "rule": (first, rates.optimizer, rates)}
    things = others.get(wrong, (nn.Linear(3, 3), rates.optimizer))  # an optimizer of another model
    before = dict(run._job.parts.parts)
    with pytest.raises((UserError, ConfigError)):
        run.prepare(*things, lr_rule="unknown" if wrong == "rule" else "auto")
    assert not any(part._post_accumulate_grad_hooks for model in things[:1] for part in model.parameters())
    assert run._job.parts.parts == before
    run.prepare(second, torch.optim.SGD(second.parameters(), lr=0.1))
    assert [name.partition(".")[2] for name in run.hashes() if name.startswith("model.")] == ["0.weight", "0.bias"]
    rates.optimizer.step()  # no longer the run's own
    run.close()


def test_a_closed_run_leaves_no_hooks():
    before = sys.excepthook
    run = bt.start(logical_workers=4)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model.weight._post_accumulate_grad_hooks
    assert sys.excepthook is not before
    run.close()
    assert not model.weight._post_accumulate_grad_hooks
    assert sys.excepthook is before


def test_a_closed_run_leaves_no_process_and_no_open_file_of_its_loaders():
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    run = bt.start()
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loaders = [run.loader(Rows("rows"), 16, workers=1), run.loader(Rows("rows"), 16, workers=1)]
    next(run.steps(loaders[0]))
    processes = [process for loader in loaders for process in loader._pool.worker_ids()]
    assert len(processes) >= 2  # workers start meanwhile
    run.close()
    assert not [process for process in processes if os.path.exists(f"/proc/{process}")]
    assert sorted(os.listdir("/proc/self/fd")) == before
    run.close()


@pytest.mark.parametrize("number", [6, 0, 4.0, "4", True])
def test_the_number_of_logical_workers_is_a_power_of_two(number):
    with pytest.raises(ConfigError, match=f"logical_workers={number!r}: expected a .*power of two"):
        bt.start(logical_workers=number)


def zeros():
    run = bt.start(logical_workers=4)
    both = nn.ModuleDict({"used": nn.Linear(20, 5), "left_out": nn.Linear(2, 2)})
    before = both["left_out"].weight.clone()
    run.prepare(both, torch.optim.SGD(both.parameters(), lr=0.1), unused="zeros")
    loader = run.loader(Rows("rows"), 16, workers=0)
    for x, y in run.steps(loader):
        run.backward(loss_of(both["used"](x), y))
        run.step()
    run.close()
    return torch.equal(before, both["left_out"].weight), run.digest()


def test_unused_parameters_may_count_as_zeros():
    found = {*on_ranks(1, zeros), *on_ranks(2, zeros)}
    assert len(found) == 1
    assert found.pop()[0]


def shared(kind, checkpoint=None, epochs=2):
    """A network whose first layer is also a part of a second model, or is given once more by itself."""
    run = bt.start(logical_workers=4, seed=5, checkpoint=checkpoint)
    first, last = nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5)), nn.Linear(5, 20, bias=False)
    head = nn.Linear(20, 5, bias=False)
    head.weight = first[0].weight
    models = {"one": [nn.ModuleList([first, last, head])], "two": [first, nn.ModuleList([last, head])]}
    models["part"] = [*models["one"], first]
    optimizer = torch.optim.SGD(models["one"][0].parameters(), lr=0.1, momentum=0.9)
    run.prepare(*models[kind], optimizer)
    run.clip(0.5)
    loader = run.loader(Rows("rows"), 16, workers=0)
    for _ in run.epochs(epochs):
        for x, y in run.steps(loader):
            run.backward(loss_of(head(last(first(x))), y))
            run.step()
    run.close()
    return run.steps_done, run.digest(), [t.detach().numpy().tobytes() for t in models["one"][0].state_dict().values()]


def test_models_may_share_parameters_and_come_to_what_one_model_comes_to(tmp_path):
    found = {kind: shared(kind) for kind in ("one", "two", "part")}
    assert found["one"][2] == found["two"][2] == found["part"][2]
    shared("two", tmp_path, 1)
    assert shared("two", tmp_path) == found["two"]
    assert on_ranks(2, shared, "two") == [found["two"]] * 2


def few_samples():
    """An epoch that ends in a step of two samples: two of four workers have none, rank 0 of 4 has no iteration."""
    run = bt.start(logical_workers=4)
    model = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 5))
    run.prepare(model, torch.optim.Adam(model.parameters()))
    loader = run.loader(Rows("rows", samples=18), 16, workers=0)
    iterations = 0
    for _ in run.epochs(2):
        for x, y in run.steps(loader):
            iterations += 1
            run.backward(loss_of(model(x), y))
            run.step()
    run.close()
    return run.digest(), run.samples, run.steps_done, iterations


def test_a_worker_without_samples_counts_for_nothing():
    found = [on_ranks(ranks, few_samples) for ranks in (1, 2, 4)]
    assert {row[:3] for rows in found for row in rows} == {found[0][0][:3]}
    assert found[0][0][1:3] == (36, 4)
    assert {sum(row[3] for row in rows) for rows in found} == {12}


def once_per_step(workers, samples):
    """What code that runs once per step has seen and changed; the last step of an epoch has fewer samples than V."""
    run = bt.start(logical_workers=workers, seed=1)
    model = nn.Linear(20, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.prepare(model, optimizer)
    seen = run.carry("seen", {"before": [], "after": []})
    loader = run.loader(Rows("rows", samples=samples), 8, workers=0)
    for epoch in run.epochs(2):
        for x, y in run.steps(loader):
            if run.begins_step:
                seen["before"].append(run.steps_done)
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + run.steps_done)
            run.backward(loss_of(model(x), y))
            if run.step():
                seen["after"].append(run.steps_done)
                with torch.no_grad():
                    model.bias.mul_(0.5)
        seen[f"loss of {epoch}"] = run.loss
    result = run.digest(), dict(seen), optimizer.param_groups[0]["lr"], run.noise.state_dict()
    run.close()
    return result


@pytest.mark.cases(1)
@pytest.mark.parametrize("samples", [17, 18, 19])
def test_code_that_runs_once_per_step_counts_where_a_rank_has_no_sample(samples):
    expected = on_ranks(1, once_per_step, 8, samples)[0]
    assert expected[1]["before"] == list(range(6))
    assert expected[1]["after"] == list(range(1, 7))
    for ranks in (2, 4):
        assert on_ranks(ranks, once_per_step, 8, samples) == [expected] * ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_fast_mode_counts_every_step_where_a_rank_has_no_sample(ranks):
    found = on_ranks(ranks, once_per_step, None, 17)
    assert all(rank == found[0] for rank in found)
    assert found[0][1]["before"] == list(range(6))
    assert found[0][1]["after"] == list(range(1, 7))


@pytest.fixture(scope="module")
def fast_alone():
    torch.set_num_threads(1)
    return fast("mlp")[0]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("ranks", "micro_batch", "most"), [(1, None, 16), (2, None, 8), (3, None, 6), (1, 4, 4), (2, 3, 3), (4, 2, 2)]
)
def test_fast_mode_gives_the_same_up_to_rounding(fast_alone, ranks, micro_batch, most):
    results = on_ranks(ranks, fast, "mlp", micro_batch)
    for found, sizes in results:
        assert max(sizes) <= most
        for a, b in zip(found, fast_alone, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert sum(sum(sizes) for _, sizes in results) == 2 * 78


def test_of_two_runs_in_one_process_a_sigterm_asks_the_second(tmp_path):
    done = []
    for name in ("first", "second"):
        run = bt.start(seed=5, checkpoint=tmp_path / name)
        model = nn.Linear(20, 5)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = run.loader(Rows("rows"), 16, workers=0)
        with contextlib.ExitStack() as ended:
            if name == "second":
                caught = ended.enter_context(pytest.raises(SystemExit))
            for _ in run.epochs(1):
                for x, y in run.steps(loader):
                    if name == "second" and run.steps_done == 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    run.backward(loss_of(model(x), y))
                    run.step()
        done.append(run.steps_done)
        run.close()
    assert caught.value.code == 75
    assert done[0] > 2
    assert done[1] == 2  # the step in flight is finished, and saved
    assert [path.name for path in (tmp_path / "second").iterdir() if "2" in path.name]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"timeout_s": 0}, "timeout_s=0: expected more than 0 seconds"),
        ({"timeout_s": "5"}, "timeout_s='5': expected more than 0 seconds, as a number"),
        ({"noise_every": -1}, "noise_every=-1: expected a whole number from 1, or None"),
        ({"noise_every": 2.5}, r"noise_every=2\.5: expected a whole number from 1, or None"),
        ({"seed": 1.5}, r"seed=1\.5: expected a whole number from 0"),
        ({"seed": "a"}, "seed='a': expected a whole number from 0"),
        ({"checkpoint": ""}, "checkpoint='': expected the path of a folder, or None"),
        ({"checkpoint": 5}, "checkpoint=5: expected the path of a folder, or None"),
        ({"unused": "ignore"}, "unused='ignore': expected 'error' or 'zeros'"),
        ({"micro_batch": 0}, "micro_batch=0: expected a whole number from 1"),
        ({"batch_range": (32, 64)}, r"global_batch=16: expected 32 to 64 \(batch_range\)"),
    ],
)
def test_options_are_checked(option, words):
    def of(*names):
        return {name: option[name] for name in names if name in option}

    def begin():
        run = bt.start(**of("timeout_s", "noise_every", "seed", "checkpoint"))
        run.prepare(nn.Linear(20, 5), **of("unused"))
        run.loader(Rows("rows"), 16, workers=0, **of("micro_batch", "batch_range"))

    with pytest.raises(ConfigError, match=words):
        begin()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: next(run.epochs("3")), "run.epochs: number='3': expected a whole number from 0"),
        (lambda run: next(run.epochs(3, steps="8")), "run.epochs: steps='8': expected a whole number"),
        (lambda run: run.clip(-1), "run.clip: max_norm=-1: expected more than 0"),
        (lambda run: run.clip("a"), "run.clip: max_norm='a': expected more than 0, as a number, or None"),
        (lambda run: run.clip(max_value=float("nan")), "run.clip: max_value=nan: expected more than 0"),
        (lambda run: run.schedule(0.5), r"run.schedule: factor=0\.5: expected a function"),
        (lambda run: run.prepare(nn.Linear(2, 2), torch.optim.SGD), "run.prepare got the class SGD, expected"),
        (lambda run: run.prepare(nn.LazyLinear(2)), "run.prepare got a model whose weight has no shape yet: call the"),
        (lambda run: run.backward(0.5), "run.backward got a float, expected the loss as a tensor"),
    ],
)
def test_arguments_of_calls_are_checked(call, words):
    run = bt.start()
    if "backward" in words:
        model = nn.Linear(20, 5)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        next(run.steps(run.loader(Rows("rows"), 16, workers=0)))
    with pytest.raises(UserError, match=words):
        call(run)
    run.close()


def test_a_relative_folder_of_checkpoints_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = bt.start(checkpoint="job")
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loader = run.loader(Rows("rows"), 16, workers=0)
    for _ in run.epochs(1):
        for x, y in run.steps(loader):
            run.backward(nn.functional.cross_entropy(model(x), y))
            run.step()
    run.close()
    assert [path.name for path in tmp_path.iterdir() if any(path.iterdir())] == ["job"]


def test_numbers_of_numpy_are_arguments():
    run = bt.start(logical_workers=np.int64(4), seed=np.int32(5), timeout_s=np.float32(20))
    run.clip(np.float64(0.5), max_value=torch.tensor(float("inf")))
    loader = run.loader(Rows("rows"), np.int64(16), workers=np.int8(0), batch_range=np.array([8, 32]))
    assert (run.logical_workers, run.seed, loader.global_batch) == (4, 5, 16)
    assert {type(value) for value in (run.logical_workers, run.seed, loader.global_batch)} == {int}
    assert run.settings()["rules"] == {"global_batch": 16, "max_norm": 0.5, "max_value": float("inf")}
    run.close()


def test_the_batch_stays_in_its_range():
    loader = bt.start().loader(Rows("rows"), 16, workers=0, batch_range=(8, 32))
    loader.set_global_batch(32)
    with pytest.raises(ConfigError, match="expected 8 to 32"):
        loader.set_global_batch(64)
    with pytest.raises(ConfigError, match="expected 8 to 32"):  # of a checkpoint from before the range was set
        loader.load_state_dict({**loader.state_dict(), "global_batch": 64})
    assert loader.global_batch == 32


class Positions(nn.Module):
    def forward(self, x):
        return x[..., None].expand(-1, -1, 2)


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("samples", "batch", "workers", "last", "warns"),
    [
        (70, 16, 4, "keep", True), (66, 16, 4, "keep", True), (71, 16, 4, "keep", True), (33, 16, None, "keep", True),
        (72, 16, 4, "keep", False), (64, 16, 4, "keep", False), (70, 16, 4, "drop", False),
        (34, 16, None, "keep", False),
    ],
)  # fmt: skip
def test_a_single_sample_for_batch_norm_at_the_end_is_said_before_the_first_step(
    samples, batch, workers, last, warns, capsys
):
    run = bt.start(logical_workers=workers)
    model = nn.Sequential(Positions(), nn.BatchNorm1d(20), nn.Flatten(), nn.Linear(40, 5))
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", samples), batch, workers=0, last=last)
    said = []
    for _ in run.epochs(2, steps=7):
        for x, y in run.steps(loader):
            said.append(capsys.readouterr().err)
            run.backward(loss_of(model(x), y))
            run.step()
    run.close()
    assert set(said[1:]) == {""}
    words = "some of its micro-batches have one: that is too few for batch-norm (1), and an error of PyTorch where"
    assert (words in said[0], "last='drop'" in said[0]) == (warns, warns)
    assert said[0].count("\n") == warns


def test_batch_norm_that_does_not_train_is_not_warned_of(capsys):
    run = bt.start(logical_workers=4)
    model = nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5))
    model[1].eval()
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    next(run.steps(run.loader(Rows("rows", 70), 16, workers=0)))
    run.close()
    assert not capsys.readouterr().err


def carry(value, place, checkpoint=None, epochs=3):
    """A job that puts a value into a carried dict; returns the dict, and how many steps were done."""
    run = bt.start(checkpoint=checkpoint)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    best = run.carry("best", {"loss": value if place == "built" else None})
    loader = run.loader(Rows("rows"), 16, workers=0)
    said = ""
    try:
        for _ in run.epochs(epochs):
            for x, y in run.steps(loader):
                run.backward(loss_of(model(x), y))
                if run.step() and place == "step":
                    best["loss"] = value
            if place == "epoch":
                best["loss"] = value
    except UserError as error:
        said = str(error)
    run.close()
    return best, run.steps_done, said


@pytest.mark.parametrize(("place", "steps"), [("built", 0), ("step", 1), ("epoch", 5)])
def test_a_carried_value_that_cannot_be_saved_is_refused_early_also_without_a_folder(place, steps):
    _, done, said = carry(np.zeros(2), place)
    assert done == steps
    assert "run.carry: best.loss is a numpy.ndarray, which cannot be saved: use" in said


def test_a_carried_number_of_numpy_is_saved_and_comes_back(tmp_path):
    value = np.array([0.5, 0.7], np.float32).mean()
    assert carry(value, "epoch", tmp_path) == ({"loss": value}, 15, "")
    assert carry(0.0, "built", tmp_path) == ({"loss": float(value)}, 15, "")


class SAM(torch.optim.SGD):
    """By its shape: a first step up, and, after another backward, a second one."""

    def first_step(self):
        pass

    def second_step(self):
        pass


class Pull(torch.optim.Optimizer):
    """Moves every parameter by a fixed part of its gradient: it has no learning rate."""

    def __init__(self, params):
        super().__init__(params, {"part": 0.1})

    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    param.sub_(group["part"] * param.grad)


def test_an_optimizer_without_a_learning_rate_trains_and_has_nothing_to_scale():
    found = []
    for factor in (None, 0.5):
        run = bt.start(seed=5)
        model = nn.Linear(20, 5)
        run.prepare(model, Pull(model.parameters()))
        if factor is not None:
            run.schedule(lambda _, factor=factor: factor)
        loader = run.loader(Rows("rows"), 16, workers=0)
        for _ in run.epochs(1):
            for x, y in run.steps(loader):
                run.backward(loss_of(model(x), y))
                run.step()
        run.close()
        found.append((run.steps_done, run.digest()))
    assert found[0] == found[1]
    assert "lr" not in run._job.parts.optimizers[0].param_groups[0]


class WithClosure(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, SAM, WithClosure, torch.optim.lr_scheduler.ReduceLROnPlateau])
def test_what_asks_for_more_than_a_gradient_is_refused(kind):
    model = nn.Linear(2, 2)
    takes_parameters = issubclass(kind, torch.optim.Optimizer)
    thing = kind(model.parameters() if takes_parameters else torch.optim.SGD(model.parameters()))
    with pytest.raises(UserError, match=f"run.prepare got {kind.__name__}"):
        bt.start().prepare(model, thing)


def test_a_checkpoint_that_does_not_fit_is_named_with_its_folder(tmp_path):
    for width in (5, 6):
        run = bt.start(checkpoint=tmp_path / "job")
        model = nn.Linear(20, width)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = run.loader(Rows("rows"), 16, workers=0)
        with contextlib.ExitStack() as fails:
            if width == 6:
                words = f"the checkpoint in {tmp_path}/job does not fit: "
                fails.enter_context(pytest.raises(ConfigError, match=words))
            for _ in run.epochs(1):
                for x, y in run.steps(loader):
                    run.backward(loss_of(model(x), y))
                    run.step()
        run.close()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"num_workers": 2}, "does not take num_workers: use workers"),
        ({"batch_size": 2}, "does not take batch_size: use global_batch"),
        ({"drop_last": True}, "does not take drop_last: use last='drop'"),
        ({"collate_fn": list}, "does not take collate_fn: use collate"),
        ({"sampler": range(3)}, r"does not take sampler: brim draws the order itself.*torch\.utils\.data\.Subset"),
        ({"batch_sampler": [range(3)]}, "does not take batch_sampler: brim draws the order itself"),
        ({"logical_workers": 2}, "does not take logical_workers: expected batch_range, collate, "),
        ({"wrokers": 2}, "does not take wrokers: expected batch_range, collate, .*micro_batch.*workers"),
    ],
)
def test_an_option_of_another_loader_is_answered_with_ours(option, words):
    with pytest.raises(ConfigError, match=words):
        bt.start().loader(Rows("rows"), 16, **option)


@pytest.mark.parametrize(("options", "words"), [
    ({"batch_size": 8}, "does not take batch_size: use global_batch"), ({}, "found no global_batch, expected the"),
])  # fmt: skip
def test_a_loader_without_a_batch_is_answered_with_ours(options, words):
    with pytest.raises(ConfigError, match=words):
        bt.start().loader(Rows("rows"), **options)


def clipped():
    run = bt.start(logical_workers=4, seed=5)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    run.clip(max_value=1e-3)
    loader = run.loader(Rows("rows"), 16, workers=0)
    before = model.weight.detach().clone()
    for _ in run.epochs(1, steps=1):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            run.step()
    run.close()
    return run.digest(), float((model.weight.detach() - before).abs().max())


def test_gradients_are_clipped_by_value_after_they_are_summed():
    found = {row for ranks in (1, 2) for row in on_ranks(ranks, clipped)}
    ((_, most),) = found
    assert most == pytest.approx(1e-3, rel=1e-3)


def test_synchronised_batch_norm_is_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    with pytest.raises(UserError, match=r"got a SyncBatchNorm \(1\).*use BatchNorm"):
        bt.start().prepare(model)


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, list])
def test_what_is_no_loader_of_brim_is_refused_by_name(kind):
    run = bt.start()
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UserError, match=rf"^run.steps got a {kind.__name__}, expected .* run.loader\(dataset, glob"):
        next(run.steps(kind(Rows("rows"))))
    run.close()


def test_a_loop_over_the_loader_itself_is_refused():
    run = bt.start()
    loader = run.loader(Rows("rows"), 16, workers=0)
    with pytest.raises(UserError, match=r"expected one over run.steps\(loader\)"):
        iter(loader)
    loader.close()
    run.close()
