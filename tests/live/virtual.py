"""The real controller and the real tables of the store under seeded virtual time, with faults.

Users, agents, jobs and the network are models of a few lines; time, faults and the order of everything come from one
seed. A witness watches the processes themselves: it trusts neither controller nor agent.
"""

from __future__ import annotations

import heapq
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

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
    VERSION,
    AgentHello,
    AttemptProgress,
    AttemptSeen,
    DeviceSeen,
    ForgetAttempt,
    ResizeAttempt,
    StartAttempt,
    StopAttempt,
    Synced,
    TuneAttempt,
)
from brim.core.cluster import parse_cluster
from brim.live.controller import Controller
from brim.live.inputs import AgentJoined, AgentLost, AgentSynced, Device, Progress, Saw
from brim.live.invariants import (
    check_conservation,
    check_controller,
    check_devices,
    check_fences,
    check_terminal,
    check_truth,
)
from brim.live.records import AttemptRecord, JobRecord
from brim.live.requests import JobRequest
from brim.live.store import transactions
from brim.live.store.reading import Reader
from brim.live.store.rows import ATTEMPT_COLUMNS, JOB_COLUMNS, read_attempt, read_job
from brim.live.store.schema import MIGRATIONS
from brim.policies.sockets import Policy

DEVICES = 4
GAP_MS = 50
SAVE_MS = 40
"""Time a process takes to stop when it is asked."""
CHECKED = 4
"""Of so many steps one is followed by a check of all that is stored."""


class DiskFullError(Exception):
    """The volume had no room for a transaction."""


