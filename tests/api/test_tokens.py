"""Tokens: who they are, for how long, and what only their user may do with them."""

from __future__ import annotations

import asyncio

import pytest

from brim.api.app import create_app
from brim.api.auth import Admission
from brim.api.tokens import digest_of, new_secret, recogniser
from tests.api.asking import ask
from tests.api.stand_in import KeepsJobs

OWNER, ANN, BO = 41000, 41001, 41002  # of whom this machine knows no names
ADMISSION = Admission(owner=OWNER, allowed=frozenset({ANN, BO}))


@pytest.fixture
def app():
    service = KeepsJobs()
    return create_app(service, ADMISSION, recogniser(service, ADMISSION))


def made(app, uid=ANN, **body):
    return ask(app, "POST", "/v1/tokens", {"label": "x", **body}, uid=uid)


def by(secret):
    return {"authorization": f"Bearer {secret}"}


def test_a_token_is_its_user_on_tcp(app):
    secret = made(app).plain["secret"]
    status = ask(app, "GET", "/v1/status", headers=by(secret)).plain
    assert (status["user"], status["is_admin"]) == ("41001", False)
    assert ask(app, "GET", "/v1/status", headers=by(made(app, OWNER).plain["secret"])).plain["is_admin"]


def test_a_token_makes_and_revokes_none(app):
    secret = made(app).plain["secret"]
    assert ask(app, "POST", "/v1/tokens", {"label": "y"}, headers=by(secret)).status == 403
    assert ask(app, "DELETE", "/v1/tokens/1", b"{}", headers=by(secret)).status == 403
    assert ask(app, "GET", "/v1/tokens", headers=by(secret)).status == 200


def test_a_number_of_thousands_of_digits_is_that_of_no_token(app):
    assert ask(app, "DELETE", "/v1/tokens/" + "9" * 5_000, b"{}", uid=ANN).status == 404


def test_a_user_sees_and_revokes_own_tokens_only(app):
    secret = made(app).plain["secret"]
    assert ask(app, "GET", "/v1/tokens", uid=BO).plain["tokens"] == []
    for uid in (BO, OWNER):
        assert ask(app, "DELETE", "/v1/tokens/1", b"{}", uid=uid).status == 404
    listed = ask(app, "GET", "/v1/tokens", uid=ANN)
    assert [token["id"] for token in listed.plain["tokens"]] == [1]
    assert secret not in listed.body.decode()
    assert ask(app, "DELETE", "/v1/tokens/1", b"{}", uid=ANN).plain["tokens"] == []
    assert ask(app, "GET", "/v1/status", headers=by(secret)).status == 401


def test_a_token_has_a_name_and_an_end(app):
    for body in ({"days": 0}, {"days": 91}, {"days": "x"}, {"label": ""}, {"label": "a b"}, {"label": 3}):
        assert made(app, **body).status == 422
    assert made(app, days=400).plain["detail"] == "days: found 400, expected less than or equal to 90"


def test_a_token_that_has_expired_or_whose_user_is_not_allowed_any_more_is_refused():
    service = KeepsJobs()
    secret = new_secret()
    for uid, expires_s, known in ((ANN, 2e10, True), (ANN, 1.0, False), (1009, 2e10, False)):
        asyncio.run(service.add_token(uid=uid, user="x", label="x", digest=digest_of(secret), expires_s=expires_s))
        assert (recogniser(service, ADMISSION)(secret) is not None) == known


def test_secrets_are_long_and_never_the_same():
    found = {new_secret() for _ in range(100)}
    assert len(found) == 100
    assert all(len(secret) == len("brim_") + 43 for secret in found)
