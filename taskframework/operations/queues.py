"""Task types as queues: pauses a type in all workers, resumes it, and shows its waiting tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from taskframework.brokers.base import Broker
from taskframework.errors import BrokerError
from taskframework.model.message import rfc3339
from taskframework.model.pauses import PAUSE, RESUMED, Pause, Resumed
from taskframework.model.query import TaskFilter
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.status import LANES, TaskStatus
from taskframework.model.traffic import Traffic
from taskframework.operations.overview import lane_view
from taskframework.operations.traffic import read_traffic
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_contents, read_record
from taskframework.submission.types import TaskTypes

#: How long the end of a pause is remembered: much longer than the repairs need to let the queue timeouts begin again.
_END_KEPT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Queue:
    """The queues of one task type, one for each lane."""

    task_type: str
    #: The pause; None if the type is not paused.
    pause: Pause | None
    #: Whether an attempt runs in some worker.
    is_running: bool
    #: How many messages are ready in the broker, by lane; None if there is no broker to ask.
    messages: Mapping[str, int] | None
    #: How many tasks of all types wait, run, come and end.
    traffic: Traffic

    def view(self) -> dict[str, Any]:
        """Return the queue as plain JSON."""
        pause = self.pause
        return {
            "task_type": self.task_type,
            "is_paused": pause is not None,
            "paused": None if pause is None else {"by": pause.by, "at": rfc3339(pause.at), "reason": pause.reason},
            "is_running": self.is_running,
            "messages": None if self.messages is None else dict(self.messages),
            "lanes": {lane.value: lane_view(self.traffic.of_lane(self.task_type, lane)) for lane in LANES},
            "is_bounded": self.traffic.of_type(self.task_type).is_bounded,
            "is_running_bounded": self.traffic.is_running_bounded,
        }


class QueueOperations:
    """Operations on whole task types."""

    def __init__(self, store: TaskStore, types: TaskTypes) -> None:
        self._store = store
        self._types = types

    async def list_queues(self, broker: Broker | None = None) -> Sequence[Queue]:
        """Return every task type that was declared or paused, by name."""
        pauses = {pause.task_type: pause for pause in await read_all_contents(self._store, PAUSE)}
        names = pauses.keys() | set(await self._types.names())
        traffic = await read_traffic(self._store, names)
        queues = []
        for name in sorted(names):
            queues.append(await self._queue(name, pauses.get(name), broker, traffic))
            if queues[-1].messages is None:
                broker = None  # it does not answer; to ask it about each type would take seconds each time
        return queues

    async def get(self, task_type: str, broker: Broker | None = None) -> Queue:
        """Read one task type.

        Raises:
            UnknownTaskTypeError: if the type was not declared and is not paused.
        """
        record = await self._read_pause(task_type)
        if record is None:
            await self._types.require(task_type)
        pause = None if record is None else PAUSE.content(record)
        return await self._queue(task_type, pause, broker, await read_traffic(self._store, [task_type]))

    async def pause(self, task_type: str, *, by: str, reason: str | None = None) -> Pause:
        """Within two seconds no worker begins a task of this type any more. Running tasks continue, all others wait.

        Args:
            task_type: the type; if it is paused already, that pause stays.
            by: the operator.
            reason: shown to people who want to know why no task begins.

        Returns:
            The pause that is in force.

        Raises:
            UnknownTaskTypeError: if the type was not declared.
        """
        await self._types.require(task_type)
        new = Pause(task_type, by, self._store.now(), reason)
        await self._store.write_records([PAUSE.new(task_type, content=new)])
        stored = await self._read_pause(task_type)
        return new if stored is None else PAUSE.content(stored)

    async def resume(self, task_type: str) -> Pause | None:
        """Let tasks of this type begin again, in all workers within two seconds.

        Returns:
            The pause that has ended; None if the type was not paused.
        """
        pause = None
        while (record := await self._read_pause(task_type)) is not None:
            pause = PAUSE.content(record)
            await self._record_end(task_type)
            if await self._store.delete_records([record]):
                break
        return pause

    async def _record_end(self, task_type: str) -> None:
        """Record, before a pause ends, that the queue timeouts of its tasks begin again."""
        now, record_id = self._store.now(), RESUMED.id_of(task_type)
        present = await read_record(self._store, record_id)
        ended = RESUMED.with_id(record_id, present, Resumed(now), expires_at=now + _END_KEPT)
        await self._store.write_records([ended])  # if this is refused, another process has just written the same

    async def _read_pause(self, task_type: str) -> Record | None:
        return await read_record(self._store, PAUSE.id_of(task_type))

    async def _queue(self, task_type: str, pause: Pause | None, broker: Broker | None, traffic: Traffic) -> Queue:
        running = TaskFilter(status=TaskStatus.RUNNING, task_type=task_type)
        is_running = bool((await self._store.list_tasks(EVERYONE, running, limit=1)).items)
        return Queue(task_type, pause, is_running, await _messages(broker, task_type), traffic)


async def _messages(broker: Broker | None, task_type: str) -> Mapping[str, int] | None:
    if broker is None:
        return None
    try:
        return {lane.value: await broker.queue_depth(task_type, lane) or 0 for lane in LANES}
    except BrokerError:
        return None
