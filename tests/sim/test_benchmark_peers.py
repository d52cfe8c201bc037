"""The peers of ``benchmarks/replay_speed.py`` do the work they are timed for: same finish times, same placement."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from brim.core.cluster import parse_cluster
from brim.policies.presets import PRESETS
from brim.sim.twin import ReplaySettings, replay
from brim.traces import synthesize

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import python_fifo
    import simpy_fifo

    return python_fifo, simpy_fifo


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_finish_times_are_equal(peers, seed):
    cluster = parse_cluster("5x8xV100")
    trace = synthesize("philly", jobs=300, seed=seed, cluster=cluster, load=1.1)
    ours = replay(trace, cluster, PRESETS["fifo"], ReplaySettings(gap_ms=0))
    for peer in peers:
        finish = peer.simulate(trace.submit_ms.tolist(), trace.gpus.tolist(), trace.run_ms.tolist(), 5, 8)
        np.testing.assert_array_equal(ours.finish_ms, finish, err_msg=peer.__name__)


def test_gangs_get_the_same_gpus(peers):
    draw = random.Random(1)
    clusters = [peer.Cluster(6, 8) for peer in peers]
    held = []
    for _ in range(2_000):
        gpus = draw.choice([1, 1, 2, 3, 4, 8, 11, 16, 24])
        if gpus <= clusters[0].free_total:
            chosen = [cluster.place(gpus) for cluster in clusters]
            assert chosen[0] == chosen[1]
            held.append(chosen[0])
        else:
            gone = held.pop(draw.randrange(len(held)))
            for cluster in clusters:
                cluster.give(gone)


@pytest.mark.parametrize(("data", "said"), [({}, "not set"), ({"BRIM_DATA": "elsewhere"}, "elsewhere")])
def test_published_jobs_that_are_absent_are_one_line(data, said, tmp_path):
    """No folder stands in for ``BRIM_DATA``."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "published.py", "--only", "pollux"], cwd=tmp_path, capture_output=True, text=True,
        env={name: value for name, value in os.environ.items() if name != "BRIM_DATA"} | data, check=False, timeout=60,
    )
    assert done.stdout == (
        f"Pollux: BRIM_DATA is {said}; expected a folder that holds traces/pollux/workloads/workload-6.csv "
        "and profiles/pollux\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
