"""What each user gets from each route: own jobs whole, those of others as if they were not there."""

from __future__ import annotations

import asyncio
import functools
import json
from dataclasses import asdict, replace

import pytest

from brim.api.app import create_app
from brim.api.auth import Admission
from brim.api.client import _body, _error
from brim.api.routes import SUBMISSION_BYTES_MAX, _read
from brim.api.wire import plain_job, read_job, redacted
from brim.foresight.foresight import Foresight
from brim.live.records import StartForecast
from brim.live.requests import ID_MAX, JOBS_MAX, REQUEST_BYTES_MAX
from brim.live.store.errors import NotAcceptedError, TooManyJobsError
from tests.api.asking import ask
from tests.api.stand_in import KeepsJobs, request

OWNER, ANN, BO = 41000, 41001, 41002  # of whom this machine knows no names
KEY = {"idempotency-key": "k1"}


@pytest.fixture
def service():
    return KeepsJobs()


@functools.cache
def made():
    return create_app(KeepsJobs(), Admission(owner=OWNER, allowed=frozenset({ANN, BO})))


@pytest.fixture
def app(service):
    made().state.service, made().state.foresight = service, Foresight(service)
    return made()


def submit(app, uid=ANN, key="k1", **fields):
    return ask(app, "POST", "/v1/jobs", request(**fields).record(), uid=uid, headers={"idempotency-key": key})


def test_a_key_stands_for_one_submission_of_one_user(app):
    assert submit(app).plain["ids"] == [1]
    assert submit(app).plain["ids"] == [1]
    other = submit(app, gpus=2)
    assert (other.status, "k1" in other.plain["detail"]) == (409, True)
    assert submit(app, uid=BO).plain["ids"] == [2]


def test_many_jobs_are_one_submission(app, service):
    many = [request(name=f"n{number}", array_index=number).record() for number in range(3)]
    assert ask(app, "POST", "/v1/jobs", many, uid=ANN, headers=KEY).plain["ids"] == [1, 2, 3]
    wrong = [many[0], {**many[1], "gpus": 0}]
    answer = ask(app, "POST", "/v1/jobs", wrong, uid=ANN, headers={"idempotency-key": "k2"})
    assert (answer.status, answer.plain["detail"][:19]) == (422, "job 1 of the list: ")
    assert len(service.jobs()) == 3


def test_what_jobs_have_in_common_is_sent_once(app, service):
    many = [request(array_index=number, time_limit_s=60) for number in range(3)]
    body = json.loads(_body(many))
    assert body["common"]["time_limit_s"] == 60
    assert body["each"] == [{"array_index": number} for number in range(3)]
    assert ask(app, "POST", "/v1/jobs", body, uid=ANN, headers=KEY).plain["ids"] == [1, 2, 3]
    assert [job.request for job in service.jobs()] == many
    again = [one.record() for one in many]
    assert ask(app, "POST", "/v1/jobs", again, uid=ANN, headers=KEY).plain["ids"] == [1, 2, 3], "the same submission"


@pytest.mark.slow
def test_as_many_jobs_as_a_user_may_have_fit_a_submission():
    long = {"gpu_type": "x" * 64, "after": (ID_MAX,) * 10, "name": "x" * 64, "time_limit_s": 60}
    many = [
        replace(request(), capture=f"{number:032x}", digest=f"{number:064x}", array_index=number, **long)
        for number in range(JOBS_MAX)
    ]
    body = _body(many)
    assert len(body) < SUBMISSION_BYTES_MAX
    assert _read(body) == many


def test_jobs_that_are_too_long_together_are_refused(app, service):
    body = {"common": {**VALID, "after": list(range(1, 1_001))}, "each": [{"array_index": n} for n in range(5_000)]}
    answer = ask(app, "POST", "/v1/jobs", body, uid=ANN, headers=KEY)
    assert (answer.status, "expected at most 16777216" in answer.plain["detail"]) == (413, True)


@pytest.mark.parametrize("key", [None, "", "a b", "a/b", "k" * 129, "\u00e9"])
def test_a_submission_without_a_key_is_refused(app, key):
    headers = {} if key is None else {"idempotency-key": key}
    assert ask(app, "POST", "/v1/jobs", request().record(), uid=ANN, headers=headers).status == 422


VALID = request().record()


