"""The status with which the API refuses, by the kind of error."""

from __future__ import annotations

from typing import Final

from brim.errors import BrimError, ConfigError, NotFoundError, RefusedError
from brim.live.store.errors import KeyReusedError, NotAcceptedError, TooManyJobsError


class TooLongError(BrimError):
    """A request is longer than its kind may be."""


STATUS: Final[tuple[tuple[type[BrimError], int], ...]] = (
    (NotAcceptedError, 503), (TooManyJobsError, 429), (TooLongError, 413), (KeyReusedError, 409), (NotFoundError, 404),
    (RefusedError, 403), (ConfigError, 422),
)  # fmt: skip
"""Status by the kind of error; the first that fits."""


def status_of(error: Exception) -> int:
    """Return the status of an answer that says so; 500 for an error that is no refusal."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)
