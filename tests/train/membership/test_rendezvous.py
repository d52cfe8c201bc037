"""Groups that end at once, state that comes from who has it, and leaving when asked to by a signal."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import brim.train as bt
from brim.train.checkpoint.checkpointer import Checkpointer, StaleError
from brim.train.checkpoint.saving import Checkpoints
from brim.train.gradients.buckets import make_reducer
from brim.train.membership.abandoned_threads import LEFT_MAX
from brim.train.membership.process_group import BrokenGroupError
from brim.train.membership.rendezvous import NO_STATE, share_state
from brim.train.membership.static_group import static_group
from tests import forked
from tests.ports import free_port
from tests.train.gangs import on_ranks
from tests.train.models import Rows, loss_of

HOST = torch.device("cpu")


def wait_for(file):
    """Wait until another rank has made it."""
    while not file.exists():
        time.sleep(0.01)


def blocked(ranks, folder):
    """Rank 0 ends its group while everybody waits for a message that never comes."""
    group = static_group(HOST, 30)
    group.share([0])
    (folder / str(group.rank)).touch()
    for rank in range(ranks):
        wait_for(folder / str(rank))
    if group.rank == 0:
        threading.Timer(0.3, group.abort).start()
    began = time.monotonic()
    try:
        group.recv(torch.empty(4), (group.rank + 1) % ranks, 5).wait()
    except BrokenGroupError as error:
        group.close()
        return time.monotonic() - began, str(error)
    return None


def test_ending_a_group_wakes_who_waits_in_it_everywhere(tmp_path):
    for waited_s, detail in on_ranks(4, blocked, 4, tmp_path):
        assert waited_s < 20, "its time-out is 30 s"
        assert detail


def silent(folder):
    """Rank 1 never comes: the collective is bounded in time."""
    group = static_group(HOST, 2)
    if group.rank == 1:
        wait_for(folder / "given-up")
        return None
    began = time.monotonic()
    with pytest.raises(BrokenGroupError):
        group.share([0])
    (folder / "given-up").touch()
    return time.monotonic() - began


def test_a_collective_is_bounded_in_time(tmp_path):
    waited_s, _ = on_ranks(2, silent, tmp_path)
    assert 1 < waited_s < 20


PARTLY = """
import os, sys, time, threading
import torch
from brim.train.membership import abandoned_threads
from brim.train.membership.process_group import BrokenGroupError, ProcessGroup
from brim.train.membership.static_group import static_group
times, timeout_s = int(sys.argv[1]), float(sys.argv[2])
host = torch.device("cpu")
tensor = torch.zeros(64 << 20, dtype=torch.uint8)
while len(abandoned_threads.living()) < times:  # a message that stopped before it began leaves no thread behind
    group = static_group(host, timeout_s)
    group.share([0])
    if group.rank == 1:
        work = group.send(tensor, 0, 5)
        time.sleep(0.004)
        group.abort()  # its sockets end within the message, as they do when it is killed
        group.close()
        continue
    threading.Timer(0.3, group.abort).start()
    try:
        group.recv(tensor, 1, 5).wait()
    except BrokenGroupError:
        group.close()
        print(len(abandoned_threads.living()), "left behind", flush=True)
if times > 1 and group.rank == 0:
    ProcessGroup(0, 2, generation=99, device=host, timeout_s=timeout_s).close()
    print(len(abandoned_threads.living()) < times, flush=True)
os._exit(0) if group.rank else sys.exit(0)
"""


BOTH = """
import atexit, os
other = os.fork()
os.environ["RANK"] = "0" if other else "1"
if other:
    atexit.register(os.kill, other, 9)
"""


def environment():
    return {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def test_a_wait_for_a_message_that_stopped_within_is_given_up_and_left_behind():
    """Neither the wait nor the exit of an interpreter lasts as long as gloo's time-out."""
    variables = environment()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PARTLY, "1", "600"], env={**variables, "RANK": str(rank)},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        out, err = ranks[0].communicate(timeout=90)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 0, err
    assert out.splitlines()[-1] == "1 left behind"
    assert "left behind with 67 MB: it waits in gloo, and returns after 600 s at the latest (1 of" in err


@pytest.mark.long
def test_the_number_of_threads_left_behind_is_bounded(zygote):
    done = forked.run("-c", BOTH + PARTLY, LEFT_MAX, 25, zygote=zygote, env=environment(), timeout_s=90, check=True)
    assert done.stdout.splitlines()[-1] == "True"
    said = f"{LEFT_MAX} threads wait in gloo, the most that may: the next group is formed when one returns"
    assert said in done.stderr