@pytest.mark.parametrize("body", [
    b"", b"{", b"null", b"3", b'"x"', b"[]", b"[[]]", b"{}", b"\xff\xfe", b"[" * 5_000, b'{"a":' * 5_000,
    b"[" + b"9" * 5_000 + b"]",
    json.dumps({**VALID, "grace_s": float("nan")}).encode(), json.dumps({**VALID, "grace_s": float("inf")}).encode(),
    json.dumps({**VALID, "grace_s": 1e308}).encode(), json.dumps({**VALID, "gpus": 1e400}).encode(),
    json.dumps({**VALID, "gpus": True}).encode(), json.dumps({**VALID, "gpus": 10**400}).encode(),
    json.dumps({**VALID, "name": "../../etc"}).encode(), json.dumps({**VALID, "name": "a\x1b[2J"}).encode(),
    json.dumps({**VALID, "name": "a\0b"}).encode(), json.dumps({**VALID, "name": "x" * 65}).encode(),
    json.dumps({**VALID, "name": "\ud800"}).encode(), json.dumps({**VALID, "capture": "../" + "a" * 29}).encode(),
    json.dumps({**VALID, "uid": 0}).encode(), json.dumps({**VALID, "user": "root"}).encode(),
    b'{"common": 3, "each": [{}]}', b'{"common": {}, "each": {}}', b'{"common": {}, "each": [3]}',
    b'{"common": {}, "each": []}', json.dumps({"common": VALID, "each": [{}], "x": 1}).encode(),
    json.dumps({**VALID, "grace_s": 61, "time_limit_s": 60}).encode(),
    json.dumps({**VALID, "after": [{}]}).encode(), json.dumps({**VALID, "after": [-1]}).encode(),
])  # fmt: skip
def test_a_hostile_request_is_refused_in_one_line(app, service, body):
    answer = ask(app, "POST", "/v1/jobs", body, uid=ANN, headers=KEY)
    assert answer.status == 422
    said = answer.plain["detail"]
    assert said.isprintable()
    assert said.isascii()
    assert len(said) < 600
    assert not service.jobs()


def test_one_job_may_have_64_kib(app):
    fits = json.dumps(VALID).encode().ljust(REQUEST_BYTES_MAX)
    assert ask(app, "POST", "/v1/jobs", fits, uid=ANN, headers=KEY).status == 201
    answer = ask(app, "POST", "/v1/jobs", fits + b" ", uid=ANN, headers=KEY)
    assert (answer.status, "65537 bytes" in answer.plain["detail"]) == (413, True)


def test_a_user_with_too_many_jobs_is_told_when_to_try_again(app, service):
    service.full = TooManyJobsError("ann has 3 jobs")
    answer = ask(app, "POST", "/v1/jobs", request().record(), uid=ANN, headers=KEY)
    assert (answer.status, answer.headers["retry-after"], answer.plain) == (429, "60", {"detail": "ann has 3 jobs"})


def test_a_full_disk_is_no_fault_of_the_request(app, service):
    service.full = NotAcceptedError("the disk of /state is full")
    answer = submit(app)
    assert (answer.status, answer.headers["retry-after"], answer.plain) == (503, "1", {"detail": str(service.full)})


OF_ONE_JOB = ["", "/explain", "/log"]
OF_MANY_JOBS = ["hold", "release", "requeue", "cancel"]


@pytest.mark.parametrize("what", OF_ONE_JOB)
def test_another_users_job_is_answered_as_one_that_does_not_exist(app, what):
    submit(app)
    foreign = ask(app, "GET", f"/v1/jobs/1{what}", uid=BO)
    missing = ask(app, "GET", f"/v1/jobs/9{what}", uid=BO)
    assert (foreign.status, missing.status) == (404, 404)
    assert foreign.plain["detail"].replace("1", "9") == missing.plain["detail"]


@pytest.mark.parametrize("verb", OF_MANY_JOBS)
def test_nothing_is_asked_of_another_users_jobs_and_all_else_is_done(app, service, verb):
    submit(app)
    submit(app, uid=BO, key="k2")
    before = service.job(1)
    answer = ask(app, "POST", f"/v1/jobs/{verb}", {"jobs": [1, 2, 9]}, uid=BO)
    assert (answer.status, [job["id"] for job in answer.plain["jobs"]]) == (200, [2])
    assert answer.plain["refused"] == [
        {"id": job, "status": 404, "detail": f"there is no job {job} of yours"} for job in (1, 9)
    ]
    assert service.job(1) == before


