"""No request passes without an identity; what a browser is made to send from elsewhere does not either."""

from __future__ import annotations

import functools

import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from brim.api.app import create_app
from brim.api.auth import PEER, Admission, Caller
from brim.api.authentication import REQUESTS_MAX, AuthenticationMiddleware
from brim.api.routes import SUBMISSION_BYTES_MAX
from tests.api.asking import ask
from tests.api.stand_in import KeepsJobs, request

OWNER, ANN, BO, EVE = 1000, 1001, 1002, 1003
ADMISSION = Admission(owner=OWNER, allowed=frozenset({ANN, BO}))
TOKENS = {"good": Caller(uid=ANN, user="ann", is_admin=False, token="1")}


@functools.cache
def made():
    return create_app(KeepsJobs(), ADMISSION, TOKENS.get)


def app_of(service=None):
    made().state.service = service or KeepsJobs()
    return made()


def paths(routes, before=""):
    """Every path and method that is mounted anywhere, with numbers and words for its parameters."""
    for route in routes:
        inner = getattr(route, "original_router", None) or (route if isinstance(route, Mount) else None)
        if inner is not None:
            yield from paths(inner.routes, before + getattr(route, "path", ""))
        else:
            path = before + route.path.replace("{verb}", "cancel")
            path = path.replace("{job:int}", "1").replace("{number:int}", "1")
            for method in getattr(route, "methods", None) or ("GET",):
                yield method, path


@functools.cache
def every_path():
    app = create_app(KeepsJobs(), ADMISSION, TOKENS.get)

    async def plain(_):
        return PlainTextResponse("secret")

    async def stream(_):
        return StreamingResponse(iter([b"secret"]))

    inner = FastAPI()
    inner.add_api_route("/deep", lambda: "secret")
    app.mount("/mounted", inner)
    app.mount("/plain", Mount("/x", routes=[Route("/later", plain)]))
    app.router.routes.append(Route("/added", plain, methods=["GET", "POST", "PUT", "DELETE", "PATCH"]))
    app.router.routes.append(Route("/stream", stream))
    return app, sorted({*paths(app.routes), ("GET", "/docs"), ("GET", "/redoc"), ("GET", "/nowhere"), ("GET", "/"),
                        ("GET", "//healthz"), ("GET", "/healthz/"), ("POST", "/healthz"),
                        ("GET", "/healthz/../metrics")})


def test_the_walk_finds_every_kind_of_route():
    found = {path for _, path in every_path()[1]}
    assert {"/openapi.json", "/metrics", "/v1/jobs", "/v1/jobs/cancel", "/v1/events", "/mounted/deep",
            "/mounted/docs", "/plain/later", "/added", "/stream", "/healthz"} <= found


@pytest.mark.parametrize(("uid", "headers", "status"), [
    (None, {}, 401), (None, {"authorization": "Bearer bad"}, 401), (None, {"authorization": "Basic good"}, 401),
    (None, {"authorization": "Bearer "}, 401), (EVE, {}, 403), (65534, {}, 403), (0, {}, 403),
    (EVE, {"authorization": "Bearer good"}, 403),
])  # fmt: skip
def test_only_healthz_answers_who_is_not_recognised(uid, headers, status):
    app, walked = every_path()
    for method, path in walked:
        answer = ask(app, method, path, b"{}", uid=uid, headers=headers)
        if (method, path) in (("GET", "/healthz"), ("HEAD", "/healthz")):
            assert answer.status in (200, 405)
        else:
            assert answer.status == status, (method, path, answer)
        assert b"secret" not in answer.body


def test_the_overflow_user_is_not_admitted_even_if_it_is_allowed():
    assert Admission(owner=OWNER, allowed=frozenset({65534})).caller(65534) is None


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example", "brim:x"])
def test_a_name_that_was_bound_to_this_machine_is_refused(host):
    for method in ("GET", "POST"):
        assert ask(app_of(), method, "/v1/jobs", b"{}", uid=ANN, host=host).status == 403
        with_token = {"authorization": "Bearer good"}
        assert ask(app_of(), method, "/v1/jobs", b"{}", headers=with_token, host=host).status == 403


@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://localhost:1"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
])  # fmt: skip
@pytest.mark.parametrize("uid", [ANN, None])
def test_a_page_from_elsewhere_changes_nothing(headers, uid):
    service = KeepsJobs()
    sent = {**headers, "authorization": "Bearer good", "idempotency-key": "k"}
    answer = ask(app_of(service), "POST", "/v1/jobs", request().record(), uid=uid, headers=sent, host="localhost:8000")
    assert answer.status == 403
    assert not service.jobs()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None])
def test_what_a_form_can_send_is_refused(kind):
    headers = {"idempotency-key": "k"}
    assert ask(app_of(), "POST", "/v1/jobs", b"{}", uid=ANN, headers=headers, kind=kind).status == 415


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "brim"])
def test_the_own_origin_may(host):
    headers = {"origin": f"http://{host}", "sec-fetch-site": "same-origin", "idempotency-key": "k"}
    assert ask(app_of(), "POST", "/v1/jobs", request().record(), uid=ANN, headers=headers, host=host).status == 201


def test_a_body_that_is_too_long_is_refused_before_it_is_parsed():
    body = b"[" + b" " * SUBMISSION_BYTES_MAX + b"]"
    for headers in ({}, {"content-length": None, "transfer-encoding": "chunked"}):
        answer = ask(app_of(), "POST", "/v1/jobs", body, uid=ANN, headers={"idempotency-key": "k", **headers})
        assert answer.status == 413


def test_answers_are_not_kept_and_not_sniffed():
    for uid in (ANN, EVE):
        headers = ask(app_of(), "GET", "/v1/jobs", uid=uid).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]


def test_one_user_with_too_many_requests_does_not_keep_others_out():
    async def inner(scope, receive, send):
        """Ask again from within, until one is refused: every outer request is under way meanwhile."""
        mine.append(scope)
        if len(mine) <= REQUESTS_MAX:
            await outer({**scope, "state": {PEER: ANN}}, receive, refused.append_message)
        if len(mine) == REQUESTS_MAX:
            await outer({**scope, "state": {PEER: BO}}, receive, others.append_message)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    mine, refused, others = [], Messages(), Messages()
    outer = AuthenticationMiddleware(inner, admission=ADMISSION, recognise=TOKENS.get)
    assert ask(outer, "GET", "/x", uid=ANN).status == 200
    assert refused.statuses == [429, *[200] * (REQUESTS_MAX - 1)]
    assert others.statuses == [200]
    assert ask(outer, "GET", "/x", uid=ANN).status == 200, "all are answered: the count is back at none"


class Messages:
    """What an application sent."""

    def __init__(self):
        self.statuses = []

    async def append_message(self, message):
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])
            if message["status"] == 429:
                assert (b"retry-after", b"1") in message["headers"]
