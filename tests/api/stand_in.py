"""A service without an engine, for tests of what is in front of it: it keeps jobs, and does nothing with them."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import Future
from dataclasses import replace

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import parse_cluster
from brim.core.events import Event, Kind
from brim.engine.scheduler import Scheduler
from brim.errors import NotFoundError, RefusedError
from brim.foresight.explanation import explained
from brim.live.holds import spec_of
from brim.live.records import JobRecord, TokenRecord
from brim.live.requests import JobRequest
from brim.live.situation import Situation
from brim.live.store.errors import KeyReusedError
from brim.policies.presets import find_policy

CLUSTER = parse_cluster("1x2xT4")
CAPTURE, DIGEST = "a" * 32, "b" * 64


def request(name="train", **fields):
    return JobRequest(name=name, capture=CAPTURE, digest=DIGEST, **fields)


def situation_with(jobs):
    """Jobs in the order of their ids before a round of a real engine."""
    scheduler = Scheduler(CLUSTER, find_policy("fifo"), Beliefs())
    for job in jobs:
        spec = spec_of(job, CLUSTER, scheduler.state.user_code(job.user), 0)
        scheduler.observe(Event(0, Kind.SUBMITTED, job.id, spec=spec, held=job.state == "held", user=job.user))
    return Situation(now_ms=5_000, scheduler=scheduler, jobs={job.id: job for job in jobs}, attempts={})


@functools.cache
def compile_rounds():
    """Decide rounds once, so that no request waits for the compiler."""
    job = JobRecord(id=1, uid=1, user="u", key="k", request=request(gpus=2), submitted_s=1.0, submit_ms=0,
                    state="held", holds=("user",))
    explained(situation_with([job]), job)


class KeepsJobs:
    """What the API asks of `brim.live.service.ClusterService`."""

    policy = find_policy("fifo")

    def __init__(self):
        compile_rounds()
        self._jobs, self._keys, self._watchers, self._tokens = {}, {}, set(), {}
        self.full, self.trouble = None, ""

    def earlier(self, job):
        return []

    async def submit(self, uid, user, requests, key):
        if self.full is not None:
            raise self.full
        if (uid, key) in self._keys:
            before, ids = self._keys[uid, key]
            if before != list(requests):
                raise KeyReusedError(f"key {key} stands for another submission")
            return ids
        first = len(self._jobs) + 1
        ids = list(range(first, first + len(requests)))
        for job, asked in zip(ids, requests, strict=True):
            self._put(JobRecord(id=job, uid=uid, user=user, key=key, request=asked, submitted_s=1.0, submit_ms=1_000,
                                array=-1 if asked.array_index < 0 else first,
                                state="held" if asked.hold else "pending",
                                holds=("user",) * asked.hold, reason="waits for a device"))
        self._keys[uid, key] = (list(requests), ids)
        return ids

    async def command(self, uid, verb, jobs, *, may_change):
        return {job: self._command(verb, job, may_change) for job in jobs}

    def _command(self, verb, job, may_change):
        found = self._jobs.get(job)
        if found is None or not may_change(found):
            return NotFoundError(f"there is no job {job} of yours")
        if found.has_ended:
            return RefusedError(f"job {job} has ended as {found.state}: there is nothing to {verb}")
        state = {"cancel": "cancelled", "hold": "held", "release": "pending", "requeue": "pending"}[verb]
        self._put(replace(found, state=state, holds=("user",) * (state == "held")))
        return self._jobs[job]

    def put(self, job, **changed):
        """Change a job as the controller would."""
        self._put(replace(self._jobs[job], **changed))

    def _put(self, record):
        self._jobs[record.id] = record
        for queue in self._watchers:
            queue.put_nowait(record)

    def jobs(self):
        return list(self._jobs.values())

    def job(self, job):
        return self._jobs.get(job)

    async def add_token(self, *, uid, user, label, digest, expires_s):
        token = TokenRecord(id=len(self._tokens) + 1, uid=uid, user=user, label=label, made_s=0.0, expires_s=expires_s)
        self._tokens[digest] = token
        return token

    async def revoke_token(self, *, uid, user, number):
        found = [digest for digest, token in self._tokens.items() if (token.id, token.uid) == (number, uid)]
        if not found:
            raise NotFoundError(f"token {number} does not exist")
        del self._tokens[found[0]]

    def token(self, digest):
        return self._tokens.get(digest)

    def tokens(self, uid):
        return [token for token in self._tokens.values() if token.uid == uid]

    def nodes(self):
        return [{"user": "ann", "uid": 1000, "devices": [{"name": "cpu0", "state": "open"}]}]

    def now_ms(self):
        return 5_000

    def status(self):
        return {"now_ms": 5_000, "policy": "fifo", "cluster": str(CLUSTER)}

    def explain(self, job):
        return f"job {job} is as it is."

    @property
    def engine(self):
        return self

    @property
    def store(self):
        return self

    @property
    def reads(self):
        return self

    def finished(self, limit):
        return (), ()

    def note_forecasts(self, starts_ms, policy):
        self.noted = starts_ms
        answer = Future()
        answer.set_result(None)
        return answer

    def forecasts(self, policy, limit):
        return ()

    def forecasts_hit(self):
        return 3, 2

    def ask(self, question):
        answer = Future()
        answer.set_result(situation_with([job for job in self._jobs.values() if not job.has_ended]))
        return answer

    async def subscribe(self):
        queue = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)