class MemoryStore:
    """The statements of the store on a database in memory, which outlives the controller."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute("PRAGMA foreign_keys = ON")
        for statement in MIGRATIONS[-1]:
            self._connection.execute(statement)
        self.reads = Reader.__new__(Reader)
        self.reads._connection, self.reads._lock = self._connection, threading.Lock()
        self.full = False

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
        return {job.id: job for job in map(read_job, rows)}

    def attempts(self) -> list[AttemptRecord]:
        return list(map(read_attempt, self._connection.execute(f"SELECT {ATTEMPT_COLUMNS} FROM attempts")))

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
class Process:
    """All processes of one attempt."""

    order: StartAttempt
    state: str = STARTING
    sequence: int = 0
    devices: tuple[int, ...] = ()
    since_ms: int = NONE
    begin_ms: int = NONE
    outcome: str = ""
    exit_code: int = NONE
    serial: int = 0  # of its newest due time; older ones are void

    @property
    def lives(self) -> bool:
        return self.state in (RUNNING, STOPPING)


class ModelAgent:
    """A node agent of one user: fences on disk, processes that outlive it, and a connection that comes and goes."""

    def __init__(self, world: VirtualCluster, uid: int) -> None:
        self.world, self.uid = world, uid
        self.known: dict[tuple[int, int], Process] = {}  # on disk, as are the fences
        self.fences: dict[int, int] = {}
        self.finished: set[int] = set()
        self.connection = 0  # 0: none
        self.alive = True

    def connect(self) -> None:
        self.connection = next(self.world.serials)
        devices = tuple(map(str, range(DEVICES)))
        hello = AgentHello(version=VERSION, user=f"u{self.uid}", boot_id="boot", devices=devices)
        self.world.to_controller(self, hello)
        for key in list(self.known):
            self.say(*key)
        for device in range(DEVICES):
            self.world.to_controller(self, DeviceSeen(device=device, state=self.world.device_states[device]))
        self.world.to_controller(self, Synced())

    def say(self, job: int, attempt: int) -> None:
        one = self.known[job, attempt]
        now_ms = self.world.now_ms
        self.world.to_controller(self, AttemptSeen(
            job=job, attempt=attempt, sequence=one.sequence, state=one.state, devices=one.devices,
            ranks=one.order.ranks, outcome=one.outcome, exit_code=one.exit_code,
            started_ms_ago=NONE if one.begin_ms == NONE else now_ms - one.begin_ms,
        ))

    def obey(self, order) -> None:
        key = (order.job, order.attempt)
        match order:
            case StartAttempt():
                self._start(order)
            case StopAttempt():
                self._stop(order)
            case ForgetAttempt():
                if key in self.known and self.known[key].state == ENDED:
                    del self.known[key]
                return
            case ResizeAttempt() | TuneAttempt():
                one = self.known.get(key)
                if one is not None and one.state == RUNNING and order.sequence > one.sequence:
                    self._account(one)
                    one.sequence = order.sequence
                    if isinstance(order, ResizeAttempt):
                        one.devices = order.devices
                    self._plan_end(one)
        if key in self.known:
            self.say(*key)

    def _start(self, order: StartAttempt) -> None:
        key = (order.job, order.attempt)
        if key in self.known:
            return
        if order.attempt <= self.fences.get(order.job, 0) or order.job in self.finished:
            outcome = UNUSABLE if order.job in self.finished else LOST
            if order.attempt > self.fences.get(order.job, 0):
                self.known[key] = Process(order, state=ENDED, outcome=outcome, sequence=order.sequence)
            return
        self.fences[order.job] = order.attempt
        self.known[key] = Process(order, sequence=order.sequence, devices=order.devices)
        self.world.later(self.world.rng.randint(1, 20), lambda: self._fork(key))

    def _fork(self, key: tuple[int, int]) -> None:
        one = self.known.get(key)
        if one is None or one.state != STARTING:
            return
        one.state, one.since_ms, one.begin_ms = RUNNING, self.world.now_ms, self.world.now_ms
        self.world.forked(self, key)
        self._plan_end(one)
        self.say(*key)

    def _account(self, one: Process) -> None:
        """Book the work done since the last change of its devices."""
        work = self.world.work[one.order.job]
        work.left_ms -= (self.world.now_ms - one.since_ms) * max(len(one.devices), 1)
        one.since_ms = self.world.now_ms

    def _plan_end(self, one: Process) -> None:
        work, key = self.world.work[one.order.job], (one.order.job, one.order.attempt)
        one.serial += 1
        serial = one.serial
        if work.fails:
            self.world.later(500, lambda: self._end(key, serial, FAILED, work.fails[0]))
        else:
            left_ms = max(1, -(-work.left_ms // max(len(one.devices), 1)))
            self.world.later(left_ms, lambda: self._end(key, serial, FINISHED, 0))

    def _stop(self, order: StopAttempt) -> None:
        key = (order.job, order.attempt)
        one = self.known.get(key)
        if one is None:
            if order.attempt > self.fences.get(order.job, 0):
                self.fences[order.job] = order.attempt
                never = StartAttempt(job=key[0], attempt=key[1], sequence=0, capture="", digest="", devices=())
                self.known[key] = Process(never, state=ENDED, outcome=STOPPED, sequence=NONE)
        elif one.state == STARTING:
            one.state, one.outcome, one.devices = ENDED, STOPPED, ()
        elif one.state == RUNNING:
            one.state = STOPPING
            if not self.world.work[order.job].ignores:
                self._account(one)
                one.serial += 1
                serial = one.serial
                code = self.world.rng.choice((75, 143, 1))
                self.world.later(SAVE_MS, lambda: self._end(key, serial, STOPPED, code))

    def _end(self, key: tuple[int, int], serial: int, outcome: str, code: int) -> None:
        one = self.known.get(key)
        if one is None or not one.lives or one.serial != serial:
            return
        self._account(one)
        one.state, one.outcome, one.exit_code, one.devices = ENDED, outcome, code, ()
        if outcome == FAILED:
            self.world.work[key[0]].fails.pop(0)
        if outcome == FINISHED:
            self.finished.add(key[0])
            self.world.succeeded.add(key[0])
        if self.alive:
            self.say(*key)

    def reports(self) -> None:
        """Say how far the running attempts are, and repeat what may have been lost."""
        for key, one in list(self.known.items()):
            if one.state == RUNNING and one.order.ranks:
                self.world.to_controller(self, AttemptProgress(
                    job=key[0], attempt=key[1], ranks=len(one.devices), samples=float(self.world.now_ms), total=1e6,
                    samples_per_s=5.0, step_s=0.1 / len(one.devices), sync_s=0.01, local_batch=8,
                ))
            self.say(*key)


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

    @classmethod
    def drawn(cls, rng: random.Random) -> Chances:
        return cls(**{
            name: rng.choice((0.0, 0.0, rng.random() * most)) for name, most in (
                ("lost", 0.2), ("late", 0.5), ("twice", 0.3), ("crash", 0.15), ("disconnect", 0.05),
                ("agent_dies", 0.03), ("clock_jumps", 0.03), ("disk_full", 0.05),
            )
        })


class VirtualCluster:
    """Everything between users and processes, in one thread, under one clock that only the heap moves."""

    def __init__(self, seed: int, policy: Policy, chances: Chances | None = None, *, snapshots: bool = True) -> None:
        self.rng = random.Random(seed)
        self.chances = Chances.drawn(self.rng) if chances is None else chances
        self.policy, self.snapshots = policy, snapshots
        self.cluster = parse_cluster(f"1x{DEVICES}xcpu")
        self.now_ms = 0
        self.serials = count(1)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self.store = MemoryStore()
        self.work: dict[int, Work] = {}
        self.succeeded: set[int] = set()
        self.accepted: list[int] = []
        self.device_states = ["open"] * DEVICES
        self.agents = {uid: ModelAgent(self, uid) for uid in (1, 2, 3)}
        self.forks: list[tuple[int, int]] = []
        self.crashes = self.steps = self.commits = 0
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
                if self._happens("agent_dies"):
                    self._kill(agent)
                elif self._happens("disconnect"):
                    self._disconnect(agent)
        if self._happens("clock_jumps"):  # the machine was suspended
            self.now_ms += self.rng.choice((1_000, 3_600_000))
        if self._happens("disk_full"):
            self.store.full = True
            self.later(self.rng.randint(100, 3_000), self._room)
        self.later(2_000, self._tick)

    def _room(self) -> None:
        self.store.full = False

    def _happens(self, what: str) -> bool:
        return not self.calm and self.rng.random() < getattr(self.chances, what)

    def _kill(self, agent: ModelAgent) -> None:
        """The agent dies, its processes go on; it is started again after a while."""
        agent.alive = False
        self._disconnect(agent, self.rng.randint(100, 40_000))

    def _disconnect(self, agent: ModelAgent, away_ms: int = 200) -> None:
        if agent.connection:
            agent.connection = 0
            self._inputs.append(AgentLost(at_ms=self.now_ms, uid=agent.uid))
            self._wake()
            self.later(away_ms, lambda: self._reconnect(agent))

    def _reconnect(self, agent: ModelAgent) -> None:
        agent.alive = True
        if not agent.connection:
            agent.connect()

    # -- the network -----------------------------------------------------------------------------------------------

    def to_controller(self, agent: ModelAgent, message) -> None:
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
                AttemptSeen: lambda: Saw(at_ms=now_ms, uid=uid, seen=message),
                AttemptProgress: lambda: Progress(at_ms=now_ms, uid=uid, progress=message),
                DeviceSeen: lambda: Device(at_ms=now_ms, uid=uid, device=message),
            }[type(message)]())
            self._wake()

        if handshake or agent.connection not in self._greeted(agent):
            self.later(1, arrive)  # a stream: what opens it comes whole and in order
        else:
            self._deliver(arrive)

    def _greeted(self, agent: ModelAgent) -> set[int]:
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
        if self._happens("lost"):
            return
        delay_ms = self.rng.randint(100, 3_000) if self._happens("late") else 1
        self.later(delay_ms, arrive)
        if self._happens("twice"):
            self.later(delay_ms + self.rng.randint(0, 500), arrive)

    # -- the controller --------------------------------------------------------------------------------------------

    def _start_controller(self) -> None:
        self.controller = Controller(self.cluster, self.policy, gap_ms=GAP_MS)
        found = self.store.reads.recovered()
        self.controller.recover(found.snapshot, found.lines, found.jobs, found.attempts, self.now_ms)
        self._inputs = list(found.inputs)
        self._waking: set[int] = set()
        self._wake()

    def _crash(self) -> None:
        """The controller is killed, and started again; its agents connect anew."""
        self.crashes += 1
        self._start_controller()
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
        back_ms = self.rng.randint(0, 500) if self._happens("clock_jumps") else 0
        result = self.controller.step(inputs, self.now_ms - back_ms)
        if result.changes.lines or result.changes.jobs or result.changes.attempts or result.changes.inbox_done:
            self.commits += 1
            if self.commits * 2 - 1 == self.crash_at or self._happens("crash"):
                self._crash()
                return
            try:
                self.store.commit(result.changes, self.controller.save() if self._snapshot_is_due() else None)
            except DiskFullError:
                self._crash()
                return
            if self.commits * 2 == self.crash_at or self._happens("crash"):
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
        """Submit jobs; returns their ids, none if the disk is full."""
        item = transactions.Submission(
            uid=uid, user=f"u{uid}", key=f"key-{next(self.serials)}", requests=tuple(request for request, _ in requests)
        )
        try:
            accepted = self.store.accept(item, self.now_ms, 1_000_000 + self.now_ms / 1_000)
        except DiskFullError:
            return ()
        for job, (_, work) in zip(accepted.ids, requests, strict=True):
            self.work[job] = work
        self.accepted += accepted.ids
        self._inputs += accepted.inputs
        self._wake()
        return accepted.ids

    def command(self, uid: int, verb, job: int) -> None:
        try:
            accepted = self.store.accept(
                transactions.JobCommand(uid=uid, user=f"u{uid}", verb=verb, job=job), self.now_ms, 0.0
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
        check_terminal(self._known, jobs)
        check_fences(attempts)
        check_devices(attempts)
        check_truth(jobs.values(), attempts)
        self._known = jobs
        for job, record in self.controller.jobs.items():
            assert jobs[job] == record, f"memory {record}, store {jobs[job]}"
        for job, record in jobs.items():
            assert record.state != "finished" or job in self.succeeded, f"job {job} did not finish"

    def forked(self, agent: ModelAgent, key: tuple[int, int]) -> None:
        assert key not in self.forks, f"job {key[0]} has forked attempt {key[1]} twice"
        self.forks.append(key)

    def witness(self) -> None:
        """I4 and I6 among the processes themselves."""
        jobs: dict[int, int] = {}
        owner: dict[int, int] = {}
        for (job, attempt), one in self._living():
            assert jobs.setdefault(job, attempt) == attempt, f"job {job} runs as attempts {jobs[job]} and {attempt}"
            for device in one.devices:
                assert owner.setdefault(device, job) == job, f"device {device} has jobs {owner[device]} and {job}"

    def _living(self) -> Iterator[tuple[tuple[int, int], Process]]:
        for agent in self.agents.values():
            yield from ((key, one) for key, one in agent.known.items() if one.lives)

    def settle(self, minutes: int = 3) -> None:
        """Stop all faults, let everything pass, and check that all jobs that can end have ended (I22)."""
        self.calm = True
        self.store.full = False
        self.device_states = ["open"] * DEVICES
        for agent in self.agents.values():
            if not agent.connection:
                self._reconnect(agent)
            for device in range(DEVICES):
                self.to_controller(agent, DeviceSeen(device=device, state="open"))
        self.run(self.now_ms + 60_000 * minutes)
        self.check()
        for job in self.controller.jobs.values():
            assert set(job.holds) & {"user", "crash guard"} or any(
                hold.startswith(("after", "impossible")) for hold in job.holds
            ), f"job {job.id} is {job.state} for ever: {job}"
        assert not list(self._living())
        for agent in self.agents.values():
            assert not agent.known, f"attempts that no controller has let go: {agent.known}"


def request(**fields) -> JobRequest:
    """A request with a capture that nobody reads."""
    return JobRequest(**{"name": "job", "capture": "0" * 32, "digest": "0" * 64} | fields)


def elastic(least: int, most: int, **fields) -> JobRequest:
    """A request of a job that can be resized."""
    limits = {"gpus": least, "gpus_min": least, "gpus_max": most, "ranks": "per-gpu", "batch": 64, "batch_min": 16}
    return request(**limits | {"batch_max": 256, "local_batch_min": 1, "local_batch_max": 64} | fields)


def random_life(world: VirtualCluster, until_ms: int, *, jobs_max: int = 12) -> None:
    """Users submit and change their minds."""
    rng = world.rng

    def once() -> None:
        if world.calm:
            return
        uid = rng.randint(1, 3)
        if len(world.accepted) < jobs_max and rng.random() < 0.7:
            world.submit(uid, *_draw(world))
        elif world.accepted:
            job = rng.choice(world.accepted)
            world.command(uid, rng.choice(("cancel", "hold", "release", "release", "requeue")), job)
        if rng.random() < 0.1:
            device = rng.randrange(DEVICES)
            world.device_states[device] = rng.choice(("open", "foreign", "quarantined"))
            agent = rng.choice(list(world.agents.values()))
            world.to_controller(agent, DeviceSeen(device=device, state=world.device_states[device]))
        world.later(rng.randint(1, 2_000), once)

    once()
    world.run(until_ms)


def _draw(world: VirtualCluster) -> list[tuple[JobRequest, Work]]:
    rng = world.rng
    fields: dict = {}
    if rng.random() < 0.2 and world.accepted:
        fields["after"] = (rng.choice(world.accepted),)
    if rng.random() < 0.1:
        fields["hold"] = True
    if rng.random() < 0.15:
        fields["begin_s"] = int(1_000_000 + world.now_ms / 1_000) + rng.randint(1, 30)
    if rng.random() < 0.2:
        fields["time_limit_s"] = rng.randint(1, 10)
    if rng.random() < 0.1:
        fields["requeue"] = False
    fails = rng.choices(([], [1], [1, 1], [1, 1, 1, 1], [75], [85, 1]), (12, 2, 1, 1, 1, 1))[0]
    drawn = []
    array = rng.random() < 0.15
    for index in range(rng.randint(2, 4) if array else 1):
        if rng.random() < 0.5:
            least = rng.randint(1, 2)
            one = elastic(least, rng.randint(least, 5), **fields)
        else:
            one = request(gpus=rng.randint(1, 5 if rng.random() < 0.1 else 4), **fields)
        one = replace(one, array_index=index) if array else one
        drawn.append((one, Work(rng.randint(100, 20_000), list(fails), rng.random() < 0.1)))
    return drawn
