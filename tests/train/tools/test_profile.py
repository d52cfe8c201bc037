"""``tools.profile``: steps of a real gang by local batch, memory that ends, loaders, exchange, and the file."""

import sys
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
import pytest

from brim.beliefs.analyser import REPETITIONS, analyse, exchange_sizes, measure_exchange
from brim.beliefs.library import load, parse
from brim.beliefs.throughput import fit, step_s
from brim.cli import profiling
from brim.cli.profiling import Profile, StepMedians, as_toml, gpu_type, measure, observations
from brim.errors import BrimError, UserError
from brim.train.tools.profile.gang import (
    BoxExchange,
    Header,
    Script,
    ScriptError,
    ScriptSteps,
    StepMeasures,
    largest_that_fits,
)

SCRIPT = """
import os, sys, time
import torch
import brim.train as bt

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 96
    def __getitem__(self, i): return torch.full((4,), i / 96), torch.tensor([i / 48 - 1])

run = bt.start(logical_workers={workers}, seed=1, checkpoint="checkpoints")
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e9))
loader = run.loader(Numbers(), global_batch=16, workers=0, {loader})
for epoch in run.epochs(1, steps=2):
    for x, y in run.steps(loader):
        {inside}
        run.backward(torch.nn.functional.mse_loss(model(x), y))
        run.step()
    assert run.loss < 10, "it moved"
"""
FULL = 'if len(x) > 24: raise torch.OutOfMemoryError("CUDA out of memory (not really)")'


