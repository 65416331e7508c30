"""The paths of requests to the HTTP interface, below the prefix."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from taskframework.client.answers import RemoteBatch, RemoteTask, id_of
from taskframework.errors import InvalidRequestError, TaskNotFoundError
from taskframework.submission.acceptance import accept_name


def resource_path(folder: str, name: str | RemoteTask[Any] | RemoteBatch[Any], *, what: str = "task") -> str:
    """The path of something by its id, below the prefix.

    Raises:
        TaskNotFoundError: if nothing can have this id, because it would lead to another path.
        TypeError: if it is no id.
    """
    name = id_of(name)
    if "/" in name:
        raise TaskNotFoundError(name, what=what)
    return f"{folder}/{last_part(name, what=what)}"


def last_part(name: str, *, what: str) -> str:
    """A name, which may have slashes, as the last part of a path.

    Raises:
        TaskNotFoundError: if nothing can have this name, because it would lead to another path or is not valid Unicode.
    """
    try:
        if name not in ("", ".", ".."):
            return quote(name, safe="")
    except UnicodeEncodeError:
        pass
    raise TaskNotFoundError(name, what=what)


def task_path(task_id: str) -> str:
    """The path of a task, below the prefix."""
    return resource_path("/tasks", task_id)


def signal_path(task_id: str, name: str) -> str:
    """The path of a signal to a task, below the prefix.

    Raises:
        InvalidRequestError: if the name is not valid, or cannot be a part of a URL.
        TaskNotFoundError: as `task_path`.
    """
    if "/" in accept_name(name, "name") or name in (".", ".."):
        raise InvalidRequestError("name", "cannot be a part of a URL", "Use letters and digits, with dots between.")
    return f"{task_path(task_id)}/signals/{quote(name, safe='')}"
