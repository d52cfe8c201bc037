"""The port of a gang is its own from its begin on, also while nothing listens there yet."""

import socket

import pytest

from brim.gang import environment
from brim.gang.environment import HOST, port_of, reserve_port
from tests.ports import free_port


def test_two_gangs_never_get_the_same_port(monkeypatch):
    monkeypatch.setattr(environment, "_PORTS", range((first := free_port()), first + 1))
    with reserve_port() as reserved:
        assert port_of(reserved) == first
        with pytest.raises(OSError, match="no free port in 100 attempts"):
            reserve_port()
    assert free_port() == first


def test_rank_0_listens_on_the_port_that_is_kept():
    torch = pytest.importorskip("torch.distributed")
    with reserve_port() as reserved:
        store = torch.TCPStore(HOST, port_of(reserved), 1, is_master=True)
        store.set("key", "value")
        assert store.get("key") == b"value"
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, port_of(reserved)))
