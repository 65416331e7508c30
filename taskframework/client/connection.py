"""Makes a call to the HTTP interface, repeats it if that is safe, and gives the answer or a typed error."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential

from taskframework.client.answers import Kind, Page, read
from taskframework.client.refusals import UNAVAILABLE_STATUSES, error_of_response, says_cancelled, says_gone
from taskframework.client.requests import Call
from taskframework.client.transport import TOO_MANY_CALLS, HttpTransport, StreamedBody
from taskframework.clock import in_seconds
from taskframework.errors import ApiError, ApiUnavailableError, ConfigurationError
from taskframework.events.requests import authorization
from taskframework.tls_hints import certificate_hints
from taskframework.urls import redacted

_PREFIX = "/api/v1"
_TOO_MANY_REQUESTS = 429
#: Failures that happen before the interface receives anything.
_ERRORS_BEFORE_SENDING = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
#: Failures that a repetition cannot solve, because the request itself is wrong.
_INVALID_REQUEST_ERRORS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
#: What an error of httpx says if only one side uses TLS, if the certificate is not trusted, or if this client has more
#: calls than it can send; and the hint for it.
_HINTS = {
    **certificate_hints("SSL_CERT_FILE", "the certificate of your own httpx client"),
    TOO_MANY_CALLS: "Submit many tasks with `submit_many`, or begin fewer calls at once.",
    "WRONG_VERSION_NUMBER": "The server does not use TLS: write http:// in its address.",
    "disconnected without sending": f"{ApiUnavailableError.hint} Where it has a certificate, that begins with https://.",
}
#: Those of these errors that would come again at the next attempt.
_PERMANENT_TLS_ERRORS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_BACKOFF = wait_random_exponential(multiplier=0.1, max=5)
#: Seconds without progress after which an upload is given up. So many, because sending runs far ahead of storing: the
#: buffers in between hold more than a database stores in a minute.
_UPLOAD_TIMEOUT_SECONDS = 600.0


class ApiConnection:
    """The HTTP interface at one address."""

    def __init__(
        self,
        url: str,
        transport: HttpTransport,
        *,
        timeout: timedelta | float,
        patience: timedelta | float,
        api_key: str | None = None,
    ) -> None:
        """Prepare to make calls.

        Args:
            url: of the interface, as `address_of` gives it.
            transport: how to speak HTTP.
            timeout: longest time to connect, and to wait for the next piece of an answer, in seconds or as a timedelta.
            patience: how long a call is repeated, in seconds or as a timedelta.
            api_key: sent with each call.

        Raises:
            ConfigurationError: if a time cannot be meant, or the key cannot be sent.
        """
        if in_seconds(timeout) <= 0 or in_seconds(patience) < 0:
            hint = "Give a timeout above zero; with a patience of zero, each call is made once."
            raise ConfigurationError(
                f"A client cannot wait with timeout={timeout!r} and patience={patience!r}.", hint=hint
            )
        self.url = url
        self.transport = transport
        #: How many streamed answers are open.
        self.open_streams = 0
        self._timeout = in_seconds(timeout)
        self._patience = in_seconds(patience)
        #: Sent with each call.
        self.headers = authorization(api_key, url)

    async def ask(self, call: Call, *, within: float = float("inf")) -> Any:
        """Make a call and return the JSON of its answer; None if the answer has no content. See `ask_with_status`."""
        _, content = await self.ask_with_status(call, within=within)
        return content

    async def ask_with_status(self, call: Call, *, within: float = float("inf")) -> tuple[int, Any]:
        """Make a call, several times if necessary.

        Args:
            call: the call.
            within: the most seconds that it may take.

        Returns:
            The status of the answer, and its JSON; None if it has no content.

        Raises:
            TaskframeworkError: if the interface refuses the call; the error says why.
            ApiUnavailableError: if there was no answer, or only requests to repeat later, until the patience ended.
        """
        seconds = min(self._timeout, within)
        silence = _UPLOAD_TIMEOUT_SECONDS if call.is_upload else seconds
        timeout = httpx.Timeout(seconds, read=silence, write=silence)
        response, may_be_done = await self._send_with_retries(call, timeout, min(self._patience, within))
        if not response.is_success:
            error = error_of_response(response, call.error_context)
            # Done by an earlier request, as far as anybody can tell: its answer was lost, and its caller wanted this.
            if may_be_done and call.cancelled_path is not None and says_cancelled(error):
                return await self.ask_with_status(
                    Call("GET", call.cancelled_path, error_context=call.error_context), within=within
                )
            if may_be_done and call.method == "DELETE" and says_gone(error):
                return httpx.codes.NO_CONTENT, None
            raise error
        try:
            return response.status_code, response.json() if response.content else None
        except ValueError:
            raise ApiError(
                f"{redacted(str(response.request.url))} answered with something that is not JSON.",
                hint="Another program may be running at this address.",
                status=response.status_code,
            ) from None

    async def pages(self, call: Call, kind: type[Kind]) -> AsyncGenerator[Kind, None]:
        """The entries that a list has now, page after page."""
        while True:
            page = read(Page, await self.ask(call))
            for item in page.items:
                yield read(kind, item)
            # A search may give an empty page with more pages behind it. A page that leads to itself is the last now.
            if page.next_cursor in (None, call.query.get("cursor")):
                return
            call = replace(call, query={**call.query, "cursor": page.next_cursor})

    @asynccontextmanager
    async def open_stream(
        self, call: Call, *, silence: float, patience: float | None = None
    ) -> AsyncGenerator[httpx.Response, None]:
        """Begin a call whose answer is read while it comes.

        Args:
            call: the call.
            silence: longest time in seconds until the next piece of the answer.
            patience: how long in seconds the call is repeated; None for the usual patience.

        Raises:
            TaskframeworkError: as `ask`. Errors that end an answer after its beginning are those of httpx.
        """
        timeout = httpx.Timeout(min(self._timeout, silence), read=silence)
        self.open_streams += 1
        try:
            response, _ = await self._send_with_retries(
                call, timeout, self._patience if patience is None else patience, is_streamed=True
            )
            try:
                if not response.is_success:
                    raise error_of_response(response, call.error_context)
                yield response
            finally:
                await self.transport.close_response(response)
        finally:
            self.open_streams -= 1

    async def _send_with_retries(
        self, call: Call, timeout: httpx.Timeout, patience: float, *, is_streamed: bool = False
    ) -> tuple[httpx.Response, bool]:
        """Return the last answer, and whether an earlier request without a clear answer may have done what is asked."""
        began = self.transport.now()
        may_be_done = False

        def before_retry(state: RetryCallState) -> None:
            nonlocal may_be_done
            may_be_done = may_be_done or _may_be_done(state)
            self._before_retry(state)

        def is_over(state: RetryCallState) -> bool:
            # Of an upload only the pauses count, so that an upload that lasts long is not given up when it breaks once.
            spent = state.idle_for if call.is_upload else self.transport.now() - began
            return spent + state.upcoming_sleep >= patience

        retrying = AsyncRetrying(
            retry=lambda state: _should_retry(state, call),
            wait=_seconds_until_retry,
            stop=is_over,
            sleep=self.transport.sleep,
            before_sleep=before_retry,
            retry_error_callback=_last_outcome,
        )
        try:
            response: httpx.Response = await retrying(self._send_once, call, timeout, is_streamed)
            return response, may_be_done
        except (httpx.InvalidURL, UnicodeEncodeError) as error:  # an id of 64 KB, or with half a character
            if call.is_upload and isinstance(error, UnicodeEncodeError):  # the program that makes the items raised it
                raise
            raise ApiError(f"The request cannot be sent: {error}.") from error
        except httpx.HTTPError as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            if isinstance(error, _INVALID_REQUEST_ERRORS):
                raise ApiError(f"The request cannot be sent: {reason}.") from error
            hint = next((hint for words, hint in _HINTS.items() if words in reason), None)
            message = f"No answer from {redacted(self.url)}: {reason.removesuffix('.')}."
            raise ApiUnavailableError(message, hint=hint) from error

    def _before_retry(self, state: RetryCallState) -> None:
        """Called before the pause that precedes each repetition; for a subclass that reports it."""

    async def _send_once(self, call: Call, timeout: httpx.Timeout, is_streamed: bool) -> httpx.Response:
        query = {name: _in_query(value) for name, value in call.query.items() if value is not None}
        url = str(httpx.URL(f"{self.url}{_PREFIX}{call.path}", params=query or None))
        response = await self.transport.send(
            call.method,
            url,
            headers={**self.headers, **call.headers},
            body=call.body,
            timeout=timeout,
            is_streamed=is_streamed,
        )
        if is_streamed and not response.is_success:
            await self.transport.read_rest(response)  # this also ends the answer; a repeated call would not
        return response


def _in_query(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


class Calls:
    """Calls of the interface at one address."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api


