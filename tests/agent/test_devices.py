"""GPUs through a stand-in for NVIDIA's library: one that is foreign, stuck, silent or gone is withheld, and returns."""

import os
import selectors
import subprocess
import sys
import time

import pytest

from brim.agent import devices as module
from brim.agent.devices import CpuSlots, Gpus
from brim.agent.protocol import ENDED, FAILED, FINISHED, FOREIGN, OPEN, QUARANTINED, RUNNING
from brim.errors import RefusedError
from tests.nvml import Rack, build


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Folder with the stand-in."""
    folder = tmp_path_factory.mktemp("nvml")
    build(folder)
    return folder


@pytest.fixture
def rack(library, tmp_path, monkeypatch):
    monkeypatch.setenv("STAND_IN_NVML", str(tmp_path / "gpus"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return Rack(tmp_path / "gpus")


@pytest.fixture
def gpus(rack):
    with selectors.DefaultSelector() as selector:
        made = Gpus(selector)
        made.selector = selector
        yield made
        pids = made.pids()
        made._end()
        for pid in pids:
            os.waitpid(pid, 0)


def until(gpus, holds, held=None, timeout_s=60):
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, gpus.seen()
        gpus.poll(held or {})
        for key, _ in gpus.selector.select(0.05):
            key.data()


def states(gpus):
    return [seen.state for seen in gpus.seen()]


def test_gpus_are_named_and_measured(gpus, rack):
    assert gpus.names == ("GPU-a", "GPU-b")
    rack.set(first=(1234, 37, 250_500))
    until(gpus, lambda: gpus.seen()[0].memory_used_mib == 1234)
    seen = gpus.seen()[0]
    assert (seen.utilisation_ratio, seen.power_w, seen.modelled) == (0.37, 250.5, False)


def test_energy_is_that_of_the_gpus_own_counter(rack, monkeypatch):
    monkeypatch.setenv("STAND_IN_ENERGY", "1")
    with selectors.DefaultSelector() as selector:
        gpus = Gpus(selector)
        gpus.selector = selector
        rack.set(first=(450, 37, 75_000))
        until(gpus, lambda: gpus.seen()[0].utilisation_ratio == 0.37)
        pids = gpus.pids()
        gpus._end()
        for pid in pids:
            os.waitpid(pid, 0)

    assert gpus.used_j() == {0: 5_000.0, 1: 0.0}
    assert gpus.used_j() == {}


def test_without_a_counter_energy_is_power_over_time(gpus, rack):
    began_s = time.monotonic()
    rack.set(first=(450, 37, 100_000), second=(450, 0, 0))
    until(gpus, lambda: gpus.seen()[0].utilisation_ratio == 0.37)
    used_j = gpus.used_j()

    assert 0 < used_j[0] <= 100 * (time.monotonic() - began_s + 1)
    assert 1 not in used_j  # neither counter nor power


def test_a_value_that_a_gpu_does_not_have_is_no_fault(gpus, rack):
    rack.set(first=(450, 5, 0))
    until(gpus, lambda: gpus.seen()[0].utilisation_ratio == 0.05)
    assert (states(gpus), gpus.seen()[0].power_w) == ([OPEN, OPEN], 0.0)


@pytest.mark.slow
def test_a_gpu_with_a_foreign_process_is_withheld_until_that_has_gone(gpus, rack):
    rack.set(second=(9_000, 90, 70_000, os.getpid()))
    until(gpus, lambda: states(gpus) == [OPEN, FOREIGN])
    assert f"process {os.getpid()}" in gpus.seen()[1].detail
    rack.set()
    until(gpus, lambda: states(gpus) == [OPEN, OPEN])


def test_processes_of_the_attempt_on_a_gpu_are_no_strangers(gpus, rack):
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        rack.set(first=(9_000, 90, 70_000, child.pid), second=(9_000, 90, 70_000, child.pid))
        until(gpus, lambda: states(gpus) == [OPEN, FOREIGN], held={0: {child.pid}})
    finally:
        child.kill()
        child.wait()


def test_memory_that_stays_without_a_process_quarantines_a_gpu(gpus, rack):
    rack.set(first=(5_000, 0, 70_000))
    until(gpus, lambda: states(gpus) == [QUARANTINED, OPEN])
    assert "5000 MiB are in use although no process is there; 450 MiB if it is empty" in gpus.seen()[0].detail
    answers = []
    gpus.check([1], answers.append)
    until(gpus, lambda: answers == [""])


def test_a_start_waits_a_moment_for_memory_to_return_and_is_refused_after_it(gpus, rack, monkeypatch):
    monkeypatch.setattr(module, "GATE_MS", 400)
    answers = []
    rack.set(first=(5_000, 0, 70_000))
    gpus.check([0], answers.append)
    until(gpus, lambda: answers)
    assert "GPU 0: 5000 MiB are in use" in answers[0]
    monkeypatch.setattr(module, "GATE_MS", 60_000)
    gpus.check([0, 1], answers.append)
    until(gpus, lambda: states(gpus) == [QUARANTINED, OPEN])
    rack.set()
    until(gpus, lambda: len(answers) == 2)
    assert answers[1] == ""


@pytest.mark.slow
def test_a_lost_gpu_is_quarantined_alone(gpus, rack):
    rack.set(second=(450, 999, 70_000))
    until(gpus, lambda: states(gpus) == [OPEN, QUARANTINED])
    rack.write("GPU-b 450 0 70000\n")
    until(gpus, lambda: states(gpus) == [QUARANTINED, OPEN])
    assert "does not list it" in gpus.seen()[0].detail


@pytest.mark.slow
def test_a_driver_that_hangs_quarantines_all_and_refuses_starts_until_it_answers(gpus, rack):
    before = gpus.pids()
    rack.write("hang\n")
    answers = []
    until(gpus, lambda: states(gpus) == [QUARANTINED, QUARANTINED])
    gpus.check([0], answers.append)
    until(gpus, lambda: answers)
    assert "NVML has not answered for 2 s" in answers[0]
    rack.set()
    until(gpus, lambda: states(gpus) == [OPEN, OPEN])
    assert gpus.pids() != before


@pytest.mark.slow
def test_a_reader_that_hangs_in_the_driver_although_it_was_killed_is_the_agents_own(gpus, rack, monkeypatch):
    (before,) = gpus.pids()
    monkeypatch.setattr(module.processes, "send_signal", lambda process, number: True)
    rack.write("hang\n")
    until(gpus, lambda: states(gpus) == [QUARANTINED, QUARANTINED])
    rack.set()
    until(gpus, lambda: states(gpus) == [OPEN, OPEN])
    assert before in gpus.pids()
    os.kill(before, 9)
    os.waitpid(before, 0)
    assert before not in gpus.pids()
    monkeypatch.undo()


@pytest.mark.parametrize("later_again_ms", [0, 10_000])
def test_a_stall_of_the_agent_is_no_fault_of_the_driver_which_has_its_time_once_more(gpus, monkeypatch, later_again_ms):
    looks = (0, OPEN), (10_000, OPEN), (later_again_ms, QUARANTINED)  # it asks, stalls, and waits in vain
    for later_ms, state in looks:
        at_ms = gpus.next_ms() + later_ms
        monkeypatch.setattr(module, "now_ms", lambda at_ms=at_ms: at_ms)
        gpus.poll({})
        assert states(gpus) == [state, state]


def test_a_killed_reader_is_started_again(gpus):
    before = gpus.pids()
    os.kill(next(iter(before)), 9)
    until(gpus, lambda: states(gpus) == [QUARANTINED, QUARANTINED])
    until(gpus, lambda: states(gpus) == [OPEN, OPEN])
    assert gpus.pids() != before


@pytest.mark.slow
def test_a_reader_that_cannot_be_started_quarantines_all_until_it_can(gpus, monkeypatch):
    def no_room(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as full:
        full.setattr(module.subprocess, "Popen", no_room)
        os.kill(next(iter(gpus.pids())), 9)
        until(gpus, lambda: "cannot be started: Resource" in gpus.seen()[0].detail)
        assert states(gpus) == [QUARANTINED, QUARANTINED]
    until(gpus, lambda: states(gpus) == [OPEN, OPEN])


def test_a_machine_without_gpus_says_so(library, tmp_path, monkeypatch):
    monkeypatch.setenv("STAND_IN_NVML", str(tmp_path / "none"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    with selectors.DefaultSelector() as selector, pytest.raises(RefusedError, match="NVML lists none"):
        Gpus(selector)


def test_cpu_slots_are_always_open():
    slots, answers = CpuSlots(2), []
    slots.check([0, 1], answers.append)
    assert (slots.names, answers) == (("cpu0", "cpu1"), [""])
    assert [(seen.state, seen.modelled) for seen in slots.seen()] == [(OPEN, True), (OPEN, True)]


@pytest.mark.slow
def test_an_agent_gives_a_job_its_gpu_and_withholds_one_that_others_use(node, rack):
    one = node(devices=None)
    assert one.hello.devices == ("GPU-a", "GPU-b")
    one.run(1, 1, one.capture("/bin/sh", "-c", "echo =$CUDA_VISIBLE_DEVICES="), devices=(1,))
    assert one.ended(1).outcome == FINISHED
    assert one.log(1) == "=GPU-b=\n"
    rack.set(first=(9_000, 90, 70_000, os.getpid()))
    one.until(lambda: one.device[0].state == FOREIGN)
    one.run(2, 1, one.capture("/bin/true"), devices=(0,))
    end = one.ended(2)
    assert (end.state, end.outcome, end.blame) == (ENDED, FAILED, "node")
    assert f"GPU 0: in use by process {os.getpid()}" in end.detail


def test_a_job_that_fails_on_a_gpu_that_was_lost_is_not_to_blame(node, rack, tmp_path):
    one = node(devices=None)
    waits = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 3"
    one.run(1, 1, one.capture("/bin/sh", "-c", waits), devices=(1,))
    one.in_state(1, RUNNING)
    rack.set(second=(450, 999, 70_000))
    one.until(lambda: one.device[1].state == QUARANTINED)
    (tmp_path / "go").touch()
    end = one.ended(1)
    assert (end.outcome, end.exit_code, end.blame) == (FAILED, 3, "node")
    assert end.detail.startswith("exited with 3; device 1: ")


def test_the_agent_loads_neither_torch_nor_what_decides():
    code = ("import sys, brim.agent.agent, brim.agent.__main__; "
            "print(*{name.split('.')[1] for name in sys.modules if name.startswith('brim.')}, 'torch' in sys.modules, "
            "'numpy' in sys.modules)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *rooms, torch, numpy = done.stdout.split()
    assert (set(rooms), torch, numpy) == ({"agent", "gang", "errors"}, "False", "False")
