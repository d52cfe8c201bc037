"""The application: its routes behind authentication. Errors are ``{"detail": "..."}`` with the status of `STATUS`."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from brim import __version__
from brim.api.auth import Admission
from brim.api.authentication import RETRY_S, AuthenticationMiddleware, Recognise
from brim.api.routes import TooLongError, router
from brim.api.schemas import ErrorAnswer
from brim.errors import BrimError, ConfigError, NotFoundError, RefusedError
from brim.foresight.foresight import Foresight
from brim.live.service import ClusterService
from brim.live.store.errors import KeyReusedError, NotAcceptedError, TooManyJobsError

BODY_BYTES_MAX: Final = 1 << 20
"""Longest body of a request; 1 MiB is the default of the threat model."""
ROOM_S: Final = 60
"""Seconds after which a user with too many jobs may try again; ours: by then, one may have ended."""
STATUS: Final[tuple[tuple[type[BrimError], int], ...]] = (
    (NotAcceptedError, 503), (TooManyJobsError, 429), (TooLongError, 413), (KeyReusedError, 409), (NotFoundError, 404),
    (RefusedError, 403), (ConfigError, 422),
)  # fmt: skip
"""Status of an answer by the kind of error; the first that fits. Others are 500."""
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
    app.add_middleware(
        AuthenticationMiddleware, admission=admission, recognise=recognise, trouble=lambda: service.trouble
    )
    app.add_exception_handler(BrimError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.state.service, app.state.foresight = service, Foresight(service)
    app.include_router(router)
    return app


async def _refused(_: Request, error: Exception) -> Response:
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    after_s = {503: RETRY_S, 429: ROOM_S}.get(status)
    return JSONResponse({"detail": str(error)}, status, None if after_s is None else {"retry-after": str(after_s)})


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"detail": f"{where}: {first['msg']}"}, 422)
