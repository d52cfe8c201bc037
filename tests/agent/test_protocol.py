"""Messages between controller and agent arrive as they were sent; a line that is none harms nobody."""

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.agent.protocol import ORDERS, REPORTS, AttemptProgress, StartAttempt
from brim.gang.codec import ProtocolError

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    int: st.integers(-1, 2**53), float: NUMBERS, str: st.text(max_size=9), bool: st.booleans(),
    tuple[int, ...]: st.lists(st.integers(0, 99), max_size=4).map(tuple),
    tuple[str, ...]: st.lists(st.text(max_size=9), max_size=4).map(tuple),
    int | None: st.none() | st.integers(), float | None: st.none() | NUMBERS,
}  # fmt: skip


def messages(codec):
    return st.one_of([
        st.builds(kind, **{field.name: VALUES[hints[field.name]] for field in fields(kind)})
        for kind, hints in codec.hints.items()
    ])


@pytest.mark.parametrize("codec", [ORDERS, REPORTS])
@given(data=st.data())
def test_messages_arrive_as_they_were_sent(codec, data):
    sent = data.draw(st.lists(messages(codec), max_size=4))
    assert list(codec.decoder().feed(b"".join(map(codec.encode, sent)))) == sent


def test_a_number_that_is_not_finite_arrives_as_unknown():
    line = REPORTS.encode(AttemptProgress(job=1, attempt=1, ranks=2, loss=math.nan))
    assert REPORTS.decode(line).loss is None


def test_orders_and_reports_are_two_protocols():
    order = StartAttempt(job=1, attempt=1, sequence=1, capture="", digest="", devices=(0,))
    with pytest.raises(ProtocolError, match="found type 'start_attempt', expected one of: agent_hello"):
        REPORTS.decode(ORDERS.encode(order))


def test_a_newer_peer_may_send_more():
    line = ORDERS.encode(StartAttempt(job=1, attempt=1, sequence=1, capture="", digest="", devices=()))
    assert ORDERS.decode(line.replace(b'"job":1', b'"job":1,"mood":"good"')).job == 1
