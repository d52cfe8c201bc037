"""Tokens: the only identity on TCP. A secret is shown once, and only its digest is stored."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Final

from brim.api.auth import Admission, Caller
from brim.api.authentication import Recognise
from brim.live.service import ClusterService

DAYS_MAX: Final = 90
"""Longest life of a token, the default of the threat model."""
PREFIX: Final = "brim_"
"""How a secret begins, so that scanners of repositories know one."""
_SECRET_BYTES: Final = 32


def new_secret() -> str:
    """Return a secret of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret, in hexadecimal digits. It is random, so it needs no salt."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def recogniser(service: ClusterService, admission: Admission) -> Recognise:
    """Return what finds the caller of a secret; a token that was revoked is refused from the next request on."""

    def recognise(secret: str) -> Caller | None:
        token = service.token(digest_of(secret)) if secret.startswith(PREFIX) else None
        if token is None or token.expires_s <= time.time():
            return None
        return admission.caller(token.uid, str(token.id))

    return recognise
