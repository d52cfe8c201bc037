"""Trainers of others, in real processes: ended in the middle, resumed, and the bits of one that was never stopped."""

import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests import forked, zygotes

pytestmark = pytest.mark.slow  # every kind of trainer with every way of ending it
JOBS = Path(__file__).parent / "jobs"
DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to-train-elastically.md"
KINDS = {"hugging_face": "transformers", "accelerate": "accelerate", "lightning": "lightning"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
FRESH = "accelerate"
"""Without a launcher it runs in an interpreter of its own, not forked from the zygote."""
STEPS = {"hugging_face": 6, "accelerate": 9, "lightning": 9}
"""Of the whole job on two ranks: three in an epoch."""


def has(kind):
    missing = importlib.util.find_spec(KINDS[kind]) is None
    return pytest.param(kind, marks=pytest.mark.skipif(missing, reason=f"{KINDS[kind]} is not installed"))


every_kind = pytest.mark.parametrize("kind", [has(kind) for kind in KINDS])


def only(kind):
    return pytest.mark.parametrize("kind", [has(kind)])


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    """One zygote for all gangs here: these libraries take seconds to import. It goes on without those not installed."""
    modules = ["accelerate", "transformers.trainer", "transformers.models.bert", "lightning.pytorch"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in OFFLINE.items():
            patch.setenv(name, value)
        with zygotes.shared(tmp_path_factory.mktemp("zygote"), *modules) as path:
            yield path


@pytest.fixture(scope="module")
def run(zygote, tmp_path_factory):
    """Run a job to its end: exit code, what it said on stderr, what rank 0 came to."""
    sockets = tmp_path_factory.mktemp("sockets")

    def run(kind, folder, *options, ranks=2, events="", launched=True, script=None):
        launch = ["-m", "brim.train.launch", "--nproc", ranks, "--zygote", zygote, "--control", sockets / "s"]
        words = [*(launch if launched else []), script or JOBS / f"{kind}_job.py", folder, *options]
        env = {**os.environ, **OFFLINE, "EVENTS": events}
        if kind == FRESH and not launched:
            done = subprocess.run(
                [sys.executable, *map(str, words)], env=env, cwd=sockets, capture_output=True, text=True, timeout=120,
                check=False,
            )  # fmt: skip
        else:
            done = forked.run(*words, zygote=zygote, env=env, cwd=sockets, timeout_s=120)
        path = folder / "said-0.json"
        said = json.loads(path.read_text()) if path.exists() else None
        return done.returncode, done.stderr, said

    return run


@pytest.fixture(scope="module")
def undisturbed(run, tmp_path_factory):
    """What a job comes to that is never stopped; it is asked for what cannot be done."""
    found = {}

    def undisturbed(kind, ranks):
        if (kind, ranks) not in found:
            folder = tmp_path_factory.mktemp(kind)
            code, err, said = run(kind, folder, ranks=ranks, events="2=resize,4=tune")
            assert code == 0, err
            answer = (folder / "answer-resize").read_text()
            assert f"found size 4, expected one of [{ranks}]" in answer
            assert "loop cannot be changed while it runs" in err
            found[kind, ranks] = said
        return found[kind, ranks]

    return undisturbed


@every_kind
def test_stopped_and_preempted_over_the_socket_two_ranks_resume_exactly(kind, run, undisturbed, tmp_path):
    wanted = undisturbed(kind, 2)
    assert (wanted["steps"], wanted["first"]) == (STEPS[kind], 1)
    code, err, said = run(kind, tmp_path, events="3=stop")  # at the end of an epoch
    assert (code, said) == (0, None), err
    code, err, said = run(kind, tmp_path, events="5=preempt")
    assert (code, said) == (75, None), err
    code, err, said = run(kind, tmp_path)
    assert code == 0, err
    assert said == {**wanted, "first": 6}


@every_kind
def test_sigterm_under_plain_python_and_the_newest_checkpoint_damaged(kind, run, undisturbed, tmp_path):
    wanted = undisturbed(kind, 1)
    code, err, said = run(kind, tmp_path, launched=False, events="7=term")
    assert (code, said) == (75, None), err
    newest = next(path for path in tmp_path.iterdir() if path.name.endswith("-7"))
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    raw = bytearray(largest.read_bytes())
    raw[len(raw) // 2] ^= 1
    largest.write_bytes(raw)
    code, err, said = run(kind, tmp_path, ranks=1)
    assert code == 0, err
    assert err.count("cannot be used") == 1
    assert f"{largest.name} does not have the SHA-256 of the manifest" in err
    assert said == {**wanted, "first": 7}  # from the end of the second epoch


@only("lightning")
def test_sigterm_before_the_first_step_is_no_success(kind, run, tmp_path):
    code, err, said = run(kind, tmp_path, launched=False, events="0=term")
    assert (code, said) == (75, None), err


@only("hugging_face")
def test_a_killed_rank_fails_the_gang_which_starts_again_from_the_checkpoint(kind, run, undisturbed, tmp_path):
    code, err, said = run(kind, tmp_path, events="5=kill")
    assert (code, said) == (128 + signal.SIGKILL, None), err
    assert "lost another rank at step 5; start the job again to resume" in err
    assert err.splitlines()[-1] == "brim: rank 0 failed first: ended by SIGKILL"
    code, err, said = run(kind, tmp_path)
    assert (code, said) == (0, {**undisturbed(kind, 2), "first": 4}), err


@only("lightning")
@pytest.mark.parametrize("option", ["max_steps", "worker"])
def test_a_checkpoint_due_at_the_end_of_an_epoch_resumes_exactly(kind, option, run, tmp_path):
    """With a limit on steps it comes a step later; a loader process draws noise of its own."""
    code, err, wanted = run(kind, tmp_path / "still", option)
    assert code == 0, err
    code, err, said = run(kind, tmp_path / "ended", option, events="3=preempt")
    assert (code, said) == (75, None), err
    code, err, said = run(kind, tmp_path / "ended", option)
    assert (code, said) == (0, {**wanted, "first": {"max_steps": 5, "worker": 4}[option]}), err


@only("lightning")
def test_what_cannot_be_exact_is_said_in_a_line(kind, run, tmp_path):
    assert run(kind, tmp_path, "plain", events="2=preempt")[0] == 75
    code, err, _ = run(kind, tmp_path, "plain", ranks=1)
    assert code == 0, err
    lines = [line for line in err.splitlines() if line.startswith("brim: ") and "control" not in line]
    assert len(lines) == 2, err
    assert "step-2 was written by 2 ranks, this job has 1: batches and bits will differ" in lines[0]
    assert "a plain DataLoader cannot resume within an epoch" in lines[1]


@only("lightning")
def test_what_lightning_does_not_repeat_is_said_in_a_line(kind, run, tmp_path):
    assert run(kind, tmp_path, "begins", ranks=1, events="2=preempt")[0] == 75
    code, err, _ = run(kind, tmp_path, "begins", ranks=1)
    assert code == 0, err
    assert err.count("does not call on_train_epoch_start of Begins where a job resumes within an epoch") == 1
    assert err.count("on_train_epoch_start") == 1


AROUND = {
    "hugging_face": """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
model = BertForSequenceClassification(config)
dataset = [{"input_ids": torch.arange(4), "labels": torch.tensor(0)}] * 16
args = TrainingArguments("out/job", use_cpu=True, max_steps=4, save_steps=2, report_to=[])
""",
    "lightning": """
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
model, dataset = BoringModel(), torch.randn(128, 32)
""",
    "accelerate": """
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.nn.functional import cross_entropy
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.zeros(16, dtype=torch.int64))
loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True)
""",
}


@every_kind
def test_the_examples_of_the_document_run(kind, run, tmp_path):
    found = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    example = next(block for block in found if f"callbacks.{kind} import" in block)
    script = tmp_path / "example.py"
    script.write_text((AROUND[kind] + example).replace("out/job", str(tmp_path / "job")))
    code, err, _ = run(kind, tmp_path, ranks=1, script=script)
    assert code == 0, err
    from brim.train.integrations import manifests

    assert manifests.newest_checkpoint(tmp_path / "job")


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_that_is_absent_is_named_in_a_line(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, KINDS[kind], None)
    monkeypatch.setitem(sys.modules, f"{KINDS[kind]}.pytorch", None)
    monkeypatch.setitem(sys.modules, f"{KINDS[kind]}.pytorch.callbacks", None)
    for package in ("callbacks", "integrations"):
        monkeypatch.delitem(sys.modules, f"brim.train.{package}.{kind}", raising=False)
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(f"brim.train.callbacks.{kind}")
    wanted = f"brim.train.callbacks.{kind} needs {KINDS[kind]}: pip install 'brim[integrations]'"
    assert str(caught.value) == wanted


def test_an_end_asked_for_before_training_needs_no_checkpoint():
    from brim.train.integrations.handshake import Handshake

    handshake = Handshake()
    assert handshake.agree(0) is None
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        handshake.begin(0)
    assert caught.value.code == 75


@only("hugging_face")
def test_arguments_that_cannot_be_resumed_with_are_refused(kind):
    from brim.errors import ConfigError
    from brim.train.callbacks.hugging_face import BrimCallback

    with pytest.raises(ConfigError, match="save_only_model must be False: a checkpoint without the optimizer"):
        BrimCallback().on_train_begin(types.SimpleNamespace(save_only_model=True), None, None)


@only("accelerate")
def test_names_of_checkpoints_that_accelerate_would_choose_are_refused(kind, tmp_path):
    from brim.errors import ConfigError
    from brim.train.callbacks.accelerate import BrimLoop

    naming = types.SimpleNamespace(automatic_checkpoint_naming=True)
    with pytest.raises(ConfigError, match="automatic_checkpoint_naming must be False"):
        BrimLoop(types.SimpleNamespace(project_configuration=naming), tmp_path)
