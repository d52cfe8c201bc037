"""The middleware that says, with every answer to a caller, why nothing can be written at present."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from brim.api.wire import TROUBLE_HEADER


class TroubleMiddleware:
    """Adds ``TROUBLE_HEADER``: what is shown may be older than what has happened.

    It stands behind authentication, and answers nobody but a caller whom that has let in.

    Args:
        app: The application.
        trouble: Says why nothing can be written; empty if it can.
    """

    def __init__(self, app: ASGIApp, *, trouble: Callable[[], str]) -> None:
        self._app, self._trouble = app, trouble

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def warned(message: Message) -> None:
            if message["type"] == "http.response.start" and (trouble := self._trouble()):
                said = (TROUBLE_HEADER.encode("ascii"), trouble.encode("ascii", "backslashreplace"))
                message["headers"] = [*message.get("headers", ()), said]
            await send(message)

        is_let_in = "caller" in scope.get("state", {})
        await self._app(scope, receive, warned if is_let_in else send)
