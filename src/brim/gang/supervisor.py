"""Runs one gang on one node: reports to the controller what happens, and does what it decides.

The supervisor is one loop in one thread. It handles messages of the zygote, of ranks and of clients, signals, and
deadlines. A process is ended in stages: a message, SIGTERM, then SIGKILL to it and to all processes it has started.
Each stage has a bounded wait, and the supervisor checks that the processes are gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import selectors
import shutil
import signal
import sys
import tempfile
import time
from typing import Final

from brim.gang import client_requests, processes, rank_messages
from brim.gang.actions import GangAction, HoldTracebacks, KillRank, Log, Send, StartRank, TerminateRank
from brim.gang.cgroup import close_cgroup
from brim.gang.control_server import Connection, ControlServer
from brim.gang.controller import GangController
from brim.gang.environment import gang_environment, own_environment, port_of, rank_environment, reserve_port
from brim.gang.gang_processes import GangProcesses
from brim.gang.launch_config import LaunchConfig
from brim.gang.messages import Error, Hello, Message, Request
from brim.gang.rank_process import RankProcess
from brim.gang.result import GangResult
from brim.gang.run_script import read_error_file
from brim.gang.spawner import OutputError, RankSpawner
from brim.gang.stderr_forwarder import StderrForwarder
from brim.gang.usage import NOT_MEASURED
from brim.gang.wakeup import SignalQueue
from brim.gang.watchdog import zygote_is_overdue
from brim.gang.zygote import FOLDER_PREFIX
from brim.gang.zygote_events import ProcessExited, ProcessStarted, StartFailed, ZygoteEvent, ZygoteLost, ZygoteReady

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_CLEANUP_POLL_S: Final = 0.02
_CHECK_S: Final = 0.5
"""Time between checks for hung ranks and for a zygote that does not answer."""
_PAUSE_S: Final = 0.002


class Supervisor:
    """Runs one gang. This process becomes a child subreaper, and the supervisor handles its signals meanwhile.

    Args:
        config: What to launch.

    Attributes:
        unkillable: Processes that are still there although they were sent SIGKILL; complete once it has run.
        usage: What all processes of the gang have used, once it has run, if it has a cgroup.

    Raises:
        OSError: the control path cannot be used.
    """

    def __init__(self, config: LaunchConfig) -> None:
        self._config = config
        gang_id = config.gang or secrets.token_hex(8)
        self._controller = GangController(config, gang_id, time.monotonic)
        env = os.environ if config.env is None else config.env
        self._env = gang_environment(env, gang_id, config.control, is_gang=config.is_gang)
        self._selector = selectors.DefaultSelector()
        self._server = ControlServer(config.control, self._selector)
        self._port = reserve_port()  # of rank 0, which listens there
        self._connections: dict[int, Connection] = {}  # by rank
        self._folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
        self._forwarder = StderrForwarder(2) if config.log_folder is None else None
        self._spawner = RankSpawner(config, self._env, self._selector, self._forwarder)
        self._processes = GangProcesses(gang_id, zygote_is_shared=config.zygote is not None)
        self.unkillable: list[int] = []
        self.usage = NOT_MEASURED
        self._checked_s = 0.0

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, *, ignore_later_signals: bool = False) -> GangResult:
        """Run the gang until it has ended and all its processes are gone.

        Args:
            ignore_later_signals: For a process that has only the result left to tell: no signal ends it before that.
        """
        processes.become_subreaper()
        self._processes.exclude_present_children()
        signals = SignalQueue(_SIGNALS)
        self._selector.register(signals, selectors.EVENT_READ, signals)
        try:
            self._controller.begin()
            self._perform_actions()
            while self._controller.running:
                self._wait_and_handle(signals)
            return self._conclude()
        finally:
            self._end_everything([])
            signals.close(ignore_later_signals=ignore_later_signals)
            self._selector.close()

    @property
    def has_started(self) -> bool:
        """Whether the process of any rank has been started."""
        return any(rank.pid for rank in self._controller.ranks.values())

    def _wait_and_handle(self, signals: SignalQueue) -> None:
        for key, events in self._selector.select(self._timeout_s()):
            match key.data:
                case RankSpawner(connected=True):
                    self._receive_from_zygote()
                case ControlServer():
                    self._server.accept()
                case Connection():
                    self._receive(key.data, events)
                case RankProcess():
                    self._handle_exit_without_zygote(key.data)
        for number in signals.take():
            if number == signal.SIGCHLD:
                self._handle_reaped(processes.reap())
            else:
                self._controller.handle_signal(number)
                self._perform_actions()
        self._controller.send_due_signals()
        self._perform_actions()
        for rank in self._controller.ranks.values():
            self._clean_up(rank)
        now_s = time.monotonic()
        if now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            self._controller.kill_hung_ranks()
            self._perform_actions()
            self._check_zygote(now_s)

    def _timeout_s(self) -> float:
        if any(rank.cleanup_since_s is not None for rank in self._controller.ranks.values()):
            return _CLEANUP_POLL_S
        return min(_CHECK_S, self._controller.next_signal_in_s())

    def _perform_actions(self) -> None:
        """Carry out what the controller has decided; what follows from one action comes before the next one."""
        for action in self._controller.take_actions():
            self._perform(action)
            self._perform_actions()

    def _perform(self, action: GangAction) -> None:
        ranks = self._controller.ranks
        match action:
            case Send(number, message):
                if (connection := self._connections.get(number)) is not None:
                    self._server.send(connection, message)
            case StartRank(number):
                self._start(ranks[number])
            case TerminateRank(number):
                self._processes.terminate_rank(ranks[number])
            case KillRank(number):
                self._processes.kill_rank(ranks[number])
            case HoldTracebacks():
                if self._forwarder is not None:
                    self._forwarder.hold_all()
            case Log(text):
                _log(text)

    # -- the zygote ------------------------------------------------------------------------------------------------

    def _start(self, rank: RankProcess) -> None:
        if rank.requested or rank.exited:  # by what has followed from an earlier action
            return
        devices, error_file = self._controller.devices, self._error_file(rank)
        if self._config.is_gang:
            size = self._controller.size
            env = rank_environment(self._env, rank.id, rank.slot, size, port_of(self._port), devices, error_file)
        else:
            env = own_environment(self._env, rank.id, devices, error_file)
        try:
            self._spawner.start(rank.id, env)
            rank.requested, rank.requested_s = True, time.monotonic()
        except OutputError as error:
            self._controller.start_failed(rank.id, 126, str(error))
        except OSError as error:
            if self._spawner.exhausted:
                self._controller.start_failed(rank.id, 126, f"no zygote: {error}")
            elif not self._spawner.connected:
                self._start(rank)
            while self._spawner.connected and not rank.requested and rank.alive:
                self._receive_from_zygote()  # its last messages; then the controller starts this rank again, too
        self._processes.zygote_pid = self._spawner.zygote_pid or self._processes.zygote_pid

    def _receive_from_zygote(self) -> None:
        for event in self._spawner.receive():
            self._handle_zygote_event(event)
            self._perform_actions()

    def _handle_zygote_event(self, event: ZygoteEvent) -> None:
        match event:
            case ZygoteReady(pid=pid):
                self._processes.zygote_pid, self._spawner.ready_s = pid, time.monotonic()
            case ProcessStarted():
                self._controller.started(event)
            case StartFailed(rank=number, exit_code=code, detail=detail):
                self._controller.start_failed(number, code, detail)
            case ProcessExited(rank=number, wait_status=status):
                self._handle_exit(self._controller.ranks[number], os.waitstatus_to_exitcode(status))
            case ZygoteLost():
                self._handle_zygote_loss()

    def _handle_zygote_loss(self) -> None:
        """Watch the ranks it has started, as children or by their descriptors; the controller requests the others."""
        self._spawner.disconnect()
        self._processes.zygote_lost()
        for rank in self._controller.ranks.values():
            if rank.alive and rank.pid and rank.pidfd not in self._selector.get_map():
                self._selector.register(rank.pidfd, selectors.EVENT_READ, rank)
        self._controller.zygote_lost()
        self._perform_actions()

    def _check_zygote(self, now_s: float) -> None:
        """Kill a zygote that does not answer, such as a stopped one. Its ranks become children of this process."""
        if not self._spawner.connected:
            return
        ending = self._controller.announced or self._controller.failing
        ranks = list(self._controller.ranks.values())
        for rank in ranks:
            if rank.alive and rank.pid and rank.exit_seen_s is None and _is_readable(rank.pidfd):
                rank.exit_seen_s = now_s
        if not any(zygote_is_overdue(rank, self._spawner.ready_s, now_s, ending=ending) for rank in ranks):
            return
        pid = self._spawner.zygote_pid or self._processes.zygote_pid
        _log(f"the zygote{f' (process {pid})' if pid else ''} does not answer: SIGKILL")
        if not pid:  # a shared one that has not accepted the connection yet
            self._handle_zygote_loss()
            return
        processes.kill_all(
            lambda: [found for found in [processes.find_process(pid)] if found is not None], self._handle_reaped
        )

    # -- the ends of ranks -----------------------------------------------------------------------------------------

    def _handle_exit_without_zygote(self, rank: RankProcess) -> None:
        """The descriptor of a rank whose zygote is lost shows that the rank has exited."""
        self._handle_reaped(processes.reap())
        if rank.alive:
            self._handle_exit(rank, None)

    def _handle_reaped(self, reaped: list[tuple[int, int]]) -> None:
        """Handle the ends of this process's children: zygotes, orphans, and ranks whose zygote has ended."""
        for pid, status in reaped:
            for rank in list(self._controller.ranks.values()):
                if rank.alive and rank.pid == pid:
                    self._handle_exit(rank, os.waitstatus_to_exitcode(status))

    def _handle_exit(self, rank: RankProcess, code: int | None) -> None:
        connection = self._connections.get(rank.id)
        while connection is not None and not connection.closing and _is_readable(connection.socket.fileno()):
            self._receive(connection, selectors.EVENT_READ)  # its end may be seen before the message that it leaves
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(rank.pidfd)
        os.close(rank.pidfd)
        rank.pidfd = -1
        if (error := read_error_file(self._error_file(rank))) is not None:
            rank.traceback, rank.failed_s = error
        self._controller.exited(rank.id, code)
        self._perform_actions()

    def _clean_up(self, rank: RankProcess) -> None:
        """Kill the processes that an exited rank has left behind."""
        if rank.cleanup_since_s is not None:
            left = self._processes.clean_up_rank(rank, time.monotonic() - rank.cleanup_since_s)
            if left is not None:
                rank.cleanup_since_s = None
                self.unkillable += [process.pid for process in left]

    # -- messages of ranks and clients -----------------------------------------------------------------------------

    def _receive(self, connection: Connection, events: int) -> None:
        for message in self._server.receive(connection, events):
            if connection.rank is None:
                self._handle_first_message(connection, message)
            elif isinstance(message, Hello):
                self._server.send_error(connection, "found a second hello, expected one per connection")
            else:
                rank_messages.handle(self._controller, self._controller.ranks[connection.rank], message)
            self._perform_actions()
        if connection.closing:
            self._server.disconnect(connection)
            if connection.rank is not None and self._connections.get(connection.rank) is connection:
                del self._connections[connection.rank]
                self._controller.ranks[connection.rank].peer_pid = None

    def _handle_first_message(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Hello):
            refusal = rank_messages.accept_hello(self._controller, message, connection.pid)
            if refusal:
                self._server.send_error(connection, refusal)
                return
            if (old := self._connections.get(message.id)) is not None:
                self._server.disconnect(old)  # of the same process, not closed yet
            connection.rank = message.id
            self._connections[message.id] = connection
        elif isinstance(message, Request):
            refusal = client_requests.accept(self._controller, message)
            self._perform_actions()
            pids = {"zygote": self._processes.zygote_pid, "supervisor": os.getpid()}
            self._server.send(connection, client_requests.respond(self._controller, message, refusal, pids))
        elif not isinstance(message, Error):
            self._server.send_error(connection, f"found {type(message).__name__.lower()}, expected hello first")

    # -- the end ---------------------------------------------------------------------------------------------------

    def _conclude(self) -> GangResult:
        failed = self._controller.failed_ranks()
        self._end_everything([rank.id for rank in failed])
        if failed and self._forwarder is None:
            sys.stderr.write(failed[0].traceback)
        result = self._controller.result()
        if result.detail:
            _log(result.detail)
        return result

    def _end_everything(self, traceback_order: list[int]) -> None:
        """End all processes of this gang; report those that cannot be killed."""
        if self._folder == "":
            return
        left = processes.kill_all(self._processes.all, self._handle_reaped)
        self._spawner.disconnect()
        if self._spawner.is_private:
            self._processes.zygote_pid = 0  # it ends by itself; if not, it is killed like the others
            deadline_s = time.monotonic() + self._config.term_s
            while self._processes.all() and time.monotonic() < deadline_s:
                self._handle_reaped(processes.reap())
                time.sleep(_PAUSE_S)
            left = processes.kill_all(self._processes.all, self._handle_reaped)
        hidden, self.usage = close_cgroup(self._config.cgroup, processes.KILL_DEADLINE_S)
        self.unkillable += [process.pid for process in left] + hidden
        if self.unkillable:
            self.unkillable = sorted(set(self.unkillable))
            _log(f"still running after SIGKILL: processes {', '.join(map(str, self.unkillable))}")
        self._server.close()
        self._port.close()
        if self._forwarder is not None:
            self._forwarder.close(traceback_order)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = ""

    def _error_file(self, rank: RankProcess) -> str:
        return os.path.join(self._folder, f"error-{rank.id}.json")


def _is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def _log(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"brim: {text}\n")
        sys.stderr.flush()
