"""Tensors as safetensors files: the layout of files, the host buffer that tensors are copied into, and reading.

A shard is built in memory exactly as it is written to disk: eight bytes of header length, a JSON header, the data.
Training therefore waits only for a copy at the step boundary; writing and hashing need neither torch nor the GIL.
``safetensors.torch.save_file`` is not used because it opens, writes and closes the file itself: brim could not sync
it, hash it while writing, or test a power cut. ``safetensors`` can read the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

SHARD_BYTES = 512 << 20
"""Largest size of a file with several tensors; a larger tensor has a file of its own. Our choice."""

ALIGN_BYTES = 64
"""Alignment of shards and of their data in the buffer. Our choice: a cache line; safetensors requires 8."""

LARGE_PAGE_BYTES = 2 << 20
"""A large page on x86-64 and arm64 with 4 KiB pages."""

RESERVED_NAME = "__metadata__"

STORED = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""Types that safetensors can read since release 0.4, and their names there. Tensors of other types are stored as bytes
(U8); the manifest has their type."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Type and shape of one tensor, such as ``float32 [128, 64]``."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @property
    def size(self) -> int:
        """Size of its elements in bytes."""
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize


def dtype_of(name: str) -> torch.dtype:
    """Return the torch type called ``name``; ``ValueError`` if this version of torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"no type called {name!r} in torch {torch.__version__}")
    return found


