"""taskframework: background tasks on RabbitMQ and MongoDB that keep their promises when things die.

The names here are for programs that use the framework; nothing inside it imports from here.
"""

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
