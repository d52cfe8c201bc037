"""What the controller decides about the processes of a gang, without any process, socket or clock."""

import re
import signal
from pathlib import Path

import pytest

from brim.gang import client_requests, rank_messages
from brim.gang.actions import HoldTracebacks, KillRank, Log, Send, StartRank, TerminateRank
from brim.gang.controller import GangController
from brim.gang.launch_config import LaunchConfig
from brim.gang.messages import (
    Failed,
    Finished,
    FormGroup,
    GroupBroken,
    GroupFormed,
    Hello,
    KillRequest,
    Leaving,
    MemberLost,
    Prepare,
    Ready,
    ResizeGroup,
    ResizeRequest,
    Saved,
    StatusRequest,
    StepMeasurements,
    Stop,
    StopRequest,
    TrainingProgress,
    TuneSettings,
    Waiting,
)
from brim.gang.rank_process import RankProcess
from brim.gang.zygote_events import ProcessStarted


class Gang:
    """A controller whose clock stands at ``now_s``; its ranks are records only."""

    def __init__(self, nproc, **options):
        self.now_s = 100.0
        config = LaunchConfig(("true",), nproc, "/nowhere", "/", **options)
        self.controller = GangController(config, "a-gang", lambda: self.now_s)
        self.controller.begin()

    def actions(self, *kinds):
        """What is to be done now, of these kinds; the rest is dropped."""
        actions = self.controller.take_actions()
        return [action for action in actions if not kinds or isinstance(action, kinds)]

    def texts(self):
        return [action.text for action in self.actions(Log)]

    def message(self, rank, message):
        rank_messages.handle(self.controller, self.controller.ranks[rank], message)

    def start(self, rank):
        self.controller.started(ProcessStarted(rank, 1000 + rank, 50 + rank, "fork", ""))

    def connect(self, rank):
        assert rank_messages.accept_hello(self.controller, Hello(rank, 1000 + rank), 1000 + rank) == ""

    def request(self, request):
        refusal = client_requests.accept(self.controller, request)
        return client_requests.respond(self.controller, request, refusal, {"supervisor": 7})

    def state(self):
        return self.request(StatusRequest()).status["state"]


def trained(nproc, **options):
    """A gang whose ranks have all joined the first group."""
    gang = Gang(nproc, **options)
    for rank in range(nproc):
        gang.start(rank)
        gang.connect(rank)
        gang.message(rank, Ready(rank))
    for rank in range(nproc):
        gang.message(rank, GroupFormed(1, 0))
    gang.actions()
    return gang


def test_the_first_ranks_are_started_and_formed_once_all_are_ready():
    gang = Gang(2)
    assert gang.actions() == [StartRank(0), StartRank(1)]
    for rank in range(2):
        gang.start(rank)
        gang.connect(rank)
        assert gang.actions() == []
        gang.message(rank, Ready(rank))
    form = FormGroup(1, (0, 1), 0, 1)
    assert gang.actions() == [Send(0, form), Send(1, form)]


@pytest.mark.parametrize(("hello", "peer_pid", "refusal"), [
    (Hello(0, 1), 1, "connected already"), (Hello(7, 1), 1, "found id 7"),
    (Hello(0, 1, "other"), 1, "found gang other"),
])  # fmt: skip
def test_a_stranger_is_not_accepted_as_a_rank(hello, peer_pid, refusal):
    gang = trained(1)
    assert refusal in rank_messages.accept_hello(gang.controller, hello, peer_pid)


def test_a_rank_that_reconnects_is_accepted_and_told_of_the_stop():
    gang = trained(1)
    gang.request(StopRequest())
    assert gang.actions() == [Send(0, Stop(2))]
    gang.connect(0)
    assert gang.actions() == [Send(0, Stop(2))]


def test_a_rank_that_reconnects_is_told_of_settings_that_it_may_have_missed():
    gang = trained(2)
    gang.request(TuneSettings(prefetch=3))
    gang.actions()
    gang.connect(1)
    assert gang.actions() == [Send(1, TuneSettings(2, prefetch=3))]
    gang.request(StopRequest())
    gang.actions()
    gang.connect(1)
    assert gang.actions() == [Send(1, TuneSettings(2, prefetch=3)), Send(1, Stop(3))]


