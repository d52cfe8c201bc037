"""Ask an application without a server: as a user, as nobody, or with any headers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from brim.api.auth import PEER


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def plain(self) -> Any:
        return json.loads(self.body)


def ask(app, method, target, body=b"", *, uid=None, headers=None, host="localhost", kind="application/json"):
    """Send one request; ``uid`` None is a connection by TCP. A stream is cut after its head."""
    path, _, query = target.partition("?")
    data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"host": host, "content-type": kind, "content-length": str(len(data)), **(headers or {})}
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items() if value is not None],
        "http_version": "1.1", "scheme": "http", "root_path": "", "client": None, "server": None,
        "asgi": {"version": "3.0"}, "state": {} if uid is None else {PEER: uid},
    }
    sent = []

    async def run():
        given, closed = [{"type": "http.request", "body": data, "more_body": False}], asyncio.Event()

        async def receive():
            if given:
                return given.pop()
            await closed.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if message["type"] == "http.response.start" and (b"content-type", b"text/event-stream") in [
                (name.lower(), value.split(b";")[0]) for name, value in message["headers"]
            ]:
                closed.set()

        await asyncio.wait_for(app(scope, receive, send), 60)

    asyncio.run(run())
    start = sent[0]
    names = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], names, b"".join(part.get("body", b"") for part in sent[1:]))
