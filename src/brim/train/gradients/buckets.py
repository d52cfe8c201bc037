"""Sums gradients between backward and the optimizer: in buckets, over micro-batches in the tree, then over ranks.

A hook on every parameter counts gradients. When a bucket has all of its gradients, they are added to it as one leaf of
the tree; in the last micro-batch of a step, ranks then sum the bucket while backward continues with earlier layers.
Buckets are summed in a fixed order, the last layers first.

The last bucket ends with the summary: a few numbers that every rank needs at the end of the step (see `step_summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from brim.errors import UserError
from brim.train.gradients import all_reduce
from brim.train.gradients.all_reduce import Pending, chunks, halves
from brim.train.gradients.tree import TreeAccumulator, add_leaf, put_leaf
from brim.train.membership.process_group import BrokenGroupError, ProcessGroup

BUCKET_BYTES = 25 << 20
"""Size of a bucket, as in DistributedDataParallel."""

FIRST_BUCKET_BYTES = 1 << 20
"""Size of the first bucket, small so that its sum begins early; as in DistributedDataParallel."""

ALIGN_BYTES = 64
"""Alignment of gradients in a bucket: that of separate tensors, since the kernels that are used may depend on it."""

PAD_ELEMENTS = 1024
"""The length of a bucket is a multiple of this, so that up to as many ranks (a power of two) get equal chunks."""

SUMMARY_DTYPE = torch.float32

_cuda: Any = torch.cuda
_guards: Any = torch._guards

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class UnusedParameterError(UserError):
    """A parameter got no gradient, and ``unused`` is "error"."""


class _Elsewhere(Tensor):
    """Placeholder for a gradient that is not summed yet; using it raises, since clipping it would have no effect."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _guards.TracingContext.try_get() is not None:  # torch.compile looks at the grad of each parameter it sees
            return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})  # as in a plain tensor
        raise UserError(
            "gradients were used between run.backward and run.step, which sums and applies them: to clip use "
            "run.clip(max_norm) or run.clip(max_value=...), and leave optimizer.step, scaler.step and scaler.unscale_ "
            "to run.step"
        )


class Reducer(Protocol):
    """Sums a vector over all ranks in place."""

    def begin(self, vector: Tensor) -> Pending:
        """Start to sum; the order of calls is the same on every rank."""


class LocalReducer:
    """Sums over one rank: the vector is the sum."""

    def begin(self, vector: Tensor) -> Pending:
        """Do nothing."""
        return _Ready()


class _Ready:
    def wait(self) -> None:
        return


class _Broken:
    """A sum that could not begin. `wait` raises the error at the end of the step, since a hook of autograd cannot."""

    def __init__(self, error: BrokenGroupError) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error


class AllReduceReducer:
    """Sums with PyTorch's all-reduce: on any number of ranks, in an order of additions that depends on the number."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def begin(self, vector: Tensor) -> Pending:
        """Start an all-reduce."""
        try:
            if vector.is_cuda and not self._group.nccl:
                return _staged(vector, lambda host: self._group.all_reduce(host).wait())
            return self._group.all_reduce(vector)
        except BrokenGroupError as error:
            return _Broken(error)


class TreeReducer:
    """Sums in the fixed tree with messages between pairs of ranks (gloo), in a thread while backward continues."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._spare = torch.empty(0, dtype=torch.uint8)
        self._broken: BaseException | None = None

    def begin(self, vector: Tensor) -> Pending:
        """Pass the vector to the group's thread."""
        ready = _cuda.Event() if vector.is_cuda else None
        if ready is not None:
            ready.record()
        return self._group.do(lambda: self._sum(vector, ready), vector.nbytes + _spare_bytes(vector))

    def _sum(self, vector: Tensor, ready: Any) -> None:
        if self._broken is not None:
            raise self._broken
        try:
            if ready is not None:
                ready.synchronize()
                _through_host(vector, self._sum_host)
            else:
                self._sum_host(vector)
        except Exception as error:
            self._broken = error
            raise

    @torch.no_grad()
    def _sum_host(self, vector: Tensor) -> None:
        wanted = _spare_bytes(vector)
        if self._spare.numel() < wanted:
            self._spare = torch.empty(wanted, dtype=torch.uint8)
        halves(self._group, vector, self._spare[: wanted - wanted % 8].view(vector.dtype))


