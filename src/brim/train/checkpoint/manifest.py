"""The manifest of a checkpoint: its files with their SHA-256, its tensors, and how they differ from a model's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brim.train.checkpoint.shards import HostCopy, Spec, dtype_of, fingerprint

FORMAT = 1
"""Increased when a reader of the previous format could misread the new one."""

MANIFEST = "manifest.json"

SHOWN_DIFFERENCES = 3
"""Number of tensors that a message names if a checkpoint is of another model. Our choice."""


class UnusableCheckpointError(Exception):
    """A checkpoint cannot be used; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The step, fencing token ("epoch" in the file) and job of a checkpoint."""

    step: int
    token: int
    job_id: str


def write_manifest(origin: Origin, copy: HostCopy, sums: list[str], meta: str) -> bytes:
    """Return the manifest for the files of ``copy``; ``sums`` are their SHA-256, ``meta`` is JSON text."""
    body = {
        "format": FORMAT,
        "step": origin.step,
        "epoch": origin.token,
        "job_id": origin.job_id,
        "fingerprint": fingerprint(copy.specs),
        "files": [
            {"name": shard.file, "bytes": shard.size, "sha256": sha256, "tensors": list(shard.offsets)}
            for shard, sha256 in zip(copy.shards, sums, strict=True)
        ],
        "tensors": {name: [spec.dtype, list(spec.shape)] for name, spec in copy.specs.items()},
        "tied": copy.tied,
        "meta": json.loads(meta),
    }
    return with_checksum(body)


def with_checksum(body: Mapping[str, Any]) -> bytes:
    """Return a manifest that contains the SHA-256 of its own content, which `read_manifest` checks."""
    return json.dumps({**body, "sha256": _checksum(body)}).encode()


def read_manifest(raw: bytes) -> dict[str, Any]:
    """Parse and check a manifest; raise `UnusableCheckpointError` if it cannot be used."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise UnusableCheckpointError(f"{MANIFEST} is not JSON: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        raise UnusableCheckpointError(f"{MANIFEST} has no format number")
    if body["format"] > FORMAT:
        raise UnusableCheckpointError(
            f"{MANIFEST} has format {body['format']}, this brim reads up to {FORMAT}: update brim"
        )
    sha256 = body.pop("sha256", None)
    if sha256 != _checksum(body):
        raise UnusableCheckpointError(f"{MANIFEST} does not have the SHA-256 that it contains")
    return body


def specs_in(manifest: Mapping[str, Any]) -> dict[str, Spec]:
    """Return type and shape of a checkpoint's tensors, in the order in which they were saved."""
    try:
        specs = {name: Spec(dtype, tuple(shape)) for name, (dtype, shape) in manifest["tensors"].items()}
        for spec in specs.values():
            dtype_of(spec.dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableCheckpointError(f"{MANIFEST} has tensors that cannot be read: {error}") from error
    return specs


def differences(found: Mapping[str, Spec], wanted: Mapping[str, Spec], *, within: str) -> str:
    """Describe the first tensors that differ between a checkpoint and a model; empty if none does."""
    names = [name for name in {**wanted, **found} if name.startswith(within)]
    differ = [name for name in names if wanted.get(name) != found.get(name)]
    if not differ:
        return ""
    shown = "; ".join(
        f"{name}: checkpoint {found.get(name, 'has none')}, model {wanted.get(name, 'has none')}"
        for name in differ[:SHOWN_DIFFERENCES]
    )
    more = f"; and {len(differ) - SHOWN_DIFFERENCES} more" if len(differ) > SHOWN_DIFFERENCES else ""
    return f"{len(differ)} of {len(names)} tensors differ. {shown}{more}"


def checked_json(value: Any, path: str) -> Any:
    """Return ``value`` if JSON preserves it; otherwise raise a ``TypeError`` with the path of what it would change."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {key!r}, but keys must be str (see flatten_state)")
        return {key: checked_json(below, f"{path}.{key}") for key, below in value.items()}
    if isinstance(value, list):
        return [checked_json(below, f"{path}[{index}]") for index, below in enumerate(value)]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(
        f"{path} is a {type(value).__name__}, which JSON cannot hold: use dict, list, str, int, float, bool or None"
    )


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
