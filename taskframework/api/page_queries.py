"""The common parameters of list queries: which page, and whose entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from taskframework.api.views import CursorText
from taskframework.model.query import MAX_LIMIT, Page
from taskframework.submission.options import Name

DEFAULT_LIMIT = 50
LIMIT_DESCRIPTION = "Maximum number of entries per page; large entries make a page shorter"


#: A cursor that is the name of the last entry, of a worker or a task type.
NameCursor = Annotated[
    str | None,
    Field(max_length=300, description="`next_cursor` of the previous page, unchanged", pattern=r"^[!-~]+$"),
]


class PageQuery(BaseModel):
    """Which page of a list to give."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description=LIMIT_DESCRIPTION)
    cursor: CursorText | None = Field(default=None, description="`next_cursor` of the previous page, unchanged")


class TypePageQuery(BaseModel):
    """Which part of a list of task types to give."""

    model_config = ConfigDict(extra="forbid")

    limit: int | None = Field(default=None, ge=1, le=MAX_LIMIT, description="Maximum number of entries; default: all")
    cursor: NameCursor = None


class _OfType(Protocol):
    @property
    def task_type(self) -> str: ...


Entry = TypeVar("Entry", bound=_OfType)


def page_by_type(entries: Sequence[Entry], query: TypePageQuery) -> Page[Entry]:
    """The part of a list that has one entry for each task type, in the order of their names."""
    rest = [entry for entry in entries if query.cursor is None or entry.task_type > query.cursor]
    items = rest[: query.limit]
    return Page(tuple(items), items[-1].task_type if len(items) < len(rest) else None)


UserInQuery = Annotated[
    Name | None,
    Field(description="Only of this user; for another user, the caller must be an operator, or act for users"),
]
