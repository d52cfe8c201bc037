"""A batch in shared memory is the batch that was written."""

from __future__ import annotations

import os
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.train.data.shared_memory import ALIGNMENT_BYTES, SharedBuffer, write, write_all
from brim.train.data.shared_memory import read as read_batch
from tests.sampling import sample
from tests.train.data.loading import same

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool,
          torch.complex64]


@st.composite
def tensors(draw) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    if shape:
        tensor = tensor.permute(*draw(st.permutations(range(len(shape)))))
        axis = draw(st.integers(0, len(shape) - 1))
        half = tensor.shape[axis] // 2
        tensor = tensor.narrow(axis, half, tensor.shape[axis] - half)
    return tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape) if draw(st.booleans()) else tensor


@settings(max_examples=sample(40, 13))
@given(batch=st.recursive(
    tensors() | st.integers() | st.text(max_size=5) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=5,
))
def test_what_is_read_is_what_was_written(batch):
    buffer, returned = SharedBuffer(), deque()
    try:
        assert same(read_batch(buffer.lend(write(buffer.handle, batch), returned)), batch)
        assert same(read_batch(buffer.copy(write(buffer.handle, batch))), batch)
        assert list(returned) == [buffer]
    finally:
        buffer.close()


def test_a_buffer_returns_when_the_last_tensor_over_it_is_gone():
    buffer, returned = SharedBuffer(), deque()
    size = write(buffer.handle, {"a": torch.ones(5), "b": torch.zeros(7, dtype=torch.uint8)})
    batch = read_batch(buffer.lend(size, returned))
    assert all(tensor.data_ptr() % ALIGNMENT_BYTES == 0 for tensor in batch.values())
    kept = batch["b"][2:3].numpy()
    del batch
    assert not returned
    assert kept[0] == 0
    del kept
    assert list(returned) == [buffer]
    buffer.close()


def test_a_larger_batch_in_a_used_buffer_is_read_whole():
    buffer, returned = SharedBuffer(), deque()
    for length in (10, 100_000, 10):
        batch = torch.arange(length)
        assert torch.equal(read_batch(buffer.lend(write(buffer.handle, batch), returned)), batch)
    buffer.close()


@pytest.mark.parametrize("most", [1, 7, 10**6])
def test_a_file_that_takes_little_at_a_time_gets_everything(monkeypatch, most):
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda handle, parts, at: whole(handle, [b"".join(parts)[:most]], at))
    buffer = SharedBuffer()
    write_all(buffer.handle, [b"abc", b"", memoryview(b"defgh"), b"i" * 30])
    assert bytes(buffer.copy(100)) == b"abcdefgh" + b"i" * 30
    buffer.close()
