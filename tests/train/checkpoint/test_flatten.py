"""Nested state goes to tensors and JSON and comes back with every bit; so do tensors through files."""

from __future__ import annotations

import json
import math
import struct
import sys
import threading
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from brim.train.checkpoint.checkpointer import Checkpointer, flatten_state, unflatten_state
from brim.train.checkpoint.shards import STORED, HostCopy

TYPES = [*STORED, torch.complex64, torch.complex128, torch.float8_e4m3fnuz]
TYPES += [getattr(torch, name) for name in ("float8_e8m0fnu",) if hasattr(torch, name)]  # not in torch 2.6


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format)
    return bytes(plain.view(torch.uint8).numpy()) if plain.numel() else b""


def equal(one, other) -> bool:
    """Equal down to the kind of container, the order of keys and the bits of floats and tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            equal(a, b) and equal(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return one == other


@st.composite
def tensors(draw) -> torch.Tensor:
    dtype = draw(st.sampled_from(TYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    tensor = flat.view(dtype).reshape(shape)
    form = draw(st.sampled_from(["plain", "transposed", "strided", "expanded", "conjugate"]))
    if form == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1)
    if form == "strided" and tensor.dim() and tensor.shape[0]:
        return tensor[::2]
    if form == "expanded":
        return tensor.unsqueeze(0).expand(2, *tensor.shape)
    if form == "conjugate" and dtype in (torch.complex64, torch.complex128):
        return tensor.conj()
    return tensor


KEYS = st.one_of(
    st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False),
    st.tuples(st.integers(), st.text(max_size=2)),
)  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=8), st.sampled_from(TYPES),
    tensors(),
)  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
STATES = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        st.lists(below, max_size=4),
        st.lists(below, max_size=3).map(tuple),
        st.dictionaries(KEYS, below, max_size=4),
        st.dictionaries(st.text(max_size=3), below, max_size=3).map(OrderedDict),
        st.dictionaries(st.integers(0, 9), st.integers(0, 9), max_size=3).map(Counter),
        st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
    ),
    max_leaves=12,
)


@given(STATES)
def test_nested_state_comes_back_through_json_with_every_bit(state):
    taken, tree = flatten_state(state)
    again = unflatten_state(taken, json.loads(json.dumps(tree)))
    assert equal(state, again)


@given(st.dictionaries(NAMES, tensors(), max_size=6), st.integers(1, 99))
def test_tensors_come_back_through_files_with_every_bit(tmp_path_factory, named, shard_bytes):
    named.pop("__metadata__", None)
    folder = tmp_path_factory.mktemp("bits")
    checkpointer = Checkpointer(folder, fsync=False, shard_bytes=shard_bytes, chunk_bytes=64)
    path = checkpointer.save(1, named, {}, wait=True).path
    restored = checkpointer.restore(named).tensors
    assert list(restored) == list(named)
    assert all(equal(named[name], restored[name]) for name in named)
    theirs = {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(str(file)).items()}
    for name, tensor in theirs.items():
        assert bits(tensor) == bits(named[name]), "another reader sees other bytes"


def test_bits_of_nan_survive():
    odd = torch.tensor([0x7FA00001, -1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    half = torch.tensor([0x7F81, 0x7FC1], dtype=torch.int16).view(torch.bfloat16)
    copy = HostCopy()
    copy.take({"odd": odd[::2], "half": half})
    assert bits(odd[::2]) in bytes(copy.image(copy.shards[0]))
    assert bits(half) in bytes(copy.image(copy.shards[0]))
    payload = struct.unpack(">d", bytes.fromhex("7ff4000000000123"))[0]
    taken, tree = flatten_state([payload, -0.0, math.inf, 5e-324, sys.float_info.max])
    assert struct.pack(">d", unflatten_state(taken, json.loads(json.dumps(tree)))[0]).hex() == "7ff4000000000123"


def test_optimizers_and_schedules_go_on_with_the_same_bits(tmp_path):
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)).double()
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
        optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95), amsgrad=True)
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4], gamma=0.5)

    def step(model, optimizer, schedule, number):
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(8, 5).double()).square().sum().backward()
        optimizer.step()
        schedule.step()

    whole = make()
    for number in range(6):
        step(*whole, number)
        if number == 2:
            names = ("model", "optimizer", "schedule")
            state = {name: part.state_dict() for name, part in zip(names, whole, strict=True)}
            taken, tree = flatten_state(state)
            Checkpointer(tmp_path).save(3, taken, {"tree": tree}, wait=True)
    resumed = make()
    restored = Checkpointer(tmp_path).restore({k: v for k, v in taken.items() if k[:6] == "model."}, within="model.")
    state = unflatten_state(restored.tensors, restored.meta["tree"])
    for name, part in zip(("model", "optimizer", "schedule"), resumed, strict=True):
        part.load_state_dict(state[name])
    for number in range(3, 6):
        step(*resumed, number)
    for one, other in zip(whole, resumed, strict=True):
        assert equal(_plain(one.state_dict()), _plain(other.state_dict()))
    assert "model.0.weight" in taken
    assert "optimizer.state.0.exp_avg" in taken


def _plain(state):
    return dict(state)


def test_tied_tensors_are_stored_once_and_come_back_as_one(tmp_path):
    weight = torch.nn.Parameter(torch.randn(30, 40))
    state = {"embed": weight, "head": weight, "view": weight.detach().view(30, 40), "t": weight.t(), "part": weight[:2]}
    taken, tree = flatten_state(state)
    assert sorted(taken) == ["embed", "part", "t"]
    again = unflatten_state(taken, tree)
    assert again["embed"] is again["head"] is again["view"]
    saving = Checkpointer(tmp_path).save(1, state, {}, wait=True)
    assert saving.bytes < 2 * 4800 + 320 + 2000
    tensors = Checkpointer(tmp_path).restore(state).tensors
    assert tensors["embed"] is tensors["head"]
    assert all(torch.equal(state[name], tensors[name]) for name in state)


def test_views_that_only_look_tied_are_kept_apart(tmp_path):
    square = torch.arange(9.0).view(3, 3)
    pair = torch.tensor([1 + 2j, 3 - 4j])
    state = {"a": square, "b": square.t(), "c": pair, "d": pair.conj(), "e": pair.conj().imag, "f": square.view(9)}
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, state, {}, wait=True)
    tensors = checkpointer.restore(state).tensors
    for name, tensor in state.items():
        assert torch.equal(tensors[name], tensor.resolve_conj().resolve_neg()), name
    taken, tree = flatten_state(state)
    assert equal(unflatten_state(taken, tree), state)


def test_names_that_would_collide_stay_apart():
    state = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1), 1: torch.full((1,), 2), "1": torch.full((1,), 3)},
             "__metadata__": torch.full((1,), 4)}  # fmt: skip
    taken, tree = flatten_state(state)
    assert len(taken) == 5
    assert "__metadata__" not in taken
    assert equal(unflatten_state(taken, tree), state)
    assert list(flatten_state([torch.zeros(1)], prefix="model")[0]) == ["model.0"]


def test_kinds_that_would_not_come_back_are_refused_by_place():
    class Own(dict):
        pass

    for state, said in (
        ({"a": [1, {2, 3}]}, r"a.1 is a builtins.set"),
        ({"a": Own()}, "a is a .*Own"),
        ({"a": {(1, 2.5): object()}}, "is a builtins.object"),
        ({"a": np.zeros(2)}, "a is a numpy.ndarray"),
        ({frozenset(): 1}, "a key of the state is a builtins.frozenset"),
    ):
        with pytest.raises(TypeError, match=said):
            flatten_state(state)
    loop: list = []
    loop.append({"again": loop})
    with pytest.raises(ValueError, match=r"0.again contains itself"):
        flatten_state(loop)
    with pytest.raises(ValueError, match="not JSON from flatten_state"):
        unflatten_state({}, {"keys": "odd", "items": []})


def test_numbers_and_texts_of_numpy_become_those_of_python():
    given = {
        "lr": np.float64(0.1), "best": np.float32(0.1), "half": np.float16(math.inf), "n": np.int64(7),
        "ok": np.bool_(True), "text": np.str_("a"), "raw": np.bytes_(b"b"),
        "key": {np.int32(3): np.uint8(4), (np.int64(1),): 0},
    }
    plain = {
        "lr": 0.1, "best": float(np.float32(0.1)), "half": math.inf, "n": 7, "ok": True, "text": "a", "raw": b"b",
        "key": {3: 4, (1,): 0},
    }
    taken, tree = flatten_state(given)
    assert equal(unflatten_state(taken, json.loads(json.dumps(tree))), plain)
    for other in (np.longdouble(1), np.complex64(1), np.datetime64("2026-01-01")):
        with pytest.raises(TypeError, match=f"a is a numpy.{type(other).__name__}, which cannot be saved"):
            flatten_state({"a": other})


def test_what_changes_after_save_returns_is_not_in_the_checkpoint(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    gate = threading.Event()
    original = checkpointer._write
    checkpointer._write = lambda *a: (gate.wait(20), original(*a))[1]
    weight, meta = torch.zeros(1000), {"ledger": [1]}
    saving = checkpointer.save(1, {"weight": weight}, meta)
    assert checkpointer.busy
    assert not saving.done
    weight.fill_(7)
    meta["ledger"].append(2)
    with pytest.raises(Exception, match="still being written after 0"):
        saving.wait(0.0)
    gate.set()
    assert saving.wait().name == "save-00000001-step-1"
    checkpointer.wait()
    assert not checkpointer.busy
    restored = checkpointer.restore()
    assert restored.meta == {"ledger": [1]}
    assert not restored.tensors["weight"].any()


def test_a_second_save_waits_for_the_first_and_both_are_whole(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    savings = []
    for step in range(5):
        weight = torch.full((100_000,), float(step))
        savings.append(checkpointer.save(step, {"weight": weight}, {}))
        weight.zero_()
        assert all(saving.done for saving in savings[:-1])
    checkpointer.close()
    assert {saving.error for saving in savings} == {None}
    assert torch.equal(checkpointer.restore().tensors["weight"], torch.full((100_000,), 4.0))
    (tmp_path / "save-00000005-step-4").rename(tmp_path / "away")
    assert torch.equal(checkpointer.restore().tensors["weight"], torch.full((100_000,), 3.0))


def test_host_memory_is_reused_until_the_tensors_are_others(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.reserve({"a": torch.zeros(5000)})
    first = checkpointer._copy._memory.data_ptr()
    for step in range(3):
        checkpointer.save(step, {"a": torch.ones(5000)}, {}, wait=True)
        assert checkpointer._copy._memory.data_ptr() == first
    checkpointer.save(3, {"a": torch.ones(5000), "b": torch.zeros(3)}, {}, wait=True)
    assert set(checkpointer.restore().tensors) == {"a", "b"}
    checkpointer.close()
    assert checkpointer._copy._memory.numel() == 0
    checkpointer.save(4, {"a": torch.ones(5000)}, {}, wait=True)
    assert checkpointer.restore().step == 4