def _spare_bytes(vector: Tensor) -> int:
    return min(vector.nbytes, all_reduce.WINDOW * all_reduce.PIECE_BYTES)


class NcclTreeReducer:
    """Sums in the fixed tree with NCCL's collectives, on its own stream while backward continues."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._stream: Any = _cuda.Stream(device=group.device)

    def begin(self, vector: Tensor) -> Pending:
        """Queue the exchanges and additions, to run after the work that the current stream has queued."""
        self._stream.wait_stream(torch.cuda.current_stream(vector.device))
        try:
            with torch.cuda.stream(self._stream), torch.no_grad():
                vector.record_stream(self._stream)
                chunks(self._group, vector, torch.empty_like(vector))
        except BrokenGroupError as error:
            return _Broken(error)
        return _Queued(self._stream, vector.device)


@dataclass(frozen=True)
class _Queued:
    stream: Any
    device: torch.device

    def wait(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self.stream)


def make_reducer(group: ProcessGroup | None, *, exact: bool) -> Reducer:
    """Return the object that sums over the ranks of a group."""
    if group is None or group.size == 1:
        return LocalReducer()
    if not exact:
        return AllReduceReducer(group)
    return NcclTreeReducer(group) if group.nccl else TreeReducer(group)


def _through_host(vector: Tensor, work: Callable[[Tensor], None]) -> None:
    host = vector.cpu()
    work(host)
    vector.copy_(host)


def _staged(vector: Tensor, work: Callable[[Tensor], None]) -> Pending:
    _through_host(vector, work)
    return _Ready()


@dataclass
class _Bucket:
    """Parameters whose gradients are summed together."""

    dtype: torch.dtype
    device: torch.device
    members: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    length: int = 0
    accumulator: TreeAccumulator = field(default_factory=TreeAccumulator)
    missing: int = 0
    folded: bool = False
    sum: Tensor | None = None
    work: Pending | None = None

    @property
    def bytes(self) -> int:
        return self.length * self.dtype.itemsize

    def reserve(self, elements: int) -> int:
        """Reserve space for ``elements`` more, and return where they begin."""
        offset = self.length
        step = ALIGN_BYTES // self.dtype.itemsize
        self.length += -(-elements // step) * step
        return offset


class Buckets:
    """All gradients of a model.

    Args:
        named: Names and parameters that get gradients, in the order of the model.
        summary: Number of elements of the summary.
        unused: For a parameter without gradient in a micro-batch, "error" raises `UnusedParameterError`, and "zeros"
            uses zeros.
    """

    def __init__(self, named: Sequence[tuple[str, Tensor]], summary: int, *, unused: str = "error") -> None:
        self.names = [name for name, _ in named]
        self.params = [param for _, param in named]
        self._unused = unused
        self._check()
        self._index = {id(param): index for index, param in enumerate(self.params)}
        self._buckets = _layout(self.params)
        self._of: dict[int, _Bucket] = {i: bucket for bucket in self._buckets for i in bucket.members}
        self._summary_size = summary
        self._summary_at = self._place_summary(summary)
        self._views: dict[int, list[Tensor]] = {}
        self._zeros: dict[int, Tensor] = {}
        self._fired = [False] * len(self.params)
        self._reducer: Reducer = LocalReducer()
        self._launched = 0
        self._last = self._active = self._plain = False
        self._watched = True
        self._norms: Callable[[list[Tensor]], None] | None = None
        self._plain_summary = torch.empty(0)
        hooked: list[Any] = self.params
        self._hooks = [param.register_post_accumulate_grad_hook(self._hook) for param in hooked]

    def _check(self) -> None:
        for name, param in zip(self.names, self.params, strict=True):
            if param.dtype not in FLOATS or param.layout != torch.strided:
                raise UserError(f"parameter {name!r} is {param.dtype}, {param.layout}; only dense floats are supported")

    def _place_summary(self, size: int) -> int:
        device = self.params[0].device if self.params else torch.device("cpu")
        if not self._buckets or self._buckets[-1].dtype != SUMMARY_DTYPE:
            self._buckets.append(_Bucket(SUMMARY_DTYPE, device))
        at = self._buckets[-1].reserve(size)
        for bucket in self._buckets:
            bucket.length = -(-bucket.length // PAD_ELEMENTS) * PAD_ELEMENTS
        return at

    @property
    def bytes(self) -> int:
        """Size of all buckets together."""
        return sum(bucket.bytes for bucket in self._buckets)

    def use(self, reducer: Reducer) -> None:
        """Drop the step in progress, and sum by ``reducer`` from now on."""
        self.drop()
        self._reducer = reducer

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def drop(self) -> None:
        """Drop the step in progress. Vectors that a sum may still be using are not used again."""
        for bucket in self._buckets:
            if bucket.work is not None:
                self._views.pop(id(bucket.sum), None)
                bucket.accumulator.abandon()
            bucket.accumulator.clear()
            bucket.work = bucket.sum = None
        self._active = False
        for param in self.params:
            param.grad = None

    def begin_micro(self, *, first: bool, last: bool, norms: Callable[[list[Tensor]], None] | None = None) -> None:
        """Prepare for the backward pass of a micro-batch.

        Args:
            first: Whether it is this rank's first of the step.
            last: Whether it is this rank's last of the step.
            norms: Called for each bucket with the gradients of this micro-batch alone.
        """
        if first:
            for bucket in self._buckets:
                bucket.accumulator.clear()
        for bucket in self._buckets:
            bucket.missing, bucket.folded, bucket.work, bucket.sum = len(bucket.members), False, None, None
        for param in self.params:
            param.grad = None
        self._fired = [False] * len(self.params)
        self._launched, self._last, self._norms, self._active = 0, last, norms, True
        self._plain = first and last and isinstance(self._reducer, LocalReducer) and not self._watched

    def unmark(self) -> None:
        """Before the forward of a micro-batch: take away what stands for gradients, which a compiler would read."""
        if self._watched:
            for param in self.params:
                if isinstance(param.grad, _Elsewhere):
                    param.grad = None

    def _hook(self, param: Tensor) -> None:
        if not self._active:
            return
        index = self._index[id(param)]
        if self._fired[index]:
            raise UserError(
                f"parameter {self.names[index]!r} got a second gradient in one micro-batch: call run.backward once per "
                "iteration, with the sum of the losses; in torch.utils.checkpoint of a module that is used more than "
                "once, or whose parameters are also used outside, use_reentrant=False"
            )
        self._fired[index] = True
        bucket = self._of[index]
        bucket.missing -= 1
        if bucket.missing == 0 and not self._plain and bucket is not self._buckets[-1]:
            self._fold(bucket)
            self._launch()

    def end_micro(self, summary: Callable[[], Tensor], *, empty: bool = False) -> None:
        """End a micro-batch after its backward pass: add the remaining gradients and the summary.

        Args:
            summary: Returns the summary of this micro-batch.
            empty: Whether the micro-batch had no sample, and so no backward pass.

        Raises:
            UnusedParameterError: a parameter got no gradient, and ``unused`` is "error".
        """
        self._active = False
        if empty:
            self._plain = False
        elif self._unused == "error" and not all(self._fired):
            raise UnusedParameterError(self._unused_words())
        if self._plain:
            self._end_plain(summary)
            return
        for bucket in self._buckets[:-1]:
            if not bucket.folded:
                self._fold(bucket)
        self._fold(self._buckets[-1], summary)
        self._launch()
        if self._watched:  # in the first step only, which is enough to find a mistake in the loop
            for param in self.params:
                param.grad = torch.zeros((), dtype=param.dtype, device=param.device).expand(param.shape).as_subclass(
                    _Elsewhere
                )

    def _end_plain(self, summary: Callable[[], Tensor]) -> None:
        for param in self.params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        if self._norms is not None:
            for bucket in self._buckets:
                self._norms(self._leaf(bucket))
        self._plain_summary = summary()

    def _unused_words(self) -> str:
        unused = [name for name, fired in zip(self.names, self._fired, strict=True) if not fired]
        shown = ", ".join(unused[:8]) + (f" and {len(unused) - 8} more" if len(unused) > 8 else "")
        frozen = [name for name, param in zip(self.names, self.params, strict=True) if not param.requires_grad]
        if frozen:
            return (
                f"no gradient for {shown}: {frozen[0]} was frozen (requires_grad_(False)) after run.prepare. Freeze it "
                "before, or use run.prepare(..., unused='zeros')"
            )
        return (
            f"no gradient for {shown}: the loss of this micro-batch does not depend on it, or the model has had "
            "another parameter in its place since run.prepare. If intended, use run.prepare(..., unused='zeros'); "
            "if it is never trained, parameter.requires_grad_(False) before prepare. For several losses (a GAN), call "
            "run.backward once, with the sum: see docs/how-to-train-elastically.md"
        )

    def _leaf(self, bucket: _Bucket) -> list[Tensor]:
        leaf = []
        for index in bucket.members:
            grad = self.params[index].grad
            if grad is None:
                grad = self._zeros.setdefault(index, torch.zeros_like(self.params[index]))
            elif grad.layout != torch.strided:
                raise UserError(f"the gradient of {self.names[index]!r} is sparse, but must be dense: use sparse=False")
            leaf.append(grad.detach())
        return leaf

    def _fold(self, bucket: _Bucket, summary: Callable[[], Tensor] | None = None) -> None:
        with torch.no_grad():
            leaf = self._leaf(bucket)
            if self._norms is not None and leaf:
                self._norms(leaf)
            if summary is not None:
                leaf = [*leaf, summary()]
            bucket.accumulator.add(
                lambda: self._make(bucket),
                lambda flat: put_leaf(self._views[id(flat)], leaf),
                lambda flat: add_leaf(self._views[id(flat)], leaf),
            )
        for index in bucket.members:
            self.params[index].grad = None
        bucket.folded = True

    def _make(self, bucket: _Bucket) -> Tensor:
        flat = torch.zeros(bucket.length, dtype=bucket.dtype, device=bucket.device)
        views = []
        for index, at in zip(bucket.members, bucket.offsets, strict=True):
            param = self.params[index]
            views.append(torch.as_strided(flat, param.shape, _strides(param), at))
        if bucket is self._buckets[-1]:
            views.append(flat[self._summary_at : self._summary_at + self._summary_size])
        self._views[id(flat)] = views
        return flat

    def _launch(self) -> None:
        if not self._last:
            return
        while self._launched < len(self._buckets) and self._buckets[self._launched].folded:
            bucket = self._buckets[self._launched]
            bucket.sum = bucket.accumulator.total()
            bucket.work = self._reducer.begin(bucket.sum)
            self._launched += 1

    def finish(self) -> Tensor:
        """Wait for all sums after the last micro-batch, set every ``grad``, and return the summed summary."""
        if self._plain:
            return self._plain_summary
        for bucket in self._buckets:
            assert bucket.work is not None
            bucket.work.wait()
        for bucket in self._buckets:
            bucket.work = None
        self._watched = False
        for bucket in self._buckets:
            assert bucket.sum is not None
            for index, view in zip(bucket.members, self._views[id(bucket.sum)], strict=False):
                self.params[index].grad = view
        total = self._buckets[-1].sum
        assert total is not None
        return total[self._summary_at : self._summary_at + self._summary_size]


def _strides(param: Tensor) -> tuple[int, ...]:
    """Return the parameter's strides if it is dense (channels last, say), otherwise those of row-major order."""
    return tuple(torch.empty_like(param, device="meta").stride())


def _layout(params: Sequence[Tensor]) -> list[_Bucket]:
    """Return the buckets in the order in which they are summed, from the end of the model."""
    open_buckets: dict[tuple[torch.dtype, torch.device], _Bucket] = {}
    buckets: list[_Bucket] = []
    for index in reversed(range(len(params))):
        param = params[index]
        key = (param.dtype, param.device)
        bucket = open_buckets.get(key)
        limit = FIRST_BUCKET_BYTES if buckets and bucket is buckets[0] else BUCKET_BYTES
        if bucket is None or (bucket.members and bucket.bytes + param.nbytes > limit):
            bucket = open_buckets[key] = _Bucket(*key)
            buckets.append(bucket)
        bucket.members.append(index)
        bucket.offsets.append(bucket.reserve(param.numel()))
    return buckets
