"""taskframework: background tasks on RabbitMQ and MongoDB that are not lost when a process or a server dies.

The names here are for programs that use the framework; the framework itself does not import from here. Each name is
imported when it is first used, because importing all of them takes several tenths of a second.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; `_PUBLIC` is the same for Python, and a test compares them
    from taskframework.api.mounting import mount as mount
    from taskframework.blocking.framework import SyncTaskFramework as SyncTaskFramework
    from taskframework.blocking.handles import SyncBatchHandle as SyncBatchHandle
    from taskframework.blocking.handles import SyncTaskHandle as SyncTaskHandle
    from taskframework.blocking.thread import OpenedBeforeForkError as OpenedBeforeForkError
    from taskframework.client.asynchronous import TaskClient as TaskClient
    from taskframework.client.blocking import SyncTaskClient as SyncTaskClient
    from taskframework.errors import ApiError as ApiError
    from taskframework.errors import ApiUnavailableError as ApiUnavailableError
    from taskframework.errors import BrokerUnavailableError as BrokerUnavailableError
    from taskframework.errors import ConfigurationError as ConfigurationError
    from taskframework.errors import ExtraMissingError as ExtraMissingError
    from taskframework.errors import IdempotencyConflictError as IdempotencyConflictError
    from taskframework.errors import InvalidParametersError as InvalidParametersError
    from taskframework.errors import InvalidRequestError as InvalidRequestError
    from taskframework.errors import NewerVersionError as NewerVersionError
    from taskframework.errors import NonRetryableError as NonRetryableError
    from taskframework.errors import NotRunningError as NotRunningError
    from taskframework.errors import ParentFinishedError as ParentFinishedError
    from taskframework.errors import RegistrationError as RegistrationError
    from taskframework.errors import ResultTimeoutError as ResultTimeoutError
    from taskframework.errors import RetryableError as RetryableError
    from taskframework.errors import SignalsFullError as SignalsFullError
    from taskframework.errors import StoreOnlyError as StoreOnlyError
    from taskframework.errors import StoreUnavailableError as StoreUnavailableError
    from taskframework.errors import SubmissionError as SubmissionError
    from taskframework.errors import TaskFailedError as TaskFailedError
    from taskframework.errors import TaskframeworkError as TaskframeworkError
    from taskframework.errors import TaskNotFoundError as TaskNotFoundError
    from taskframework.errors import TopologyMismatchError as TopologyMismatchError
    from taskframework.errors import TransitionRefusedError as TransitionRefusedError
    from taskframework.errors import UnknownTaskTypeError as UnknownTaskTypeError
    from taskframework.errors import ValueNotStorableError as ValueNotStorableError
    from taskframework.events.external import ExternalEvent as ExternalEvent
    from taskframework.events.subscriber import EventSubscriber as EventSubscriber
    from taskframework.model.batch_status import BatchResult as BatchResult
    from taskframework.model.batch_status import BatchStatus as BatchStatus
    from taskframework.model.keys import Caller as Caller
    from taskframework.model.keys import Role as Role
    from taskframework.model.status import Priority as Priority
    from taskframework.model.status import TaskStatus as TaskStatus
    from taskframework.model.stream_results import StreamResult as StreamResult
    from taskframework.model.subtasks import at_least as at_least
    from taskframework.model.task import Task as Task
    from taskframework.model.task_fields import Signal as Signal
    from taskframework.operations.batch_handle import BatchHandle as BatchHandle
    from taskframework.operations.batches import BatchNotRetriedError as BatchNotRetriedError
    from taskframework.operations.handle import TaskHandle as TaskHandle
    from taskframework.operations.stream_handle import StreamHandle as StreamHandle
    from taskframework.runtime import TaskFramework as TaskFramework
    from taskframework.settings import Settings as Settings
    from taskframework.settings import load_settings as load_settings
    from taskframework.submission.options import BatchOptions as BatchOptions
    from taskframework.submission.options import SubmissionOptions as SubmissionOptions
    from taskframework.submission.refusals import BatchClosedError as BatchClosedError
    from taskframework.submission.refusals import BatchConflictError as BatchConflictError
    from taskframework.submission.refusals import BatchItemError as BatchItemError
    from taskframework.submission.refusals import BatchTooLargeError as BatchTooLargeError
    from taskframework.submission.refusals import StreamModeError as StreamModeError
    from taskframework.submission.refusals import VersionConflictError as VersionConflictError
    from taskframework.submission.requests import SubmitRequest as SubmitRequest
    from taskframework.tasks.context import TaskContext as TaskContext
    from taskframework.tasks.executable import BackgroundTaskExecutable as BackgroundTaskExecutable
    from taskframework.tasks.extensions import CallNext as CallNext
    from taskframework.tasks.extensions import LifespanError as LifespanError
    from taskframework.tasks.function import task as task
    from taskframework.tasks.kinds import ResultUnreadableError as ResultUnreadableError
    from taskframework.tasks.limits import ConcurrencyLimit as ConcurrencyLimit
    from taskframework.tasks.limits import QueueTimeout as QueueTimeout
    from taskframework.tasks.limits import RateLimit as RateLimit
    from taskframework.tasks.options import TaskOptions as TaskOptions
    from taskframework.tasks.resources import resource as resource
    from taskframework.tasks.retention import Retention as Retention
    from taskframework.tasks.subtasks import SubtaskOutcome as SubtaskOutcome
    from taskframework.tasks.subtasks import SubtaskSummary as SubtaskSummary
    from taskframework.tasks.subtasks import WaitForSignal as WaitForSignal
    from taskframework.wiring.subscriber import event_subscriber as event_subscriber
    from taskframework.worker.pooled_process import ExecutionFailedError as ExecutionFailedError
    from taskframework.worker.pooled_process import ProcessDiedError as ProcessDiedError

#: The public names, by the module of this package that defines them.
_PUBLIC = {
    "api.mounting": "mount",
    "blocking.framework": "SyncTaskFramework",
    "blocking.handles": "SyncBatchHandle SyncTaskHandle",
    "blocking.thread": "OpenedBeforeForkError",
    "client.asynchronous": "TaskClient",
    "client.blocking": "SyncTaskClient",
    "errors": (
        "ApiError ApiUnavailableError BrokerUnavailableError "
        "ConfigurationError ExtraMissingError IdempotencyConflictError InvalidParametersError InvalidRequestError "
        "NewerVersionError NonRetryableError NotRunningError ParentFinishedError RegistrationError ResultTimeoutError "
        "RetryableError SignalsFullError StoreOnlyError StoreUnavailableError SubmissionError TaskFailedError "
        "TaskNotFoundError TaskframeworkError TopologyMismatchError TransitionRefusedError UnknownTaskTypeError "
        "ValueNotStorableError"
    ),
    "events.external": "ExternalEvent",
    "events.subscriber": "EventSubscriber",
    "model.batch_status": "BatchResult BatchStatus",
    "model.keys": "Caller Role",
    "model.status": "Priority TaskStatus",
    "model.subtasks": "at_least",
    "model.task": "Task",
    "model.task_fields": "Signal",
    "operations.batches": "BatchNotRetriedError",
    "operations.handle": "TaskHandle",
    "runtime": "TaskFramework",
    "settings": "Settings load_settings",
    "operations.batch_handle": "BatchHandle",
    "model.stream_results": "StreamResult",
    "operations.stream_handle": "StreamHandle",
    "submission.options": "BatchOptions SubmissionOptions",
    "submission.refusals": (
        "BatchClosedError BatchConflictError BatchItemError BatchTooLargeError StreamModeError VersionConflictError"
    ),
    "submission.requests": "SubmitRequest",
    "tasks.context": "TaskContext",
    "tasks.executable": "BackgroundTaskExecutable",
    "tasks.extensions": "CallNext LifespanError",
    "tasks.function": "task",
    "tasks.kinds": "ResultUnreadableError",
    "tasks.limits": "ConcurrencyLimit QueueTimeout RateLimit",
    "tasks.options": "TaskOptions",
    "tasks.resources": "resource",
    "tasks.retention": "Retention",
    "tasks.subtasks": "SubtaskOutcome SubtaskSummary WaitForSignal",
    "wiring.subscriber": "event_subscriber",
    "worker.pooled_process": "ExecutionFailedError ProcessDiedError",
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_HOMES)


def _load(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name].startswith("api."):
        from taskframework.wiring.extras import require_extra

        require_extra("api", f"taskframework.{name}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that this function knows
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