def test_a_preempted_rank_gets_a_message_then_sigterm_then_sigkill():
    gang = trained(1, grace_s=30.0, term_s=5.0)
    gang.controller.preempt()
    assert gang.actions() == [Send(0, Prepare(2, 25.0))]
    assert gang.controller.next_signal_in_s() == 25.0
    gang.controller.send_due_signals()
    assert gang.actions() == []
    gang.now_s += 25.0
    gang.controller.send_due_signals()
    assert gang.actions() == [TerminateRank(0)]
    gang.now_s += 5.0
    gang.controller.send_due_signals()
    assert gang.actions(TerminateRank, KillRank) == [KillRank(0)]
    gang.controller.exited(0, -signal.SIGKILL)
    assert gang.controller.result().exit_code == 75


def test_a_second_interrupt_kills_at_once():
    gang = trained(2)
    gang.controller.handle_signal(signal.SIGINT)
    gang.actions()
    gang.controller.handle_signal(signal.SIGINT)
    gang.controller.send_due_signals()
    killed = gang.actions(TerminateRank, KillRank)
    assert killed == [TerminateRank(0), KillRank(0), TerminateRank(1), KillRank(1)]


def test_a_rank_that_is_asked_to_exit_before_it_has_started_gets_its_signal_when_it_has():
    gang = Gang(1)
    gang.controller.preempt(10.0)
    gang.controller.send_due_signals()
    assert not gang.actions(TerminateRank, KillRank)
    assert gang.controller.next_signal_in_s() == float("inf")  # there is no process to wake up for
    gang.start(0)
    gang.controller.send_due_signals()
    assert gang.actions(TerminateRank) == [TerminateRank(0)]


def test_the_others_continue_without_a_killed_rank_and_fail_with_one_that_exits_by_itself():
    gang = trained(3)
    gang.controller.exited(1, -signal.SIGKILL)
    assert gang.actions(Send) == [Send(0, MemberLost(1)), Send(2, MemberLost(1))]
    gang.controller.exited(2, 3)
    assert gang.controller.failing
    gang.controller.exited(0, 0)
    result = gang.controller.result()
    assert (result.status, result.exit_code) == ("failed", 3)
    assert result.detail == "rank 2 failed first: exited with 3"


def test_an_exception_fails_the_gang_and_its_rank_is_the_cause_though_others_exit_before():
    gang = trained(2, failure_grace_s=4.0)
    gang.message(1, Failed("ValueError: mine\n"))
    assert HoldTracebacks() in gang.actions()
    assert gang.controller.next_signal_in_s() == 0.5
    gang.now_s += 0.1
    gang.controller.exited(0, 1)
    gang.now_s += 0.1
    gang.controller.exited(1, 1)
    assert [rank.id for rank in gang.controller.failed_ranks()] == [1, 0]
    assert gang.controller.failed_ranks()[0].traceback == "ValueError: mine\n"


def test_a_killed_rank_is_the_first_cause_though_its_end_is_seen_after_another_s_exception():
    gang = trained(2)
    gang.controller.exited(1, 1)
    gang.now_s += 0.1
    gang.controller.exited(0, -signal.SIGKILL)
    assert gang.controller.result().detail == "rank 0 failed first: ended by SIGKILL"


def test_a_rank_that_is_killed_long_after_another_s_exception_is_not_the_cause():
    gang = trained(2)
    gang.message(0, Failed("ValueError: mine\n"))
    gang.now_s += 3.0
    gang.controller.exited(1, -signal.SIGSEGV)
    gang.controller.exited(0, 1)
    assert [rank.id for rank in gang.controller.failed_ranks()] == [0, 1]


def test_a_gang_of_a_fixed_size_fails_without_a_killed_rank():
    gang = Gang(2)
    for rank in range(2):
        gang.start(rank)
        gang.connect(rank)
        gang.message(rank, Ready(rank, (2,)))
    for rank in range(2):
        gang.message(rank, GroupFormed(1, 0))
    gang.controller.exited(0, -signal.SIGKILL)
    assert gang.controller.failing


