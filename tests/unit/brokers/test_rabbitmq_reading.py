"""Reading a connection: bytes that are wrong, the end of a channel, signs of life, and the way from the socket."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from aiormq import spec
from aiormq.abc import SSLCerts
from aiormq.connection import FrameReceiver, SSLContextProvider
from aiormq.exceptions import AMQPConnectionError, AMQPError
from pamqp import frame
from pamqp.body import ContentBody
from pamqp.exceptions import UnmarshalingException
from pamqp.header import ProtocolHeader
from pamqp.heartbeat import Heartbeat
from yarl import URL

from taskframework.brokers.rabbitmq.fast.incoming_frames import IncomingFrames
from taskframework.brokers.rabbitmq.fast.properties import read_properties
from taskframework.brokers.rabbitmq.fast.transport import FrameTransport
from tests.support.amqp import delivery_frames

HEARTBEAT = frame.marshal(Heartbeat(), 0)


class Bench:
    """A connection with channel 1 registered."""

    def __init__(self) -> None:
        self.now = 0.0
        self.incoming = IncomingFrames(lambda: self.now)
        self.tags: list[int] = []
        self.incoming.register(1, self.take)

    def take(self, tag: int, header: bytes, body: bytes) -> None:
        assert body == b"body"
        self.tags.append(tag)


def frames(tag: int, channel: int = 1) -> list[bytes]:
    return delivery_frames(channel, tag, spec.Basic.Properties(), b"body")


def delivery(tag: int, channel: int = 1) -> bytes:
    return b"".join(frames(tag, channel))


@pytest.mark.parametrize(
    "bad",
    [
        frames(2)[0][:-1] + b"\0",
        b"\x05" + frames(2)[0][1:],
        b"\x05",
        frame.marshal(ContentBody(b""), 1),
        b"\x08\0\0\0\0\0\x01x\xce",
        ProtocolHeader().marshal(),
    ],
    ids=["end mark", "kind", "kind of what is incomplete", "empty frame", "full heartbeat", "another protocol"],
)
async def test_a_bad_frame_goes_to_the_driver_and_nothing_after_it_is_believed(bad: bytes) -> None:
    bench = Bench()
    assert bench.incoming.split(delivery(1) + HEARTBEAT + bad) == HEARTBEAT + bad
    assert bench.incoming.split(delivery(3)) == delivery(3)
    assert bench.tags == [1]


@pytest.mark.parametrize(
    "following",
    [
        [delivery(3)],
        [frames(3)[0], delivery(3)],
        [*frames(3)[:2], delivery(3)],
        [frame.marshal(spec.Channel.Close(404, "gone", 0, 0), 1), delivery(3)],
    ],
    ids=["a body first", "two methods", "no body", "closed"],
)
def test_frames_in_an_impossible_order_go_to_the_driver_all(following: list[bytes]) -> None:
    bench = Bench()
    beginning = frames(2)[0]
    others = [bench.incoming.split(part) for part in (delivery(1), beginning, delivery(9, channel=2), *following)]
    assert b"".join(others) == delivery(9, channel=2) + beginning + b"".join(following)
    assert bench.tags == [1]


def _cut(whole: bytes, size: int) -> bytes:
    """A frame whose payload has only so many bytes, and is well formed otherwise."""
    return whole[:3] + size.to_bytes(4, "big") + whole[7 : 7 + size] + b"\xce"


#: Class, method, a consumer's tag of 7 bytes, and of the rest what is read here: the tag of the delivery, a truth value
#: and the lengths of two names.
@pytest.mark.parametrize("size", range(4, 4 + 8 + 8 + 3))
@pytest.mark.parametrize("are_apart", [False, True])
def test_a_delivery_that_is_too_short_goes_to_the_driver_whole(size: int, are_apart: bool) -> None:
    bench = Bench()
    method, *content = frames(2)
    short = _cut(method, size)
    with pytest.raises(UnmarshalingException):
        frame.unmarshal(short)
    parts = [delivery(1), short, HEARTBEAT, *content, delivery(3)]
    others = b"".join(map(bench.incoming.split, parts) if are_apart else [bench.incoming.split(b"".join(parts))])
    assert others == HEARTBEAT + short + b"".join(content) + delivery(3)
    assert bench.tags == [1]


@pytest.mark.parametrize("size", range(1, 12))
def test_a_delivery_with_a_header_that_is_too_short_goes_to_the_driver_whole(size: int) -> None:
    bench = Bench()
    method, header, body = frames(2)
    short = _cut(header, size)
    with pytest.raises(UnmarshalingException):
        frame.unmarshal(short)
    assert bench.incoming.split(delivery(1) + method + short + body) == method + short + body
    assert bench.tags == [1]


@pytest.mark.parametrize(
    "end",
    [spec.Channel.Close(406, "late", 0, 0), spec.Channel.CloseOk(), spec.Channel.OpenOk()],
    ids=lambda end: end.name,
)
def test_the_next_channel_of_the_same_number_inherits_nothing(end: spec.Channel.Close) -> None:
    bench = Bench()
    closing = frame.marshal(end, 1)
    assert bench.incoming.split(delivery(1) + closing + delivery(2)) == closing + delivery(2)
    assert bench.tags == [1]
    bench.incoming.register(1, bench.take)
    assert bench.incoming.split(delivery(3)) == b""
    assert bench.tags == [1, 3]


def test_a_delivery_that_cannot_be_taken_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    wrong_body = delivery_frames(1, 1, spec.Basic.Properties(), b"unexpected")
    assert bench.incoming.split(b"".join(wrong_body) + delivery(2)) == b""
    assert bench.tags == [2]
    assert [record.message for record in caplog.records] == ["a delivery could not be taken"]


def test_a_body_of_many_frames_in_small_pieces_is_put_together() -> None:
    got: list[bytes] = []
    incoming = IncomingFrames()
    incoming.register(1, lambda tag, header, body: got.append(body))
    body = bytes(range(256)) * 1000
    data = b"".join(delivery_frames(1, 1, spec.Basic.Properties(), body, frame_max=40_000))
    for at in range(0, len(data), 1400):
        assert incoming.split(data[at : at + 1400]) == b""
    assert got == [body]


def test_the_driver_sees_a_heartbeat_a_second_while_only_deliveries_come() -> None:
    bench = Bench()
    first, second = frames(4)[0], frames(4)[1:]
    steps = [
        (0.5, delivery(1), b""),
        (1.0, delivery(2), HEARTBEAT),
        (1.9, delivery(3), b""),
        (2.0, first + second[0][:4], HEARTBEAT),
        (4.0, second[0][4:6], b""),  # nothing whole: it may as well be the driver's
        (5.0, second[0][6:] + second[1], HEARTBEAT),
        (7.0, b"".join(frames(5)[:2]) + delivery(1, channel=2), delivery(1, channel=2)),
        (7.5, frames(5)[2], b""),
    ]
    for now, data, others in steps:
        bench.now = now
        assert bench.incoming.split(data) == others
    assert bench.tags == [1, 2, 3, 4, 5]


def test_before_the_first_delivery_no_heartbeat_is_invented() -> None:
    bench = Bench()
    bench.now = 10.0
    start = frame.marshal(spec.Connection.Start(), 0)
    assert bench.incoming.split(start[:20]) == b""
    assert bench.incoming.split(start[20:]) == start


def test_properties_that_nobody_can_read_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    latin = b"\0\x3c\0\0" + bytes(8) + b"\x20\0" + b"\0\0\0\x08\x01\xe4S\0\0\0\x01v"
    far = b"\0\x3c\0\0" + bytes(8) + b"\x20\0" + b"\0\0\0\x0b\x01aT" + b"\x7f" * 8
    cut = b"\0\x3c\0\0" + bytes(8) + b"\x20\0" + b"\0\0\0\x0f\x01aS\0\0\0\x08v"
    for header in (latin, far, cut, b""):
        assert read_properties(header) == ("", {})
    assert len(caplog.records) == 4


def test_flags_of_more_than_one_word_are_understood() -> None:
    assert read_properties(b"\0\x3c\0\0" + bytes(8) + b"\x80\x01\0\0\x03a/b") == ("a/b", {})


async def _seen(reader: asyncio.StreamReader) -> list[str]:
    """The names of the frames that the driver reads, and its last error."""
    receiver, seen = FrameReceiver(reader), list[str]()
    try:
        while True:
            seen.append((await receiver.get_frame())[2].name)
    except (AMQPError, StopAsyncIteration) as error:
        return [*seen, repr(error)]


def _certificates(authority: str | None = None) -> SSLContextProvider:
    certificates = SSLCerts(cert=None, key=None, capath=None, cafile=authority, cadata=None, verify=True)
    return SSLContextProvider(ssl_context=None, ssl_certs=certificates, loop=asyncio.get_running_loop())


async def _received(
    data: bytes, context: ssl.SSLContext | None = None, authority: str | None = None
) -> tuple[list[int], list[str]]:
    """The deliveries, and the names of the frames and errors that the driver sees."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    transport, tags = FrameTransport(), list[int]()
    transport.incoming.register(1, lambda tag, header, body: tags.append(tag))
    url = URL(f"{'amqps' if context else 'amqp'}://localhost:{port}/")
    async with server:
        reader, writer = await transport.create(url, ssl_context_provider=_certificates(authority))
        seen = await _seen(reader)
        writer.close()
        await writer.wait_closed()
    return tags, seen


@pytest.mark.parametrize(
    "end",
    [
        frames(2)[0][:5],
        frames(2)[0][:20],
        frames(2)[0][:-1] + b"\0",
        b"\x05" + frames(2)[0][1:],
        ProtocolHeader().marshal(),
    ],
    ids=["cut in its head", "cut", "end mark", "kind", "another protocol"],
)
async def test_a_bad_end_of_the_connection_is_the_same_to_the_driver(end: bytes) -> None:
    plain = asyncio.StreamReader()
    plain.feed_data(HEARTBEAT + end)
    plain.feed_eof()
    tags, seen = await _received(HEARTBEAT + delivery(1) + end)
    assert tags == [1]
    assert seen == await _seen(plain)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
async def test_deliveries_are_read_by_tls_too(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    tags, seen = await _received(HEARTBEAT + delivery(1) + HEARTBEAT, context, str(certificate))
    assert (tags, seen[:2]) == ([1], ["Heartbeat", "Heartbeat"])


async def test_a_refused_connection_is_the_driver_s_error() -> None:
    server = await asyncio.start_server(lambda *_: None, "localhost", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(AMQPConnectionError):
        await FrameTransport().create(URL(f"amqp://localhost:{port}/"), ssl_context_provider=_certificates())
