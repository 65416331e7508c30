"""Tasks and dead messages as documents; every user's value is read back exactly as it was stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from taskframework.errors import TaskUnreadableError, ValueNotStorableError
from taskframework.model.query import DeadMessage
from taskframework.model.task import TIMES, UNREADABLE, USER_VALUES, Task
from taskframework.model.values import Json

logger = logging.getLogger(__name__)

Document = dict[str, Any]
Entry = TypeVar("Entry")

_MESSAGE_FIELDS = tuple(field.name for field in fields(DeadMessage) if field.name not in {"id", "headers"})


def stored(value: Json) -> Any:
    """A user's value as it is stored: itself, or as JSON bytes if a name in it means something to MongoDB.

    The driver reads `{"$ref": …, "$id": …}` back as a reference object, a name in BSON cannot contain NUL, and servers
    and tools disagree about other names with `$`. No JSON value is bytes, so reading is never ambiguous.

    Raises:
        ValueNotStorableError: for what is not JSON.
    """
    try:
        return orjson.dumps(value) if _has_special_name(value) else value
    except (TypeError, RecursionError) as error:
        raise ValueNotStorableError("a value", str(error)) from error


def restored(value: Any) -> Json:
    """The value that `stored` made this of."""
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
    """What the store keeps of a task."""
    return USER_VALUES.change(task.to_document(), stored)


def task_of(document: Document) -> Task:
    """The task of a document as the driver read it.

    Raises:
        TaskUnreadableError: if the document is none this release can read.
    """
    try:
        return Task.from_document(USER_VALUES.change(TIMES.change(document, moment), restored))
    except UNREADABLE as error:
        raise TaskUnreadableError(str(document["_id"]), repr(error)[:200]) from error


def readable(documents: Iterable[Document], read: Callable[[Document], Entry]) -> list[Entry]:
    """Those that this release can read: a document of a newer release must not make a whole list or group fail."""
    entries = []
    for document in documents:
        try:
            entries.append(read(document))
        except TaskUnreadableError as error:
            logger.warning("left out: %s", error.message)
    return entries


@lru_cache(maxsize=4096)
def moment(stored: datetime) -> datetime:
    """A time of a document, with its zone. The driver reads times without one, which takes it a third less time.

    Cached, since the documents of one group of writes share the same few times.
    """
    return stored.replace(tzinfo=UTC)


def dead_message_document(message: DeadMessage) -> Document:
    """What the store keeps of a dead message. Header names are a stranger's, hence JSON."""
    document = {name: getattr(message, name) for name in _MESSAGE_FIELDS}
    return {"_id": message.id, "headers": orjson.dumps(message.headers), **document}


def dead_message_of(document: Document) -> DeadMessage:
    values = {name: document[name] for name in _MESSAGE_FIELDS} | {"at": moment(document["at"])}
    return DeadMessage(id=document["_id"], headers=orjson.loads(document["headers"]), **values)
