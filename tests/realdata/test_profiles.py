"""Pollux's measured profiles against a plain recomputation in the manner of the published simulator.

Source of the manner: github.com/petuum/adaptdl, branch osdi21-artifact, simulator/applications.py.
"""

from __future__ import annotations

import csv
import math
import random
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.interpolate import LinearNDInterpolator, interp1d

from brim.sim.truths.profiles import Application, read_applications
from tests.realdata.test_read_all import DATA

PROFILES = DATA / "profiles/pollux"
WORKLOAD = DATA / "traces/pollux/workloads/workload-6.csv"
pytestmark = pytest.mark.skipif(not PROFILES.exists(), reason=f"{PROFILES} is not here; set BRIM_DATA")
NAMES = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LIMITS = {  # name: (initial batch, largest batch, fewest and most samples per GPU), read off the files by hand
    "bert": (12, 384, 4, 12), "cifar10": (128, 4096, 32, 1024), "deepspeech2": (20, 640, 10, 80),
    "imagenet": (200, 12_800, 20, 200), "ncf": (256, 32_768, 32, 32_768), "yolov3": (8, 512, 4, 8),
}  # fmt: skip
START_S = 30
GPU_HOURS = {  # the classes of the paper's table 1; small jobs may ask for more GPUs than they use well
    "ncf": (0, 1), "cifar10": (0, 2.5), "bert": (1, 10), "deepspeech2": (1, 10), "yolov3": (10, 100),
    "imagenet": (100, 1_000),
}  # fmt: skip


@cache
def applications() -> dict[str, Application]:
    return read_applications(PROFILES)


