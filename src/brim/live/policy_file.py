"""The text of a policy file, as a digest: an edited file under the same path is another policy."""

from __future__ import annotations

from pathlib import Path


def policy_digest(policy: str) -> str:
    """Return the SHA-256 of the file with a policy, in hexadecimal digits; empty for a preset, or without the file."""
    import hashlib  # noqa: PLC0415 - 3 ms, which most commands do not need

    try:
        return hashlib.sha256(Path(policy).read_bytes()).hexdigest() if policy.endswith(".py") else ""
    except OSError:  # whoever reads it as a policy says so
        return ""
