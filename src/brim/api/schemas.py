"""The shapes of answers, for the OpenAPI document. Jobs are those of ``brim.live``, so that there is one definition."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from brim.foresight.answers import Blocker, Forecast, HitRate, LossOutlook, Remedy
from brim.live.records import JobRecord, TokenRecord


class ErrorAnswer(TypedDict):
    """Why a request was refused: what was found and what was expected."""

    detail: str


class Submitted(TypedDict):
    """Ids of the jobs that were accepted, in the order of the request; why some of them can never run."""

    schema: int
    ids: list[int]
    impossible: dict[int, str]


class OneJob(TypedDict):
    """A job, and the cluster time to which its own times relate, in milliseconds."""

    schema: int
    now_ms: int
    job: JobRecord


class RefusedJob(TypedDict):
    """Why nothing was asked of a job: 404, there is none of this id or it is another user's; 403, it has ended."""

    id: int
    status: int
    detail: str


class ChangedJobs(TypedDict):
    """The jobs of which something was asked, as they then are, and the others."""

    schema: int
    now_ms: int
    jobs: list[JobRecord]
    refused: list[RefusedJob]


class JobsAnswer(TypedDict):
    """Jobs in order of their ids; of other users' jobs only what everybody may know."""

    schema: int
    now_ms: int
    jobs: list[JobRecord]


class Explanation(TypedDict):
    """Why a job waits, and what would let it run; the text says all of it."""

    schema: int
    id: int
    text: str
    blockers: tuple[Blocker, ...]
    remedies: tuple[Remedy, ...]
    tried: int
    outlook: LossOutlook | None


class EtaAnswer(TypedDict):
    """When jobs start and end, and how many jobs started within their first forecast."""

    schema: int
    forecasts: tuple[Forecast, ...]
    hits: HitRate


class DryRunAnswer(TypedDict):
    """Devices that each job would get, none for one that would wait; the text says all of it."""

    schema: int
    devices: tuple[tuple[int, ...], ...]
    preempts: tuple[int, ...]
    text: str


class Nodes(TypedDict):
    """Agents and their devices."""

    schema: int
    nodes: list[dict[str, Any]]


class StatusAnswer(TypedDict):
    """Facts on the controller, and who asked."""

    schema: int
    user: str
    is_admin: bool
    status: dict[str, Any]


class NewToken(TypedDict):
    """A token with its secret, which is shown this once."""

    schema: int
    token: TokenRecord
    secret: str


class Tokens(TypedDict):
    """The tokens of who asks."""

    schema: int
    tokens: list[TokenRecord]


class Alive(TypedDict):
    """A process answers."""

    ok: bool