@pytest.mark.parametrize("uid", [ANN, OWNER])
def test_a_user_and_the_admin_see_and_change_a_job(app, uid):
    submit(app)
    assert [ask(app, "GET", f"/v1/jobs/1{what}", uid=uid).status for what in ("", "/explain")] == [200, 200]
    for verb in OF_MANY_JOBS:
        answer = ask(app, "POST", f"/v1/jobs/{verb}", {"jobs": [1]}, uid=uid)
        assert (answer.status, len(answer.plain["jobs"]), answer.plain["refused"]) == (200, 1, [])
    ended = {"id": 1, "status": 403, "detail": "job 1 has ended as cancelled: there is nothing to hold"}
    assert ask(app, "POST", "/v1/jobs/hold", {"jobs": [1]}, uid=uid).plain["refused"] == [ended]


@pytest.mark.parametrize("what", OF_ONE_JOB)
def test_a_job_is_named_by_a_number(app, what):
    submit(app)
    long = ("9" * 30, "9" * 5_000)
    for job in ("0", "-1", "1.0", "1e3", "x", "%31%2e", "..", "1%00", *long, "\u0661", "1/../2", " 1", ""):
        assert ask(app, "GET", f"/v1/jobs/{job}{what}", uid=ANN).status in (404, 405, 422), job


@pytest.mark.parametrize("body", [
    {}, {"jobs": []}, {"jobs": 1}, {"jobs": [0]}, {"jobs": [True]}, {"jobs": [1.0]}, {"jobs": ["1"]}, {"jobs": [-1]},
    {"jobs": [[1]]}, {"jobs": [ID_MAX + 1]}, {"jobs": [1] * (JOBS_MAX + 1)}, [1], b"", b"{", b"null",
])  # fmt: skip
def test_jobs_to_change_are_named_by_numbers(app, service, body):
    submit(app)
    answer = ask(app, "POST", "/v1/jobs/cancel", body, uid=ANN)
    assert (answer.status, answer.plain["detail"].isprintable()) == (422, True)
    assert service.job(1).state == "pending"


@pytest.mark.parametrize(("method", "path", "body", "said"), [
    ("POST", "/v1/tokens", {"label": ""}, "label: found '', expected to match pattern '^[A-Za-z0-9._-]{1,64}$'"),
    ("POST", "/v1/tokens", {"label": "x", "days": 91}, "days: found 91, expected less than or equal to 90"),
    ("POST", "/v1/jobs/cancel", {"jobs": []}, "jobs: found [], expected to have at least 1 item, not 0"),
    ("GET", f"/v1/jobs?user={'x' * 65}", b"",
     "user: found 'xxxxxxxxxxxx...xxxxxxxxxxxxx', expected to have at most 64 characters"),
    ("GET", "/v1/eta?" + "&".join(["job=1"] * 1_001), b"",
     "job: found ['1', '1', '1', '1', '1', '1', ...], expected to have at most 1000 items, not 1001"),
    ("GET", "/v1/jobs/1/explain?changes=%1b", b"",
     "changes: found '\\x1b', expected a valid boolean, unable to interpret input"),
])  # fmt: skip
def test_what_was_found_and_what_was_expected_is_said(app, method, path, body, said):
    submit(app)
    answer = ask(app, method, path, body, uid=ANN)
    assert (answer.status, answer.plain["detail"]) == (422, said)


def test_an_older_client_that_changes_one_job_is_told_of_the_other_version(app):
    """It posted to the job itself, and takes this answer for that of another version."""
    submit(app)
    answer = ask(app, "POST", "/v1/jobs/1/cancel", b"{}", uid=ANN)
    assert "of another version of brim" in str(_error(answer.status, answer.body))


def test_others_see_whose_job_it_is_and_why_it_waits_and_nothing_else(app, service):
    submit(app, name="secret-name", after=(7,), gpus=2)
    answer = ask(app, "GET", "/v1/jobs", uid=BO)
    for word in ("secret-name", "k1", *VALID.values()):
        assert str(word) not in answer.body.decode().replace("pending", "")
    (seen,) = map(read_job, answer.plain["jobs"])
    assert (seen.user, seen.state, seen.request.gpus, seen.reason) == ("41001", "pending", 2, "waits for a device")
    for state, held, why in (("held", ("user",), "held: user"), ("pending", (), "")):
        service.put(1, state=state, holds=held, attempt=1, reason="attempt 1 failed with exit code 3: secret.py")
        (seen,) = map(read_job, ask(app, "GET", "/v1/jobs", uid=BO).plain["jobs"])
        assert (seen.state, seen.reason) == (state, why), "how an earlier attempt ended is nobody else's business"
    service.put(1, state="failed", reason="exit code 3: /home/ann/secret.py", exit_code=3)
    (seen,) = map(read_job, ask(app, "GET", "/v1/jobs?state=ended", uid=BO).plain["jobs"])
    assert (seen.reason, seen.exit_code) == ("", -1)
    (own,) = ask(app, "GET", "/v1/jobs?state=ended", uid=ANN).plain["jobs"]
    assert read_job(own) == service.job(1)


