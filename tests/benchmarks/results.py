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

    def has_all(self, tasks: int) -> bool:
        """Whether each of so many tasks has its result."""

    def is_settled(self, tasks: int) -> bool:
        """Whether everything else that was to be done for these tasks is done too: events published and marked."""

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
        unfinished: Document | None = None,
        unpublished: Document | None = None,
    ) -> None:
        """Connect.

        Args:
            url: with the database as its path.
            collection: where the results are.
            value: takes the outcome out of a document.
            done: which documents have a result; None if every document has.
            unfinished: what matches, by an index, while a task has no result; None if documents come with results.
            unpublished: what matches, by an index, while events are to be published.
        """
        self._client: MongoClient[dict[str, Any]] = MongoClient(url)
        self._collection = self._client.get_default_database()[collection]
        self._value = value
        self._done = done
        self._unfinished = unfinished
        self._unpublished = unpublished

    def count(self, limit: int) -> int:
        if self._done is None:
            return self._collection.estimated_document_count()
        return self._collection.count_documents(self._done, limit=limit)

    def has_all(self, tasks: int) -> bool:
        if self._unfinished is None:
            return self._collection.estimated_document_count() >= tasks
        return not self._is_there(self._unfinished)

    def is_settled(self, tasks: int) -> bool:
        return self.has_all(tasks) and (self._unpublished is None or not self._is_there(self._unpublished))

    def _is_there(self, filter: Document) -> bool:
        return self._collection.find_one(filter, {"_id": 1}) is not None

    def find(self, task_id: str) -> Outcome | None:
        document = self._collection.find_one({"_id": task_id, **(self._done or {})})
        return None if document is None else self._value(document)

    def all(self) -> Sequence[Outcome]:
        return [self._value(document) for document in self._collection.find(self._done or {})]


def task_results(url: str) -> MongoResults:
    """Results in the framework's own collection of tasks."""
    return MongoResults(
        url,
        "tasks",
        done={"status": "COMPLETED"},
        unfinished={"status": {"$in": ["QUEUED", "RUNNING", "RETRYING"]}},
        unpublished={"publish_at": {"$type": "date"}},
    )
