"""The order of an epoch whose sampler is the user's, when a job resumes in the middle of it."""

import importlib.util
import random
import types

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

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


def weighted():
    """Draws an epoch as it begins, from a generator of its own."""
    return WeightedRandomSampler([1.0] * 64, 64, replacement=False, generator=torch.Generator().manual_seed(1))


def of_two_ranks(sampler, rank=0):
    """As Lightning wraps the sampler of a user."""
    from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

    return DistributedSamplerWrapper(sampler, num_replicas=2, rank=rank)


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
    "at once, on two ranks": lambda: {"batch_size": 4, "sampler": of_two_ranks(AtOnce())},
    "generator, on two ranks": lambda: {"batch_size": 4, "sampler": of_two_ranks(weighted())},
    "batches of a generator, on two ranks": lambda: {"batch_sampler": batches_of(of_two_ranks(weighted()))},
}


def noisy(batch):
    """Samples of a batch, and a number that the dataset draws."""
    return torch.tensor(batch).tolist(), int(torch.randint(1 << 30, ()))


@pytest.mark.cases(1)
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


@pytest.mark.slow
@needs("lightning")
def test_ranks_with_other_global_generators_share_the_epoch_of_a_generator():
    from brim.train.callbacks.lightning import ResumableLoader

    seen = []
    for rank in (0, 1):
        torch.manual_seed(rank)
        loader = ResumableLoader(SAMPLES, batch_size=4, sampler=of_two_ranks(weighted(), rank))
        seen += torch.cat(list(loader)).tolist()
    assert sorted(seen) == SAMPLES


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


@pytest.mark.slow
@needs("transformers")
def test_the_callback_of_trainer_names_the_sampler(capsys):
    from brim.train.callbacks.hugging_face import BrimCallback

    state = types.SimpleNamespace(global_step=0)
    BrimCallback().on_train_begin(None, state, None, train_dataloader=DataLoader(SAMPLES, 4, sampler=AtOnce()))
    assert capsys.readouterr().err.startswith("brim: AtOnce has no set_epoch(): ")


class SeededByEpochs(AtOnce):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(64, generator=torch.Generator().manual_seed(self.epoch)).tolist())


class BatchesByEpochs(SeededByEpochs, BatchSampler):
    batch_size, drop_last = 4, False

    def __init__(self):
        pass

    def __iter__(self):
        return iter(torch.tensor(list(super().__iter__())).view(16, 4).tolist())

    def __len__(self):
        return 16


@needs("transformers")
@needs("accelerate")
@pytest.mark.parametrize("kind", ["sampler", "batch sampler"])
@pytest.mark.parametrize("loader_of", ["one rank", "two ranks", "a rank that draws for all"])
def test_the_callback_of_trainer_tells_samplers_the_epoch_that_is_resumed(kind, loader_of):
    """As the Trainer does it: the callback has the whole loader, the epoch is drawn from one that skips batches."""
    from accelerate import skip_first_batches
    from accelerate.data_loader import DataLoaderDispatcher, prepare_data_loader

    from brim.train.callbacks.hugging_face import BrimCallback

    def epoch(number, begun=0):
        plain = DataLoader(SAMPLES, 4, sampler=SeededByEpochs())
        if kind == "batch sampler":
            plain = DataLoader(SAMPLES, batch_sampler=BatchesByEpochs())
        if loader_of == "a rank that draws for all":
            loader = DataLoaderDispatcher(SAMPLES, batch_sampler=plain.batch_sampler, _drop_last=False)
        else:
            ranks = {"one rank": 1, "two ranks": 2}[loader_of]
            loader = prepare_data_loader(plain, num_processes=ranks, process_index=0, put_on_device=False)
        state = types.SimpleNamespace(epoch=number + begun / len(loader))
        BrimCallback().on_epoch_begin(None, state, None, train_dataloader=loader)
        rest = skip_first_batches(loader, begun) if begun else loader
        rest.set_epoch(number)
        return [batch.tolist() for batch in rest]

    assert epoch(1) != epoch(0)
    assert epoch(1, begun=3) == epoch(1)[3:]


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
