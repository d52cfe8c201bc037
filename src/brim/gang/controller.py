"""Decides what happens to the processes of a gang: which start, which get signals, and whether the gang fails.

It owns no process and no socket, and reads the time only from the clock that it is given, so that tests set the time.
The supervisor reports events and carries out the actions; ``membership`` decides about groups, ``rank_messages`` and
``client_requests`` translate messages into calls of the controller.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from brim.gang.actions import GangAction, HoldTracebacks, KillRank, Log, Send, StartRank, TerminateRank
from brim.gang.launch_config import FAILURE_REPORT_S, LaunchConfig
from brim.gang.membership import GangMembership, MembershipActions, MemberState
from brim.gang.messages import FormGroup, Message, Prepare, ResizeGroup, Saved, Stop, TuneSettings
from brim.gang.rank_process import RankProcess, free_slot
from brim.gang.result import GangResult, describe_exit, failed_ranks, failure, success
from brim.gang.watchdog import HangDetector, describe_early_exit
from brim.gang.zygote_events import ProcessStarted


class GangController:
    """The state of one gang.

    The class is long because every event of a rank or client is a method that reads and changes the same state.

    Args:
        config: What to launch.
        gang_id: The gang's ``$BRIM_GANG``.
        clock: Returns the present time, in seconds.

    Attributes:
        ranks: All ranks so far, by id.
        announced: Whether the ranks have been asked to save and leave.
        failing: Whether the gang fails.
        stopping: Whether the ranks have been asked to finish their step and exit.
        start_failure: Why the newest rank that the gang continues without could not be started.
        saved: The newest checkpoint, None before the first.
        devices: Names of the present devices; empty if none are named.
        sequence: Newest request that has changed something, and carried a number; -1 before the first.
        loss: How the rank that was replaced last had ended, in words; empty: none was replaced.
    """

    def __init__(self, config: LaunchConfig, gang_id: str, clock: Callable[[], float]) -> None:
        self.config, self.id, self.clock = config, gang_id, clock
        self.membership = GangMembership(config.nproc, config.replacements_max, keeps_size=config.keeps_size)
        self.hang_detector = HangDetector(config.hang_timeout_s)
        self.ranks: dict[int, RankProcess] = {}
        self.announced = self.failing = self.stopping = False
        self.start_failure = ""
        self.saved: Saved | None = None
        self.devices = config.devices
        self.sequence = -1
        self.loss = ""
        self._replaced_s: deque[float] = deque()
        self._trained_size = 0
        self._failure = ""
        self._spawn_reasons: set[str] = set()
        self._tunes: list[TuneSettings] = []
        self._applied_tune = 0
        self._next_id = 0
        self._actions: list[GangAction] = []

    def take_actions(self) -> list[GangAction]:
        """Return what is to be done since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def running(self) -> bool:
        """Whether a rank, or a process that it has left behind, may still be there."""
        return any(rank.alive or rank.cleanup_since_s is not None for rank in self.ranks.values())

    @property
    def size(self) -> int:
        """Number of ranks that is wanted; at least that at the start."""
        return max(self.membership.target, self.config.nproc)

    def count_alive(self) -> str:
        """Return the number of living ranks, in words."""
        return _counted(sum(rank.alive for rank in self.ranks.values()), "rank")

    # -- actions ---------------------------------------------------------------------------------------------------

    def send(self, rank: int, message: Message) -> None:
        """Send a message to one rank."""
        if isinstance(message, (FormGroup, ResizeGroup, Prepare)):
            self.hang_detector.active(rank)
        self._actions.append(Send(rank, message))

    def broadcast(self, message: Message) -> None:
        """Send a message to all living ranks."""
        for rank in self.ranks.values():
            if rank.alive:
                self.send(rank.id, message)

    def kill(self, rank: int) -> None:
        """Kill one rank and all processes that it has started."""
        self._actions.append(KillRank(rank))

    def log(self, text: str) -> None:
        """Write a line to stderr."""
        self._actions.append(Log(text))

    # -- starting --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first ranks."""
        self.follow(self.membership.begin())

    def follow(self, actions: MembershipActions) -> None:
        """Carry out the actions of the membership."""
        for _ in range(actions.start):
            self._add_rank()
        for number, message in actions.send:
            self.send(number, message)
        if actions.stop:
            self.log(_describe_surplus(self.membership, actions.stop))
        for number in actions.stop:
            rank = self.ranks[number]
            rank.stop_requested = True
            rank.schedule_signals(self.clock(), 0.0, self.config.term_s)
        if actions.failure:
            self.fail(actions.failure)

    def _add_rank(self) -> None:
        leaving = {member.id for member in self.membership.ranks.values() if member.is_leaving}
        slot = free_slot(self.ranks.values(), leaving, len(self.devices) or self.size)
        rank = RankProcess(self._next_id, slot, self.devices[slot] if slot < len(self.devices) else "")
        self._next_id += 1
        self.ranks[rank.id] = rank
        self.membership.added(rank.id)
        self._actions.append(StartRank(rank.id))

    def started(self, event: ProcessStarted) -> None:
        """The process of a rank has started."""
        rank = self.ranks[event.rank]
        rank.pid, rank.pidfd, rank.start_method = event.pid, event.pidfd, event.start_method
        if event.spawn_reason and event.spawn_reason not in self._spawn_reasons:
            self._spawn_reasons.add(event.spawn_reason)
            self.log(f"starting ranks as fresh processes, not by fork: {event.spawn_reason}")
        if rank.signals and not rank.connected:  # it was asked to exit before it had started
            rank.schedule_signals(self.clock(), 0.0, self.config.term_s)

    def start_failed(self, number: int, code: int, detail: str) -> None:
        """The process of a rank cannot be started; ``code`` is the exit code that a shell would give."""
        rank = self.ranks[number]
        self._mark_exited(rank)
        detail = f"rank {number}: {detail}"
        if self.membership.can_continue_unstarted(number):  # without a code it is not the cause of a later failure
            self.log(f"{detail}; the other ranks continue without it")
            self.start_failure = detail
            self.follow(self.membership.not_started(number))
            return
        rank.exit_code = code
        self._fail_without(rank, detail)

    def zygote_lost(self) -> None:
        """The ranks that it has started continue; the others are requested from a new one."""
        self.log("the process that starts ranks (zygote) has ended; running ranks continue")
        alive = [rank for rank in self.ranks.values() if rank.alive]
        for rank in alive:
            rank.requested = rank.pid > 0
        for rank in alive:
            if rank.requested:
                continue
            self.kill(rank.id)  # it may have started although that was not reported
            if self.announced or self.failing:
                self._mark_exited(rank)
                self.follow(self.membership.exited(rank.id))
            else:
                self._actions.append(StartRank(rank.id))

    # -- commands --------------------------------------------------------------------------------------------------

    def handle_signal(self, number: int) -> None:
        """This process has received SIGTERM, SIGINT or SIGHUP."""
        if self.announced and number == signal.SIGINT:
            self.log("interrupted again: killing all ranks")
            self._stop_all(0.0, 0.0)
        else:
            self.log(f"{signal.Signals(number).name}: asking {self.count_alive()} to save and leave")
            self.preempt()

    def preempt(self, grace_s: float | None = None) -> None:
        """Ask all ranks to save and leave. Those left get SIGTERM, and SIGKILL at the end of the grace period."""
        grace_s = self.config.grace_s if grace_s is None else grace_s
        self._stop_all(max(0.0, grace_s - self.config.term_s), grace_s)

    def _stop_all(self, term_after_s: float, kill_after_s: float) -> None:
        self.announced = self.membership.closing = True
        command = self.membership.next_command()
        for rank in self.ranks.values():
            if rank.alive:
                rank.stop_requested = True
                self.send(rank.id, Prepare(command, term_after_s))
                rank.schedule_signals(self.clock(), term_after_s if rank.connected else 0.0, kill_after_s)

    def resize(self, size: int, devices: tuple[str, ...]) -> str:
        """Change the number of ranks, and the devices unless these are empty; return why not, or an empty text."""
        devices = devices or self.devices
        if devices and len(devices) < size and devices != self.config.devices:
            return f"found {_counted(len(devices), 'device')} for {_counted(size, 'rank')}, expected at least one each"
        living = [rank for rank in self.ranks.values() if rank.alive]
        unwanted = frozenset(rank.id for rank in living if rank.device and rank.device not in devices)
        self.start_failure = ""
        refusal, actions = self.membership.resize(size, unwanted)
        if refusal:
            return refusal
        self.devices = devices
        for rank in self.ranks.values():
            rank.slot = devices.index(rank.device) if rank.device in devices else -1 if rank.device else rank.slot
        self.follow(actions)
        return ""

    def is_settled(self) -> bool:
        """Whether the gang trains as it was asked to, and nothing is left of ranks that do not."""
        present = {rank.id for rank in self.ranks.values() if rank.alive or rank.cleanup_since_s is not None}
        return self.membership.all_joined() and present == set(self.membership.members)

    def stop(self) -> None:
        """Ask all ranks to finish their step, save and exit with 0."""
        self.stopping = self.membership.finishing = True
        self.broadcast(Stop(self.membership.next_command()))

    def tune(self, settings: TuneSettings) -> None:
        """Ask all ranks to change these settings, under a new number."""
        numbered = replace(settings, command=self.membership.next_command())
        self._tunes.append(numbered)
        self.broadcast(numbered)

    def repeat_tunes(self, rank: int) -> None:
        """Send a rank that has reconnected the settings that it may have missed; it ignores those it has applied."""
        for tune in self._tunes:
            self.send(rank, tune)

    def group_formed(self, rank: int, generation: int, applied_tune: int) -> None:
        """A rank has joined its group: repeat commands that the new group makes void.

        A stop is repeated at once, settings once all ranks have joined.
        """
        self.follow(self.membership.group_formed(rank, generation))
        self._applied_tune = max(self._applied_tune, applied_tune)
        if self.stopping:
            self.broadcast(Stop(self.membership.next_command()))
        self._tunes = [tune for tune in self._tunes if tune.command > self._applied_tune]
        if self.membership.all_joined():
            self._log_size(self.ranks[rank].report.get("step", 0))
            void = [tune for tune in self._tunes if self.membership.is_superseded(tune.command)]
            self._tunes = [tune for tune in self._tunes if tune not in void]
            for tune in void:
                self.tune(tune)

    def _log_size(self, step: int) -> None:
        """Write a line if the number of ranks that train has changed."""
        before, self._trained_size = self._trained_size, len(self.membership.members)
        if before not in (0, self._trained_size):
            self.log(f"{before} -> {_counted(self._trained_size, 'rank')} at step {step}")

    # -- ending ----------------------------------------------------------------------------------------------------

    def next_signal_in_s(self) -> float:
        """Return the time until the next signal is due; infinite if there is none."""
        now_s = self.clock()
        return min((rank.next_signal_in_s(now_s) for rank in self.ranks.values()), default=float("inf"))

    def send_due_signals(self) -> None:
        """Terminate or kill the ranks whose time has come."""
        now_s = self.clock()
        for rank in self.ranks.values():
            while (number := rank.take_due_signal(now_s)) is not None:
                if number == signal.SIGTERM:
                    self._actions.append(TerminateRank(rank.id))
                else:
                    self.log(f"rank {rank.id} (process {rank.pid}) is still running: SIGKILL")
                    self.kill(rank.id)

    def kill_hung_ranks(self) -> None:
        """Kill the ranks for which all others have waited too long."""
        members = [self.ranks[number] for number in self.membership.members if number in self.membership.ranks]
        hung, waited_s = self.hang_detector.hung_ranks([rank.id for rank in members if rank.alive], self.clock())
        steps = [rank.waiting.step for rank in members if rank.waiting is not None and rank.id not in hung]
        for number in hung:
            rank = self.ranks[number]
            where = f"in step {max(steps)}" if steps else f"its last step was {rank.report.get('step', 'none')}"
            who = f"rank {number} (process {rank.pid})"
            self.log(f"{who} hangs: all other ranks have waited for {waited_s:.0f} s, {where}; SIGKILL")
            self.hang_detector.active(number)
            self.kill(number)

    def exited(self, number: int, code: int | None) -> None:
        """The process of a rank has exited; ``code`` is like ``Popen.returncode``, None if it is unknown."""
        rank = self.ranks[number]
        self._mark_exited(rank)
        rank.exit_code, rank.cleanup_since_s = code, rank.exited_s
        self.hang_detector.active(number)
        member = self.membership.ranks.get(number)
        state = MemberState.LEAVING if member is None else member.state
        if self.failing and rank.was_killed:
            rank.is_cause = True
        if self.failing or self.announced or rank.exited_as_requested():
            self.follow(self.membership.exited(number))
        elif code == 0:
            self.fail_if_left_early()
            self.follow(self.membership.finished(number))
        elif code == -signal.SIGTERM and state in (MemberState.STARTING, MemberState.INITIALIZING):
            self.log(f"rank {number} {describe_exit(code)} before it was ready: asking all ranks to leave")
            self.preempt()
            self.follow(self.membership.exited(number))
        elif self._may_continue_after(rank, member is not None and state is not MemberState.STARTING):
            self._lose(rank)
        else:
            self._fail_without(rank, f"rank {number} {describe_exit(code)}")

    def _lose(self, rank: RankProcess) -> None:
        """The gang continues without a rank that was ended by a signal, or with one that replaces it."""
        left = self.membership.replacements_left
        actions = self.membership.exited(rank.id)
        if self.membership.replacements_left < left:
            self._replaced_s.append(self.clock())
            window_s = self.config.replacement_window_s
            within = "" if window_s == float("inf") else f" within {window_s / 60:.0f} min"
            count = f"{len(self._replaced_s)} of at most {self.config.replacements_max}{within}"
            self.loss = f"rank {rank.id} (process {rank.pid}) {describe_exit(rank.exit_code)} and was replaced, {count}"
            self.log(f"rank {rank.id} is replaced: {count}")
        elif self.membership.generation:
            self.log(f"the other ranks continue without rank {rank.id}")
        self.follow(actions)

    def _forget_old_losses(self) -> None:
        """Of ranks that were replaced long ago, others may be replaced again."""
        oldest_s = self.clock() - self.config.replacement_window_s
        while self._replaced_s and self._replaced_s[0] <= oldest_s:
            self._replaced_s.popleft()
            self.membership.replacements_left += not self.membership.finishing

    def _may_continue_after(self, rank: RankProcess, speaks_protocol: bool) -> bool:
        """Whether the gang continues without a rank that exited unasked: it must have been ended by a signal."""
        code = rank.exit_code
        if code is None or code >= 0 or not (speaks_protocol or self.membership.generation):
            return False
        self.log(f"rank {rank.id} (process {rank.pid}) {describe_exit(code)}")
        self._forget_old_losses()
        return self.membership.can_continue_without(rank.id)

    def _mark_exited(self, rank: RankProcess) -> None:
        rank.exited, rank.exited_s = True, self.clock()
        rank.signals.clear()

    def fail_if_left_early(self) -> None:
        """Fail if the script has ended on one rank while another needs it for more steps."""
        error = describe_early_exit(self.ranks.values(), self.membership.members, self.membership.generation)
        if error:
            self.fail(error)

    def fail(self, reason: str, cause: RankProcess | None = None) -> None:
        """One rank has failed, so the whole gang fails."""
        if self.failing:
            return
        if cause is not None:
            cause.is_cause = True
        self.failing = self.membership.closing = True
        self._failure = reason
        self._actions.append(HoldTracebacks())
        grace_s = self.config.failure_grace_s
        for rank in self.ranks.values():
            if rank.alive:
                rank.schedule_signals(self.clock(), min(FAILURE_REPORT_S, grace_s / 2), grace_s)
        if not self.announced:  # after an announced stop, all ranks are already saving and leaving
            self.follow(self.membership.disband())

    def _fail_without(self, rank: RankProcess, reason: str) -> None:
        """Fail because of a rank that has exited. `fail` comes first, so that no group is formed without it."""
        self.fail(reason, rank)
        self.follow(self.membership.exited(rank.id))

    def failed_ranks(self) -> list[RankProcess]:
        """Return the ranks that failed, the first cause first."""
        return failed_ranks(self.ranks.values(), failing=self.failing)

    def result(self) -> GangResult:
        """Return the result, once no rank is left."""
        failed = self.failed_ranks()
        if self.failing or failed:
            result = failure(failed[0] if failed else None, self._failure)
            before = f"; {_counted(len(self._replaced_s), 'rank')} had been replaced" if self._replaced_s else ""
            return replace(result, detail=result.detail + before)
        members = self.membership.members  # a rank that left for a smaller group does not count
        last = [rank for rank in self.ranks.values() if rank.id in members or not self.membership.generation]
        return success(last, announced=self.announced, saved=self.saved)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _describe_surplus(membership: GangMembership, stopped: list[int]) -> str:
    size, sizes = len(membership.members), [str(size) for size in sorted(membership.sizes)]
    possible = f" ({' or '.join([', '.join(sizes[:-1]), sizes[-1]])} are possible)" if len(sizes) > 1 else ""
    job = f"using {_counted(size, 'rank')}{possible}" if size else "the job is over"
    return f"{job}; rank{'s' if len(stopped) > 1 else ''} {', '.join(map(str, stopped))} stopped"
