"""Gangs of real processes: they form, change, break, stop and end as ordered, and leave nothing behind."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from brim.gang.codec import encode
from brim.gang.messages import (
    Error,
    FormGroup,
    GroupBroken,
    GroupFormed,
    Hello,
    KillRequest,
    MemberLost,
    PreemptRequest,
    Prepare,
    Ready,
    ResizeGroup,
    ResizeRequest,
    Response,
    StatusRequest,
    StopRequest,
    StoreAddress,
    TrainingProgress,
    TuneRequest,
    TuneSettings,
    Waiting,
)
from brim.gang.rank_process import RankProcess
from tests.gang.conftest import RANK


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


def test_a_gang_that_is_building_takes_a_resize(launch):
    gang = launch("--nproc", 1, RANK, "build=2")
    gang.until(lambda status: status["ranks"][0]["state"] == "initializing")
    assert gang.request(ResizeRequest(2)).ok
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
    gang = launch("--nproc", 3, RANK)
    gang.until(training(3))
    start_s = time.monotonic()
    gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == 75
    assert time.monotonic() - start_s < 2
    assert "SIGKILL" not in gang.stderr()
    said = r"brim: preempted at step \d+, saved to nowhere; start the same command again to resume"
    assert re.fullmatch(said, gang.stderr().splitlines()[-1])


@pytest.mark.parametrize(("code", "expected"), [(0, 75), (75, 75), (85, 75), (99, 75), (3, 3)])
def test_codes_after_an_announced_stop(launch, code, expected):
    gang = launch("--nproc", 2, RANK, f"code={code}")
    gang.until(training(2))
    assert gang.request(PreemptRequest()).ok
    assert gang.wait() == expected


@pytest.mark.parametrize("code", [75, 85, 99])
def test_a_resumable_code_of_a_rank_that_was_not_asked_to_stop_is_a_failure(launch, code):
    gang = launch("--nproc", 2, "--command", "sh", "-c", f"[ $RANK = 0 ] && sleep 60; exit {code}")
    assert gang.wait() == 1
    assert f"rank 1 failed first: exited with {code}, though it was not asked to stop" in gang.stderr()


def test_a_rank_that_ignores_messages_and_sigterm_is_killed_at_the_end_of_the_grace(launch):
    gang = launch("--nproc", 2, RANK, "ignore")
    gang.until(training(2))
    start_s = time.monotonic()
    assert gang.request(PreemptRequest(grace_s=1.5)).ok
    assert gang.wait() == 75
    assert 1.4 < time.monotonic() - start_s < 3
    assert gang.stderr().count("is still running: SIGKILL") == 2


def test_a_stopped_process_is_killed_too(launch):
    gang = launch("--nproc", 2, RANK)
    os.kill(pids(gang.until(training(2)))[1], signal.SIGSTOP)
    gang.request(PreemptRequest(grace_s=1.2))
    assert gang.wait() == 75


def test_the_exception_of_one_rank_ends_all_with_its_traceback_first(launch):
    gang = launch("--nproc", 4, RANK, "fail=2:5")
    assert gang.wait() == 1
    lines = gang.stderr().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("Traceback"))
    assert not [line for line in lines[:first] if "brim: control" not in line and "broke" not in line]
    assert lines.count("ValueError: the user's own mistake in 2") == 1
    assert lines[-1] == "brim: rank 2 failed first: exited with 1"


def test_of_several_tracebacks_the_first_cause_comes_first(launch):
    gang = launch("--nproc", 4, RANK, "fail=1:5", "brittle")
    assert gang.wait() == 1
    text = gang.stderr()
    assert text.index("the user's own mistake in 1") < text.index("Traceback", text.index("Traceback") + 1)
    assert text.count("lost its peers") >= 1
    assert text.splitlines()[-1] == "brim: rank 1 failed first: exited with 1"


@pytest.mark.parametrize("linger_s", [0, 1])
@pytest.mark.parametrize("steps", [5, 0])
def test_survivors_that_wait_for_a_new_generation_end_with_a_gang_that_fails(launch, steps, linger_s):
    """They ask for no step to leave after, so SIGTERM is not heard by a session."""
    gang = launch("--nproc", 3, "--failure-grace", 6, RANK, f"fail=1:{steps}", f"linger={linger_s}", "ignore")
    start_s = time.monotonic()
    assert gang.wait() == 1
    assert time.monotonic() - start_s < 5
    assert "SIGKILL" not in gang.stderr()


def test_a_rank_that_raised_and_then_got_sigterm_failed_by_its_exception(launch, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, socket, time\nfrom brim.gang.codec import encode\n"
        "from brim.gang.messages import Failed, Hello\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(os.environ['BRIM_CONTROL'])\n"
        "s.sendall(encode(Hello(int(os.environ['BRIM_ID']), os.getpid())))\n"
        "if os.environ['BRIM_ID'] == '1': s.sendall(encode(Failed('ValueError: mine\\n')))\n"
        "time.sleep(60)\n"
    )
    gang = launch("--nproc", 2, tmp_path / "slow.py")
    assert gang.wait() == 1
    assert gang.stderr().splitlines()[-1] == "brim: rank 1 failed first: by an exception"


def test_peers_that_fail_sooner_do_not_hide_the_first_cause(launch, tmp_path):
    script = tmp_path / "gloo.py"
    script.write_text(
        "import os, socket, sys, time\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "if os.environ['RANK'] == '0':\n"
        "    server = socket.create_server(('127.0.0.1', port)); peer, _ = server.accept()\n"
        "    try: raise ValueError('the cause')\n"
        "    finally: peer.close(); time.sleep(0.3)\n"
        "for _ in range(100):\n"
        "    try: peer = socket.create_connection(('127.0.0.1', port)); break\n"
        "    except OSError: time.sleep(0.02)\n"
        "if not peer.recv(1): raise ConnectionError('a consequence')\n"
    )
    gang = launch("--nproc", 2, script)
    assert gang.wait() == 1
    text = gang.stderr()
    assert "the cause" in text
    assert "a consequence" in text


def test_a_killed_rank_failed_first_though_the_exception_of_another_is_seen_sooner(launch, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, socket, time\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "if os.environ['RANK'] == '0':\n"
        "    server = socket.create_server(('127.0.0.1', port)); peer, _ = server.accept()\n"
        "    peer.close(); peer, _ = server.accept(); peer.recv(1)  # until the other has ended\n"
        "    time.sleep(0.05); os.kill(os.getpid(), signal.SIGKILL)\n"
        "for _ in range(100):\n"
        "    try: peer = socket.create_connection(('127.0.0.1', port)); break\n"
        "    except OSError: time.sleep(0.02)\n"
        "if not peer.recv(1):\n"
        "    until_the_end = socket.create_connection(('127.0.0.1', port)); raise ConnectionError('a consequence')\n"
    )
    gang = launch("--nproc", 2, script)
    assert gang.wait() == 128 + signal.SIGKILL
    text = gang.stderr()
    assert "a consequence" in text
    assert text.splitlines()[-1] == "brim: rank 0 failed first: ended by SIGKILL"


def test_a_gang_of_a_fixed_size_fails_when_a_rank_is_killed(launch):
    gang = launch("--nproc", 2, RANK, "sizes=2")
    os.kill(pids(gang.until(training(2)))[0], signal.SIGKILL)
    assert gang.wait(10) == 128 + signal.SIGKILL
    assert "the other ranks continue" not in gang.stderr()
    assert gang.stderr().splitlines()[-1] == "brim: rank 0 failed first: ended by SIGKILL"


def test_with_logs_the_first_traceback_is_shown_and_each_rank_has_its_file(launch, tmp_path):
    gang = launch("--nproc", 2, "--logs", tmp_path / "logs", RANK, "fail=1:3")
    assert gang.wait() == 1
    assert "mistake in 1" in gang.stderr()
    assert "mistake in 1" in (tmp_path / "logs" / "rank-1.log").read_text()
    assert (tmp_path / "logs" / "rank-0.log").exists()


@pytest.mark.parametrize("wrong", ["file", "log"])
def test_logs_that_cannot_be_opened_at_the_start_end_it(launch, tmp_path, wrong):
    logs = tmp_path / "logs"
    if wrong == "file":
        logs.write_text("x")
    else:
        (logs / "rank-1.log").mkdir(parents=True)
    gang = launch("--nproc", 2, "--logs", logs, RANK)
    assert gang.wait() == (2 if wrong == "file" else 126)
    last = gang.stderr().splitlines()[-1]
    expected = {"file": f"brim: --logs {logs}: File exists; expected a writable folder",
                "log": f"brim: rank 1: its output cannot be opened: Is a directory: {logs / 'rank-1.log'}"}  # fmt: skip
    assert last == expected[wrong]
    assert "Traceback" not in gang.stderr()


@pytest.mark.parametrize("replace", [0, 5])
def test_a_newcomer_whose_log_cannot_be_opened_does_not_come_and_the_gang_goes_on(launch, tmp_path, replace):
    logs = tmp_path / "logs"
    gang = launch("--nproc", 2, "--replace", replace, "--logs", logs, RANK)
    gang.until(training(2))
    logs.rename(tmp_path / "elsewhere")
    logs.write_text("x")
    answer = gang.request(ResizeRequest(4))
    assert not answer.ok
    assert answer.detail.startswith("rank 3: its output cannot be opened: File exists")
    status = gang.status()
    assert status["target"] == 2
    assert training(2)(status)
    assert gang.stderr().count("cannot be opened") == 2
    stepping(gang)
    logs.unlink()
    assert gang.request(ResizeRequest(3)).ok
    gang.until(training(3))
    gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == 75


def test_a_replacement_that_cannot_be_started_does_not_end_the_others(launch, tmp_path):
    logs = tmp_path / "logs"
    gang = launch("--nproc", 2, "--replace", 3, "--logs", logs, RANK)
    gang.until(training(2))
    logs.rename(tmp_path / "elsewhere")
    logs.write_text("x")
    assert gang.request(KillRequest(1)).ok
    gang.until(lambda status: training(1)(status) and status["generation"] == 2)
    stepping(gang)
    assert gang.stderr().count("cannot be opened") == 1
    assert gang.request(StopRequest()).ok
    assert gang.wait() == 0


def test_a_crash_of_a_plain_command_ends_the_gang(launch):
    gang = launch("--nproc", 2, "--command", "bash", "-c", 'if [ $RANK = 1 ]; then exit 5; fi; sleep 60')
    start_s = time.monotonic()
    assert gang.wait() == 5
    assert time.monotonic() - start_s < 10
    assert "rank 1 failed first: exited with 5" in gang.stderr()


def test_a_command_that_cannot_be_started_is_named(launch):
    gang = launch("--nproc", 2, "--command", "no-such-program", "x")
    assert gang.wait() == 127
    assert "cannot start no-such-program" in gang.stderr()


def test_a_plain_command_is_terminated_and_resumable(launch):
    gang = launch("--nproc", 2, "--command", "bash", "-c", "sleep 60 & wait")
    gang.until(lambda status: all(rank["pid"] for rank in status["ranks"]))
    assert "no rank has connected yet" in gang.request(ResizeRequest(1)).detail
    gang.process.send_signal(signal.SIGTERM)
    assert gang.wait(5) == 75


def test_a_plain_command_has_what_torchrun_sets(launch):
    gang = launch("--nproc", 2, "--devices", "4,7", "--command", "env")
    assert gang.wait() == 0
    lines = gang.stdout().splitlines()
    for name in ("RANK=0", "RANK=1", "LOCAL_RANK=1", "LOCAL_RANK=0"):
        assert lines.count(name) == 1
    for name in ("WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "CUDA_VISIBLE_DEVICES=4,7",
                 "GROUP_RANK=0", "OMP_NUM_THREADS=1"):
        assert lines.count(name) == 2
    assert sum(line.startswith("MASTER_PORT=") for line in lines) == 2


def test_a_hung_rank_is_named_and_killed_and_the_others_go_on(launch):
    gang = launch("--nproc", 3, "--hang", 1, RANK, "hang=1:5", "pause=0.01")
    gang.until(lambda status: training(2)(status) and status["generation"] == 2)
    stepping(gang)
    assert "rank 1 (process " in gang.stderr()
    assert "hangs: all other ranks have waited for 1 s, in step 5; SIGKILL" in gang.stderr()


def test_the_step_of_a_hang_is_that_in_which_the_others_wait(launch, peer, tmp_path):
    """Progress is said once a second: a rank that hangs soon after may have done many steps since."""
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 2, "--hang", 1, tmp_path / "wait.py")
    gang.until(lambda status: sum(rank["pid"] > 0 for rank in status["ranks"]) == 2)
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


def test_growth_overlaps_training(launch):
    gang = launch("--nproc", 1, RANK, "build=0.7")
    gang.until(training(1))
    gang.request(ResizeRequest(2))
    stepping(gang)
    assert training(1)(gang.status())
    gang.until(training(2))


def test_growth_taken_back_before_newcomers_are_ready(launch):
    gang = launch("--nproc", 1, RANK, "build=0.5")
    gang.until(training(1))
    gang.request(ResizeRequest(3))
    gang.until(lambda status: len(pids(status)) == 3)
    gang.request(ResizeRequest(1))
    gang.until(lambda status: len(pids(status)) == 1)
    stepping(gang)
    assert gang.status()["target"] == 1


ORPHAN = """
import os, sys, time, signal
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if "exec" in sys.argv: os.execv("/bin/sleep", ["sleep", "60"])
            os.environ.clear()
            time.sleep(60)
        os._exit(0)
    os.wait()
