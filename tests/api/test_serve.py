"""The process of the controller."""

from __future__ import annotations

import asyncio
import gc

from brim.api import serve


class Recovered:
    """A service that has recovered, and ends."""

    async def recovered(self) -> None:
        pass

    async def wait(self) -> None:
        pass


def test_what_a_recovered_controller_has_loaded_is_not_walked_by_collections_of_garbage() -> None:
    gc.unfreeze()  # what tests/conftest.py has frozen
    asyncio.run(serve._run(Recovered(), ()))
    assert gc.get_freeze_count() > 10_000
