"""The middleware that refuses every request without an identity, whatever its path.

It wraps the whole application, so that a route, a mounted application, a document or a stream that is added later is
protected too. Only ``/healthz`` answers without an identity, and tells nothing but that a process answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from brim.api.auth import PEER, Admission, Caller

OPEN_PATH: Final = "/healthz"
HOSTS: Final = frozenset({"brim", "localhost", "127.0.0.1", "[::1]"})
"""Names of the service. Another name is that of a page, which was bound to this machine."""
REQUESTS_MAX: Final = 64
"""Unanswered requests and streams of one user; ours."""
REQUESTS_ALL_MAX: Final = 1_000
"""Unanswered requests and streams of all users; ours."""
RETRY_S: Final = 1
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
)

Recognise = Callable[[str], Caller | None]
"""The caller to whom a token belongs; None if it is none, or has expired or was revoked."""


class NotAdmittedError(Exception):
    """A request that is not let in: status, reason and additional headers of the answer."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})


class AuthenticationMiddleware:
    """Middleware that refuses by default, see above; the caller is at ``request.state.caller`` behind it.

    Args:
        app: The application.
        admission: Who may come in.
        recognise: Finds the caller of a token; tokens are the only identity on TCP.
    """

    def __init__(self, app: ASGIApp, *, admission: Admission, recognise: Recognise) -> None:
        self._app, self._admission, self._recognise = app, admission, recognise
        self._open: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # brim has no web socket
            await send({"type": "websocket.close", "code": 1008})
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        if scope["path"] == OPEN_PATH and scope["method"] in _SAFE:
            await self._app(scope, receive, secured)
            return
        try:
            caller = self._admit(scope)
        except NotAdmittedError as refusal:
            await _answer(refusal, secured)
            return

        scope.setdefault("state", {})["caller"] = caller
        self._open[caller.uid] += 1
        try:
            await self._app(scope, receive, secured)
        finally:
            self._open[caller.uid] -= 1
            if not self._open[caller.uid]:
                del self._open[caller.uid]

    def _admit(self, scope: Scope) -> Caller:
        headers = Headers(scope=scope)
        _check_origin(scope["method"], headers)
        uid = scope.get("state", {}).get(PEER)
        caller = self._by_token(headers) if uid is None else self._admission.caller(uid)
        if caller is None:
            who = f"user {uid} may not use this controller"
            raise NotAdmittedError(403, f"{who}; its owner can allow it: brim up --allow USER")
        _check_type(scope["method"], headers)
        if self._open[caller.uid] >= REQUESTS_MAX or self._open.total() >= REQUESTS_ALL_MAX:
            busy = "you have" if self._open[caller.uid] >= REQUESTS_MAX else "the controller has"
            raise NotAdmittedError(429, f"{busy} too many requests under way; try again", {"retry-after": str(RETRY_S)})
        return caller

    def _by_token(self, headers: Headers) -> Caller:
        kind, _, token = headers.get("authorization", "").partition(" ")
        caller = self._recognise(token) if kind.lower() == "bearer" and token else None
        if caller is None:
            found = "one that is not valid, or no longer" if token else "none"
            raise NotAdmittedError(401, f"a token is required: found {found}", {"www-authenticate": "Bearer"})
        return caller


def _check_origin(method: str, headers: Headers) -> None:
    """Refuse what a page from elsewhere makes a browser send: by a name bound to this machine, or across origins."""
    host = headers.get("host", "")
    if _name(host) not in HOSTS:
        raise NotAdmittedError(403, f"header Host: found {host[:80]!a}, expected localhost")
    if method in _SAFE:
        return
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise NotAdmittedError(403, f"header Origin: found {origin[:80]!a}, expected none, or that of this service")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise NotAdmittedError(403, "header Sec-Fetch-Site: found another site, expected same-origin")


def _check_type(method: str, headers: Headers) -> None:
    kind = headers.get("content-type", "")
    if method not in _SAFE and kind.partition(";")[0].strip().lower() != "application/json":
        raise NotAdmittedError(415, f"header Content-Type: found {kind[:80]!a}, expected application/json")


def _name(host: str) -> str:
    """A host without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


async def _answer(refusal: NotAdmittedError, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    if refusal.status in (413, 415, 429):
        headers.append((b"connection", b"close"))  # what is left of the body is not read
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
