"""Tensors as safetensors files: where each lies, the host buffer they are copied into, and reading them back.

A shard is built in memory byte for byte as it will lie on disk: eight bytes of header length, a JSON header, the data.
So a copy at the step boundary is all that training waits for; writing and hashing need neither torch nor the GIL.
``safetensors.torch.save_file`` is not used because it opens, writes and closes by itself: nothing could be synced,
hashed on the way, or tested under a power cut. Files are read by ``safetensors`` like any other.
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
"""Tensors go to a new file once one holds this much; ours. A larger tensor has a file of its own."""

ALIGN_BYTES = 64
"""Where a shard and its data begin in the buffer, a cache line; ours. Safetensors asks for 8."""

LARGE_PAGE_BYTES = 2 << 20
"""A large page on x86-64 and arm64 with 4 KiB pages."""

RESERVED_NAME = "__metadata__"

STORED = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""Types with a safetensors name that releases since 0.4 can read. All others lie there as plain bytes (U8), and the
manifest says what they are."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Type and shape of one tensor, such as ``float32 [128, 64]``."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize


def dtype_of(name: str) -> torch.dtype:
    """The torch type called ``name``; ``ValueError`` if this torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"no type called {name!r} in torch {torch.__version__}")
    return found


def spec_of(name: str, tensor: Tensor) -> Spec:
    """What a tensor is; ``TypeError`` for one that has no plain elements to save."""
    if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        found = type(tensor).__name__
        raise TypeError(f"tensor {name!r} is a {found}, expected a plain tensor (sharded ones: gather first)")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError(f"tensor {name!r} is {tensor.layout} on {tensor.device}, expected a dense tensor with data")
    return Spec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def fingerprint(specs: Mapping[str, Spec]) -> str:
    """SHA-256 over names, types and shapes."""
    rows = [[name, spec.dtype, list(spec.shape)] for name, spec in sorted(specs.items())]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def tied(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Names whose tensor is the same memory seen the same way as that of an earlier name: {later: earlier}."""
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
    """One file: where its image begins in the buffer, its bytes, its header, and where its tensors' data begin."""

    file: str
    begin: int
    size: int
    header: bytes
    offsets: dict[str, int]


def plan(specs: Mapping[str, Spec], *, shard_bytes: int = SHARD_BYTES) -> list[Shard]:
    """Divide tensors over files; within a file the widest type comes first, so that each is aligned."""
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
    """Memory as a flat uint8 tensor: pinned for copies from a GPU, else in large pages, of which fewer fault in."""
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    if size < LARGE_PAGE_BYTES:
        return torch.empty(size, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages: small ones serve
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def raw_bytes(memory: Tensor) -> memoryview:
    """The bytes of a flat uint8 tensor, not copied."""
    return memoryview(cast(bytearray, memory.numpy()))


def place(memory: Tensor, at: int, spec: Spec) -> Tensor:
    """The tensor of type and shape ``spec`` whose bytes begin at ``at`` in ``memory``."""
    flat = memory[at : at + spec.size]
    dtype = dtype_of(spec.dtype)
    if at % dtype.itemsize:  # files of others may not be aligned
        flat = flat.clone()
    return flat.view(dtype).view(spec.shape)


class HostCopy:
    """Memory that holds the files of one checkpoint, kept and reused as long as names, types and shapes stay equal."""

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
        """Length of all files together."""
        return sum(shard.size for shard in self.shards)

    def image(self, shard: Shard) -> memoryview:
        """The bytes of one file."""
        return raw_bytes(self._memory)[shard.begin : shard.begin + shard.size]

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Get the memory for tensors like these, and touch it, so that a later `take` only copies."""
        specs = {name: spec_of(name, tensor) for name, tensor in tensors.items()}
        if RESERVED_NAME in specs:
            raise ValueError(f"a tensor is called {RESERVED_NAME!r}, which the safetensors format keeps for itself")
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
        """Copy all tensors; they may change as soon as this returns.

        Tensors in host memory are copied by this thread alone. Torch would divide each among its threads and wait for
        all of them; beside loaders and other ranks that took ten times as long (0.85 against 0.03 s for 100 MB).
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
        """Give the memory back."""
        self._places, self._stored, self.shards = {}, {}, []
        self._memory = torch.empty(0, dtype=torch.uint8)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _raw(tensor: Tensor) -> Tensor:
    """The same elements as integers: what is moved is bits, and no NaN is made quiet on the way."""
    if tensor.element_size() == 16:
        return torch.view_as_real(tensor).view(torch.int64)
    return tensor.view(_WORDS[tensor.element_size()])


def read_header(memory: Tensor) -> dict[str, int]:
    """Where the data of each tensor begins in a shard that was read; ``ValueError`` if it is not one."""
    raw = raw_bytes(memory)
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or 8 + length > len(raw):
        raise ValueError(f"the header is said to have {length} bytes, the file has {len(raw)}")
    rows = json.loads(bytes(raw[8 : 8 + length]))
    return {name: 8 + length + int(row["data_offsets"][0]) for name, row in rows.items() if name != RESERVED_NAME}