def spec_of(name: str, tensor: Tensor) -> Spec:
    """Return type and shape of a tensor; ``TypeError`` if it has no plain elements to save."""
    if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        found = type(tensor).__name__
        raise TypeError(f"tensor {name!r} is a {found}: only plain tensors can be saved (gather sharded ones first)")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError(
            f"tensor {name!r} is {tensor.layout} on {tensor.device}: only dense tensors with data can be saved"
        )
    return Spec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def fingerprint(specs: Mapping[str, Spec]) -> str:
    """Return the SHA-256 of names, types and shapes."""
    rows = [[name, spec.dtype, list(spec.shape)] for name, spec in sorted(specs.items())]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def tied(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return ``{later: earlier}`` for names whose tensors have the same memory, type, shape and strides."""
    first: dict[tuple[object, ...], str] = {}
    again: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        key = (
            tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(),
            tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip
        owner = first.setdefault(key, name)
        if owner != name:
            again[name] = owner
    return again


@dataclass(frozen=True, slots=True)
class Shard:
    """One file: where it begins in the buffer, its size in bytes, its header, and where each tensor's data begin."""

    file: str
    begin: int
    size: int
    header: bytes
    offsets: dict[str, int]


def plan(specs: Mapping[str, Spec], *, shard_bytes: int = SHARD_BYTES) -> list[Shard]:
    """Distribute tensors over files; within a file the widest type comes first, so that every tensor is aligned."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name in sorted(specs):
        if groups[-1] and filled + specs[name].size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += specs[name].size
    shards: list[Shard] = []
    begin = 0
    for index, group in enumerate(groups):
        shards.append(_shard(f"tensors-{index:05d}.safetensors", begin, {name: specs[name] for name in group}))
        begin += -(-shards[-1].size // ALIGN_BYTES) * ALIGN_BYTES
    return shards


def _shard(file: str, begin: int, specs: Mapping[str, Spec]) -> Shard:
    rows: dict[str, object] = {}
    relative: dict[str, int] = {}
    end = 0
    for name in sorted(specs, key=lambda name: (-dtype_of(specs[name].dtype).itemsize, name)):
        spec = specs[name]
        stored = STORED.get(dtype_of(spec.dtype))
        shape = list(spec.shape) if stored else [spec.size]
        rows[name] = {"dtype": stored or "U8", "shape": shape, "data_offsets": [end, end + spec.size]}
        relative[name] = end
        end += spec.size
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGN_BYTES)
    header = len(text).to_bytes(8, "little") + text
    offsets = {name: begin + len(header) + at for name, at in relative.items()}
    return Shard(file, begin, len(header) + end, header, offsets)


def empty_bytes(size: int, *, pinned: bool = False) -> Tensor:
    """Return memory as a flat uint8 tensor: pinned for copies from a GPU, else in large pages, to fault less."""
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    if size < LARGE_PAGE_BYTES:
        return torch.empty(size, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages uses small ones
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def raw_bytes(memory: Tensor) -> memoryview:
    """Return the bytes of a flat uint8 tensor without a copy."""
    return memoryview(cast(bytearray, memory.numpy()))


def place(memory: Tensor, at: int, spec: Spec) -> Tensor:
    """Return the tensor of type and shape ``spec`` whose bytes begin at ``at`` in ``memory``."""
    flat = memory[at : at + spec.size]
    dtype = dtype_of(spec.dtype)
    if at % dtype.itemsize:  # files from other programs may not be aligned
        flat = flat.clone()
    return flat.view(dtype).view(spec.shape)


class HostCopy:
    """Host memory for the files of one checkpoint, reused while names, types and shapes of tensors stay the same."""

    def __init__(self, *, shard_bytes: int = SHARD_BYTES) -> None:
        self._shard_bytes = shard_bytes
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._places: dict[str, Tensor] = {}
        self._stored: dict[str, Spec] = {}
        self.specs: dict[str, Spec] = {}
        self.tied: dict[str, str] = {}
        self.shards: list[Shard] = []

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(shard.size for shard in self.shards)

    def image(self, shard: Shard) -> memoryview:
        """Return the bytes of one file."""
        return raw_bytes(self._memory)[shard.begin : shard.begin + shard.size]

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate the memory for tensors like these, and touch it, so that a later `take` only copies."""
        specs = {name: spec_of(name, tensor) for name, tensor in tensors.items()}
        if RESERVED_NAME in specs:
            raise ValueError(f"a tensor is called {RESERVED_NAME!r}, a name that the safetensors format reserves")
        self.specs, self.tied = specs, tied(tensors)
        stored = {name: spec for name, spec in specs.items() if name not in self.tied}
        pinned = any(tensor.is_cuda for tensor in tensors.values())
        if self.shards and stored == self._stored and (not pinned or self._memory.is_pinned()):
            return
        self.release()
        self.shards = plan(stored, shard_bytes=self._shard_bytes)
        self._stored = stored
        self._memory = empty_bytes(self.shards[-1].begin + self.shards[-1].size, pinned=pinned)
        self._memory.zero_()
        for shard in self.shards:
            self.image(shard)[: len(shard.header)] = shard.header
            self._places |= {name: _raw(place(self._memory, at, stored[name])) for name, at in shard.offsets.items()}

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy all tensors; the caller may change them once this returns.

        This thread alone copies tensors in host memory. Torch would divide each among its threads and wait for all of
        them, which took 0.85 s in place of 0.03 s for 100 MB while loaders and other ranks were running.
        """
        self.reserve(tensors)
        devices = set()
        for name, into in self._places.items():
            source = _raw(tensors[name].detach().resolve_conj().resolve_neg())
            if source.device.type == "cpu":
                np.copyto(into.numpy(), source.numpy())
            else:
                into.copy_(source, non_blocking=source.is_cuda)
                devices.add(source.device)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()

    def release(self) -> None:
        """Free the memory."""
        self._places, self._stored, self.shards = {}, {}, []
        self._memory = torch.empty(0, dtype=torch.uint8)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _raw(tensor: Tensor) -> Tensor:
    """Return the same elements as integers, so that a copy keeps all bits: one of floats may make a NaN quiet."""
    if tensor.element_size() == 16:
        return torch.view_as_real(tensor).view(torch.int64)
    return tensor.view(_WORDS[tensor.element_size()])


def read_header(memory: Tensor) -> dict[str, int]:
    """Return where the data of each tensor begins in a shard; ``ValueError`` if this is not a shard."""
    raw = raw_bytes(memory)
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or 8 + length > len(raw):
        raise ValueError(f"the file has {len(raw)} bytes, but gives the length of its header as {length}")
    rows = json.loads(bytes(raw[8 : 8 + length]))
    return {name: 8 + length + int(row["data_offsets"][0]) for name, row in rows.items() if name != RESERVED_NAME}
