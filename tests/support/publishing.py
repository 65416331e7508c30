"""A publisher and its channel without a server: what it writes is read back, what the broker says is fed in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import aiormq
from aio_pika.abc import AbstractChannel
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.connection import BrokerConnection, Connector
from taskframework.brokers.rabbitmq.fast.incoming_frames import IncomingFrames
from taskframework.brokers.rabbitmq.fast.transport import FrameTransport
from taskframework.brokers.rabbitmq.fast.writer import FastWriter
from taskframework.brokers.rabbitmq.messages import Publication, task_publication
from taskframework.brokers.rabbitmq.publisher import PublishChannel, Publisher
from taskframework.brokers.rabbitmq.topology import Names
from taskframework.model.message import TaskMessage
from tests.support.amqp import confirm_frame, read_frames, returned_frames

CHANNEL = 1
#: Seconds that are not reached, since everything here is fed by hand.
LONG = 30.0


def publication(task_id: str = "t1") -> Publication:
    return task_publication(Names("tasks"), TaskMessage(task_id, "reports", 1), None)


class FakeConnection:
    """A connection whose alarm can be rung, and its transport."""

    def __init__(self) -> None:
        self.incoming = IncomingFrames(lambda: 0.0)
        self.lost = asyncio.Event()
        self.is_blocked = False
        self.is_closed = False
        self.pieces: list[bytes] = []

    def write(self, frames: bytes) -> None:
        self.pieces.append(frames)

    async def close(self) -> None:
        self.is_closed = True


class FakeChannel:
    """What a driver's channel has for those who publish."""

    def __init__(self, max_content_size: int = 100) -> None:
        self.close_callbacks: set[Callable[[object, BaseException | None], None]] = set()
        self.number, self.max_content_size, self.is_closed = CHANNEL, max_content_size, False


class Bench:
    """A publishing channel, its connection, and both ends of its connection."""

    def __init__(self, max_content_size: int = 100) -> None:
        self.connection, self.fake = FakeConnection(), FakeChannel(max_content_size)
        self.writer = FastWriter(
            cast(AbstractChannel, self.fake), cast(aiormq.Channel, self.fake), cast(FrameTransport, self.connection)
        )
        self.channel = PublishChannel(
            cast(BrokerConnection, self.connection), cast(AbstractChannel, self.fake), self.writer
        )

    async def sends(self, *publications: Publication, seconds: float = LONG) -> list[asyncio.Task[None]]:
        """Publish together, and let it get to the socket."""
        deadline = asyncio.get_running_loop().time() + seconds
        sending = [asyncio.create_task(self.channel.send(one, deadline)) for one in publications]
        await settle()
        return sending

    def hears(self, *frames: bytes) -> bytes:
        """What the driver gets of the broker's frames."""
        return self.connection.incoming.split(b"".join(frames))

    def confirms(self, tag: int, *, multiple: bool = False, is_taken: bool = True) -> None:
        assert self.hears(confirm_frame(CHANNEL, tag, multiple=multiple, is_taken=is_taken)) == b""

    def returns(self, message_id: str | None) -> None:
        assert self.hears(*returned_frames(CHANNEL, message_id)) == b""

    def closes(self, reason: BaseException | None) -> None:
        """The driver says that the channel is closed."""
        self.fake.is_closed = True
        for callback in list(self.fake.close_callbacks):
            callback(None, reason)

    @property
    def sent(self) -> list[Any]:
        """The frames that were written."""
        return read_frames(b"".join(self.connection.pieces))

    @property
    def sent_headers(self) -> list[ContentHeader]:
        return [part for part in self.sent if isinstance(part, ContentHeader)]

    @property
    def unconfirmed(self) -> list[int]:
        """The numbers of what the broker still owes a confirm."""
        return list(self.writer._unconfirmed)


class _Where:
    where = "here:5672"


class FedPublisher(Publisher):
    """Its channels are fed by hand, and come when they may."""

    def __init__(self, seconds: float, max_unconfirmed: int = 10) -> None:
        super().__init__(
            cast(Connector, _Where()),
            self._prepared,
            timeout=timedelta(seconds=seconds),
            max_unconfirmed=max_unconfirmed,
        )
        self.benches: list[Bench] = []
        self.may_connect = asyncio.Event()
        self.may_connect.set()
        self.came = asyncio.Event()

    async def _prepared(self) -> None:
        pass

    async def _establish(self) -> PublishChannel:
        await self.may_connect.wait()
        self.benches.append(Bench())
        self.came.set()
        return self.benches[-1].channel

    async def begins(self, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.publish(publication(f"t{number}"))) for number in range(count)]
        await settle()
        return tasks

    @property
    def free_places(self) -> int:
        return self._publish_slots._value


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)
