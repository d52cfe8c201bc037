"""The controller at work: a store, the thread that decides, the socket of agents, and what readers may know.

Writes return when they are durable. Reads answer from records that the engine's thread has handed over, so that a round
never holds them up. From ``start`` on, jobs are shown and taken as the store has them; what only the engine knows is
refused with ``NotAcceptedError`` until it is recovered.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brim import __version__
from brim.agent.users import user_name
from brim.errors import BrimError, NotFoundError, RefusedError
from brim.live.agent_connections import AgentConnections
from brim.live.engine_thread import EngineThread, Facts, Published
from brim.live.inputs import JobInput, Submit
from brim.live.records import AttemptRecord, JobRecord, TokenRecord
from brim.live.requests import NONE, JobRequest
from brim.live.shown import devices_shown, kept_devices
from brim.live.store.errors import NotAcceptedError
from brim.live.store.reading import Recovered
from brim.live.store.store import Store
from brim.live.store.transactions import JobCommand, Submission, Verb
from brim.live.texts import text
from brim.live.vacancy import LOOK_S, orphans_of, vacated

if TYPE_CHECKING:
    from brim.engine.round import RoundResult
    from brim.live.controller import Controller
    from brim.policies.sockets import Policy

ENDED_KEPT: Final = 1_000
"""Jobs that have ended and are still in memory; older ones are in the store. Ours: what a script may ask for."""
CHANGES_KEPT: Final = 10_000
"""Changes that may wait for a reader before it is ended. Ours: every job of a full queue, once."""
COMMAND_S: Final = 5.0
"""Time for which a command waits until the controller has handled it; it is durable before. Ours."""
COMMAND_JOB_S: Final = 0.001
"""What each job of a command adds to that; ours: five times what it takes."""


class ClusterService:
    """One cluster on this machine; long because it has what each route asks. All is called in one event loop.

    Args:
        state: Folder of the controller's state.
        agents: Path of the socket for agents, in a folder of this user.
        make_controller: Makes the controller; called in the thread in which it decides.
        allowed: Users whose agents may connect, besides the one who runs this.
        user_jobs: Most jobs of a user that may not have ended; NONE for no limit.
        policy_digest: SHA-256 of the file with the policy; empty for a preset.

    Raises:
        RefusedError: the state folder cannot be used.
    """

    def __init__(
        self, state: Path, agents: Path, make_controller: Callable[[], Controller], *,
        allowed: frozenset[int] = frozenset(), user_jobs: int = NONE, policy_digest: str = "",
    ) -> None:
        self._user_jobs, self._policy_digest = user_jobs, policy_digest
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store = Store(state, self._deliver, partial(_go_on, make_controller))
        self.engine = EngineThread(make_controller, self._store, self._recovered, self._published, self._failed)
        self._jobs: OrderedDict[int, JobRecord] = OrderedDict()
        self._ended: deque[int] = deque()
        self._attempts: dict[int, AttemptRecord] = {}
        self._last_round: RoundResult | None = None
        self._watchers: set[asyncio.Queue[JobRecord | None]] = set()
        self._handled: dict[int, asyncio.Future[None]] = {}
        self._handled_to = 0
        self._rounds = 0
        self._failure: asyncio.Future[None] | None = None
        self._facts: asyncio.Future[Facts] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._agents = AgentConnections(agents, allowed | {os.getuid()}, self._store.now_ms, self.engine)

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the store, and begin to go on where the last controller ended; jobs are shown and taken from here on."""
        self._loop = asyncio.get_running_loop()
        self._failure, self._facts = self._loop.create_future(), self._loop.create_future()
        found = await asyncio.to_thread(self._store.load)
        for job in reversed(self._store.reads.newest_jobs(ENDED_KEPT)):
            self._note_job(job)
        for job in found.jobs:
            self._note_job(job)
        self._jobs = OrderedDict(sorted(self._jobs.items()))
        self._attempts = {attempt.job: attempt for attempt in found.attempts if attempt.state != "ended"}
        self.engine.start(found)

    async def recovered(self) -> None:
        """Wait until the controller decides, then let agents connect.

        Raises:
            RefusedError: the policy cannot be used, or the cluster is another one and jobs run.
        """
        assert self._facts is not None
        assert self._failure is not None
        waited: tuple[asyncio.Future[Any], ...] = (self._facts, self._failure)
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        await self._agents.start(self._facts.result().devices)
        self._looking = asyncio.create_task(self._look_for_vacancies())

    async def stop(self) -> None:
        """Stop deciding. Agents and jobs go on, and the next controller adopts them."""
        if self._looking is not None:
            self._looking.cancel()
        await self._agents.stop()
        self.engine.stop()
        await asyncio.to_thread(self._store.close)  # a commit that waits for room does not wait any longer
        await asyncio.to_thread(self.engine.join)
        for queue in tuple(self._watchers):
            self._end(queue)

    async def wait(self) -> None:
        """Wait until the service cannot go on, and raise why."""
        if self._failure is not None:
            await asyncio.shield(self._failure)

    async def _look_for_vacancies(self) -> None:
        """Tell the controller of attempts of which nothing is left, and whose agents are away."""
        while True:
            self._agents.reads()
            await asyncio.sleep(LOOK_S)
            orphans = orphans_of(self._attempts.values(), self._agents.hellos)
            self.engine.give(vacated(orphans, self._store.booted_ms, self._store.now_ms()))

    def _failed(self, error: BaseException) -> None:
        self._in_loop(self._set_failure, error)

    def _set_failure(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _in_loop(self, call: Any, *arguments: Any) -> None:
        """Let the event loop call something, from another thread; nothing once the loop has ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    # -- writing ---------------------------------------------------------------------------------------------------

    async def submit(self, uid: int, user: str, requests: Sequence[JobRequest], key: str) -> Sequence[int]:
        """Accept jobs of one user, all or none, and return their ids; the same key gives the same ids again.

        Raises:
            KeyReusedError: the key stands for another submission.
            TooManyJobsError: the user would have too many jobs.
            NotAcceptedError: nothing was written, for a reason that passes.
        """
        item = Submission(uid=uid, user=user, key=key, requests=tuple(requests), jobs_max=self._user_jobs)
        return (await asyncio.wrap_future(self._store.accept(item))).ids

    async def command(
        self, uid: int, verb: Verb, jobs: Iterable[int], *, may_change: Callable[[JobRecord], bool]
    ) -> dict[int, JobRecord | BrimError]:
        """Let a user cancel, hold, release or requeue jobs: those for which that can be asked, durable together.

        Args:
            uid: The user.
            verb: What is asked of each.
            jobs: Their ids.
            may_change: Whether the user may; a job for which it says no is answered as one that does not exist.

        Returns:
            By id, each once, the job as it then is, or why nothing is asked of it: ``NotFoundError``, or
            ``RefusedError`` for one that has ended.

        Raises:
            NotAcceptedError: nothing was written, for a reason that passes.
        """
        answers: dict[int, JobRecord | BrimError] = {
            job: NotFoundError(f"there is no job {job} of yours") for job in jobs
        }
        kept = await self._old([job for job in answers if job not in self._jobs])
        records = {job: record for job in answers if (record := self._jobs.get(job) or kept.get(job)) is not None}
        changing = {job: record for job, record in records.items() if may_change(record)}
        for job, record in tuple(changing.items()):
            if record.has_ended:
                instead = f"; `brim redo {job}` submits it again" if verb == "requeue" else ""
                answers[job] = RefusedError(
                    f"job {job} has ended as {record.state}: there is nothing to {verb}{instead}"
                )
                del changing[job]
        if changing:
            await self._handled_by(JobCommand(uid=uid, user=user_name(uid), verb=verb, jobs=tuple(changing)))
            kept = await self._old([job for job in changing if job not in self._jobs])
            answers |= {job: self._jobs.get(job) or kept.get(job, record) for job, record in changing.items()}
        return answers

    async def _old(self, jobs: list[int]) -> dict[int, JobRecord]:
        """Jobs that are in the store and no longer in memory."""
        return await asyncio.to_thread(self._store.reads.named, jobs) if jobs else {}

    async def _handled_by(self, item: JobCommand) -> None:
        """Accept a command, and wait until the controller has handled it, which it does as a whole."""
        accepted = await asyncio.wrap_future(self._store.accept(item))
        inbox = accepted.inputs[-1].inbox
        if inbox <= self._handled_to:
            return
        done = self._handled.setdefault(inbox, asyncio.get_running_loop().create_future())
        try:
            await asyncio.wait_for(asyncio.shield(done), COMMAND_S + COMMAND_JOB_S * len(item.jobs))
        except TimeoutError:
            pass  # it is durable, and the controller is busy
        finally:
            self._handled.pop(inbox, None)

    async def add_token(self, *, uid: int, user: str, label: str, digest: str, expires_s: float) -> TokenRecord:
        """Write a token of a user, of which ``digest`` is SHA-256 in hexadecimal digits."""
        return await asyncio.wrap_future(
            self._store.add_token(uid=uid, user=user, label=label, digest=digest, expires_s=expires_s)
        )

    async def revoke_token(self, *, uid: int, user: str, number: int) -> None:
        """Remove a token of a user.

        Raises:
            NotFoundError: the user has none of this number.
        """
        await asyncio.wrap_future(self._store.revoke_token(uid=uid, user=user, number=number))

    def token(self, digest: str) -> TokenRecord | None:
        """Return the token whose secret has this digest; None if there is none."""
        return self._store.reads.token(digest)

    def tokens(self, uid: int) -> Sequence[TokenRecord]:
        """Return the tokens of a user, the oldest first."""
        return self._store.reads.tokens(uid)

    def _deliver(self, inputs: tuple[JobInput, ...]) -> None:
        """Called by the store's thread with what has been accepted, before its sender hears so."""
        self._in_loop(self._accepted, inputs)
        self.engine.give(inputs)

    def _accepted(self, inputs: tuple[JobInput, ...]) -> None:
        for given in inputs:
            if isinstance(given, Submit) and given.job.id not in self._jobs:
                self._changed(given.job)

    # -- what the engine's thread hands over -----------------------------------------------------------------------

    def _recovered(self, facts: Facts) -> None:
        if self._facts is not None:
            self._in_loop(self._facts.set_result, facts)

    def _published(self, published: Published) -> None:
        self._in_loop(self._take, published)

    def _take(self, published: Published) -> None:
        step = published.step
        for dispatch in step.orders:
            self._agents.send(dispatch)
        for attempt in step.changes.attempts:
            if attempt.state != "ended":
                self._attempts[attempt.job] = attempt
            elif self._attempts.get(attempt.job, attempt).number == attempt.number:
                self._attempts.pop(attempt.job, None)
        for job in step.changes.jobs:
            self._changed(job)
        self._rounds += published.last_round is not self._last_round
        self._last_round = published.last_round
        for inbox in step.changes.inbox_done:  # they come in the order of their numbers
            self._handled_to = inbox
            done = self._handled.get(inbox)
            if done is not None and not done.done():
                done.set_result(None)

    def _changed(self, job: JobRecord) -> None:
        self._note_job(job)
        for queue in tuple(self._watchers):
            if queue.full():  # a slow reader is ended, and holds up nobody
                self._end(queue)
            else:
                queue.put_nowait(job)

    def _end(self, watcher: asyncio.Queue[JobRecord | None]) -> None:
        self._watchers.discard(watcher)
        if watcher.full():
            watcher.get_nowait()
        watcher.put_nowait(None)

    def _note_job(self, job: JobRecord) -> None:
        before = self._jobs.get(job.id)
        self._jobs[job.id] = job
        if job.has_ended and (before is None or not before.has_ended):
            self._ended.append(job.id)
            if len(self._ended) > ENDED_KEPT:
                self._jobs.pop(self._ended.popleft(), None)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why nothing can be written or decided at present, as a sentence for users; empty if it can."""
        return self._store.trouble or self.engine.trouble

    def now_ms(self) -> int:
        """Return cluster time."""
        return self._store.now_ms()

    def _known(self) -> Facts:
        """What is known of the controller once it is recovered.

        Raises:
            NotAcceptedError: it is not.
        """
        if self._facts is None or not self._facts.done():
            raise NotAcceptedError("the controller has just been started and reads its state: try again in a second")
        return self._facts.result()

    def jobs(self) -> Sequence[JobRecord]:
        """Return all jobs that are kept, in order of their ids: those that have not ended, and the last that have."""
        return tuple(self._jobs.values())

    def job(self, job: int) -> JobRecord | None:
        """Return one job, of memory or of the store; None if there is none."""
        if job in self._jobs:
            return self._jobs[job]
        try:
            return self._store.reads.job(job)
        except (NotFoundError, OverflowError):
            return None

    def nodes(self) -> Sequence[Mapping[str, Any]]:
        """Return what is known of this machine: its devices and the agents that are connected.

        Raises:
            NotAcceptedError: the controller is not recovered yet.
        """
        facts = self._known()
        hellos = self._agents.hellos
        names = next((tuple(map(text, hello.devices)) for hello in hellos.values()), ())
        devices = devices_shown(facts.devices, names, self._agents.seen, self._attempts.values())
        kept = kept_devices(orphans_of(self._attempts.values(), hellos), self._store.booted_ms)
        devices = [{**shown, **kept.get(shown["device"], {})} for shown in devices]
        agents = [{"uid": uid, "user": user_name(uid)} for uid in sorted(hellos)]
        return [{"name": os.uname().nodename, "devices": devices, "agents": agents}]

    def has_agent(self, uid: int) -> bool:
        """Whether an agent of a user is connected."""
        return uid in self._agents.hellos

    def has_jobs(self, uid: int) -> bool:
        """Whether a user has jobs that have not ended."""
        return any(job.uid == uid and not job.has_ended for job in self._jobs.values())

    @property
    def policy(self) -> Policy:
        """The policy of the controller.

        Raises:
            NotAcceptedError: it is not recovered yet.
        """
        return self._known().policy

    def status(self) -> Mapping[str, Any]:
        """Return facts on the controller.

        Raises:
            NotAcceptedError: it is not recovered yet.
        """
        facts = self._known()
        return {
            "now_ms": self._store.now_ms(), "policy": facts.setting.policy, "version": __version__, "pid": os.getpid(),
            "cluster": facts.setting.cluster, "devices": facts.devices, "trouble": self.trouble,
            "jobs": sum(not job.has_ended for job in self._jobs.values()), "rounds": self._rounds,
            "agents": len(self._agents.hellos), "policy_digest": self._policy_digest,
        }

    def explain(self, job: int) -> str:
        """Return why a job waits, and what would let it run.

        Raises:
            NotFoundError: there is no such job.
            NotAcceptedError: the controller is not recovered yet.
        """
        from brim.live.reasons import why  # noqa: PLC0415 - of the engine, which is loaded after the first answers

        self._known()
        record = self.job(job)
        if record is None:
            raise NotFoundError(f"job {job} does not exist")
        if record.has_ended:
            return f"job {job} has ended: {record.reason or record.state}."
        sentence = why(record, self._attempts.values(), self._last_round)
        if record.devices and not self.has_agent(record.uid):
            sentence += f" The agent of {record.user} is away: it goes on, and how it ends is known when that is back."
        return sentence

    def earlier(self, job: int) -> list[str]:
        """Say how the attempts of a job ended before its newest one, a line for each."""
        from brim.live.reasons import earlier  # noqa: PLC0415 - see above

        record = self.job(job)
        return [] if record is None else earlier(record, self._store.reads.attempts(job))

    async def subscribe(self) -> AsyncIterator[JobRecord]:
        """Yield every job that changes, as it then is. A reader that is too slow is ended."""
        queue: asyncio.Queue[JobRecord | None] = asyncio.Queue(CHANGES_KEPT)
        self._watchers.add(queue)
        try:
            while (job := await queue.get()) is not None:
                yield job
        finally:
            self._watchers.discard(queue)


def _go_on(make_controller: Callable[[], Controller], found: Recovered, now_ms: int) -> None:
    """Try whether a controller can go on with what was in a store."""
    make_controller().recover(found.snapshot, found.lines, found.jobs, found.attempts, now_ms)
