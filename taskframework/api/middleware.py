"""The outermost layer: each error becomes a problem document, and each answer gets its safety headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskframework.api.problems import problem_of, problem_response
from taskframework.api.refusals import RequestRefusedError
from taskframework.api.safety_headers import with_safety_headers

_STOPPED = RequestRefusedError(
    "The process stopped before the request was done; it is not known whether it took effect.",
    hint="Repeat it in a moment; give a submission an idempotency key, then it happens once.",
    code="stopping",
)


class AnswerAlways:
    """Plain ASGI middleware, because a wrapped request object would slow down every call and buffer every stream."""

    def __init__(self, app: ASGIApp, on_answer: Callable[[str, int], None] = lambda path, status: None) -> None:
        """Wrap the application; `on_answer` gets the path and the status of each answer."""
        self._app = app
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        async def send_safely(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                self._on_answer(scope["path"], message["status"])
                message["headers"] = with_safety_headers(
                    message["headers"], is_encrypted=scope.get("scheme") == "https"
                )
            await send(message)

        try:
            await self._app(scope, receive, send_safely)
        except ClientDisconnect:
            return  # there is no client left to answer
        except asyncio.CancelledError:
            # The server stops, and the time for requests is over. A stream that is cut off needs no answer.
            if not is_started:
                await problem_response(problem_of(_STOPPED), Request(scope))(scope, receive, send_safely)
        except Exception as error:
            problem = problem_of(error, scope)
            if is_started:
                raise  # the answer is cut off, and the server closes the connection
            await problem_response(problem, Request(scope))(scope, receive, send_safely)
