"""Many jobs named at once: one request, an answer for each, and the exit code of the last that was refused."""

from __future__ import annotations

import json
import os

import pytest

from brim.api.auth import Admission
from brim.api.client import PAGE_MAX
from brim.cli import change, eta
from brim.cli.controller import find_ids, find_job
from brim.errors import ConfigError, NotFoundError, RefusedError
from brim.live.requests import JOBS_MAX
from tests.api.serving import serving
from tests.api.stand_in import KeepsJobs, request


@pytest.fixture(scope="module")
def served():
    with serving(KeepsJobs(), Admission(owner=os.getuid())) as client:
        client.submit([request(name="one")])
        client.submit([request(name="many", array_index=index) for index in (0, 10, 20, 30)])
        client.submit([request(name="last")])
        yield client


@pytest.fixture
def asked(served, monkeypatch):
    """The client, and the requests that it makes."""
    served.asked, once = [], served._once
    monkeypatch.setattr(served, "_once", lambda *words: served.asked.append(words[:2]) or once(*words))
    monkeypatch.setattr(change, "client", lambda: served)
    return served


@pytest.mark.parametrize(("words", "ids"), [
    (["3"], [3]), (["1-10000"], range(1, 10_001)), (["5-7", "2", "6-8"], [5, 6, 7, 2, 8]),
])  # fmt: skip
def test_ids_and_ranges_are_named_without_a_question(asked, words, ids):
    assert find_ids(asked, words) == list(ids)
    assert not asked.asked


@pytest.mark.parametrize(("word", "ids"), [
    ("2_0", [2]), ("2_10-20:10", [3, 4]), ("2_[0,30]", [2, 5]), ("many", [2, 3, 4, 5]), ("@", [6]),
])  # fmt: skip
def test_jobs_of_an_array_and_names_are_looked_up(served, monkeypatch, word, ids):
    monkeypatch.setattr("brim.cli.controller.user", lambda: served.job(1).user)
    assert find_ids(served, [word]) == ids


@pytest.mark.parametrize(("word", "kind", "said"), [
    ("9-7", ConfigError, "found range 9-7, expected one of"), ("0", ConfigError, "found '0', expected an id from 1"),
    (f"1-{JOBS_MAX + 1}", ConfigError, "expected one of 1 to"), ("9" * 30, ConfigError, "expected an id"),
    ("2_1", NotFoundError, "array 2 has no job with index 1, or"), ("1_0", NotFoundError, "job 1 is not the first of"),
    ("2_30-0", ConfigError, "expected indices"), ("9_0", NotFoundError, "no job 9 of yours"),
])  # fmt: skip
def test_a_word_that_names_no_job_is_refused(served, word, kind, said):
    with pytest.raises(kind, match=said):
        find_ids(served, [word])


def test_one_job_of_an_array_is_found_by_its_name_in_slurm(served):
    assert find_job(served, "2_10").id == 3
    with pytest.raises(ConfigError, match=r"^found 2_0,10, 2 jobs, expected one, such as 2_0$"):
        find_job(served, "2_0,10")
    with pytest.raises(NotFoundError, match="array 2 has no job with index 1"):
        find_job(served, "2_1")


def test_too_many_jobs_of_several_words_are_refused(served):
    with pytest.raises(ConfigError, match=f"found {JOBS_MAX + 1} jobs, expected at most {JOBS_MAX}"):
        find_ids(served, [f"1-{JOBS_MAX}", str(JOBS_MAX + 1)])


def test_more_jobs_than_a_forecast_answers_are_refused_by_the_command_itself(asked, monkeypatch):
    monkeypatch.setattr(eta, "client", lambda: asked)
    with pytest.raises(ConfigError, match=f"^found 1001 jobs, expected at most {PAGE_MAX}: name some of them$"):
        eta.eta(["1-1001"])
    assert not asked.asked


def test_many_jobs_are_changed_by_one_request_and_each_is_answered(asked, capsys):
    change._change("hold", ["1-5"], "table")
    assert asked.asked == [("POST", "/v1/jobs/hold")]
    assert capsys.readouterr().out.splitlines() == [f"job {job}: held (waits for a device)" for job in range(1, 6)]
    change._change("cancel", ["2"], "table")
    capsys.readouterr()
    with pytest.raises(NotFoundError, match="no job 99 of yours"):
        change._change("hold", ["2", "3", "99"], "json")
    out, err = capsys.readouterr()
    assert err == "brim: error: job 2 has ended as cancelled: there is nothing to hold\n"
    assert [job["id"] for job in json.loads(out)["jobs"]] == [3]
    assert [job["id"] for job in json.loads(out)["refused"]] == [2, 99]
    with pytest.raises(RefusedError, match="job 2 has ended as cancelled: there is nothing to cancel"):
        change._change("cancel", ["2"], "table")
    assert capsys.readouterr() == ("", "")


def test_several_jobs_that_cannot_be_changed_are_one_line_with_their_number():
    ended = [RefusedError(f"job {job} has ended as finished: there is nothing to hold") for job in range(1, 400)]
    absent = [NotFoundError(f"there is no job {job} of yours") for job in (900, 901)]
    assert [str(error) for error in change._refusals("hold", ["big", "900-901"], [*ended, *absent])] == [
        "399 jobs of big, 900-901 have ended: there is nothing to hold",
        "2 jobs of big, 900-901 do not exist, or are not yours",
    ]
    assert list(change._refusals("hold", ["1", "900"], [ended[0], absent[0]])) == [ended[0], absent[0]]


def test_a_range_of_jobs_is_read_alone(asked, monkeypatch):
    monkeypatch.setattr("brim.api.client.PAGE_MAX", 2)
    assert [job.id for job in asked.jobs("all", first=2, last=4).jobs] == [2, 3, 4]
    assert asked.asked[0] == ("GET", "/v1/jobs?state=all&limit=2&user=&before=5")
    assert len(asked.asked) == 2
