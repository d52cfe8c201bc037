"""Foresight beside the event loop: each question gets a copy of the situation, and a thread, one question at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from brim.errors import NotFoundError
from brim.foresight.answers import DryRun, WhyWaiting
from brim.live.records import JobStatus
from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.live.store.errors import NotAcceptedError

if TYPE_CHECKING:
    from brim.live.situation import Situation

ANSWER_S: Final = 5.0
"""Time for which a question waits until a step of the controller is done; ours: many rounds."""


class Foresight:
    """What would happen in a cluster. All methods are called in the event loop of its service.

    Args:
        service: The service.
    """

    def __init__(self, service: ClusterService) -> None:
        self._service = service
        self._one = asyncio.Semaphore(1)

    async def explain(self, job: int) -> WhyWaiting:
        """Explain why a job waits, and what would let it run; one that does not wait, in a sentence.

        Raises:
            NotFoundError: there is no such job.
            NotAcceptedError: the controller is busy.
        """
        from brim.foresight.explanation import explained  # noqa: PLC0415 - of the engine, loaded after the first answers

        sentence = self._service.explain(job)
        record = self._service.job(job)
        if record is not None and record.state in ("held", "pending"):
            async with self._one:
                situation = await self._situation()
                record = situation.jobs.get(job)
                if record is not None and job not in situation.attempts:
                    return await asyncio.to_thread(explained, situation, record)
        return WhyWaiting(text=sentence, blockers=(), remedies=(), tried=0)

    def why_impossible(self, requests: Sequence[JobRequest]) -> list[str]:
        """Why jobs could not run if the cluster were empty; empty for one that could, and while that is not known."""
        try:
            cluster = self._service.status()["cluster"]
        except NotAcceptedError:  # the controller is not recovered yet
            return [""] * len(requests)
        from brim.core.cluster import parse_cluster  # noqa: PLC0415 - of the engine, see above
        from brim.live.holds import why_impossible  # noqa: PLC0415

        found: dict[object, str] = {}
        kinds = [(one.limits, one.gpu_type, one.cpus_per_gpu, one.mem_mib_per_gpu) for one in requests]
        for kind, request in zip(kinds, requests, strict=True):
            if kind not in found:  # the jobs of an array are alike
                found[kind] = why_impossible(request, parse_cluster(cluster))
        return [found[kind] for kind in kinds]

    async def dry_run(self, uid: int, user: str, requests: Sequence[JobRequest]) -> DryRun:
        """Say where jobs would run if they were submitted now; nothing is stored.

        Raises:
            ConfigError: a job could not run if the cluster were empty.
            NotFoundError: a job that they wait for does not exist.
            NotAcceptedError: the controller is busy.
        """
        from brim.foresight.dry_run import Sender, dry_run  # noqa: PLC0415 - of the engine, see above

        ends: dict[int, JobStatus | None] = {}
        for other in {other for request in requests for other in request.before}:
            found = self._service.job(other)
            if found is None:
                raise NotFoundError(f"job {other} does not exist")
            ends[other] = found.state if found.has_ended else None
        async with self._one:
            situation = await self._situation()
            sender = Sender(uid=uid, user=user, wall_s=time.time())
            return await asyncio.to_thread(dry_run, situation, sender, requests, ends)

    async def _situation(self) -> Situation:
        """Return how the cluster stands, as a copy for trials.

        Raises:
            NotAcceptedError: the controller is not recovered yet, is busy, or ends.
        """
        from brim.live.situation import situation_of  # noqa: PLC0415 - of the engine, see above

        self._service.status()  # raises until it is recovered
        asked = asyncio.wrap_future(self._service.engine.ask(situation_of))
        try:
            return await asyncio.wait_for(asked, ANSWER_S)
        except TimeoutError:
            raise NotAcceptedError("the controller is busy: try again") from None
