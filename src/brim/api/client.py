"""A client of the API on its Unix socket, on the standard library alone, so that `brim ps` answers at once.

    client = Client(runtime_folder() / "api.sock")
    (job,) = client.submit([request])
    client.job(job).state

Requests are HTTP/1.0 with one connection each. ``http.client`` imports a parser of mail: 25 ms of CPU time.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

from brim.agent.folders import runtime_folder, state_folder
from brim.api.wire import ENDED_BY, SCHEMA, TROUBLE_HEADER, read_job
from brim.errors import BrimError, ConfigError, NotFoundError, RefusedError
from brim.live.records import JobRecord
from brim.live.requests import ID_MAX, JobRequest

TIMEOUT_S: Final = 30.0
"""Longest wait for a part of an answer; ours. A stream has none."""
SIMULATED_S: Final = 120.0
"""Longest wait for an answer that simulates the queue, which takes up to 20 s of CPU time; ours. It is not asked for
again, because the controller would simulate twice."""
PAUSES_S: Final = (0.1, 0.3, 1.0, 2.0)
"""Between attempts where the controller is absent or busy: it answers within 2 s of being killed and restarted."""
PAGE_MAX: Final = 1_000
"""Most jobs of one answer."""
ANSWER_BYTES_MAX: Final = 1 << 26
_KINDS: Final[Mapping[int, type[BrimError]]] = {
    400: ConfigError, 413: ConfigError, 415: ConfigError, 422: ConfigError, 404: NotFoundError,
    401: RefusedError, 403: RefusedError, 409: RefusedError,
}  # fmt: skip
_NO_ROUTE: Final = ("Not Found", "Method Not Allowed")
"""What a server says of a route that it does not have; what brim says of a job names the job."""
_PASSES: Final = (429, 503)
Verb = Literal["cancel", "hold", "release", "requeue"]


class NoControllerError(BrimError):
    """No controller answers."""


class BusyError(BrimError):
    """The controller answers that it can take no more now; ``is_lasting``: and not before somebody mends something."""

    is_lasting = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Jobs in order of their ids, and the cluster time in milliseconds to which their times relate."""

    now_ms: int
    jobs: tuple[JobRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What became of jobs of which something was asked.

    Attributes:
        jobs: Those of which it was, as they then are.
        refused: Why not, by id, for the others: ``NotFoundError``, or ``RefusedError`` for one that has ended.
    """

    jobs: tuple[JobRecord, ...]
    refused: Mapping[int, BrimError]


class JobIds(list[int]):
    """Ids of submitted jobs; ``impossible`` says, by id, why some of them could not run on the empty machine."""

    impossible: Mapping[int, str]


class Client:
    """Asks the controller.

    Every method raises ``NoControllerError`` if none answers, ``NotFoundError``, ``RefusedError`` or ``ConfigError``
    for what the controller refuses, and ``BusyError`` if it is busy for long.

    Args:
        path: The Unix socket of the controller.
        warn: Called with the reason why the controller can write nothing, when its answers begin to say so.

    Attributes:
        may_have_arrived: Whether the newest request may have been carried out although no answer said so.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path = path
        self._warn, self._trouble = warn, ""
        self.may_have_arrived = False

    def submit(self, requests: Sequence[JobRequest], key: str = "") -> JobIds:
        """Submit jobs, all or none, and return their ids.

        A submission whose answer was lost is repeated under its key, which makes it one submission.

        Args:
            requests: What is asked for.
            key: Stands for this submission; empty for a new one.
        """
        headers = {"Idempotency-Key": key or os.urandom(16).hex()}
        answer = self._ask("POST", "/v1/jobs", _body(requests), headers)
        ids = JobIds(answer["ids"])
        ids.impossible = {int(job): reason for job, reason in answer.get("impossible", {}).items()}
        return ids

    def dry_run(self, requests: Sequence[JobRequest]) -> dict[str, Any]:
        """Return what would happen to jobs if they were submitted now: ``devices``, ``preempts`` and ``text``."""
        return self._ask("POST", "/v1/dry-run", _body(requests), simulates=True)

    def jobs(
        self, state: Literal["active", "ended", "all"] = "active", *, user: str = "", limit: int = sys.maxsize,
        first: int = 1, last: int = ID_MAX - 1,
    ) -> Listing:  # fmt: skip
        """Return the newest jobs of a user, of all users if it is empty, with ids from ``first`` to ``last``."""
        who = "".join(f"%{byte:02x}" for byte in user.encode())
        found: list[JobRecord] = []
        limit, before = min(limit, last - first + 1), last + 1
        page = min(limit, PAGE_MAX)
        while True:
            answer = self._ask("GET", f"/v1/jobs?state={state}&limit={page}&user={who}&before={before}")
            found[:0] = map(read_job, answer["jobs"])
            if len(answer["jobs"]) < page or len(found) >= limit or found[0].id <= first:
                return Listing(int(answer["now_ms"]), tuple(job for job in found[-limit:] if job.id >= first))
            before = found[0].id

    def job(self, job: int) -> JobRecord:
        """Return one job of this user."""
        return read_job(self._ask("GET", f"/v1/jobs/{job}")["job"])

    def command(self, verb: Verb, jobs: Sequence[int]) -> Changed:
        """Cancel, hold, release or requeue jobs, 1 to ``JOBS_MAX``: those that can be, at once."""
        answer = self._ask("POST", f"/v1/jobs/{verb}", json.dumps({"jobs": list(jobs)}).encode())
        return Changed(
            jobs=tuple(map(read_job, answer["jobs"])),
            refused={one["id"]: _KINDS.get(one["status"], BrimError)(one["detail"]) for one in answer["refused"]},
        )

    def explain(self, job: int, *, changes: bool = True) -> dict[str, Any]:
        """Return why a job waits: ``text``, ``blockers``, ``remedies`` and ``tried``; without changes, one sentence."""
        target = f"/v1/jobs/{job}/explain?changes={str(changes).lower()}"
        return self._ask("GET", target, simulates=True)

    def eta(self, jobs: Sequence[int] = ()) -> dict[str, Any]:
        """Return ``forecasts`` of jobs, of all of this user's if none is named, and ``hits`` of earlier ones."""
        named = "&".join(f"job={job}" for job in jobs)
        return self._ask("GET", f"/v1/eta?{named}" if named else "/v1/eta", simulates=True)

    def new_token(self, label: str, days: int) -> dict[str, Any]:
        """Make a token for TCP; ``secret`` is shown this once."""
        return self._ask("POST", "/v1/tokens", json.dumps({"label": label, "days": days}).encode())

    def tokens(self) -> list[dict[str, Any]]:
        """Return this user's tokens, without their secrets."""
        return list(self._ask("GET", "/v1/tokens")["tokens"])

    def revoke_token(self, number: int) -> None:
        """Revoke a token."""
        self._ask("DELETE", f"/v1/tokens/{number}", b"{}")

    def nodes(self) -> list[dict[str, Any]]:
        """Return agents and their devices."""
        return list(self._ask("GET", "/v1/nodes")["nodes"])

    def status(self) -> dict[str, Any]:
        """Return facts on the controller, with ``user`` and ``is_admin`` of who asks."""
        return self._ask("GET", "/v1/status")

    def events(self) -> Iterator[JobRecord]:
        """Yield every job that changes, from now on, until the controller ends."""
        with self._opened("GET", "/v1/events", b"", {}, None) as answer:
            status = _head(answer).status
            if status != 200:
                raise _error(status, answer.read(ANSWER_BYTES_MAX))
            for line in answer:
                if line.startswith(b"data:"):
                    yield read_job(json.loads(line[5:]))

    def is_there(self) -> bool:
        """Whether a controller answers now."""
        try:
            with self._opened("GET", "/healthz", b"", {}, TIMEOUT_S) as answer:
                return _head(answer).status == 200
        except (NoControllerError, OSError):  # the latter: it does not answer in time
            return False

    def is_recovered(self) -> bool:
        """Whether a controller answers now, and decides."""
        try:
            self._once("GET", "/v1/status", b"", {})
        except (NoControllerError, BusyError):
            return False
        return True

    def _ask(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None,
        *, simulates: bool = False,
    ) -> Any:
        """Return the answer to a request, which is made again while the controller is absent or busy.

        A question is not asked again because the answer took too long: the controller hangs, or ``simulates`` the
        queue. What changes something is, since it may have been lost.
        """
        self.may_have_arrived = False
        timeout_s = SIMULATED_S if simulates else TIMEOUT_S
        lasting = (FileNotFoundError, PermissionError, *([TimeoutError] if simulates or method == "GET" else []))
        for pause_s in (*PAUSES_S, None):
            try:
                return self._once(method, target, body, headers or {}, timeout_s)
            except NoControllerError as error:
                if pause_s is None or isinstance(error.__cause__, lasting):
                    if self.may_have_arrived and method != "GET" and not simulates:
                        said = "it may have been accepted: look at `brim ps` before you try again"
                        raise NoControllerError(f"{error}; {said}") from error
                    raise
            except BusyError as error:
                if pause_s is None or error.is_lasting:
                    raise
            time.sleep(pause_s)
        raise AssertionError

    def _once(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S
    ) -> Any:
        had_arrived = self.may_have_arrived
        with self._opened(method, target, body, headers, timeout_s) as answer:
            self.may_have_arrived = True
            try:
                status, length, trouble = _head(answer)
                data = answer.read(min(ANSWER_BYTES_MAX, length))
            except OSError as error:
                raise self._absent(error, timeout_s) from error
        if len(data) < length:
            raise NoControllerError(f"the controller at {self.path} ended before it had answered")
        self.may_have_arrived = had_arrived  # this time, the answer says
        if status in (200, 201):
            if trouble and not self._trouble:
                self._warn(trouble)
            self._trouble = trouble
            plain = json.loads(data)
            if plain.get("schema") != SCHEMA:
                raise BrimError(
                    f"the controller answers with schema {plain.get('schema')}, and this brim knows {SCHEMA}: install "
                    "the version of the controller"
                )
            return plain
        refusal = _error(status, data)
        if isinstance(refusal, BusyError):
            refusal.is_lasting = bool(trouble)
        raise refusal

    def _opened(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str], timeout_s: float | None
    ) -> BinaryIO:
        """Send a request and return the answer as a file."""
        lines = [f"{method} {target} HTTP/1.0", "Host: brim", f"Content-Length: {len(body)}"]
        if body:
            lines.append("Content-Type: application/json")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(str(self.path))
            with suppress(BrokenPipeError, ConnectionResetError):  # it refused without reading all: its answer is there
                connection.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + body)
            return connection.makefile("rb")
        except OSError as error:
            raise self._absent(error) from error
        finally:
            connection.close()  # the file keeps it open

    def error_that_ended_it(self) -> str:
        """Say in brackets which error ended this user's last controller; empty if none did, or it is another user's."""
        if self.path.parent != runtime_folder():
            return ""
        try:
            lines = (state_folder() / "controller" / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        last = lines[-1] if lines else ""
        words = "".join(sign if sign.isprintable() else "?" for sign in last.removeprefix(ENDED_BY))
        return f" (the last one ended: {words})" if last.startswith(ENDED_BY) else ""

    def _absent(self, error: OSError, timeout_s: float = TIMEOUT_S) -> NoControllerError:
        if isinstance(error, TimeoutError):
            said = f"has not answered in {timeout_s:g} s: it is busy, or hangs; see `brim doctor`"
            return NoControllerError(f"the controller at {self.path} {said}")
        if isinstance(error, PermissionError):
            said = "this user may not use it; its owner can allow it: brim up --allow USER"
        elif isinstance(error, FileNotFoundError):
            ended = self.error_that_ended_it()
            said = f"there is none{ended}: start one with `brim up`, or use a colleague's with `brim join USER`"
        else:
            said = f"{error.strerror or error}: see `brim doctor`"
        return NoControllerError(f"no controller answers at {self.path}: {said}")


def _body(requests: Sequence[JobRequest]) -> bytes:
    """The text of jobs; what those of an array have in common is sent once."""
    records: Any = [request.record() for request in requests]
    if len(records) > 1:
        first, *others = records
        common = {name: value for name, value in first.items() if all(name in one and one[name] == value
                                                                      for one in others)}  # fmt: skip
        each = [{name: value for name, value in one.items() if name not in common} for one in records]
        records = {"common": common, "each": each}
    return json.dumps(records, separators=(",", ":")).encode()


class _Head(NamedTuple):
    """Status of an answer, length of its body, and why the controller can write nothing; empty if it can."""

    status: int
    length: int
    trouble: str


def _head(answer: BinaryIO) -> _Head:
    """Read the head of an answer.

    Raises:
        BrimError: it is not HTTP.
        NoControllerError: it ended too early.
    """
    line = answer.readline(1_000)
    if not line.endswith(b"\n") and b"HTTP/1.".startswith(line[:7]):
        raise NoControllerError("the controller ended before it had answered")
    words = line.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise BrimError("what answers is no controller of brim")
    length, trouble = ANSWER_BYTES_MAX, ""
    while (line := answer.readline(10_000)).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        elif name.lower() == TROUBLE_HEADER.encode("ascii"):
            trouble = value.decode("ascii", "replace").strip()
    return _Head(int(words[1]), length, trouble)


def _error(status: int, data: bytes) -> BrimError:
    try:
        detail = str(json.loads(data)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = data.decode("utf-8", "replace")[:200].strip() or f"status {status}"
    if status in _PASSES:
        return BusyError(detail)
    if detail in _NO_ROUTE or (status == 422 and "found the field 'common'" in detail):
        return RefusedError(
            "the controller does not know this request: it is of another version of brim than this command; start it "
            "anew with this one (`brim down`, then `brim up`), or use the brim that runs it"
        )
    return _KINDS.get(status, BrimError)(detail)
