"""What the API needs of the controller's service; ``brim.live.service.ClusterService`` has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from brim.live.records import JobRecord
from brim.live.requests import JobRequest


class Service(Protocol):
    """A controller at work. Reads answer from memory; writes return when they are durable."""

    async def submit(self, uid: int, user: str, requests: Sequence[JobRequest], key: str) -> Sequence[int]:
        """Accept jobs of one user, all or none, and return their ids; the same key gives the same ids again.

        Raises:
            KeyReusedError: the key stands for another submission.
            NotAcceptedError: nothing was written, for a reason that passes.
            RefusedError: the user has too many jobs.
        """
        ...

    async def command(self, uid: int, verb: str, job: int) -> JobRecord:
        """Accept ``cancel``, ``hold``, ``release`` or ``requeue`` by a user, and return the job as it then is.

        Raises:
            NotFoundError: there is no such job.
            RefusedError: the job is in a state in which this cannot be.
        """
        ...

    def jobs(self) -> Sequence[JobRecord]:
        """Return all jobs that are kept, in order of their ids."""
        ...

    def job(self, job: int) -> JobRecord | None:
        """Return one job; None if there is none."""
        ...

    def nodes(self) -> Sequence[Mapping[str, Any]]:
        """Return what is known of agents and devices."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Return facts on the controller: ``now_ms`` (cluster time), ``policy``, ``version`` and others."""
        ...

    def explain(self, job: int) -> str:
        """Return why a job waits, and what would let it run."""
        ...

    def subscribe(self) -> AsyncIterator[JobRecord]:
        """Yield every job that changes, as it then is. A reader that is too slow is ended."""
        ...
