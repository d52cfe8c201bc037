"""A machine with a service, for the live tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.box import Box


@pytest.fixture
def box() -> Iterator[Box]:
    """A machine of two CPU slots, without an agent."""
    made = Box()
    try:
        yield made
    finally:
        made.close()
