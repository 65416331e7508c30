"""The connection of commands to an installation at an address, where another program may answer."""

from __future__ import annotations

from typing import Any

import httpx
from tenacity import RetryCallState

from taskframework.cli.output import note
from taskframework.client.connection import ApiConnection
from taskframework.client.refusals import error_of_response
from taskframework.client.requests import Call
from taskframework.errors import ApiError
from taskframework.urls import redacted


class CommandConnection(ApiConnection):
    """Makes calls as the client does. If an answer is not one that commands can read, the error says so."""

    _told_status: int | None = None

    def _before_retry(self, state: RetryCallState) -> None:
        """Tell why a command takes long, and again if a call fails in another way."""
        assert state.outcome is not None, "it was attempted"
        status = 0 if state.outcome.failed else state.outcome.result().status_code
        if status != self._told_status:
            self._told_status = status
            reason = _why_not_now(state.outcome.result()) if status else "does not answer"
            note(f"{redacted(self.url)} {reason}; trying again for {self._patience:g} s in all ...")

    async def ask_with_status(self, call: Call, *, within: float = float("inf")) -> tuple[int, Any]:
        """As `ApiConnection.ask_with_status`.

        Raises:
            ApiError: also if an answer with content is not a JSON object.
        """
        try:
            status, content = await super().ask_with_status(call, within=within)
        except ApiError as error:
            if error.status == 401:
                error.hint = "Give a key with --api-key or TASKFRAMEWORK_KEY; `taskframework keys create` creates one."
            raise
        if content is not None and not isinstance(content, dict):
            raise foreign_answer_error(self.url, "it is not a JSON object")
        return status, _with_required_fields(content, self.url)


class _AnswerFields(dict[str, Any]):
    """An object of an answer, which should have the fields that a command reads."""

    def __init__(self, fields: dict[str, Any], url: str) -> None:
        super().__init__(fields)
        self._url = url

    def __missing__(self, name: str) -> Any:
        raise foreign_answer_error(self._url, f"it has no {name!r}")


def _why_not_now(response: httpx.Response) -> str:
    error = error_of_response(response, {})
    has_reason = not isinstance(error, ApiError) or error.code is not None
    why = f": {error.message.removesuffix('.')}" if has_reason else ""
    return f"cannot serve the request now ({response.status_code}){why}"


def foreign_answer_error(url: str, reason: str) -> ApiError:
    """The error for an answer that cannot come from any release of the API."""
    return ApiError(
        f"The answer from {url} is not from a taskframework API: {reason}.",
        hint="Check the address. If it is right, use the `taskframework` command of the release that runs there.",
    )


def _with_required_fields(content: Any, url: str) -> Any:
    match content:
        case dict():
            return _AnswerFields({name: _with_required_fields(value, url) for name, value in content.items()}, url)
        case list():
            return [_with_required_fields(value, url) for value in content]
    return content
