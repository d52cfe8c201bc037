"""The tree does not know how many ranks there are."""

import queue
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brim.train.gradients import all_reduce
from brim.train.gradients.all_reduce import chunks, halves
from brim.train.gradients.buckets import Buckets
from brim.train.gradients.tree import TreeAccumulator
from brim.train.membership.process_group import BrokenGroupError

pytest.importorskip("torch")


def tree_sum(leaves):
    """The sum that every exchange must equal bit by bit: of pairs, then of pairs of pairs."""
    level = list(leaves)
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


class Done:
    def wait(self):
        return None


class Wire:
    """In-memory links between simulated ranks; one thread per rank."""

    def __init__(self, size):
        self.queues = {}
        self.lock = threading.Lock()
        self.rows = {}
        self.barrier = threading.Barrier(size)

    def queue(self, *key):
        with self.lock:
            return self.queues.setdefault(key, queue.Queue())


class Arriving:
    def __init__(self, source, tensor):
        self.source, self.tensor = source, tensor

    def wait(self):
        self.tensor.copy_(self.source.get(timeout=60))


class SimulatedLink:
    def __init__(self, wire, rank, size):
        self.wire, self.rank, self.size = wire, rank, size
        self.sent = 0

    def send(self, tensor, to, tag):
        self.sent += tensor.nbytes
        self.wire.queue(self.rank, to, tag).put(tensor.clone())
        return Done()

    def recv(self, tensor, source, tag):
        return Arriving(self.wire.queue(source, self.rank, tag), tensor)

    def _everybody(self, tensor):
        self.wire.rows[self.rank] = tensor.clone()
        self.wire.barrier.wait(60)
        rows = [self.wire.rows[p] for p in range(self.size)]
        self.wire.barrier.wait(60)
        return rows

    def all_to_all(self, out, vector):
        rows = self._everybody(vector)
        out.copy_(torch.cat([row.view(self.size, -1)[self.rank] for row in rows]))
        return Done()

    def all_gather(self, out, chunk):
        out.copy_(torch.cat(self._everybody(chunk)))
        return Done()


def on_ranks(size, work):
    wire, results, errors = Wire(size), [None] * size, []

    def run(rank):
        try:
            results[rank] = work(SimulatedLink(wire, rank, size))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def counted(leaves):
    accumulator = TreeAccumulator()
    for leaf in leaves:
        accumulator.add(lambda: torch.empty_like(leaves[0]), lambda v, f=leaf: v.copy_(f), lambda v, f=leaf: v.add_(f))
    return accumulator.total().clone()


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def leaves_of(workers, length, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-6, 7, (workers, 1), generator=generator)
    return list((torch.randn(workers, length, generator=generator) * scale).to(dtype))


@given(
    workers=st.sampled_from([1, 2, 4, 8, 16]), length=st.integers(1, 200), seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), data=st.data(),
)  # fmt: skip
def test_bits_do_not_depend_on_the_number_of_ranks(workers, length, seed, dtype, data):
    ranks = data.draw(st.sampled_from([p for p in (1, 2, 4, 8) if p <= workers]))
    way = data.draw(st.sampled_from(["pieces", "wholes", "chunks"]))
    piece = data.draw(st.sampled_from([16, 64, 1 << 20]))
    if way == "chunks":
        length = -(-length // ranks) * ranks
    leaves = leaves_of(workers, length, seed, dtype)
    expected = tree_sum(leaves)

    def work(link):
        mine = leaves[link.rank * workers // ranks : (link.rank + 1) * workers // ranks]
        vector = counted(mine)
        spare = torch.empty(length, dtype=dtype)
        if way == "chunks":
            chunks(link, vector, spare)
        else:
            halves(link, vector, spare)
        return vector

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_reduce, "PIECE_BYTES", piece)
        patch.setattr(all_reduce, "WHOLE_BYTES", 1 << 20 if way == "wholes" else 0)
        for result in on_ranks(ranks, work):
            assert same_bits(result, expected)


def test_a_plain_sum_would_have_other_bits():
    leaves = leaves_of(8, 1000, 3, torch.float32)
    assert not same_bits(tree_sum(leaves), sum(leaves[1:], leaves[0].clone()))


def test_a_rank_sends_what_a_ring_sends():
    def sent(size):
        def work(link):
            halves(link, torch.ones(1 << 16), torch.empty(1 << 16))
            return link.sent

        return on_ranks(size, work)

    for size in (2, 4, 8):
        assert set(sent(size)) == {2 * (size - 1) * (4 << 16) // size}


def test_three_ranks_are_refused():
    link = SimulatedLink(Wire(3), 0, 3)
    with pytest.raises(ValueError, match="power of two"):
        halves(link, torch.ones(4), torch.empty(4))


def test_a_counter_keeps_log_many_vectors():
    accumulator, made = TreeAccumulator(), []

    def make():
        made.append(torch.empty(3))
        return made[-1]

    for _ in range(3):
        for _ in range(64):
            accumulator.add(make, lambda v: v.fill_(1), lambda v: v.add_(1))
        assert accumulator.total().tolist() == [64, 64, 64]
        accumulator.clear()
    assert len(made) <= 7


class Sums:
    """Sums over ranks that are gone, or over none."""

    def __init__(self, broken):
        self.broken, self.vectors = broken, []

    def begin(self, vector):
        self.vectors.append(vector)
        return self

    def wait(self):
        if self.broken:
            raise BrokenGroupError("a rank is gone")


def step_of(buckets, param):
    buckets.begin_micro(first=True, last=True)
    (param * 3.0).sum().backward()
    buckets.end_micro(lambda: torch.ones(2))


def test_a_vector_whose_sum_may_still_be_under_way_is_not_used_again():
    param = torch.nn.Parameter(torch.ones(5_000))
    buckets, broken, whole = Buckets([("param", param)], 2), Sums(broken=True), Sums(broken=False)
    buckets.use(broken)
    step_of(buckets, param)
    with pytest.raises(BrokenGroupError):
        buckets.finish()
    buckets.use(whole)
    (abandoned,) = broken.vectors
    abandoned.fill_(7.0)  # what gloo may do as long as its thread has not come back
    step_of(buckets, param)
    buckets.finish()
    assert param.grad.eq(3.0).all()
    assert abandoned.eq(7.0).all()
    step_of(buckets, param)  # a vector whose sum is complete is
    buckets.finish()
    assert whole.vectors[0] is whole.vectors[1]
