"""The controller, the store's statements and what decides in the agent, under seeded virtual time with faults.

Users, supervisors, jobs and the network are models of a few lines; time, faults and the order of everything come from
one seed. A witness watches the processes themselves: it trusts neither controller nor agent.
"""

from __future__ import annotations

import functools
import heapq
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count

from brim.agent.attempts import NodeAttempts
from brim.agent.effects import (
    AgentEffect,
    AttemptEnd,
    CheckDevices,
    Forgotten,
    GangSeen,
    Key,
    Launch,
    Request,
    SendReport,
    Sweep,
    WriteEnd,
    WriteFence,
)
from brim.agent.protocol import (
    FAILED,
    FINISHED,
    ON_CPU,
    STOPPED,
    VERSION,
    AgentHello,
    AgentOrder,
    AttemptProgress,
    AttemptSeen,
    DeviceSeen,
    StartAttempt,
    Synced,
)
from brim.core.cluster import parse_cluster
from brim.gang.messages import PreemptRequest, ResizeRequest, TuneSettings
from brim.live.controller import Controller
from brim.live.inputs import AgentJoined, AgentLost, AgentSynced, AttemptReported, Device, Progress
from brim.live.invariants import (
    check_conservation,
    check_controller,
    check_devices,
    check_fences,
    check_phases,
    check_times,
    check_truth,
)
from brim.live.records import AttemptRecord, JobRecord
from brim.live.requests import NONE, JobRequest
from brim.live.store import transactions
from brim.live.store.errors import TooManyJobsError
from brim.live.store.reading import Reader
from brim.live.store.rows import ATTEMPT_COLUMNS, JOB_COLUMNS, read_attempt, read_job
from brim.live.store.schema import MIGRATIONS
from brim.policies.sockets import Policy

DEVICES = 4
GAP_MS = 50
NAMES = tuple(map(str, range(DEVICES)))
SAVE_MS = 40
"""Time a process takes to stop when it is asked."""
CHECKED = 4
"""Of so many steps one is followed by a check of all that is stored."""

AT_ONCE, PAUSE_MS = 200, 500
"""A controller that cannot write is started again at once; after so many in a row, each begins after a pause."""


class DiskFullError(Exception):
    """The volume had no room for a transaction."""


