"""The floor's documents, guards and updates: of the framework's shape, so that the database has the same work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import uuid_utils
from pymongo import UpdateOne

from taskframework.model.task import Task, initial_fields
from taskframework.stores.mongo.documents import document_of
from taskframework.stores.mongo.store import MongoStore

Document = dict[str, Any]

TASK_TYPE = "noop"
_LEASE = timedelta(seconds=30)
_RELAY_AFTER = timedelta(seconds=5)
#: What a subscriber may see of a task.
_PUBLIC = (
    "task_type", "status", "user_id", "progress", "result", "error", "attempts", "max_attempts", "generation",
    "priority", "correlation_id", "not_before", "deadline", "created_at", "started_at", "finished_at", "updated_at",
)  # fmt: skip


async def make_indexes(url: str) -> None:
    """The framework's own indexes: it makes them when its store opens."""
    store = MongoStore(url)
    await store.open()
    await store.close()


def _template() -> Document:
    now = datetime.now(UTC)
    task = Task(
        task_id="", task_type=TASK_TYPE, user_id="anonymous", correlation_id="", parameters_hash="0" * 64,
        max_attempts=5, not_before=now, next_dispatch_at=None, created_at=now, updated_at=now,
    )  # fmt: skip
    return document_of(task.evolve(**initial_fields(now, now, _RELAY_AFTER)))


_TEMPLATE = _template()


def new_document(number: int) -> Document:
    """A queued task."""
    now = datetime.now(UTC)
    task_id = str(uuid_utils.uuid7())
    times = {"not_before": now, "created_at": now, "updated_at": now}
    due = dict.fromkeys(("next_dispatch_at", "publish_at"), now + _RELAY_AFTER)
    history = [{**_TEMPLATE["history"][0], "at": now}]
    names = {"_id": task_id, "correlation_id": task_id, "parameters": {"i": number}}
    return {**_TEMPLATE, **names, **times, **due, "history": history}


def claimable(ids: Sequence[str]) -> Document:
    """Filter: tasks that may be claimed now."""
    is_due = {"$lte": ["$not_before", "$$NOW"]}
    return {"_id": {"$in": list(ids)}, "status": {"$in": ["QUEUED", "RETRYING"]}, "cancel": None, "$expr": is_due}


def claim(claim_id: str, worker_id: str) -> list[Document]:
    """Update: running, leased to this claim, with one more event."""
    sequence = {"$add": ["$sequence", 1]}
    attempt = {"$add": ["$attempts", 1]}
    entry = {"sequence": sequence, "type": "started", "at": "$$NOW", "attempt": attempt, "worker_id": worker_id}
    changes = {
        "status": "RUNNING",
        "fencing_token": {"$add": ["$fencing_token", 1]},
        "attempts": attempt,
        "lease": {
            "worker_id": worker_id,
            "claim_id": claim_id,
            "expires_at": {"$add": ["$$NOW", _LEASE // timedelta(milliseconds=1)]},
        },
        "next_dispatch_at": None,
        "started_at": "$$NOW",
        "sequence": sequence,
        "revision": {"$add": ["$revision", 1]},
        "history": {"$concatArrays": ["$history", [{**entry, "data": None}]]},
        "publish_at": {"$add": ["$$NOW", _RELAY_AFTER // timedelta(milliseconds=1)]},
        "updated_at": "$$NOW",
    }
    return [{"$set": changes}]


def completion(document: Document, result: Any, worker_id: str) -> UpdateOne:
    """Update of one task that its claim still holds: completed, with the result and one more event."""
    now = datetime.now(UTC)
    claim_id = document["lease"]["claim_id"]
    held = {"_id": document["_id"], "status": "RUNNING", "fencing_token": document["fencing_token"]}
    entry = {"sequence": document["sequence"] + 1, "type": "completed", "at": now, "attempt": document["attempts"]}
    changes = {
        "$set": {
            "status": "COMPLETED",
            "lease": None,
            "result": result,
            "error": None,
            "last_claim_id": claim_id,
            "publish_at": now + _RELAY_AFTER,
            "finished_at": now,
            "updated_at": now,
        },
        "$inc": {"sequence": 1, "revision": 1},
        "$push": {"history": {**entry, "worker_id": worker_id, "data": None}},
    }
    return UpdateOne({**held, "lease.claim_id": claim_id}, changes)


def events(document: Document) -> list[Document]:
    """CloudEvents for what was not published of a task."""
    data = {"task_id": document["_id"], **{name: document[name] for name in _PUBLIC}}
    return [
        {
            "specversion": "1.0",
            "id": f"{document['_id']}-{entry['sequence']}",
            "type": f"task.{entry['type']}",
            "source": "floor",
            "subject": document["_id"],
            "time": entry["at"],
            "datacontenttype": "application/json",
            "sequence": entry["sequence"],
            "data": data,
        }
        for entry in document["history"]
        if entry["sequence"] > document["published_sequence"]
    ]
