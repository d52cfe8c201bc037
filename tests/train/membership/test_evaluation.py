"""What ranks tell each other in an evaluation, also when one of them dies in it."""

import json
import os
import random
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import brim.train as bt
from brim.errors import UserError
from brim.gang.messages import ResizeRequest
from brim.train.job_state import JobState
from brim.train.membership import evaluation
from brim.train.membership.commands import Commands
from brim.train.membership.evaluation import random_numbers_kept
from brim.train.position import Position
from brim.train.run import EVALUATION_ATTEMPTS
from tests import forked
from tests.elastic.storm import Event, Gang, living, storm
from tests.train.gangs import on_ranks
from tests.train.models import Rows, loss_of


def exchanged():
    run = bt.start()
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows"), 16, workers=0)
    found = []
    for _ in run.epochs(1, steps=5):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            run.step()
        for turn in range(4):
            rank = run.rank
            gathered = run.gather({"rank": rank, "rows": torch.full((2,), rank + turn)})
            greatest = run.reduce(torch.tensor([float(rank), -rank]), "max").tolist()
            word = run.broadcast(f"from {rank}", source=run.world_size - 1)
            gathered = [(row["rank"], row["rows"].tolist()) for row in gathered]
            found.append((gathered, word, run.reduce(rank + 1), greatest, run.reduce(rank, "min")))
    run.close()
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_gets_the_values_of_all_in_the_order_of_the_ranks(ranks):
    for found in on_ranks(ranks, exchanged):
        assert len(found) == 4
        for turn, (gathered, word, total, greatest, least) in enumerate(found):
            assert gathered == [(rank, [rank + turn] * 2) for rank in range(ranks)]
            assert word == f"from {ranks - 1}"
            assert (total, least) == (ranks * (ranks + 1) // 2, 0)
            assert greatest == [ranks - 1, 0]


def exchange_of_large_values():
    run = bt.start()
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows"), 16, workers=0)
    for _ in run.epochs(1, steps=1):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            run.step()
        sums = []
        for turn in range(4):  # the third exchange and the fourth delete the values of the first and the second
            everybody = run.gather(torch.full((2_500_000,), float(run.rank + turn)))
            sums.append([float(values.double().sum()) for values in everybody])
    run.close()
    return sums


@pytest.mark.slow
def test_values_may_be_larger_than_what_the_store_of_pytorch_takes_at_once():
    for sums in on_ranks(2, exchange_of_large_values):
        assert sums == [[2_500_000.0 * (rank + turn) for rank in range(2)] for turn in range(4)]


def ends_with_an_exchange():
    """Rank 0, which holds the store, ends at once; the other is slow in deleting what all have read."""
    run = bt.start()
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows"), 16, workers=0)
    for _ in run.epochs(1, steps=1):
        for x, y in run.steps(loader):
            run.backward(loss_of(model(x), y))
            run.step()
    delete = evaluation.delete_value

    def slowly(store, key):
        until_s = time.monotonic() + 1
        while time.monotonic() < until_s:
            store.check([key])  # fails once rank 0 has ended
        delete(store, key)

    if run.rank:
        evaluation.delete_value = slowly
    return [run.broadcast(f"turn {turn}") for turn in range(3)]


@pytest.mark.slow
def test_the_rank_with_the_store_may_end_after_the_last_exchange():
    """What the others have still to do does not need it: BrokenGroupError would cost another attempt."""
    assert on_ranks(2, ends_with_an_exchange) == [["turn 0", "turn 1", "turn 2"]] * 2


def with_evaluations(evaluates):
    """Dropout draws random numbers in training; the evaluation draws some, too."""
    run = bt.start(logical_workers=4, seed=5)
    model = nn.Sequential(nn.Linear(20, 8), nn.Dropout(0.3), nn.Linear(8, 5))
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", 80), 16, workers=0)
    times = 0
    for _ in run.epochs(1):
        for x, y in run.steps(loader):
            if evaluates and run.begins_step:
                times += run.evaluate(lambda: run.reduce(int(torch.rand(3).sum() < 4)))
            run.backward(loss_of(model(x), y))
            run.step()
    run.close()
    return run.digest(), times


def test_an_evaluation_leaves_the_random_numbers_of_training_alone():
    expected, _ = on_ranks(1, with_evaluations, False)[0]
    for ranks in (1, 2, 4):
        assert set(on_ranks(ranks, with_evaluations, True)) == {(expected, 5 * ranks)}


def test_an_evaluation_that_raises_leaves_the_random_numbers_of_training_alone():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    @random_numbers_kept(torch.device("cpu"))
    def evaluation():
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        raise UserError("no such file")

    before = states()
    with pytest.raises(UserError):
        evaluation()
    assert states() == before


def drawn():
    """What evaluations draw: in the middle of an epoch, at its end, and after the last step."""
    run = bt.start(logical_workers=4, seed=5)
    model = nn.Sequential(nn.Linear(20, 8), nn.Dropout(0.3), nn.Linear(8, 5))
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", 80), 16, workers=0)
    found = []
    for _ in run.epochs(2):
        for x, y in run.steps(loader):
            if run.begins_step:
                found.append(run.evaluate(lambda: torch.rand(1).item()))
            run.backward(loss_of(model(x), y))
            run.step()
        found.append(run.evaluate(lambda: torch.rand(1).item()))
    run.close()
    return tuple(found)


def test_an_evaluation_draws_the_same_on_every_rank_and_number_of_ranks():
    found = {row for ranks in (1, 2, 4) for row in on_ranks(ranks, drawn)}
    assert len(found) == 1
    assert len(set(found.pop())) == 11  # the end of the first epoch is the beginning of a step


def test_an_evaluation_is_numbered_within_its_step_or_the_end_of_its_epoch():
    run = bt.start()
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", 32), 16, workers=0)
    places = []

    def evaluate():
        places.append(run.evaluate(run._job.evaluation_place))

    evaluate()
    for _ in run.epochs(2):
        for x, y in run.steps(loader):
            evaluate()
            evaluate()
            run.backward(loss_of(model(x), y))
            run.step()
        evaluate()
        evaluate()
    run.close()
    epoch = [*["in a step 1", "in a step 2"] * 2, "at the end 1", "at the end 2"]
    assert places == ["before the steps 1", *epoch * 2]


@pytest.mark.parametrize("then", ["close_epoch", "leave_epoch", "take"])
def test_the_state_of_the_end_of_the_steps_is_given_until_the_code_behind_them_has_run(then):
    ranks = SimpleNamespace(rendezvous=object(), size=2, rank=0)
    job = JobState(Position(), ranks, Commands(), None, logical_workers=4, seed=0, settings=dict)
    model = nn.BatchNorm1d(1)
    job.parts.models.append(model)
    job.position.step, job.position.script_epoch = 3, 0

    def mean_given():
        (mean,) = (value for name, value in job.to_save()[0].items() if name.endswith("running_mean"))
        return mean.item()

    received = job.give()
    received = {name: value.clone() + 7 for name, value in received[0].items()}, received[1]
    job.end_steps()
    model.running_mean += 1
    assert mean_given() == 0
    if then == "take":
        job.position.script_epoch = None
        job.take(*received)
    else:
        getattr(job, then)()
    assert mean_given() == (7 if then == "take" else 1)


def one_is_missing():
    run = bt.start(timeout_s=1.5)
    run.prepare(nn.Linear(2, 2))
    run.loader(Rows("rows"), 16, workers=0)
    for _ in run.epochs(1):
        if run.rank == 0:
            with pytest.raises(UserError, match=r"rank 0 waited 1\.5 s for rank 1; every rank must make the same"):
                run.gather(0)
        break
    run.close()


def test_a_rank_that_does_not_take_part_is_named():
    on_ranks(2, one_is_missing)


def a_rank_without_samples():
    run = bt.start(logical_workers=4)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", samples=18), 16, workers=0)
    began, said = [], []
    for _ in run.epochs(1):
        for x, y in run.steps(loader):
            if run.begins_step:
                began.append(run.steps_done)
                try:
                    run.gather(0)
                except UserError as error:
                    said.append(str(error))
            run.backward(loss_of(model(x), y))
            run.step()
    run.close()
    return began, said


def test_a_rank_that_cannot_come_to_it_is_named_by_the_others():
    found = on_ranks(4, a_rank_without_samples)
    steps = [began for began, _ in found]
    assert sorted(steps) == [[0], [0], [0, 1], [0, 1]]
    for began, said in found:
        assert len(said) == len(began) - 1
        assert all(f"rank {steps.index([0])} has no sample in this step" in each for each in said)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: run.reduce(1, "average"), "operation='average'.*expected 'sum', 'min' or 'max'"),
        (lambda run: run.broadcast(1, source=3), r"source=3.*expected a rank from 0 to 0"),
    ],
)
def test_what_cannot_be_exchanged_is_said(call, words):
    run = bt.start()
    with pytest.raises(UserError, match=r"before run\.prepare"):
        call(run)
    run.prepare(nn.Linear(2, 2))
    with pytest.raises(UserError, match=words):
        call(run)
    run.close()


