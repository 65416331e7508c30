"""A client of event streams that checks what it reads, over all its connections: each event once and in order."""

from __future__ import annotations

import json
from typing import Any

import httpx


class Reader:
    """What a client has read; it stops at once when something is wrong with that."""

    def __init__(self, *, above: str | None = None, begins_at: int | None = 0) -> None:
        """Begin to read.

        Args:
            above: the task above the one that is followed.
            begins_at: the sequence of a task before the first event that is told of it; None: any, as of a batch, whose
                snapshot does not say how many events it had.
        """
        self.above = above
        self.begins_at = begins_at
        self.last_id: str | None = None
        #: By task: the last sequence and progress revision.
        self.has: dict[str, tuple[int, int]] = {}
        #: By index.
        self.items: dict[int, dict[str, Any]] = {}
        #: What the first snapshot showed, and the newest event.
        self.snapshot: dict[str, Any] = {}
        self.newest: dict[str, Any] = {}
        self.resyncs = 0
        #: There is nothing left to read.
        self.is_done = False

    def read(self, frame: bytes) -> None:
        """One event, or a comment."""
        if frame.startswith(b":"):
            return
        fields = dict(line.split(": ", 1) for line in frame.decode().split("\n"))
        data = json.loads(fields["data"])
        if fields["event"] == "resync":
            self.resyncs += 1
            return
        self.last_id = fields["id"]
        if fields["event"] == "snapshot":
            self._read_snapshot(data)
        elif fields["event"] == "item":
            assert data["index"] not in self.items, "each item once"
            self.items[data["index"]] = data
        else:
            self._read_event(data)

    def _read_snapshot(self, view: dict[str, Any]) -> None:
        assert view.get("task_id") not in self.has, "a snapshot comes first"
        self.snapshot = self.snapshot or view
        if "task_id" in view:
            self._has_parent(view)
            self.has[view["task_id"]] = (view["history"][-1]["sequence"], 0)

    def _read_event(self, event: dict[str, Any]) -> None:
        sequence, progress = self.has.get(event["subject"], (self.begins_at, 0))
        if (revision := event.get("progressrevision")) is not None:
            assert sequence in (event["sequence"], None)
            assert revision > progress, "no progress twice"
        else:
            assert sequence in (event["sequence"] - 1, None), f"{event['id']} after {sequence}"
        self._has_parent(event["data"])
        self.newest = event
        self.has[event["subject"]] = (event["sequence"], revision or 0)

    def _has_parent(self, view: dict[str, Any]) -> None:
        assert view["parent_task_id"] in (self.above, *self.has), "a task comes after the one above it"

    async def connect(self, client: httpx.AsyncClient, path: str, *, events: int | None = None) -> bool:
        """Read a stream to its end, or for a number of events and then leave; whether it ended."""
        headers = {} if self.last_id is None else {"Last-Event-ID": self.last_id}
        async with client.stream("GET", path, headers=headers) as answer:
            if answer.status_code == 204:
                self.is_done = True
                return True
            assert answer.status_code == 200, await answer.aread()
            rest, read = b"", 0
            async for part in answer.aiter_bytes():
                *frames, rest = (rest + part).split(b"\n\n")
                for frame in frames:
                    self.read(frame)
                    read += not frame.startswith(b":")
                    if read == events:
                        return False
            assert not rest, "the answer is whole"
        return True
