"""Where results are found: a count that costs the store next to nothing, one result by id, and all at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pymongo import MongoClient

Document = Mapping[str, Any]
Outcome = Mapping[str, int]


class Results(Protocol):
    """What the runner looks at while a contender works."""

    def count(self, limit: int) -> int:
        """How many tasks have a result; counting may stop at `limit`."""

    def is_settled(self, tasks: int) -> bool:
        """Whether everything that was to be done for these tasks is done: results stored, events published."""

    def find(self, task_id: str) -> Outcome | None:
        """The result of one task, if it is there."""

    def all(self) -> Sequence[Outcome]:
        """Every result."""


class MongoResults:
    """Results in MongoDB: documents that appear with the result, or that are there before and change."""

    def __init__(
        self,
        url: str,
        collection: str,
        value: Callable[[Document], Outcome] = lambda document: document["result"],
        *,
        done: Document | None = None,
        unfinished: Sequence[Document] = (),
    ) -> None:
        """Connect.

        Args:
            url: with the database as its path.
            collection: where the results are.
            value: takes the outcome out of a document.
            done: which documents have a result; None if every document has.
            unfinished: filters, each served by an index, that match as long as something is left to do.
        """
        self._client: MongoClient[dict[str, Any]] = MongoClient(url)
        self._collection = self._client.get_default_database()[collection]
        self._value = value
        self._done = done
        self._unfinished = unfinished

    def count(self, limit: int) -> int:
        if self._done is None:
            return self._collection.estimated_document_count()
        return self._collection.count_documents(self._done, limit=limit)

    def is_settled(self, tasks: int) -> bool:
        if self._done is None:
            return self._collection.estimated_document_count() >= tasks
        return all(self._collection.find_one(filter, {"_id": 1}) is None for filter in self._unfinished)

    def find(self, task_id: str) -> Outcome | None:
        document = self._collection.find_one({"_id": task_id, **(self._done or {})})
        return None if document is None else self._value(document)

    def all(self) -> Sequence[Outcome]:
        return [self._value(document) for document in self._collection.find(self._done or {})]
