"""What is read of a connection against the driver's own encoder and decoder: nothing lost, changed or out of order."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from aiormq import spec
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from taskframework.brokers.rabbitmq.fast.incoming_frames import IncomingFrames
from taskframework.brokers.rabbitmq.fast.properties import read_properties
from taskframework.brokers.rabbitmq.messages import encode_properties
from taskframework.brokers.rabbitmq.wire import header_text
from tests.support.amqp import delivery_frames

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
NAMES = TEXTS.filter(lambda name: len(name.encode()) < 128)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 70_000) | st.integers(2**31 - 2, 2**32 + 1)
MOMENTS = st.integers(0, 2**32 - 1).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
SCALARS = st.one_of(
    TEXTS,
    INTEGERS,
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, width=32),
    st.binary(max_size=40).map(bytearray),
    MOMENTS,
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
TABLES = st.dictionaries(NAMES, TEXTS | INTEGERS, max_size=9) | st.dictionaries(NAMES, VALUES, max_size=5)
PROPERTIES = st.builds(
    spec.Basic.Properties,
    content_type=st.none() | TEXTS,
    content_encoding=st.none() | TEXTS,
    headers=st.none() | TABLES,
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | TEXTS,
    message_id=st.none() | TEXTS,
    timestamp=st.none() | MOMENTS,
    message_type=st.none() | TEXTS,
)


def _by_driver(payload: bytes) -> tuple[str, dict[str, str]] | None:
    """None if the driver cannot read it."""
    read = ContentHeader()
    try:
        read.unmarshal(payload)
    except Exception:
        return None
    headers = read.properties.headers or {}
    return read.properties.content_type or "", {name: header_text(value) for name, value in headers.items()}


@given(PROPERTIES)
def test_the_properties_of_a_delivery_are_what_the_driver_reads(properties: spec.Basic.Properties) -> None:
    payload = ContentHeader(properties=properties, body_size=3).marshal()
    assert read_properties(payload) == _by_driver(payload) != None  # noqa: E711 - one chain


@given(st.dictionaries(NAMES, TEXTS | INTEGERS))
def test_properties_that_we_write_are_what_the_driver_reads(headers: dict[str, str | int]) -> None:
    properties = encode_properties("application/json", headers, correlation_id=None, message_id="m")
    payload = struct.pack(">HHQ", 60, 0, 0) + properties
    assert read_properties(payload) == ("application/json", {name: str(value) for name, value in headers.items()})


@given(st.lists(st.tuples(NAMES, st.sampled_from(b"tbBsuIilLfdDSATFVx\x00?"), st.binary(max_size=12)), max_size=5))
def test_tables_of_any_type_are_what_the_driver_reads(fields: list[tuple[str, int, bytes]]) -> None:
    table = b"".join(
        bytes((len(name.encode()),)) + name.encode() + bytes((kind,)) + value for name, kind, value in fields
    )
    _same_if_readable(struct.pack(">HHQHI", 60, 0, 0, 1 << 13, len(table)) + table)


@given(PROPERTIES, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), st.integers(0, 400))
def test_damaged_properties_never_fail(
    properties: spec.Basic.Properties, damage: list[tuple[int, int]], cut: int
) -> None:
    payload = bytearray(ContentHeader(properties=properties, body_size=3).marshal())
    for place, value in damage:
        payload[place % len(payload)] = value
    _same_if_readable(bytes(payload))
    _same_if_readable(bytes(payload[: max(12, len(payload) - cut)]))


def _same_if_readable(payload: bytes) -> None:
    expected = _by_driver(payload)
    assert expected is None or read_properties(payload) == expected


class Delivered(NamedTuple):
    """What a channel was told."""

    channel: int
    tag: int
    body: bytes
    headers: dict[str, str]


class Part(NamedTuple):
    """A frame of the stream, whether it is the driver's, and the delivery that is complete with it."""

    frame: bytes
    is_foreign: bool
    completes: Delivered | None


