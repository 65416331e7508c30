"""The common parameters of list queries: which page, and whose entries."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from taskframework.api.views import CursorText
from taskframework.model.query import MAX_LIMIT
from taskframework.submission.options import Name

DEFAULT_LIMIT = 50
LIMIT_DESCRIPTION = "Maximum number of entries per page; large entries make a page shorter"


class PageQuery(BaseModel):
    """Which page of a list to give."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description=LIMIT_DESCRIPTION)
    cursor: CursorText | None = Field(default=None, description="`next_cursor` of the previous page, unchanged")


UserInQuery = Annotated[
    Name | None,
    Field(description="Only of this user; for another user, the caller must be an operator, or act for users"),
]
