"""The next task of a stream, started by the worker that passed the turn on, without a message.

The write that claims the task also unblocks it. So a task of a stream costs one write less, and no way through the
broker. `docs/decisions/0051-next-turn-in-the-worker.md` has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from taskframework.model.stream_moves import ClaimTurn
from taskframework.model.streams import Turn
from taskframework.model.task import Task, new_claim_id
from taskframework.tasks.registry import TaskRegistry
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.intake import Intake

#: One of this many tasks of a stream is sent through the broker, which gives it to any worker. Otherwise a worker that
#: is started later would get no task of the streams that run already, as long as the other workers have a free slot.
_TASKS_BETWEEN_MESSAGES = 10


class NextTurns:
    """Starts the next task of a stream in this worker, if it soon gets a slot and nothing has to be checked before."""

    def __init__(
        self,
        consumer: TaskConsumer,
        intake: Intake,
        registry: TaskRegistry,
        worker_id: str,
        lease: timedelta,
        needs_slot: Callable[[str], bool],
    ) -> None:
        """Prepare.

        Args:
            consumer: runs the tasks.
            intake: knows which types this worker takes at present.
            registry: the task types of this process.
            worker_id: the name of this worker.
            lease: how long the lease of a claim lasts.
            needs_slot: returns whether tasks of a type need a slot of a concurrency limit.
        """
        self._consumer = consumer
        self._intake = intake
        self._registry = registry
        self._worker_id = worker_id
        self._lease = lease
        self._needs_slot = needs_slot

    async def try_start(self, turn: Turn, before: Task) -> bool:
        """Start the task that got the turn.

        Args:
            turn: the turn, as the record of the stream has it.
            before: the task that had the turn before. The next one is most likely of the same type.

        Returns:
            Whether the task runs here. If not, it has to be unblocked, unless another process has done so.
        """
        if turn.position % _TASKS_BETWEEN_MESSAGES == 0 or not self._needs_no_check(before.task_type):
            return False
        claim = ClaimTurn(
            turn.task_id,
            turn.generation,
            new_claim_id(),
            self._worker_id,
            self._lease,
            before.task_type,
            before.priority,
        )
        return await self._consumer.try_start_turn(claim)

    def _needs_no_check(self, task_type: str) -> bool:
        registration = self._registry.get(task_type)
        if registration is None or registration.rate_limit is not None or self._needs_slot(task_type):
            return False
        return self._intake.takes_freely(task_type)
