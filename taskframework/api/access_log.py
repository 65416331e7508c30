"""The access log: one line for each request, if `api.access_log` asks for it."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskframework.api.callers import CALLER, OPEN_PATHS, path_of
from taskframework.model.keys import with_prefixes_only
from taskframework.model.wording import duration_text

logger = logging.getLogger(__name__)

#: The status that is logged when the client left before the answer; other servers use the same number.
_CLIENT_CLOSED_STATUS = 499


class AccessLog:
    """Plain ASGI middleware outside of all other layers, so that it sees the answer as the client gets it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, size = time.perf_counter(), _CLIENT_CLOSED_STATUS, 0

        async def send_and_note(message: Message) -> None:
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            _log_request(scope, status, size, time.perf_counter() - began)


def _log_request(scope: Scope, status: int, size: int, seconds: float) -> None:
    """Log one line. Query and headers are left out, because their contents may be private; and the rest of an API key
    in the path, which somebody pasted to revoke it.
    """
    # Probes come every few seconds: one that succeeds is logged at DEBUG only.
    is_usual = path_of(scope) in OPEN_PATHS and status < 400
    level = logging.DEBUG if is_usual else logging.INFO
    if not logger.isEnabledFor(level):
        return
    client, caller = scope.get("client"), scope.get(CALLER)
    path = with_prefixes_only(scope["path"])
    fields = {
        "method": scope["method"],
        "path": path,
        "status": status,
        "duration": round(seconds, 6),
        "bytes": size,
        "client": client[0] if client else None,
        "caller": caller.principal if caller else None,
    }
    text = "%s %r answered with %d after %s"
    logger.log(level, text, scope["method"], path, status, duration_text(seconds), extra=fields)