@pytest.fixture
def script(zygote, tmp_path, monkeypatch):
    """Makes a script of these parts; afterwards, none of its launchers is left."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)

    def make(*words, text=None, workers=4, inside="pass", loader="", timeout_s=60):
        text = text or SCRIPT.format(workers=workers, inside=inside, loader=loader)
        Path("s.py").write_text(text)
        return Script(
            python=sys.executable, words=("s.py", *words), folder=tmp_path, timeout_s=timeout_s, zygote=zygote
        )

    before = set(psutil.Process().children())
    yield make
    assert set(psutil.Process().children()) == before


@pytest.mark.timing
def test_steps_are_those_of_the_batch_that_was_asked_for(script):
    with ScriptSteps(script(inside="time.sleep(0.01 * len(x))"), 1, 4) as steps:
        for batch in (4, 12, 4):  # back again: what was recorded in between is passed over
            times = steps.step_s(batch, 3)
            assert len(times) == 3
            assert all(0.01 * batch <= each < 0.01 * batch + 0.08 for each in times), (batch, times)
        assert steps.header.global_batch == 16
        assert steps.header.samples == 96


def test_the_script_is_not_changed_by_being_measured(script, tmp_path):
    """Rates that would blow up stay at zero, checkpoints are not made, its own end is passed over."""
    with ScriptSteps(script(), 1) as steps:
        assert steps.header.local_batch == 2  # an eighth of its own
        assert len(steps.step_s(2, 60)) == 60  # more than the two that it would make, and more than one epoch
    assert not (tmp_path / "checkpoints").exists()


def test_accumulation_is_one_micro_batch_while_measured(script):
    with ScriptSteps(script(workers=None, loader="micro_batch=2", inside="assert len(x) == 8, len(x)"), 1, 8) as steps:
        assert len(steps.step_s(8, 3)) == 3


def test_a_batch_without_memory_does_not_fit_and_the_limit_is_closed_in_on(script):
    with ScriptSteps(script(inside=FULL), 1, 6) as steps:
        assert steps.step_s(32, 2) is None
        assert steps.step_s(24, 2) is not None  # in a new gang
        found = analyse(steps, batch_min=6, gpus_max=1, local_batch_max=64, local_batch_min=6)
    assert 20 <= found.local_batch_max <= 24
    assert all(sample.step_s > 0 for sample in found.samples)


def test_a_batch_that_never_fits_is_said(script):
    with pytest.raises(UserError, match="local batch of 30 does not fit the memory"):
        measure(script(inside=FULL), ranks=(1,), batch=(30, 40))


def test_the_exceptions_of_a_script_are_its_own_and_without_our_frames(script):
    with pytest.raises(ScriptError) as failed:
        ScriptSteps(script(text="import sys\ndef f():\n    raise ValueError('mine')\nf()\n"), 1)
    assert failed.value.exit_code == 1
    assert failed.value.stderr.startswith('Traceback (most recent call last):\n  File "s.py", line 4, in <module>')
    assert "ValueError: mine" in failed.value.stderr
    assert "brim/train/tools/profile" not in failed.value.stderr


def test_a_failure_between_steps_comes_out_too(script):
    with ScriptSteps(script("3", inside="if len(x) == 8: sys.exit(int(sys.argv[1]))"), 1, 4) as steps:
        steps.step_s(4, 2)
        with pytest.raises(ScriptError) as failed:
            steps.step_s(8, 2)
    assert failed.value.exit_code == 3


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("text", "timeout_s", "said"),
    [
        ("import sys", 60, "ended without a step of brim.train"),
        ("import time; time.sleep(60)", 1.5, "made no step of brim.train in 1.5 s: it needs"),
        (SCRIPT.format(workers=1, loader="", inside="if run.steps_done == 3: sys.exit()"), 60, "ended after 3 steps"),
    ],
)  # fmt: skip
def test_a_script_without_enough_steps_is_told_what_was_expected(script, text, timeout_s, said):
    with pytest.raises(UserError, match=said), ScriptSteps(script(text=text, timeout_s=timeout_s), 1, 4) as steps:
        steps.step_s(4, 10)


def test_all_reduces_are_timed_on_real_ranks(script):
    sizes = exchange_sizes(21)
    assert sizes == [2**20, 2**21]
    box = BoxExchange(script(), "cpu", sizes, REPETITIONS)
    times = measure_exchange(box, num_nodes=1, gpus_per_node=2, bytes_max_exp=21)
    assert times.packed_s_KS.shape == (1, 2)
    assert (times.packed_s_KS == times.spread_s_KS).all()  # one node: measured once
    assert 1e-5 < times.all_reduce_s(2**20, 2, 1) < 5
    with pytest.raises(BrimError, match="all-reduce on 2 ranks ended with code 1"):
        BoxExchange(script(), "no-device", sizes, REPETITIONS).all_reduce_s(2**20, 2, 1)


@pytest.mark.timing
def test_what_is_written_is_read_back_as_a_model_known_beforehand(script, tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "CPU_BYTES_MAX_EXP", 20)
    found = measure(script("--flag", inside="time.sleep(0.002 + 0.001 * len(x))"), ranks=(1, 2), batch=(4, 16))
    text = as_toml(found)
    (tmp_path / "s.toml").write_text(text)
    library = load(str(tmp_path / "s.toml"))
    model = library.steps["s"]
    assert (model.gpu_type, model.gpus_max, model.local_batch) == ("cpu", 2, (4, 16))
    for row in found.steps:
        assert float(step_s(model.parameters, 1, row.ranks, row.local_batch)) == pytest.approx(row.step_s, rel=0.5)
    assert "s.py --flag" in library.source
    content = tomllib.loads(text)
    assert content["conditions"]["torch"]
    assert content["conditions"]["local_batch_max_ends"] == "range"
    assert [row["workers"] for row in content["loader"]] == profiling.loaders()
    assert all(row["samples_per_s"] > 100 for row in content["loader"])
    assert {row["ranks"] for row in content["measured"]} == {1, 2}
    assert all(row["memory_bytes"] > 2**20 for row in content["measured"])
    assert not any("power_w" in row for row in content["measured"])  # no GPU, no figure
    assert content["exchange"][0]["bytes"] == [2**20]


# --- without processes


def test_memory_is_followed_as_a_line():
    assert largest_that_fits({8: 1_000, 16: 1_800}, 10_000) == 98
    assert largest_that_fits({8: 1_000, 16: 1_000}, 10_000) == 0
    assert largest_that_fits({8: 1_000, 16: 1_800}, 1_500) == 13


class FakeSteps:
    """A GPU of 10,000 bytes: 200, and 100 for each sample."""

    def __init__(self):
        self.seen = {}

    def step_s(self, local_batch, steps):
        memory_bytes = 200 + 100 * local_batch
        if memory_bytes > 10_000:
            return None
        self.seen[local_batch] = StepMeasures(memory_bytes=memory_bytes)
        return [0.1] * steps


@pytest.mark.parametrize(("first", "samples", "largest"), [(4, 1_000, 93), (4, 50, 50), (60, 1_000, 120), (4, 4, 4)])
def test_the_range_of_a_gpu_ends_where_its_memory_would(first, samples, largest):
    header = made_header(memory_bytes=10_000, local_batch=first, samples=samples)
    assert profiling._largest(FakeSteps(), header) == largest


def made_header(**changed):
    facts = {
        "device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "gpus": 8, "memory_bytes": 1, "cpus": 8, "threads": 1,
        "torch": "2", "python": "3", "samples": 100, "global_batch": 32, "local_batch": 4, "loader_workers": 0,
    }  # fmt: skip
    return Header(**(facts | changed))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("Tesla V100-SXM2-16GB", "V100"), ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA", "NVIDIA"),
    ],
)  # fmt: skip
def test_gpus_are_called_as_clusters_call_them(name, short):
    assert gpu_type(made_header(device_name=name)) == short


def rows(*figures):
    return [
        StepMedians(ranks=ranks, local_batch=batch, step_s=seconds, loader_wait_s=0.0, memory_bytes=1, power_w=None)
        for ranks, batch, seconds in figures
    ]


def test_exchange_is_what_a_step_takes_longer_than_alone():
    seen = observations(rows((1, 8, 0.1), (1, 16, 0.2), (2, 8, 0.15), (2, 12, 0.2), (2, 16, 0.19)))
    assert seen.sync_s.tolist() == pytest.approx([0, 0, 0.05, 0.05, 0.0])
    assert np.array_equal(seen.gpus, [1, 1, 2, 2, 2])


def test_a_range_beyond_the_dataset_is_refused():
    profiling._check_range(8, 96, 96)
    with pytest.raises(UserError, match=r"found up to 97, expected at most the 96 samples of the dataset: 8-96"):
        profiling._check_range(8, 97, 96)


def test_what_was_not_measured_is_not_in_the_file():
    """One rank, one batch, a GPU that says its power and then one that does not; words that TOML has to escape."""
    steps = rows((1, 8, 0.1))
    words = ("a b.py", '--name="\u00e9\x7f\n"')
    found = Profile(
        name="a b", header=made_header(), command=words, at=datetime(2026, 5, 4, tzinfo=UTC), took_s=1.0,
        steps=tuple(steps), batch_max_fits=False, supply={}, exchange=None, fitted=fit(observations(steps)),
    )  # fmt: skip
    content = tomllib.loads(as_toml(found))
    assert "power_w" not in content["measured"][0]
    assert not {"exchange", "loader"} & set(content)
    assert content["conditions"]["command"] == list(words)
    assert parse(as_toml(found), "x").steps["a b"].gpus_max == 1
    content = tomllib.loads(as_toml(replace(found, steps=(replace(steps[0], power_w=71.26),))))
    assert content["measured"][0]["power_w"] == 71.26