def test_torchs_own_collectives_are_answered_with_those_of_the_run(zygote):
    script = "import torch.distributed as dist, brim.train as bt; run = bt.start(); dist.barrier()"
    done = forked.run("-c", script, zygote=zygote)
    assert done.returncode == 1
    assert "use run.gather, run.broadcast and run.reduce in place of torch.distributed" in done.stderr


JOB = '''
import json, os, signal, sys, time
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
import brim.train as bt
from pathlib import Path
from torch import nn
from tests.elastic.pace import wait_until_allowed
from tests.train.models import Rows, loss_of
out, where = Path(sys.argv[1]), sys.argv[2]
steps = os.open(out / "step", os.O_CREAT | os.O_WRONLY)
run = bt.start(logical_workers=4, seed=5)
model = nn.Sequential(nn.Linear(20, 8), nn.Dropout(0.3), nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.prepare(model, optimizer)
rows = Rows("rows", 80)
loader = run.loader(rows, 16, workers=0)
found = {{}}

def evaluate():
    mine = [run.rank, run.world_size]
    if os.environ["BRIM_ID"] == "1" and run.steps_done == 5:  # in the middle of it
        os.kill(os.getpid(), signal.SIGKILL)
    chosen = range(run.rank, len(rows), run.world_size)
    with torch.no_grad():
        right = sum(int(model(rows[n][0]).argmax() == rows[n][1]) for n in chosen)
    return run.reduce(right), run.reduce(len(chosen)), run.gather(mine)

model.eval()
for epoch in run.epochs(4):
    for x, y in run.steps(loader):
        wait_until_allowed(out, run.steps_done)
        if where == "step" and run.begins_step and run.steps_done % 5 == 0:
            found[run.steps_done] = run.evaluate(evaluate)
        model.train()
        run.backward(loss_of(model(x), y))
        model.eval()
        if run.step():
            os.pwrite(steps, b"%8d" % run.steps_done, 0)
    if where == "epoch":
        found[run.steps_done] = run.evaluate(evaluate)
name = os.environ.get("BRIM_ID", "alone")
(out / f"{{name}}.json").write_text(json.dumps({{"digest": run.digest(), "found": found, "rank": run.rank}}))
'''


