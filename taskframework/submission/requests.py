"""The requests to submit a task or a batch, and checks of several requests."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Unpack, overload

from typing_extensions import TypeVar  # with a default before Python 3.13

from taskframework.errors import InvalidRequestError
from taskframework.model.scope import ANONYMOUS
from taskframework.submission.acceptance import BATCH_OPTIONS, OPTIONS, refuse_unknown
from taskframework.submission.options import BatchOptions, SubmissionOptions
from taskframework.tasks.kinds import AnyTaskType, KindOf, P, type_name

R = TypeVar("R", default=Any, covariant=True)
_REQUEST_FIELDS = OPTIONS | {"task_type", "parameters", "user_id"}


@dataclass(frozen=True, slots=True, init=False)
class SubmitRequest(Generic[R]):
    """A request for one task: its type (whose result is an R), parameters, owner and options."""

    task_type: AnyTaskType
    parameters: Any = field(repr=False)
    user_id: str
    options: SubmissionOptions

    @overload
    def __init__(
        self: SubmitRequest[Any],
        *,
        task_type: str,
        parameters: Any = None,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        task_type: KindOf[None, R],
        parameters: None = None,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        task_type: KindOf[P, R],
        parameters: P,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> None: ...
    def __init__(
        self,
        *,
        task_type: AnyTaskType,
        parameters: Any = None,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> None:
        """Make a request; it is checked when it is submitted.

        Args:
            task_type: the name of a type, its class, or an instance of the class.
            parameters: a value that the type's model accepts, as JSON or as an instance.
            user_id: the owner of the task.
            options: see `SubmissionOptions`.

        Raises:
            TypeError: for an option that does not exist.
        """
        refuse_unknown("a submission", options, _REQUEST_FIELDS)
        object.__setattr__(self, "task_type", task_type)
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "user_id", ANONYMOUS if user_id is None else user_id)
        object.__setattr__(self, "options", options)


def check_several(requests: Iterable[SubmitRequest[R]]) -> list[SubmitRequest[R]]:
    """Return the requests of one call as a list.

    Raises:
        TypeError: for a single request.
    """
    if isinstance(requests, SubmitRequest):
        raise TypeError("submit_many takes a list: write submit_many([request]), or submit(...) for one task")
    if not isinstance(requests, Iterable):
        raise TypeError(f"submit_many takes a list of SubmitRequest, not a {type(requests).__name__}")
    return [*requests]


def refuse_other_items(requests: Iterable[object]) -> None:
    for index, request in enumerate(requests):
        if not isinstance(request, SubmitRequest):
            raise TypeError(
                f"Item {index} of submit_many is a {type(request).__name__}, not a SubmitRequest; "
                'write SubmitRequest(task_type="send-mail", parameters={...}).'
            )


def type_names_of(requests: Iterable[SubmitRequest]) -> set[str]:
    """Return the types that these requests name; a request without a valid name is refused later, alone."""
    names = set()
    for request in requests:
        with suppress(InvalidRequestError):
            names.add(type_name(request.task_type))
    return names


@dataclass(frozen=True, slots=True, init=False)
class BatchRequest:
    """A request for a batch: the task type of its items, the owner and the options."""

    task_type: AnyTaskType
    user_id: str
    options: BatchOptions

    def __init__(self, *, task_type: AnyTaskType, user_id: str | None = None, **options: Unpack[BatchOptions]) -> None:
        """Make a request; it is checked when it is submitted.

        Args:
            task_type: the name of a type, its class, or an instance of the class.
            user_id: the owner of the batch and its tasks.
            options: see `BatchOptions`.

        Raises:
            TypeError: for an option that does not exist.
        """
        refuse_unknown("a batch", options, BATCH_OPTIONS)
        object.__setattr__(self, "task_type", task_type)
        object.__setattr__(self, "user_id", ANONYMOUS if user_id is None else user_id)
        object.__setattr__(self, "options", options)
