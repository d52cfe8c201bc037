"""Synthetic traces have the published means and medians.

Tolerance: 10 % on means of 400,000 jobs (the heavy tails leave a standard error of about 2 %), 5 % on medians, 2
points on rates. Published figures: cluster_summary.csv of Acme (see brim/traces/shapes.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from brim import traces
from brim.core.cluster import parse_cluster
from brim.core.trace import Status
from brim.errors import ConfigError
from brim.units import MS_PER_S

from .examples import equal

JOBS = 400_000
PUBLISHED = {  # mean run s, median run s, mean GPUs, median GPUs, GPU seconds per job, completed, cancelled
    "philly": (18_006, 874, 1.928, 1, 61_039, 0.604, 0.090),
    "helios": (6_652, 206, 3.716, 1, 49_351, 0.624, 0.221),
    "acme": (1_414, 122, 5.68, 1, 32_405, 0.497, 0.075),
    "pai": (4_787, 480.7, 0.683, 0.5, None, None, None),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("shape", PUBLISHED)
def test_marginals_are_the_published_ones(shape):
    mean_s, median_s, mean_gpus, median_gpus, gpu_s, completed, cancelled = PUBLISHED[shape]
    trace = traces.synthesize(shape, JOBS, seed=1)
    run_s = trace.run_ms / MS_PER_S
    gpus = trace.gpus * trace.share_milli / 1_000
    assert run_s.mean() == pytest.approx(mean_s, rel=0.1)
    assert np.median(run_s) == pytest.approx(median_s, rel=0.05)
    assert gpus.mean() == pytest.approx(mean_gpus, rel=0.1)
    assert np.median(gpus) == median_gpus
    assert trace.synthetic
    assert (trace.time_limit_ms >= trace.run_ms).all()
    if gpu_s is not None:
        assert trace.gpu_ms.mean() / MS_PER_S == pytest.approx(gpu_s, rel=0.2)
        assert (trace.status == Status.COMPLETED).mean() == pytest.approx(completed, abs=0.02)
        assert (trace.status == Status.CANCELLED).mean() == pytest.approx(cancelled, abs=0.02)


@pytest.mark.parametrize("load", [0.3, 0.9, 2.0])
def test_span_gives_the_load_that_was_asked_for(load):
    cluster = parse_cluster("8x8xV100")
    trace = traces.synthesize("philly", 3_000, 7, cluster, load)
    assert traces.offered_load(trace, cluster) == pytest.approx(load, rel=1e-6)
    assert trace.gpus.max() <= cluster.num_gpus


def test_seeds_decide():
    assert equal(traces.synthesize("acme", 500, 3), traces.synthesize("acme", 500, 3))
    assert not equal(traces.synthesize("acme", 500, 3), traces.synthesize("acme", 500, 4), but=("name",))


def test_arguments_are_checked():
    cluster = parse_cluster("8x8xV100")
    for arguments in (("philli", 1, 0), ("philly", 0, 0), ("philly", 1, -1), ("philly", 1, 0, cluster),
                      ("philly", 1, 0, cluster, -1.0), ("philly", 1000, 0, cluster, 1e-12)):  # fmt: skip
        with pytest.raises(ConfigError):
            traces.synthesize(*arguments)
