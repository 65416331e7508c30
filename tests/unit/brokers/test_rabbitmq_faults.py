"""From the driver's exceptions to ours."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from aiormq.exceptions import (
    AMQPConnectionError,
    ChannelAccessRefused,
    ChannelInvalidStateError,
    ChannelPreconditionFailed,
    InvalidFrameError,
    ProbableAuthenticationError,
)

from taskframework.brokers.rabbitmq import RabbitBroker
from taskframework.brokers.rabbitmq.connection import Connector
from taskframework.brokers.rabbitmq.faults import driver_errors, translate_error
from taskframework.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConfigurationError,
    TaskframeworkError,
    TopologyMismatchError,
)
from taskframework.settings.servers import BrokerSettings

_QUEUE = (
    "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'tasks.it's.normal' in vhost '/': "
    "received none but current is the value '5' of type 'signedint'"
)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (AMQPConnectionError(111, "refused"), BrokerUnavailableError, "refused"),
        (ConnectionResetError("reset"), BrokerUnavailableError, "reset"),
        (TimeoutError(), BrokerUnavailableError, "no answer in time"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong"), BrokerUnavailableError, "does not use TLS at this port"),
        (ssl.SSLError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] no"), BrokerUnavailableError, "Set broker.ca_file"),
        (ssl.SSLError(1, "VERIFY_FAILED: certificate has expired"), BrokerUnavailableError, "Renew the server's"),
        (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]"), BrokerUnavailableError, "set broker.certificate"),
        (ssl.SSLError(1, "[X509: KEY_VALUES_MISMATCH] no"), BrokerUnavailableError, "is not the key of"),
        (
            AMQPConnectionError("Server connection reset: ConnectionResetError(104, 'Connection reset by peer')"),
            BrokerUnavailableError,
            "needs amqps://, and broker.certificate",
        ),
        (ChannelInvalidStateError("closed"), BrokerUnavailableError, "closed"),
        (
            ChannelInvalidStateError('<Connection: "amqp://u:******@h/v" at 0x7fa73460aee0> closed'),
            BrokerUnavailableError,
            ": the connection is closed.",
        ),
        (
            ProbableAuthenticationError("ACCESS_REFUSED"),
            BrokerUnavailableError,
            "password is wrong. Correct broker.url",
        ),
        (
            InvalidFrameError("Expected one of ['Connection.OpenOk'], got <Connection.Close object at 0x1>"),
            BrokerUnavailableError,
            "virtual host does not exist",
        ),
        (ChannelAccessRefused("ACCESS_REFUSED - configure access"), BrokerError, "topology apply"),
        (ChannelPreconditionFailed("PRECONDITION_FAILED - unknown delivery tag 1"), BrokerUnavailableError, "unknown"),
        (Exception(), BrokerUnavailableError, "channel was closed"),
        (StopAsyncIteration(), BrokerUnavailableError, "connection was closed"),
    ],
)
def test_each_driver_error_becomes_its_own_error_with_its_text(
    error: Exception, kind: type[BrokerError], text: str
) -> None:
    with pytest.raises(kind, match=r"RabbitMQ: testing:") as caught, driver_errors("testing"):
        raise error
    assert type(caught.value) is kind
    assert text in str(caught.value)
    assert caught.value.__cause__ is error


def test_a_mismatch_names_the_queue_and_the_argument() -> None:
    error = translate_error(ChannelPreconditionFailed(_QUEUE), "declaring")
    assert isinstance(error, TopologyMismatchError)
    assert error.name == "tasks.it's.normal"
    assert error.detail == ("argument x-max-length: received none but current is the value '5' of type 'signedint'")


@pytest.mark.parametrize("error", [KeyError("a bug"), TypeError("a bug"), TaskframeworkError("ours")])
def test_bugs_and_our_own_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, driver_errors("testing"):
        raise error
    assert caught.value is error


async def test_a_cancellation_by_the_driver_is_a_closed_channel() -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiter.set_exception(asyncio.CancelledError())
    with pytest.raises(BrokerUnavailableError, match="channel was closed"), driver_errors("testing"):
        await waiter


async def test_a_cancellation_by_the_caller_stays_one() -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        with driver_errors("testing"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_address_that_cannot_be_read_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="percent-encode") as caught:
        RabbitBroker(BrokerSettings(url="amqp://user:s3cret/x@host/"))
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_address_is_shown_without_user_and_with_its_port() -> None:
    connector = Connector(BrokerSettings(url="amqps://user:s3cret@host/v"))
    assert (connector.where, connector.vhost) == ("host:5671", "v")
