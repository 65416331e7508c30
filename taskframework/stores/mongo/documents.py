"""Tasks and dead messages as documents. Every user's value is read back exactly as it was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from taskframework.errors import TaskUnreadableError, ValueNotStorableError
from taskframework.leaving_out import leave_out
from taskframework.model.query import DeadMessage
from taskframework.model.task import TIMES, UNREADABLE, USER_VALUES, Task
from taskframework.model.task_fields import CancelRequest
from taskframework.model.transitions import Fence
from taskframework.model.values import Json
from taskframework.stores.reading import unreadable

Document = dict[str, Any]
Entry = TypeVar("Entry")

_MESSAGE_FIELDS = tuple(field.name for field in fields(DeadMessage) if field.name not in {"id", "headers"})


def encode_value(value: Json) -> Any:
    """A user's value in its stored form: the value itself, or JSON bytes if a name in it has a meaning in MongoDB.

    The driver reads `{"$ref": …, "$id": …}` back as a reference object, a name in BSON cannot contain NUL, and servers
    and tools disagree about other names with `$`. No JSON value is bytes, so a read is never ambiguous.

    Raises:
        ValueNotStorableError: if the value is not JSON.
    """
    try:
        return orjson.dumps(value) if _has_special_name(value) else value
    except (TypeError, RecursionError) as error:
        raise ValueNotStorableError("value", str(error)) from error


def decode_value(value: Any) -> Json:
    """The value whose stored form this is; the reverse of `encode_value`."""
    return orjson.loads(value) if isinstance(value, bytes) else value


def _has_special_name(value: Any) -> bool:
    match value:
        case dict():
            return any(_is_special(name) or _has_special_name(item) for name, item in value.items())
        case list() | tuple():
            return any(_has_special_name(item) for item in value)
        case bytes() | bytearray() | memoryview():
            raise TypeError("bytes are not a JSON type")
    return False


def _is_special(name: object) -> bool:
    return isinstance(name, str) and (name.startswith("$") or "\0" in name)


def document_of(task: Task) -> Document:
    """The document of a task."""
    return USER_VALUES.change(task.to_document(), encode_value)


def task_of(document: Document) -> Task:
    """The task of a document that the driver has read.

    Raises:
        TaskUnreadableError: if this release cannot read the document.
    """
    try:
        return Task.from_document(USER_VALUES.change(TIMES.change(document, with_utc), decode_value))
    except UNREADABLE as error:
        raise unreadable(document, str(document["_id"]), error) from error


def read_documents(
    documents: Iterable[Document], read: Callable[[Document], Entry], left_out: list[str] | None = None
) -> list[Entry]:
    """The entries that this release can read: one document that it cannot read must not make a list or group fail. Adds
    the ids of the others to `left_out`.
    """
    entries = []
    for document in documents:
        try:
            entries.append(read(document))
        except TaskUnreadableError as error:
            leave_out(error)
            if left_out is not None:
                left_out.append(error.task_id)
    return entries


@lru_cache(maxsize=4096)
def with_utc(stored: datetime) -> datetime:
    """A time of a document, with its zone. The driver reads times without a zone, which takes a third less time.

    The result is cached, because the documents of one group of writes share the same few times.
    """
    return stored.replace(tzinfo=UTC)


def dead_message_document(message: DeadMessage) -> Document:
    """The document of a dead message. The headers are JSON, because unknown programs choose their names."""
    document = {name: getattr(message, name) for name in _MESSAGE_FIELDS}
    return {"_id": message.id, "headers": orjson.dumps(message.headers), **document}


def dead_message_of(document: Document) -> DeadMessage:
    values = {name: document[name] for name in _MESSAGE_FIELDS} | {"at": with_utc(document["at"])}
    return DeadMessage(id=document["_id"], headers=orjson.loads(document["headers"]), **values)


def held_of(document: Document) -> tuple[Fence, CancelRequest | None]:
    """The fence under which a task runs now, and the request to cancel the task, from its document.

    Raises:
        TaskUnreadableError: if this release cannot read these fields.
    """
    try:
        fence = Fence(document["_id"], document["fencing_token"], document["lease"]["claim_id"])
        cancel = document["cancel"]
        if cancel is None:
            return fence, None
        return fence, CancelRequest(cancel["by"], with_utc(cancel["at"]), cancel["reason"])
    except UNREADABLE as error:
        raise unreadable(document, str(document["_id"]), error) from error
