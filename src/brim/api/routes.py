"""The routes, version 1. A job of another user is answered as one that does not exist."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterable, Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field
from starlette.convertors import IntegerConvertor, register_url_convertor

from brim.api.auth import Caller
from brim.api.client import PAGE_MAX
from brim.api.logs import read_log
from brim.api.refusals import TooLongError, status_of
from brim.api.schemas import (
    Alive,
    ChangedJobs,
    DryRunAnswer,
    EtaAnswer,
    Explanation,
    JobsAnswer,
    NewToken,
    Nodes,
    OneJob,
    StatusAnswer,
    Submitted,
    Tokens,
)
from brim.api.tokens import DAYS_MAX, digest_of, new_secret
from brim.api.wire import SCHEMA, plain_job, redacted
from brim.errors import BrimError, ConfigError, NotFoundError, RefusedError
from brim.foresight.answers import WhyWaiting
from brim.foresight.foresight import Foresight
from brim.live.records import JobRecord
from brim.live.requests import ID_MAX, JOBS_MAX, REQUEST_BYTES_MAX, JobRequest, read_submission
from brim.live.service import ClusterService
from brim.live.store.transactions import Verb

SUBMISSION_BYTES_MAX: Final = 4 << 20
"""Longest body with jobs, ours: ``JOBS_MAX`` with capture, digest and index each, and what they have in common."""
SUBMITTED_BYTES_MAX: Final = 16 << 20
"""Longest text of all jobs of a submission, with what they have in common in each; ours."""
_BODY: Final = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"anyOf": [
    {"$ref": "#/components/schemas/JobRequest"},
    {"type": "array", "items": {"$ref": "#/components/schemas/JobRequest"}, "minItems": 1, "maxItems": JOBS_MAX},
    {"type": "object", "required": ["common", "each"], "additionalProperties": False, "properties": {
        "common": {"type": "object", "description": "Fields that all jobs have."},
        "each": {"type": "array", "items": {"type": "object"}, "minItems": 1, "maxItems": JOBS_MAX},
    }},
]}}}}}  # fmt: skip


class _IdConvertor(IntegerConvertor):
    """Ids in paths: Python reads no number of thousands of digits, and there is no job of more than these."""

    regex = "[0-9]{1,40}"


register_url_convertor("id", _IdConvertor())
router = APIRouter()


def _service(request: Request) -> ClusterService:
    service: ClusterService = request.app.state.service
    return service


def _foresight(request: Request) -> Foresight:
    foresight: Foresight = request.app.state.foresight
    return foresight


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


ServiceDep = Annotated[ClusterService, Depends(_service)]
ForesightDep = Annotated[Foresight, Depends(_foresight)]
CallerDep = Annotated[Caller, Depends(_caller)]
Id = Annotated[int, Path(ge=1, le=ID_MAX, description="Job id.")]


def _own(service: ClusterService, caller: Caller, job: int) -> JobRecord:
    """Return a job of the caller.

    Raises:
        NotFoundError: there is none of this id, or it is another user's.
    """
    found = service.job(job)
    if found is None or not caller.may_see(found):
        raise NotFoundError(f"there is no job {job} of yours")
    return found


@router.get("/healthz")
async def healthz() -> Alive:
    """Answer, whoever asks."""
    return {"ok": True}


@router.post(
    "/v1/jobs", status_code=201, max_body_size=SUBMISSION_BYTES_MAX, openapi_extra=_BODY, response_model=Submitted
)
async def submit(
    request: Request, service: ServiceDep, foresight: ForesightDep, caller: CallerDep,
    idempotency_key: Annotated[str, Header(pattern="^[A-Za-z0-9._-]{1,128}$")],
) -> Response:  # fmt: skip
    """Submit a job, a list, or jobs with what they have in common, all or none.

    They are durable when this answers; the key makes it repeatable.
    """
    asked = _read(await request.body())
    ids = await service.submit(caller.uid, caller.user, asked, idempotency_key)
    never = dict(zip(ids, foresight.why_impossible(asked), strict=True))
    never = {job: reason for job, reason in never.items() if reason}
    return JSONResponse({"schema": SCHEMA, "ids": list(ids), "impossible": never}, 201)


@router.post("/v1/dry-run", max_body_size=SUBMISSION_BYTES_MAX, openapi_extra=_BODY)
async def dry_run(request: Request, foresight: ForesightDep, caller: CallerDep) -> DryRunAnswer:
    """Say where a job or a list would run if it were submitted now, or why it would wait. Nothing is stored."""
    found = await foresight.dry_run(caller.uid, caller.user, _read(await request.body()))
    return {"schema": SCHEMA, "devices": found.devices, "preempts": found.preempts, "text": found.text}


def _read(body: bytes) -> list[JobRequest]:
    try:
        plain = json.loads(body, parse_constant=_not_finite)
    except (ValueError, RecursionError):
        raise ConfigError("body: found no JSON of finite numbers, expected a job or a list of jobs") from None
    if isinstance(plain, dict) and plain.keys() == {"common", "each"}:
        plain = _spread(plain["common"], plain["each"])
    if not isinstance(plain, list):
        if len(body) > REQUEST_BYTES_MAX:
            raise TooLongError(f"job: found {len(body)} bytes, expected at most {REQUEST_BYTES_MAX}")
        return [read_submission(plain)]
    if not 1 <= len(plain) <= JOBS_MAX:
        raise ConfigError(f"body: found a list of {len(plain)} jobs, expected 1 to {JOBS_MAX}")
    return [_read_item(number, item) for number, item in enumerate(plain)]


def _spread(common: Any, each: Any) -> list[Any]:
    """Return jobs as if each had been sent with all of its fields."""
    if not isinstance(common, dict) or not isinstance(each, list):
        raise ConfigError("body: found common or each of another type, expected an object and a list")
    if (length := len(json.dumps(common)) * len(each)) > SUBMITTED_BYTES_MAX:
        raise TooLongError(f"body: found jobs of {length} bytes together, expected at most {SUBMITTED_BYTES_MAX}")
    return [{**common, **job} if isinstance(job, dict) else job for job in each]


def _read_item(number: int, plain: Any) -> JobRequest:
    try:
        return read_submission(plain)
    except ConfigError as error:
        raise ConfigError(f"job {number} of the list: {error}") from None


def _not_finite(name: str) -> float:
    raise ValueError(name)


@router.get("/v1/jobs", response_model=JobsAnswer)
async def jobs(
    service: ServiceDep, caller: CallerDep,
    state: Annotated[Literal["active", "ended", "all"], Query(description="Which jobs.")] = "active",
    user: Annotated[str, Query(max_length=64, description="Only jobs of this user.")] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description="At most as many, the newest ones.")] = PAGE_MAX,
    before: Annotated[int, Query(ge=1, le=ID_MAX, description="Only ids below this, for the next page.")] = ID_MAX,
) -> Response:  # fmt: skip
    """List jobs of all users."""
    found = [
        job for job in service.jobs()
        if job.id < before and (state == "all" or job.has_ended == (state == "ended")) and user in ("", job.user)
    ]  # fmt: skip
    shown = [plain_job(job if caller.may_see(job) else redacted(job)) for job in found[-limit:]]
    return JSONResponse({"schema": SCHEMA, "now_ms": service.now_ms(), "jobs": shown})


@router.get("/v1/jobs/{job:id}", response_model=OneJob)
async def one_job(service: ServiceDep, caller: CallerDep, job: Id) -> Response:
    """Show a job."""
    return JSONResponse({"schema": SCHEMA, "now_ms": service.now_ms(), "job": plain_job(_own(service, caller, job))})


@router.post("/v1/jobs/{verb}", response_model=ChangedJobs)
async def command(
    service: ServiceDep, caller: CallerDep, verb: Verb,
    jobs: Annotated[
        list[Annotated[int, Field(ge=1, le=ID_MAX, strict=True)]],
        Body(embed=True, min_length=1, max_length=JOBS_MAX, description="Ids of the jobs."),
    ],
) -> Response:  # fmt: skip
    """Cancel, hold, release or requeue jobs: those that can be, at once; the answer says of each other why not.

    What was asked is durable when this answers, and done some time later.
    """
    answers = await service.command(caller.uid, verb, jobs, may_change=caller.may_change)
    return await asyncio.to_thread(_changed, service.now_ms(), answers)


def _changed(now_ms: int, answers: Mapping[int, JobRecord | BrimError]) -> Response:
    """Say what became of each job. Many are tenths of a second of work, for which nobody else should wait."""
    refused = [
        {"id": job, "status": status_of(error), "detail": str(error)} for job, error in answers.items()
        if isinstance(error, BrimError)
    ]  # fmt: skip
    jobs = [plain_job(job) for job in answers.values() if isinstance(job, JobRecord)]
    return JSONResponse({"schema": SCHEMA, "now_ms": now_ms, "jobs": jobs, "refused": refused})


@router.get("/v1/jobs/{job:id}/explain")
async def explain(
    service: ServiceDep, foresight: ForesightDep, caller: CallerDep, job: Id,
    changes: Annotated[bool, Query(description="Try what would let it run; else only say why.")] = True,
) -> Explanation:  # fmt: skip
    """Explain why a job waits, and what would let it run: changes that were tried by deciding the round with them."""
    _own(service, caller, job)
    if changes:
        found = await foresight.explain(job)
    else:
        found = WhyWaiting(text=service.explain(job), blockers=(), remedies=(), tried=0)
    return {
        "schema": SCHEMA, "id": job, "text": found.text, "blockers": found.blockers, "remedies": found.remedies,
        "tried": found.tried, "outlook": found.outlook,
    }  # fmt: skip


@router.get("/v1/eta")
async def eta(
    service: ServiceDep, foresight: ForesightDep, caller: CallerDep,
    job: Annotated[list[Id] | None, Query(max_length=PAGE_MAX, description="Job ids; none: all of yours.")] = None,
) -> EtaAnswer:  # fmt: skip
    """Forecast when jobs start and end: intervals from the twin, which replays the queue with drawn run times."""
    if job:
        asked = [_own(service, caller, one) for one in job]
    else:
        asked = [one for one in service.jobs() if one.uid == caller.uid]
    for one in asked if job else ():
        if one.has_ended:
            raise RefusedError(f"job {one.id} has ended as {one.state}: there is nothing to forecast")
    found, hits = await foresight.eta([one.id for one in asked if not one.has_ended])
    return {"schema": SCHEMA, "forecasts": found, "hits": hits}


@router.get("/v1/jobs/{job:id}/log", response_class=PlainTextResponse)
def log(
    service: ServiceDep, caller: CallerDep, job: Id,
    rank: Annotated[int, Query(ge=0, le=9_999)] = 0,
    offset: Annotated[int, Query(ge=0, le=ID_MAX, description="Bytes of the newest attempt to pass over.")] = 0,
) -> Response:  # fmt: skip
    """Return what a job of the controller's own user wrote, at most 1 MiB; other users' agents keep theirs."""
    return PlainTextResponse(read_log(_own(service, caller, job), rank, offset))


@router.get("/v1/nodes")
async def nodes(service: ServiceDep) -> Nodes:
    """Show agents and devices."""
    return {"schema": SCHEMA, "nodes": [dict(node) for node in service.nodes()]}


@router.get("/v1/status")
async def status(service: ServiceDep, caller: CallerDep) -> StatusAnswer:
    """Show facts on the controller."""
    return {"schema": SCHEMA, "user": caller.user, "is_admin": caller.is_admin, "status": dict(service.status())}


@router.post("/v1/tokens", status_code=201)
async def new_token(
    service: ServiceDep, caller: CallerDep,
    label: Annotated[str, Body(pattern="^[A-Za-z0-9._-]{1,64}$")],
    days: Annotated[int, Body(ge=1, le=DAYS_MAX)] = DAYS_MAX,
) -> NewToken:  # fmt: skip
    """Make a token, which stands for who asks on TCP. A token makes no tokens: this is for the Unix socket."""
    _check_socket(caller)
    secret = new_secret()
    expires_s = time.time() + days * 86_400
    token = await service.add_token(
        uid=caller.uid, user=caller.user, label=label, digest=digest_of(secret), expires_s=expires_s
    )
    return {"schema": SCHEMA, "token": token, "secret": secret}


@router.get("/v1/tokens")
async def tokens(service: ServiceDep, caller: CallerDep) -> Tokens:
    """List the tokens of who asks, without their secrets."""
    return {"schema": SCHEMA, "tokens": list(service.tokens(caller.uid))}


@router.delete("/v1/tokens/{number:id}")
async def revoke_token(service: ServiceDep, caller: CallerDep, number: Annotated[int, Path(ge=1, le=ID_MAX)]) -> Tokens:
    """Revoke a token; it is refused from the next request on."""
    _check_socket(caller)
    await service.revoke_token(uid=caller.uid, user=caller.user, number=number)
    return {"schema": SCHEMA, "tokens": list(service.tokens(caller.uid))}


def _check_socket(caller: Caller) -> None:
    if caller.token:
        raise RefusedError("a token cannot make or revoke tokens: use the Unix socket, as `brim token` does")


@router.get("/v1/events", response_class=EventSourceResponse)
async def events(service: ServiceDep, caller: CallerDep) -> AsyncIterable[ServerSentEvent]:
    """Send every job that changes, as it then is."""
    async for job in service.subscribe():
        yield ServerSentEvent(event="job", data=plain_job(job if caller.may_see(job) else redacted(job)))


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: ServiceDep) -> Response:
    """Return metrics for Prometheus."""
    from brim.api.metrics import exposition  # noqa: PLC0415 - a tenth of what is loaded before the first answer

    return exposition(service)