def test_what_is_hidden_is_a_decision_about_every_field(service):
    """A field that is added to a job is either shown to all on purpose, or hidden."""
    asyncio.run(service.submit(ANN, "ann", [request(after=(3,))], "key"))
    service.put(1, exit_code=3, failures=2, samples_done=1.0, samples_total=2.0, lost_gpu_s=3.0, state="failed",
                samples_again=4.0, loader_wait_ratio=0.5, slowdown_ratio=2.0)
    job = service.job(1)
    before, after = asdict(job), asdict(redacted(job))
    hidden = {name for name in before if name != "request" and before[name] != after[name]}
    assert hidden == {
        "key", "reason", "exit_code", "failures", "samples_done", "samples_total", "lost_gpu_s", "samples_again",
        "loader_wait_ratio", "slowdown_ratio",
    }  # fmt: skip
    asked = {name for name in before["request"] if before["request"][name] != after["request"][name]}
    assert asked == {"name", "capture", "digest", "after"}
    assert set(before) - hidden == {
        "id", "uid", "user", "request", "array", "submitted_s", "submit_ms", "state", "holds", "attempt", "devices",
        "preemptions", "first_start_ms", "ended_ms",
    }  # fmt: skip


def test_jobs_come_by_state_user_and_page(app, service):
    for number in range(5):
        submit(app, uid=ANN if number % 2 else BO, key=f"k{number}")
    service.put(2, state="finished")

    def ids(query):
        return [job["id"] for job in ask(app, "GET", f"/v1/jobs{query}", uid=ANN).plain["jobs"]]

    assert ids("") == [1, 3, 4, 5]
    assert ids("?state=ended") == [2]
    assert ids("?state=all&limit=2") == [4, 5]
    assert ids("?state=all&limit=2&before=4") == [2, 3]
    assert ids("?state=all&user=41001") == [2, 4]
    for wrong in ("?limit=0", "?limit=1001", "?state=x", "?before=x"):
        assert ask(app, "GET", f"/v1/jobs{wrong}", uid=ANN).status == 422


def test_a_field_that_is_not_known_or_missing_does_not_stop_a_reader(service):
    asyncio.run(service.submit(ANN, "ann", [request(after=(3,), sizes=(1, 2), ranks="per-gpu")], "key"))
    plain = plain_job(service.job(1))
    assert read_job(json.loads(json.dumps(plain))) == service.job(1)
    newer = {**plain, "colour": 1, "request": {**plain["request"], "colour": 1}}
    assert read_job(newer) == service.job(1)
    del plain["lost_gpu_s"]
    assert read_job(plain) == service.job(1)


def test_who_is_let_in_hears_why_nothing_can_be_written_and_nobody_else():
    service = KeepsJobs()
    app = create_app(service, Admission(owner=OWNER, allowed=frozenset({ANN})))
    service.trouble = "cannot write /d\u00e9: it is full"
    for target in ("/v1/status", "/v1/jobs/9", "/healthz"):
        for uid in (ANN, BO, None):
            heard = ask(app, "GET", target, uid=uid).headers.get("brim-trouble")
            is_told = uid == ANN and target != "/healthz"
            assert heard == ("cannot write /d\\xe9: it is full" if is_told else None), (target, uid)
    service.trouble = ""
    assert "brim-trouble" not in ask(app, "GET", "/v1/status", uid=ANN).headers


def test_metrics_name_no_user_and_no_job(app, service):
    submit(app, name="secret-name")
    service.put(1, first_start_ms=31_000, preemptions=2, lost_gpu_s=1.5)
    service.put(1, state="running", devices=(0, 1), loader_wait_ratio=0.25)
    text = ask(app, "GET", "/metrics", uid=BO).body.decode()
    assert 'brim_jobs{class="regular",state="running"} 1.0' in text
    assert "brim_devices_waiting_for_data 0.5" in text
    assert 'brim_queue_wait_seconds_bucket{le="10.0"} 0.0' in text
    assert 'brim_queue_wait_seconds_bucket{le="60.0"} 1.0' in text
    assert "brim_preemptions_total 2.0" in text
    assert "brim_lost_work_gpu_seconds_total 1.5" in text
    assert 'brim_devices{state="open"} 1.0' in text
    assert "secret-name" not in text
    assert "41001" not in text


