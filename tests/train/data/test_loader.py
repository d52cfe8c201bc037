"""The loader: the same batches whoever loads them, in any order of events, and errors that say what to change."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import ConfigError
from brim.train.data import prefetch
from brim.train.data.ledger import consumed, verify
from brim.train.data.loader import Loader
from brim.train.data.pool import LoaderError
from brim.train.data.shared_memory import LENT_BUFFERS_MAX
from brim.train.data.worker import SLOTS
from tests.sampling import sample
from tests.train.data.datasets import (
    AwkwardError,
    Deadly,
    Drawn,
    Jumping,
    Plain,
    Raising,
    Slow,
    Sometimes,
    Stream,
    Together,
    Unsized,
)
from tests.train.data.loading import copied, open_files, same, take, take_step


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", [Drawn, Plain, Sometimes, Together, Stream])
def test_batches_are_equal_for_any_number_of_workers(kind):
    dataset = kind()

    def batches(workers: int) -> list:
        with Loader(dataset, 16, logical_workers=4, seed=5, workers=workers) as loader:
            found = take(loader, epochs=2)
            assert verify(loader.ledger(), 103).complete == (0, 1)
            return found

    expected = batches(0)
    assert len(expected) == 2 * 7 * 4
    for workers in (1, 3):
        assert same(batches(workers), expected)


def test_a_sample_is_drawn_for_by_seed_epoch_and_number_alone():
    """Not by the batch it is in: other cuts of the epoch give the same augmentation."""
    def drawn(batch: int, workers: int) -> dict:
        found = {}
        with Loader(Drawn(), batch, logical_workers=2, workers=workers) as loader:
            for part in take(loader):
                if part is not None:
                    found |= {int(i): (v.tolist(), p) for i, v, p in
                              zip(part["id"], part["torch"], part["python"].tolist(), strict=True)}
        return found

    assert drawn(16, 0) == drawn(50, 2)
    assert len(drawn(16, 0)) == 103


def test_epochs_and_seeds_differ_in_order_and_augmentation():
    def first(seed: int, epoch: int) -> dict:
        with Loader(Drawn(64), 64, seed=seed, workers=0) as loader:
            return take(loader, epochs=epoch + 1)[-1]

    one, other_epoch, other_seed = first(0, 0), first(0, 1), first(1, 0)
    for other in (other_epoch, other_seed):
        assert one["id"].tolist() != other["id"].tolist()
        assert not set(one["python"].tolist()) & set(other["python"].tolist())


def test_loading_here_leaves_generators_and_threads_of_training_alone():
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    threads = torch.get_num_threads()
    with Loader(Drawn(), 16, workers=0) as loader:
        take(loader)
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected
    assert torch.get_num_threads() == threads


def test_strides_types_and_odd_values_survive_the_way():
    class Odd(Plain):
        def __getitem__(self, index):
            return index

    def collate(samples):
        image = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
        return {
            "channels last": image.to(memory_format=torch.channels_last), "every second": image[:, ::2, 1:, ::3],
            "one value for many": torch.ones(1).expand(4, 5), "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5),
            "bf16": torch.ones(3, dtype=torch.bfloat16), "bool": torch.tensor([True, False]),
            "complex": torch.ones(2, dtype=torch.complex64), "numpy": np.arange(6).reshape(2, 3).T,
            "object": np.array(["a", None], dtype=object), "sparse": torch.eye(3).to_sparse().to_dense(),
            "ids": samples, "gradient": torch.ones(2, requires_grad=True),
            "many": [torch.tensor([i]) for i in range(1500)],
        }

    def batch(workers: int) -> dict:
        with Loader(Odd(), 8, workers=workers, collate=collate) as loader:
            return loader.fetch(0, 0, 0)

    one, other = batch(0), batch(1)
    assert same(one, other)
    assert other["gradient"].requires_grad
    other["channels last"].add_(1)


OPERATION = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 4)),
    st.tuples(st.just("ranks"), st.sampled_from([1, 2, 4])),
    st.tuples(st.just("abort"), st.integers(0, 3)),
    st.tuples(st.just("batch"), st.sampled_from([4, 8, 12, 20])),
    st.tuples(st.just("workers"), st.integers(0, 3)),
    st.tuples(st.just("prefetch"), st.integers(1, 6)),
    st.tuples(st.just("kill worker"), st.integers(0, 3)),
    st.tuples(st.just("kill spawner"), st.just(0)),
    st.tuples(st.just("restore"), st.integers(0, 2)),
)


class Job:
    """A job of one process that plays all ranks in turn, beside a loader that does nothing ahead."""

    def __init__(self, stream: bool) -> None:
        self.stream, self.ranks = stream, 1
        self.seen: list[tuple[int, int]] = []
        self.plain = self.new(0)
        self.loader = self.new(2)

    def new(self, workers: int) -> Loader:
        return Loader(Stream(41) if self.stream else Drawn(41), 8, logical_workers=4, seed=9, workers=workers)

    def ids(self, batch) -> list[int]:
        return [] if batch is None else (batch[1] if self.stream else batch["id"]).tolist()

    def fetch(self, workers: range) -> None:
        epoch, step = self.loader.epoch, self.loader.step
        self.loader.assign(epoch, step, workers)
        for worker in workers:
            batch = self.loader.fetch(epoch, step, worker)
            assert same(batch, self.plain.fetch(epoch, step, worker))
            self.fetched += self.ids(batch)

    def step(self, *, ranks: int | None = None) -> None:
        """A step of some ranks, or of all and then the commit."""
        self.fetched: list[int] = []
        share = 4 // self.ranks
        for rank in range(self.ranks if ranks is None else min(ranks, self.ranks)):
            self.fetch(range(rank * share, rank * share + share))
        if ranks is None:
            epoch, step = self.loader.epoch, self.loader.step
            self.seen += [(epoch, sample) for sample in self.fetched]
            for loader in (self.loader, self.plain):
                loader.commit(epoch, step)

    def apply(self, name: str, number: int) -> None:
        pool = self.loader._pool
        if name == "steps":
            for _ in range(number):
                self.step()
        elif name == "ranks":
            self.ranks = number
        elif name == "abort":
            self.step(ranks=number)
        elif name == "batch":
            self.loader.set_global_batch(number)
            self.plain.set_global_batch(number)
        elif name == "workers":
            self.loader.set_workers(number)
        elif name == "prefetch":
            self.loader.set_prefetch(number)
        elif name == "restore":
            state = json.dumps(self.loader.state_dict())
            self.loader.close()
            self.loader = self.new(number)
            self.loader.load_state_dict(json.loads(state))
        elif pool is not None:
            spawner, *workers = pool.worker_ids()
            victims = [spawner] if name == "kill spawner" else workers[number:number + 1]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)


@settings(max_examples=int(os.environ.get("BRIM_SCRIPTS", sample(25, 10))), deadline=None)
@given(stream=st.booleans(), script=st.lists(OPERATION, max_size=12))
def test_every_sample_exactly_once_over_any_script(stream, script):
    job = Job(stream)
    try:
        for name, number in [*script, ("steps", 3)]:
            job.apply(name, number)
        while job.loader.step:
            job.step()
        epochs = range(job.loader.epoch)
        ledger = json.loads(json.dumps(job.loader.ledger()))
        assert verify(ledger, 41).complete == tuple(epochs)
        assert len(epochs) >= 1
        for epoch in epochs:
            of_epoch = [sample for number, sample in job.seen if number == epoch]
            assert sorted(of_epoch) == list(range(41))
            assert consumed(ledger, epoch).tolist() == of_epoch
    finally:
        job.loader.close()
        job.plain.close()


def test_any_order_of_asking_gives_the_same_batches():
    with Loader(Drawn(), 16, logical_workers=4, workers=0) as plain, \
            Loader(Drawn(), 16, logical_workers=4, workers=2) as it:
        expected = {(step, worker): copied(plain.fetch(0, step, worker)) for step in range(7) for worker in range(4)}
        order = [*expected, *expected]
        random.Random(0).shuffle(order)
        for step, worker in order:
            assert same(it.fetch(0, step, worker), expected[step, worker])


def test_batches_that_are_held_are_never_overwritten(monkeypatch):
    """More of them than stay in shared memory."""
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", 0)  # on a busy machine a batch may take long, and more be prefetched
    with Loader(Plain(2_000), 10, workers=2) as loader:
        held = []
        while loader.epoch == 0:
            step = loader.step
            held.append(loader.fetch(0, step, 0))
            loader.commit(0, step)
        assert sum("brim-batch" in name for name in open_files()) <= 2 * LENT_BUFFERS_MAX + 16
    assert sorted(torch.cat([ids for ids, _ in held]).tolist()) == list(range(2_000))
    assert all(torch.equal(values, ids[:, None].float().expand(-1, 4)) for ids, values in held)


def test_what_is_left_of_a_batch_keeps_its_memory():
    with Loader(Plain(400), 10, workers=2) as loader:
        rows = []
        for step in range(40):
            rows.append(loader.fetch(0, step, 0)[1][3])
            loader.commit(0, step)
    assert len({row[0].item() for row in rows}) == 40


def test_an_exception_comes_out_where_its_batch_is_fetched_with_the_workers_traceback():
    dataset = Raising(7, KeyError("no such record"))
    with Loader(dataset, 8, shuffle=False, workers=2) as loader:
        for _ in range(2):
            with pytest.raises(KeyError, match="no such record") as caught:
                loader.fetch(0, 0, 0)
            assert "samples 0 to 7 in the order of epoch 0" in caught.value.__notes__[0]
            assert "in __getitem__" in caught.value.__notes__[0]
        assert loader.fetch(0, 1, 0)[0].tolist() == list(range(8, 16))


@pytest.mark.parametrize("error", [AwkwardError(1, 2), SystemExit(3)], ids=["cannot be pickled", "exit"])
def test_an_exception_that_cannot_travel_comes_out_as_text(error):
    with Loader(Raising(3, error), 8, shuffle=False, workers=1) as loader:
        with pytest.raises((LoaderError, SystemExit)) as caught:
            loader.fetch(0, 0, 0)
        assert type(error).__name__ in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert loader.fetch(0, 1, 0) is not None


def test_a_batch_that_cannot_be_pickled_says_so():
    with Loader(Plain(), 8, workers=1, collate=lambda samples: (sample for sample in samples)) as loader, \
            pytest.raises(TypeError, match="pickle"):
        loader.fetch(0, 0, 0)


def test_a_worker_killed_at_its_task_is_replaced_and_the_task_done_again(tmp_path):
    with Loader(Deadly(20, 2, tmp_path), 16, logical_workers=4, shuffle=False, workers=2) as loader:
        ids = [batch[0] for batch in take(loader)]
        assert torch.cat(ids).tolist() == list(range(103))
        assert loader._pool.alive == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_a_task_that_kills_every_worker_fails_with_its_samples(tmp_path):
    with Loader(Deadly(20, 99, tmp_path), 16, shuffle=False, workers=2) as loader:
        loader.fetch(0, 0, 0)
        with pytest.raises(LoaderError, match=r"samples 16 to 31 .* 3 worker processes .* killed by signal 9"):
            loader.fetch(0, 1, 0)
        assert loader.fetch(0, 2, 0)[0].tolist() == list(range(32, 48))


def test_a_dataset_that_hangs_is_named():
    with Loader(Slow(30.0), 8, shuffle=False, workers=1, prefetch=1, timeout_s=0.3) as loader:
        with pytest.raises(LoaderError, match=r"samples 0 to 7 in the order of epoch 0 not loaded after 0\.3 s"):
            loader.fetch(0, 0, 0)
        assert len(loader._pool._wanted) == 1


@pytest.mark.timing
def test_waiting_and_supply_are_measured():
    with Loader(Slow(0.005, 400), 4, workers=2) as loader:
        for _ in range(20):
            take_step(loader)
        supply = loader.supply
        assert (supply.fetches, supply.samples, supply.workers) == (20, 80, 2)
        assert 0 < supply.wait_s == loader.wait_s
        assert 0 < supply.supply_sps < 400
        assert supply.settled


def test_a_very_long_way_ahead_works():
    with Loader(Plain(3_000), 2, workers=2, prefetch=10_000, shuffle=False) as loader:
        assert torch.cat([batch[0] for batch in take(loader)]).tolist() == list(range(3_000))


def test_what_is_no_longer_wanted_is_not_loaded_first():
    """Forty seconds of tasks lie ahead when another place is asked for."""
    with Loader(Slow(0.2, 400), 4, workers=1, prefetch=50) as loader:
        loader.fetch(0, 0, 0)
        began = time.monotonic()
        loader.assign(0, 70, range(1))
        loader.fetch(0, 70, 0)
        assert time.monotonic() - began < 20


def test_epochs_shorter_than_what_is_loaded_ahead_keep_their_orders():
    with Loader(Drawn(8), 8, workers=2, prefetch=20) as loader, Loader(Drawn(8), 8, workers=0) as plain:
        assert same(take(loader, epochs=30), take(plain, epochs=30))


def test_steps_can_be_cut_into_other_shares():
    with Loader(Plain(64), 16, logical_workers=2, workers=2, shuffle=False) as loader:
        take_step(loader)
        loader.set_logical_workers(4)
        assert torch.cat([batch[0] for batch in take_step(loader)]).tolist() == list(range(16, 32))
        loader.set_logical_workers(3)
        assert [len(batch[0]) for batch in take_step(loader)] == [5, 5, 6]


def test_an_empty_share_is_none_and_counts_nothing():
    with Loader(Plain(18), 16, logical_workers=4, workers=1) as loader:
        take_step(loader)
        assert [loader.samples(0, 1, worker) for worker in range(4)] == [0, 1, 0, 1]
        assert loader.fetch(0, 1, 0) is None
        assert loader.fetch(0, 1, 1)[0].shape == (1,)


def test_a_stream_jumps_where_it_can_and_skips_where_not():
    with Loader(Jumping(40), 8, workers=2, length=40) as loader:
        loader.fetch(0, 3, 0)
        assert loader.fetch(0, 3, 0).tolist() == list(range(24, 32))
    with Loader(Unsized(40), 8, workers=2, length="count") as loader:
        assert loader.fetch(0, 3, 0).tolist() == list(range(24, 32))
        assert loader.fetch(0, 0, 0).tolist() == list(range(8))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("declared", "says"), [
    (110, "ended after 103 samples, expected 110"), (96, "continues after 96 samples"),
])
def test_a_stream_of_another_length_than_it_says_is_refused(workers, declared, says):
    with Loader(Stream(103, declared), 16, workers=workers) as loader, pytest.raises(ConfigError, match=says):
        take(loader)


def test_a_dataset_that_changes_its_length_is_refused():
    dataset = Plain(100)
    with Loader(dataset, 10, workers=1) as loader:
        loader.fetch(0, 0, 0)
        dataset.length = 90
        with pytest.raises(ConfigError, match="had 100 samples when the loader was made and has 90 now"):
            loader.fetch(0, 1, 0)


class Corpus:
    """Windows of a long text: more samples than there is memory for their order."""

    def __len__(self) -> int:
        return 10**14

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_in_its_own_order_may_have_any_number_of_samples(workers):
    with Loader(Corpus(), 4, shuffle=False, workers=workers) as loader:
        assert loader.fetch(0, 0, 0).tolist() == [0, 1, 2, 3]
        assert loader.fetch(0, 10**13, 0).tolist() == [*range(4 * 10**13, 4 * 10**13 + 4)]


def test_an_order_for_which_there_is_no_memory_is_refused_with_its_size():
    with pytest.raises(ConfigError, match="shuffled orders of 100000000000000 samples need 1600000000000000 bytes"):
        Loader(Corpus(), 4, workers=0)


class Endless:
    """A dataset that does not say its length."""

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(("dataset", "arguments", "says"), [
    (Plain(100), {"global_batch": 6, "logical_workers": 4}, "is not a multiple of 4 logical workers: use 4 or 8"),
    (Plain(5), {"global_batch": 8}, "fewer than one global batch"),
    (Unsized(), {"global_batch": 8}, "give length="),
    (Stream(), {"global_batch": 8, "shuffle": True}, "shuffle inside it"),
    (Stream(), {"global_batch": 8, "length": 7}, "leave length out"),
    (Endless(), {"global_batch": 8}, "add __len__"),
    (Plain(100), {"global_batch": 8, "workers": -1}, "workers=-1: expected a whole number from 0"),
    (Plain(100), {"global_batch": 8, "workers": True}, "workers=True"),
    (Plain(100), {"global_batch": 8, "prefetch": 0}, "prefetch=0: expected a whole number from 1"),
    (Plain(100), {"global_batch": 16.0}, r"global_batch=16\.0: expected a whole number from 1"),
    (Plain(100), {"global_batch": "16"}, "global_batch='16': expected a whole number from 1"),
    (Plain(100), {"global_batch": 8, "seed": 1.5}, r"seed=1\.5: expected a whole number from 0"),
    (Plain(100), {"global_batch": 8, "collate": 3}, "collate=3: expected a function"),
    (Plain(100), {"global_batch": 8, "timeout_s": "x"}, "timeout_s='x': expected more than 0 seconds, as a number, or"),
    (Plain(100), {"global_batch": 8, "batch_range": (16,)}, r"batch_range=\(16,\): expected two whole numbers"),
    (Plain(100), {"global_batch": 8, "batch_range": (64, 16)}, r"batch_range=\(64, 16\): expected two whole"),
    (Plain(100), {"global_batch": 8, "batch_range": 16}, "batch_range=16: expected two whole numbers"),
    (Stream(), {"global_batch": 8, "length": 60.0}, r"leave length out"),
    (Unsized(), {"global_batch": 8, "length": 60.0}, r"length=60\.0: expected a whole number from 1, or 'count'"),
    (Unsized(), {"global_batch": 8, "length": "60"}, "length='60': expected a whole number from 1, or 'count'"),
    (Unsized(), {"global_batch": 8, "length": -5}, "length=-5: expected a whole number from 1, or 'count'"),
    (Plain(1), {"global_batch": 16, "logical_workers": 2}, "1 logical worker, and a global batch of at most 1$"),
])
def test_errors_say_what_to_change(dataset, arguments, says):
    with pytest.raises(ConfigError, match=says):
        Loader(dataset, **arguments)


def test_asking_for_what_cannot_be_served_says_so():
    with Loader(Plain(100), 10, logical_workers=2, workers=1) as loader:
        loader.assign(0, 0, range(1))
        with pytest.raises(ConfigError, match="call assign first"):
            loader.fetch(0, 0, 1)
        with pytest.raises(ConfigError, match="expected a range within 0 to 1"):
            loader.assign(0, 0, range(1, 3))
        loader.commit(0, 0)
        for epoch, step in ((0, 0), (2, 0)):
            with pytest.raises(ConfigError, match=r"expected epoch 0 from step 1 on .* or epoch 1"):
                loader.fetch(epoch, step, 0)
    with pytest.raises(LoaderError, match="closed"):
        loader.fetch(0, 1, 0)


def test_pinned_batches_are_copies_made_ahead_and_equal(monkeypatch):
    """Without a GPU nothing can be pinned: a copy stands for it."""
    copies = []

    def pin(batch):
        copies.append(batch)
        return copied(batch)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("brim.train.data.loader.page_locked", pin)
    with Loader(Drawn(), 16, logical_workers=4, workers=0) as plain, \
            Loader(Drawn(), 16, logical_workers=4, workers=2, pin_memory=True) as loader:
        for epoch_step in range(5):
            loader.set_prefetch(1 + epoch_step)
            loader.assign(0, epoch_step, range(4))
            loader.fetch(0, epoch_step, 0)
            loader.assign(0, epoch_step, range(4))
            assert same(take_step(loader), take_step(plain))
    assert len(copies) >= 20


def watch(loader: Loader) -> Iterator[int]:
    while loader.epoch == 0:
        take_step(loader)
        yield loader.workers


def test_auto_finds_workers_where_loading_waits_and_keeps_the_batches_equal():
    """Samples that sleep: four times as many workers load four times as fast, whatever else the machine does."""
    with Loader(Slow(0.002, 20_000), 4, workers="auto") as loader, Loader(Plain(20_000), 4, workers=0) as plain:
        for step, _ in enumerate(watch(loader)):
            if step % 50 == 0:
                assert same(loader.fetch(0, loader.step, 0), plain_at(plain, loader.step))
            if loader.supply.settled or loader.workers >= 6:
                break
        assert loader.workers >= 4
        loader.set_workers(1)
        assert (loader.supply.settled, loader.workers) == (True, 1)


def plain_at(plain: Loader, step: int):
    while plain.step < step:
        plain.commit(0, plain.step)
    return plain.fetch(0, step, 0)


@pytest.mark.slow
def test_a_grant_bounds_auto_and_leaves_a_number_as_it_is(monkeypatch):
    monkeypatch.setenv("BRIM_LOADER_WORKERS", "2")
    with Loader(Slow(0.002, 20_000), 4, workers="auto") as loader:
        for _ in watch(loader):
            assert loader.workers <= 2
            if loader.supply.settled:
                break
        assert loader.workers == 2
        loader.set_workers_max(0)
        assert loader.workers == 0
        loader.set_workers_max(1)
        tried = set()
        for workers in watch(loader):
            tried.add(workers)
            if loader.supply.settled:
                break
        assert loader.supply.settled
        assert tried == {0, 1}  # what it then keeps depends on what else the machine does
    with Loader(Slow(0.002, 20_000), 4, workers=3) as loader:
        loader.set_workers_max(1)
        assert loader.workers == 3
    monkeypatch.setenv("BRIM_LOADER_WORKERS", "many")
    with pytest.raises(ConfigError, match="BRIM_LOADER_WORKERS='many': expected a whole number"):
        Loader(Plain(64), 4)


def test_a_grant_may_be_above_what_a_loader_can_have(monkeypatch):
    monkeypatch.setenv("BRIM_LOADER_WORKERS", "383")  # one job on a machine of 384 cores
    with Loader(Plain(64), 4, workers="auto") as loader:
        assert loader.workers_max == SLOTS - 1
        loader.set_workers_max(1_000)
        assert loader.workers_max == SLOTS - 1
