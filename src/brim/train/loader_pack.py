"""A batch in shared memory: written by a loading process, read in place by the training process.

The memory is an anonymous file (``memfd_create``): it has no name, so nothing can be left in ``/dev/shm`` however a
process dies, and it is not bound by the size of ``/dev/shm``. A batch is a pickle whose tensors and arrays lie beside
it, aligned; strides survive, so a batch is the same whether it came through here or not.
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
"""Of every tensor, as torch's own allocator gives it: kernels take the same path and give the same bits."""

HEAD = struct.Struct("<qq")   # bytes of the pickle, number of buffers
ENTRY = struct.Struct("<qq")  # offset and bytes of a buffer
IOV_MAX = 512


class Packer(pickle.Pickler):
    """A pickler that leaves the contents of tensors outside."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce plain CPU tensors to the part of their storage that they cover."""
        if type(value) is not torch.Tensor or not shareable(value):
            return NotImplemented
        shape, stride = tuple(value.shape), value.stride()
        covered = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if value.numel() else 0
        flat = value.as_strided((covered,), (1,)).view(torch.uint8)
        contents: Any = flat.numpy()
        return tensor_from, (pickle.PickleBuffer(contents), value.dtype, shape, stride)


def shareable(value: torch.Tensor) -> bool:
    """Tell a dense CPU tensor without gradient, whose bytes say everything, from others."""
    return (
        value.layout is torch.strided and value.device.type == "cpu" and not value.requires_grad
        and not value.is_quantized and not value.is_conj() and not value.is_neg()
    )


def tensor_from(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Return a tensor over the memory, without a copy."""
    if not memoryview(memory).nbytes:
        return torch.empty_strided(shape, stride, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride)


def write(handle: int, batch: Any) -> int:
    """Write a batch from the beginning of a file; return how many bytes it takes."""
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
    """Write parts one after the other from the beginning of a file."""
    waiting, at = deque(memoryview(part) for part in parts if len(part)), 0
    while waiting:
        written = os.pwritev(handle, [waiting[index] for index in range(min(IOV_MAX, len(waiting)))], at)
        at += written
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.popleft())
        if written:
            waiting[0] = waiting[0][written:]


def read(memory: memoryview) -> Any:
    """Return the batch that lies in the memory; its tensors share it."""
    pickled, count = HEAD.unpack_from(memory)
    entries = [ENTRY.unpack_from(memory, HEAD.size + ENTRY.size * index) for index in range(count)]
    start = HEAD.size + ENTRY.size * count
    return pickle.loads(memory[start:start + pickled], buffers=[memory[at:at + size] for at, size in entries])


class Slab:
    """One anonymous file of the training process: used by a loading process, then by the batch that lies in it."""

    def __init__(self) -> None:
        self.handle = os.memfd_create("brim-batch", os.MFD_CLOEXEC)
        self._mapped: mmap.mmap | None = None

    def lend(self, size: int, returned: deque[Slab]) -> memoryview:
        """Return the first bytes; once no part of them is in use, the slab appears in ``returned``."""
        array = (ctypes.c_ubyte * size).from_buffer(self._map(size))
        weakref.finalize(array, returned.append, self).atexit = False
        return memoryview(array).cast("B")

    def copy(self, size: int) -> memoryview:
        """Return a private copy of the first bytes."""
        return memoryview(bytearray(os.pread(self.handle, size, 0)))

    def close(self) -> None:
        """Give up the file; memory that is still held stays until it is not."""
        if self.handle >= 0:
            os.close(self.handle)
        self.handle, self._mapped = -1, None

    def _map(self, size: int) -> mmap.mmap:
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self.handle, 0)
        return self._mapped
