"""The list of all listeners and the events to which they listen."""

from __future__ import annotations

from taskframework.aggregation.state_aggregator import StateAggregatorService
from taskframework.model.events import (
    ATTEMPT_END_EVENTS,
    FINAL_EVENTS,
    AttemptFinished,
    BatchSubmittedEvent,
    TaskCancelRequestedEvent,
    TaskDiscardedEvent,
    TaskEvent,
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
        for claimable_event in (
            TaskSubmittedEvent,
            TaskReplacedEvent,
            TaskRetryingEvent,
            TaskReleasedEvent,
            TaskReplayedEvent,
            TaskRetryRequestedEvent,
            TaskResumedEvent,
            TaskUnblockedEvent,
        ):
            bus.listen(claimable_event, process.producer.on_event, name="producer")
    if process.worker is not None:
        bus.listen(TaskCancelRequestedEvent, process.worker.heartbeat.on_cancel_requested, name="heartbeat")
    for end_event in ATTEMPT_END_EVENTS:
        bus.listen(end_event, process.slots.on_event, name="slots")
    for planning_event in (TaskWaitingEvent, BatchSubmittedEvent, TaskReopenedEvent):
        bus.listen(planning_event, process.spawner.on_event, name="spawner")
    bus.listen(TaskReopenedEvent, process.retrier.on_event, name="retrier")
    bus.listen(TaskWaitingEvent, process.early_signals.on_event, name="early_signals")
    bus.listen(TaskWaitingEvent, process.reporter.on_waiting, name="reporter")
    for parent_event in (*FINAL_EVENTS, TaskResumedEvent):
        bus.listen(parent_event, process.cascade.on_event, name="cascade")
    for final_event in FINAL_EVENTS:
        bus.listen(final_event, process.reporter.on_event, name="reporter")
    for stream_event in (*FINAL_EVENTS, TaskDiscardedEvent, TaskReplayedEvent):
        bus.listen(stream_event, process.services.looks.on_event, name="looks")
    bus.listen(TaskSealedEvent, process.reporter.on_parent_event, name="reporter")
    bus.listen(TaskEvent, process.bridge.on_event, name="bridge")
    process.metrics.listen(bus)
    task_log.listen(bus)
