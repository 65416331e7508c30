"""The common parts of several request bodies."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from taskframework.submission.options import Name


class Body(BaseModel):
    """A body that is an object. Unknown fields are refused; of a field that comes twice the last one counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


UserInBody = Annotated[
    Name | None, Field(description="The owner, if the caller is an operator or may act for users; default: the caller")
]
Reopen = Annotated[
    bool,
    Field(
        strict=True,
        description="For a sub-task whose parent has ended: the parent waits for its sub-tasks again and ends again",
    ),
]
