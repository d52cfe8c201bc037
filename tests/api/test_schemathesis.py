"""Requests drawn from the OpenAPI document, as four users: what none of them may do."""

from __future__ import annotations

import asyncio
import functools

import pytest
from hypothesis import HealthCheck, settings

from brim.api.app import create_app
from brim.api.auth import Admission
from tests.api.asking import ask
from tests.api.stand_in import KeepsJobs, request

OWNER, ANN, BO, EVE = 1000, 1001, 1002, 1003
SECRET = "secret-name"
SERVICE = KeepsJobs()
APP = create_app(SERVICE, Admission(owner=OWNER, allowed=frozenset({ANN, BO})))
OPERATIONS = [
    f"{method.upper()} {path}"
    for path, methods in APP.openapi()["paths"].items() for method in methods if not path.startswith("/v1/events")
]  # fmt: skip


@functools.cache
def document():
    import schemathesis  # in the worker that runs these tests: it takes a second

    return schemathesis.openapi.from_dict(APP.openapi())


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def ask_as_each_user(case):
    """Send one request as each user: to draw it takes longer than to answer it."""
    from requests import Request

    sent = Request(**case.as_transport_kwargs(base_url="http://localhost")).prepare()
    headers = {name.lower(): value for name, value in sent.headers.items()}
    for uid in (ANN, BO, EVE, OWNER):
        SERVICE.__init__()
        asyncio.run(SERVICE.submit(ANN, "ann", [request(name=SECRET)] * 3, "hers"))
        before = [SERVICE.job(job) for job in (1, 2, 3)]
        answer = ask(APP, sent.method, sent.path_url, sent.body or b"", uid=uid, headers=headers, kind=None)
        assert answer.status < 500, (uid, sent.method, sent.url, sent.body)
        if uid == EVE and case.path != "/healthz":
            assert answer.status in (403, 413)
        if uid in (BO, EVE):
            assert SECRET.encode() not in answer.body
            assert [SERVICE.job(job) for job in (1, 2, 3)] == before


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_request_is_a_fault_of_ours_or_reaches_another_users_job(operation):
    """Drawn here, not by the marker for pytest, which draws when tests are collected: in each worker."""
    from schemathesis.generation.feedback import FeedbackSources
    from schemathesis.pytest._test_builder import build_operation_test

    (found,) = [one.ok() for one in document().get_all_operations() if one.ok().label == operation]
    build_operation_test(
        config=document().config, operation=found, test_func=ask_as_each_user, given_kwargs={},
        feedback=FeedbackSources(),
    )()  # fmt: skip
