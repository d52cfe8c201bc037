"""Gangs of real processes: they form, change, break, stop and end as ordered."""

import os
import re
import signal
import time

import pytest

from brim.gang.codec import encode
from brim.gang.messages import (
    FormGroup,
    GroupFormed,
    Hello,
    KillRequest,
    PreemptRequest,
    Ready,
    ResizeRequest,
    StatusRequest,
    StopRequest,
    TrainingProgress,
    Waiting,
)
from brim.gang.rank_process import RankProcess
from tests.gang.conftest import PATIENCE_S, RANK


def training(size):
    """The status says that so many ranks are in the newest generation."""

    def holds(status):
        inside = [rank["id"] for rank in status["ranks"] if rank["state"] == "joined" and rank["alive"]]
        return len(inside) == size and sorted(inside) == sorted(status["members"])

    return holds


def pids(status):
    return {rank["id"]: rank["pid"] for rank in status["ranks"] if rank["alive"]}


def stepping(gang):
    """Wait until steps are made after now."""
    steps = lambda status: max(rank.get("step", 0) for rank in status["ranks"] if rank["alive"])  # noqa: E731
    before = steps(gang.status())
    gang.until(lambda status: steps(status) > before + 2)


def test_a_gang_forms_trains_and_finishes(launch):
    gang = launch("--nproc", 3, RANK, "steps=20")
    assert gang.wait() == 0
    assert sorted(gang.stdout().splitlines()) == [f"rank {n} done at 20 in generation 1 of 3" for n in range(3)]
    assert gang.stderr() == f"brim: control {gang.control}\n"
    assert not os.path.exists(gang.control)


def test_it_grows_and_shrinks_in_place(launch):
    gang = launch("--nproc", 2, RANK)
    before = pids(gang.until(training(2)))
    for size in (4, 1, 3, 2):
        assert gang.request(ResizeRequest(size)).ok
        status = gang.until(training(size))
        stepping(gang)
    assert status["ranks"][0]["pid"] == before[0]
    assert gang.request(StopRequest()).ok
    assert gang.wait() == 0
    told = re.findall(r"^brim: (\d -> \d ranks?) at step [1-9]\d*$", gang.stderr(), re.M)
    assert told == ["2 -> 4 ranks", "4 -> 1 rank", "1 -> 3 ranks", "3 -> 2 ranks"]


def test_sizes_the_job_cannot_run_on_are_refused(launch):
    gang = launch("--nproc", 2, RANK, "sizes=1,2,4")
    gang.until(training(2))
    detail = gang.request(ResizeRequest(3)).detail
    assert detail == "found size 3, expected one of [1, 2, 4]: the batch splits into these only"
    assert "at least 1" in gang.request(ResizeRequest(0)).detail
    assert gang.request(KillRequest(9)).detail == "found id 9, expected one of [0, 1]"


@pytest.mark.cases(1)
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_survivors_of_a_killed_rank_go_on(launch, victim):
    gang = launch("--nproc", 3, RANK)
    os.kill(pids(gang.until(training(3)))[victim], signal.SIGKILL)
    status = gang.until(training(2))
    assert victim not in status["members"]
    assert status["generation"] == 2
    stepping(gang)
    assert f"rank {victim}" in gang.stderr()
    assert "SIGKILL" in gang.stderr()


@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_whose_collective_does_not_fail_are_informed(launch, victim):
    gang = launch("--nproc", 3, RANK, "deaf")
    os.kill(pids(gang.until(training(3)))[victim], signal.SIGKILL)
    status = gang.until(lambda status: training(2)(status) and status["generation"] == 2)
    assert victim not in status["members"]
    stepping(gang)
    assert f"the other ranks continue without rank {victim}" in gang.stderr()


def test_a_gang_that_is_building_takes_a_resize(launch, tmp_path):
    builds = tmp_path / "builds"
    builds.touch()
    gang = launch("--nproc", 1, RANK, f"build={builds}")
    gang.until(lambda status: status["ranks"][0]["state"] == "initializing")
    assert gang.request(ResizeRequest(2)).ok
    builds.unlink()
    status = gang.until(training(2))
    assert status["generation"] == 1


def test_a_replacement_takes_the_place_of_the_dead(launch):
    """Places are GPUs: one that is not there cannot be had, and one that is taken cannot be shared."""
    gang = launch("--nproc", 2, "--replace", 1, RANK, "sizes=1,2")
    gang.until(training(2))
    assert gang.request(KillRequest(1)).ok
    status = gang.until(lambda status: training(2)(status) and status["generation"] > 1)
    assert sorted(rank["slot"] for rank in status["ranks"] if rank["alive"]) == [0, 1]


