"""Whom the agent blames for a failed attempt. What the kernel says of a cgroup is given as files of that form."""

import signal
from dataclasses import replace

import pytest

from brim.agent.blame import Resident, blamed, memory_bytes
from brim.agent.effects import AttemptEnd
from brim.agent.protocol import FAILED, OPEN, QUARANTINED, STOPPED, DeviceSeen
from brim.gang.usage import Usage

MIB = 1 << 20
FOUR = tuple(DeviceSeen(device=device, state=OPEN) for device in range(4))
KILLED = AttemptEnd(
    outcome=FAILED, exit_code=137, detail="ended by SIGKILL", blame="job",
    usage=Usage(memory_peak_bytes=300 * MIB, oom_kills=1, oom_at_limit=0),
)


@pytest.fixture
def resident(tmp_path):
    """Make an attempt in a tree with 4,000 MiB; ``anon``: MiB that its processes have now."""
    (tmp_path / "memory.max").write_text(f"{4000 * MIB}\n")

    def make(job, devices, asked_mib=0, anon=0):
        folder = tmp_path / f"job-{job}-1"
        folder.mkdir()
        (folder / "memory.stat").write_text(f"anon {anon * MIB}\nfile {900 * MIB}\nshmem {MIB}\n")
        return Resident(key=(job, 1), devices=devices, mem_mib_per_gpu=asked_mib, cgroup=str(folder))

    return make


def test_memory_that_a_neighbour_took_beyond_its_share_is_its_fault(resident):
    one, other = resident(1, (0,)), resident(2, (1, 2), anon=2500)
    end = blamed(KILLED, one, [resident(3, (3,), anon=999), other], FOUR)
    assert (end.blame, end.exit_code) == ("neighbour", 137)
    assert end.detail == (
        "ended by SIGKILL; it used 300 MiB at most of the 1000 MiB that it may, "
        "job 2 uses 2501 MiB of the 2000 MiB that it may"
    )


def test_memory_that_is_short_though_all_keep_to_theirs_is_a_fault_of_the_node(resident):
    end = blamed(KILLED, resident(1, (0,), asked_mib=400), [resident(2, (1,), asked_mib=3000, anon=2500)], FOUR)
    assert (end.blame, end.detail) == ("node", (
        "ended by SIGKILL; it used 300 MiB at most of the 400 MiB that it may: the machine's memory was short"
    ))


@pytest.mark.parametrize("found", [
    {"memory_peak_bytes": 1001 * MIB},  # more than its share
    {"oom_at_limit": 1},  # its own limit
    {"oom_kills": 0}, {"oom_kills": -1, "oom_at_limit": -1, "memory_peak_bytes": -1},  # a plain signal 9
    {"memory_peak_bytes": -1}, {"oom_at_limit": -1},  # not all was measured
])  # fmt: skip
def test_without_evidence_the_job_is_to_blame(resident, found):
    end = replace(KILLED, usage=replace(KILLED.usage, **found))
    neighbour = resident(2, (1,), anon=3000)
    assert blamed(end, resident(1, (0,)), [neighbour], FOUR).blame == "job"


def test_a_job_that_asked_for_less_than_it_used_is_to_blame(resident):
    end = blamed(KILLED, resident(1, (0,), asked_mib=200), [resident(2, (1,), anon=3000)], FOUR)
    assert (end.blame, end.detail) == ("job", "ended by SIGKILL; it used 300 MiB at most of the 200 MiB that it may")


def test_only_a_failure_is_blamed(resident):
    end = AttemptEnd(outcome=STOPPED, exit_code=137, usage=KILLED.usage)
    assert blamed(end, resident(1, (0,)), [], FOUR) == end


def test_a_device_that_is_lost_is_a_fault_of_the_node(resident):
    devices = (*FOUR[:3], DeviceSeen(device=3, state=QUARANTINED, detail="NVML does not list it any more"))
    end = AttemptEnd(outcome=FAILED, exit_code=1, detail="exited with 1", blame="job")
    assert blamed(end, resident(1, (0, 2)), [], devices) == end
    end = blamed(end, resident(2, (2, 3)), [], devices)
    assert (end.blame, end.detail) == ("node", "exited with 1; device 3: NVML does not list it any more")


def test_the_memory_of_a_machine_is_that_of_its_smallest_limit(tmp_path):
    machine = memory_bytes("")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("5\n")  # its own, which is no share
    (tmp_path / "a" / "memory.max").write_text("max\n")
    assert memory_bytes(str(inner)) == machine
    (tmp_path / "memory.max").write_text(f"{MIB}\n")
    assert memory_bytes(str(inner)) == MIB


def test_a_signal_9_of_which_nobody_knows_why_is_told_as_that(node):
    one = node()
    one.run(1, 1, one.capture("/bin/sh", "-c", "kill -9 $$"))
    end = one.ended(1)
    assert (end.outcome, end.exit_code, end.blame) == (FAILED, 128 + signal.SIGKILL, "job")
    measured = end.oom_kills >= 0
    assert ("if the machine ran out of memory, its kernel log says so" in end.detail) is not measured
