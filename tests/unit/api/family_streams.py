"""Streams of a family, with what they hear of it and what they do not, and readers who may be cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from taskframework.api.feed import FeedEvent, Watcher, event_frame
from taskframework.api.places import KnownTask, read_place
from taskframework.api.tree_follower import TreeFollower
from taskframework.errors import StoreUnavailableError
from taskframework.model.scope import EVERYONE
from tests.support.event_reader import Reader
from tests.unit.api.families import Family


class Wire(Watcher):
    """A watcher and its feed. Each time the stream listens, the family lives on, and some of the news arrive."""

    def __init__(self, family: Family, *, is_good: bool = False) -> None:
        """Begin to listen.

        Args:
            family: whose news.
            is_good: nothing is lost, comes twice or late, and there is no silence before the family is over.
        """
        super().__init__(EVERYONE, family.top)
        self.family = family
        self.is_good = is_good
        self.late: list[FeedEvent] = []
        family.news.clear()  # nobody listened

    def watch_subtasks(self, watcher: Watcher, task_id: str) -> None:
        self.parents.add(task_id)

    def unwatch_subtasks(self, watcher: Watcher, task_id: str) -> None:
        self.parents.discard(task_id)

    async def take(self, seconds: float) -> list[FeedEvent]:
        random, heard = self.family.random, self.late
        for _ in range(random.randint(0, 6)):
            self.family.step()
        heard += self._arrived()
        while self.is_good and seconds and not heard and not self.family.is_over:
            self.family.step()
            heard += self._arrived()
        in_time = len(heard) if self.is_good or random.random() < 0.8 else len(heard) // 2
        self.late = heard[in_time:]
        return heard[:in_time]

    def _arrived(self) -> list[FeedEvent]:
        watched = [
            FeedEvent(event, event_frame(event))
            for event in self.family.news
            if event.task_id == self.task_id or event.data["parent_task_id"] in self.parents
        ]
        self.family.news.clear()
        if self.is_good:
            return watched
        return [heard for heard in watched for _ in range(self.family.random.choice([0, *[1] * 8, 2]))]


class Script(Wire):
    """Tells what a test says, one piece after the other; then it is silent."""

    def __init__(self, family: Family, *happens: Callable[[], object]) -> None:
        super().__init__(family, is_good=True)
        self.happens = list(happens)

    async def take(self, seconds: float) -> list[FeedEvent]:
        while seconds and self.happens:
            self.happens.pop(0)()
            if heard := self._arrived():
                return heard
        return []


def follower(family: Family, reader: Reader, wire: Wire, kind: type[TreeFollower] = TreeFollower) -> TreeFollower:
    known = KnownTask(family.top)
    if reader.last_id is not None:
        beginning = kind.id_of(family.top, "")
        assert reader.last_id.startswith(beginning)
        known = read_place(family.top, reader.last_id.removeprefix(beginning), 1000)
    store: Any = family
    feed: Any = wire
    return kind(known, feed, wire, store, EVERYONE, "here")


async def follow(
    family: Family, reader: Reader, wire: Wire, *, events: int | None = None, kind: type[TreeFollower] = TreeFollower
) -> bool:
    """Read the stream until it ends, or for a number of events; whether it ended."""
    made, read, turns = follower(family, reader, wire, kind), 0, 0
    try:
        await made.begin()
    except StoreUnavailableError:
        return False  # the client is asked to come again
    frames = made.frames()
    try:
        async for chunk in frames:
            for frame in chunk.split(b"\n\n")[:-1]:
                reader.read(frame)
                read += 1
                if read == events:
                    return False
            turns += 1
            assert turns < 5000, "it ends"
    finally:
        await frames.aclose()
    assert wire.parents <= {family.top}
    return True


async def told(follower: TreeFollower) -> list[str]:
    """The events of a stream that ends, each with the task and its sequence."""
    text = b"".join([chunk async for chunk in follower.frames()]).decode()
    frames = [dict(line.split(": ", 1) for line in part.split("\n")) for part in text.split("\n\n") if part[:1] == "i"]
    return [f"{one['event']} {_subject(json.loads(one['data']))}" for one in frames]


def _subject(data: dict[str, Any]) -> str:
    return data.get("id") or f"{data['task_id']}-{data['history'][-1]['sequence']}"
