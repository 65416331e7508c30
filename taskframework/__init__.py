"""taskframework: background tasks on RabbitMQ and MongoDB that keep their promises when things die.

The names here are for programs that use the framework; nothing inside it imports from here. Each is imported when it is
first asked for, since all of them together take several tenths of a second.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskframework.errors import (
        BrokerUnavailableError,
        ConfigurationError,
        IdempotencyConflictError,
        InvalidParametersError,
        NonRetryableError,
        RegistrationError,
        ResultTimeoutError,
        RetryableError,
        StoreUnavailableError,
        SubmissionError,
        TaskFailedError,
        TaskframeworkError,
        TaskNotFoundError,
        TransitionRefusedError,
        UnknownTaskTypeError,
        ValueNotStorableError,
    )
    from taskframework.events.external import ExternalEvent
    from taskframework.events.subscriber import EventSubscriber
    from taskframework.model.status import Priority, TaskStatus
    from taskframework.model.task import Task
    from taskframework.runtime import NotRunningError, TaskFramework, event_subscriber
    from taskframework.settings import Settings, load_settings
    from taskframework.submission.handle import TaskHandle
    from taskframework.submission.service import InvalidRequestError, SubmitRequest
    from taskframework.tasks.context import TaskContext
    from taskframework.tasks.executable import BackgroundTaskExecutable
    from taskframework.tasks.options import TaskOptions

#: The module of each name below this package.
_HOMES = {
    "BackgroundTaskExecutable": "tasks.executable",
    "BrokerUnavailableError": "errors",
    "ConfigurationError": "errors",
    "EventSubscriber": "events.subscriber",
    "ExternalEvent": "events.external",
    "IdempotencyConflictError": "errors",
    "InvalidParametersError": "errors",
    "InvalidRequestError": "submission.service",
    "NonRetryableError": "errors",
    "NotRunningError": "runtime",
    "Priority": "model.status",
    "RegistrationError": "errors",
    "ResultTimeoutError": "errors",
    "RetryableError": "errors",
    "Settings": "settings",
    "StoreUnavailableError": "errors",
    "SubmissionError": "errors",
    "SubmitRequest": "submission.service",
    "Task": "model.task",
    "TaskContext": "tasks.context",
    "TaskFailedError": "errors",
    "TaskFramework": "runtime",
    "TaskHandle": "submission.handle",
    "TaskNotFoundError": "errors",
    "TaskOptions": "tasks.options",
    "TaskStatus": "model.status",
    "TaskframeworkError": "errors",
    "TransitionRefusedError": "errors",
    "UnknownTaskTypeError": "errors",
    "ValueNotStorableError": "errors",
    "event_subscriber": "runtime",
    "load_settings": "settings",
}

__all__ = [
    "BackgroundTaskExecutable",
    "BrokerUnavailableError",
    "ConfigurationError",
    "EventSubscriber",
    "ExternalEvent",
    "IdempotencyConflictError",
    "InvalidParametersError",
    "InvalidRequestError",
    "NonRetryableError",
    "NotRunningError",
    "Priority",
    "RegistrationError",
    "ResultTimeoutError",
    "RetryableError",
    "Settings",
    "StoreUnavailableError",
    "SubmissionError",
    "SubmitRequest",
    "Task",
    "TaskContext",
    "TaskFailedError",
    "TaskFramework",
    "TaskHandle",
    "TaskNotFoundError",
    "TaskOptions",
    "TaskStatus",
    "TaskframeworkError",
    "TransitionRefusedError",
    "UnknownTaskTypeError",
    "ValueNotStorableError",
    "event_subscriber",
    "load_settings",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
