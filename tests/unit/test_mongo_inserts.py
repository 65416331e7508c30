"""Inserts into MongoDB: each caller learns whether its document is new, whatever happens to those beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, cast

from taskframework.errors import StoreError
from taskframework.stores.mongo.collection import Collection
from taskframework.stores.mongo.faults import DuplicateDocumentError
from taskframework.stores.mongo.inserts import ExistingDocument, Inserter


class FakeCollection:
    """A collection in which a document that another process inserted is visible only from the second read on."""

    def __init__(self) -> None:
        self.documents = {"theirs": {"_id": "theirs"}}
        self._visible = set[str]()

    async def insert_each(self, documents: Sequence[Any], _: Iterable[str]) -> dict[int, StoreError]:
        refused = {at: DuplicateDocumentError() for at, new in enumerate(documents) if new["_id"] in self.documents}
        self.documents |= {new["_id"]: new for new in documents}
        return dict(refused)

    async def find(self, filter: dict[str, Any], *, index: str) -> list[dict[str, Any]]:
        visible, self._visible = self._visible, set(self.documents)
        return [self.documents[name] for name in filter["_id"]["$in"] if name in visible]


async def test_a_document_is_new_though_one_beside_it_cannot_be_read_back_at_once() -> None:
    inserter = Inserter(cast(Collection, FakeCollection()), "submit.reply", timedelta(minutes=1))
    mine, theirs = await inserter.insert([{"_id": "mine"}, {"_id": "theirs"}])
    assert isinstance(theirs, ExistingDocument)
    assert mine is None or (isinstance(mine, ExistingDocument) and mine.may_be_from_this_insert)
