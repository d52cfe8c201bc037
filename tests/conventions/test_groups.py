"""Tests that share a fixture of their module share a worker, too: else each worker sets it up."""

import pytest


@pytest.fixture(scope="module")
def shared():
    return None


def test_the_scheduler_of_tests_knows_their_group(shared, request):
    is_grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith(f"@{__name__}") == is_grouped