class Holding:
    """State that says where it comes from."""

    def __init__(self, step, origin):
        self.step, self.origin = step, origin
        generator = torch.Generator().manual_seed(3)
        self.tensors = {
            "large": torch.randn(300, 400, generator=generator), "empty": torch.empty(0), "one": torch.tensor(7),
            "half": torch.randn(33, generator=generator).bfloat16(), "flags": torch.tensor([True, False]),
            "turned": torch.randn(20, 30, generator=generator).t(),
        }  # fmt: skip
        self.taken = self.closed = False

    def seen(self, closed):
        assert not closed

    def begin(self):
        self.step = 0

    def mark(self):
        return [self.step]

    def give(self):
        return self.tensors, {"step": self.step, "origin": self.origin}

    def take(self, tensors, tree):
        self.taken = True
        for name, tensor in self.tensors.items():
            assert torch.equal(tensors[name], tensor), name
            assert tensors[name].dtype == tensor.dtype
        self.step, self.origin = tree["step"], tree["origin"]


def shared(steps):
    group = static_group(HOST, 30)
    holding = Holding(steps[group.rank], group.rank)
    share_state(group, holding)
    group.share([0])
    group.close()
    return holding.step, holding.origin, holding.taken


@pytest.mark.parametrize(
    ("steps", "origins"),
    [
        ([7, NO_STATE, 7, NO_STATE], [0, 0, 2, 2]),  # newcomers, spread over those who hold the state
        ([6, 7, 6, NO_STATE], [1, 1, 1, 1]),  # one has committed the last step, the others had not
        ([NO_STATE, NO_STATE, NO_STATE, NO_STATE], [0, 0, 0, 0]),  # nobody has any
        ([7, 7, 7, 7], [0, 1, 2, 3]),
    ],
)
def test_the_state_comes_from_who_has_committed_the_most(steps, origins):
    found = on_ranks(4, shared, steps)
    assert [row[1] for row in found] == origins
    assert len({row[0] for row in found}) == 1
    assert [row[2] for row in found] == [origin != rank for rank, origin in enumerate(origins)]


class HoldingMuch(Holding):
    """Its numbers are larger than what the store of PyTorch takes at once."""

    def give(self):
        tensors, tree = super().give()
        return tensors, tree | {"losses": "x" * 9_000_000}

    def take(self, tensors, tree):
        super().take(tensors, tree)
        assert tree["losses"] == "x" * 9_000_000


def shared_much():
    group = static_group(HOST, 30)
    holding = HoldingMuch(7 if group.rank == 1 else NO_STATE, group.rank)
    share_state(group, holding)
    group.share([0])
    group.close()
    return holding.step, holding.origin


def test_numbers_of_any_size_are_shared():
    assert on_ranks(2, shared_much) == [(7, 1), (7, 1)]


SCRIPT = """
import os, signal, sys, time
import torch
torch.set_num_threads(1)
import brim.train as bt
from brim.errors import RefusedError
from tests.train.models import JOBS, Rows, loss_of
folder, stop_at = sys.argv[1], int(sys.argv[2])
run = bt.start(logical_workers=4, seed=5, checkpoint=folder)
model, optimizer, kind, max_norm = JOBS["conv"]()
run.prepare(model, optimizer)
loader = run.loader(Rows(kind), 16, workers=0)
for _ in run.epochs(3):
    for x, y in run.steps(loader):
        if run.steps_done == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        run.backward(loss_of(model(x), y))
        run.step()
print(run.digest(), run.steps_done)
"""


def lone(zygote, folder, stop_at):
    return forked.run("-c", SCRIPT, folder, stop_at, zygote=zygote)


def test_sigterm_finishes_the_step_saves_and_says_resume_me(tmp_path, zygote):
    undisturbed = lone(zygote, tmp_path / "a", -1)
    first = lone(zygote, tmp_path / "b", 6)
    assert (first.returncode, first.stdout) == (75, "")
    second = lone(zygote, tmp_path / "b", -1)
    assert (second.returncode, second.stdout) == (0, undisturbed.stdout), second.stderr
    assert undisturbed.stdout.split()[1] == "15"


def test_a_finished_job_is_saved_and_not_done_again(tmp_path, zygote):
    first = lone(zygote, tmp_path, -1)
    *earlier, saved = sorted(path.name for path in tmp_path.glob("save-*"))  # a slow machine saves in between, too
    assert saved.endswith("step-15")
    again = lone(zygote, tmp_path, -1)
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
    assert sorted(path.name for path in tmp_path.glob("save-*")) == [*earlier, saved]