def test_a_rank_that_died_long_ago_does_not_count_among_those_that_may_be_replaced():
    gang = trained(2, replacements_max=2, replacement_window_s=60.0, keeps_size=True)
    for lost, after_s in ((1, 0.0), (2, 40.0), (3, 40.0)):  # never three within a minute
        gang.now_s += after_s
        gang.controller.exited(lost, -signal.SIGKILL)
        new = lost + 1
        assert StartRank(new) in gang.actions()
        gang.start(new)
        gang.connect(new)
        gang.message(new, Ready(new))
        gang.message(0, GroupBroken(gang.controller.membership.generation, 5))
        for rank in (0, new):
            gang.message(rank, GroupFormed(gang.controller.membership.generation, 5))
    loss = "rank 3 (process 1003) ended by SIGKILL and was replaced, 2 of at most 2 within 1 min"
    assert gang.request(StatusRequest()).status["loss"] == loss
    gang.controller.exited(4, -signal.SIGKILL)
    assert gang.controller.failing
    gang.controller.exited(0, 1)
    assert gang.controller.result().detail == "rank 4 failed first: ended by SIGKILL; 2 ranks had been replaced"
    assert gang.controller.result().exit_code == 137


def test_a_rank_that_leaves_the_loop_while_another_needs_it_fails_the_gang():
    gang = trained(2)
    gang.message(0, Finished(5, together=False))
    gang.controller.exited(0, 0)
    assert not gang.controller.failing
    gang.message(1, GroupBroken(1, 7))
    assert gang.controller.failing
    gang.controller.exited(1, 0)
    assert "rank 0 left the training loop after step 5 and ended, while rank 1" in gang.controller.result().detail


@pytest.mark.parametrize(("for_s", "fails"), [(9.0, False), (11.0, True)])
def test_ranks_that_wait_in_different_places_fail_the_gang(for_s, fails):
    gang = trained(2)
    gang.message(0, Waiting(1, 3, for_s))
    gang.message(1, Waiting(1, 4, for_s))
    assert gang.controller.failing is fails
    if fails:
        gang.controller.exited(0, -signal.SIGTERM)
        gang.controller.exited(1, -signal.SIGTERM)
        assert "(rank 0 in step 4, rank 1 in step 5)" in gang.controller.result().detail


def test_a_hung_rank_is_killed_once_all_others_have_waited_long_enough():
    gang = trained(3, hang_timeout_s=60.0)
    gang.message(2, TrainingProgress(8, 64))
    for rank in (0, 1):
        gang.message(rank, Waiting(1, 9, 59.0))
    gang.controller.kill_hung_ranks()
    assert gang.actions() == []
    gang.now_s += 1.0
    gang.controller.kill_hung_ranks()
    text, kill = gang.actions()
    assert text == Log("rank 2 (process 1002) hangs: all other ranks have waited for 60 s, in step 9; SIGKILL")
    assert kill == KillRank(2)


def test_a_signal_to_one_rank_preempts_all():
    gang = trained(2)
    gang.message(0, Leaving(0, 4))
    assert gang.controller.announced
    assert {action.rank for action in gang.actions(Send) if isinstance(action.message, Prepare)} == {0, 1}
    assert gang.state() == "preempting"


def test_settings_that_a_new_group_makes_void_are_sent_again_unless_they_were_applied():
    gang = trained(2)
    assert gang.request(TuneSettings(global_batch=64)).ok
    gang.request(TuneSettings(command=9, prefetch=3))  # a client's number has no meaning
    assert {action.message.command for action in gang.actions(Send)} == {2, 3}
    gang.controller.exited(1, -signal.SIGKILL)
    gang.message(0, GroupBroken(1, 5))
    assert gang.actions(Send)[-1] == Send(0, FormGroup(2, (0,), 0, 4))
    gang.message(0, GroupFormed(2, 5, tuned=2))
    assert gang.actions(Send) == [Send(0, TuneSettings(5, prefetch=3))]


