"""What changes cost: measured before believed."""

from __future__ import annotations

import numpy as np
import pytest

from brim.beliefs.overheads import RESTART_MS, SAVE_MS, START_MS, Observed, costs
from brim.errors import ConfigError


def observed(count, total_ms):
    return Observed(count=np.array(count), total_ms=np.array(total_ms))


def test_a_measured_job_costs_its_mean_and_any_other_the_default():
    nothing = observed([0, 0], [0, 0])
    found = costs(start=nothing, save=observed([0, 2], [0, 1_500]), restart=observed([4, 0], [48_000, 0]))
    assert found.start_ms.tolist() == [START_MS, START_MS] == [30_000, 30_000]
    assert found.save_ms.tolist() == [SAVE_MS, 750] == [5_000, 750]
    assert found.restart_ms.tolist() == [12_000, RESTART_MS] == [12_000, 30_000]
    assert found.change_ms.tolist() == [17_000, 30_750]


def test_a_change_that_took_no_time_is_not_one_that_was_never_seen():
    free = observed([1], [0])
    assert costs(start=free, save=free, restart=free).change_ms.tolist() == [0]


@pytest.mark.parametrize(("count", "total_ms"), [([0, 0], [0, 5]), ([1, -1], [0, 0]), ([1, 1], [0, -1])])
def test_impossible_measurements_name_the_row(count, total_ms):
    with pytest.raises(ConfigError, match="overheads of job row 1: found"):
        observed(count, total_ms)
