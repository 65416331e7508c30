"""Receives the bytes of a request body, within limits of size and time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from taskframework.api.refusals import RequestRefusedError
from taskframework.model.wording import pluralize

#: Seconds that each piece of a body may take.
_PIECE_SECONDS = 10.0
#: Bytes a second that a body needs on average, so that pieces of one byte do not keep a connection for ever.
_MIN_BYTES_PER_SECOND = 1024


async def receive_body(request: Request) -> bytearray:
    """Receive the bytes of a body. Content-Length is not trusted: it may be missing, or wrong.

    Raises:
        RequestRefusedError: if it has more than `api.max_body` bytes, or does not arrive in time.
        ClientDisconnect: if the client has left.
    """
    limit: int = request.app.state.framework.settings.api.max_body
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise _too_large(limit)
    content = bytearray()
    loop = asyncio.get_running_loop()
    started = loop.time()
    more = True
    try:
        async with asyncio.timeout(_PIECE_SECONDS) as deadline:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                content += message.get("body", b"")
                more = message.get("more_body", False)
                if len(content) > limit:
                    raise _too_large(limit)
                deadline.reschedule(_PIECE_SECONDS + min(loop.time(), started + len(content) / _MIN_BYTES_PER_SECOND))
    except TimeoutError:
        raise RequestRefusedError(
            f"The body did not arrive in time: {pluralize(len(content), 'byte')} so far.",
            hint=f"Send it in one go; a pause may last {_PIECE_SECONDS:g} seconds.",
            code="request_timeout",
        ) from None
    return content


def _too_large(limit: int) -> RequestRefusedError:
    return RequestRefusedError(
        f"The body has more than {limit:,} bytes.",
        hint="Send less: keep large data elsewhere and pass a reference, or send several requests.",
        code="body_too_large",
    )
