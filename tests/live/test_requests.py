"""What a job may ask for: read, written and refused with one line that says what was found and what was expected."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.trace import NONE as CORE_NONE
from brim.core.trace import JobClass
from brim.errors import ConfigError
from brim.live.requests import (
    AFTER_MAX,
    COUNT_MAX,
    ID_MAX,
    NONE,
    REQUEST_BYTES_MAX,
    SIZES_MAX,
    UNIX_S_MAX,
    JobRequest,
    read_request,
    read_submission,
)

LEAST = {"name": "train.py", "capture": "0" * 32, "digest": "a" * 64}


def _array(index: int, limit: int) -> dict[str, int]:
    return {"array_index": index, "array_limit": NONE if index == NONE else limit}


@st.composite
def requests(draw: st.DrawFn) -> JobRequest:
    """Any valid request."""
    sizes = tuple(sorted(draw(st.sets(st.integers(1, 64), max_size=4))))
    gpus = draw(st.sampled_from(sizes)) if sizes else draw(st.integers(1, 64))
    least = draw(st.sampled_from([NONE, *sizes[:1]] if sizes else [NONE, gpus, 1]))
    most = draw(st.sampled_from([NONE, *sizes[-1:]] if sizes else [NONE, gpus, 64]))
    elastic = (sizes[0] if sizes else gpus if least == NONE else least) != (
        sizes[-1] if sizes else gpus if most == NONE else most)
    batches = sorted(draw(st.lists(st.integers(1, 1 << 20), min_size=3, max_size=3)))
    return JobRequest(
        name=draw(st.from_regex(r"\A[A-Za-z0-9._-]{1,64}\Z")), capture=draw(st.from_regex(r"\A[0-9a-f]{32}\Z")),
        digest=draw(st.from_regex(r"\A[0-9a-f]{64}\Z")), gpus=gpus, gpus_min=least, gpus_max=most, sizes=sizes,
        ranks="per-gpu" if elastic else draw(st.sampled_from(["one", "per-gpu"])),
        gpu_type=draw(st.sampled_from(["", "NVIDIA H200"])), cpus_per_gpu=draw(st.floats(0, 128)),
        mem_mib_per_gpu=draw(st.integers(0, 1 << 20)),
        gpu_mem_mib=draw(st.sampled_from([NONE, 1, 81_920])), gpu_util_milli=draw(st.sampled_from([NONE, 1, 1000])),
        time_limit_s=draw(st.integers(0, 1 << 20)),
        priority=draw(st.integers(-100, 100)), job_class=draw(st.sampled_from(["regular", "urgent", "padding"])),
        after=tuple(draw(st.lists(st.integers(1, 99), max_size=3))),
        after_any=tuple(draw(st.lists(st.integers(100, 199), max_size=3))),
        after_not_ok=tuple(draw(st.lists(st.integers(200, ID_MAX), max_size=3))),
        begin_s=draw(st.integers(0, UNIX_S_MAX)),
        hold=draw(st.booleans()), grace_s=draw(st.floats(0, 86_400)), requeue=draw(st.booleans()),
        attempts_max=draw(st.integers(1, 9)), batch_min=batches[0], batch=batches[1], batch_max=batches[2],
        deadline_s=draw(st.integers(0, UNIX_S_MAX)), **_array(draw(st.integers(NONE, 5)), draw(st.integers(1, 9))),
    )  # fmt: skip


@given(requests())
def test_a_request_comes_back_from_json_as_it_was(request):
    assert read_request(json.loads(json.dumps(request.record(), allow_nan=False))) == request


def test_a_record_names_only_what_was_asked_for():
    """So that a field added later does not change the record of a request that does not use it."""
    assert read_request(LEAST).record() == LEAST


def test_a_range_means_a_process_per_gpu_unless_it_is_said():
    assert read_request(LEAST | {"gpus_min": 1, "gpus_max": 4, "gpus": 2}).ranks == "per-gpu"
    assert read_request(LEAST | {"sizes": [1, 2, 4], "gpus": 2}).ranks == "per-gpu"
    assert read_request(LEAST | {"gpus": 4, "gpus_max": 4}).ranks == "one"
    with pytest.raises(ConfigError, match=r"ranks: found 'one', expected 'per-gpu', because"):
        read_request(LEAST | {"gpus_max": 4, "ranks": "one"})


def test_constants_are_those_of_the_core():
    assert NONE == CORE_NONE
    kinds = next(field for field in fields(JobRequest) if field.name == "job_class")
    assert kinds.default == JobClass.REGULAR.name.lower()
    for kind in JobClass:
        assert read_request(LEAST | {"job_class": kind.name.lower()})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "name: found '', expected 1 to 64 letters, digits, '.', '_' or '-'"),
        ({"name": "a" * 65}, "name: found 'aaaa"),
        ({"name": "x\x1b[2J"}, r"name: found 'x\x1b[2J', expected"),
        ({"name": "train\n"}, r"name: found 'train\n', expected"),
        ({"name": "\u202etxt"}, r"name: found '\u202etxt', expected"),
        ({"name": "\ud800"}, r"name: found '\ud800', expected"),
        ({"name": 3}, "name: found 3, expected"),
        ({"name": None}, "name: found None, expected"),
        ({"capture": "../../etc/passwd"}, "capture: found '../../etc/passwd', expected 32 hexadecimal digits"),
        ({"digest": "A" * 64}, "expected 64 hexadecimal digits"),
        ({"gpus": 0}, "gpus: found 0, expected a whole number from 1"),
        ({"gpus": -1}, "gpus: found -1, expected"),
        ({"gpus": True}, "gpus: found True, expected"),
        ({"gpus": 1.0}, "gpus: found 1.0, expected"),
        ({"gpus": "2"}, "gpus: found '2', expected"),
        ({"gpus": 10**4000}, "gpus: found a number of 13288 bits, expected"),
        ({"gpus_min": 2}, "gpus: found 1, expected at least gpus_min, which is 2"),
        ({"gpus": 4, "gpus_max": 2}, "gpus_max: found 2, expected at least gpus, which is 4"),
        ({"sizes": [4, 2]}, "sizes: found (4, 2), expected numbers of GPUs in increasing order"),
        ({"sizes": [2, 2]}, "sizes: found (2, 2), expected"),
        ({"sizes": [2, 4]}, "gpus: found 1, expected one of the sizes (2, 4)"),
        ({"sizes": [1, 4], "gpus_min": 2}, "gpus_min: found 2, expected 1, as the sizes say"),
        ({"sizes": [[]]}, "sizes: found a list of 1, expected"),
        ({"sizes": {}}, "sizes: found an object with 0 fields, expected"),
        ({"sizes": list(range(1, SIZES_MAX + 2))}, "sizes: found (1, 2, 3"),
        ({"ranks": "two"}, "ranks: found 'two', expected 'one' or 'per-gpu'"),
        ({"gpu_type": "H200\n"}, "gpu_type: found"),
        ({"cpus_per_gpu": math.nan}, "cpus_per_gpu: found nan, expected a number from 0"),
        ({"cpus_per_gpu": math.inf}, "cpus_per_gpu: found inf, expected"),
        ({"cpus_per_gpu": 10**400}, "cpus_per_gpu: found a number of 1329 bits, expected"),
        ({"grace_s": -0.5}, "grace_s: found -0.5, expected"),
        ({"time_limit_s": -1}, "time_limit_s: found -1, expected a whole number from 0"),
        ({"job_class": "vip"}, "job_class: found 'vip', expected 'regular' or 'urgent' or 'padding'"),
        ({"after": [0]}, "after: found (0,), expected at most 1000 job ids"),
        ({"after": [1] * (AFTER_MAX + 1)}, "after: found (1, 1"),
        ({"after": 3}, "after: found 3, expected"),
        ({"after": [3], "after_any": [3]}, "after: found a job that is also in after_any or after_not_ok, expected"),
        ({"array_limit": 2}, "array_limit: found 2, expected -1, because the job is in no array"),
        ({"array_limit": 0, "array_index": 1}, "array_limit: found 0, expected a whole number from 1"),
        ({"after": [True]}, "after: found a list of 1, expected"),
        ({"begin_s": UNIX_S_MAX + 1}, "begin_s: found 253402300800, expected"),
        ({"hold": 1}, "hold: found 1, expected true or false"),
        ({"batch": 0}, "batch: found 0, expected a whole number from 1"),
        ({"batch": 8, "batch_min": 16}, "batch: found 8, expected at least batch_min, which is 16"),
        ({"local_batch_min": 8, "local_batch_max": 4}, "local_batch_max: found 4, expected at least local_batch_min"),
        ({"array_index": -2}, "array_index: found -2, expected"),
        ({"command": "rm"}, "job: found the field 'command', expected one of: name, capture"),
        ({3: 4}, "job: found the field 3, expected one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused_in_one_line(change, words):
    with pytest.raises(ConfigError) as refused:
        read_request(LEAST | change)
    assert words in str(refused.value)
    assert str(refused.value).isascii()
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_grace_above_the_time_limit_is_refused_when_submitted_and_read_from_older_journals():
    asked = LEAST | {"grace_s": 60.5, "time_limit_s": 60}
    with pytest.raises(ConfigError, match=r"^grace_s: found 60.5, expected no more than time_limit_s, which is 60$"):
        read_submission(asked)
    assert read_request(asked).grace_s == 60.5
    for fits in ({"grace_s": 60}, {"time_limit_s": 1}, {"grace_s": 60, "time_limit_s": 60}):
        assert read_submission(LEAST | fits) == read_request(LEAST | fits)


def test_what_is_missing_or_no_object_is_refused():
    with pytest.raises(ConfigError, match="job: found no capture, digest, expected them"):
        read_request({"name": "x"})
    with pytest.raises(ConfigError, match=r"job: found \[\], expected an object"):
        read_request([])  # type: ignore[arg-type]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["one", "urgent", 1, 2, 4]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=5,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(sorted(field.name for field in fields(JobRequest))) | st.text(), ANY))
def test_whatever_comes_is_a_request_or_one_line(data):
    try:
        request, words = read_request(LEAST | data), "none"
    except ConfigError as error:
        request, words = read_request(LEAST), str(error)
    assert words.isascii()
    assert words.isprintable()
    assert read_request(json.loads(json.dumps(request.record(), allow_nan=False))) == request


def test_deep_nesting_is_refused():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigError, match="sizes: found a list of 1"):
        read_request(LEAST | {"sizes": deep})


def test_the_longest_request_is_within_the_limit():
    longest = JobRequest(
        name="n" * 64, capture="0" * 32, digest="0" * 64, gpus=COUNT_MAX, ranks="per-gpu", gpu_type="t" * 64,
        sizes=tuple(range(COUNT_MAX - SIZES_MAX + 1, COUNT_MAX + 1)), after=(ID_MAX,) * AFTER_MAX,
        cpus_per_gpu=0.1234567890123456, grace_s=12345.678901234567,
    )  # fmt: skip
    assert len(json.dumps(longest.record())) < REQUEST_BYTES_MAX


@pytest.mark.parametrize(("job_class", "grace_s"), [("padding", 5.0), ("regular", 30.0)])
def test_a_job_that_names_no_grace_has_that_of_its_class_whoever_asks(job_class, grace_s):
    asked = {"name": "a", "capture": "0" * 32, "digest": "0" * 64, "job_class": job_class}
    request = read_request(asked)
    assert request.grace_s == JobRequest(**asked).grace_s == grace_s
    assert "grace_s" not in request.record()
    other = read_request(asked | {"grace_s": 35.0 - grace_s})
    assert read_request(other.record()) == other, "the default of the other class is written down"
