"""``python -m brim.train.check``: what resumes exactly, what does not and where, and what cannot be checked."""

import re

import pytest

from brim.train.check import Difference, RecordedRun, first_difference, main, read

SCRIPT = """
import os, random, sys
import torch
import brim.train as bt

{above}
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return torch.full((4,), i / 40), torch.tensor([i / 20 - 1])

run = bt.start(logical_workers={workers}, seed=1, checkpoint={checkpoint})
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(6, 1))
model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
loader = run.loader(Numbers(), global_batch=8, workers=0)
average = 0.0
for epoch in run.epochs({epochs}):
    for x, y in run.steps(loader):
        {inside}
        loss = torch.nn.functional.mse_loss(model(x), y)
        run.backward(loss)
        run.step()
"""


@pytest.fixture
def checked(zygote, tmp_path, capfd, monkeypatch):
    """Exit code, output and errors of a check of a script with these parts."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def check(*words, script=None, above="", inside="pass", workers=4, epochs=2, checkpoint=None, steps=6):
        path = tmp_path / "script.py"
        parts = {"above": above, "inside": inside, "workers": workers, "epochs": epochs, "checkpoint": checkpoint}
        path.write_text(script if script is not None else SCRIPT.format(**parts))
        code = main(["--zygote", zygote, "--timeout", "90", "--steps", str(steps), *words, str(path)])
        out, err = capfd.readouterr()
        return code, out, err

    return check


def test_a_script_that_resumes_exactly(checked, tmp_path):
    code, out, err = checked(checkpoint=repr(str(tmp_path / "mine")))
    assert (code, err) == (0, "")
    assert out.startswith("resume exact: yes (6 steps on 1 rank; stopped after 3, resumed on 2 ranks; step 5 undone")
    assert not (tmp_path / "mine").exists()  # checkpoints of the script are left alone


def test_numbers_that_nobody_seeds(checked):
    code, out, _ = checked(inside="x = x + random.SystemRandom().random()")
    assert code == 1
    assert "resume exact: no" in out
    assert re.search(r"first difference: .+ after step 1\b", out)  # steps of Adam may hide what went in
    assert "before the stop: two runs of the script are not equal" in out


def test_state_that_is_not_carried(checked):
    code, out, _ = checked(inside="average += float(y.sum()) + 1; x = x * average")
    assert code == 1
    assert "after the stop: state that run.prepare and run.carry were not given" in out
    assert "--sizes 1,1 tells" in out


def test_fast_mode_is_named(checked):
    code, out, _ = checked(workers=None)
    assert code == 1
    assert "fast mode: bits depend on the number of ranks" in out


def test_what_settings_leave_open_is_said_beside_a_yes(checked):
    code, out, _ = checked("--sizes", "1,1", workers=None)
    assert code == 0
    assert "not for sure: fast mode: bits depend on the number of ranks" in out


def test_one_logical_worker_resumes_on_one_rank_and_it_is_said(checked):
    code, out, _ = checked(workers=1, epochs=1, steps=20)
    assert code == 0
    assert "(5 steps on 1 rank; stopped after 2, resumed on 1 rank; step 4 undone and repeated;" in out
    assert "another one was not tried" in out


def bad(found, *words):
    """Exit code 2, nothing on standard output, one line that has all the words."""
    code, out, err = found
    assert (code, out) == (2, "")
    assert err.startswith("brim: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_a_script_that_crashes(checked):
    crash = "if run.steps_done == 2: raise ValueError('my mistake')"
    bad(checked(inside=crash), "failed on 1 rank after 2 steps: ValueError: my mistake (line 18)")


def test_a_script_that_python_cannot_read(checked, tmp_path):
    said = "after 0 steps: SyntaxError: '(' was never closed (script.py, line 2); --show"
    bad(checked(script="x = 1\ny = (\n"), said)
    (tmp_path / "helper.py").write_text("def f():\nreturn 1\n")
    said = "IndentationError: expected an indented block after function definition on line 1 (helper.py, line 2) "
    bad(checked(script="x = 1\n\nimport helper\n"), said + "(line 3)")


def test_a_script_that_ends_hard(checked):
    bad(checked(inside="if run.steps_done == 1: os._exit(7)"), "after 1 step: exit code 7")


def test_a_script_that_does_not_use_it(checked):
    bad(checked(script="x = 1\n"), "ended without a step of brim.train: expected a loop over run.steps(loader)")


def test_a_script_that_hangs(checked):
    hang = "import time; time.sleep(600)"
    bad(checked("--timeout", "6", inside=hang), "on 1 rank did not get to step 6 in 6 s")


def test_too_few_steps(checked):
    bad(checked(inside="run._position.last_step = 1"), "made 1 step: expected 2 at least")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sizes", "0,2"], "--sizes: found '0,2'"),
        (["--sizes", "1,2,4"], "--sizes: found '1,2,4'"),
        (["--steps", "1"], "--steps: found 1, expected at least 2"),
        (["--timeout", "0"], "--timeout: found 0"),
        ([], "nowhere.py: no such file"),
    ],
)
def test_command_lines_that_cannot_be_meant(words, said, capsys):
    bad((main([*words, "nowhere.py"]), *capsys.readouterr()), said)


def test_a_size_that_does_not_divide(checked):
    bad(checked("--sizes", "1,3"), "--sizes: found 3 with logical_workers=4, expected a divisor")


def test_where_the_first_difference_is():
    one = {0: {"a": "0", "b": "0"}, 1: {"a": "1", "b": "1"}, 2: {"a": "2", "b": "2"}}
    whole, half = RecordedRun(steps=one), RecordedRun(steps={0: one[0], 1: one[1]})
    assert first_difference(whole, half, RecordedRun(steps={1: one[1], 2: one[2]}), 1) is None
    cases = [
        (RecordedRun(steps={0: one[0], 1: {"a": "1", "b": "x"}}), one[1], one[2], Difference("before", 1, "b")),
        (half, {"a": "x", "b": "x"}, one[2], Difference("restored", 1, "a")),
        (half, one[1], {"a": "2"}, Difference("after", 2, "b")),
        (half, one[1], {**one[2], "c": "3"}, Difference("after", 2, "c")),
        (half, one[1], {}, Difference("after", 2, "a")),
    ]
    for before, at_stop, at_end, expected in cases:
        assert first_difference(whole, before, RecordedRun(steps={1: at_stop, 2: at_end}), 1) == expected


def test_half_a_line_is_no_step(tmp_path):
    path = tmp_path / "seen"
    path.write_text('{"settings": {"seed": 1}, "gpus": 0}\n{"step": 0, "sums": {"a": "1"}}\n{"step": 1, "su')
    assert read(path) == RecordedRun({"seed": 1}, 0, {0: {"a": "1"}})
    assert read(tmp_path / "none") == RecordedRun()


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ("if run.steps_done == 2: model[0].bias.requires_grad_(True)", "parameter '0.bias' was unfrozen"),
        ("optimizer.add_param_group({'params': [torch.nn.Parameter(torch.zeros(3))]})", "belongs to no model given to"),
        ("if run.rank == 0: model[3].bias.data.add_(1e-3)", "parameter '3.bias' is not equal on all ranks"),
    ],
)
def test_what_would_make_ranks_differ_is_named(checked, inside, words):
    script = SCRIPT.format(above="", inside=inside, workers=4, epochs=2, checkpoint=None)
    if "unfrozen" in words:
        script = script.replace("model, optimizer =", "model[0].bias.requires_grad_(False)\nmodel, optimizer =")
    code, out, err = checked(script=script)
    assert (code, out) == (2, "")
    assert words in err


RATE = "optimizer.param_groups[0]['lr'] = 0.01 * 0.8**run.steps_done"


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["1,2", "2,1"])
def test_a_rate_that_waits_for_the_answer_of_step_is_found(checked, sizes):
    """The step is undone, and its rate with it; the repeated attempt does not set it again."""
    script = SCRIPT.format(above="stepped = True", inside=f"if stepped: {RATE}", workers=4, epochs=2, checkpoint=None)
    code, out, err = checked("--sizes", sizes, script=script.replace("run.step()", "stepped = run.step()"))
    assert (code, err) == (1, "")
    assert "after step 5\n" in out
    assert "step 5 was undone once on purpose" in out
    assert "behind run.begins_step, not behind the value that run.step() returns" in out


@pytest.mark.slow
def test_a_rank_that_is_late_undoes_the_same_attempt_of_the_step(checked):
    """Rank 1 lets rank 0 run ahead: after step 4, and before it looks at the sums that backward began."""
    script = SCRIPT.format(above="import time\nstepped = True", inside=f"if stepped: {RATE}", workers=4, epochs=2,
                           checkpoint=None)  # fmt: skip
    late = "time.sleep(run.rank)\n        stepped = run.step()\n        time.sleep(run.rank * (run.steps_done == 4))"
    code, out, err = checked("--sizes", "1,2", script=script.replace("run.step()", late))
    assert (code, err) == (1, "")
    assert "step 5 was undone once on purpose" in out


def test_a_rate_behind_begins_step_and_a_carried_count_pass(checked):
    inside = f"""if run.begins_step: {RATE}
        count["batches"] += run.begins_step
        x = x * count["batches"]"""
    script = SCRIPT.format(above="", inside=inside, workers=4, epochs=2, checkpoint=None)
    carried = 'count = run.carry("count", {"batches": 0})\nmodel, optimizer ='
    code, out, err = checked(script=script.replace("model, optimizer =", carried))
    assert (code, err) == (0, ""), out
    assert "step 5 undone and repeated" in out


def test_a_stop_at_the_end_of_an_epoch_leaves_the_code_behind_it_to_the_next_start(checked):
    script = SCRIPT.format(above="", inside='x = x * (1 + ends["n"])', workers=4, epochs=2, checkpoint=None)
    carried = 'ends = run.carry("ends", {"n": 0})\nmodel, optimizer ='
    code, out, err = checked(script=script.replace("model, optimizer =", carried) + '    ends["n"] += 1\n', steps=10)
    assert (code, err) == (0, ""), out
    assert "(10 steps on 1 rank; stopped after 5, resumed on 2 ranks; step 8 undone" in out  # an epoch has 5 steps


def test_a_run_of_two_steps_is_checked_without_an_undone_step(checked):
    code, out, _ = checked(steps=2)
    assert code == 0
    assert "undone" not in out


def test_a_counter_of_forward_passes_is_found(checked):
    """A plain attribute: each rank counts its own micro-batches."""
    script = SCRIPT.format(above="", inside="model.calls = getattr(model, 'calls', 0) + 1", workers=4, epochs=2,
                           checkpoint=None)  # fmt: skip
    code, out, _ = checked(script=script.replace("model(x), y)", "model(x) / model.calls, y)"))
    assert code == 1
    assert "resume exact: no" in out