def test_a_request_that_cannot_be_carried_out_is_refused_with_the_reason():
    gang = trained(2)
    assert gang.request(TuneSettings(prefetch=0)).detail == "tune: found prefetch 0, expected at least 1"
    assert gang.request(KillRequest(9)).detail == "found id 9, expected one of [0, 1]"
    assert gang.request(ResizeRequest(0)).detail == "found size 0, expected at least 1"
    assert gang.request(ResizeRequest(129)).detail == "found size 129, expected at most 128"
    assert gang.actions() == []


def devices_of(gang):
    """Devices of the ranks that have not been asked to leave, and what a joiner on each would see."""
    return {rank.id: (rank.device, rank.slot) for rank in gang.controller.ranks.values() if rank.alive}


def test_ranks_that_join_get_the_devices_named_in_the_request():
    gang = trained(2, devices=("a", "b"))
    assert gang.request(ResizeRequest(4, ("a", "b", "e", "f"))).ok
    assert gang.actions(StartRank) == [StartRank(2), StartRank(3)]
    assert devices_of(gang) == {0: ("a", 0), 1: ("b", 1), 2: ("e", 2), 3: ("f", 3)}
    assert not gang.controller.is_settled()


def test_ranks_on_devices_that_are_not_named_any_more_leave_and_the_others_stay():
    gang = trained(4, devices=("a", "b", "c", "d"))
    assert gang.request(ResizeRequest(2, ("c", "d"))).ok
    assert gang.actions(Send)[-1] == Send(3, ResizeGroup(2, 2, (2, 3), 2))
    assert devices_of(gang) == {0: ("a", -1), 1: ("b", -1), 2: ("c", 0), 3: ("d", 1)}
    for rank in (2, 3):
        gang.message(rank, GroupFormed(2, 5))
    assert not gang.controller.is_settled()
    for rank in (0, 1):
        gang.message(rank, Leaving(1, 5))
        gang.controller.exited(rank, 0)
        gang.controller.ranks[rank].cleanup_since_s = None
    assert gang.controller.is_settled()


def test_a_gang_moves_to_devices_of_which_it_has_one_already():
    gang = trained(2, devices=("a", "b"))
    assert gang.request(ResizeRequest(2, ("c", "b"))).ok
    assert gang.actions(StartRank) == [StartRank(2)]
    assert devices_of(gang) == {0: ("a", -1), 1: ("b", 1), 2: ("c", 0)}
    gang.start(2)
    gang.connect(2)
    gang.message(2, Ready(2))
    assert ResizeGroup(2, 2, (1, 2), 1) in [send.message for send in gang.actions(Send)]


def test_a_gang_moves_to_devices_of_which_it_has_none():
    gang = trained(2, devices=("a", "b"))
    assert gang.request(ResizeRequest(1, ("c",))).ok
    assert gang.actions(StartRank) == [StartRank(2)]
    assert devices_of(gang) == {0: ("a", -1), 1: ("b", -1), 2: ("c", 0)}
    gang.start(2)
    gang.connect(2)
    gang.message(2, Ready(2))
    assert ResizeGroup(2, 2, (0, 1, 2), 0) in [send.message for send in gang.actions(Send)]
    for rank in (0, 1, 2):
        gang.message(rank, GroupFormed(2, 5))
    assert ResizeGroup(3, 3, (2,), 2) in [send.message for send in gang.actions(Send)]
    assert not gang.controller.is_settled()


def test_devices_and_ranks_must_fit():
    gang = trained(2, devices=("a", "b"))
    assert "found 1 device for 2 ranks" in gang.request(ResizeRequest(2, ("a",))).detail


def test_a_request_for_another_gang_or_an_older_or_repeated_one_changes_nothing():
    gang = trained(2, devices=("a", "b"), fence=(7, 3))
    four = ("a", "b", "c", "d")
    detail = gang.request(ResizeRequest(4, four, (7, 2, 9))).detail
    assert "found a request for (7, 2), expected one for (7, 3)" in detail
    assert gang.request(ResizeRequest(4, four, (7, 3, 9))).ok
    assert len(gang.actions(StartRank)) == 2
    assert gang.request(ResizeRequest(4, four, (7, 3, 9))).ok
    assert "expected one that is not older than 9" in gang.request(ResizeRequest(2, (), (7, 3, 8))).detail
    assert not gang.actions(StartRank, Send)
    assert gang.request(StatusRequest()).status["sequence"] == 9


