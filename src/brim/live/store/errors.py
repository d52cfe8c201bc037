"""What the store refuses, and how it says so."""

from __future__ import annotations

from brim.errors import BrimError, RefusedError


class NotAcceptedError(BrimError):
    """Nothing was written, for a reason that passes: the same request can be made again later."""


class TooManyJobsError(BrimError):
    """Nothing was written: the user would have more jobs that have not ended than a user may have."""


class KeyReusedError(RefusedError):
    """The idempotency key of this user stands for another submission."""
