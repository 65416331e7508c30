"""Records: small documents beside the tasks, for data that must be unique or that belongs to many tasks at once.

The id of a record says what it stands for (`idempotency/alice/order-7`), so nothing but the id has to be unique. There
are two ways to change a record:

- Compare and set: read the record, let a pure rule make its new content, and write the new content if the revision is
  still the revision that was read; if not, begin again. Most kinds do this.
- One guarded write, a `RecordChange`, for records that many processes change at the same time, because with compare and
  set most of them would have to begin again. It works like the transitions of tasks: the rule is data with a pure
  `change`, which SQLite runs in a transaction, and which `stores/mongo/record_changes.py` translates. The buckets of
  rate limits, the slots of concurrency limits and the positions and turns of streams do this.

`docs/adding/record-kind.md` tells how to add a kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote, unquote

import uuid_utils
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from taskframework.clock import whole_milliseconds
from taskframework.errors import StoreError, ValueNotStorableError
from taskframework.leaving_out import leave_out
from taskframework.model.values import Json

Content = TypeVar("Content")

#: Printable ASCII characters stay unchanged in an id, except for the two characters that have a meaning there.
_UNQUOTED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "").replace("/", "")


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a store keeps it; its kind knows what the data mean."""

    id: str
    kind: str
    data: Json
    #: A random text that differs after each write, for compare and set. None: not stored yet.
    revision: str | None = None
    #: When the retention looks at the record. It deletes the record unless the kind has another rule. None: never.
    expires_at: datetime | None = None

    def data_as_json(self) -> bytes:
        """The data as JSON text. Numbers may have any size; orjson would refuse large numbers.

        Raises:
            ValueNotStorableError: if the data are not JSON.
        """
        try:
            return to_json(self.data)
        except ValueError as error:
            raise ValueNotStorableError("record", str(error)[:200]) from error


class RecordUnreadableError(StoreError):
    """The record in the store cannot be read."""

    code = "record_unreadable"
    hint = (
        "It was changed by hand or is damaged, or a newer release wrote it. Put it back from a backup, or delete it "
        "from the records in the store: what it says is then forgotten."
    )

    def __init__(self, record_id: str) -> None:
        super().__init__(f"The record {record_id} in the store cannot be read.")


class RecordChange(Protocol):
    """One guarded write on one record, which need not exist yet."""

    @property
    def record_id(self) -> str: ...

    def change(self, record: Record | None, now: datetime) -> Record:
        """The record after the write; `now` is the time of the store's clock."""
        ...


def parts_of(record_id: str) -> list[str]:
    """The parts of which `RecordKind.id_of` made an id."""
    return [unquote(part, errors="surrogatepass") for part in record_id.split("/")[1:]]


def id_range(kind: str, after: str = "") -> tuple[str, str]:
    """Two texts between which all ids of a kind are that come after the id `after`, and no other ids."""
    return max(after, f"{kind}/"), f"{kind}0"  # 0 is the character that follows the slash


def new_revision() -> str:
    """A revision for one write of one record."""
    return uuid_utils.uuid4().hex


class RecordKind(Generic[Content]):
    """One kind of records: its name, how an id is made, and the type of the content."""

    def __init__(self, name: str, content: type[Content]) -> None:
        """Name a kind.

        Args:
            name: what the ids begin with.
            content: a frozen dataclass whose fields pydantic can write as JSON and read again.
        """
        self.name = name
        self._content = TypeAdapter(content)

    def id_of(self, *parts: str) -> str:
        """The id that stands for these parts; no other parts have the same id, whatever characters are in them."""
        return "/".join([self.name, *(quote(part, safe=_UNQUOTED, errors="surrogatepass") for part in parts)])

    def new(self, *parts: str, content: Content, expires_at: datetime | None = None) -> Record:
        """A record that is not stored yet; its write succeeds only if no record with this id exists."""
        return Record(self.id_of(*parts), self.name, self.data_of(content), None, _storable(expires_at))

    def with_id(
        self, record_id: str, record: Record | None, content: Content, *, expires_at: datetime | None = None
    ) -> Record:
        """The record of an id with this content: the record that was read with changes, or a new record."""
        before = record or Record(record_id, self.name, {})
        return self.changed(before, content, expires_at=expires_at)

    def changed(self, record: Record, content: Content, *, expires_at: datetime | None = None) -> Record:
        """A record that was read, with new content; its write succeeds only if nobody has written the record since.

        Fields that a newer release added to the content stay.
        """
        data = {**record.data, **self.data_of(content)}
        return replace(record, data=data, expires_at=_storable(expires_at))

    def content(self, record: Record) -> Content:
        """The content of a record.

        Raises:
            RecordUnreadableError: if this release cannot read it.
        """
        try:
            return self._content.validate_python(record.data)
        except ValidationError as error:
            raise RecordUnreadableError(record.id) from error

    def contents(self, records: Iterable[Record]) -> dict[str, Content]:
        """The contents of the records that this release can read, by their ids. All others are left out: one
        unreadable record must not hide the rest.
        """
        found = {}
        for record in records:
            try:
                found[record.id] = self.content(record)
            except RecordUnreadableError as error:
                leave_out(error)
        return found

    def is_readable(self, record: Record) -> bool:
        """Whether this release can read a record."""
        return bool(self.contents([record]))

    def data_of(self, content: Content) -> dict[str, Json]:
        """The content in the form in which a record keeps it."""
        data: dict[str, Json] = self._content.dump_python(content, mode="json")
        return data


def _storable(moment: datetime | None) -> datetime | None:
    return None if moment is None else whole_milliseconds(moment)