def test_an_agent_says_the_most_ranks_and_a_person_how_many():
    gang = trained(2, devices=("a", "b"), fence=(7, 3))
    gang.controller.membership.sizes = frozenset({1, 2, 4})
    three, five = ("a", "b", "c"), ("a", "b", "c", "d", "e")
    assert "found size 3, expected one of [1, 2, 4]" in gang.request(ResizeRequest(3, three)).detail
    assert gang.request(ResizeRequest(3, three, (7, 3, 9))).ok
    assert (gang.controller.membership.target, gang.controller.devices, gang.actions(StartRank)) == (2, three, [])
    assert gang.request(ResizeRequest(5, five, (7, 3, 10))).ok
    assert (gang.controller.membership.target, len(gang.actions(StartRank))) == (4, 2)


def test_a_rank_that_cannot_be_started_is_named_in_the_response_and_the_others_continue():
    gang = trained(2)
    refusal = client_requests.accept(gang.controller, ResizeRequest(4))
    assert gang.actions() == [StartRank(2), StartRank(3)]
    for rank in (2, 3):
        gang.controller.start_failed(rank, 126, "no room")
    response = client_requests.respond(gang.controller, ResizeRequest(4), refusal, {})
    assert (response.ok, response.detail) == (False, "rank 3: no room")
    assert gang.controller.membership.target == 2
    assert not gang.controller.failing


def test_ranks_that_a_lost_zygote_has_not_started_are_started_again_and_others_are_left_alone():
    gang = Gang(2)
    gang.actions()
    gang.start(0)
    gang.controller.zygote_lost()
    assert gang.actions(KillRank, StartRank) == [KillRank(1), StartRank(1)]


def test_ranks_that_a_lost_zygote_has_not_started_are_given_up_when_the_gang_ends():
    gang = Gang(1)
    gang.controller.preempt()
    gang.actions()
    gang.controller.zygote_lost()
    assert gang.actions(KillRank, StartRank) == [KillRank(0)]
    assert not gang.controller.running
    assert gang.controller.result().exit_code == 75


def test_the_status_names_the_state_of_every_rank():
    gang = trained(1)
    status = gang.request(StatusRequest()).status
    assert (status["generation"], status["members"], status["supervisor"]) == (1, [0], 7)
    assert {name: status["ranks"][0][name] for name in ("id", "pid", "state", "start_method", "alive")} == {
        "id": 0, "pid": 1000, "state": "joined", "start_method": "fork", "alive": True,
    }  # fmt: skip


def test_the_status_of_a_gang_that_has_had_thousands_of_ranks_shows_those_that_live_and_the_newest():
    gang = trained(1)
    ranks = gang.controller.ranks
    ranks |= {number: RankProcess(number, 0, exited=True) for number in range(1, 3_000)}
    shown = [rank["id"] for rank in gang.request(StatusRequest()).status["ranks"]]
    assert shown == [0, *range(3_000 - client_requests.RANKS_SHOWN, 3_000)]


def test_the_document_explains_every_field_of_the_status():
    gang = trained(1)
    for report in (TrainingProgress(3, 192, 0.5), StepMeasurements(3, 32, 0.1), Saved(0, 3, "/out/step-3")):
        rank_messages.handle(gang.controller, gang.controller.ranks[0], report)
    status = gang.request(StatusRequest()).status
    document = (Path(__file__).parents[2] / "docs/how-to-train-elastically.md").read_text(encoding="utf-8")
    section = document.partition("### What `status` shows")[2].partition("\n## ")[0]
    tables = [
        {name for cells in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cells)}
        for table in section.split("`ranks` has one entry")
    ]
    pids = {"zygote", "supervisor"}  # which the supervisor adds
    assert tables == [set(status) - {"ranks"} | pids, set(status["ranks"][0])]
