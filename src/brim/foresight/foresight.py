"""Foresight beside the event loop: each question gets a copy of the situation, and a thread.

One forecast at a time, and beside it one other question, which is soon answered.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from brim.errors import NotFoundError
from brim.foresight.answers import DryRun, Forecast, HitRate, LossOutlook, WhyWaiting
from brim.live.records import JobStatus, StartForecast
from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.live.store.errors import NotAcceptedError
from brim.units import MS_PER_S

if TYPE_CHECKING:
    from brim.live.controller import Controller
    from brim.live.situation import Situation
    from brim.live.store.reading import Reader

T = TypeVar("T")

ANSWER_S: Final = 5.0
"""Time for which a question waits until a step of the controller is done; ours: many rounds."""
TROUBLE_S: Final = 0.5
"""The same while nothing can be written: most likely a step is held up by that; ours."""
HISTORY_MAX: Final = 2_000
"""Jobs whose run times are read, those that ended last; ours."""


class Foresight:
    """What would happen in a cluster. All methods are called in the event loop of its service.

    Args:
        service: The service.
    """

    def __init__(self, service: ClusterService) -> None:
        self._service = service
        self._one, self._one_forecast = asyncio.Semaphore(1), asyncio.Semaphore(1)

    async def explain(self, job: int) -> WhyWaiting:
        """Explain why a job waits, and what would let it run; one that does not wait, in a sentence.

        Raises:
            NotFoundError: there is no such job.
            NotAcceptedError: the controller is busy.
        """
        found, outlook = await self._explained(job), await self._outlook(job)
        lines = [found.text, *([] if outlook is None else [outlook.text]), *self._service.earlier(job)]
        return replace(found, text="\n".join(lines), outlook=outlook)

    async def _outlook(self, job: int) -> LossOutlook | None:
        """What is believed from the losses of a job that has run."""
        record = self._service.job(job)
        if record is None or record.has_ended or not record.attempt:
            return None
        from brim.foresight.outlook import outlook_of  # noqa: PLC0415 - of the engine, see below

        def asked(controller: Controller, now_ms: int) -> LossOutlook | None:
            scheduler = controller.scheduler
            snapshot = scheduler.state.freeze(max(now_ms, scheduler.horizon_ms))
            return outlook_of(scheduler.beliefs.progress, snapshot, job)

        return await self._answer(asked)

    async def _explained(self, job: int) -> WhyWaiting:
        from brim.foresight.explanation import explained  # noqa: PLC0415 - of the engine, loaded after the first answers

        sentence = self._service.explain(job)
        record = self._service.job(job)
        if record is not None and record.state in ("held", "pending"):
            async with self._one:
                situation = await self._situation()
                record = situation.jobs.get(job)
                if record is not None and job not in situation.attempts:
                    return await _in_thread(lambda: explained(situation, record))
        return WhyWaiting(text=sentence, blockers=(), remedies=(), tried=0)

    def why_impossible(self, requests: Sequence[JobRequest]) -> list[str]:
        """Why jobs could not run if the cluster were empty; empty for one that could, and while that is not known."""
        try:
            cluster, policy = self._service.status()["cluster"], self._service.policy
        except NotAcceptedError:  # the controller is not recovered yet
            return [""] * len(requests)
        from brim.core.cluster import parse_cluster  # noqa: PLC0415 - of the engine, see above
        from brim.live.holds import why_impossible  # noqa: PLC0415

        found: dict[object, str] = {}
        kinds = [
            (one.limits, one.gpu_type, one.cpus_per_gpu, one.mem_mib_per_gpu, one.devices) for one in requests
        ]
        for kind, request in zip(kinds, requests, strict=True):
            if kind not in found:  # the jobs of an array are alike
                found[kind] = why_impossible(request, parse_cluster(cluster), policy)
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
            return await _in_thread(lambda: dry_run(situation, sender, requests, ends))

    async def eta(self, jobs: Sequence[int]) -> tuple[tuple[Forecast, ...], HitRate]:
        """Forecast when jobs that have not ended start and end; the first forecast of each is kept, to be scored.

        Raises:
            NotAcceptedError: the controller is busy, or nothing can be written.
        """
        async with self._one_forecast:
            situation = await self._situation()
            store = self._service.engine.store
            found = await _in_thread(lambda: forecasts_of(situation, store.reads, jobs))
            starts = starts_of(found, situation.now_ms)
            if starts:
                await asyncio.wrap_future(store.note_forecasts(starts, situation.scheduler.policy.name))
            tested, hits = await asyncio.to_thread(store.reads.forecasts_hit)
        return found, HitRate(jobs=tested, hits=hits)

    async def _situation(self) -> Situation:
        """Return how the cluster stands, as a copy for trials.

        Raises:
            NotAcceptedError: the controller is not recovered yet, is busy, or ends.
        """
        from brim.live.situation import situation_of  # noqa: PLC0415 - of the engine, see above

        return await self._answer(situation_of)

    async def _answer(self, question: Callable[[Controller, int], T]) -> T:
        """Have a question answered between two steps of the controller.

        Raises:
            NotAcceptedError: the controller is not recovered yet, is busy, or ends.
        """
        self._service.status()  # raises until it is recovered
        asked = asyncio.wrap_future(self._service.engine.ask(question))
        try:
            return await asyncio.wait_for(asked, TROUBLE_S if self._service.trouble else ANSWER_S)
        except TimeoutError:
            trouble = self._service.trouble  # a step that cannot be written holds up all that comes after it
            raise NotAcceptedError(f"the controller {trouble or 'is busy'}: try again") from None


async def _in_thread(answer: Callable[[], T]) -> T:
    """Answer in a thread for which a controller that ends does not wait: a forecast may take half a minute."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def set_unless_done(set_it: Callable[[], None]) -> None:
        if not done.done():  # who asked may have gone
            set_it()

    def work() -> None:
        try:
            found = answer()
        except BaseException as error:
            outcome = partial(done.set_exception, error)
        else:
            outcome = partial(done.set_result, found)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(set_unless_done, outcome)

    threading.Thread(target=work, name="foresight", daemon=True).start()
    return await done


def starts_of(found: Sequence[Forecast], now_ms: int) -> dict[int, StartForecast]:
    """When jobs are expected to start, in cluster time; those of which it is known."""
    return {
        one.job: StartForecast(
            *(now_ms + at_s * MS_PER_S for at_s in (one.expected_s, *one.start_s, *one.drawn_s))
        )
        for one in found if one.start_s and one.expected_s is not None and one.drawn_s
    }


def forecasts_of(
    situation: Situation, reader: Reader, jobs: Sequence[int], *, asks_ends: bool = True
) -> tuple[Forecast, ...]:
    """Forecast jobs from the run times of those that ended, and from earlier forecasts; see ``forecasts``."""
    from brim.foresight.calibration import RECORD_MAX  # noqa: PLC0415 - of the engine, see above
    from brim.foresight.forecast import forecasts  # noqa: PLC0415
    from brim.live.recording import recorded_jobs  # noqa: PLC0415

    history = recorded_jobs(*reader.finished(HISTORY_MAX), (), situation.now_ms)
    is_cut = len(history) >= HISTORY_MAX
    return forecasts(
        situation, history, jobs, situation.now_ms,
        reader.forecasts(situation.scheduler.policy.name, RECORD_MAX),
        whole_since_ms=min(one.end_ms for one in history) if is_cut else 0, asks_ends=asks_ends,
    )
