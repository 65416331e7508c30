"""The store as an outsider reads it: the documents themselves, without the framework in between."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from bson import CodecOptions
from pymongo import MongoClient
from pymongo.errors import PyMongoError


class Truth(Protocol):
    """Reads documents; blocks."""

    def documents(self) -> list[dict[str, Any]]:
        """All tasks there are.

        Raises:
            TruthUnavailable: if the database cannot be asked now.
        """
        ...

    def states(self) -> list[dict[str, Any]]:
        """The same without what is long; cheap enough to be asked all the time."""
        ...

    def close(self) -> None: ...


class TruthUnavailable(Exception):  # noqa: N818 (says what is, not what went wrong)
    """The database is away."""


class MongoTruth:
    """The documents of a MongoDB database."""

    def __init__(self, url: str) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(
            url, serverSelectionTimeoutMS=2_000, timeoutMS=5_000, readConcernLevel="majority", connect=False
        )
        options: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
        self._tasks = self._client.get_default_database().get_collection("tasks", codec_options=options)

    def documents(self) -> list[dict[str, Any]]:
        return self._find(None)

    def states(self) -> list[dict[str, Any]]:
        return self._find({"history": False, "errors": False, "parameters": False})

    def close(self) -> None:
        self._client.close()

    def _find(self, fields: dict[str, bool] | None) -> list[dict[str, Any]]:
        try:
            return list(self._tasks.find({}, fields))
        except PyMongoError as error:
            raise TruthUnavailable(str(error)) from error


class SqliteTruth:
    """The documents of a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def documents(self) -> list[dict[str, Any]]:
        return list(self._read())

    def states(self) -> list[dict[str, Any]]:
        return self.documents()

    def close(self) -> None:
        """Nothing is held."""

    def _read(self) -> Iterator[dict[str, Any]]:
        try:
            connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=5)
            try:
                for (document,) in connection.execute("SELECT document FROM tasks"):
                    yield json.loads(document)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise TruthUnavailable(str(error)) from error
