"""A message arrives as it was sent; a line that is no message is answered, and harms nobody."""

import json
import math
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.gang import codec
from brim.gang.codec import LINE_BYTES_MAX, Decoder, ProtocolError, decode, encode
from brim.gang.messages import FormGroup, Hello, Message, Ready, Response, TrainingProgress, TuneSettings

KINDS = Message.__args__
VALUES = {
    int: st.integers(0, 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=20),
    bool: st.booleans(),
    tuple[int, ...]: st.lists(st.integers(0, 99), max_size=5).map(tuple),
    int | None: st.none() | st.integers(),
    float | None: st.none() | st.floats(allow_nan=False, allow_infinity=False),
}


def built(kind):
    hints = codec._GANG.hints[kind]
    return st.builds(kind, **{f.name: VALUES[hints[f.name]] for f in fields(kind) if hints[f.name] in VALUES})


BUILT = {kind: built(kind) for kind in KINDS}


def messages():
    return st.one_of(list(BUILT.values()))


@given(st.lists(messages(), max_size=5), st.data())
def test_messages_arrive_however_the_bytes_are_cut(sent, data):
    stream = b"".join(encode(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder, received = Decoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
    assert received == sent


def is_object(line):
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@given(st.lists(st.binary(max_size=40).filter(lambda line: not is_object(line)), max_size=5))
def test_invalid_lines_never_raise_and_what_follows_is_read(lines):
    decoder = Decoder()
    rubbish = [line.replace(b"\n", b" ") for line in lines]
    received = list(decoder.feed(b"\n".join([*rubbish, encode(Hello(1, 2))])))
    assert received[-1] == Hello(1, 2)
    assert all(isinstance(error, ProtocolError) and not error.fatal for error in received[:-1])


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(ANY, st.sampled_from(KINDS), st.data())
def test_fields_of_the_wrong_kind_are_errors_or_a_message_of_the_declared_kinds(value, kind, data):
    if not fields(kind):
        return
    good = json.loads(encode(data.draw(BUILT[kind])))
    good[data.draw(st.sampled_from(fields(kind))).name] = value
    try:
        message = decode(json.dumps(good).encode())
    except ProtocolError:
        return
    assert decode(encode(message)) == message


def test_unknown_fields_are_ignored():
    assert decode(b'{"v":1,"type":"hello","id":1,"pid":2,"colour":"red"}') == Hello(1, 2)


def test_fields_with_a_default_may_be_left_out():
    assert decode(b'{"v":1,"type":"ready","id":1}') == Ready(1)


def test_another_version_is_fatal_and_names_both():
    decoder = Decoder()
    (error,) = decoder.feed(b'{"v":2,"type":"hello","id":1,"pid":2}\n' + encode(Hello(1, 2)))
    assert isinstance(error, ProtocolError)
    assert error.fatal
    assert "2" in error.detail
    assert "1" in error.detail
    assert list(decoder.feed(encode(Hello(1, 2)))) == []


@pytest.mark.parametrize(("line", "expected"), [
    (b"[]", "JSON object"), (b"nonsense", "JSON object"), (b'{"type":"hello"}', "version"),
    (b'{"v":true,"type":"hello"}', "version"), (b'{"v":1}', "type"), (b'{"v":1,"type":["x"]}', "type"),
    (b'{"v":1,"type":"dance"}', "one of: form_group"), (b'{"v":1,"type":"hello","id":1}', "found no pid"),
    (b'{"v":1,"type":"hello","id":true,"pid":1}', "hello.id: found True, expected int"),
    (b'{"v":1,"type":"form_group","generation":1,"members":[1,"2"],"leader":1,"command":1}', "form_group.members"),
    (b"[" * 100_000, "JSON object"),
    (b'{"v":1,"type":"training_progress","step":1,"samples":1,"loss":NaN}', "finite numbers"),
    (b'{"v":1,"type":"training_progress","step":1,"samples":1,"loss":1e999}', "finite numbers"),
])  # fmt: skip
def test_errors_say_what_was_found_and_expected(line, expected):
    with pytest.raises(ProtocolError) as caught:
        decode(line)
    assert expected in caught.value.detail
    assert len(caught.value.detail) < 600


def test_a_line_without_end_is_fatal_and_not_kept():
    decoder = Decoder()
    received = []
    for _ in range(LINE_BYTES_MAX // 65536 + 2):
        received += decoder.feed(b"x" * 65536)
    assert [error.fatal for error in received] == [True]
    assert not decoder._rest


def test_a_loss_that_is_not_a_number_is_sent_as_null():
    assert decode(encode(TrainingProgress(1, 2, math.nan))) == TrainingProgress(1, 2, None)
    assert decode(encode(TuneSettings(1))) == TuneSettings(1)
    assert decode(encode(Response(True, "x", {"ranks": [1]}))) == Response(True, "x", {"ranks": [1]})
    assert decode(encode(FormGroup(1, (2, 3), 2, 4))) == FormGroup(1, (2, 3), 2, 4)


def test_the_table_of_messages_is_complete():
    text = (Path(__file__).parents[2] / "docs" / "decisions" / "0010-inside-the-job.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\|", text.partition("### Messages")[2], re.MULTILINE)
    in_docs = {(name, frozenset(re.findall(r"`(\w+)`", names))) for name, names in rows}
    kinds = codec._GANG.kinds
    assert in_docs == {(name, frozenset(field.name for field in fields(kind))) for name, kind in kinds.items()}