def test_an_error_of_our_own_is_a_500_that_tells_nothing(app, service, caplog):
    service.status = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):  # uvicorn logs it; the answer was sent before
        ask(app, "GET", "/v1/status", uid=ANN)


def test_a_job_that_can_never_run_is_accepted_and_its_sender_is_told(app):
    answer = submit(app, gpus=9)
    assert (answer.status, answer.plain["ids"]) == (201, [1])
    assert answer.plain["impossible"] == {"1": "it needs 9 GPUs, the cluster has 2"}
    assert submit(app, key="k2").plain["impossible"] == {}


def test_a_dry_run_stores_nothing(app, service):
    answer = ask(app, "POST", "/v1/dry-run", [request(gpus=2).record(), request().record()], uid=ANN)
    assert (answer.status, answer.plain["devices"]) == (200, [[0, 1], []])
    assert "1 job would wait" in answer.plain["text"]
    refused = ask(app, "POST", "/v1/dry-run", request(gpus=9).record(), uid=ANN)
    assert (refused.status, refused.plain["detail"]) == (
        422, "job train could never run: it needs 9 GPUs, the cluster has 2"
    )
    missing = ask(app, "POST", "/v1/dry-run", request(after=(7,)).record(), uid=ANN)
    assert (missing.status, missing.plain["detail"]) == (404, "job 7 does not exist")
    assert ask(app, "POST", "/v1/dry-run", {"name": "x"}, uid=ANN).status == 422
    assert not service.jobs()


def test_an_explanation_has_what_was_tried(app):
    submit(app, hold=True)
    answer = ask(app, "GET", "/v1/jobs/1/explain", uid=ANN).plain
    assert answer["blockers"] == [{"kind": "hold", "text": "it is held until it is released", "jobs": []}]
    assert answer["remedies"] == [{
        "kind": "release", "text": "release it: brim release 1", "waits": False, "devices": [0], "preempts": [],
        "delays": [],
    }]
    assert answer["tried"] == 1
    answer = ask(app, "GET", "/v1/jobs/1/explain?changes=false", uid=ANN).plain
    assert (answer["text"], answer["tried"]) == ("job 1 is as it is.", 0)


def test_an_explanation_tells_of_other_users_jobs_no_more_than_the_list_does(app):
    submit(app, uid=BO, name="secret-name", gpus=2)
    submit(app, gpus=1)
    told = ask(app, "GET", "/v1/jobs/2/explain", uid=ANN)
    assert told.status == 200
    assert "secret-name" not in json.dumps(told.plain)


def test_a_forecast_says_what_is_missing_and_how_good_others_were(app, service):
    submit(app, hold=True)
    submit(app, key="k2", time_limit_s=60)
    submit(app, uid=BO, key="k3", name="secret-name")
    answer = ask(app, "GET", "/v1/eta", uid=ANN)
    assert answer.status == 200
    assert [(one["job"], one["missing"]) for one in answer.plain["forecasts"]] == [(1, "it is held: user"), (2, "")]
    assert answer.plain["forecasts"][1]["start_s"] == [0, 2]
    assert answer.plain["hits"] == {"jobs": 3, "hits": 2}
    assert service.noted == {2: StartForecast(5_000, 5_000, 7_000, first_ms=5_000, last_ms=7_000)}
    assert [one["job"] for one in ask(app, "GET", "/v1/eta?job=2", uid=ANN).plain["forecasts"]] == [2]
    assert ask(app, "GET", "/v1/eta", uid=OWNER).plain["forecasts"] == [], "without ids, of one's own jobs"
    assert len(ask(app, "GET", "/v1/eta?job=1&job=2&job=3", uid=OWNER).plain["forecasts"]) == 3
    other = ask(app, "GET", "/v1/eta?job=2&job=3", uid=ANN)
    assert (other.status, other.plain["detail"]) == (404, "there is no job 3 of yours")
    service.put(2, state="finished", ended_ms=1)
    ended = ask(app, "GET", "/v1/eta?job=2", uid=ANN)
    assert (ended.status, ended.plain["detail"]) == (403, "job 2 has ended as finished: there is nothing to forecast")
    assert ask(app, "GET", "/v1/eta?job=x", uid=ANN).status == 422
