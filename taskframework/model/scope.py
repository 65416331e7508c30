"""Whose tasks a caller may see and change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

#: The user of tasks that nobody submitted in anybody's name.
ANONYMOUS = "anonymous"


@final
@dataclass(frozen=True, slots=True)
class Scope:
    """One owner's tasks, or everyone's.

    Whatever reads or changes tasks for somebody requires a scope, without a default. So the type checker tells of code
    that forgot it, and not a user who saw another user's tasks.
    """

    #: The user whose tasks these are. None, in `EVERYONE` alone, leaves nobody out.
    owner: str | None

    @classmethod
    def of(cls, owner: str) -> Scope:
        """The tasks of this user."""
        return cls(owner)

    def covers(self, owner: str) -> bool:
        """Whether the tasks of this user are in it."""
        return self.owner is None or self.owner == owner


#: Every user's tasks: for repairs, workers, operators, and callers that are not told apart.
EVERYONE = Scope(None)
