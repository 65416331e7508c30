"""What a process of an earlier release does to a MongoDB database: keys kept unique by an index, and no records.

Run as a program it submits so many keys round and round until it is told to stop, and writes a line `key task-id`
for each answer: `python -m tests.support.earlier_release URL FILE COUNT TASK_TYPE PARAMETERS`.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from pathlib import Path
from typing import Any, Self

from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError

from taskframework.model.values import check_storable, fingerprint
from taskframework.stores.mongo.documents import document_of
from taskframework.testing.factories import new_task

INDEX = "idempotency"


class EarlierRelease:
    """One process of it, as far as the store sees one."""

    def __init__(self, url: str) -> None:
        """Connect, and make the index as each of its processes does when it starts."""
        self._client: MongoClient[dict[str, Any]] = MongoClient(url, appname="taskframework", w="majority")
        database = self._client.get_default_database()
        self.tasks = database["tasks"]
        self._declarations = database["task_types"]
        only = {"idempotency_key": {"$type": "string"}}
        keys = [("user_id", 1), ("idempotency_key", 1)]
        self.tasks.create_index(keys, name=INDEX, unique=True, partialFilterExpression=only)

    def submit(self, key: str, **values: Any) -> str:
        """Insert a task with this key, or find the one that is there; its id."""
        given = {"user_id": "alice", "idempotency_key": key, "parameters_hash": "hash"} | values
        document = document_of(new_task(**given))
        try:
            self.tasks.insert_one(document)
        except DuplicateKeyError:
            there = self.tasks.find_one({"user_id": given["user_id"], "idempotency_key": key})
            assert there is not None
            document = there
        return str(document["_id"])

    def declare(self, task_type: str, declaration: str) -> None:
        """Declare a task type, as JSON."""
        document = {"_id": task_type, "declaration": declaration}
        self._declarations.replace_one({"_id": task_type}, document, upsert=True)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main(url: str, file: str, count: str, task_type: str, parameters: str) -> None:
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    given = json.loads(parameters)
    request_hash = fingerprint(task_type, check_storable(given, "parameters", 1_000_000))
    values = {"user_id": "anonymous", "task_type": task_type, "parameters": given, "parameters_hash": request_hash}
    with EarlierRelease(url) as release, Path(file).open("a", buffering=1) as answers:
        for n in itertools.cycle(range(int(count))):
            if stopping:
                return
            answers.write(f"key-{n} {release.submit(f'key-{n}', **values)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
