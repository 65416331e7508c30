"""Searches through a part of a list, for conditions without an index."""

from __future__ import annotations

from collections.abc import Sequence

from taskframework.model.query import Page, TaskFilter
from taskframework.model.scope import Scope
from taskframework.model.task import Task
from taskframework.stores.base import SEARCH_PAGE_SIZE
from taskframework.stores.mongo import lists, queries
from taskframework.stores.mongo.collection import BY_ID, Collection
from taskframework.stores.mongo.documents import Document, read_documents, task_of


async def search_tasks(
    tasks: Collection, scope: Scope, filter: TaskFilter, limit: int, cursor: str | None
) -> Page[Task]:
    """`TaskReads.search_tasks`: a pipeline finds the tasks' places in the list, then a read gets the whole tasks."""
    pipeline = _pipeline(scope, filter, limit, cursor)
    looked_through = await tasks.aggregate(pipeline, index=lists.list_index(scope, filter))
    if not looked_through:
        return Page((), None)
    [looked] = looked_through
    found, last = looked["found"], looked["last"] if looked["seen"] == SEARCH_PAGE_SIZE else None
    if len(found) > limit:
        found, last = found[:limit], found[limit - 1]
    ids = [place["_id"] for place in found]
    whole = {
        task.task_id: task for task in read_documents(await tasks.find(queries.with_ids(ids), index=BY_ID), task_of)
    }
    page = tuple([whole[task_id] for task_id in ids if task_id in whole])
    return Page(page, None if last is None else lists.cursor_after(last, filter))


def _pipeline(scope: Scope, filter: TaskFilter, limit: int, cursor: str | None) -> Sequence[Document]:
    fields = ("_id", "parent") if filter.is_in_slot_order else ("_id", filter.order)
    place = {name: f"${name}" for name in fields}
    return [
        {"$match": lists.listed(scope, filter.indexed, cursor)},
        {"$sort": lists.list_order(filter)},
        {"$limit": SEARCH_PAGE_SIZE},
        {
            "$group": {
                "_id": None,
                "seen": {"$sum": 1},
                "last": {"$last": place},
                "found": {"$push": {"$cond": [lists.matches_unindexed_conditions(filter), place, "$$REMOVE"]}},
            }
        },
        {"$set": {"found": {"$slice": ["$found", limit + 1]}}},
    ]
