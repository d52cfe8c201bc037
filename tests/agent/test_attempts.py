"""What the agent decides about attempts, under virtual time: no process, no file, no clock."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.agent.attempts import CONNECT_MS, OVERDUE_MS, PLAIN_MS, RETRY_MS, NodeAttempts
from brim.agent.effects import (
    AttemptEnd,
    CheckDevices,
    Forgotten,
    GangSeen,
    Launch,
    Request,
    SendReport,
    Sweep,
    WriteEnd,
    WriteFence,
)
from brim.agent.protocol import (
    ENDED,
    FAILED,
    FINISHED,
    LOST,
    NONE,
    RUNNING,
    STARTING,
    STOPPED,
    STOPPING,
    UNUSABLE,
    AttemptProgress,
    ForgetAttempt,
    ResizeAttempt,
    StartAttempt,
    StopAttempt,
    TuneAttempt,
)
from brim.gang.messages import PreemptRequest, ResizeRequest, TuneSettings
from tests.sampling import sample


def start(job=1, attempt=1, sequence=1, **more):
    more = {"capture": f"{job:032x}", "digest": "d", "devices": (0,), **more}
    return StartAttempt(job=job, attempt=attempt, sequence=sequence, **more)


def stop(job=1, attempt=1, grace_s=5.0, reason="preempted"):
    return StopAttempt(job=job, attempt=attempt, grace_s=grace_s, reason=reason)


def resize(sequence, devices, ranks=None, **more):
    ranks = len(devices) if ranks is None else ranks
    return ResizeAttempt(job=1, attempt=1, sequence=sequence, devices=devices, ranks=ranks, **more)


@dataclass
class Machine:
    """The disk and the processes around ``NodeAttempts``; a crash of the agent leaves them as they are."""

    now_ms: int = 1_000
    fences: dict = field(default_factory=dict)  # by key, the order
    ends: dict = field(default_factory=dict)
    forgotten: set = field(default_factory=set)
    living: dict = field(default_factory=dict)  # by key, whether its supervisor lives, too
    forks: list = field(default_factory=list)
    told: dict = field(default_factory=dict)
    disk_full: bool = False
    unkillable: bool = False

    def __post_init__(self):
        self.boot()

    def boot(self):
        """A new agent on the same machine."""
        self.attempts = NodeAttempts(lambda: self.now_ms, ("cpu0", "cpu1", "cpu2", "cpu3"))
        self.waiting_checks, self.requests = [], []
        for key, order in sorted(self.fences.items()):
            self.attempts.restore(
                order, end=self.ends.get(key), alive=self.living.get(key, False), forgotten=key in self.forgotten
            )
        self.run()

    def obey(self, *orders, refusal=""):
        for order in orders:
            self.attempts.obey(order, refusal)
            self.run()
        return self

    def run(self, most=10**6):
        """Carry out the effects, each at once; ``most``: the agent is killed after so many."""
        while effects := self.attempts.take_effects():
            for effect in effects:
                if most <= 0:
                    return
                most -= 1
                self.carry_out(effect)

    def carry_out(self, effect):
        match effect:
            case SendReport(report):
                self.told[report.job, report.attempt] = report
            case CheckDevices(key=key):
                self.attempts.checked(key, "")
            case WriteFence(order):
                key = order.job, order.attempt
                if self.disk_full:
                    self.attempts.not_written(key, "the disk is full")
                else:
                    assert all(number < key[1] for job, number in self.fences if job == key[0])
                    self.fences[key] = order
                    self.attempts.fenced(key)
            case Launch(order):
                key = order.job, order.attempt
                assert key in self.fences, "forked without a fence"
                assert key not in self.forks, "forked twice"
                others = [other for other in self.living if other[0] == key[0]]
                assert not others, "two live attempts of a job"
                self.forks.append(key)
                self.living[key] = True
                self.attempts.launched(key, self.now_ms)
            case Request():
                self.requests.append(effect.message)
            case Sweep(key):
                if not self.unkillable:
                    self.living.pop(key, None)
                self.attempts.swept(key, (99,) if self.unkillable else ())
            case WriteEnd(key, end):
                assert key not in self.living, "ended with living processes"
                if self.disk_full:
                    self.attempts.not_written(key, "the disk is full")
                else:
                    assert key not in self.ends, "a written end was changed"
                    self.ends[key] = replace(end, is_written=True)
                    self.attempts.end_written(key)
            case Forgotten(key):
                self.forgotten.add(key)

    def supervisor_ends(self, key, end):
        """The supervisor ends; with an end, it has ended the processes and written that before."""
        self.living[key] = False
        if end is not None:
            del self.living[key]
            self.ends[key] = end
        self.attempts.supervisor_ended(key, end)
        self.run()

    def answer(self, refusal=""):
        """The supervisor answers the newest request."""
        self.attempts.answered((1, 1), self.requests[-1].fence[-1], refusal)
        self.run()

    def status(self, key=(1, 1), **gang):
        self.attempts.status(key, GangSeen(**{"has_processes": True, **gang}))
        self.run()

    def state(self, job=1, attempt=1):
        return self.told[job, attempt].state

    def pass_ms(self, ms):
        self.now_ms += ms
        self.attempts.tick()
        self.run()


DONE = AttemptEnd(outcome=FINISHED, exit_code=0, is_written=True)
BROKEN = AttemptEnd(outcome=FAILED, exit_code=3, is_written=True)
SAVED = AttemptEnd(outcome=STOPPED, exit_code=75, is_written=True)


def running(**more):
    machine = Machine().obey(start(**more))
    machine.attempts.connected((1, 1))
    machine.status(is_grouped=True, is_settled=True, ranks=more.get("ranks", 0))
    return machine


def test_an_attempt_from_its_start_to_its_end():
    machine = Machine().obey(start())
    assert (machine.state(), machine.forks) == (STARTING, [(1, 1)])
    machine.status()
    assert machine.state() == RUNNING
    machine.now_ms += 2_000
    machine.supervisor_ends((1, 1), DONE)
    seen = machine.told[1, 1]
    assert (seen.state, seen.outcome, seen.exit_code, seen.devices) == (ENDED, FINISHED, 0, ())
    machine.obey(ForgetAttempt(job=1, attempt=1))
    assert machine.attempts.seen() == []
    machine.obey(start(attempt=2))
    assert (machine.told[1, 2].outcome, machine.forks) == (UNUSABLE, [(1, 1)])


def test_energy_of_a_device_is_divided_equally_among_its_attempts_and_told_at_the_end():
    machine = Machine().obey(start(devices=(0, 1)), start(job=2, devices=(1,)))
    machine.attempts.used({0: 10.0, 1: 6.0, 3: 100.0})
    machine.supervisor_ends((2, 1), DONE)
    machine.attempts.used({0: 1.0, 1: 4.0})
    assert machine.told[1, 1].gpu_energy_j == NONE
    machine.supervisor_ends((1, 1), DONE)
    assert machine.told[1, 1].gpu_energy_j == 10 + 3 + 1 + 4
    assert machine.told[2, 1].gpu_energy_j == 3


def test_energy_is_not_known_where_nothing_measures_it_or_the_agent_was_started_meanwhile():
    machine = Machine().obey(start(), start(job=2, devices=(1,)))
    machine.attempts.used({1: 5.0})
    machine.supervisor_ends((1, 1), DONE)
    assert machine.told[1, 1].gpu_energy_j == NONE
    machine.boot()
    machine.attempts.used({1: 5.0})
    machine.supervisor_ends((2, 1), DONE)
    assert machine.told[2, 1].gpu_energy_j == NONE


def test_an_attempt_that_is_not_above_all_before_is_never_started():
    machine = Machine().obey(start(attempt=3))
    machine.supervisor_ends((1, 3), BROKEN)
    machine.obey(ForgetAttempt(job=1, attempt=3), start(attempt=3), start(attempt=2))
    assert machine.forks == [(1, 3)]
    assert (machine.told[1, 2].outcome, machine.told[1, 2].state) == (LOST, ENDED)
    machine.boot()
    machine.obey(start(attempt=3))
    assert machine.forks == [(1, 3)]


def test_a_refused_capture_stays_refused_when_it_appears_later():
    machine = Machine().obey(start(), refusal="no such capture")
    assert (machine.told[1, 1].outcome, machine.told[1, 1].detail) == (UNUSABLE, "no such capture")
    machine.obey(start())
    machine.boot()
    machine.obey(start())
    assert machine.forks == []


def test_a_capture_serves_one_job_only_also_after_a_restart():
    machine = Machine().obey(start(job=1, capture="c"))
    machine.boot()
    machine.obey(start(job=2, capture="c"))
    assert (machine.told[2, 1].outcome, machine.forks) == (UNUSABLE, [(1, 1)])


def test_a_capture_of_an_array_serves_one_job_for_each_index_also_after_a_restart():
    machine = Machine().obey(start(job=1, capture="c", index=0)).obey(start(job=2, capture="c", index=1, devices=(1,)))
    machine.boot()
    machine.obey(start(job=3, capture="c", index=1, devices=(2,)))
    assert "belongs to another job" in machine.told[3, 1].detail
    assert (machine.told[3, 1].outcome, machine.forks) == (UNUSABLE, [(1, 1), (2, 1)])


@pytest.mark.parametrize("devices", [(4,), (-2,), (0, 0), (-1, 0)])
def test_devices_that_do_not_exist_or_twice_are_refused(devices):
    machine = Machine().obey(start(devices=devices, ranks=len(devices)))
    assert (machine.told[1, 1].outcome, machine.forks) == (UNUSABLE, [])


def test_a_start_waits_while_a_process_of_an_older_attempt_may_live():
    machine = running()
    machine.obey(start(attempt=2))
    assert (machine.state(1, 2), machine.told[1, 2].detail) == (STARTING, "waits for the end of attempt 1")
    machine.supervisor_ends((1, 1), SAVED)
    assert machine.forks == [(1, 1), (1, 2)]


def test_a_start_that_waited_is_void_once_the_job_has_finished():
    machine = running()
    machine.obey(start(attempt=2))
    machine.supervisor_ends((1, 1), DONE)
    assert (machine.told[1, 2].outcome, machine.forks) == (UNUSABLE, [(1, 1)])


def test_a_stop_before_the_start_prevents_it():
    machine = Machine().obey(stop(), start())
    assert (machine.told[1, 1].outcome, machine.forks) == (STOPPED, [])
    machine.boot()
    machine.obey(start())
    assert machine.forks == []


def test_a_stop_while_it_starts_is_asked_as_soon_as_the_supervisor_answers():
    machine = Machine().obey(start(), stop(grace_s=5))
    assert machine.requests == []
    machine.now_ms += 2_000
    machine.attempts.connected((1, 1))
    machine.status()
    (request,) = machine.requests
    assert isinstance(request, PreemptRequest)
    assert (request.grace_s, request.fence[:2]) == (3.0, (1, 1))


def test_a_repeated_stop_is_asked_once_and_a_shorter_one_again():
    machine = running()
    machine.obey(stop(grace_s=9), stop(grace_s=9))
    assert (machine.state(), len(machine.requests)) == (STOPPING, 1)
    machine.obey(stop(grace_s=1))
    assert [request.grace_s for request in machine.requests] == [9, 1]


def test_a_supervisor_that_does_not_end_in_time_is_killed_with_its_processes():
    machine = running()
    machine.obey(stop(grace_s=1))
    machine.pass_ms(1_000 + OVERDUE_MS - 1)
    assert machine.state() == STOPPING
    machine.pass_ms(1)
    assert (machine.state(), machine.told[1, 1].outcome) == (ENDED, STOPPED)


def test_a_supervisor_that_never_listens_is_killed():
    machine = Machine().obey(start())
    machine.pass_ms(CONNECT_MS)
    ended = machine.told[1, 1]
    assert (ended.outcome, ended.blame, ended.detail) == (LOST, "node", "its supervisor did not answer")


def test_a_node_is_to_blame_for_a_lost_attempt_unless_its_agent_saw_the_supervisor_end():
    machine = Machine().obey(start(), start(job=2, devices=(1,)))
    machine.supervisor_ends((1, 1), None)
    machine.living[2, 1] = False
    machine.boot()
    told = [(machine.told[key].outcome, machine.told[key].blame, machine.told[key].detail) for key in ((1, 1), (2, 1))]
    assert told == [
        (LOST, "", "its supervisor was killed"), (LOST, "node", "its supervisor was gone when its agent started"),
    ]


def test_an_attempt_ends_only_when_its_processes_are_gone():
    machine = running()
    machine.unkillable = True
    machine.supervisor_ends((1, 1), None)
    assert (machine.state(), machine.told[1, 1].detail) == (STOPPING, "still running after SIGKILL: processes 99")
    assert machine.attempts.stuck_devices() == {0: machine.told[1, 1].detail}
    machine.obey(start(attempt=2), ForgetAttempt(job=1, attempt=1))
    assert machine.forks == [(1, 1)]
    machine.unkillable = False
    machine.pass_ms(RETRY_MS)
    assert machine.attempts.stuck_devices() == {}
    assert (machine.told[1, 1].outcome, machine.told[1, 1].blame) == (LOST, "")
    assert machine.forks == [(1, 1), (1, 2)]


def test_a_full_disk_starts_nothing_and_ends_nothing_until_there_is_room():
    machine = Machine(disk_full=True).obey(start())
    assert (machine.forks, machine.told[1, 1].detail) == ([], "the disk is full")
    machine.disk_full = False
    machine.pass_ms(RETRY_MS)
    assert machine.forks == [(1, 1)]
    machine.disk_full = True
    machine.supervisor_ends((1, 1), None)
    assert machine.state() == STOPPING
    machine.disk_full = False
    machine.pass_ms(RETRY_MS)
    assert machine.told[1, 1].outcome == LOST


def test_an_unhealthy_device_fails_the_attempt_and_the_node_is_to_blame():
    machine = Machine()
    machine.attempts.obey(start())
    machine.attempts.checked((1, 1), "GPU 0 does not answer")
    machine.attempts.take_effects()  # the check itself
    machine.attempts.checked((1, 1), "")
    machine.attempts.fenced((1, 1))
    machine.run()
    assert (machine.told[1, 1].outcome, machine.told[1, 1].blame, machine.forks) == (FAILED, "node", [])


def test_a_resize_holds_when_the_gang_has_settled_on_its_devices():
    machine = running(devices=(0, 1), ranks=2)
    machine.obey(resize(5, (0, 1, 2, 3), batch=64))
    (request,) = machine.requests
    assert request == ResizeRequest(4, ("cpu0", "cpu1", "cpu2", "cpu3"), (1, 1, 10))
    assert (machine.told[1, 1].sequence, machine.told[1, 1].devices) == (1, (0, 1, 2, 3))
    machine.answer()
    assert machine.requests[-1] == TuneSettings(global_batch=64, fence=(1, 1, 11))
    machine.answer()
    machine.status(is_grouped=True, is_settled=False, sequence=11, ranks=2)
    assert machine.told[1, 1].sequence == 1
    machine.status(is_grouped=True, is_settled=True, sequence=11, ranks=4, devices=(0, 1, 2, 3))
    assert (machine.told[1, 1].sequence, machine.told[1, 1].ranks) == (5, 4)
    machine.obey(resize(4, (0, 1)), resize(5, (0, 1)))
    assert len(machine.requests) == 2


def test_devices_of_both_sizes_are_held_until_a_smaller_gang_has_settled():
    machine = running(devices=(0, 1, 2, 3), ranks=4)
    machine.obey(resize(2, (2, 3)))
    assert machine.told[1, 1].devices == (0, 1, 2, 3)
    machine.answer()
    machine.status(is_grouped=True, is_settled=True, sequence=4, ranks=2, devices=(2, 3))
    assert machine.told[1, 1].devices == (2, 3)


def test_a_refused_resize_is_told_with_the_reason_and_the_old_devices():
    machine = running(devices=(0, 1), ranks=2)
    machine.obey(resize(5, (0, 1, 2)))
    machine.answer("found size 3, expected one of [1, 2, 4]")
    assert (machine.told[1, 1].sequence, machine.told[1, 1].devices) == (1, (0, 1, 2))
    machine.status(is_grouped=True, is_settled=True, ranks=2, devices=(0, 1))
    seen = machine.told[1, 1]
    assert (seen.sequence, seen.devices, seen.detail[:11]) == (5, (0, 1), "not resized")


def test_a_plain_process_is_not_resized_but_may_be_tuned():
    machine = running()
    machine.obey(resize(5, (0, 1)))
    assert (machine.requests, machine.told[1, 1].sequence) == ([], 5)
    machine.obey(TuneAttempt(job=1, attempt=1, sequence=6, loader_workers=3))
    assert machine.requests == [TuneSettings(loader_workers_max=3, fence=(1, 1, 13))]


def test_orders_wait_for_the_supervisor_and_are_asked_again_after_a_lost_connection():
    machine = Machine().obey(start(devices=(0, 1), ranks=2), resize(5, (0,)))
    machine.attempts.connected((1, 1))
    machine.status(is_grouped=False)
    assert machine.requests == []
    machine.status(is_grouped=True, is_settled=True, ranks=2)
    assert len(machine.requests) == 1
    machine.attempts.disconnected((1, 1))
    machine.attempts.connected((1, 1))
    machine.status(is_grouped=True, is_settled=True, ranks=2)
    assert machine.requests[0] == machine.requests[1] == ResizeRequest(1, ("cpu0",), (1, 1, 10))


def test_a_new_agent_knows_the_newest_order_from_the_supervisor():
    machine = running(devices=(0, 1), ranks=2)
    machine.obey(resize(7, (0, 1, 2)))
    machine.boot()
    machine.attempts.connected((1, 1))
    machine.status(is_grouped=True, is_settled=False, sequence=14, ranks=2, devices=(0, 1))
    assert (machine.told[1, 1].sequence, machine.state()) == (1, RUNNING)
    machine.status(is_grouped=True, is_settled=True, sequence=14, ranks=3, devices=(0, 1, 2))
    assert (machine.told[1, 1].sequence, machine.told[1, 1].devices) == (7, (0, 1, 2))
    machine.obey(resize(6, (0,)))
    assert [request.fence for request in machine.requests] == []


def test_a_new_agent_asks_for_nothing_that_is_older_than_what_the_last_one_has_asked():
    machine = running(devices=(0, 1), ranks=2, batch=64)
    machine.obey(resize(7, (0, 1, 2)))
    machine.boot()
    machine.attempts.connected((1, 1))
    machine.obey(stop(grace_s=9))
    assert machine.requests == []
    machine.status(is_grouped=True, is_settled=True, sequence=14, ranks=3, devices=(0, 1, 2))
    assert machine.requests == [PreemptRequest(9.0, (1, 1, 15))]


def test_an_end_that_was_written_just_before_the_sweep_is_the_end():
    attempts = NodeAttempts(lambda: 0, ("cpu0",))
    attempts.restore(start(), end=None, alive=False, forgotten=False)
    attempts.swept((1, 1), (), written=DONE)
    (seen,) = attempts.seen()
    assert (seen.state, seen.outcome) == (ENDED, FINISHED)


@pytest.mark.parametrize("grace_s", [float("nan"), float("inf"), -1.0])
def test_a_grace_that_is_no_time_starts_nothing(grace_s):
    machine = Machine().obey(start(grace_s=grace_s))
    assert (machine.told[1, 1].outcome, machine.forks) == (UNUSABLE, [])


# -- properties --------------------------------------------------------------------------------------------------------

ORDERS = st.one_of(
    st.builds(start, job=st.integers(1, 2), attempt=st.integers(1, 4), sequence=st.integers(1, 9)),
    st.builds(stop, job=st.integers(1, 2), attempt=st.integers(1, 4), grace_s=st.sampled_from([0.0, 1.0, 9.0])),
    st.builds(ForgetAttempt, job=st.integers(1, 2), attempt=st.integers(1, 4)),
)


@settings(max_examples=sample(200, 60))
@given(st.data())
def test_whatever_happens_a_job_never_has_two_live_attempts_and_every_end_is_final(data):
    """Orders in any order, ends, kills of supervisors, crashes of the agent between any two effects, full disks.

    The machine asserts: no fork without a fence, no second fork of an attempt, no two live attempts of a job, no end
    while processes live, no end written twice.
    """
    machine, finals, finished = Machine(), {}, set()
    for _ in range(data.draw(st.integers(1, 30))):
        what = data.draw(st.sampled_from(["order", "order", "order", "end", "crash", "disk", "time", "status"]))
        if what == "order":
            machine.attempts.obey(data.draw(ORDERS))
            if data.draw(st.integers(0, 5)) == 0:  # the agent is killed on its way
                machine.run(most=data.draw(st.integers(0, 4)))
                machine.boot()
        elif what == "end" and machine.living:
            key = data.draw(st.sampled_from(sorted(machine.living)))
            end = data.draw(st.sampled_from([DONE, BROKEN, SAVED, None]))
            if machine.living[key]:
                machine.supervisor_ends(key, end)
        elif what == "crash":
            machine.boot()
        elif what == "disk":
            machine.disk_full = not machine.disk_full
        elif what == "time":
            machine.pass_ms(data.draw(st.sampled_from([10, RETRY_MS, OVERDUE_MS, CONNECT_MS])))
        elif what == "status" and machine.living:
            key = data.draw(st.sampled_from(sorted(machine.living)))
            machine.status(key)
        machine.run()
        finished |= {key[0] for key, end in machine.ends.items() if end.outcome == FINISHED}
        for key, report in machine.told.items():
            if report.state == ENDED and key in machine.ends and key not in machine.forgotten:
                plain = report.outcome, report.exit_code
                assert finals.setdefault(key, plain) == plain
                assert key not in machine.living
    before = list(machine.forks)
    machine.obey(*[start(job=job, attempt=9) for job in sorted(finished)])
    assert machine.forks == before, "a finished job was started again"


@settings(max_examples=sample(100, 30))
@given(st.lists(ORDERS, max_size=8), st.data())
def test_a_repeated_order_changes_nothing(orders, data):
    once, twice = Machine(), Machine()
    sent = []
    for order in orders:
        once.obey(order)
        sent.append(order)
        twice.obey(order)
        if not isinstance(order, ForgetAttempt):
            twice.obey(order)
    assert (once.forks, once.fences, once.living) == (twice.forks, twice.fences, twice.living)
    assert {k: e.outcome for k, e in once.ends.items()} == {k: e.outcome for k, e in twice.ends.items()}


@settings(max_examples=sample(100, 30))
@given(st.data())
def test_lost_late_and_repeated_messages_end_the_same(data):
    """One attempt that is started and stopped, told until it holds: whichever copies arrive, in whichever order."""
    machine = Machine()
    copies = data.draw(st.lists(st.sampled_from([start(), stop(grace_s=0)]), max_size=6))
    for order in copies:
        machine.obey(order)
    machine.obey(start(), stop(grace_s=0))  # the controller repeats what it has not seen to hold
    if (1, 1) in machine.living:
        machine.supervisor_ends((1, 1), SAVED)
    assert machine.ends[1, 1].outcome == STOPPED
    assert len(machine.forks) <= 1
    for order in (*copies, stop(), start()):
        machine.obey(order)
    assert machine.told[1, 1].outcome == STOPPED
    assert (machine.told[1, 1].state, machine.living) == (ENDED, {})
    assert machine.told[1, 1].sequence in (1, NONE)


@pytest.mark.parametrize(("ranks", "seen", "begins"), [
    (0, GangSeen(has_processes=True), True),
    (1, GangSeen(has_processes=True, is_speaking=True, is_grouped=True), False),
    (1, GangSeen(has_processes=True, is_speaking=True, progress=AttemptProgress(job=1, attempt=1, ranks=1)), True),
])
def test_a_plain_process_begins_at_once_and_a_gang_with_its_first_step(ranks, seen, begins):
    machine = Machine().obey(start(ranks=ranks))
    machine.attempts.status((1, 1), seen)
    machine.run()
    told = machine.told[1, 1]
    assert (told.state, told.has_begun) == (RUNNING, begins)


def test_a_gang_that_never_speaks_has_begun_after_a_while():
    machine = Machine().obey(start(ranks=1))
    for after_ms, begins in ((PLAIN_MS - 1, False), (1, True)):
        machine.now_ms += after_ms
        machine.attempts.status((1, 1), GangSeen(has_processes=True))
        machine.run()
        assert machine.told[1, 1].has_begun == begins
