"""The client against a real server on a Unix socket, and what it says when there is none."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice

import pytest

from brim.api.auth import Admission, Caller
from brim.api.client import PAUSES_S, BusyError, Client, NoControllerError, _error
from brim.api.serve import bind_tcp, bind_unix, make_runtime_folder
from brim.errors import BrimError, ConfigError, NotFoundError, RefusedError
from brim.live.store.errors import NotAcceptedError
from tests.api.serving import serving
from tests.api.stand_in import KeepsJobs, request

ME = Admission(owner=os.getuid())
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")


@pytest.fixture(scope="module")
def served():
    service = KeepsJobs()
    with serving(service, ME) as client:
        client.service = service
        yield client


@pytest.fixture
def client(served):
    served.service.__init__()
    return served


@pytest.fixture
def _no_pauses(monkeypatch):
    monkeypatch.setattr("brim.api.client.PAUSES_S", (0.0,) * len(PAUSES_S))


def test_a_job_goes_there_and_back(client):
    asked = [request(name="a", gpus=2, after=(1, 2)), request(name="b", sizes=(1, 2, 4), gpus=2, ranks="per-gpu")]
    assert client.submit(asked) == [1, 2]
    listing = client.jobs()
    assert [job.request for job in listing.jobs] == asked
    assert (listing.now_ms, listing.jobs[0].uid) == (5_000, os.getuid())
    assert client.job(2) == listing.jobs[1]
    assert client.command("hold", [1]).jobs[0].state == "held"
    assert client.explain(1)["text"].startswith("job 1, which needs 2 GPUs, waits:\n  it is held")
    assert [one["job"] for one in client.eta()["forecasts"]] == [1, 2]
    assert [one["job"] for one in client.eta([2, 1])["forecasts"]] == [2, 1]
    assert client.nodes()[0]["user"] == "ann"
    assert client.status()["is_admin"]
    assert client.jobs(user="no such \u00fcser").jobs == ()
    assert client.is_there()


def test_a_long_queue_comes_in_pages(client, monkeypatch):
    client.submit([request()] * 7)
    for page in (1, 3, 7, 8):
        monkeypatch.setattr("brim.api.client.PAGE_MAX", page)
        assert [job.id for job in client.jobs().jobs] == list(range(1, 8))
        assert [job.id for job in client.jobs(limit=5).jobs] == list(range(3, 8))


def test_every_submission_has_a_key_of_its_own(client):
    assert client.submit([request()]) == [1]
    assert client.submit([request()]) == [2]
    assert client.submit([request()], "mine") == client.submit([request()], "mine") == [3]


def test_what_is_refused_is_the_same_error_here(client):
    client.submit([request()], "k")
    with pytest.raises(RefusedError, match="another submission"):
        client.submit([request(gpus=2)], "k")
    with pytest.raises(NotFoundError, match="no job 9 of yours"):
        client.job(9)
    with pytest.raises(ConfigError, match="dempotency-"):
        client.submit([request()], "a b")
    client.command("cancel", [1])
    changed = client.command("hold", [9, 1])
    assert [(job, type(error), str(error)) for job, error in changed.refused.items()] == [
        (9, NotFoundError, "there is no job 9 of yours"),
        (1, RefusedError, "job 1 has ended as cancelled: there is nothing to hold"),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pauses")
def test_too_long_a_submission_is_refused_as_such(client):
    with pytest.raises(ConfigError, match="Too Large"):
        client.submit([replace(request(), capture=f"{n:032x}", digest=f"{n:064x}") for n in range(40_000)])


@pytest.mark.slow
def test_a_full_disk_is_told_after_some_attempts(client):
    client.service.full = NotAcceptedError("the disk of /state is full")
    with pytest.raises(BusyError, match="disk of /state is full"):
        client.submit([request()])


def test_events_tell_what_changes(client):
    client.submit([request()])
    seen = []
    watching = threading.Thread(target=lambda: seen.extend(islice(client.events(), 2)), daemon=True)
    watching.start()
    while not client.service._watchers:
        pass
    client.command("hold", [1])
    client.command("release", [1])
    watching.join(20)
    assert [job.state for job in seen] == ["held", "pending"]


@pytest.mark.usefixtures("_no_pauses")
def test_without_a_controller_the_message_says_what_to_do(tmp_path):
    absent = Client(tmp_path / "api.sock")
    assert not absent.is_there()
    with pytest.raises(NoControllerError, match=r"there is none: start one with `brim up`, or .*`brim join USER`"):
        absent.jobs()
    with closing(socket.socket(socket.AF_UNIX)) as left:  # of a controller that was killed
        left.bind(str(tmp_path / "api.sock"))
    with pytest.raises(NoControllerError, match="refused: see `brim doctor`"):
        absent.jobs()


def answering(tmp_path, *answers):
    """A server that gives these answers, one for each connection."""
    tmp_path.mkdir(exist_ok=True)
    listener = bind_unix(tmp_path / "s", shared=False)

    def run():
        with listener:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return Client(tmp_path / "s"), thread


GOOD = b'HTTP/1.1 201 Created\r\nContent-Length: 22\r\n\r\n{"schema":1,"ids":[7]}'


@pytest.mark.usefixtures("_no_pauses")
def test_whether_a_request_that_failed_may_have_been_carried_out(client, tmp_path):
    with pytest.raises(ConfigError):
        client.submit([request()], "a b")
    assert not client.may_have_arrived
    absent = Client(tmp_path / "api.sock")
    with pytest.raises(NoControllerError):
        absent.submit([request()])
    assert not absent.may_have_arrived
    lost, thread = answering(tmp_path, b"", b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")
    with pytest.raises(BrimError):
        lost.submit([request()])
    assert lost.may_have_arrived
    thread.join()
    lost, thread = answering(tmp_path / "2", b"")
    with pytest.raises(NoControllerError, match=r"refused: see .*; it may have been accepted: look at `brim ps`"):
        lost.submit([request()])
    thread.join()


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("first", [b"", b"HTTP/1.1", b"HTTP/1.1 201 Created\r\n", GOOD[:-1]], ids=len)
def test_a_submission_whose_answer_is_lost_is_repeated(tmp_path, first):
    client, thread = answering(tmp_path, first, GOOD)
    assert client.submit([request()]) == [7]
    thread.join()


def test_what_takes_too_long_is_not_asked_for_again(tmp_path, monkeypatch):
    """A controller that hangs would be waited for five times as long as the message says."""
    for limit in ("SIMULATED_S", "TIMEOUT_S"):
        monkeypatch.setattr(f"brim.api.client.{limit}", 0.2)
    asked = []
    with bind_unix(tmp_path / "s", shared=False) as listener, ThreadPoolExecutor() as pool:
        listener.settimeout(60)

        def hang():
            with ExitStack() as connections:
                while asked[-1:] != [b"/end"]:
                    asked.append(connections.enter_context(listener.accept()[0]).recv(1 << 16).split()[1])

        hanging = pool.submit(hang)
        client = Client(tmp_path / "s")
        said = r"^the controller at .*/s has not answered in 0\.2 s: it is busy, or hangs; see `brim doctor`$"
        for question in (lambda: client.eta([7]), lambda: client.explain(7), lambda: client.dry_run([request()]),
                         lambda: client.job(7)):
            with pytest.raises(NoControllerError, match=said):
                question()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(client.path))
            last.sendall(b"GET /end")
            hanging.result()
    assert asked == [b"/v1/eta?job=7", b"/v1/jobs/7/explain?changes=true", b"/v1/dry-run", b"/v1/jobs/7", b"/end"]


def test_connections_that_ask_nothing_are_closed_and_those_far_above_the_limit_at_once(monkeypatch):
    monkeypatch.setattr("brim.api.auth.SPARE", 2)
    monkeypatch.setattr("brim.api.serve.CONNECTIONS_MAX", 3)
    for silent_s, number in ((600.0, 40), (0.5, 3)):
        monkeypatch.setattr("brim.api.auth.SILENT_S", silent_s)
        with serving(KeepsJobs(), ME) as client, ExitStack() as silent:
            others = [silent.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(number)]
            for other in others:
                other.settimeout(60)
                other.connect(str(client.path))
            closed = others[5:] or others  # more than five are too many; of these, none waits for ten minutes
            assert [other.recv(1) for other in closed] == [b""] * len(closed)
            monkeypatch.setattr("brim.api.auth.SILENT_S", 600.0)
            silent.close()
            assert client.jobs().jobs == ()


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: brim\r\n\r\n"])
def test_a_connection_that_stops_within_a_question_is_closed(monkeypatch, before):
    monkeypatch.setattr("brim.api.auth.SILENT_S", 0.5)
    with serving(KeepsJobs(), ME) as client, socket.socket(socket.AF_UNIX) as other:
        other.settimeout(60)
        other.connect(str(client.path))
        if before:
            other.sendall(before)
            assert other.recv(1 << 16).startswith(b"HTTP/1.1 200")
        other.sendall(b"GET /v1/st")
        while other.recv(1 << 16):
            pass


def test_a_controller_that_does_not_answer_in_time_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("brim.api.client.TIMEOUT_S", 0.2)
    with bind_unix(tmp_path / "s", shared=False):
        assert not Client(tmp_path / "s").is_there()


def test_another_version_or_program_is_named(tmp_path):
    newer = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"schema":2}'
    client, thread = answering(tmp_path, newer, b"SSH-2.0-OpenSSH\r\n")
    with pytest.raises(BrimError, match="schema 2, and this brim knows 1"):
        client.status()
    with pytest.raises(BrimError, match="no controller of brim"):
        client.status()
    thread.join()


def test_the_socket_is_its_users_alone_unless_others_are_allowed(tmp_path):
    for shared, mode in ((False, 0o600), (True, 0o666)):
        with bind_unix(tmp_path / "s", shared=shared):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode
    for shared, mode in ((False, 0o700), (True, 0o711)):
        make_runtime_folder(tmp_path / "run", shared=shared)
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == mode
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(RefusedError, match="is a link"):
        make_runtime_folder(tmp_path / "link", shared=False)


@ROOT
def test_a_runtime_folder_of_another_user_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 12345, 12345)
    with pytest.raises(RefusedError, match="belongs to user 12345"):
        make_runtime_folder(tmp_path / "run", shared=False)


def as_user(uid, act):
    """What ``act`` raises or returns, as text, in a process of another user."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            text = repr(act())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