daemon()
open(f"ready{os.environ['RANK']}", "w").close()
if "wait" in sys.argv: time.sleep(60)
if "fail" in sys.argv: 1/0
"""


@pytest.mark.parametrize("words", [["exec"], ["fork"], ["fork", "fail"], ["exec", "wait"]])
def test_daemons_that_double_forked_away_are_gone_with_the_gang(launch, tmp_path, words):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    gang = launch("--nproc", 2, tmp_path / "orphan.py", *words)
    if "wait" in words:
        while not all((gang.folder / f"ready{n}").exists() for n in range(2)):
            time.sleep(0.02)
        gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == {"fail": 1, "wait": 75}.get(words[-1], 0)


def test_daemons_of_a_killed_rank_go_with_it_while_the_others_stay(launch, tmp_path):
    (tmp_path / "both.py").write_text(ORPHAN + "\nimport runpy\nsys.argv = ['rank.py']\n"
                                      f"runpy.run_path({str(RANK)!r}, run_name='__main__')")
    gang = launch("--nproc", 2, tmp_path / "both.py", "exec")
    ids = pids(gang.until(training(2)))
    assert asleep(gang) == {"0", "1"}
    os.kill(ids[1], signal.SIGKILL)
    gang.until(training(1))
    deadline_s = time.monotonic() + 3
    while asleep(gang) != {"0"} and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert asleep(gang) == {"0"}


def asleep(gang):
    """Ranks whose daemons are there."""
    mark, found = gang.status()["gang"], set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline() == ["sleep", "60"] and process.environ().get("BRIM_GANG") == mark:
                found.add(process.environ()["BRIM_ID"])
    return found


def test_shared_memory_of_a_killed_rank_is_unlinked(launch, tmp_path):
    (tmp_path / "shared.py").write_text(
        "from multiprocessing.shared_memory import SharedMemory\nimport os, time\n"
        "m = SharedMemory(name='brim-test-' + os.environ['BRIM_GANG'] + os.environ['RANK'], create=True, size=4096)\n"
        "open('ready' + os.environ['RANK'], 'w').close()\ntime.sleep(60)\n"
    )
    gang = launch("--nproc", 2, tmp_path / "shared.py")
    while not all((gang.folder / f"ready{n}").exists() for n in range(2)):
        time.sleep(0.02)
    mark = "brim-test-" + gang.status()["gang"]
    assert len([name for name in os.listdir("/dev/shm") if name.startswith(mark)]) == 2
    gang.request(KillRequest(0))
    assert gang.wait() == 128 + signal.SIGKILL
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(mark)]


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


def test_when_the_supervisor_is_killed_nothing_is_left(launch, tmp_path):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    gang = launch("--nproc", 2, tmp_path / "stubborn.py", env={"TMPDIR": str(tmp_path)})
    ids = pids(gang.until(lambda status: all(rank["pid"] for rank in status["ranks"])))
    zygote = gang.status()["zygote"]
    gang.process.kill()
    gang.wait()
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s and any(psutil.pid_exists(pid) for pid in [*ids.values(), zygote]):
        time.sleep(0.02)
    assert not [pid for pid in [*ids.values(), zygote] if psutil.pid_exists(pid)]
    assert not list(tmp_path.glob("brim-*"))
    again = launch("--nproc", 1, RANK, "steps=3", control=gang.control)
    assert again.wait() == 0


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
    assert gang.wait(20) == 75, gang.stderr()


def test_the_ends_of_ranks_are_known_although_the_zygote_is_stopped(launch):
    gang = launch("--nproc", 2, RANK, "steps=300")
    os.kill(gang.until(training(2))["zygote"], signal.SIGSTOP)
    assert gang.wait(30) == 0, gang.stderr()
    assert "does not answer: SIGKILL" in gang.stderr()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTERM])
def test_a_gang_whose_zygote_has_started_no_rank_ends_when_preempted(launch, tmp_path, number):
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(60)\n")
    gang = launch("--nproc", 2, RANK, preload="waits", env={"PYTHONPATH": str(tmp_path)})
    zygote = gang.until(lambda status: status["zygote"])["zygote"]
    if number == signal.SIGSTOP:
        os.kill(zygote, number)
    assert gang.request(PreemptRequest(grace_s=1.0)).ok
    if number == signal.SIGTERM:
        os.kill(zygote, number)
    assert gang.wait(20) == 75, gang.stderr()


def test_a_second_announcement_delays_no_signal():
    rank = RankProcess(0, 0)
    rank.schedule_signals(0.0, 25.0, 30.0)
    rank.schedule_signals(24.0, 25.0, 30.0)
    assert rank.signals == [(25.0, signal.SIGTERM), (30.0, signal.SIGKILL)]
    rank.signals.pop(0)
    rank.schedule_signals(26.0, 25.0, 30.0)
    assert rank.signals == [(30.0, signal.SIGKILL)]


def test_a_second_supervisor_on_the_same_path_is_refused(launch):
    gang = launch("--nproc", 1, RANK)
    gang.until(training(1))
    other = launch("--nproc", 1, RANK, control=gang.control)
    assert other.wait() == 1
    assert "another process listens there; choose another path" in other.stderr()
    stepping(gang)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "missing"])
def test_a_file_that_is_no_socket_is_not_removed(launch, tmp_path, kind):
    path = tmp_path / "precious"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "nothing")
    elif kind == "file":
        path.write_text("of somebody")
    else:
        path = tmp_path / "no-folder" / "s"
    before = os.path.lexists(path)
    gang = launch("--nproc", 1, RANK, control=path)
    assert gang.wait() == 1
    expected = "No such file or directory; expected a path in a writable" if kind == "missing" else "expected a socket"
    assert f"brim: {path}: " in gang.stderr().splitlines()[-1]
    assert expected in gang.stderr().splitlines()[-1]
    assert os.path.lexists(path) == before
    if kind == "file":
        assert path.read_text() == "of somebody"


def test_impossible_values_are_refused_and_reach_no_rank(launch, peer, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 1, tmp_path / "wait.py")
    gang.until(lambda status: status["ranks"][0]["pid"])
    rank = peer(gang.control)
    rank.send(Hello(0, 1))
    rank.send(Ready(0))
    assert rank.receive() == FormGroup(1, (0,), 0, 1)
    rank.send(GroupFormed(1, 0))
    gang.until(training(1))
    for message, why in [
        (PreemptRequest(-5.0), "preempt: found -5 s, expected a finite time of at least 0"),
        (TuneRequest(global_batch=0), "tune: found global_batch 0, expected at least 1"),
        (TuneRequest(loader_workers=-1), "tune: found loader_workers -1, expected at least 0"),
        (TuneRequest(prefetch=0), "tune: found prefetch 0, expected at least 1"),
    ]:
        assert gang.request(message) == Response(ok=False, detail=why)
    raw = peer(gang.control)
    raw.send(b'{"v":1,"type":"preempt_request","grace_s":NaN}\n')
    assert not raw.receive().ok
    assert gang.request(TuneRequest(loader_workers=0)).ok
    assert rank.receive() == TuneSettings(2, loader_workers=0)
    assert gang.status()["state"] == "running"


def test_random_bytes_half_lines_and_other_versions_harm_nobody(launch, peer):
    gang = launch("--nproc", 2, RANK)
    gang.until(training(2))
    dice = random.Random(4)
    for _ in range(30):
        one = peer(gang.control)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            one.send(dice.randbytes(dice.choice([1, 10, 5000])))
        one.close()
    half = peer(gang.control)
    half.send(encode(StatusRequest())[:9])
    future = peer(gang.control)
    future.send(b'{"v": 2, "type": "hello", "id": 0, "pid": 1}\n')
    sent = future.receive()
    assert isinstance(sent, Error)
    assert "version 2" in sent.detail
    assert "expected 1" in sent.detail
    assert future.receive() is None
    half.send(encode(StatusRequest())[9:])
    assert isinstance(half.receive(), Response)
    stepping(gang)


def test_a_stranger_cannot_be_a_rank(launch, peer):
    gang = launch("--nproc", 1, RANK)
    gang.until(training(1))
    for message, why in [(Hello(0, 1), "connected already"), (Hello(7, 1), "found id 7"),
                         (Hello(0, 1, "another"), "found gang another, expected"),
                         (TrainingProgress(1, 1), "expected hello first"), (Prepare(1, 1.0), "expected hello first")]:
        one = peer(gang.control)
        one.send(message)
        assert why in one.receive().detail
    stepping(gang)


def test_a_rank_of_a_killed_supervisor_is_no_rank_of_the_next(launch, peer):
    """On the same path, before the rank of that number has come: it would take its place, and all would wait."""
    gang = launch("--nproc", 1, RANK, "build=1")
    gang.until(lambda status: status["ranks"])
    one = peer(gang.control)
    one.send(Hello(0, 1, "of-before"))
    assert "that one ended" in one.receive().detail
    gang.until(training(1))


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
    deadline_s = time.monotonic() + 10
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        ask_until(deaf, deadline_s)
    start_s = time.monotonic()
    stepping(gang)
    assert time.monotonic() - start_s < 3


def ask_until(deaf, deadline_s):
    while time.monotonic() < deadline_s:
        try:
            deaf.socket.send(encode(StatusRequest()) * 100)
        except BlockingIOError:
            time.sleep(0.01)


def test_a_rank_that_sends_a_message_of_others_gets_an_error(launch, peer, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 1, tmp_path / "wait.py")
    gang.until(lambda status: status["ranks"][0]["pid"])
    rank = peer(gang.control)
    rank.send(Hello(0, 1))
    rank.send(Ready(0))
    assert rank.receive() == FormGroup(1, (0,), 0, 1)
    rank.send(FormGroup(1, (0,), 0, 1))
    assert "not a rank's message" in rank.receive().detail
    rank.send(b'{"v":1,"type":"dance"}\n')
    assert "one of" in rank.receive().detail
    rank.send(GroupFormed(1, 0))
    gang.until(training(1))
    gang.request(TuneRequest(global_batch=64))
    assert rank.receive() == TuneSettings(2, 64)
    rank.send(b'{"v":1,"type":"prog')
    rank.close()
    assert gang.until(lambda status: not status["ranks"][0]["connected"])


def test_a_rank_that_reconnects_is_sent_again_what_it_may_have_missed(launch, peer, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 1, tmp_path / "wait.py")
    gang.until(lambda status: status["ranks"][0]["pid"])
    for _ in range(2):
        rank = peer(gang.control)
        rank.send(Hello(0, 1))
        rank.send(Ready(0))
        assert rank.receive() == FormGroup(1, (0,), 0, 1)
        rank.close()


@pytest.mark.parametrize("applied", [False, True])
def test_a_tune_that_a_new_generation_makes_void_is_sent_again_unless_it_was_applied(launch, peer, tmp_path, applied):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 2, tmp_path / "wait.py")
    gang.until(lambda status: sum(rank["pid"] > 0 for rank in status["ranks"]) == 2)
    first, second = peer(gang.control), peer(gang.control)
    for number, one in enumerate((first, second)):
        one.send(Hello(number, 1))
        one.send(Ready(number))
    for one in (first, second):
        assert one.receive() == FormGroup(1, (0, 1), 0, 1)
        one.send(GroupFormed(1, 0))
    gang.until(training(2))
    gang.request(TuneRequest(global_batch=64))
    assert first.receive() == TuneSettings(2, 64)
    gang.request(KillRequest(1))
    assert first.receive() == MemberLost(1)
    first.send(GroupBroken(1, 5))
    assert first.receive() == FormGroup(2, (0,), 0, 3)
    first.send(GroupFormed(2, 5, tuned=2 if applied else 0))
    gang.until(training(1))
    gang.request(TuneRequest(prefetch=3))
    assert first.receive() == (TuneSettings(4, prefetch=3) if applied else TuneSettings(4, 64))
    if not applied:
        assert first.receive() == TuneSettings(5, prefetch=3)


@pytest.mark.parametrize(("sizes", "words"), [
    ("1,2,4", "(1, 2 or 4 are possible); rank 2 stopped"), ("1,4", "(1 or 4 are possible); ranks 1, 2 stopped"),
])  # fmt: skip
def test_surplus_ranks_are_named_on_stderr(launch, sizes, words):
    gang = launch("--nproc", 3, RANK, f"sizes={sizes}", "steps=3")
    assert gang.wait() == 0
    assert words in gang.stderr()


def test_addresses_and_commands_reach_the_ranks_they_are_for(launch, peer, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 2, tmp_path / "wait.py")
    gang.until(lambda status: all(rank["pid"] for rank in status["ranks"]))
    first, second = peer(gang.control), peer(gang.control)
    for number, one in enumerate((first, second)):
        one.send(Hello(number, 1))
        one.send(Ready(number))
    assert first.receive() == second.receive() == FormGroup(1, (0, 1), 0, 1)
    first.send(StoreAddress(1, "127.0.0.1", 4242))
    assert second.receive() == StoreAddress(1, "127.0.0.1", 4242)
    for one in (first, second):
        one.send(GroupFormed(1, 0))
    gang.until(training(2))
    gang.request(ResizeRequest(1))
    assert first.receive() == second.receive() == ResizeGroup(2, 2, (0,), 0)
    gang.request(PreemptRequest(grace_s=2.0))
    assert first.receive() == Prepare(3, 1.0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments_leave_nothing(launch, seed):
    dice = random.Random(seed)
    gang = launch("--nproc", 4, RANK, "sizes=1,2,4")
    time.sleep(dice.uniform(0.2, 0.6))
    for _ in range(8):
        with contextlib.suppress(OSError):
            status = gang.status()
            ranks = [pid for pid in pids(status).values() if pid]
            what = dice.choice(["rank", "rank", "zygote", "resize", "resize"])
            if what == "resize":
                gang.request(ResizeRequest(dice.choice([1, 2, 4])))
            elif what == "zygote" and status["zygote"]:
                os.kill(status["zygote"], signal.SIGKILL)
            elif len(ranks) > 1:
                os.kill(dice.choice(ranks), signal.SIGKILL)
        time.sleep(dice.uniform(0, 0.15))
    if gang.process.poll() is None:
        gang.process.send_signal(dice.choice([signal.SIGKILL, signal.SIGTERM]))
    code = gang.wait(15)
    assert code in (75, -9, 137, 0), gang.stderr()
    if code == -9:
        time.sleep(1.5)


def test_fifty_gangs_leak_no_descriptor_thread_file_or_port(tmp_path):
    program = f"""
