"""Passes a batch through shared memory: a worker process writes it, the training process reads it without a copy.

The memory is an anonymous file (``memfd_create``). It has no name, so nothing is left in ``/dev/shm`` however a process
dies, and the size of ``/dev/shm`` does not limit it. A batch is a pickle followed by the contents of its tensors and
arrays, aligned. Strides are kept, so a batch is the same whether it was passed through here or not.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import struct
import weakref
from collections import deque
from io import BytesIO
from typing import Any

import torch

ALIGNMENT_BYTES = 64
"""Alignment of every tensor, that of torch's own allocator: kernels then take the same path and give the same bits."""

HEAD = struct.Struct("<qq")   # bytes of the pickle, number of buffers
ENTRY = struct.Struct("<qq")  # offset and bytes of a buffer
IOV_MAX = 512

LENT_BUFFERS_MAX = 64
"""Most batches in use that stay in shared memory; others are copied. Each has two file descriptors, of often 1,024."""


class Packer(pickle.Pickler):
    """A pickler that puts the contents of tensors in separate buffers."""

    def reducer_override(self, value: Any) -> Any:
        """Pickle only the part of its storage that a plain CPU tensor covers."""
        if type(value) is not torch.Tensor or not shareable(value):
            return NotImplemented
        shape, stride = tuple(value.shape), value.stride()
        covered = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if value.numel() else 0
        flat = value.as_strided((covered,), (1,)).view(torch.uint8)
        contents: Any = flat.numpy()
        return tensor_from, (pickle.PickleBuffer(contents), value.dtype, shape, stride)


def shareable(value: torch.Tensor) -> bool:
    """Return whether the tensor is a dense CPU tensor without gradient, which its bytes describe completely."""
    return (
        value.layout is torch.strided and value.device.type == "cpu" and not value.requires_grad
        and not value.is_quantized and not value.is_conj() and not value.is_neg()
    )


def tensor_from(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Return a tensor that shares the memory."""
    if not memoryview(memory).nbytes:
        return torch.empty_strided(shape, stride, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride)


def write(handle: int, batch: Any) -> int:
    """Write a batch to the beginning of a file; return the number of bytes written."""
    stream, found = BytesIO(), list[pickle.PickleBuffer]()
    Packer(stream, protocol=5, buffer_callback=found.append).dump(batch)
    pickled = stream.getbuffer()
    contents = [buffer.raw() for buffer in found]
    at = HEAD.size + ENTRY.size * len(contents) + len(pickled)
    table, parts = [HEAD.pack(len(pickled), len(contents))], list[bytes | memoryview]()
    for content in contents:
        gap = -at % ALIGNMENT_BYTES
        table.append(ENTRY.pack(at + gap, content.nbytes))
        parts += [bytes(gap), content]
        at += gap + content.nbytes
    write_all(handle, [b"".join(table), pickled, *parts])
    return at


def write_all(handle: int, parts: list[bytes | memoryview]) -> None:
    """Write the parts one after another to the beginning of a file."""
    waiting, at = deque(memoryview(part) for part in parts if len(part)), 0
    while waiting:
        written = os.pwritev(handle, [waiting[index] for index in range(min(IOV_MAX, len(waiting)))], at)
        at += written
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.popleft())
        if written:
            waiting[0] = waiting[0][written:]


def read(memory: memoryview) -> Any:
    """Return the batch stored in the memory; its tensors share the memory."""
    pickled, count = HEAD.unpack_from(memory)
    entries = [ENTRY.unpack_from(memory, HEAD.size + ENTRY.size * index) for index in range(count)]
    start = HEAD.size + ENTRY.size * count
    return pickle.loads(memory[start:start + pickled], buffers=[memory[at:at + size] for at, size in entries])


class SharedBuffer:
    """One anonymous file, created by the training process and reused: a worker process writes a batch to it."""

    def __init__(self) -> None:
        self.handle = os.memfd_create("brim-batch", os.MFD_CLOEXEC)
        self._mapped: mmap.mmap | None = None

    def lend(self, size: int, returned: deque[SharedBuffer]) -> memoryview:
        """Return the first ``size`` bytes; when nothing refers to them any more, the buffer is put in ``returned``."""
        array = (ctypes.c_ubyte * size).from_buffer(self._map(size))
        weakref.finalize(array, returned.append, self).atexit = False
        return memoryview(array).cast("B")

    def copy(self, size: int) -> memoryview:
        """Return a private copy of the first ``size`` bytes."""
        return memoryview(bytearray(os.pread(self.handle, size, 0)))

    def close(self) -> None:
        """Close the file; its memory is freed when nothing refers to it any more."""
        if self.handle >= 0:
            os.close(self.handle)
        self.handle, self._mapped = -1, None

    def _map(self, size: int) -> mmap.mmap:
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self.handle, 0)
        return self._mapped


class BufferPool:
    """Buffers that are reused: free ones, ones that hold a task's batch, and ones whose batch is in use."""

    def __init__(self) -> None:
        self._free: list[SharedBuffer] = []
        self._returned: deque[SharedBuffer] = deque()
        self._all: set[SharedBuffer] = set()
        self._lent = 0

    def get(self) -> SharedBuffer:
        """Return a buffer for one batch."""
        self._collect()
        if self._free:
            return self._free.pop()
        buffer = SharedBuffer()
        self._all.add(buffer)
        return buffer

    def take(self, buffer: SharedBuffer, size: int) -> memoryview:
        """Return the first ``size`` bytes of a buffer, which is free again when nothing refers to them any more."""
        self._collect()
        if self._lent >= LENT_BUFFERS_MAX:
            copy = buffer.copy(size)
            self.release(buffer)
            return copy
        self._lent += 1
        return buffer.lend(size, self._returned)

    def release(self, buffer: SharedBuffer) -> None:
        """Let the buffer be reused."""
        self._free.append(buffer)

    def discard(self, buffer: SharedBuffer) -> None:
        """Close a buffer; if it is still in use, its memory is freed afterwards."""
        self._all.discard(buffer)
        buffer.close()

    def trim(self, keep: int) -> None:
        """Close unused buffers, except ``keep`` of them."""
        self._collect()
        while len(self._free) > keep:
            self.discard(self._free.pop())

    def close(self) -> None:
        """Close all buffers."""
        self._free.clear()
        for buffer in list(self._all):
            self.discard(buffer)

    def _collect(self) -> None:
        while self._returned:
            self._lent -= 1
            self._free.append(self._returned.popleft())