def test_a_killed_rank_is_replaced_where_that_was_asked_for(launch):
    gang = launch("--nproc", 2, "--replace", 1, RANK, "sizes=1,2")
    gang.until(training(2))
    assert gang.request(KillRequest(0)).ok
    status = gang.until(lambda status: training(2)(status) and status["generation"] > 1)
    assert status["members"] == [1, 2]


def test_a_preemption_is_announced_and_ends_with_75(launch):
    gang = launch("--nproc", 3, "--grace", 60, RANK)
    gang.until(training(3))
    start_s = time.monotonic()
    gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == 75
    assert time.monotonic() - start_s < 30, "SIGTERM would have come after 59 s"
    assert "SIGKILL" not in gang.stderr()
    said = r"brim: preempted at step \d+, saved to nowhere; start the same command again to resume"
    assert re.fullmatch(said, gang.stderr().splitlines()[-1])


@pytest.mark.cases(2)
@pytest.mark.parametrize(("code", "expected"), [(0, 75), (75, 75), (85, 75), (99, 75), (3, 3)])
def test_codes_after_an_announced_stop(launch, code, expected):
    gang = launch("--nproc", 2, "--grace", 60, RANK, f"code={code}")
    gang.until(training(2))
    assert gang.request(PreemptRequest()).ok
    assert gang.wait() == expected


@pytest.mark.parametrize("code", [75, 85, 99])
def test_a_resumable_code_of_a_rank_that_was_not_asked_to_stop_is_a_failure(launch, code):
    gang = launch("--nproc", 2, "--command", "sh", "-c", f"[ $RANK = 0 ] && sleep 60; exit {code}")
    assert gang.wait() == 1
    assert f"rank 1 failed first: exited with {code}, though it was not asked to stop" in gang.stderr()


def test_a_rank_that_ignores_messages_and_sigterm_is_killed_at_the_end_of_the_grace(launch):
    gang = launch("--nproc", 2, "--grace", 600, RANK, "ignore")  # the grace of the request is the one that counts
    gang.until(training(2))
    start_s = time.monotonic()
    assert gang.request(PreemptRequest(grace_s=1.5)).ok
    assert gang.wait() == 75
    assert time.monotonic() - start_s > 1.4
    assert gang.stderr().count("is still running: SIGKILL") == 2


def test_a_stopped_process_is_killed_too(launch):
    gang = launch("--nproc", 2, RANK)
    os.kill(pids(gang.until(training(2)))[1], signal.SIGSTOP)
    gang.request(PreemptRequest(grace_s=1.2))
    assert gang.wait() == 75


def test_a_hung_rank_is_named_and_killed_and_the_others_go_on(launch):
    gang = launch("--nproc", 3, "--hang", 5, RANK, "hang=1:5", "pause=0.01")
    gang.until(lambda status: training(2)(status) and status["generation"] == 2)
    stepping(gang)
    said = r"brim: rank 1 \(process \d+\) hangs: all other ranks have waited for (\d+) s, in step 5; SIGKILL"
    (waited_s,) = re.findall(said, gang.stderr())
    assert int(waited_s) >= 5


def test_the_step_of_a_hang_is_that_in_which_the_others_wait(launch, peer, tmp_path):
    """Progress is said once a second: a rank that hangs soon after may have done many steps since."""
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 2, "--hang", 1, tmp_path / "wait.py")
    gang.until(lambda status: sum(bool(rank["pid"]) for rank in status["ranks"]) == 2)
    ranks = [peer(gang.control), peer(gang.control)]
    for number, one in enumerate(ranks):
        one.send(Hello(number, 1))
        one.send(Ready(number))
    for one in ranks:
        assert one.receive() == FormGroup(1, (0, 1), 0, 1)
        one.send(GroupFormed(1, 0))
        one.send(TrainingProgress(1, 8))
    gang.until(training(2))
    ranks[0].send(Waiting(1, 10, 1.5))
    gang.until(lambda status: not status["ranks"][1]["alive"])
    assert "rank 1 (process " in gang.stderr()
    assert "s, in step 10; SIGKILL" in gang.stderr()


def test_a_frozen_rank_that_says_nothing_is_found_once_the_others_are_free(launch):
    gang = launch("--nproc", 3, "--hang", 1, RANK, "mute")
    ids = pids(gang.until(training(3)))
    os.kill(ids[2], signal.SIGSTOP)
    os.kill(ids[1], signal.SIGKILL)
    gang.until(training(1))
    assert "rank 2 (process " in gang.stderr()


