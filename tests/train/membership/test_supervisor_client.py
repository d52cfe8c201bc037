"""Supervisors that a rank does not understand or cannot follow."""

import math
import os
import socket
import sys
import threading

import pytest

from brim.gang.codec import Decoder, decode, encode
from brim.gang.messages import Error, Failed, Finished, FormGroup, TrainingProgress, TuneSettings
from brim.train.membership import supervisor_client
from brim.train.membership.supervisor_client import SupervisorClient
from tests.train.gangs import on_ranks
from tests.train.test_half_precision import mixed


def misled(folder):
    """A supervisor of a future version, then one that talks nonsense, then one of ours."""
    os.environ.update(BRIM_CONTROL=f"{folder}/s", BRIM_ID="0")
    server = socket.create_server(f"{folder}/s", family=socket.AF_UNIX)
    said = []

    def serve():
        future, _ = server.accept()
        future.sendall(b'{"v": 99, "type": "form"}\n')
        ours, _ = server.accept()  # it gives that one up, and comes again
        ours.sendall(b"\xff nonsense\n[]\n" + b'{"v": 1, "type": "dance"}\n' + encode(FormGroup(1, (0,), 0, 1)))
        for connection in (future, ours):
            decoder = Decoder()
            while data := connection.recv(65_536):  # until it hangs up
                said.extend(decoder.feed(data))

    thread = threading.Thread(target=serve)
    thread.start()
    found = mixed("autocast")
    thread.join(20)
    return found, [message.detail for message in said if isinstance(message, Error)]


def test_what_a_rank_cannot_understand_is_answered_and_does_no_harm(tmp_path):
    ((found, said),) = on_ranks(1, misled, tmp_path)
    assert [found] == on_ranks(1, mixed, "autocast")
    assert "found protocol version 99" in said[0]
    assert any("expected one JSON object" in line for line in said)


def mistuned(folder):
    """Numbers that the loader refuses: the run goes on with those it has."""
    os.environ.update(BRIM_CONTROL=f"{folder}/s", BRIM_ID="0")
    server = socket.create_server(f"{folder}/s", family=socket.AF_UNIX)
    said = []

    def serve():
        ours, _ = server.accept()
        ours.sendall(encode(FormGroup(1, (0,), 0, 1)) + encode(TuneSettings(2, 0, 100_000, 7_777_777)))
        decoder = Decoder()
        while data := ours.recv(65_536):
            said.extend(decoder.feed(data))

    thread = threading.Thread(target=serve)
    thread.start()
    found = mixed("autocast")
    thread.join(20)
    return found, sorted(message.detail.partition("=")[0] for message in said if isinstance(message, Error))


def test_a_tune_that_cannot_be_followed_is_answered_and_does_no_harm(tmp_path):
    ((found, said),) = on_ranks(1, mistuned, tmp_path)
    assert [found] == on_ranks(1, mixed, "autocast")
    assert said == ["global_batch", "prefetch", "workers"]


@pytest.mark.parametrize(("loss", "told"), [
    (math.nan, sys.float_info.max), (math.inf, sys.float_info.max), (-math.inf, sys.float_info.max), (0.5, 0.5),
    (None, None),
])
def test_a_loss_that_is_not_finite_is_told_and_not_left_out(tmp_path, loss, told):
    client, sent = SupervisorClient(str(tmp_path / "s"), 0), []
    client.send = sent.append
    client.progress(3, 24, lambda: loss)
    assert [decode(encode(message)) for message in sent] == [TrainingProgress(3, 24, told)]


def test_a_message_that_was_cut_off_is_followed_by_a_new_connection_and_spoils_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_client, "TICK_S", 0.05)
    with socket.create_server(f"{tmp_path}/s", family=socket.AF_UNIX) as server:
        server.settimeout(60)
        client = SupervisorClient(f"{tmp_path}/s", 0)
        busy, _ = server.accept()
        assert not client.send(Failed("x" * 10_000_000))  # of which it reads nothing for a while
        ours, _ = server.accept()
        assert client.send(Finished(1, True))
        client.close()
        with ours, busy:
            received = b"".join(iter(lambda: ours.recv(65_536), b""))
    assert list(Decoder().feed(received))[-1] == Finished(1, True)
