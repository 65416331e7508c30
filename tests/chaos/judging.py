"""What all rules share: what a broken promise is, and the tasks to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.chaos.story import Story, World


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    rule: str
    subject: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.what}"


def documents(world: World) -> Iterator[tuple[Story, Any]]:
    """The tasks that are there at the end, each with what was seen of it."""
    return ((story, story.document) for story in world.stories.values() if story.document is not None)
