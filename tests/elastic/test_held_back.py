"""A rank with the state that is in no group for a while: the others train on, and it takes their state later.

Three ranks are left of four after a kill, two of them form a group, and the third waits for the rank that replaces the
killed one. What it comes back to may lie behind the end of an epoch, or of the job.
"""

import json

import pytest

from tests import forked
from tests.elastic.storm import Gang

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
import brim.train as bt

folder, case, ident = Path(sys.argv[1]), sys.argv[2], int(os.environ.get("BRIM_ID", 9))
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
run = bt.start(logical_workers=4, seed=1)
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(32, 4, generator=generator), torch.randn(32, 1, generator=generator)
loader = run.loader(torch.utils.data.TensorDataset(x, y), 16, workers=0)  # two steps per epoch
best = run.carry("best", {"loss": 9.0, "evaluations": 0})
ended, begun = [], []
if ident > 3:
    time.sleep(1.0)  # the others train on meanwhile

def evaluated():
    if ident == 3 and (case, run.steps_done) in (("evaluation at the end", 2), ("evaluation in a step", 3)):
        time.sleep(0.3)
        kill()
    total = sum(run.gather(1.0 * run.rank)) + run.world_size  # depends on who takes part
    with torch.no_grad():
        return float((model(x) - y).square().mean()) + 0.0 * total

def evaluate():
    best["loss"] = min(best["loss"], run.evaluate(evaluated))
    best["evaluations"] += 1

for epoch in run.epochs(8, steps=int(sys.argv[3])):
    begun.append(epoch)
    for a, b in run.steps(loader):
        if ident < 4 and run.steps_done >= 2 and case != "last":
            time.sleep(0.1)
            while run.steps_done >= 12 and run.world_size < 4 and not (folder / "comes").exists():
                time.sleep(0.02)
        if run.begins_step and case == "evaluation in a step":
            evaluate()
        if case == "last" and ident == 3 and run.steps_done == run_to - 1:
            time.sleep(0.3)
            kill()
        run.backward((model(a) - b).square().mean())
        run.step()
        if case == "end" and ident == 3 and run.steps_done == 2:
            time.sleep(0.3)  # the others have committed the step, too
            kill()
    ended.append(epoch)
    assert run.loss is not None  # also on a rank that joins here
    for group in optimizer.param_groups:
        group["lr"] /= 2 + epoch
    evaluate()
    if case == "last" and ident == 1 and run.steps_done == run_to:
        time.sleep(0.5)
        kill()
said = {"ended": ended, "begun": begun, "digest": run.digest(), "steps": run.steps_done, "best": best,
        "rate": optimizer.param_groups[0]["lr"], "epoch": run.epoch, "loss": run.loss}
(folder / f"{ident}.json").write_text(json.dumps(said))
""".replace("run_to", "int(sys.argv[3])")


def answers(folder):
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "steps", "left"),
    [
        ("end", 16, {0, 1, 2, 4}),
        ("evaluation at the end", 16, {0, 1, 2, 4}),
        ("evaluation in a step", 16, {0, 1, 2, 4}),
        ("last", 5, {0, 2}),
        ("last", 16, {0, 2}),
    ],
)
def test_a_rank_that_comes_back_runs_the_code_at_the_end_of_an_epoch_once(tmp_path, zygote, case, steps, left):
    script, alone = tmp_path / "script.py", tmp_path / "alone"
    script.write_text(SCRIPT)
    alone.mkdir()
    forked.run(script, alone, case, steps, zygote=zygote, check=True)
    gang = Gang(tmp_path, 4, tmp_path, case, steps, zygote=zygote, job=script, replace=1)
    try:
        if case != "last":
            gang.until(lambda status: 4 in status["members"])
            (tmp_path / "comes").touch()
        assert gang.process.wait(150) == 0, gang.stderr()
    finally:
        gang.close()
    (expected,), found = answers(alone).values(), answers(tmp_path)
    assert left <= set(found)
    for ident, answer in found.items():
        assert {name: answer[name] for name in ("digest", "steps", "best", "rate", "epoch", "loss")} == {
            name: expected[name] for name in ("digest", "steps", "best", "rate", "epoch", "loss")
        }, ident
        assert answer["begun"] == answer["ended"]
        assert len(set(answer["ended"])) == len(answer["ended"])
    assert found[0]["ended"] == expected["ended"]
