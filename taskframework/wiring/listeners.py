"""The list of who listens to which events."""

from __future__ import annotations

from taskframework.aggregation.state_aggregator import StateAggregatorService
from taskframework.model.events import (
    AttemptFinished,
    BatchSubmittedEvent,
    TaskCancelledEvent,
    TaskCancelRequestedEvent,
    TaskCompletedEvent,
    TaskDiscardedEvent,
    TaskEvent,
    TaskFailedEvent,
    TaskReleasedEvent,
    TaskReopenedEvent,
    TaskReplacedEvent,
    TaskReplayedEvent,
    TaskResumedEvent,
    TaskRetryingEvent,
    TaskRetryRequestedEvent,
    TaskSealedEvent,
    TaskSubmittedEvent,
    TaskUnblockedEvent,
    TaskWaitingEvent,
)
from taskframework.observability import task_log
from taskframework.wiring.process_services import ProcessServices


def register_listeners(process: ProcessServices) -> None:
    """Register all listeners, in order. The aggregator must succeed; the others observe what is already stored."""
    bus = process.services.bus
    aggregator = StateAggregatorService(process.services.moves)
    bus.listen(AttemptFinished, aggregator.on_attempt_finished, name="state_aggregator", must_succeed=True)
    if process.dispatches:
        for claimable in (
            TaskSubmittedEvent,
            TaskReplacedEvent,
            TaskRetryingEvent,
            TaskReleasedEvent,
            TaskReplayedEvent,
            TaskRetryRequestedEvent,
            TaskResumedEvent,
            TaskUnblockedEvent,
        ):
            bus.listen(claimable, process.producer.on_event, name="producer")
    if process.worker is not None:
        bus.listen(TaskCancelRequestedEvent, process.worker.heartbeat.on_cancel_requested, name="heartbeat")
    for end in (
        TaskCompletedEvent,
        TaskFailedEvent,
        TaskCancelledEvent,
        TaskRetryingEvent,
        TaskReleasedEvent,
        TaskWaitingEvent,
    ):
        bus.listen(end, process.slots.on_event, name="slots")
    for planned in (TaskWaitingEvent, BatchSubmittedEvent, TaskReopenedEvent):
        bus.listen(planned, process.spawner.on_event, name="spawner")
    bus.listen(TaskReopenedEvent, process.retrier.on_event, name="retrier")
    bus.listen(TaskWaitingEvent, process.early_signals.on_event, name="early_signals")
    for left in (TaskCompletedEvent, TaskFailedEvent, TaskCancelledEvent, TaskResumedEvent):
        bus.listen(left, process.cascade.on_event, name="cascade")
    for over in (TaskCompletedEvent, TaskFailedEvent, TaskCancelledEvent):
        bus.listen(over, process.reporter.on_event, name="reporter")
    for passing in (TaskCompletedEvent, TaskFailedEvent, TaskCancelledEvent, TaskDiscardedEvent, TaskReplayedEvent):
        bus.listen(passing, process.services.looks.on_event, name="looks")
    bus.listen(TaskSealedEvent, process.reporter.on_parent_event, name="reporter")
    bus.listen(TaskEvent, process.bridge.on_event, name="bridge")
    process.metrics.listen(bus)
    task_log.listen(bus)
