"""The analyser on devices and clusters whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.analyser import (
    MORE_POINTS,
    POINTS,
    STEPS_AT_ONCE,
    TIMED_STEPS,
    WARM_UP_STEPS,
    ExchangeTimes,
    analyse,
    batches_to_try,
    measure_exchange,
)
from brim.errors import ConfigError, InvariantError


class Device:
    """Steps of 0.1 + 0.01 b seconds, up to a memory limit; the first of each batch takes ten times as long."""

    def __init__(self, limit=1_000, noise=0.0, outliers=0.0):
        self.limit, self.noise, self.outliers = limit, noise, outliers
        self.rng = np.random.default_rng(7)
        self.asked: list[tuple[int, int]] = []

    def step_s(self, local_batch, steps):
        self.asked.append((local_batch, steps))
        if local_batch > self.limit:
            return None
        times = (0.1 + 0.01 * local_batch) * self.rng.lognormal(0, self.noise, steps)
        times[self.rng.random(steps) < self.outliers] *= 20
        if steps == WARM_UP_STEPS and self.asked.count((local_batch, steps)) == 1:
            times[0] *= 10
        return times.tolist()


def test_an_affine_device_is_found_exactly_and_charged_for_every_step():
    device = Device()
    found = analyse(device, batch_min=32, gpus_max=8, local_batch_max=128)
    assert [sample.local_batch for sample in found.samples] == [4, 8, 16, 32, 64, 128]
    for sample in found.samples:
        assert sample == (1, 1, sample.local_batch, pytest.approx(0.1 + 0.01 * sample.local_batch), 0.0)
    assert found.local_batch_max == 128
    steps = WARM_UP_STEPS + STEPS_AT_ONCE  # a device without noise is done after the first look
    assert found.seconds == pytest.approx(sum((steps + 9) * sample.step_s for sample in found.samples))


@given(
    batch_min=st.integers(1, 10_000), gpus_max=st.integers(1, 512), low=st.integers(1, 100), more=st.integers(0, 5_000)
)
def test_batches_cover_the_range_from_its_share_to_the_limit(batch_min, gpus_max, low, more):
    found = batches_to_try(batch_min, gpus_max, low + more, low)
    assert found == sorted(set(found))
    assert 1 <= len(found) <= POINTS
    assert found[-1] == low + more
    assert found[0] == min(max(math.ceil(batch_min / gpus_max), low), low + more)
    assert len(found) >= min(5, low + more - found[0] + 1) or low + more < 2 * POINTS


@pytest.mark.parametrize(("noise", "outliers", "within"), [(0.02, 0.0, 0.02), (0.3, 0.0, 0.25), (0.05, 0.1, 0.05)])
def test_a_noisy_device_is_timed_longer_and_its_median_found(noise, outliers, within):
    device = Device(noise=noise, outliers=outliers)
    found = analyse(device, batch_min=32, gpus_max=8, local_batch_max=128)
    for sample in found.samples:
        assert sample.step_s == pytest.approx(0.1 + 0.01 * sample.local_batch, rel=within)
    timed = [sum(steps for batch, steps in device.asked[1:] if batch == sample.local_batch) for sample in found.samples]
    assert max(timed) <= TIMED_STEPS + WARM_UP_STEPS
    if noise == 0.3:
        assert len(device.asked) == POINTS * (1 + TIMED_STEPS // STEPS_AT_ONCE)


def test_out_of_memory_ends_the_list_and_the_limit_is_looked_for():
    device = Device(limit=90)
    found = analyse(device, batch_min=32, gpus_max=8, local_batch_max=256)
    tried = list(dict.fromkeys(batch for batch, _ in device.asked))
    assert tried == [4, 9, 21, 49, 111, 73, 90]  # 73 between 49, which ran, and 111; 90 between 73 and 111
    assert found.local_batch_max == 90
    assert [sample.local_batch for sample in found.samples] == [4, 9, 21, 49, 73, 90]
    assert len(found.samples) <= POINTS + MORE_POINTS


def test_a_job_that_fits_no_device_teaches_nothing():
    found = analyse(Device(limit=3), batch_min=32, gpus_max=8, local_batch_max=128)
    assert found == type(found)(samples=(), local_batch_max=0, seconds=0.0)


def test_wrong_ranges_and_wrong_times_are_refused():
    with pytest.raises(ConfigError, match="local batches of 9 to 8"):
        analyse(Device(), batch_min=8, gpus_max=1, local_batch_max=8, local_batch_min=9)
    with pytest.raises(ConfigError, match="gpus_max=0"):
        batches_to_try(8, 0, 8)
    for times in ([0.1] * 3, [math.nan] * 10, [0.0] * 10):
        broken = Device()
        broken.step_s = lambda local_batch, steps, times=times: times
        with pytest.raises(InvariantError, match="expected 10 positive numbers"):
            analyse(broken, batch_min=8, gpus_max=1, local_batch_max=8)


class Cluster:
    """All-reduces by rings: reduce-scatter inside the nodes, ring across them, all-gather inside."""

    hop_s, inside_bytes_s, across_bytes_s = 1e-5, 1e11, 1e10

    def all_reduce_s(self, num_bytes, gpus, nodes):
        inside = -(-gpus // nodes)
        steps, across = 2 * (inside - 1), 2 * (nodes - 1)
        seconds = steps * self.hop_s + steps / inside * num_bytes / self.inside_bytes_s
        return seconds + across * self.hop_s + across / nodes * num_bytes / inside / self.across_bytes_s


def test_exchange_is_exact_where_measured_and_between_its_neighbours_elsewhere():
    table = measure_exchange(Cluster(), num_nodes=4, gpus_per_node=8)
    assert table.gpus_K.tolist() == [2, 4, 8, 16, 32]
    assert (table.bytes_S[0], table.bytes_S[-1]) == (2**20, 2**31)
    for gpus, nodes in ((2, 1), (8, 1), (16, 2), (32, 4), (2, 2), (4, 4)):
        assert table.all_reduce_s(2**24, gpus, nodes) == pytest.approx(Cluster().all_reduce_s(2**24, gpus, nodes))
    low, middle, high = (table.all_reduce_s(size, 8, 1) for size in (2**24, 2**24.5, 2**25))
    assert middle == pytest.approx((low + high) / 2)
    assert table.all_reduce_s(2**24, 6, 1) == pytest.approx(
        np.interp(math.log2(6), [2, 3], [table.all_reduce_s(2**24, gpus, 1) for gpus in (4, 8)])
    )
    assert table.all_reduce_s(2**33, 8, 1) == pytest.approx(4 * table.all_reduce_s(2**31, 8, 1))
    assert table.all_reduce_s(1, 8, 1) == table.all_reduce_s(2**20, 8, 1)
    assert table.all_reduce_s(2**24, 1, 1) == 0.0
    assert table.all_reduce_s(2**24, 64, 8) >= table.all_reduce_s(2**24, 32, 4)
    assert table.all_reduce_s(2**24, 8, 3) == table.all_reduce_s(2**24, 8, 4) > table.all_reduce_s(2**24, 8, 1)


def test_a_cluster_of_one_gpu_exchanges_nothing():
    with pytest.raises(ConfigError, match="expected 2 GPUs"):
        measure_exchange(Cluster(), num_nodes=1, gpus_per_node=1)
    assert isinstance(measure_exchange(Cluster(), num_nodes=3, gpus_per_node=1), ExchangeTimes)
