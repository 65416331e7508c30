"""Requests of one kind, each about another task, as one write.

For the server a hundred updates that each name their task cost three times as much as one update that names a hundred.
What the requests have in common is a constant in that write; what differs is looked up by the place of the document's
id among theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, cast

from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import Expression


class _AboutTask(Protocol):
    @property
    def task_id(self) -> str: ...


Request = TypeVar("Request")

#: Of these, "equal" is the same as "stored alike"; not of floats (0.0 == -0.0), nor of lists ([True] == [1]).
_SIMPLE = (str, int, datetime, type(None))


class JointRequests(Generic[Request]):
    """The requests of one write, one for each of several tasks; a rule written for many is right for one as well."""

    def __init__(self, requests: Sequence[Request], ids: Sequence[str] | None = None) -> None:
        """Prepare the write.

        Args:
            requests: at most one for each document.
            ids: of the documents; those of the tasks that the requests are about, if left out.
        """
        self._requests = requests
        ids = [cast(_AboutTask, request).task_id for request in requests] if ids is None else ids
        self._place = {"$indexOfArray": [{"$literal": ids}, "$_id"]}
        #: Filter: one of these tasks.
        self.of_them: Document = {"_id": ids[0] if len(ids) == 1 else {"$in": ids}}

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def each(self, value: Callable[[Request], Any]) -> Expression:
        """What each task gets of its own request: data, never an operator or a path."""
        values = [value(request) for request in self._requests]
        if _all_alike(values):
            return {"$literal": values[0]}
        return {"$arrayElemAt": [{"$literal": values}, self._place]}

    def where(self, **expected: Callable[[Request], str | int | datetime | None]) -> Document:
        """Filter: one of these tasks, and these fields are as its own request says."""
        guard, conditions = dict(self.of_them), []
        for field, value in expected.items():
            values = [value(request) for request in self._requests]
            if _all_alike(values):
                guard[field] = values[0]
            else:
                conditions.append({"$eq": [f"${field}", self.each(value)]})
        return guard | ({"$expr": {"$and": conditions}} if conditions else {})


def both(*filters: Document) -> Document:
    """Filters as one; each may have an expression."""
    joint = {name: condition for filter in filters for name, condition in filter.items()}
    conditions = [filter["$expr"] for filter in filters if "$expr" in filter]
    return joint | ({"$expr": {"$and": conditions}} if conditions else {})


def _all_alike(values: Sequence[Any]) -> bool:
    first = values[0]
    if len(values) == 1:
        return True
    return isinstance(first, _SIMPLE) and all(type(value) is type(first) and value == first for value in values)