def _should_retry(state: RetryCallState, call: Call) -> bool:
    """Return whether another attempt may succeed and does no harm."""
    assert state.outcome is not None, "it was attempted"
    if isinstance(call.body, StreamedBody) and call.body.is_consumed:
        return False
    error = state.outcome.exception()
    if error is None:
        status = state.outcome.result().status_code
        return status == _TOO_MANY_REQUESTS or (status in UNAVAILABLE_STATUSES and call.is_repeatable)
    if isinstance(error, httpx.TransportError) and not isinstance(error, _INVALID_REQUEST_ERRORS):
        if any(words in str(error) for words in _PERMANENT_TLS_ERRORS):
            return False
        return call.is_repeatable or isinstance(error, _ERRORS_BEFORE_SENDING)
    return False


def _may_be_done(state: RetryCallState) -> bool:
    """Return whether an attempt that failed may have done what was asked."""
    assert state.outcome is not None, "it was attempted"
    if (error := state.outcome.exception()) is not None:
        return not isinstance(error, _ERRORS_BEFORE_SENDING)
    return bool(state.outcome.result().status_code != _TOO_MANY_REQUESTS)


def _seconds_until_retry(state: RetryCallState) -> float:
    """Seconds until the next attempt: longer each time, and not before the time that the answer asks for."""
    assert state.outcome is not None, "it was attempted"
    requested = 0.0 if state.outcome.failed else _retry_after_seconds(state.outcome.result())
    return max(requested, _BACKOFF(state))


def _retry_after_seconds(response: httpx.Response) -> float:
    given = response.headers.get("retry-after", "")
    if given.isdecimal():
        return float(given)
    try:
        return (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # TypeError: a date without a zone
        return 0.0


def _last_outcome(state: RetryCallState) -> httpx.Response:
    assert state.outcome is not None, "it was attempted"
    response: httpx.Response = state.outcome.result()
    return response
