"""The application: its routes behind authentication. Errors are ``{"detail": "..."}``, see `refusals.STATUS`."""

from __future__ import annotations

import reprlib
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from brim import __version__
from brim.api.auth import Admission
from brim.api.authentication import RETRY_S, AuthenticationMiddleware, Recognise
from brim.api.refusals import status_of
from brim.api.routes import router
from brim.api.schemas import ErrorAnswer
from brim.api.trouble import TroubleMiddleware
from brim.errors import BrimError
from brim.foresight.foresight import Foresight
from brim.live.service import ClusterService

BODY_BYTES_MAX: Final = 1 << 20
"""Longest body of a request; 1 MiB is the default of the threat model."""
ROOM_S: Final = 60
"""Seconds after which a user with too many jobs may try again; ours: by then, one may have ended."""
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)
}


def create_app(service: ClusterService, admission: Admission, recognise: Recognise = lambda token: None) -> FastAPI:
    """Return the application over a service.

    Args:
        service: The controller's service.
        admission: Who may come in.
        recognise: Finds the caller of a token.
    """
    app = FastAPI(
        title="brim", version=__version__, summary="Jobs of a shared GPU machine.",
        docs_url=None, redoc_url=None,  # their pages load scripts from elsewhere
        max_body_size=BODY_BYTES_MAX, responses=_REFUSALS, redirect_slashes=False, separate_input_output_schemas=False,
    )  # fmt: skip
    app.add_middleware(TroubleMiddleware, trouble=lambda: service.trouble)
    app.add_middleware(AuthenticationMiddleware, admission=admission, recognise=recognise)  # the last is outermost
    app.add_exception_handler(BrimError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.state.service, app.state.foresight = service, Foresight(service)
    app.include_router(router)
    return app


async def _refused(_: Request, error: Exception) -> Response:
    status = status_of(error)
    after_s = {503: RETRY_S, 429: ROOM_S}.get(status)
    return JSONResponse({"detail": str(error)}, status, None if after_s is None else {"retry-after": str(after_s)})


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    said = first["msg"]
    _, should, expected = said.partition(" should ")
    if should:  # as in "Input should be a valid integer" and "String should have at most 64 characters"
        expected = expected.removeprefix("be ") if expected.startswith("be ") else f"to {expected}"
        said = f"found {reprlib.repr(first['input'])}, expected {expected.replace(' after validation', '')}"
    return JSONResponse({"detail": f"{where}: {said}"}, 422)