class MemoryStore:
    """The statements of the store on a database in memory, which outlives the controller."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute("PRAGMA foreign_keys = ON")
        for statement in chain.from_iterable(MIGRATIONS):
            self._connection.execute(statement)
        self.reads = Reader.__new__(Reader)
        self.reads._connection, self.reads._lock = self._connection, threading.Lock()
        self.full = False
        self._job, self._attempt = functools.cache(read_job), functools.cache(read_attempt)  # most rows recur

    def _write(self, work: Callable[[], object]) -> object:
        self._connection.execute("BEGIN")
        try:
            done = work()
            if self.full:
                raise DiskFullError
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        return done

    def accept(self, item, now_ms: int, wall_s: float):
        return self._write(lambda: transactions.accept(self._connection, transactions.Moment(now_ms, wall_s), item))

    def commit(self, changes, snapshot: bytes | None) -> None:
        moment = transactions.Moment(changes.at_ms, 0.0)
        self._write(lambda: transactions.commit(self._connection, moment, changes, snapshot))

    def jobs(self) -> dict[int, JobRecord]:
        rows = self._connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs")
        return {job.id: job for job in map(self._job, rows)}

    def attempts(self) -> list[AttemptRecord]:
        return list(map(self._attempt, self._connection.execute(f"SELECT {ATTEMPT_COLUMNS} FROM attempts")))

    def lines(self) -> list[str]:
        return [line for (line,) in self._connection.execute("SELECT line FROM journal ORDER BY id")]


@dataclass
class Work:
    """What a job really does.

    Attributes:
        left_ms: Work that is left on one device.
        fails: Exit codes of its first attempts, after half a second each; then it works until it has finished.
        ignores: Whether it works on until it has finished when it is asked to stop.
    """

    left_ms: int
    fails: list[int] = field(default_factory=list)
    ignores: bool = False


@dataclass
class Gang:
    """All processes of one attempt, with the supervisor that watches them: they outlive the agent."""

    order: StartAttempt
    devices: tuple[int, ...]
    ranks: int
    number: int  # of the newest request
    since_ms: int
    begin_ms: int
    loaders: int = 0  # data-loading processes of each rank
    serial: int = 0  # of its newest due time; older ones are void
    is_stopping: bool = False
    end: AttemptEnd | None = None

    def seen(self, progress: AttemptProgress | None = None) -> GangSeen:
        return GangSeen(
            sequence=self.number, has_processes=True, is_grouped=self.ranks > 0, is_stopping=self.is_stopping,
            is_settled=True, ranks=self.ranks, devices=self.devices, progress=progress,
        )


class ModelNode:
    """What decides in the agent of one user, with models of its disk, its processes and its connection."""

    def __init__(self, world: VirtualCluster, uid: int) -> None:
        self.world, self.uid = world, uid
        self.fences: dict[Key, StartAttempt] = {}  # on disk
        self.ends: dict[Key, AttemptEnd] = {}
        self.forgotten: set[Key] = set()
        self.gangs: dict[Key, Gang] = {}  # processes that live, or whose supervisor was not heard yet
        self.connection = 0  # 0: none
        self.lives = 0  # how often it was started
        self.alive = False
        self.start()

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the agent, which finds what an earlier one has left."""
        self.alive = True
        self.lives += 1
        self.core = NodeAttempts(lambda: self.world.now_ms, NAMES)
        for key, order in sorted(self.fences.items()):
            gang = self.gangs.get(key)
            self.core.restore(
                order, end=self.ends.get(key), alive=gang is not None and gang.end is None,
                forgotten=key in self.forgotten,
            )
        for key, gang in self.gangs.items():
            if gang.end is None:
                self.core.launched(key, gang.begin_ms)
                self.core.connected(key)
                self.core.status(key, gang.seen())
        self.perform()

    def die(self) -> None:
        self.alive = False

    def connect(self) -> None:
        self.connection = next(self.world.serials)
        hello = AgentHello(version=VERSION, user=f"u{self.uid}", boot_id="boot", devices=NAMES)
        for report in (hello, *self.core.seen(), *(
            DeviceSeen(device=device, state=self.world.device_states[device]) for device in range(DEVICES)
        ), Synced()):
            self.world.to_controller(self, report)

    def obey(self, order: AgentOrder) -> None:
        self.core.obey(order)
        self.perform()

    def perform(self) -> None:
        """Do what the agent's core asks for; the agent may die between any two of its effects."""
        while self.alive and (effects := self.core.take_effects()):
            for effect in effects:
                if self.world.happens("agent_dies"):
                    self.world.kill(self)
                    return
                self._do(effect)
        if self.alive and (at_ms := self.core.next_ms()) is not None:
            self._soon(at_ms - self.world.now_ms, self.core.tick)

    def _soon(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Call the core later, if the agent still lives then."""
        life = self.lives

        def call() -> None:
            if self.alive and self.lives == life:
                what()
                self.perform()

        self.world.later(max(delay_ms, 0), call)

    def _do(self, effect: AgentEffect) -> None:
        match effect:
            case CheckDevices(key=key):
                self._soon(1, lambda: self.core.checked(key, ""))
            case WriteFence(order=order):
                key = (order.job, order.attempt)
                self.fences[key] = order
                self.core.fenced(key)
            case Launch(order=order):
                self._launch(order)
            case Request(key=key, message=message):
                self._soon(1, lambda: self._request(key, message))
            case Sweep(key=key):
                self.gangs.pop(key, None)
                self.core.swept(key, ())
            case WriteEnd(key=key, end=end):
                self.ends[key] = end
                self.core.end_written(key)
            case Forgotten(key=key):
                self.forgotten.add(key)
            case SendReport(report=report):
                self.world.to_controller(self, report)

    # -- processes -------------------------------------------------------------------------------------------------

    def _launch(self, order: StartAttempt) -> None:
        key, now_ms = (order.job, order.attempt), self.world.now_ms
        self.world.forked(key)
        gang = self.gangs[key] = Gang(
            order, order.devices, order.ranks, 2 * order.sequence + 1, now_ms, now_ms, max(order.loader_workers, 0)
        )
        self._plan_end(key, gang)
        self.core.launched(key, now_ms)

        def begins() -> None:
            if gang.end is None:
                self.core.connected(key)
                self.core.status(key, gang.seen())

        self._soon(self.world.rng.randint(1, 20), begins)

    def _request(self, key: Key, message: PreemptRequest | ResizeRequest | TuneSettings) -> None:
        gang = self.gangs.get(key)
        if gang is None or gang.end is not None:
            return
        if isinstance(message, PreemptRequest):
            gang.is_stopping = True
            self.world.happened["a gang was stopped"] += 1
            work = self.world.work[key[0]]
            self._account(gang)
            code = self.world.rng.choice((75, 143, 1))
            delay_ms = SAVE_MS if not work.ignores else min(round(1000 * (message.grace_s or 0)), 2_000)
            if work.ignores and work.left_ms <= delay_ms:
                return  # it finishes before it is killed
            self._plan(key, gang, delay_ms, AttemptEnd(outcome=STOPPED, exit_code=code))
            self.core.status(key, gang.seen())
            return
        number = message.fence[-1]
        if number > gang.number:
            self._account(gang)
            gang.number = number
            if isinstance(message, ResizeRequest):
                self.world.happened["a gang was resized"] += 1
                gang.ranks, gang.devices = message.size, tuple(map(NAMES.index, message.devices))
            elif message.loader_workers_max is not None:
                gang.loaders = message.loader_workers_max
            if not gang.is_stopping:
                self._plan_end(key, gang)
        self.core.answered(key, number, "")
        self.core.status(key, gang.seen())

    def _account(self, gang: Gang) -> None:
        """Book the work done since the last change of its devices."""
        work = self.world.work[gang.order.job]
        work.left_ms -= (self.world.now_ms - gang.since_ms) * max(len(gang.devices), 1)
        gang.since_ms = self.world.now_ms

    def _plan_end(self, key: Key, gang: Gang) -> None:
        work = self.world.work[key[0]]
        if work.fails:
            self._plan(key, gang, 500, AttemptEnd(outcome=FAILED, exit_code=work.fails[0]))
        else:
            left_ms = max(1, -(-work.left_ms // max(len(gang.devices), 1)))
            self._plan(key, gang, left_ms, AttemptEnd(outcome=FINISHED, exit_code=0))

    def _plan(self, key: Key, gang: Gang, delay_ms: int, end: AttemptEnd) -> None:
        """Let the processes end at a time, in place of what was planned before."""
        gang.serial += 1
        serial = gang.serial

        def ends() -> None:
            if self.gangs.get(key) is not gang or gang.end is not None or gang.serial != serial:
                return
            self._account(gang)
            gang.end = replace(end, started_ms=gang.begin_ms, ended_ms=self.world.now_ms)
            if end.outcome == FAILED:
                self.world.work[key[0]].fails.pop(0)
            if end.outcome == FINISHED:
                self.world.happened["a job came back and finished"] += key[1] > 1
                self.world.succeeded.add(key[0])
            self.ends.setdefault(key, replace(gang.end, is_written=True))  # the supervisor writes it
            if self.alive:
                self.core.supervisor_ended(key, self.ends[key])
                self.perform()

        self.world.later(delay_ms, ends)

    def lose_a_gang(self) -> None:
        """Somebody kills a supervisor and its processes: nobody sees how they end."""
        living = [key for key, gang in self.gangs.items() if gang.end is None]
        if living:
            self.world.happened["a gang was killed"] += 1
            gang = self.gangs.pop(living[0])
            gang.serial += 1
            self._account(gang)
            self.core.supervisor_ended(living[0], None)
            self.perform()

    def reports(self) -> None:
        """Say how far the running attempts are, and repeat what may have been lost."""
        for key, gang in list(self.gangs.items()):
            if gang.end is None and gang.ranks:
                self.world.to_controller(self, AttemptProgress(
                    job=key[0], attempt=key[1], ranks=gang.ranks, samples=float(self.world.now_ms), total=1e6,
                    samples_per_s=5.0, step_s=0.1 / gang.ranks, sync_s=0.01, local_batch=8,
                ))
        for seen in self.core.seen():
            self.world.to_controller(self, seen)


@dataclass(frozen=True)
class Chances:
    """How often things go wrong, drawn anew for each seed; 0 for never."""

    lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    crash: float = 0.0
    disconnect: float = 0.0
    agent_dies: float = 0.0
    clock_jumps: float = 0.0
    disk_full: float = 0.0
    killed: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Chances:
        return cls(**{
            name: rng.choice((0.0, 0.0, rng.random() * most)) for name, most in (
                ("lost", 0.2), ("late", 0.5), ("twice", 0.3), ("crash", 0.15), ("disconnect", 0.05),
                ("agent_dies", 0.02), ("clock_jumps", 0.1), ("disk_full", 0.05),
                ("killed", 0.05),
            )
        })


@dataclass(frozen=True)
class Limits:
    """What users may have, and how often their jobs have a deadline."""

    user_gpus: int = NONE
    user_jobs: int = NONE
    deadlines: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Limits:
        return cls(rng.choice((NONE, 1, 2, 3)), rng.choice((NONE, 2, 4)), rng.choice((0.0, 0.5)))


class VirtualCluster:
    """Everything between users and processes, in one thread, under one clock that only the heap moves."""

    def __init__(
        self, seed: int, policy: Policy, chances: Chances | None = None, *, snapshots: bool = True,
        limits: Limits = Limits(), cores: int = 0,
    ) -> None:
        self.rng, self.limits = random.Random(seed), limits
        self.deadlines = random.Random(f"deadlines {seed}")  # of its own: the rest is as it is without deadlines
        self.chances = Chances.drawn(self.rng) if chances is None else chances
        self.policy, self.snapshots = policy, snapshots
        self.cores = cores
        self.cluster = parse_cluster(f"1x{DEVICES}xcpu" + f":cpus={cores}" * bool(cores))
        self.now_ms = 0
        self.serials = count(1)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self.store = MemoryStore()
        self.work: dict[int, Work] = {}
        self.succeeded: set[int] = set()
        self.accepted: list[int] = []
        self.device_states = ["open"] * DEVICES
        self.agents = {uid: ModelNode(self, uid) for uid in (1, 2, 3)}
        self.forks: list[tuple[int, int]] = []
        self.steps = self.commits = 0
        self._refused = 0  # commits in a row that the disk had no room for
        self.happened: Counter[str] = Counter()
        self.calm = False
        self.crash_at: int | None = None
        self._inputs: list = []
        self._known: dict[int, JobRecord] = {}
        self._start_controller()
        for agent in self.agents.values():
            self.later(self.rng.randint(0, 50), agent.connect)
        self._tick()

    # -- time ------------------------------------------------------------------------------------------------------

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_ms + delay_ms, next(self.serials), what))

    def run(self, until_ms: int) -> None:
        """Let time pass."""
        while self._heap and self._heap[0][0] <= until_ms:
            due_ms, _, what = heapq.heappop(self._heap)
            self.now_ms = max(self.now_ms, due_ms)
            what()
            self.witness()
        self.now_ms = max(self.now_ms, until_ms)

    def _tick(self) -> None:
        """What happens all the time: reports, and faults that nobody asked for."""
        for agent in self.agents.values():
            if agent.connection:
                agent.reports()
                if self.happens("disconnect"):
                    self._disconnect(agent)
                elif self.happens("killed"):
                    agent.lose_a_gang()
        if self.happens("clock_jumps"):  # the machine was suspended
            self.happened["time jumped"] += 1
            self.now_ms += self.rng.choice((1_000, 3_600_000))
        if self.happens("disk_full"):
            self.store.full = True
            self.happened["the disk was full"] += 1
            self.later(self.rng.randint(100, 3_000), self._room)
        self.later(2_000, self._tick)

    def _room(self) -> None:
        self.store.full = False

    def happens(self, what: str) -> bool:
        return not self.calm and self.rng.random() < getattr(self.chances, what)

    def kill(self, agent: ModelNode) -> None:
        """The agent dies, its processes go on; it is started again after a while."""
        self.happened["an agent died"] += 1
        agent.die()
        away_ms = self.rng.randint(100, 40_000)
        self._disconnect(agent, away_ms)
        self.later(away_ms, lambda: self._reconnect(agent))

    def _disconnect(self, agent: ModelNode, away_ms: int = 200) -> None:
        if agent.connection:
            agent.connection = 0
            self._inputs.append(AgentLost(at_ms=self.now_ms, uid=agent.uid))
            self._wake()
            self.later(away_ms, lambda: self._reconnect(agent))

    def _reconnect(self, agent: ModelNode) -> None:
        if not agent.alive:
            agent.start()
        if agent.alive and not agent.connection:
            agent.connect()

    # -- the network -----------------------------------------------------------------------------------------------

    def to_controller(self, agent: ModelNode, message) -> None:
        connection = agent.connection
        if not connection:
            return
        handshake = isinstance(message, AgentHello | Synced | DeviceSeen)

        def arrive() -> None:
            if agent.connection != connection:
                return
            now_ms, uid = self.now_ms, agent.uid
            self._inputs.append({
                AgentHello: lambda: AgentJoined(at_ms=now_ms, uid=uid, hello=message),
                Synced: lambda: AgentSynced(at_ms=now_ms, uid=uid),
                AttemptSeen: lambda: AttemptReported(at_ms=now_ms, uid=uid, seen=message),
                AttemptProgress: lambda: Progress(at_ms=now_ms, uid=uid, progress=message),
                DeviceSeen: lambda: Device(at_ms=now_ms, uid=uid, device=message),
            }[type(message)]())
            self._wake()

        if handshake or agent.connection not in self._greeted(agent):
            self.later(1, arrive)  # a stream: what opens it comes whole and in order
        else:
            self._deliver(arrive)

    def _greeted(self, agent: ModelNode) -> set[int]:
        """Connections whose handshake is over: from then on messages are lost, late and repeated."""
        return {agent.connection} if any(
            uid == agent.uid for uid in self.controller.agents
        ) else set()

    def to_agent(self, uid: int, order) -> None:
        agent = self.agents[uid]
        connection = agent.connection

        def arrive() -> None:
            if agent.alive and agent.connection == connection != 0:
                agent.obey(order)

        self._deliver(arrive)

    def _deliver(self, arrive: Callable[[], None]) -> None:
        if self.happens("lost"):
            self.happened["a message was lost"] += 1
            return
        delay_ms = self.rng.randint(100, 3_000) if self.happens("late") else 1
        self.later(delay_ms, arrive)
        if self.happens("twice"):
            self.later(delay_ms + self.rng.randint(0, 500), arrive)

    # -- the controller --------------------------------------------------------------------------------------------

    def _start_controller(self, pause_ms: int = 0) -> None:
        self.controller = Controller(self.cluster, self.policy, gap_ms=GAP_MS, user_gpus=self.limits.user_gpus)
        found = self.store.reads.recovered()
        self.controller.recover(found.snapshot, found.lines, found.jobs, found.attempts, self.now_ms)
        self._inputs = list(found.inputs)
        self._waking: set[int] = set()
        self._wake(self.now_ms + pause_ms)

    def _crash(self, pause_ms: int = 0) -> None:
        """The controller is killed, and started again; its agents connect anew."""
        self.happened["the controller crashed"] += 1
        self._start_controller(pause_ms)
        for agent in self.agents.values():
            if agent.connection:
                agent.connection = 0
                self.later(self.rng.randint(1, 300), lambda agent=agent: self._reconnect(agent))

    def _wake(self, at_ms: int | None = None) -> None:
        """Let the controller step at a time, or as soon as it can."""
        at_ms = max(self.now_ms + 1, 0 if at_ms is None else at_ms + 1)
        if at_ms not in self._waking:
            self._waking.add(at_ms)
            self.later(at_ms - self.now_ms, lambda waking=self._waking: self._step(at_ms, waking))

    def _step(self, at_ms: int, waking: set[int]) -> None:
        waking.discard(at_ms)
        if waking is not self._waking:
            return  # of a controller that is no more
        self.steps += 1
        inputs, self._inputs = self._inputs, []
        back_ms = self.rng.randint(0, 500) if self.happens("clock_jumps") else 0
        result = self.controller.step(inputs, self.now_ms - back_ms)
        if result.changes.lines or result.changes.jobs or result.changes.attempts or result.changes.inbox_done:
            self.commits += 1
            if self.commits * 2 - 1 == self.crash_at or self.happens("crash"):
                self._crash()
                return
            try:
                self.store.commit(result.changes, self.controller.save() if self._snapshot_is_due() else None)
            except DiskFullError:
                self._refused += 1
                self._crash(PAUSE_MS if self._refused > AT_ONCE else 0)
                return
            self._refused = 0
            if self.commits * 2 == self.crash_at or self.happens("crash"):
                self._crash()
                return
        for dispatch in result.orders:
            self.to_agent(dispatch.uid, dispatch.order)
        self.check(whole=self.steps % CHECKED == 0)
        if result.wake_ms is not None:
            self._wake(result.wake_ms)

    def _snapshot_is_due(self) -> bool:
        return self.snapshots and self.rng.random() < 0.03

    # -- users -----------------------------------------------------------------------------------------------------

    def submit(self, uid: int, *requests: tuple[JobRequest, Work]) -> tuple[int, ...]:
        """Submit jobs; returns their ids, none if the disk is full or the user has too many."""
        item = transactions.Submission(
            uid=uid, user=f"u{uid}", key=f"key-{next(self.serials)}", jobs_max=self.limits.user_jobs,
            requests=tuple(self._captured(request) for request, _ in requests),
        )
        try:
            accepted = self.store.accept(item, self.now_ms, 1_000_000 + self.now_ms / 1_000)
        except DiskFullError:
            return ()
        except TooManyJobsError:
            self.happened["a user had too many jobs"] += 1
            return ()
        for job, (_, work) in zip(accepted.ids, requests, strict=True):
            self.work[job] = work
        self.accepted += accepted.ids
        self._inputs += accepted.inputs
        self._wake()
        return accepted.ids

    def _captured(self, request: JobRequest) -> JobRequest:
        """A request as the client sends it, some with a deadline."""
        deadline_s = 0
        if self.deadlines.random() < self.limits.deadlines:
            deadline_s = int(1_000_000 + self.now_ms / 1_000) + self.deadlines.randint(-5, 60)
        return replace(request, capture=f"{next(self.serials):032x}", deadline_s=deadline_s)

    def command(self, uid: int, verb, job: int) -> None:
        try:
            accepted = self.store.accept(
                transactions.JobCommand(uid=uid, user=f"u{uid}", verb=verb, jobs=(job,)), self.now_ms, 0.0
            )
        except DiskFullError:
            return
        self._inputs += accepted.inputs
        self._wake()

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self, *, whole: bool = True) -> None:
        """The invariants after a step of the controller that was committed."""
        check_devices(self.controller.ledger)
        if not whole:
            return
        check_controller(self.controller)
        jobs, attempts = self.store.jobs(), self.store.attempts()
        check_conservation(self.accepted, jobs)
        for job, record in self._known.items():
            assert not record.has_ended or jobs[job] == record, f"{record} had ended, and was changed to {jobs[job]}"
        check_fences(attempts)
        check_devices(attempts)
        check_truth(jobs.values(), attempts)
        check_phases(jobs.values(), attempts)
        check_times(jobs.values(), attempts, self.now_ms)
        self._known = jobs
        for job, record in self.controller.jobs.items():
            assert jobs[job] == record, f"memory {record}, store {jobs[job]}"
        for job, record in jobs.items():
            assert record.state != "finished" or job in self.succeeded, f"job {job} did not finish"
            for hold in {"quota", "array limit"}.intersection(record.holds):
                self.happened[f"a job waited for its {hold}"] += 1
            if record.request.deadline_s and record.has_ended:
                self.happened["a job with a deadline ended"] += 1
        alive = Counter(record.uid for record in jobs.values() if not record.has_ended)
        assert self.limits.user_jobs == NONE or max(alive.values(), default=0) <= self.limits.user_jobs

    def forked(self, key: Key) -> None:
        assert key not in self.forks, f"job {key[0]} has forked attempt {key[1]} twice"
        self.forks.append(key)

    def witness(self) -> None:
        """I4, I6 and the quotas among the processes themselves."""
        jobs: dict[int, int] = {}
        owner: dict[int, int] = {}
        for (job, attempt), gang in self._living():
            assert jobs.setdefault(job, attempt) == attempt, f"job {job} runs as attempts {jobs[job]} and {attempt}"
            for device in gang.devices:
                if device == ON_CPU:
                    continue
                assert owner.setdefault(device, job) == job, f"device {device} has jobs {owner[device]} and {job}"
        taken_milli = sum(self._cores_milli(gang) for _, gang in self._living())
        assert not self.cores or taken_milli <= 1_000 * self.cores, f"{taken_milli} of {self.cores} cores are taken"
        for agent in self.agents.values() if self.limits.user_gpus != NONE else ():
            used = sum(len(gang.devices) for gang in agent.gangs.values() if gang.end is None)
            assert used <= self.limits.user_gpus, f"jobs of u{agent.uid} have {used} devices"

    def _cores_milli(self, gang: Gang) -> int:
        request, ranks = self.store.jobs()[gang.order.job].request, len(gang.devices)
        loaders_milli = 1_000 * gang.loaders * self.policy.declares("feed", "counts_cores")
        if ON_CPU in gang.devices:
            assert gang.order.cpu_milli >= 1_000, "a rank on CPU has no core"
            return ranks * (gang.order.cpu_milli + loaders_milli)
        return ranks * (round(1_000 * request.cpus_per_gpu) + loaders_milli)

    def _living(self) -> Iterator[tuple[Key, Gang]]:
        for agent in self.agents.values():
            yield from ((key, gang) for key, gang in agent.gangs.items() if gang.end is None)

    def settle(self, minutes: int = 3) -> None:
        """Stop all faults, let everything pass, and check that all jobs that can end have ended (I22)."""
        self.calm = True
        self.store.full = False
        self.device_states = ["open"] * DEVICES
        for agent in self.agents.values():
            self._reconnect(agent)
            for device in range(DEVICES):
                self.to_controller(agent, DeviceSeen(device=device, state="open"))
        for _ in range(6 * minutes):
            self.run(self.now_ms + 10_000)
            if not any(self._unsettled()):
                self.run(self.now_ms + 10_000)  # nothing comes after it
                break
        self.check()
        assert not (left := list(self._unsettled())), left

    def _unsettled(self) -> Iterator[str]:
        """What is not as it stays for ever."""
        for job in self.store.jobs().values():
            never = job.holds == ("quota",) and job.request.limits[0] > self.limits.user_gpus
            if not (job.has_ended or never or set(job.holds) & {"user", "crash guard"} or any(
                hold.startswith(("after", "impossible")) for hold in job.holds
            )):
                yield f"job {job.id} is {job.state} for ever: {job}"
        yield from (f"attempt {attempt} of job {job} lives" for (job, attempt), _ in self._living())
        for agent in self.agents.values():
            yield from (f"an attempt that no controller has let go: {seen}" for seen in agent.core.seen())


def request(**fields) -> JobRequest:
    """A request with a capture that nobody reads."""
    return JobRequest(**{"name": "job", "capture": "0" * 32, "digest": "0" * 64} | fields)
