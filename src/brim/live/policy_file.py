"""The text of a policy file, as a digest: an edited file under the same path is another policy."""

from __future__ import annotations

from pathlib import Path


def policy_path(policy: str) -> Path | None:
    """The file of a policy, whether or not padding jobs fill what it leaves; None for a preset."""
    name = policy.removesuffix("+padding")
    return Path(name) if name.endswith(".py") else None


def policy_digest(policy: str) -> str:
    """Return the SHA-256 of the file with a policy, in hexadecimal digits; empty for a preset, or without the file."""
    import hashlib  # noqa: PLC0415 - 3 ms, which most commands do not need

    try:
        path = policy_path(policy)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path else ""
    except OSError:  # whoever reads it as a policy says so
        return ""