def test_a_segmentation_fault_is_survived(launch):
    gang = launch("--nproc", 2, RANK, "segv=1:5")
    gang.until(lambda status: training(1)(status) and status["generation"] == 2)
    assert "SIGSEGV" in gang.stderr()


def test_growth_overlaps_training(launch, tmp_path):
    builds = tmp_path / "builds"
    gang = launch("--nproc", 1, RANK, f"build={builds}")
    gang.until(training(1))
    builds.touch()
    gang.request(ResizeRequest(2))
    stepping(gang)
    assert training(1)(gang.status())
    builds.unlink()
    gang.until(training(2))


def test_growth_taken_back_before_newcomers_are_ready(launch, tmp_path):
    builds = tmp_path / "builds"
    gang = launch("--nproc", 1, RANK, f"build={builds}")
    gang.until(training(1))
    builds.touch()
    gang.request(ResizeRequest(3))
    gang.until(lambda status: len(pids(status)) == 3)
    gang.request(ResizeRequest(1))
    gang.until(lambda status: len(pids(status)) == 1)
    stepping(gang)
    assert gang.status()["target"] == 1


def test_when_the_zygote_is_killed_the_gang_goes_on_and_can_grow(launch):
    gang = launch("--nproc", 2, RANK)
    os.kill(gang.until(training(2))["zygote"], signal.SIGKILL)
    stepping(gang)
    gang.request(ResizeRequest(3))
    gang.until(training(3))
    os.kill(gang.status()["zygote"], signal.SIGKILL)
    stepping(gang)
    os.kill(pids(gang.status())[0], signal.SIGKILL)
    gang.until(training(2))
    assert gang.request(PreemptRequest()).ok
    assert gang.wait() == 75


def test_a_stopped_zygote_does_not_keep_a_preempted_gang(launch):
    gang = launch("--nproc", 2, RANK)
    os.kill(gang.until(training(2))["zygote"], signal.SIGSTOP)
    for _ in range(2):
        assert gang.request(PreemptRequest(grace_s=1.0)).ok
    assert gang.wait() == 75, gang.stderr()


def test_the_ends_of_ranks_are_known_although_the_zygote_is_stopped(launch, tmp_path):
    builds = tmp_path / "builds"
    builds.touch()
    gang = launch("--nproc", 2, RANK, "steps=100", f"build={builds}")
    both = gang.until(lambda status: sum(bool(rank["pid"]) for rank in status["ranks"]) == 2)
    os.kill(both["zygote"], signal.SIGSTOP)
    builds.unlink()
    assert gang.wait() == 0, gang.stderr()
    assert "does not answer: SIGKILL" in gang.stderr()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTERM])
def test_a_gang_whose_zygote_has_started_no_rank_ends_when_preempted(launch, tmp_path, number):
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(60)\n")
    gang = launch("--nproc", 2, RANK, preload="waits", env={"PYTHONPATH": str(tmp_path)})
    zygote = gang.until(lambda status: status["zygote"])["zygote"]
    if number == signal.SIGSTOP:
        os.kill(zygote, number)
    assert gang.request(PreemptRequest(grace_s=1.0 if number == signal.SIGSTOP else 60.0)).ok
    if number == signal.SIGTERM:
        os.kill(zygote, number)
    assert gang.wait(40) == 75, gang.stderr()


def test_a_second_announcement_delays_no_signal():
    rank = RankProcess(0, 0)
    rank.schedule_signals(0.0, 25.0, 30.0)
    rank.schedule_signals(24.0, 25.0, 30.0)
    assert rank.signals == [(25.0, signal.SIGTERM), (30.0, signal.SIGKILL)]
    rank.signals.pop(0)
    rank.schedule_signals(26.0, 25.0, 30.0)
    assert rank.signals == [(30.0, signal.SIGKILL)]


def test_nohup_is_respected(launch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        gang = launch("--nproc", 1, RANK)
    finally:
        signal.signal(signal.SIGHUP, before)
    gang.until(training(1))
    gang.process.send_signal(signal.SIGHUP)
    stepping(gang)
    assert gang.status()["state"] == "running"


def test_a_peer_that_never_reads_delays_nobody(launch, peer):
    gang = launch("--nproc", 1, RANK)
    gang.until(training(1))
    deaf = peer(gang.control)
    deaf.socket.setblocking(False)
    deadline_s = time.monotonic() + PATIENCE_S
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        ask_until(deaf, deadline_s)
    start_s = time.monotonic()
    stepping(gang)
    assert time.monotonic() - start_s < 30


def ask_until(deaf, deadline_s):
    while time.monotonic() < deadline_s:
        try:
            deaf.socket.send(encode(StatusRequest()) * 100)
        except BlockingIOError:
            time.sleep(0.01)
