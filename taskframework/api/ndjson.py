"""Newline-delimited JSON: a body with one value on each line, read while it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from taskframework.api.refusals import RequestRefusedError
from taskframework.model.values import MAX_PARAMETERS_BYTES, Json

#: Bytes of one line: twice the limit of the parameters of one task, because the same value may be written longer.
MAX_LINE_BYTES = 2 * MAX_PARAMETERS_BYTES
#: Seconds within which a line must come, so that no client keeps a connection for ever.
LINE_TIMEOUT_SECONDS = 60.0


async def read_values(request: Request) -> AsyncIterator[list[Json]]:
    """The values of a body's lines, in parts as they come; no more is read than the caller takes.

    Empty lines are ignored. The values before a wrong line are given first.

    Raises:
        RequestRefusedError: if a line is too long, is not JSON or does not come in time.
        ClientDisconnect: if the body broke off.
    """
    index, rest = 0, bytearray()
    async for piece in _receive_pieces(request):
        ended, line_feed, begun = piece.rpartition(b"\n")
        rest += ended if line_feed else piece
        if line_feed:  # only then: a long line that comes in small pieces must not be copied for each of them
            values, wrong = _parse_lines(rest.split(b"\n"), index)
            if values:
                yield values
                index += len(values)
            if wrong is not None:
                raise wrong
            rest = bytearray(begun)
        if len(rest) > MAX_LINE_BYTES:
            raise _too_long(index)
    values, wrong = _parse_lines([rest], index)
    if values:
        yield values
    if wrong is not None:
        raise wrong


def _parse_lines(lines: list[bytearray], index: int) -> tuple[list[Json], RequestRefusedError | None]:
    """The values before the first wrong line, and the error of that line."""
    values: list[Json] = []
    for line in lines:
        if len(line) > MAX_LINE_BYTES:
            return values, _too_long(index + len(values))
        if line.strip():
            try:
                values.append(from_json(line))
            except ValueError as error:
                return values, _not_json(index + len(values), str(error))
    return values, None


async def _receive_pieces(request: Request) -> AsyncIterator[bytes]:
    """The bytes as they come. The time that the caller needs for a piece does not count as the client's."""
    loop = asyncio.get_running_loop()
    seconds_left, more = LINE_TIMEOUT_SECONDS, True
    has_content = False  # whether the incomplete line has any: empty lines do not renew the time
    while more:
        began = loop.time()
        try:
            async with asyncio.timeout(seconds_left):
                message = await request.receive()
        except TimeoutError:
            raise RequestRefusedError(
                f"No line arrived within {LINE_TIMEOUT_SECONDS:g} seconds.",
                hint="Send the upload again from its beginning; with an idempotency key it continues where it stopped.",
                code="request_timeout",
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece: bytes = message.get("body", b"")
        lines, line_feed, rest = piece.rpartition(b"\n")
        if line_feed and (has_content or lines.strip()):
            seconds_left, has_content = LINE_TIMEOUT_SECONDS, False
        else:
            seconds_left -= loop.time() - began
        has_content = has_content or bool(rest.strip())
        more = message.get("more_body", False)
        yield piece


def _too_long(index: int) -> RequestRefusedError:
    return RequestRefusedError(
        f"Item {index} has more than {MAX_LINE_BYTES:,} bytes.",
        hint="Keep large data elsewhere and pass a reference; end each item with a line feed.",
        code="body_too_large",
        fields=[{"field": f"items.{index}", "message": "is too long"}],
    )


def _not_json(index: int, reason: str) -> RequestRefusedError:
    return RequestRefusedError(
        f"Item {index} (the first is 0) is not JSON: {reason.replace('line 1 column', 'column')}.",
        hint="Send one JSON value per line, in UTF-8.",
        code="invalid_json",
        fields=[{"field": f"items.{index}", "message": "is not JSON"}],
    )