import os, sys, threading, glob, tempfile
from brim.gang.launch_config import LaunchConfig
from brim.gang.supervisor import Supervisor
def count():
    files = glob.glob(tempfile.gettempdir() + '/brim-*')
    return len(os.listdir('/proc/self/fd')), threading.active_count(), len(files)
for n in range(51):
    if n == 1: before = count()
    config = LaunchConfig((sys.executable, '-c', ''), 2, {str(tmp_path / "s")!r}, '/', preload=())
    result = Supervisor(config).run()
    assert result.exit_code == 0, result
print(before == count(), before, count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          env={**os.environ, "TMPDIR": str(tmp_path)})  # fmt: skip
    assert done.stdout.startswith("True"), done.stdout + done.stderr
    listening = [c for c in psutil.net_connections() if c.status == psutil.CONN_LISTEN and c.pid == os.getpid()]
    assert not listening


def test_the_fork_of_a_shared_zygote_serves_a_gang(launch, tmp_path):
    path = tmp_path / "z"
    root = subprocess.Popen([sys.executable, "-m", "brim.gang.zygote", "--listen", path, "--preload", "json"],
                            env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert b"listening" in root.stderr.readline()
        gang = launch("--nproc", 2, "--zygote", path, RANK)
        status = gang.until(training(2))
        assert {rank["start_method"] for rank in status["ranks"]} == {"fork"}
        gang.request(KillRequest(1))
        gang.until(training(1))
        gang.process.send_signal(signal.SIGTERM)
        assert gang.wait() == 75
        assert not Path(f"/proc/{status['ranks'][0]['pid']}").exists()
    finally:
        root.terminate()
        root.wait()
        root.stderr.close()
    assert not path.exists()


def test_a_shared_zygote_removes_no_file(tmp_path):
    (tmp_path / "z").write_text("of somebody")
    done = subprocess.run([sys.executable, "-m", "brim.gang.zygote", "--listen", tmp_path / "z", "--preload", "json"],
                          capture_output=True, text=True, check=False, timeout=20)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"brim zygote: --listen {tmp_path / 'z'}: ")
    assert (tmp_path / "z").read_text() == "of somebody"
