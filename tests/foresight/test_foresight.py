"""Questions beside the event loop: a long forecast holds up neither other questions nor the end of the controller."""

from __future__ import annotations

import asyncio
import threading

from brim.foresight import foresight
from brim.foresight.foresight import Foresight
from tests.api.stand_in import KeepsJobs, request


def test_a_long_forecast_holds_up_no_explanation_and_no_end(monkeypatch):
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(foresight, "forecasts_of", lambda *_: (begun.set(), go_on.wait(60), ended.set()))

    async def ask():
        service = KeepsJobs()
        ahead = Foresight(service)
        [job] = await service.submit(1, "ann", [request()], "k")
        forecast = asyncio.ensure_future(ahead.eta([job]))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        assert (await ahead.explain(job)).text
        forecast.cancel()

    asyncio.run(asyncio.wait_for(ask(), 50))
    assert not ended.is_set()
    go_on.set()