def counts_epochs(folder, stop_at, by_hand):
    """How often the code at the end of an epoch runs in this start of the job, and the count that the job carries."""
    run = bt.start(logical_workers=4, seed=5, checkpoint=folder)
    model = nn.Linear(20, 5)
    carried = run.carry("ends", {"n": 0})
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows", 64), 16, workers=0)
    ends = 0
    try:
        for _ in range(1) if by_hand else run.epochs(1):
            for x, y in run.steps(loader):
                if run.steps_done == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                run.backward(loss_of(model(x), y))
                run.step()
            carried["n"] += 1
            ends += 1
        run.finish()
    except SystemExit as leaving:
        return leaving.code, ends, carried["n"]
    return 0, ends, Checkpointer(folder, token=99).restore().meta["tree"]


@pytest.mark.parametrize("by_hand", [False, True])
def test_what_runs_after_a_stop_in_the_last_step_is_saved(tmp_path, by_hand):
    assert on_ranks(1, counts_epochs, tmp_path, 3, by_hand) == [(75, 0, 0)]
    ((_, ends, tree),) = on_ranks(1, counts_epochs, tmp_path, -1, by_hand)
    assert ends == 1
    assert "[['n', 1]]" in str(tree)


def test_each_start_shuts_out_the_one_before(tmp_path, zygote):
    for stop_at, token in ((4, 1), (8, 2), (-1, 3)):
        lone(zygote, tmp_path, stop_at)
        (fence,) = tmp_path.glob("fence-*")
        assert int(fence.name.split("-")[1]) == token


def test_a_frozen_start_cannot_publish_over_the_next_one(tmp_path):
    state, settings = ({"x": torch.zeros(2)}, {}), {"exact": True, "torch": "1"}
    frozen, new = Checkpoints(tmp_path), Checkpoints(tmp_path)
    frozen.restore(settings)
    frozen.end(frozen.begin(1, state, settings, announced=False))
    tensors, _ = new.restore(settings)
    assert tensors["x"].tolist() == [0, 0]
    with pytest.raises(StaleError):
        frozen.begin(2, state, settings, announced=False).wait()
    assert new.end(new.begin(2, state, settings, announced=False)).endswith("step-2")


def test_what_makes_bits_differ_is_said_when_a_run_goes_on(tmp_path, capsys):
    state, settings = ({"x": torch.zeros(2)}, {}), {"exact": True, "torch": "1", "rules": {"global_batch": 8}}
    first = Checkpoints(tmp_path)
    first.restore(settings)
    first.end(first.begin(1, state, settings, announced=True))
    Checkpoints(tmp_path).restore(settings | {"rules": {"global_batch": 16}, "ranks": 4})
    assert capsys.readouterr().err == ""
    Checkpoints(tmp_path).restore(settings | {"torch": "2"})
    assert "the bits will not be those of an uninterrupted run" in (said := capsys.readouterr().err)
    assert "torch: '1' and '2'" in said


def test_only_stops_without_notice_count_against_the_interval(tmp_path):
    state = ({"x": torch.zeros(2)}, {})
    mtbf_s = []
    for announced in (True, False, True):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.restore({})
        mtbf_s.append(checkpoints._autosave.mtbf_s)
        checkpoints.end(checkpoints.begin(1, state, {}, announced=announced))
    assert mtbf_s[1] == pytest.approx(mtbf_s[0], rel=0.01)
    assert mtbf_s[2] == pytest.approx(mtbf_s[0] / 2, rel=0.01)


def signalled(folder):
    """Only rank 1 hears it; all leave after the same step."""
    run = bt.start(logical_workers=4, checkpoint=folder)
    model = nn.Linear(20, 5)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Rows("rows"), 16, workers=0)
    try:
        for _ in run.epochs(3):
            for x, y in run.steps(loader):
                if run.steps_done == 3 and run.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                run.backward(loss_of(model(x), y))
                run.step()
    except SystemExit as leaving:
        return leaving.code, run.steps_done, loader.step
    return None


def test_a_signal_that_one_rank_hears_stops_all_after_the_same_step(tmp_path):
    assert set(on_ranks(2, signalled, tmp_path)) == {(75, 4, 4)}
    assert list(tmp_path.glob("save-*-step-4"))


def ended_before_its_sum(folder):
    group = static_group(torch.device("cpu"), 20)
    vector = torch.ones(5)
    summed = make_reducer(group, exact=False).begin(vector)
    summed.wait()
    (folder / str(group.rank)).touch()
    wait_for(folder / str(1 - group.rank))  # the other's sum is there, too
    group.abort()
    late = make_reducer(group, exact=False).begin(vector)  # in a hook of autograd: nothing is raised here
    try:
        late.wait()
    except BrokenGroupError:
        return vector.tolist()
    return "not said"


def test_a_group_that_ends_in_backward_is_told_of_after_it(tmp_path):
    assert on_ranks(2, ended_before_its_sum, tmp_path) == [[2.0] * 5] * 2
