"""The settings on which a run depends: what is refused, and what is said of those that differ."""

import contextlib
import io

import pytest
import torch
from torch import nn

import brim.train as bt
from brim.errors import BrimError, RefusedError, UserError
from tests.train.gangs import on_ranks
from tests.train.models import Rows, loss_of


def going_on(folder, changes):
    """What is said by each changed script that goes on from the checkpoint of one that was not."""
    said = []
    for change in ({}, *changes):
        how = {"workers": 4, "seed": 0, "width": 8, "kind": "SGD", "samples": 40, "batch": 16, "epochs": 2} | change
        run = bt.start(logical_workers=how["workers"], seed=how["seed"], checkpoint=folder)
        model = nn.Sequential(nn.Linear(20, how["width"]), nn.Linear(how["width"], 5))
        run.prepare(model, getattr(torch.optim, how["kind"])(model.parameters(), lr=0.1))
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            try:
                loader = run.loader(Rows("rows", how["samples"]), how["batch"], workers=0)
                for _ in run.epochs(how["epochs"] if change else 1):
                    for x, y in run.steps(loader):
                        run.backward(loss_of(model(x), y))
                        run.step()
            except BrimError as error:
                printed.write(f"{type(error).__name__}: {error}")
        run.close()
        said.append(printed.getvalue())
    return said[1:]


def test_a_checkpoint_of_another_script_is_refused_or_its_settings_are_said(tmp_path):
    changes = {
        "another model: 0.weight": {"width": 9}, "another optimizer: SGD, this script uses Adam": {"kind": "Adam"},
        "workers=4, this run 2": {"workers": 2}, "workers=4, this run None": {"workers": None},
        "seed=0, this run 1": {"seed": 1}, "length=40, this loader length=41": {"samples": 41},
        "using the global batch of the checkpoint, 16, not 32": {"batch": 32},
    }  # fmt: skip
    for expected, found in zip(changes, on_ranks(1, going_on, tmp_path, [*changes.values()])[0], strict=True):
        assert expected in found
        assert ("ConfigError" in found) == ("using" not in expected)


def test_a_folder_that_cannot_be_written_is_said_before_the_first_step(tmp_path):
    (tmp_path / "file").touch()
    (said,) = on_ranks(1, going_on, tmp_path / "file" / "folder", [{}])[0]
    assert "Not a directory" in said


def test_sharded_and_wrapped_models_are_refused():
    run = bt.start(logical_workers=2)
    wrapped = type("FSDPLinear", (type("FSDPModule", (), {}), nn.Linear), {})(2, 2)  # as fully_shard makes it
    for thing in (nn.Sequential(wrapped), type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})([torch.zeros(1)])):
        with pytest.raises(UserError, match="not supported"):
            run.prepare(thing)
    run.close()


def test_the_settings_of_a_run_say_what_was_fixed():
    from brim.train.reproducibility import caveats, differences, require_equal

    run = bt.start(logical_workers=4, seed=9)
    model = nn.Linear(2, 2)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = run.settings()
    run.close()
    assert (found["torch"], found["logical_workers"], found["seed"], found["dtypes"]) == (
        torch.__version__, 4, 9, ["float32"],
    )  # fmt: skip
    assert differences(found, found | {"ranks": 3}) == []
    assert differences(found, found | {"threads": 3}) == [f"threads: {found['threads']} and 3"]
    assert caveats(found) == []
    assert caveats(found | {"exact": False, "device": "cuda", "deterministic_algorithms": False})
    with pytest.raises(RefusedError, match="threads"):
        require_equal(found, found | {"threads": 3})


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older PyTorch")
def test_a_precision_set_by_its_new_name_is_among_the_settings():
    from brim.train.reproducibility import differences

    run = bt.start(seed=9)
    before = run.settings()
    matmul = torch.backends.cuda.matmul
    was, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        assert "fp32_precision" in str(differences(before, run.settings()))
    finally:
        matmul.fp32_precision = was
    run.close()
