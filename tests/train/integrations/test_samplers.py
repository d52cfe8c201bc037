"""The order of an epoch whose sampler is the user's, when a job resumes in the middle of it."""

import importlib.util
import random
import types

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from brim.train.integrations import random_state
from brim.train.integrations.samplers import why_not_resumable

SAMPLES = list(range(64))
pytestmark = pytest.mark.xdist_group("samplers")  # of libraries that take seconds to import


def needs(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


class AtOnce(Sampler):
    """Draws an epoch as it begins."""

    def __iter__(self):
        return iter(torch.randperm(64).tolist())

    def __len__(self):
        return 64


class OneByOne(AtOnce):
    """Draws whenever it is asked, from three generators."""

    def __iter__(self):
        for _ in range(64):
            yield (random.randrange(64) + int(np.random.randint(64)) + int(torch.randint(64, ()))) % 64


class OfEpochs(AtOnce):
    def set_epoch(self, epoch):
        self.epoch = epoch


def batches_of(sampler):
    return BatchSampler(sampler, 4, drop_last=False)


class OfNumPy(AtOnce):
    """Has a generator that is not PyTorch's."""

    def __init__(self):
        self.generator = np.random.default_rng(1)

    def __iter__(self):
        return iter(np.random.permutation(64).tolist()) if self.generator.random() < 2 else None


class OfProperty(AtOnce):
    generator = property(lambda self: None)


LOADERS = {
    "generator of NumPy": lambda: {"batch_sampler": batches_of(OfNumPy())},
    "generator that cannot be set": lambda: {"batch_size": 4, "sampler": OfProperty()},
    "shuffle": lambda: {"batch_size": 4, "shuffle": True},
    "at once": lambda: {"batch_size": 4, "sampler": AtOnce()},
    "one by one": lambda: {"batch_size": 4, "sampler": OneByOne()},
    "batches": lambda: {"batch_sampler": batches_of(RandomSampler(SAMPLES))},
    "batches of a generator": lambda: {
        "batch_sampler": batches_of(RandomSampler(SAMPLES, generator=torch.Generator().manual_seed(1)))
    },
    "no batches": lambda: {"batch_size": None, "sampler": AtOnce()},
}


def noisy(batch):
    """Samples of a batch, and a number that the dataset draws."""
    return torch.tensor(batch).tolist(), int(torch.randint(1 << 30, ()))


@needs("lightning")
@pytest.mark.parametrize("kind", LOADERS)
def test_a_resumed_epoch_goes_on_where_it_was(kind):
    from brim.train.callbacks.lightning import ResumableLoader

    def loader():
        torch.manual_seed(0)
        return ResumableLoader(SAMPLES, collate_fn=noisy, **LOADERS[kind]())

    one = loader()
    first = list(one)  # the epochs before differ
    one.end_epoch()
    found = iter(one)
    begun = [next(found) for _ in range(5)]
    saved, state = one.state_dict(), random_state.taken()
    rest = list(found)
    assert first != begun + rest
    other = loader()
    other.load_state_dict(saved)
    random_state.put_back(state)
    assert list(other) == rest


@pytest.mark.parametrize("kind", ["seedable", "sequential", "of epochs", "at once", "batches", "shuffled"])
def test_a_sampler_whose_order_may_not_come_back_is_named(kind):
    sampler = {"sequential": SequentialSampler(SAMPLES), "of epochs": OfEpochs(), "at once": AtOnce()}.get(kind)
    loader = DataLoader(SAMPLES, 4, sampler=sampler, shuffle=kind == "shuffled")
    if kind == "batches":
        loader = DataLoader(SAMPLES, batch_sampler=type("Buckets", (BatchSampler,), {})(AtOnce(), 4, False))
    if kind == "seedable":
        data_loader = pytest.importorskip("accelerate.data_loader", reason="accelerate is not installed")
        loader = DataLoader(SAMPLES, 4, sampler=data_loader.SeedableRandomSampler(SAMPLES))
    named = {"at once": "AtOnce", "batches": "Buckets", "shuffled": "RandomSampler"}.get(kind)
    inner = types.SimpleNamespace(batch_sampler=loader.batch_sampler)  # as Accelerate wraps it on several ranks
    for each in (loader, types.SimpleNamespace(sampler=None, batch_sampler=inner)):
        assert (why_not_resumable(each) or "None").split()[0] == (named or "None")


def test_loaders_of_others_and_streams_are_not_named():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(SAMPLES)

    assert why_not_resumable(types.SimpleNamespace(dataset=SAMPLES)) is None
    assert why_not_resumable(DataLoader(Stream(), 4)) is None


@needs("transformers")
def test_the_callback_of_trainer_names_the_sampler(capsys):
    from brim.train.callbacks.hugging_face import BrimCallback

    state = types.SimpleNamespace(global_step=0)
    BrimCallback().on_train_begin(None, state, None, train_dataloader=DataLoader(SAMPLES, 4, sampler=AtOnce()))
    assert capsys.readouterr().err.startswith("brim: AtOnce has no set_epoch(): ")


@needs("accelerate")
def test_the_loop_of_accelerate_names_the_sampler_once(capsys, tmp_path):
    from brim.train.callbacks.accelerate import BrimLoop

    accelerator = types.SimpleNamespace(
        project_configuration=types.SimpleNamespace(automatic_checkpoint_naming=False), use_seedable_sampler=True,
        register_for_checkpointing=lambda _: None,
    )  # fmt: skip
    loop = BrimLoop(accelerator, tmp_path)
    loader = DataLoader(SAMPLES, 4, sampler=AtOnce())
    loader.set_epoch, loader.total_batch_size = lambda _: None, 4
    for _ in loop.epochs(2):
        assert len(list(loop.batches(loader))) == 16
    assert capsys.readouterr().err.count("brim: AtOnce has no set_epoch(): ") == 1
