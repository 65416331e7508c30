"""Operations over an HTTP interface: their arguments and answers are those of the operations on the store."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from taskframework.client.connection import ApiConnection
from taskframework.client.paths import resource_path
from taskframework.client.requests import Call, json_call
from taskframework.durations import format_duration
from taskframework.model.letters import LetterFilter
from taskframework.model.query import Page, TaskFilter
from taskframework.model.scope import Scope

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Entry = TypeVar("Entry")

#: Arguments that are not sent: the interface has its own broker, and knows the actor of a change by the key. In a GET,
#: `by` is a condition and is sent.
_UNSENT_ARGUMENTS = frozenset({"broker"})
_ACTOR = "by"
#: The part of a path that is named by an argument, and what that argument is the name of.
_PATH_PART = re.compile(r"/\{(\w+)\}")
_KINDS = {
    "batch_id": "batch",
    "worker_id": "worker",
    "replay_id": "action on many tasks",
    "task_type": "task type",
    "prefix": "API key",
    "name": "schedule",
}


class RemoteService:
    """Calls one HTTP interface."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api

    async def _get(self, path: str, **query: Any) -> Any:
        return await self._api.ask(Call("GET", path, query=query))

    async def _post(self, path: str, content: Any) -> Any:
        return await self._api.ask(json_call("POST", path, content))


def remote_method(
    operation: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Answer]],
    request: str,
    read: Callable[[Any], Answer],
    *,
    is_repeatable: bool = True,
) -> Callable[Concatenate[RemoteService, Arguments], Coroutine[Any, Any, Answer]]:
    """Make a method of a `RemoteService` that does over HTTP what an operation does on a store.

    Args:
        operation: the operation, whose signature the method has.
        request: method and path. Arguments named in braces go into the path; all others, by their names, into the body
            of a POST or the query of any other method.
        read: converts the JSON of the answer to the return value of the operation.
        is_repeatable: as in `Call`.
    """
    signature = inspect.signature(operation)
    method, template = request.split()

    @functools.wraps(operation)
    async def call_api(self: RemoteService, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        arguments = signature.bind(self, *args, **kwargs).arguments
        del arguments["self"]
        if method != "GET":
            arguments.pop(_ACTOR, None)
        path = _PATH_PART.sub(
            lambda found: resource_path("", str(arguments.pop(found[1])), what=_KINDS.get(found[1], "task")), template
        )
        if method == "POST":
            call = json_call(method, path, _body(arguments), is_repeatable=is_repeatable)
        else:
            call = Call(method, path, query=_query(arguments), is_repeatable=is_repeatable)
        return read(await self._api.ask(call))

    return call_api


def _query(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments by their names in a query."""
    query: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Scope):
            query["user_id"] = value.owner
        elif isinstance(value, TaskFilter | LetterFilter):
            query |= _conditions(value)
        elif name not in _UNSENT_ARGUMENTS:
            query["cursor" if name == "after" else name] = value
    return query


def _body(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments by their names in a body, which names no scope."""
    sent = {
        name: value
        for name, value in arguments.items()
        if name not in _UNSENT_ARGUMENTS and not isinstance(value, Scope)
    }
    return {name: format_duration(value) if isinstance(value, timedelta) else value for name, value in sent.items()}


def _conditions(filter: TaskFilter | LetterFilter) -> dict[str, Any]:
    """The conditions of a filter. They have the same names in a query; the interface refuses an unknown condition."""
    default = type(filter)()
    names = [field.name for field in fields(filter)]
    return {name: value for name in names if (value := getattr(filter, name)) != getattr(default, name)}


def page_of(read: Callable[[Any], Entry]) -> Callable[[Any], Page[Entry]]:
    """Make a reader of a page, from the reader of one entry."""
    return lambda answer: Page(tuple(map(read, answer["items"])), answer["next_cursor"])


def items_of(read: Callable[[Any], Entry], *, kind: str | None = None) -> Callable[[Any], Sequence[Entry]]:
    """Make a reader of a list without pages; with `kind`, only entries of this kind are read."""
    return lambda answer: [read(item) for item in answer["items"] if kind in (None, item.get("kind"))]
