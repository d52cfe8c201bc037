"""Measured profiles on tiny tables, with answers computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.errors import ConfigError, InvariantError, UserError
from brim.sim.truths.profile_tables import read_placements, rotated
from brim.sim.truths.profiles import KNOWN, Application, StepTimes, read_applications

PLACEMENTS = {  # (placement, local batch) -> (step, sync): step is 0.1 nodes + 0.05 GPUs + 0.05 samples, see AROUND
    ("1", 4): (0.35, 0.0), ("1", 8): (0.55, 0.0), ("1", 12): (0.5, 0.0),
    ("2", 4): (0.4, 0.1), ("2", 8): (0.6, 0.1),
    ("11", 4): (0.5, 0.2), ("11", 8): (0.7, 0.2),
}  # fmt: skip
SCALABILITY = {
    (4, 4, 4): (0.8, 0.4), (4, 4, 8): (1.0, 0.4),
    (4, 8, 4): (1.0, 0.5), (4, 8, 8): (1.2, 0.5),
}  # fmt: skip
VALIDATION = {  # batch -> (progress, grad_sqr, grad_var) by epoch
    8: [(10.0, 1.0, 4.0), (20.0, 2.0, 8.0)],
    16: [(11.0, 3.0, 8.0), (19.0, 4.0, 16.0), (33.0, 5.0, 5.0)],
    32: [(12.0, 5.0, 10.0), (22.0, 0.0, 10.0)],
}


def written(folder: Path, *, name="toy", placements=PLACEMENTS, scalability=SCALABILITY, validation=VALIDATION) -> Path:
    """Write one application; a table given as text is written as it is, one given as None is left out."""
    inside = folder / name
    inside.mkdir(parents=True)
    if isinstance(placements, dict):
        rows = (f"{place},{local},{step},{sync}" for (place, local), (step, sync) in placements.items())
        placements = "\n".join(["placement,local_bsz,step_time,sync_time", *rows])
    if isinstance(scalability, dict):
        rows = (",".join(map(str, (*key, *times))) for key, times in scalability.items())
        scalability = "\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *rows])
    tables = {"placements.csv": placements, "scalability.csv": scalability}
    for batch, table in validation.items():
        if not isinstance(table, str):
            rows = (f"{progress},{row},0.5,{sqr},{var}" for row, (progress, sqr, var) in enumerate(table))
            table = "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *rows])  # noqa: PLW2901
        tables[f"validation-{batch}.csv"] = table
    for file, text in tables.items():
        if text is not None:
            (inside / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.fixture
def toy(tmp_path) -> Application:
    return read_applications(written(tmp_path))["toy"]


def refused(tmp_path, **tables) -> str:
    with pytest.raises(ConfigError) as error:
        read_applications(written(tmp_path, **tables))
    assert error.value.exit_code == 2
    assert "expected" in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value).replace(f"{tmp_path}/toy/", "")


# What an application is


def test_limits_come_from_the_tables(toy):
    assert (toy.name, toy.batch_min, toy.batch_max, toy.local_batch_min, toy.local_batch_max) == ("toy", 8, 32, 4, 12)
    assert (toy.elastic, toy.fixed_gpus, toy.fixed_batch) == (True, None, None)


def test_an_unknown_application_trains_the_epochs_that_all_its_files_have(toy):
    assert toy.epochs == 2


def test_an_epoch_ends_at_the_smallest_progress_over_the_batch_sizes(toy):
    assert toy.progress_E.tolist() == [10.0, 19.0]
    assert not toy.progress_E.flags.writeable


def test_known_applications_take_their_published_constants(tmp_path):
    epochs = {8: [(float(e + 1), 1.0, 1.0) for e in range(60)], 32_768: [(float(e + 1), 1.0, 1.0) for e in range(55)]}
    apps = read_applications(
        written(written(tmp_path, name="yolov3", validation=epochs), name="ncf", validation=epochs)
    )
    assert list(apps) == ["ncf", "yolov3"]
    ncf, yolov3 = apps.values()
    assert (ncf.epochs, ncf.elastic, ncf.fixed_gpus, ncf.fixed_batch, ncf.local_batch_max) == (10, False, 1, 32_768, 12)
    assert (yolov3.epochs, yolov3.elastic, yolov3.fixed_gpus, yolov3.local_batch_max) == (50, True, None, 8)
    assert {name: known.epochs for name, known in KNOWN.items()} == {
        "bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50,
    }  # fmt: skip


def test_plain_files_and_hidden_folders_are_passed_over(tmp_path):
    written(tmp_path)
    (tmp_path / "LICENSE").write_text("Apache")
    (tmp_path / ".git").mkdir()
    assert list(read_applications(tmp_path)) == ["toy"]


# Step times


def test_measured_points_come_back_exactly(toy):
    for (placement, local_batch), times in PLACEMENTS.items():
        assert toy.times_s(tuple(map(int, placement)), local_batch) == times


def test_between_local_batches_of_a_measured_placement_it_is_linear(toy):
    assert toy.times_s((2,), 5) == pytest.approx((0.45, 0.1))
    assert toy.times_s((1, 1), 6) == pytest.approx((0.6, 0.2))


def test_a_step_that_gets_faster_with_more_samples_is_taken_as_measured(toy):
    assert toy.times_s((1,), 10) == pytest.approx((0.525, 0.0))  # between 0.55 at 8 and 0.5 at 12


def test_fewer_samples_than_ever_measured_take_as_long_as_the_fewest(toy):
    assert toy.times_s((2,), 1) == (0.4, 0.1)
    assert toy.times_s((1, 1, 1, 1), 3) == pytest.approx((0.8, 0.4))


def test_a_placement_measured_from_more_samples_on_holds_its_first_time(tmp_path):
    few = {key: times for key, times in PLACEMENTS.items() if key[0] == "1"}
    app = read_applications(written(tmp_path, placements={**few, ("2", 6): (0.5, 0.1), ("2", 8): (0.6, 0.1)}))["toy"]
    assert app.times_s((2,), 4) == app.times_s((2,), 6) == (0.5, 0.1)


@pytest.mark.parametrize(("placement", "smallest"), [
    ((1,), (1,)), ((2, 1, 1), (1, 1, 2)), ((1, 2, 1), (1, 1, 2)), ((4, 4), (4, 4)), ((3, 2, 1), (1, 3, 2)),
    ((2, 1, 3), (1, 3, 2)), ((2, 1, 2, 1), (1, 2, 1, 2)), ((12, 3), (3, 12)),
])  # fmt: skip
def test_a_placement_is_rotated_not_sorted(placement, smallest):
    assert rotated(placement) == smallest


def test_the_order_of_nodes_counts_only_up_to_rotation(tmp_path):
    other = {("132", 4): (2.0, 0.0), ("132", 8): (4.0, 0.0), ("123", 4): (3.0, 0.0), ("123", 8): (5.0, 0.0)}
    app = read_applications(written(tmp_path, placements={**PLACEMENTS, **other}))["toy"]
    assert [app.times_s(place, 6)[0] for place in ((1, 3, 2), (3, 2, 1), (2, 1, 3))] == [3.0] * 3
    assert [app.times_s(place, 6)[0] for place in ((1, 2, 3), (2, 3, 1), (3, 1, 2))] == [4.0] * 3


def test_digits_of_a_placement_are_nodes_and_never_one_big_node(toy):
    assert toy.times_s((1, 1), 4) == (0.5, 0.2)
    with pytest.raises(ConfigError, match="11 with 4 samples per GPU was not measured"):
        toy.step_times.times_s((11,), 4)


def test_rows_measured_twice_count_as_their_mean(tmp_path):
    file = tmp_path / "placements.csv"
    file.write_text("placement,local_bsz,step_time,sync_time\n21,4,1,0.2\n12,4,3,0.4\n12,8,5,0.5\n")
    assert read_placements(file) == {(1, 2): {4: (2.0, pytest.approx(0.3)), 8: (5.0, 0.5)}}


# Placements that were not measured. Step is 0.1 nodes + 0.05 GPUs + 0.05 samples at all points, so that every
# triangulation gives the same answer.

AROUND = {
    (f"{place}", local): (0.1 * len(place) + 0.05 * sum(map(int, place)) + 0.05 * local + off, 0.01 * len(place))
    for place, off in (("1", 0), ("4", 0), ("11", 0), ("13", 0.125), ("22", -0.125), ("44", 0)) for local in (4, 8)
}
FAR = {
    (nodes, gpus, local): (0.1 * nodes + 0.05 * gpus + 0.05 * local, 0.01 * nodes)
    for nodes in (4, 16) for gpus in (nodes, 4 * nodes) for local in (4, 8)
}  # fmt: skip


@pytest.fixture
def plane(tmp_path) -> Application:
    return read_applications(written(tmp_path, placements=AROUND, scalability=FAR))["toy"]


@pytest.mark.parametrize(("placement", "local_batch"), [
    ((1, 1, 1), 4), ((4, 4, 4), 8), ((1, 2, 1), 5), ((2, 2, 2, 2), 6), ((1,) * 5, 4), ((4,) * 15, 8), ((4, 1) * 5, 7),
    ((3,), 6), ((2,), 4), ((1,) * 16, 5), ((4,) * 16, 8),
])  # fmt: skip
def test_between_placements_it_is_linear_in_nodes_gpus_and_samples(plane, placement, local_batch):
    step_s = 0.1 * len(placement) + 0.05 * sum(placement) + 0.05 * local_batch
    assert plane.times_s(placement, local_batch) == pytest.approx((step_s, 0.01 * len(placement)))


def test_placements_of_as_many_nodes_and_gpus_count_as_their_mean(plane):
    assert plane.times_s((2, 2), 4)[0] == pytest.approx(0.1 * 2 + 0.05 * 4 + 0.05 * 4 - 0.125)  # itself: as measured
    assert plane.step_times.points[2, 4, 4][0] == pytest.approx(0.6)  # for others: 13 and 22 make up for each other


def test_more_than_16_nodes_count_as_16(plane):
    assert plane.times_s((1,) * 20, 4) == plane.times_s((2,) * 4 + (1,) * 12, 4)


@pytest.mark.parametrize(("placement", "local_batch"), [
    ((8,), 4), ((5, 4), 8), ((4,) * 17, 8), ((1, 1, 1), 9), ((1,), 9), ((64,), 4),
])  # fmt: skip
def test_beyond_the_measurements_is_an_error_and_never_a_guess(plane, placement, local_batch):
    with pytest.raises(ConfigError, match="was not measured; expected"):
        plane.step_times.times_s(placement, local_batch)


def test_points_that_span_no_volume_cannot_be_interpolated(tmp_path):
    flat = {(2, 2, 4): (0.8, 0.4), (3, 3, 4): (0.8, 0.4)}
    placements = {("1", 4): (0.3, 0.0), ("1", 8): (0.5, 0.0)}
    app = read_applications(written(tmp_path, placements=placements, scalability=flat))["toy"]
    assert app.times_s((1,), 6) == pytest.approx((0.4, 0.0))
    with pytest.raises(ConfigError, match=r"2 GPUs on 2 nodes so placed, and the 4 measured points .* span no volume"):
        app.step_times.times_s((1, 1), 4)


def test_applications_can_be_keys(toy, toy_at):
    assert len({toy, toy_at}) == 2


def test_nothing_is_triangulated_before_it_is_needed_and_answers_are_kept(plane):
    plane.times_s((4, 4), 5)
    assert not plane.step_times._between
    first = plane.times_s((4, 4, 4), 5)
    assert len(plane.step_times._between) == 1
    assert plane.times_s((4, 4, 4), 5) is first
    assert len(plane.step_times._kept) == 2


@pytest.mark.parametrize(("placement", "local_batch"), [((), 4), ((1, 0), 4), ((-1,), 4), ((1,), 0)])
def test_a_placement_nobody_could_mean_is_a_defect(toy, placement, local_batch):
    with pytest.raises(InvariantError):
        toy.times_s(placement, local_batch)


# Gradients, splits, rates


def test_gradient_statistics_are_those_of_a_validated_batch_and_linear_between_two(toy):
    assert toy.gradient(8, 0) == (4.0, 1.0)
    assert toy.gradient(32, 1) == (10.0, 0.0)
    assert toy.gradient(10, 0) == pytest.approx((5.0, 1.5))
    assert toy.gradient(28, 1) == pytest.approx((11.5, 1.0))


@pytest.mark.parametrize("batch", [7, 33, 0, -8])
def test_batches_outside_the_validated_ones_are_an_error(toy, batch):
    with pytest.raises(ConfigError, match=f"toy: global batch {batch}, expected 8 to 32"):
        toy.gradient(batch, 0)


@pytest.mark.parametrize("epoch", [-1, 2])
def test_epochs_that_do_not_exist_are_a_defect(toy, epoch):
    with pytest.raises(InvariantError):
        toy.gradient(8, epoch)


@pytest.mark.parametrize(("gpus", "batch", "expected"), [
    (1, 8, (8, 0)),    # the initial batch on one GPU needs no accumulation
    (1, 9, (5, 1)),    # above it at least one step more, samples rounded up
    (1, 12, (6, 1)),
    (1, 24, (12, 1)),  # 24 do not fit 12 either way
    (1, 25, (9, 2)),
    (1, 32, (10, 2)),  # 11 each would make 33, above the largest validated: 32 // 3
    (2, 24, (12, 0)),
    (2, 26, (7, 1)),   # 13 are too many for a GPU: twice 7
    (3, 32, (10, 0)),  # 11 each would make 33
    (5, 8, (2, 0)),
    (32, 32, (1, 0)),
    (1, 40, (8, 3)),   # asked above the largest: 40 in 4 steps, cut to 32 // 4
])  # fmt: skip
def test_a_batch_is_split_as_published(toy, gpus, batch, expected):
    assert toy.split(gpus, batch) == expected


@pytest.mark.parametrize(("gpus", "batch"), [(33, 32), (4, 1_000)])  # 250 each in 21 steps: 32 samples do not reach
def test_a_batch_without_a_sample_for_each_gpu_and_step_is_an_error(toy, gpus, batch):
    with pytest.raises(ConfigError, match=f"batch {batch} on {gpus} GPUs: the largest batch, 32, has less than one"):
        toy.split(gpus, batch)


@pytest.mark.parametrize(("gpus", "batch"), [(0, 8), (1, 0), (-1, 8), (1, -5)])
def test_splitting_nothing_is_a_defect(toy, gpus, batch):
    with pytest.raises(InvariantError):
        toy.split(gpus, batch)


def test_rate_is_gain_over_the_time_of_an_optimizer_step(toy):
    assert toy.gain(8, 0) == 1  # the initial batch
    assert toy.rate((1,), 8, 0, 0) == pytest.approx(1 / 0.55)
    # Batch 2 * 8 * 2 = 32, scale 4, variance 10, square 5: gain 15 / 7.5 = 2; time 0.6 + (0.6 - 0.1) = 1.1.
    assert toy.rate((2,), 8, 1, 0) == pytest.approx(2 / 1.1)
    # Square 0 in epoch 1: gain is the scale.
    assert toy.rate((1, 1), 8, 1, 1) == pytest.approx(4 / 1.2)
    # Batch 10, scale 1.25, variance 5, square 1.5: gain 6.5 / (4 + 1.5); time 0.45.
    assert toy.rate((2,), 5, 0, 0) == pytest.approx(6.5 / 5.5 / 0.45)


# Properties

seconds = st.floats(1e-3, 1e3)
curves = st.dictionaries(st.integers(1, 200), st.tuples(seconds, st.floats(0, 1)), min_size=2, max_size=8).map(
    lambda curve: {local: (step, step * share) for local, (step, share) in curve.items()}
)


@given(curve=curves, where=st.floats(0, 1))
def test_interpolation_reproduces_the_table_and_stays_between_neighbours(curve, where):
    times = StepTimes(name="toy", curves={(1, 2): curve}, points={}, local_batch_min=min(curve))
    for local_batch, measured in curve.items():
        assert times.times_s((2, 1), local_batch) == measured
    local_batch = round(min(curve) + where * (max(curve) - min(curve)))
    step_s, sync_s = times.times_s((1, 2), local_batch)
    low, high = max(b for b in curve if b <= local_batch), min(b for b in curve if b >= local_batch)
    tiny = 1e-9 * max(curve[low][0], curve[high][0])
    assert min(curve[low][0], curve[high][0]) - tiny <= step_s <= max(curve[low][0], curve[high][0]) + tiny
    assert min(curve[low][1], curve[high][1]) - tiny <= sync_s <= max(curve[low][1], curve[high][1]) + tiny
    assert 0 <= sync_s <= step_s + tiny
    assert step_s > 0


@given(data=st.data(), gpus=st.integers(1, 64), batch=st.integers(8, 32))
def test_a_split_is_legal_and_never_less_than_asked_unless_cut_at_the_largest(toy_at, data, gpus, batch):
    toy = toy_at
    assume(gpus <= toy.batch_max)
    local_batch, accumulation = toy.split(gpus, batch)
    total = gpus * local_batch * (accumulation + 1)
    assert 1 <= local_batch <= toy.local_batch_max
    assert accumulation >= (gpus == 1 and batch > toy.batch_min)
    assert total <= toy.batch_max
    assert total >= batch or gpus * (local_batch + 1) * (accumulation + 1) > toy.batch_max
    assert total - batch < gpus * (accumulation + 1) + gpus


@given(placement=st.lists(st.integers(1, 4), min_size=1, max_size=16).map(tuple), data=st.data())
def test_rate_is_positive_and_finite_wherever_a_batch_is_legal(plane_at, placement, data):
    gpus = sum(placement)
    assume(gpus <= plane_at.batch_max)
    local_batch, accumulation = plane_at.split(gpus, data.draw(st.integers(plane_at.batch_min, plane_at.batch_max)))
    assume(gpus * local_batch * (accumulation + 1) >= plane_at.batch_min)
    rate = plane_at.rate(placement, local_batch, accumulation, data.draw(st.integers(0, 1)))
    assert 0 < rate < math.inf


@pytest.fixture(scope="module")
def toy_at(tmp_path_factory) -> Application:
    return read_applications(written(tmp_path_factory.mktemp("toy")))["toy"]


@pytest.fixture(scope="module")
def plane_at(tmp_path_factory) -> Application:
    folder = written(tmp_path_factory.mktemp("plane"), placements=AROUND, scalability=FAR)
    return read_applications(folder)["toy"]


# Bad input: file, row and column, what was found, what was expected


def test_a_missing_folder(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: no such folder, expected one with a folder for each"):
        read_applications(tmp_path / "nowhere")


def test_an_empty_folder(tmp_path):
    with pytest.raises(ConfigError, match="contains no folders, expected one for each profiled application"):
        read_applications(tmp_path)


def test_a_file_where_a_folder_is_due(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no such folder"):
        read_applications(tmp_path / "file")


def test_the_folder_of_one_application(tmp_path):
    with pytest.raises(ConfigError, match="the folder of one application, expected the folder above it"):
        read_applications(written(tmp_path) / "toy")


def test_a_missing_table_of_placements(tmp_path):
    assert refused(tmp_path, placements=None).startswith("placements.csv: no such file")


def test_without_a_table_of_scalability_the_placements_are_what_was_measured(tmp_path):
    app = read_applications(written(tmp_path, scalability=None))["toy"]
    assert set(app.step_times.points) == {(len(place), sum(map(int, place)), local) for place, local in PLACEMENTS}


@pytest.mark.parametrize(("validation", "found"), [({}, "none"), ({8: VALIDATION[8]}, "validation-8.csv")])
def test_fewer_than_two_batch_sizes(tmp_path, validation, found):
    message = refused(tmp_path, validation=validation)
    assert message.endswith(f"toy: found {found}, expected validation-B.csv for at least two batch sizes B")


@pytest.mark.parametrize("name", ["big", "", "-8", "8.5", "0", "1e3", "٣", "9" * 30])
def test_validation_files_not_named_after_a_number(tmp_path, name):
    message = refused(tmp_path, validation={**VALIDATION, name: VALIDATION[8]})
    assert message == f"validation-{name}.csv: found {name!r}, expected a batch size, as in validation-128.csv"


def test_a_batch_size_twice(tmp_path):
    message = refused(tmp_path, validation={**VALIDATION, "008": VALIDATION[8]})
    assert message == "validation-8.csv: found batch size 8 again (validation-008.csv), expected it once"


HEAD = "placement,local_bsz,step_time,sync_time\n1,4,0.3,0.1\n1,8,0.5,0.1\n"


@pytest.mark.parametrize(("table", "message"), [
    ("", "placements.csv: found an empty file, expected a table of placement, local_bsz, step_time, sync_time"),
    ("\n\n", "placements.csv: found an empty file, expected a table of placement, local_bsz, step_time, sync_time"),
    ("placement,local_bsz,step_time,sync_time\n",
     "placements.csv: found no rows, expected a table of placement, local_bsz, step_time, sync_time"),
    ("placement,local_bsz,step_time\n1,4,1\n",
     "placements.csv, row 1, column 'sync_time': found columns placement, local_bsz, step_time, "
     "expected a column 'sync_time'"),
    ("placement,local_bsz,step_time,step_time\n1,4,1,1\n",
     "placements.csv, row 1, column 'step_time': found the name twice, expected a column 'step_time'"),
    (f"{HEAD}1,12,0.7\n", "placements.csv, row 4: found 3 fields, expected 4"),
    (f"{HEAD}\n1,12,nan,0\n",
     "placements.csv, row 5, column 'step_time': found 'nan', expected seconds, 1e-06 to 1e+06"),
    (f"{HEAD}1,12,0,0\n", "placements.csv, row 4, column 'step_time': found '0', expected seconds, 1e-06 to 1e+06"),
    (f"{HEAD}1,12,-1,0\n", "placements.csv, row 4, column 'step_time': found '-1', expected seconds, 1e-06 to 1e+06"),
    (f"{HEAD}1,12,inf,0\n", "placements.csv, row 4, column 'step_time': found 'inf', expected seconds, 1e-06 to 1e+06"),
    (f"{HEAD}1,12,,0\n", "placements.csv, row 4, column 'step_time': found '', expected seconds, 1e-06 to 1e+06"),
    (f"{HEAD}1,12,0.7,0.8\n",
     "placements.csv, row 4, column 'sync_time': found '0.8', expected seconds, 0 to step_time (0.7)"),
    (f"{HEAD}1,12,0.7,-0.1\n",
     "placements.csv, row 4, column 'sync_time': found '-0.1', expected seconds, 0 to step_time (0.7)"),
    (f"{HEAD}1,12,0.7,nan\n",
     "placements.csv, row 4, column 'sync_time': found 'nan', expected seconds, 0 to step_time (0.7)"),
    (f"{HEAD}1,0,0.7,0\n", "placements.csv, row 4, column 'local_bsz': found '0', expected samples per GPU, 1 or more"),
    (f"{HEAD}1,4.5,0.7,0\n",
     "placements.csv, row 4, column 'local_bsz': found '4.5', expected samples per GPU, 1 or more"),
    (f"{HEAD}102,4,0.7,0\n", "placements.csv, row 4, column 'placement': found '102', expected the GPUs of each node "
     "as digits from 1 to 9, like 112"),
    (f"{HEAD}1.0,4,0.7,0\n", "placements.csv, row 4, column 'placement': found '1.0', expected the GPUs of each node "
     "as digits from 1 to 9, like 112"),
    (f"{HEAD}11,4,0.7,0\n", "placements.csv, row 4, column 'local_bsz': found 4 alone for placement 1+1, "
     "expected at least two local batches, to interpolate between"),
    (b"\xff\xfe\x00", "placements.csv: binary data, expected UTF-8 text"),
])  # fmt: skip
def test_placements_that_cannot_be_meant(tmp_path, table, message):
    assert refused(tmp_path, placements=table) == message


@pytest.mark.parametrize(("row", "message"), [
    ("4,3,4,1,0", "column 'num_replicas': found '3', expected GPUs, at least one for each of 4 nodes"),
    ("0,3,4,1,0", "column 'num_nodes': found '0', expected nodes, 1 or more"),
    ("x,3,4,1,0", "column 'num_nodes': found 'x', expected nodes, 1 or more"),
    ("3,3,4,0,0", "column 'step_time': found '0', expected seconds, 1e-06 to 1e+06"),
    ("3,3,4,1,2", "column 'sync_time': found '2', expected seconds, 0 to step_time (1)"),
])  # fmt: skip
def test_scalability_that_cannot_be_meant(tmp_path, row, message):
    table = f"num_nodes,num_replicas,local_bsz,step_time,sync_time\n{row}\n"
    assert refused(tmp_path, scalability=table) == f"scalability.csv, row 2, {message}"


@pytest.mark.parametrize(("rows", "message"), [
    ("10,1,1\n10,1,1", "row 3, column 'progress': found '10', expected more than 10, that of the row before"),
    ("10,1,1\n9,1,1", "row 3, column 'progress': found '9', expected more than 10, that of the row before"),
    ("10,1,1\nnan,1,1", "row 3, column 'progress': found 'nan', expected more than 10, that of the row before"),
    ("0,1,1\n9,1,1", "row 2, column 'progress': found '0', expected more than 0"),
    ("10,-1,1", "row 2, column 'grad_sqr': found '-1', expected a gradient statistic, 0 or more"),
    ("10,1,inf", "row 2, column 'grad_var': found 'inf', expected a gradient statistic, 0 or more"),
    ("10,0,0", "row 2, column 'grad_var': found '0', expected 1e-30 or more where grad_sqr is 0"),
])  # fmt: skip
def test_validation_that_cannot_be_meant(tmp_path, rows, message):
    table = f"progress,grad_sqr,grad_var\n{rows}\n"
    assert refused(tmp_path, validation={**VALIDATION, 16: table}) == f"validation-16.csv, {message}"


def test_fewer_epochs_than_a_known_application_trains(tmp_path):
    with pytest.raises(UserError, match=r"validation-8\.csv: found 2 epochs, expected at least 100"):
        read_applications(written(tmp_path, name="cifar10"))


def test_a_limit_below_everything_measured(tmp_path):
    placements = {("1", 16): (1.0, 0.0), ("1", 32): (1.5, 0.0)}
    epochs = {batch: [(float(e + 1), 1.0, 1.0) for e in range(50)] for batch in (8, 16)}
    with pytest.raises(ConfigError, match=r"the smallest local_bsz is 16, but yolov3 has at most 8 samples per GPU"):
        read_applications(written(tmp_path, name="yolov3", placements=placements, validation=epochs))


def test_byte_order_marks_carriage_returns_and_spare_columns_are_fine(tmp_path):
    text = "\ufeffplacement,note,local_bsz,step_time,sync_time\r\n1,a,4,0.3,0.1\r\n1,b,8,0.5,0.1\r\n"
    assert read_applications(written(tmp_path, placements=text))["toy"].times_s((1,), 6) == pytest.approx((0.4, 0.1))
