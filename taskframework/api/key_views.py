"""What callers get of API keys, for the OpenAPI document."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from taskframework.model.keys import Role


class CallerView(BaseModel):
    """The caller of the request."""

    principal: str = Field(description="The user that owns the submitted tasks")
    roles: list[Role]
    may_act_for_users: bool
    prefix: str | None = Field(
        description="The beginning of the key; null while callers are not identified, with a token, or "
        "where the embedding application identifies the callers"
    )
    expires_at: datetime | None = Field(description="When the token expires; null with a key")


class KeyLimitView(BaseModel):
    """How many requests may be made with an API key."""

    rate: float
    burst: int


class KeyView(BaseModel):
    """The stored fields of an API key."""

    prefix: str = Field(description="The beginning of the key", examples=["tf_3f9c2a7b10"])
    principal: str
    roles: list[Role]
    may_act_for_users: bool
    created_by: str
    created_at: datetime
    expires_at: datetime | None = Field(description="Null: valid until it is revoked")
    revoked_by: str | None
    revoked_at: datetime | None
    limit: KeyLimitView | None = Field(description="Null: the limit in the settings")


class NewKeyView(KeyView):
    """A new key."""

    key: str = Field(description="The key itself. It is not stored anywhere: save it now")


class KeyPage(BaseModel):
    """A page of keys, by prefix."""

    items: list[KeyView]
    next_cursor: str | None
