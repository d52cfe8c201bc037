"""Runs one job on one node: starts ranks, forms groups, resizes, preempts, and leaves no process behind.

The supervisor is one loop in one thread. It handles messages of the zygote, of ranks and of clients, signals, and
deadlines. ``membership`` decides about groups, and this module carries out its orders. A process is ended in stages: a
message, SIGTERM, then SIGKILL to it and to all processes it has started. Each stage has a bounded wait, and the
supervisor checks that the processes are gone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import select
import selectors
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any, Final

from brim.gang import processes
from brim.gang.client import why_senseless
from brim.gang.control_server import Channel, Connection
from brim.gang.environment import for_gang, for_rank, free_port
from brim.gang.gang_processes import Belongings, kill
from brim.gang.launch_config import LAST_WORDS_S, Job, Outcome
from brim.gang.membership import Membership, Orders, Where
from brim.gang.messages import (
    ID_VARIABLE,
    Error,
    Failed,
    Finished,
    FormGroup,
    GroupBroken,
    GroupFormed,
    Hello,
    KillRequest,
    Leaving,
    Message,
    PreemptRequest,
    Prepare,
    Progress,
    Ready,
    ResizeGroup,
    ResizeRequest,
    Response,
    Saved,
    StatusRequest,
    StepMeasurements,
    Stop,
    StopRequest,
    StoreAddress,
    TuneRequest,
    TuneSettings,
    Waiting,
)
from brim.gang.output import Forwarder
from brim.gang.rank_process import Rank, causes, failure, how, success
from brim.gang.spawner import Nursery, OutputError
from brim.gang.watchdog import Hangs
from brim.gang.zygote import FOLDER_PREFIX
from brim.gang.zygote_client import PRELOAD_S, Ended, Refused, Started, ZygoteLost, ZygoteReady

_TICK_S: Final = 0.02
_LOOK_S: Final = 0.5
_PAUSE_S: Final = 0.002
_ANSWER_S: Final = 5.0
"""How long a zygote may take to report that a process has ended. Our choice: it needs milliseconds."""
_START_S: Final = 60.0
"""How long a zygote that is ready may take to start a process. Our choice: it may read the script from a slow disk."""


_DIFFERENT_S: Final = 10.0
"""How long all ranks wait in different places before that is an error. Our choice: messages under way arrive sooner."""
_SAME_STEPS: Final = (
    "every rank must do the same steps; to end early, use run.epochs(..., steps=N) or leave the loop after the same "
    "step on all ranks"
)


class Supervisor:
    """Runs one job. This process becomes a child subreaper, and the supervisor handles its signals meanwhile.

    Args:
        job: The job to run.

    Raises:
        OSError: the control path cannot be used, or no zygote listens on the given path.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.gang = secrets.token_hex(8)
        self.membership = Membership(job.nproc, job.replace)
        self.ranks: dict[int, Rank] = {}
        self._hangs = Hangs(job.hang_s)
        self._env = for_gang(os.environ if job.env is None else job.env, self.gang, job.control)
        self._port = free_port()
        self._next_id = 0
        self._announced = self._failing = self._stopping = False
        self._tunes: list[TuneSettings] = []
        self._tuned = 0
        self._reasons: set[str] = set()
        self._failure = self._not_started = ""
        self._signals: list[int] = []
        self._looked_s = 0.0
        self._unkillable: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._channel = Channel(job.control, self._selector)
        self._folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
        self._forwarder = Forwarder(2) if job.log_folder is None else None
        self._nursery = Nursery(job, self._env, self._selector, self._forwarder)
        self._belongings = Belongings(self.gang)
        self._belongings.shared = job.zygote is not None

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run the job until it has ended and all its processes are gone."""
        processes.become_subreaper()
        self._belongings.begin()
        wake_fd, waker_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        caught = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup
        before = {number: signal.signal(number, lambda number, _: self._signals.append(number)) for number in caught}
        waker_before = signal.set_wakeup_fd(waker_fd, warn_on_full_buffer=False)
        self._selector.register(wake_fd, selectors.EVENT_READ, "wake")
        try:
            self._obey(self.membership.begin())
            while any(rank.living or rank.sweep_s is not None for rank in self.ranks.values()):
                self._once()
            return self._conclude()
        finally:
            self._end_everything()
            signal.set_wakeup_fd(waker_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(wake_fd)
            os.close(waker_fd)

    def _once(self) -> None:
        for key, events in self._selector.select(self._until_next_s()):
            if key.data == "wake":
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
            elif isinstance(key.data, Nursery):
                if key.data.alive:
                    self._hear_zygote()
            elif isinstance(key.data, Channel):
                key.data.accept()
            elif isinstance(key.data, Rank):
                self._lost_rank(key.data)
            else:
                self._hear(key.data, events)
        self._take_signals()
        now_s = time.monotonic()
        for rank in list(self.ranks.values()):
            self._climb(rank, now_s)
            self._sweep(rank, now_s)
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._look_for_hung(now_s)
            self._look_at_zygote(now_s)

    def _until_next_s(self) -> float:
        if any(rank.sweep_s is not None for rank in self.ranks.values()):
            return _TICK_S
        next_s = min((rank.ladder[0][0] for rank in self.ranks.values() if rank.ladder), default=float("inf"))
        return max(0.0, min(_LOOK_S, next_s - time.monotonic()))

    def _take_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGCHLD:
                self._reaped(processes.reap())
            elif self._announced and number == signal.SIGINT:
                self._say("interrupted again: killing all ranks")
                self._stop_all(0.0, 0.0)
            else:
                self._say(f"{signal.Signals(number).name}: asking {_ranks(self._living())} to save and leave")
                self.preempt()

    # -- starting --------------------------------------------------------------------------------------------------

    def _obey(self, orders: Orders) -> None:
        """Carry out the orders of the membership."""
        for _ in range(orders.start):
            self._add_rank()
        for number, message in orders.send:
            self._tell(number, message)
        if orders.retire:
            self._say(self._why_retired(orders.retire))
        for number in orders.retire:
            rank = self.ranks[number]
            rank.told = True
            rank.plan(time.monotonic(), 0.0, self.job.term_s)
        if orders.hopeless:
            self._fail(orders.hopeless)

    def _why_retired(self, retired: list[int]) -> str:
        size, sizes = len(self.membership.members), [str(size) for size in sorted(self.membership.sizes)]
        possible = f" ({' or '.join([', '.join(sizes[:-1]), sizes[-1]])} are possible)" if len(sizes) > 1 else ""
        job = f"using {_ranks(size)}{possible}" if size else "the job is over"
        return f"{job}; rank{'s' if len(retired) > 1 else ''} {', '.join(map(str, retired))} stopped"

    def _add_rank(self) -> None:
        rank = Rank(self._next_id, self._free_slot())
        self._next_id += 1
        self.ranks[rank.id] = rank
        self.membership.added(rank.id)
        self._request(rank)

    def _free_slot(self) -> int:
        """Return the lowest free slot.

        Slots are GPUs. Before a slot beyond the wanted number of ranks is used, the slot of a rank that is leaving, or
        whose remaining processes are being killed, is reused.
        """
        held: dict[int, int] = {}
        for rank in self.ranks.values():
            member = self.membership.ranks.get(rank.id)
            leaves = rank.told or (member is not None and member.where is Where.LEAVING)
            stage = (2 if leaves else 3) if rank.living else 1 if rank.sweep_s is not None else 0
            held[rank.slot] = max(held.get(rank.slot, 0), stage)
        wanted = range(max(self.membership.target, self.job.nproc))
        slot = min(wanted, key=lambda slot: (held.get(slot, 0), slot))
        return slot if held.get(slot, 0) < 3 else next(n for n in itertools.count() if not held.get(n))

    def _request(self, rank: Rank) -> None:
        size = max(self.membership.target, self.job.nproc)
        error_file = self._error_file(rank)
        env = for_rank(self._env, rank.id, rank.slot, size, self._port, self.job.devices, error_file)
        try:
            self._nursery.start(rank.id, env)
            rank.asked, rank.asked_s = True, time.monotonic()
        except OutputError as error:
            self._cannot_start(rank, 126, str(error))
        except OSError as error:
            if self._nursery.exhausted:
                self._cannot_start(rank, 126, f"no zygote: {error}")
            else:
                while self._nursery.alive:  # read its last messages; then this rank is requested again, too
                    self._hear_zygote()
                if not rank.asked and rank.living:
                    self._request(rank)
        self._belongings.zygote = self._nursery.pid or self._belongings.zygote

    def _hear_zygote(self) -> None:
        for word in self._nursery.receive():
            match word:
                case ZygoteReady(pid=pid):
                    self._belongings.zygote, self._nursery.ready_s = pid, time.monotonic()
                case Started():
                    self._started(word)
                case Refused(number=number, status=status, detail=detail):
                    self._cannot_start(self.ranks[number], status, detail)
                case Ended(number=number, status=status):
                    self._ended(self.ranks[number], os.waitstatus_to_exitcode(status))
                case ZygoteLost():
                    self._lost_zygote()

    def _started(self, word: Started) -> None:
        rank = self.ranks[word.number]
        rank.pid, rank.handle, rank.how = word.pid, word.handle, word.how
        if word.why and word.why not in self._reasons:
            self._reasons.add(word.why)
            self._say(f"starting ranks as fresh processes, not by fork: {word.why}")
        if rank.ladder and rank.connection is None:  # it was asked to end before it had started
            rank.plan(time.monotonic(), 0.0, self.job.term_s)

    def _cannot_start(self, rank: Rank, status: int, detail: str) -> None:
        rank.ended, rank.ended_s = True, time.monotonic()
        rank.ladder.clear()
        detail = f"rank {rank.id}: {detail}"
        if self.membership.can_do_without(rank.id):  # without an exit code it is not the cause of a later failure
            self._say(f"{detail}; the other ranks continue without it")
            self._not_started = detail
            self._obey(self.membership.not_started(rank.id))
            return
        rank.code = status
        self._fail_without(rank, detail)

    def _lost_zygote(self) -> None:
        """Keep the ranks it has started, as children or by their descriptors; request the others again."""
        self._nursery.drop()
        self._say("the process that starts ranks (zygote) has ended; running ranks continue")
        living = [rank for rank in self.ranks.values() if rank.living]
        for rank in living:
            rank.asked = rank.pid > 0
            if rank.pid and rank.handle not in self._selector.get_map():
                self._selector.register(rank.handle, selectors.EVENT_READ, rank)
        for rank in living:
            if rank.asked:
                continue
            kill(self._belongings.of(rank.id, 0))
            if self._announced or self._failing:
                rank.ended, rank.ended_s = True, time.monotonic()
                rank.ladder.clear()
                self._obey(self.membership.gone(rank.id))
            else:
                self._request(rank)

    def _look_at_zygote(self, now_s: float) -> None:
        """Kill a zygote that does not answer, such as a stopped one. Its ranks become children of this process."""
        if not self._nursery.alive or not any(self._is_unanswered(rank, now_s) for rank in self.ranks.values()):
            return
        pid = self._nursery.pid or self._belongings.zygote
        self._say(f"the zygote{f' (process {pid})' if pid else ''} does not answer: SIGKILL")
        if not pid:  # a shared one that has not accepted the connection yet
            self._lost_zygote()
            return
        processes.kill_all(lambda: [found for found in [processes.seen(pid)] if found is not None], self._reaped)

    def _is_unanswered(self, rank: Rank, now_s: float) -> bool:
        """Whether the zygote should have reported by now that the rank has started or ended."""
        if not rank.living or not rank.asked:
            return False
        if rank.pid:
            if rank.zombie_s is None and select.select([rank.handle], [], [], 0)[0]:
                rank.zombie_s = now_s
            return rank.zombie_s is not None and now_s - rank.zombie_s > _ANSWER_S
        if (self._announced or self._failing) and rank.ladder and now_s >= rank.ladder[-1][0]:
            return True
        ready_s = self._nursery.ready_s
        return now_s - max(rank.asked_s, ready_s or 0.0) > (PRELOAD_S if ready_s is None else _START_S)

    def _lost_rank(self, rank: Rank) -> None:
        """The descriptor of a rank whose zygote is lost shows that the rank has ended."""
        self._reaped(processes.reap())
        if rank.living:
            self._ended(rank, None)

    def _reaped(self, ended: list[tuple[int, int]]) -> None:
        """Handle the ends of this process's children: zygotes, orphans, and ranks whose zygote has ended."""
        for pid, status in ended:
            for rank in list(self.ranks.values()):
                if rank.living and rank.pid == pid:
                    self._ended(rank, os.waitstatus_to_exitcode(status))

    # -- messages of ranks and clients -----------------------------------------------------------------------------

    def _hear(self, connection: Connection, events: int) -> None:
        for message in self._channel.ready(connection, events):
            if connection.rank is None:
                self._hear_stranger(connection, message)
            elif isinstance(message, Hello):
                self._channel.refuse(connection, "found a second hello, expected one per connection")
            else:
                self._hear_rank(self.ranks[connection.rank], message)
        if connection.closing:
            self._channel.close_one(connection)
            if connection.rank is not None and self.ranks[connection.rank].connection is connection:
                self.ranks[connection.rank].connection = None

    def _hear_stranger(self, connection: Connection, message: Message) -> None:
        match message:
            case Hello(id=number, gang=gang):
                rank = self.ranks.get(number)
                if gang not in ("", self.gang):
                    self._channel.refuse(connection, f"hello: found gang {gang}, expected {self.gang}: that one ended")
                elif rank is None or not rank.living:
                    self._channel.refuse(connection, f"hello: found id {number}, expected the {ID_VARIABLE} of a rank")
                elif rank.connection is not None and rank.connection.pid != connection.pid:
                    self._channel.refuse(connection, f"hello: rank {number} is connected already")
                else:
                    if rank.connection is not None:
                        self._channel.close_one(rank.connection)  # the old one, not closed yet
                    connection.rank, rank.connection = number, connection
                    self.membership.hello(number)
                    self._obey(self.membership.form_again(number))
                    if self._announced and rank.ladder:
                        self._tell(number, Prepare(self.membership.command, self._left_s(rank), 0))
                    elif self._stopping:
                        self._tell(number, Stop(self.membership.command))
            case StatusRequest() | ResizeRequest() | PreemptRequest() | StopRequest() | KillRequest() | TuneRequest():
                self._channel.send(connection, self.ask(message))
            case Error():
                pass
            case _:
                self._channel.refuse(connection, f"found {type(message).__name__.lower()}, expected hello first")

    def _hear_rank(self, rank: Rank, message: Message) -> None:
        now_s = time.monotonic()
        if isinstance(message, (Progress, GroupFormed, Saved, StepMeasurements)):
            rank.last |= {name: getattr(message, name) for name in message.__dataclass_fields__}
        if not isinstance(message, (Waiting, StepMeasurements, Saved, Error)):
            self._hangs.busy(rank.id)
            rank.waits_in = None
        match message:
            case Ready(sizes=sizes):
                self._obey(self.membership.ready(rank.id, sizes))
            case StoreAddress():
                self._obey(self.membership.address(rank.id, message))
            case GroupFormed(generation=generation, tuned=tuned):
                rank.broke_in = None
                self._obey(self.membership.formed(rank.id, generation))
                self._tuned = max(self._tuned, tuned)
                self._say_again()
            case GroupBroken(generation=generation, detail=detail):
                self._say(f"rank {rank.id}: generation {generation} broke: {detail}"[:500])
                self._hangs.free(rank.id, now_s)
                rank.broke_in = message
                self._look_for_early_end()
                self._obey(self.membership.broken(rank.id, generation))
            case Leaving():
                if self.membership.is_wanted(rank.id):  # some rank got a signal, and all have agreed to leave
                    self._say(f"a rank received a signal to leave: asking {_ranks(self._living())} to save and leave")
                    self.preempt()
                rank.left = rank.told = True
                self._obey(self.membership.leaving(rank.id))
            case Waiting(generation=generation, for_s=for_s):
                self._hangs.waiting(rank.id, for_s, now_s)
                rank.waits_in = message
                self._look_for_different_waits()
                self._obey(self.membership.waiting(rank.id, generation))
            case Finished():
                rank.finished = message
            case Failed(traceback=text):
                rank.traceback, rank.failed_s = text, now_s
                self._fail(f"rank {rank.id} failed", rank)
            case Error(detail=detail):
                self._say(f"rank {rank.id} could not use a message: {detail}"[:500])
            case Progress():
                rank.finished = None  # it trains again after `run.finish`
            case Saved() | StepMeasurements():
                pass
            case _:
                if rank.connection is not None:
                    self._channel.refuse(rank.connection, f"{type(message).__name__} is not a rank's message")

    def _tell(self, number: int, message: Message) -> None:
        rank = self.ranks.get(number)
        if isinstance(message, (FormGroup, ResizeGroup, Prepare)):
            self._hangs.busy(number)
        if rank is not None and rank.connection is not None:
            self._channel.send(rank.connection, message)

    def _tell_all(self, message: Message) -> None:
        for rank in self.ranks.values():
            if rank.living:
                self._tell(rank.id, message)

    def _say_again(self) -> None:
        """Repeat commands that a new generation has made void: a stop at once, a tune when all ranks have joined."""
        if self._stopping:
            self._tell_all(Stop(self.membership.next_command()))
        self._tunes = [tune for tune in self._tunes if tune.command > self._tuned]
        if self.membership.all_are_in():
            void = [tune for tune in self._tunes if self.membership.is_void(tune.command)]
            self._tunes = [tune for tune in self._tunes if tune not in void]
            for tune in void:
                self._tune(tune)

    def _tune(self, tune: TuneSettings) -> None:
        numbered = replace(tune, command=self.membership.next_command())
        self._tunes.append(numbered)
        self._tell_all(numbered)

    # -- requests of clients ---------------------------------------------------------------------------------------

    def ask(self, message: Message) -> Response:
        """Carry out the request of a client."""
        if why_not := why_senseless(message):
            return Response(ok=False, detail=why_not)
        match message:
            case StatusRequest():
                return Response(ok=True, status=self.status())
            case ResizeRequest(size=size):
                self._not_started = ""
                why_not, orders = self.membership.resize(size)
                self._obey(orders)
                why_not = why_not or self._not_started
                return Response(not why_not, why_not)
            case PreemptRequest(grace_s=grace_s):
                self.preempt(grace_s)
                return Response(ok=True)
            case StopRequest():
                self._stopping = self.membership.finishing = True
                self._tell_all(Stop(self.membership.next_command()))
                return Response(ok=True)
            case KillRequest(id=number):
                rank = self.ranks.get(number)
                if rank is None or not rank.living or not rank.pid:
                    living = [rank.id for rank in self.ranks.values() if rank.living]
                    return Response(ok=False, detail=f"found id {number}, expected one of {living}")
                kill(self._belongings.of(rank.id, rank.pid))
                return Response(ok=True)
            case TuneRequest(global_batch=batch, loader_workers=workers, prefetch=prefetch):
                self._tune(TuneSettings(0, batch, workers, prefetch))
                return Response(ok=True)
            case _:
                return Response(ok=False, detail=f"{type(message).__name__} is not a request")

    def status(self) -> dict[str, Any]:
        """Return the present state of the gang and its ranks."""
        where = {number: member.where.value for number, member in self.membership.ranks.items()}
        stopping = "failing" if self._failing else "preempting" if self._announced else "stopping"
        running = not (self._failing or self._announced or self._stopping)
        return {
            "gang": self.gang, "state": "running" if running else stopping, "generation": self.membership.generation,
            "command": self.membership.command, "target": self.membership.target,
            "members": list(self.membership.members), "zygote": self._belongings.zygote, "supervisor": os.getpid(),
            "ranks": [
                {"id": rank.id, "slot": rank.slot, "pid": rank.pid, "how": rank.how, "where": where.get(rank.id, ""),
                 "connected": rank.connection is not None, "code": rank.code, "living": rank.living, **rank.last}
                for rank in self.ranks.values()
            ],
        }  # fmt: skip

    def preempt(self, grace_s: float | None = None) -> None:
        """Ask all ranks to save and leave. Those left get SIGTERM, and SIGKILL at the end of the grace period."""
        grace_s = self.job.grace_s if grace_s is None else max(0.0, grace_s)
        self._stop_all(max(0.0, grace_s - self.job.term_s), grace_s)

    def _stop_all(self, term_after_s: float, kill_after_s: float) -> None:
        self._announced = self.membership.closing = True
        command = self.membership.next_command()
        for rank in self.ranks.values():
            if rank.living:
                rank.told = True
                self._tell(rank.id, Prepare(command, term_after_s, 0))
                rank.plan(time.monotonic(), 0.0 if rank.connection is None else term_after_s, kill_after_s)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _left_s(self, rank: Rank) -> float:
        return max(0.0, rank.ladder[0][0] - time.monotonic())

    def _climb(self, rank: Rank, now_s: float) -> None:
        """Send the signals that are due, if the process has started."""
        while rank.living and rank.pid and rank.ladder and now_s >= rank.ladder[0][0]:
            _, number = rank.ladder.pop(0)
            rank.signalled = True
            if number == signal.SIGTERM:
                self._terminate(rank)
            else:
                self._say(f"rank {rank.id} (process {rank.pid}) is still running: SIGKILL")
                kill(self._belongings.of(rank.id, rank.pid))

    def _terminate(self, rank: Rank) -> None:
        """Send SIGTERM to the rank's process group, since a shell does not forward it."""
        found = processes.seen(rank.pid)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(rank.handle, 0)  # fails if the process has ended and its id may be reused
            if found is not None and found.session == rank.pid:
                os.killpg(rank.pid, signal.SIGTERM)
            else:
                signal.pidfd_send_signal(rank.handle, signal.SIGTERM)

    def _ended(self, rank: Rank, code: int | None) -> None:
        """The rank's process has ended; ``code`` is like ``Popen.returncode``, None if it is unknown."""
        self._hear_last_words(rank)
        now_s = time.monotonic()
        rank.ended, rank.code, rank.ended_s, rank.sweep_s = True, code, now_s, now_s
        rank.ladder.clear()
        self._hangs.busy(rank.id)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(rank.handle)
        os.close(rank.handle)
        rank.handle = -1
        rank.read_error(self._error_file(rank))
        member = self.membership.ranks.get(rank.id)
        known = member is not None and member.where is not Where.STARTING  # it speaks the protocol
        if self._failing and rank.was_killed:
            rank.is_cause = True
        if self._failing or self._announced or rank.as_told():
            self._obey(self.membership.gone(rank.id))
        elif code == 0:
            self._look_for_early_end()
            self._obey(self.membership.finished(rank.id))
        elif code == -signal.SIGTERM and member is not None and member.where in (Where.STARTING, Where.BUILDING):
            self._say(f"rank {rank.id} {how(code)} before it was ready: asking all ranks to leave")
            self.preempt()
            self._obey(self.membership.gone(rank.id))
        elif code is not None and code < 0 and (known or self.membership.generation):
            self._say(f"rank {rank.id} (process {rank.pid}) {how(code)}")
            if self.membership.survives(rank.id):
                if self.membership.generation:
                    self._say(f"the other ranks continue without rank {rank.id}")
                self._obey(self.membership.gone(rank.id))
            else:
                self._fail_without(rank, f"rank {rank.id} {how(code)}")
        else:
            self._fail_without(rank, f"rank {rank.id} {how(code)}")

    def _hear_last_words(self, rank: Rank) -> None:
        """Read its last messages: its end may be seen before the message that it leaves."""
        connection = rank.connection
        while connection is not None and not connection.closing and select.select([connection.socket], [], [], 0)[0]:
            self._hear(connection, selectors.EVENT_READ)

    def _sweep(self, rank: Rank, now_s: float) -> None:
        """Kill the processes that a rank has left behind, until none is left."""
        if rank.sweep_s is None:
            return
        left = self._belongings.of(rank.id, rank.pid)
        waited_s = now_s - rank.sweep_s
        if left and waited_s < processes.KILL_DEADLINE_S:
            kill(left, janitors=waited_s > processes.JANITOR_S)
            return
        rank.sweep_s = None
        self._unkillable += [process.pid for process in left]

    def _look_for_hung(self, now_s: float) -> None:
        members = [number for number in self.membership.members if number in self.membership.ranks]
        hung, waited_s = self._hangs.hung([m for m in members if self.ranks[m].living], now_s)
        for number in hung:
            rank = self.ranks[number]
            waits_in = [wait.step for m in members if (wait := self.ranks[m].waits_in) is not None and m not in hung]
            where = f"in step {max(waits_in)}" if waits_in else f"its last step was {rank.last.get('step', 'none')}"
            who = f"rank {number} (process {rank.pid})"
            self._say(f"{who} hangs: all other ranks have waited for {waited_s:.0f} s, {where}; SIGKILL")
            self._hangs.busy(number)
            kill(self._belongings.of(rank.id, rank.pid))

    def _look_for_early_end(self) -> None:
        """Fail if the script has ended on one rank while another does more steps, for which it needs all ranks.

        A rank that ends without a word (``os._exit(0)``) has left early if a collective of its generation fails.
        """
        for rank in self.ranks.values():
            said = rank.finished
            if rank.left or rank.code != 0 or (said is not None and said.together):
                continue
            for other in self.ranks.values():
                broke = other.broke_in
                if not other.living or broke is None:
                    continue
                if said is not None:
                    early, step = broke.step >= said.step, f" after step {said.step}"
                else:
                    step = ""
                    early = broke.generation == self.membership.generation and rank.id in self.membership.members
                if early:
                    left = f"rank {rank.id} left the training loop{step} and ended"
                    self._fail(f"{left}, while rank {other.id} continues: {_SAME_STEPS}")

    def _look_for_different_waits(self) -> None:
        """Fail if all ranks wait in different places: one has left the loop, and the others would wait for ever."""
        members = [self.ranks[number] for number in self.membership.members]
        waits = [rank.waits_in for rank in members if rank.living and rank.waits_in is not None]
        if len(waits) < len(members) or any(wait.generation != self.membership.generation for wait in waits):
            return
        if len({(wait.step, wait.what) for wait in waits}) > 1 and min(wait.for_s for wait in waits) >= _DIFFERENT_S:
            told = [f"rank {rank.id} in {_where(wait)}" for rank, wait in zip(members, waits, strict=True)]
            self._fail(f"the ranks wait for one another in different places ({', '.join(told)}): {_SAME_STEPS}")

    def _fail(self, why: str, cause: Rank | None = None) -> None:
        """One rank has failed, so the whole gang fails."""
        if self._failing:
            return
        if cause is not None:
            cause.is_cause = True
        self._failing = self.membership.closing = True
        self._failure = why
        if self._forwarder is not None:
            self._forwarder.failing()
        for rank in self.ranks.values():
            if rank.living:
                last_words_s = min(LAST_WORDS_S, self.job.failure_grace_s / 2)
                rank.plan(time.monotonic(), last_words_s, self.job.failure_grace_s)
        if not self._announced:  # after an announced stop, all ranks are already saving and leaving
            self._obey(self.membership.dissolve())

    def _fail_without(self, rank: Rank, why: str) -> None:
        """Fail because of a rank that has ended. `_fail` comes first, so that no group is formed without it."""
        self._fail(why, rank)
        self._obey(self.membership.gone(rank.id))

    def _conclude(self) -> Outcome:
        ranks = list(self.ranks.values())
        failed = causes(ranks, failing=self._failing)
        self._end_everything([rank.id for rank in failed])
        if not self._failing and not failed:
            # a rank that left for a smaller generation does not count
            last = [rank for rank in ranks if rank.id in self.membership.members or not self.membership.generation]
            return success(last, announced=self._announced)
        first = failed[0] if failed else None
        if first is not None and self._forwarder is None:
            sys.stderr.write(first.traceback)
        outcome = failure(first, self._failure)
        self._say(outcome.detail)
        return outcome

    def _end_everything(self, order: list[int] | None = None) -> None:
        """End all processes of this gang; report those that cannot be killed."""
        if self._folder == "":
            return
        left = processes.kill_all(self._belongings.all, self._reaped)
        self._nursery.drop()
        if not self._belongings.shared:
            self._belongings.zygote = 0  # it ends by itself; if not, it is killed like the others
            deadline_s = time.monotonic() + self.job.term_s
            while self._belongings.all() and time.monotonic() < deadline_s:
                self._reaped(processes.reap())
                time.sleep(_PAUSE_S)
            left = processes.kill_all(self._belongings.all, self._reaped)
        if left or self._unkillable:
            pids = sorted({p.pid for p in left} | set(self._unkillable))
            self._say(f"still running after SIGKILL: processes {', '.join(map(str, pids))}")
        self._channel.close()
        if self._forwarder is not None:
            self._forwarder.finish(order or [])
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = ""

    # -- small things ----------------------------------------------------------------------------------------------

    def _living(self) -> int:
        return sum(rank.living for rank in self.ranks.values())

    def _error_file(self, rank: Rank) -> str:
        return os.path.join(self._folder, f"error-{rank.id}.json")

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"brim: {text}\n")
            sys.stderr.flush()


def _ranks(number: int) -> str:
    return f"{number} rank{'' if number == 1 else 's'}"


def _where(wait: Waiting) -> str:
    return f"step {wait.step + 1}" if wait.what == "step" else f"{wait.what} after step {wait.step}"