def rows(path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Plain:
    """The same answers the long way round: no cache, one new interpolator for each measured placement."""

    def __init__(self, name: str) -> None:
        folder = PROFILES / name
        self.measured = rows(folder / "placements.csv")
        files = {int(path.stem.split("-")[1]): rows(path) for path in folder.glob("validation-*.csv")}
        self.validation = {batch: [{key: float(value) for key, value in row.items()} for row in files[batch]]
                           for batch in sorted(files)}  # fmt: skip
        groups = defaultdict(list)
        for row in self.measured:
            gpus, times = [int(digit) for digit in row["placement"]], (float(row["step_time"]), float(row["sync_time"]))
            groups[len(gpus), sum(gpus), int(row["local_bsz"])].append(times)
        points = [(*key, *np.mean(groups[key], axis=0)) for key in sorted(groups)]
        columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        points += [tuple(float(row[column]) for column in columns) for row in rows(folder / "scalability.csv")]
        table = np.array(points)
        self.between = LinearNDInterpolator(table[:, :3], table[:, 3:])

    def times_s(self, placement, local_batch):
        least = min("".join(map(str, [*placement[i:], *placement[:i]])) for i in range(len(placement)))
        mine = [row for row in self.measured if row["placement"] == least]
        if mine:
            values = np.array([[float(row["step_time"]), float(row["sync_time"])] for row in mine])
            return interp1d([int(row["local_bsz"]) for row in mine], values, axis=0)(local_batch)
        return self.between([min(len(placement), 16), sum(placement), local_batch])[0]

    def statistics(self, batch, epoch):
        low = max(known for known in self.validation if known <= batch)
        high = min(known for known in self.validation if known >= batch)
        return [np.interp(batch, [low, high] if low < high else [low],
                          [self.validation[known][epoch][key] for known in ([low, high] if low < high else [low])])
                for key in ("grad_var", "grad_sqr")]  # fmt: skip

    def rate(self, placement, local_batch, accumulation, epoch):
        batch = sum(placement) * local_batch * (accumulation + 1)
        scale = batch / min(self.validation)
        variance, square = self.statistics(batch, epoch)
        step_s, sync_s = self.times_s(placement, local_batch)
        return (variance + square) / (variance / scale + square) / (step_s + accumulation * (step_s - sync_s))

    def progress(self, epoch):
        return min(table[epoch]["progress"] for table in self.validation.values())


plain = cache(Plain)


def packed(gpus: int) -> tuple[int, ...]:
    return (4,) * (gpus // 4) + ((gpus % 4,) if gpus % 4 else ())


def placements(measured: bool) -> list[tuple[int, ...]]:
    """One placement for each measured rotation, or for each number of nodes and GPUs that was not measured."""
    if measured:
        return sorted({tuple(map(int, row["placement"])) for name in NAMES for row in plain(name).measured})
    return [(gpus // nodes + 1,) * (gpus % nodes) + (gpus // nodes,) * (nodes - gpus % nodes)
            for nodes in range(5, 17) for gpus in range(nodes, 4 * nodes + 1)]  # fmt: skip


def local_batches(app: Application, gpus: int, count: int) -> list[int]:
    high = min(app.local_batch_max, app.batch_max // gpus)
    return sorted({round(value) for value in np.linspace(app.local_batch_min, high, count)})


def test_all_six_are_read_with_the_published_limits():
    apps = applications()
    assert tuple(apps) == NAMES
    assert {name: app.epochs for name, app in apps.items()} == EPOCHS
    assert {name: (app.batch_min, app.batch_max, app.local_batch_min, app.local_batch_max)
            for name, app in apps.items()} == LIMITS  # fmt: skip
    assert [(app.name, app.fixed_gpus, app.fixed_batch) for app in apps.values() if not app.elastic] == [
        ("ncf", 1, 32_768)
    ]


def test_every_placement_on_up_to_4_nodes_of_4_was_measured_and_none_above():
    for app in applications().values():
        necklaces = {min(place[i:] + place[:i] for i in range(len(place))) for place in placements(measured=True)}
        assert set(app.step_times.curves) == necklaces
        assert len(necklaces) == 4 + 10 + 24 + 70


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_placements_comes_back_exactly_in_every_rotation(name):
    app = applications()[name]
    for row in plain(name).measured:
        place = tuple(map(int, row["placement"]))
        for i in range(len(place)):
            times = app.times_s(place[i:] + place[:i], int(row["local_bsz"]))
            assert times == (float(row["step_time"]), float(row["sync_time"]))


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", NAMES)
def test_measured_placements_agree_with_the_recomputation(name):
    app = applications()[name]
    for place in placements(measured=True):
        for local_batch in local_batches(app, sum(place), 6):
            assert app.times_s(place, local_batch) == pytest.approx(plain(name).times_s(place, local_batch), rel=1e-12)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_other_placements_on_16_nodes_agree_with_the_recomputation(name):
    app = applications()[name]
    for place in placements(measured=False):
        for local_batch in local_batches(app, sum(place), 6):
            times = app.times_s(place, local_batch)
            assert times == pytest.approx(plain(name).times_s(place, local_batch), rel=1e-9)
            assert 0 <= times[1] < times[0] < math.inf


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", NAMES)
def test_times_along_a_line_are_never_above_those_of_one_point(name):
    """On a face whose sides are divided differently, ``times_s`` gives the times of one side; bounds need the least."""
    app = applications()[name]
    for place in placements(measured=False):
        local = local_batches(app, sum(place), 6)
        found = app.step_times.between(np.array([len(place)]), sum(place), np.array(local, dtype=np.float64))
        step, sync = (times[0] for times in found)
        alone = np.array([app.times_s(place, one) for one in local]).T
        assert (step <= alone[0] * (1 + 1e-9)).all()
        assert (step - sync <= (alone[0] - alone[1]) * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", NAMES)
def test_gains_and_rates_agree_with_the_recomputation(name):
    app, draw = applications()[name], random.Random(6)
    for _ in range(300):
        place = tuple(draw.choices(range(1, 5), k=draw.randint(1, 16)))
        batch = draw.randint(max(app.batch_min, app.local_batch_min * sum(place)), app.batch_max)
        local_batch, accumulation = app.split(sum(place), batch)
        local_batch = max(local_batch, app.local_batch_min)
        if sum(place) * local_batch * (accumulation + 1) > app.batch_max:
            continue
        epoch = draw.randrange(app.epochs)
        rate = app.rate(place, local_batch, accumulation, epoch)
        assert rate == pytest.approx(plain(name).rate(place, local_batch, accumulation, epoch), rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_initial_batch_gains_one_and_a_larger_one_more_but_less_than_its_scale(name):
    app = applications()[name]
    for epoch in range(app.epochs):
        gains = []
        for batch in app.validation.batch_B.tolist():
            gains.append(app.gain(batch, epoch))
            assert 1 <= gains[-1] <= batch / app.batch_min * (1 + 1e-12)
        assert gains[0] == 1


@pytest.mark.parametrize("name", NAMES)
def test_epochs_end_where_the_slowest_of_the_validated_batches_does(name):
    app = applications()[name]
    assert app.progress_E.tolist() == [plain(name).progress(epoch) for epoch in range(EPOCHS[name])]
    assert (np.diff(app.progress_E, prepend=0) > 0).all()


@given(
    name=st.sampled_from(NAMES), place=st.lists(st.integers(1, 4), min_size=1, max_size=16).map(tuple), data=st.data()
)
def test_rate_is_positive_for_every_placement_on_16_nodes_of_4_and_every_legal_batch(name, place, data):
    app = applications()[name]
    batch = data.draw(st.integers(app.batch_min, app.batch_max))
    local_batch, accumulation = app.split(sum(place), batch)
    total = sum(place) * local_batch * (accumulation + 1)
    assert min(batch, app.batch_max - sum(place) * (accumulation + 1)) < total <= app.batch_max or total == batch
    assume(total >= app.batch_min)
    assert 0 < app.rate(place, local_batch, accumulation, data.draw(st.integers(0, app.epochs - 1))) < math.inf


@given(name=st.sampled_from(NAMES), place=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), at=st.data())
def test_between_two_measured_local_batches_the_time_is_between_theirs(name, place, at):
    app = applications()[name]
    curve = app.step_times.curves[min(place[i:] + place[:i] for i in range(len(place)))]
    local_batch = at.draw(st.integers(min(curve), max(curve)))
    low, high = max(b for b in curve if b <= local_batch), min(b for b in curve if b >= local_batch)
    for mine, a, b in zip(app.times_s(place, local_batch), curve[low], curve[high], strict=True):
        assert min(a, b) * (1 - 1e-12) <= mine <= max(a, b) * (1 + 1e-12)


# Each application alone, as users ask for it in workload 6


def asked() -> list[tuple[str, int, int]]:
    return sorted({(row["application"], int(row["num_replicas"]), int(row["batch_size"])) for row in rows(WORKLOAD)})


def solo_s(rate, ends, place, local_batch, accumulation) -> float:
    """Seconds from start to end of the job: 30 s until the first step, then epoch by epoch."""
    total_s, progress = float(START_S), 0.0
    for epoch, end in enumerate(ends):
        total_s += (end - progress) / rate(place, local_batch, accumulation, epoch)
        progress = end
    return total_s


@pytest.mark.skipif(not WORKLOAD.exists(), reason=f"{WORKLOAD} is not here; set BRIM_DATA")
def test_solo_run_times_of_the_requests_in_workload_6_agree_with_the_recomputation():
    total_s = {}
    for name, gpus, batch in asked():
        app = applications()[name]
        place, (local_batch, accumulation) = packed(gpus), app.split(gpus, batch)
        count = gpus * (accumulation + 1)
        assert abs(count * local_batch - batch) < count, "the batch run is the one asked, in whole samples"
        long_way = [plain(name).progress(epoch) for epoch in range(EPOCHS[name])]
        total_s[name, gpus, batch] = solo_s(app.rate, app.progress_E.tolist(), place, local_batch, accumulation)
        assert total_s[name, gpus, batch] == pytest.approx(
            solo_s(plain(name).rate, long_way, place, local_batch, accumulation), rel=1e-9
        )
    assert {name for name, _, _ in total_s} == set(NAMES)
    for (name, gpus, _), seconds in total_s.items():
        low, high = GPU_HOURS[name]
        assert low < gpus * seconds / 3_600 < high