#: Frames of one channel that belong together, and the delivery that they make, if it is one for us.
Sequence = tuple[list[bytes], Delivered | None]
OURS, FOREIGN = (1, 2, 300), (3, 4)
METHODS = [spec.Basic.ConsumeOk("c"), spec.Basic.CancelOk("c"), spec.Basic.Cancel("c"), spec.Basic.QosOk()]
SIZES = st.lists(st.integers(1, 80), min_size=1)


@st.composite
def _sequences(draw: st.DrawFn) -> Sequence:
    channel = draw(st.sampled_from([*OURS, *FOREIGN]))
    kind = draw(st.sampled_from(["deliver", "deliver", "deliver", "return", "get", "method"]))
    if kind == "method":
        return [frame.marshal(draw(st.sampled_from(METHODS)), channel)], None
    tag, body, headers = draw(
        st.tuples(st.integers(1, 2**63 - 1), st.binary(max_size=60), st.dictionaries(NAMES, TEXTS))
    )
    frame_max = 8 + draw(st.integers(1, 70))
    frames = delivery_frames(channel, tag, spec.Basic.Properties(headers={**headers}), body, frame_max)
    if kind == "return":
        frames[0] = frame.marshal(spec.Basic.Return(312, "NO_ROUTE", "e", "k"), channel)
    elif kind == "get":
        frames[0] = frame.marshal(spec.Basic.GetOk(7, False, "e", "k", 0), channel)
    elif channel in OURS:
        return frames, Delivered(channel, tag, body, headers)
    return frames, None


def _in_turns(sequences: list[Sequence], turns: list[int]) -> Iterator[Part]:
    """The frames of each channel in their order, those of different channels in any."""
    waiting: dict[int, list[Part]] = {0: [Part(frame.marshal(Heartbeat(), 0), True, None)]}
    for frames, delivered in sequences:
        (channel,) = struct.unpack_from(">H", frames[0], 1)
        waiting.setdefault(channel, []).extend(
            Part(part, delivered is None, delivered if part is frames[-1] else None) for part in frames
        )
    while waiting:
        turns = turns[1:] + turns[:1]
        channel = list(waiting)[turns[0] % len(waiting)]
        yield waiting[channel].pop(0)
        if not waiting[channel]:
            del waiting[channel]


@given(st.lists(_sequences(), max_size=12), st.lists(st.integers(0, 9), min_size=1), SIZES)
def test_every_delivery_is_handed_over_in_its_place_and_all_else_goes_on(
    sequences: list[Sequence], turns: list[int], sizes: list[int]
) -> None:
    stream = list(_in_turns(sequences, turns))
    incoming, handed, others = IncomingFrames(lambda: 0.0), list[Delivered](), b""

    def take(channel: int) -> Any:
        return lambda tag, header, body: handed.append(
            Delivered(channel, tag, body, dict(read_properties(header).headers))
        )

    for channel in OURS:
        incoming.register(channel, take(channel))
    data = b"".join(part.frame for part in stream)
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        others += incoming.split(data[at : at + size])
        at, turn = at + size, turn + 1
        # Exactly what is complete so far, so nothing is late for what comes after it.
        expected, passed = _complete(stream, at)
        assert handed == expected
        assert others == passed


def _complete(stream: list[Part], size: int) -> tuple[list[Delivered], bytes]:
    """What the first so many bytes hold."""
    handed, passed = list[Delivered](), b""
    for part in stream:
        size -= len(part.frame)
        if size < 0:
            break
        if part.is_foreign:
            passed += part.frame
        if part.completes is not None:
            handed.append(part.completes)
    return handed, passed


@given(st.binary(max_size=300), SIZES)
def test_bytes_that_are_not_amqp_go_to_the_driver_whole(noise: bytes, sizes: list[int]) -> None:
    incoming = IncomingFrames(lambda: 0.0)
    incoming.register(1, lambda *_: None)
    start = frame.marshal(ContentBody(b"x"), 2)
    data, at, others = start + b"\x04" + noise, 0, b""
    for size in sizes * (len(data) // sum(sizes) + 1):
        others += incoming.split(data[at : at + size])
        at += size
    assert others == data
