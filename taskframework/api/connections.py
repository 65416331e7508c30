"""The connections of the server: how many there may be, and how long a client may take to send and to read.

uvicorn limits neither: a client that never finishes its headers, or never reads its answer, would keep a file
descriptor for ever. The time for a body is in `bodies.py`, which works under any server.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
from typing import TYPE_CHECKING, Any

import orjson
from uvicorn.config import Config
from uvicorn.server import ServerState

from taskframework.api.problems import PROBLEM_JSON, problem_of
from taskframework.api.refusals import RequestRefusedError
from taskframework.api.safety_headers import SAFETY_HEADERS
from taskframework.model.wording import pluralize

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as UvicornProtocol
else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as UvicornProtocol

#: Seconds from the opening of a connection, or from the first bytes of a further request on it, to the end of the
#: headers. The same time holds for the rest of a request that was answered before it was complete.
HEAD_TIMEOUT_SECONDS = 10.0
#: Seconds that a client may stop reading while more than 64 KiB of its answer wait; asyncio buffers that much.
READ_TIMEOUT_SECONDS = 30.0
#: The most bytes of a request line with its headers; four times the limit of common servers.
MAX_HEAD_BYTES = 64 * 1024
#: With "auto": at most this share of the file descriptors, and never more than this many connections. An open
#: connection costs about 50 KiB.
_DESCRIPTOR_SHARE = 3 / 4
_MAX_CONNECTIONS = 10_000


def default_max_connections() -> int:
    """How many connections the process's limit of file descriptors allows; some stay for store, broker and files."""
    with contextlib.suppress(ImportError):  # Windows has no such limit
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return max(1, min(_MAX_CONNECTIONS, int(soft * _DESCRIPTOR_SHARE)))
    return _MAX_CONNECTIONS


class BoundedProtocol(UvicornProtocol):
    """uvicorn's protocol with bounds: on connections (`limit_concurrency`), on headers, and on time to read answers."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # uvicorn counts only when headers are complete: clients that never send any could take all connections.
        self._max_connections, self.limit_concurrency = config.limit_concurrency, None
        self._head_timer: asyncio.TimerHandle | None = None
        self._received_bytes = 0
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if (most := self._max_connections) is not None and len(self.connections) > most:
            self._refuse(
                f"{pluralize(most, 'connection')} {'is' if most == 1 else 'are'} open already.",
                "Connect again in a moment, and keep connections open no longer than needed.",
                "too_many_connections",
            )
        else:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._end_late_head)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing() or not self._awaits_head:
            self._cancel_head_timer()
            return
        self._received_bytes += len(data)
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._end_late_head)
        if self._received_bytes > MAX_HEAD_BYTES and not self._is_answered:
            self._refuse(
                f"The request line and headers have more than {MAX_HEAD_BYTES:,} bytes.",
                "Send large values in the body.",
                "headers_too_large",
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        # Not `close`, which would wait until the client has read the rest.
        self._read_timer = self.loop.call_later(READ_TIMEOUT_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        self._cancel_read_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            msg,
            "Percent-encode the address, send no control characters in headers, and send one body length; "
            "see RFC 9112.",
            "bad_request",
        )

    @property
    def _awaits_head(self) -> bool:
        """Whether headers are still to come: no request is under way, and the connection is not idle after one."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or (cycle.response_complete and self.timeout_keep_alive_task is None)

    @property
    def _is_answered(self) -> bool:
        """Whether the incoming bytes belong to a request that was answered before its body was complete."""
        cycle: Any = self.cycle
        return cycle is not None and cycle.more_body is True

    def _cancel_head_timer(self) -> None:
        self._received_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cancel_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _end_late_head(self) -> None:
        if self._received_bytes and not self._is_answered:
            self._refuse(
                f"The headers were not complete within {HEAD_TIMEOUT_SECONDS:g} seconds.",
                "Send the request in one go.",
                "request_timeout",
            )
        else:
            self.transport.close()

    def _refuse(self, message: str, hint: str, code: str) -> None:
        """Answer without a request, and close the connection."""
        problem = problem_of(RequestRefusedError(message, hint=hint, code=code))
        body = orjson.dumps(problem.document(self.root_path))
        headers = {
            **problem.headers,
            "Connection": "close",
            "Content-Type": PROBLEM_JSON,
            "Content-Length": str(len(body)),
            **SAFETY_HEADERS,
        }
        lines = [f"HTTP/1.1 {problem.status} {http.HTTPStatus(problem.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