BREAKS = '''
import brim.train as bt
import torch
from brim.train.membership.process_group import BrokenGroupError
from tests.train.models import Rows, loss_of

run = bt.start()
model = torch.nn.Linear(20, 5)
run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = run.loader(Rows("rows"), 16, workers=0)
calls = 0

def evaluation():
    global calls
    calls += 1
    raise BrokenGroupError("the store is gone")

for _ in run.epochs(1, steps=1):
    for x, y in run.steps(loader):
        run.backward(loss_of(model(x), y))
        run.step()
    try:
        run.evaluate(evaluation)
    except BrokenGroupError as error:
        print(calls, error)
        raise
'''


def test_an_evaluation_that_breaks_its_group_every_time_is_given_up(tmp_path, zygote):
    job = tmp_path / "job.py"
    job.write_text(f"import sys\nsys.path.insert(0, {os.getcwd()!r})\n{BREAKS}")
    done = forked.run("-m", "brim.train.launch", "--zygote", zygote, "--nproc", 2, job, zygote=zygote, timeout_s=120)
    found = re.search(rf"^(\d+) an evaluation broke its group {EVALUATION_ATTEMPTS} times: ", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    assert 1 <= int(found[1]) <= EVALUATION_ATTEMPTS  # a group that the other rank broke counts without a call
    assert done.returncode == 1


@pytest.mark.cases(1)
@pytest.mark.parametrize("replace", [0, 1])
@pytest.mark.parametrize("where", ["step", "epoch"])
def test_an_evaluation_in_which_a_rank_dies_is_done_again(tmp_path, zygote, where, replace):
    job = tmp_path / "job.py"
    job.write_text(JOB.format(root=os.getcwd()))
    alone = tmp_path / "alone"
    alone.mkdir()
    forked.run(job, alone, where, zygote=zygote, env={**os.environ, "BRIM_ID": "alone"}, check=True)
    expected = json.loads((alone / "alone.json").read_text())
    events = [Event(8, "await")] * replace
    weather = storm(tmp_path, events, where, ranks=2, zygote=zygote, replace=replace, job=job)
    assert weather.code == 0, weather.stderr
    assert weather.digests == {expected["digest"]}
    (survivor,) = [answer for answer in weather.answers if len(answer["found"]) == len(expected["found"])][:1]
    for steps, (right, all_of_them, _) in expected["found"].items():
        assert survivor["found"][steps][:2] == [right, all_of_them] == [right, 80]
    if where == "epoch":  # a newcomer that is there in time runs the code at the end of the epoch, too
        assert survivor["found"]["5"][2] in [[[0, 1]], *[[[0, 2], [1, 2]]] * replace]
    if replace:
        assert survivor["found"]["15"][2] == [[0, 2], [1, 2]]
        assert len(weather.answers) == 2


JOINED = '''
import json, os, signal, sys, time
import torch
torch.set_num_threads(1)
import brim.train as bt
from pathlib import Path
out, case, me = Path(sys.argv[1]), sys.argv[2], os.environ.get("BRIM_ID", "alone")
run = bt.start(logical_workers=4, seed=0)
model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.BatchNorm1d(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counts = run.carry("counts", {"ends": 0, "evaluations": 0})
average = run.carry("average", torch.nn.Linear(1, 1, bias=False))
model, optimizer = run.prepare(model, optimizer)
loader = run.loader([torch.arange(4.0) * n for n in range(16)], 8, workers=0)
found = {}

def dies():
    if me == "1" and run.epoch == 0:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    while me == "0" and run.epoch == 0 and not (out / "go").exists():
        time.sleep(0.02)  # the new rank is there when the group breaks

def first():
    if case == "first":
        dies()
    return run.gather("first " + me)

def second():
    if case == "second":
        dies()
    return run.gather("second " + me)

if case in ("before", "held"):
    found["before"] = run.evaluate(lambda: run.gather("before " + me))
for epoch in run.epochs(60 if case == "before" else 3):
    for x in run.steps(loader):
        if case == "before" and run.world_size == 1 and me != "alone":
            time.sleep(0.15)  # until the new rank is there
        while case == "held" and me == "0" and run.steps_done == 1 and not (out / "go").exists():
            time.sleep(0.2)  # in the last step of the first epoch
        run.backward(model(x).square().mean())
        if run.step() and case == "after step":
            run.evaluate(first)
    counts["ends"] += 1
    for group in optimizer.param_groups:
        group["lr"] /= 2
    with torch.no_grad():
        average.weight.mul_(0.5)
        model[1].running_mean.add_(1.0)
    found[epoch] = [run.evaluate(first), run.evaluate(second)]
    counts["evaluations"] += 1
rate, weight = optimizer.param_groups[0]["lr"], average.weight.item()
said = {"digest": run.digest(), "found": found, "state": [counts, rate, weight]}
(out / f"{me}.json").write_text(json.dumps(said))
'''


def joined(zygote, folder, case):
    """What one process says that trains alone, and the folder and the script of a gang."""
    job, alone = folder / "job.py", folder / "alone"
    job.write_text(JOINED)
    alone.mkdir()
    forked.run(job, alone, case, zygote=zygote, check=True)
    return json.loads((alone / "alone.json").read_text()), job


@pytest.mark.slow
@pytest.mark.parametrize("case", ["first", "second"])
def test_a_rank_that_joins_in_an_evaluation_runs_the_code_at_the_end_of_the_epoch_from_the_same_state(
    tmp_path, zygote, case
):
    expected, job = joined(zygote, tmp_path, case)
    gang = Gang(tmp_path, 2, tmp_path, case, zygote=zygote, job=job, replace=1)
    try:
        gang.until(lambda status: any(rank["id"] == 2 and rank["state"] == "ready" for rank in status["ranks"]))
        (tmp_path / "go").touch()
        assert gang.process.wait(60) == 0, gang.stderr()
    finally:
        gang.close()
    answers = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(answers) == 2
    for answer in answers:
        assert answer["digest"] == expected["digest"]
        assert answer["state"] == expected["state"]
        for values in answer["found"].values():
            for name, of_ranks in zip(("first", "second"), values, strict=True):
                assert {value.split()[0] for value in of_ranks} == {name}
        assert [len(value) for value in answer["found"]["2"]] == [2, 2]


@pytest.mark.slow
def test_a_rank_that_joins_by_a_resize_evaluates_alone_before_the_epochs(tmp_path, zygote):
    expected, job = joined(zygote, tmp_path, "before")
    gang = Gang(tmp_path, 1, tmp_path, "before", zygote=zygote, job=job)
    try:
        gang.until(lambda status: len(living(status)) == 1)
        gang.ask(ResizeRequest(2))
        assert gang.process.wait(60) == 0, gang.stderr()
    finally:
        gang.close()
    answers = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [answer["found"]["before"] for answer in answers] == [["before 0"], ["before 1"]]
    for answer in answers:
        assert (answer["digest"], answer["state"]) == (expected["digest"], expected["state"])
        assert answer["found"]["59"] == [["first 0", "first 1"], ["second 0", "second 1"]]


def test_a_rank_that_joins_behind_the_last_step_of_an_epoch_evaluates_with_all_at_its_end(tmp_path, zygote):
    """When the group is formed, the new rank is in an evaluation of its own, and the others at the end of the steps."""
    expected, job = joined(zygote, tmp_path, "held")
    gang = Gang(tmp_path, 1, tmp_path, "held", zygote=zygote, job=job)
    try:
        formed = gang.until(lambda status: len(living(status)) == 1)["generation"]
        gang.ask(ResizeRequest(2))
        gang.until(lambda status: status["generation"] > formed)
        (tmp_path / "go").touch()
        assert gang.process.wait(60) == 0, gang.stderr()
    finally:
        gang.close()
    answers = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [answer["found"]["before"] for answer in answers] == [["before 0"], ["before 1"]]
    for answer in answers:
        assert (answer["digest"], answer["state"]) == (expected["digest"], expected["state"])
        assert answer["found"]["0"] == [["first 0", "first 1"], ["second 0", "second 1"]]


def test_an_evaluation_after_a_committed_step_is_refused_in_a_gang(tmp_path, zygote):
    _, job = joined(zygote, tmp_path, "after step")
    weather = storm(tmp_path, [], "after step", ranks=2, zygote=zygote, job=job)
    assert weather.code == 1
    assert "call it behind `if run.begins_step:`, before run.backward, or after the loop" in weather.stderr
