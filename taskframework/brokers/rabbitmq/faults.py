"""Translates the driver's exceptions into the framework's errors, each with its reason and its remedy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelPreconditionFailed,
    InvalidFrameError,
    ProbableAuthenticationError,
)

from taskframework.background import is_failure
from taskframework.errors import BrokerError, BrokerUnavailableError, TopologyMismatchError
from taskframework.tls_hints import certificate_hints

_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for (?:queue|exchange) '(?P<name>.+?)' in vhost '.*?': (?P<difference>.+)"
)
#: RabbitMQ 4.3 writes "-1" for "not known" to clients without consumer cancellation; then the timeout stays unknown.
_DELIVERY_TIMED_OUT = re.compile(r"delivery acknowledgement on channel \d+ timed out\. Timeout value used: (\d+) ms")
#: How the driver names its own objects in the text of an error.
_OBJECT = re.compile(r"<(Connection|Channel): [^<>]* at 0x[0-9a-f]+>")
#: The driver does not pass on the reason of a refusal at this stage; only these two reasons are possible.
_NO_VHOST = "the virtual host does not exist, or the user may not use it"
#: Errors of connecting when only one side speaks TLS, or when the certificates are wrong, and their remedies.
_TLS_HINTS = {
    "WRONG_VERSION_NUMBER": "The server does not use TLS at this port: write amqp:// in broker.url, or its TLS port, "
    "most often 5671.",
    **certificate_hints("broker.ca_file", "broker.certificate"),
    "KEY_VALUES_MISMATCH": "broker.private_key is not the key of broker.certificate: give two that belong together.",
    "Connection reset by peer": "Check that it runs and that broker.url is right; a port for TLS, most often 5671, "
    "needs amqps://, and broker.certificate if the server requires a client certificate.",
}


@contextmanager
def driver_errors(doing: str) -> Iterator[None]:
    """Translate the driver's errors inside the block.

    Raises:
        TopologyMismatchError: a queue or an exchange exists with other arguments.
        BrokerUnavailableError: the broker is away or did not answer.
        BrokerError: the broker refused.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if not is_failure(error):
            raise
        # Nobody cancelled this task: the driver raises this to tell waiting callers that a channel was closed.
        raise BrokerUnavailableError(f"RabbitMQ: {doing}: the channel was closed.") from error
    except (AMQPError, OSError, RuntimeError) as error:
        raise translate_error(error, doing) from error
    except Exception as error:
        if type(error) not in (Exception, StopAsyncIteration):
            raise
        # The driver gives waiting callers a bare Exception when a channel closed without a reason. Its loop over frames
        # raises StopAsyncIteration when a connection ends before it is open.
        what = "channel" if type(error) is Exception else "connection"
        raise BrokerUnavailableError(f"RabbitMQ: {doing}: the {what} was closed.") from error


def translate_error(error: BaseException, doing: str) -> BrokerError:
    """Return the framework's error for an error of the driver."""
    text = _OBJECT.sub(lambda found: f"the {found[1].lower()} is", str(error) or repr(error))
    if isinstance(error, ChannelPreconditionFailed) and (found := _INEQUIVALENT.search(text)):
        return TopologyMismatchError(found["name"], f"argument {found['argument']}: {found['difference'].rstrip('.')}")
    if isinstance(error, ChannelAccessRefused):
        return BrokerError(
            f"RabbitMQ: {doing}: {text}.",
            hint="Give the user of broker.url the permission, or run `taskframework topology apply` as a user with it.",
        )
    if isinstance(error, ProbableAuthenticationError | AuthenticationError):
        return BrokerUnavailableError(
            f"RabbitMQ: {doing}: the user name or password is wrong.",
            hint="Correct broker.url; percent-encode special characters in the password.",
        )
    if isinstance(error, InvalidFrameError) and "Connection.OpenOk" in text and "Connection.Close" in text:
        return BrokerUnavailableError(
            f"RabbitMQ: {doing}: {_NO_VHOST}.",
            hint="Correct the virtual host in broker.url, or create it and give the user permissions in it.",
        )
    if isinstance(error, TimeoutError):
        return BrokerUnavailableError(f"RabbitMQ: {doing}: no answer in time.")
    hints = (hint for words, hint in _TLS_HINTS.items() if words in text)
    return BrokerUnavailableError(f"RabbitMQ: {doing}: {text.rstrip('.')}.", hint=next(hints, None))


def delivery_timeout(reason: object) -> timedelta | None:
    """Return the broker's consumer timeout, if it is why a channel was closed. RabbitMQ reports it in no other way."""
    found = _DELIVERY_TIMED_OUT.search(str(reason))
    return timedelta(milliseconds=int(found[1])) if found else None
