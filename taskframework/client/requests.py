"""The requests of the client: method, address, body and key of each."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json

from taskframework.client.transport import Body, StreamedBody
from taskframework.errors import ValueNotStorableError
from taskframework.submission.acceptance import accept_options
from taskframework.tasks.values import refuse_values_lost_in_json, with_sorted_sets

#: Writes any value as plain Python values, in which a model is a dict.
_ANY: TypeAdapter[Any] = TypeAdapter(Any)
JSON = MappingProxyType({"Content-Type": "application/json"})


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        path: the path below the prefix.
        error_context: the facts about the call that its errors need.
        is_repeatable: whether a second call changes nothing that the first one did not change. Any other call is
            repeated only if the first one certainly had no effect.
        cancelled_path: the path of the task or batch that the call cancels; None for any other call.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body = None
    error_context: Mapping[str, Any] = field(default_factory=dict)
    is_repeatable: bool = True
    cancelled_path: str | None = None

    @property
    def is_upload(self) -> bool:
        """Whether the body is made while it is sent."""
        return isinstance(self.body, StreamedBody)


def json_call(method: str, path: str, content: Any, **more: Any) -> Call:
    """A call with a JSON body; the content may have any values that pydantic can write as JSON.

    Raises:
        ValueNotStorableError: if the content cannot be written as JSON.
    """
    return Call(method, path, body=as_json(content), headers={**JSON, **more.pop("headers", {})}, **more)


def as_json(content: Any, what: str = "request") -> bytes:
    """A value as JSON.

    Args:
        content: the value.
        what: its name in the error.

    Raises:
        ValueNotStorableError: if it cannot be written as JSON, or if it would become another value.
    """
    try:
        known = _ANY.dump_python(content, by_alias=True, warnings=False)
        refuse_values_lost_in_json(known, what)
        # A repeated submission must have the same parameters, and a set has another order in each process.
        return to_json(with_sorted_sets(known, _ANY.dump_python(content, mode="json", by_alias=True, warnings=False)))
    except (ValueError, RecursionError) as error:
        raise ValueNotStorableError(what, str(error)) from None


def cancel_call(path: str, reason: str | None, error_context: Mapping[str, Any]) -> Call:
    """A call that cancels the task or batch of this path."""
    return json_call("POST", f"{path}/cancel", {"reason": reason}, error_context=error_context, cancelled_path=path)


def new_key() -> str:
    """Make an idempotency key that no other caller has."""
    return f"client-{uuid.uuid4()}"


def key_header(key: str | None) -> dict[str, str]:
    """The header with an idempotency key; without a key, with a new one.

    Raises:
        InvalidRequestError: if the key is not valid.
    """
    given = new_key() if key is None else accept_options({"idempotency_key": key})["idempotency_key"]
    return {"Idempotency-Key": given}
