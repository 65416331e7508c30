"""Many requests of one class, each about another task, as one write.

A hundred updates of one task each cost the server three times as much as one update of a hundred tasks. In this one
update, a value that all requests share is a constant. A value that differs is an array, and each document takes its own
value by the place of its id in the array of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, cast

from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import Expression


class _HasTaskId(Protocol):
    @property
    def task_id(self) -> str: ...


Request = TypeVar("Request")

#: Types whose equal values are also stored in the same form. This is not so for floats (0.0 == -0.0) and lists
#: ([True] == [1]).
_COMPARABLE_TYPES = (str, int, datetime, type(None))


class JointRequests(Generic[Request]):
    """The requests of one write, each about another task; a rule written for many also serves a single one."""

    def __init__(self, requests: Sequence[Request], ids: Sequence[str] | None = None) -> None:
        """Prepare the write.

        Args:
            requests: at most one for each document.
            ids: the ids of the documents, in the order of the requests; None: the `task_id` of each request.
        """
        self._requests = requests
        ids = [cast(_HasTaskId, request).task_id for request in requests] if ids is None else ids
        self._place = {"$indexOfArray": [{"$literal": ids}, "$_id"]}
        #: Filter: one of these tasks.
        self.id_filter: Document = {"_id": ids[0] if len(ids) == 1 else {"$in": ids}}

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def each(self, value: Callable[[Request], Any]) -> Expression:
        """An expression that gives each document the value of its own request; as data, never an operator or a path."""
        values = [value(request) for request in self._requests]
        if _are_all_equal(values):
            return {"$literal": values[0]}
        return {"$arrayElemAt": [{"$literal": values}, self._place]}

    def where(self, **expected: Callable[[Request], str | int | datetime | None]) -> Document:
        """Filter: one of these documents, with the values that its own request expects in these fields."""
        guard, conditions = dict(self.id_filter), []
        for field, value in expected.items():
            values = [value(request) for request in self._requests]
            if _are_all_equal(values):
                guard[field] = values[0]
            else:
                conditions.append({"$eq": [f"${field}", self.each(value)]})
        return guard | ({"$expr": {"$and": conditions}} if conditions else {})


def combine_filters(*filters: Document) -> Document:
    """Filters as one, with their `$expr` joined by "and"; no other field may be in two of them."""
    joint = {name: condition for filter in filters for name, condition in filter.items()}
    conditions = [filter["$expr"] for filter in filters if "$expr" in filter]
    return joint | ({"$expr": {"$and": conditions}} if conditions else {})


def _are_all_equal(values: Sequence[Any]) -> bool:
    first = values[0]
    if len(values) == 1:
        return True
    return isinstance(first, _COMPARABLE_TYPES) and all(
        type(value) is type(first) and value == first for value in values
    )
