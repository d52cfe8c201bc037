"""Requests drawn from the OpenAPI document, as four users: what none of them may do."""

from __future__ import annotations

import asyncio

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from brim.api.app import create_app
from brim.api.auth import PEER, Admission
from tests.api.stand_in import KeepsJobs, request

OWNER, ANN, BO, EVE = 1000, 1001, 1002, 1003
SECRET = "secret-name"
SERVICE = KeepsJobs()
APP = create_app(SERVICE, Admission(owner=OWNER, allowed=frozenset({ANN, BO})))


class AsUser:
    """The application as one user reaches it on the socket."""

    def __init__(self, uid):
        self.uid = uid

    async def __call__(self, scope, receive, send):
        await APP({**scope, "state": {**scope.get("state", {}), PEER: self.uid}}, receive, send)


DOCUMENT = schemathesis.openapi.from_dict(APP.openapi())
DOCUMENT.app = AsUser(BO)
_few = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))


@DOCUMENT.include(path_regex="^(?!/v1/events)").parametrize()
@_few
@pytest.mark.parametrize("uid", [ANN, BO, EVE, OWNER])
def test_no_request_is_a_fault_of_ours_or_reaches_another_users_job(case, uid):
    SERVICE.__init__()
    asyncio.run(SERVICE.submit(ANN, "ann", [request(name=SECRET)] * 3, "hers"))
    before = [SERVICE.job(job) for job in (1, 2, 3)]
    DOCUMENT.app.uid = uid
    answer = case.call(headers={"host": "localhost"})
    assert answer.status_code < 500
    if uid == EVE and case.path != "/healthz":
        assert answer.status_code in (403, 413)
    if uid in (BO, EVE):
        assert SECRET not in answer.text
        assert [SERVICE.job(job) for job in (1, 2, 3)] == before