@ROOT
def test_the_kernel_says_who_has_connected():
    service = KeepsJobs()
    with serving(service, Admission(owner=0, allowed=frozenset({12301, 12302})), shared=True) as client:
        assert as_user(12301, lambda: client.submit([request(name="hers")])) == "[1]"
        assert service.job(1).uid == 12301
        assert as_user(12302, lambda: client.command("cancel", [1]).refused) == (
            "{1: NotFoundError('there is no job 1 of yours')}"
        )
        assert as_user(12302, lambda: client.jobs().jobs[0].request.name) == "'-'"
        assert as_user(12303, client.jobs).startswith("RefusedError: user 12303 may not use")
        assert as_user(12301, lambda: client.command("cancel", [1]).jobs[0].state) == "'cancelled'"


def test_tcp_wants_a_token():
    caller = Caller(uid=12301, user="ann", is_admin=False, token="1")
    listener = bind_tcp(0)
    assert listener.getsockname()[0] == "127.0.0.1"

    def ask(headers):
        connection = http.client.HTTPConnection(*listener.getsockname(), timeout=20)
        with closing(connection):
            connection.request("GET", "/v1/status", headers=headers)
            return connection.getresponse().status

    with serving(KeepsJobs(), ME, recognise={"good": caller}.get, tcp=[listener]):
        assert ask({}) == 401
        assert ask({"Authorization": "Bearer bad"}) == 401
        assert ask({"Authorization": "Bearer good", "X-Forwarded-For": "1.2.3.4"}) == 200
        assert ask({"Authorization": "Bearer good", "Host": "evil.example"}) == 403


def test_the_client_imports_the_standard_library_alone():
    """And of it, nothing that takes long."""
    code = "import sys, brim.api.client; print(*{name.partition('.')[0] for name in sys.modules})"
    with os.popen(f"{sys.executable} -c \"{code}\"") as pipe:
        loaded = set(pipe.read().split())
    assert loaded - {"brim"} <= {*sys.stdlib_module_names, "__main__", "a_own", "sitecustomize", "_distutils_hack"} | {
        name for name in loaded if name.startswith(("__editable__", "_virtualenv"))
    }
    assert not loaded & {"http", "email", "ssl", "asyncio", "numpy", "urllib3"}


@pytest.mark.parametrize(("status", "detail"), [
    (404, "Not Found"), (405, "Method Not Allowed"),
    (422, "job: found the field 'common', expected one of: name, capture"),
])  # fmt: skip
def test_a_controller_that_does_not_know_a_request_is_of_another_version(status, detail):
    error = _error(status, json.dumps({"detail": detail}).encode())
    assert (error.exit_code, "of another version of brim" in str(error)) == (4, True)
