"""The store against a model of dictionaries: sequences of requests, restarts, reboots and crashes inside a request."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from brim.errors import InvariantError, NotFoundError
from brim.live.inputs import VERBS, JobInput, Submit
from brim.live.records import AttemptRecord, Changes, JobRecord
from brim.live.requests import NONE
from brim.live.store.errors import KeyReusedError
from tests.live.store.stores import Opened, StoppedClock, asked
from tests.live.store.volume import volume
from tests.sampling import sample
from tests.train.checkpoint.simulated_disk import Op


@dataclass
class Model:
    """What a store should know."""

    jobs: dict[int, JobRecord] = field(default_factory=dict)
    attempts: dict[tuple[int, int], AttemptRecord] = field(default_factory=dict)
    keys: dict[tuple[int, str], tuple[tuple[Any, ...], tuple[int, ...]]] = field(default_factory=dict)
    inbox: dict[int, tuple[str, int]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    snapshot: bytes | None = None
    audit: list[tuple[str, int]] = field(default_factory=list)
    inputs: int = 0

    def submit(self, uid: int, key: str, requests: tuple[Any, ...], at_ms: int) -> tuple[int, ...]:
        known = self.keys.get((uid, key))
        if known:
            if known[0] != requests:
                raise KeyReusedError
            return known[1]
        first = len(self.jobs) + 1
        for part, request in enumerate(requests):
            job = first + part
            self.jobs[job] = JobRecord(
                id=job, uid=uid, user="ann", key=key, request=request, submitted_s=1e9, submit_ms=at_ms,
                array=first if request.array_index != NONE else NONE, state="held" if request.hold else "pending",
                holds=("user",) if request.hold else (),
            )  # fmt: skip
            self.inputs += 1
            self.inbox[self.inputs] = ("submit", job)
        self.audit += [("submit", first + part) for part in range(len(requests))]
        self.keys[uid, key] = requests, tuple(range(first, first + len(requests)))
        return self.keys[uid, key][1]

    def command(self, verb: str, jobs: list[int]) -> tuple[int, ...]:
        if not self.jobs.keys() >= set(jobs):
            raise NotFoundError
        for job in jobs:
            self.inputs += 1
            self.inbox[self.inputs] = (verb, job)
            self.audit.append((verb, job))
        return tuple(jobs)

    def commit(self, changes: Changes, snapshot: bytes | None) -> None:
        for job in changes.jobs:
            old = self.jobs[job.id]
            if old.has_ended and old.state != job.state:
                raise InvariantError
            self.audit += [(job.state, job.id)] if old.state != job.state else []
            self.jobs[job.id] = job
        for attempt in changes.attempts:
            self.attempts[attempt.job, attempt.number] = attempt
        held = [device for attempt in self.attempts.values() if attempt.state != "ended" for device in attempt.devices]
        if len(held) > len(set(held)):
            raise InvariantError
        self.lines += changes.lines
        for number in changes.inbox_done:
            self.inbox.pop(number, None)
        if snapshot is not None:
            self.lines, self.snapshot = [], snapshot

    def seen(self) -> dict[str, Any]:
        open_jobs = {job.id: job for job in self.jobs.values() if not job.has_ended}
        return {
            "jobs": list(self.jobs.values()),
            "open": list(open_jobs.values()),
            "attempts": [attempt for _, attempt in sorted(self.attempts.items())],
            "needed": [attempt for place, attempt in sorted(self.attempts.items()) if attempt.state != "ended" or (
                place[0] in open_jobs and open_jobs[place[0]].attempt == place[1])],
            "inbox": [(number, *what) for number, what in sorted(self.inbox.items())],
            "lines": self.lines, "snapshot": self.snapshot, "audit": self.audit,
        }  # fmt: skip


def seen_in(opened: Opened) -> dict[str, Any]:
    """The same of a store."""
    reads, loaded = opened.store.reads, opened.store.load()
    jobs = sorted(reads.newest_jobs(1_000), key=lambda job: job.id)
    return {
        "jobs": jobs,
        "open": list(loaded.jobs),
        "attempts": [attempt for job in jobs for attempt in reads.attempts(job.id)],
        "needed": list(loaded.attempts),
        "inbox": [(given.inbox, *named(given)) for given in loaded.inputs],
        "lines": list(loaded.lines), "snapshot": loaded.snapshot,
        "audit": opened.audit("verb", "job"),
    }  # fmt: skip


def named(given: JobInput) -> tuple[str, int]:
    if isinstance(given, Submit):
        return "submit", given.job.id
    return next(verb for verb, kind in VERBS.items() if type(given) is kind), given.job


REQUESTS = st.lists(
    st.builds(asked, st.sampled_from("ab"), hold=st.booleans(), array_index=st.sampled_from([NONE, 0])),
    min_size=1, max_size=3,
).map(tuple)  # fmt: skip


CRASH = st.one_of(st.just(-1), st.integers(0, 30))
"""Before which of the writes and syncs of a request the process is killed: none, one of them, or after the answer."""


class StoreMachine(RuleBasedStateMachine):
    """Requests go to the store and to the model. Some are crashed: files are copied at one of SQLite's writes."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="brim-store-"))
        self.folder, self.clock, self.model = self.root / "0", StoppedClock(), Model()
        self.folders, self.crash_at = 1, -1
        self.volume = volume(self.root, self.hook)
        self.volume.__enter__()
        self.opened = Opened(self.folder, self.clock)

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.opened.store.close()
            self.volume.__exit__(None, None, None)
            shutil.rmtree(self.root)

    def hook(self, op: Op) -> int:
        """The files as they are when the process is killed: before this operation."""
        if op.kind in ("write", "sync") and self.crash_at >= 0:
            self.crash_at -= 1
            if self.crash_at < 0:
                self.copy()
        return 0

    def copy(self) -> None:
        """As a kill leaves them: without what the processes shared."""
        ignored = shutil.ignore_patterns("*-shm")
        shutil.copytree(self.folder, self.root / str(self.folders), ignore=ignored)

    def both(self, crash: int, ask: Callable[[], object], model: Callable[[Model], object]) -> None:
        """Ask the store and the model for the same; after a crash (``CRASH``), go on with what it left."""
        before, self.crash_at = copy.deepcopy(self.model), crash
        try:
            wanted, kind = model(self.model), None
        except (KeyReusedError, NotFoundError, InvariantError) as error:
            self.model, wanted, kind = copy.deepcopy(before), None, type(error)
        if kind is None:
            assert ask() == wanted
        else:
            with pytest.raises(kind):
                ask()
        if crash >= 0:
            if self.crash_at >= 0:  # it wrote less: killed after the answer
                self.crash_at, before = -1, self.model
                self.copy()
            self.opened.store.close()
            self.folder = self.root / str(self.folders)
            self.folders += 1
            self.opened = Opened(self.folder, self.clock)
            rolled_back = seen_in(self.opened) == before.seen() != self.model.seen()
            event(f"a crash {'before' if rolled_back else 'after'} the commit")
            if rolled_back:
                self.model = before

    @rule(uid=st.integers(1, 2), key=st.sampled_from(["k", "l", "m"]), requests=REQUESTS, crash=CRASH)
    def submit(self, uid, key, requests, crash):
        at_ms = self.opened.store.now_ms()
        self.both(crash, lambda: self.opened.submit(key, *requests, uid=uid).ids,
                  lambda model: model.submit(uid, key, requests, at_ms))

    @rule(data=st.data(), crash=CRASH)
    def submit_again(self, data, crash):
        """What a client does that heard no answer."""
        if self.model.keys:
            uid, key = data.draw(st.sampled_from(sorted(self.model.keys)))
            requests, ids = self.model.keys[uid, key]
            self.both(crash, lambda: self.opened.submit(key, *requests, uid=uid).ids, lambda model: ids)

    @rule(verb=st.sampled_from(sorted(VERBS)), jobs=st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True),
          crash=CRASH)
    def command(self, verb, jobs, crash):
        self.both(crash, lambda: self.opened.command(verb, *jobs).ids, lambda model: model.command(verb, jobs))

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), snapshot=st.sampled_from([None, None, b"one", b"two"]), crash=CRASH)
    def step(self, data, snapshot, crash):
        """A few jobs start on devices that may be held, or end, whatever they were: some steps are contradictions."""
        jobs, attempts = [], []
        for number in sorted(data.draw(st.sets(st.sampled_from(sorted(self.model.jobs)), max_size=3))):
            job = self.model.jobs[number]
            if data.draw(st.booleans()):
                devices = tuple(sorted(data.draw(st.sets(st.integers(0, 5), min_size=1, max_size=2))))
                jobs.append(replace(job, state="running", ended_ms=NONE, attempt=job.attempt + 1, devices=devices))
                attempts.append(AttemptRecord(
                    job=number, number=job.attempt + 1, uid=1, state="running", devices=devices, decided_ms=0))
            else:
                jobs.append(replace(job, state="failed", ended_ms=1, devices=(), reason="ended"))
            current = self.model.attempts.get((number, job.attempt))
            if current is not None:
                attempts.append(replace(current, state="ended", outcome="failed"))
        done = tuple(sorted(data.draw(st.sets(st.sampled_from(sorted(self.model.inbox) or [99]), max_size=3))))
        changes = Changes(
            at_ms=self.opened.store.now_ms(), lines=tuple(data.draw(st.lists(st.sampled_from("xyz"), max_size=3))),
            jobs=tuple(jobs), attempts=tuple(attempts), inbox_done=done,
        )  # fmt: skip
        self.both(crash, lambda: self.opened.store.commit(changes, snapshot).result(),
                  lambda model: model.commit(changes, snapshot))

    @rule(passed_ms=st.integers(0, 1_000))
    def wait(self, passed_ms):
        self.clock.boottime += passed_ms

    @rule(reboot=st.booleans())
    def restart(self, reboot):
        self.opened.store.close()
        if reboot:
            self.clock.boot_id, self.clock.boottime = f"{self.clock.boot_id}+", 5
        self.opened = Opened(self.folder, self.clock)

    @invariant()
    def the_store_knows_what_the_model_knows(self):
        if not hasattr(self, "opened"):
            return
        assert seen_in(self.opened) == self.model.seen()
        seen_ms = max((job.submit_ms for job in self.model.jobs.values()), default=0)
        assert self.opened.store.now_ms() >= seen_ms, "time went back"


@pytest.mark.slow
def test_the_store_is_its_model():
    """The sample is ten sequences of twenty requests."""
    run_state_machine_as_test(
        StoreMachine, settings=settings(max_examples=sample(300, 10), stateful_step_count=sample(40, 20)))
