"""Whose tasks a caller may see and change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

#: The owner of tasks that were submitted without naming a user.
ANONYMOUS = "anonymous"


@final
@dataclass(frozen=True, slots=True)
class Scope:
    """One owner's tasks, or everyone's.

    All code that reads or changes tasks for a caller requires a scope, without a default. So the type checker finds
    code that forgot the scope, before a user sees another user's tasks.
    """

    #: The user whose tasks these are. None, in `EVERYONE` only: the tasks of all users.
    owner: str | None

    @classmethod
    def of(cls, owner: str) -> Scope:
        """The scope with the tasks of this user.

        Raises:
            TypeError: for None, which would be the scope of everyone.
        """
        named: object = owner
        if not isinstance(named, str):
            raise TypeError(f"the owner is {named!r:.100}; use EVERYONE for the tasks of all users")
        return cls(owner)

    def covers(self, owner: str) -> bool:
        """Return whether the tasks of this user are in the scope."""
        return self.owner is None or self.owner == owner


#: Every user's tasks: for repairs, workers, operators, and callers that are not identified.
EVERYONE = Scope(None)
