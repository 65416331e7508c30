"""What the interface refuses is raised as inside, with the same words and the same attributes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import BaseModel, SecretStr, field_validator

from taskframework import ApiError, ApiUnavailableError, ConfigurationError, InvalidRequestError, TaskframeworkError
from taskframework.api.codes import CODES
from taskframework.api.problems import problem_of
from taskframework.api.refusals import RequestRefusedError
from taskframework.client.answers import Answer, RemoteBatch, RemoteTask, read
from taskframework.client.refusals import ERRORS_BY_CODE, error_of
from taskframework.errors import (
    IdempotencyConflictError,
    InvalidParametersError,
    ParentFinishedError,
    SignalsFullError,
    SubmissionError,
    TaskNotFoundError,
    TaskUnreadableError,
    TransitionRefusedError,
    UnknownTaskTypeError,
    ValueNotStorableError,
)
from taskframework.events.requests import address_of
from taskframework.model.batch_status import BatchStatus
from taskframework.model.query import CursorInvalidError
from taskframework.model.task_fields import Batch, Subtasks
from taskframework.model.view import public_view
from taskframework.submission.refusals import BatchClosedError, BatchConflictError, BatchTooLargeError
from taskframework.testing.factories import new_task
from tests.unit.client.conftest import Connect, problem, task, task_view

ABOUT = {"task_type": "send-mail", "key": "welcome", "task_id": "t-1", "action": "retried"}


@pytest.mark.parametrize(
    "error",
    [
        UnknownTaskTypeError("send-mail", ()),
        InvalidParametersError("send-mail", [{"field": "to.0", "message": "missing"}]),
        InvalidParametersError("send-mail", [{"field": f"to.{place}", "message": "missing"} for place in range(7)]),
        InvalidParametersError("send-mail", [{"field": "(whole)", "message": "must be an object"}]),
        ValueNotStorableError("parameters", "too deep"),
        IdempotencyConflictError("welcome", "t-1"),
        InvalidRequestError("deadline", "it has passed", "Give another."),
        CursorInvalidError(),
        SubmissionError("Not today."),
        TaskNotFoundError("t-1"),
        TransitionRefusedError("t-1", "retried", "RUNNING", hint="Only a task that is FAILED can be retried."),
        ParentFinishedError("t-1", "parent", "FAILED", hint="Retry the parent."),
        SignalsFullError("t-1", 100),
        BatchConflictError("t-1", 7, "it is another one"),
        BatchClosedError("t-1", "CANCELLED"),
        BatchTooLargeError(5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_interface_is_raised_by_the_client_unchanged(error: Any) -> None:
    told = error_of(problem_of(error).document(""), ABOUT)
    assert type(told) is type(error)
    assert (str(told), told.message, told.hint, told.args) == (str(error), error.message, error.hint, error.args)
    assert vars(told) == {**vars(error), "hint": error.hint}


def test_the_error_of_an_unreadable_task_has_its_id() -> None:
    told = error_of(problem_of(TaskUnreadableError("t-1", "schema 9")).document(""), ABOUT)
    assert isinstance(told, TaskUnreadableError)
    assert told.task_id == "t-1"


@pytest.mark.parametrize("code", sorted(CODES.keys() - ERRORS_BY_CODE.keys()))
def test_every_other_code_is_an_error_of_the_interface(code: str) -> None:
    fields = [{"field": "limit", "message": "too large"}]
    document = problem_of(RequestRefusedError("No.", hint="Go.", code=code, fields=fields)).document("")
    told = error_of(document, {})
    assert type(told) is (ApiUnavailableError if CODES[code][0] in (429, 503) else ApiError)
    assert isinstance(told, ApiError)
    assert (told.message, told.hint, told.status, told.code) == ("No.", "Go.", CODES[code][0], code)
    assert told.fields == fields


def test_every_code_that_is_known_inside_is_one_of_the_interface() -> None:
    assert ERRORS_BY_CODE.keys() <= CODES.keys()


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            httpx.Response(502, html="<p>Bad gateway</p>"),
            ApiUnavailableError,
            r"http://api/api/v1/tasks/t-1 answered 502",
        ),
        (httpx.Response(404, json={"detail": "Not Found"}), ApiError, "answered 404 Not Found, without a reason"),
        (httpx.Response(200, html="<p>Hello</p>"), ApiError, "answered with something that is not JSON"),
        (httpx.Response(200, json={"status": "ok"}), ApiError, "This is not a RemoteTask: task_id: Field required"),
        (httpx.Response(200), ApiError, "This is not a RemoteTask: the answer"),
    ],
)
async def test_an_answer_of_another_program_is_an_error_with_a_hint(
    connect: Connect, answer: httpx.Response, kind: type[ApiError], words: str
) -> None:
    with pytest.raises(kind, match=words) as told:
        await connect(answer, patience=0).client.get("t-1")
    assert told.value.hint


class Even(Answer):
    number: int

    @field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number


def test_an_answer_that_a_validator_refuses_is_an_error_with_its_message() -> None:
    with pytest.raises(ApiError) as told:
        read(Even, {"number": 3})
    assert told.value.message == "This is not a Even: number: must be even."


async def test_an_address_that_is_not_that_of_an_installation_is_named(connect: Connect) -> None:
    with pytest.raises(ApiError, match="There is nothing at http://api/api/v1/tasks/t-1") as told:
        await connect(problem(404, "not_found")).client.get("t-1")
    assert (told.value.code, "without /api/v1" in told.value.hint) == ("not_found", True)


async def test_an_answer_that_is_no_page_is_an_error(connect: Connect) -> None:
    stage = connect(httpx.Response(200, json=[]))
    with pytest.raises(ApiError, match="This is not a Page"):
        [task async for task in stage.client.list_tasks()]


async def test_parameters_that_are_no_json_are_refused_before_they_are_sent(connect: Connect) -> None:
    stage = connect()
    with pytest.raises(ValueNotStorableError):
        await stage.client.submit("count-words", object())
    with pytest.raises(ValueNotStorableError):
        await stage.client.submit("count-words", "\ud800")


class Login(BaseModel):
    ratio: float | None = None
    password: SecretStr | None = None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "nan is not a JSON number"),
        ({"ratios": [1.0, float("inf")]}, "inf is not a JSON number"),
        (Login(ratio=float("nan")), "nan is not a JSON number"),
        ({"names": {1: "a number", "1": "a text"}}, "two keys of a dictionary are the same text in JSON"),
        ([Login(password=SecretStr("hunter2"))], "a SecretStr becomes asterisks in JSON"),
    ],
)
async def test_a_value_that_would_become_another_one_is_not_sent(connect: Connect, value: Any, message: str) -> None:
    stage = connect()
    for call in (
        stage.client.submit("count-words", value),
        stage.client.submit_batch("count-words", [value]),
        stage.client.signal("some-task", "approved", value),
    ):
        with pytest.raises(ValueNotStorableError, match=message):
            await call
    [outcome] = await stage.client.submit_many([{"task_type": "count-words", "parameters": value}])
    assert isinstance(outcome, ValueNotStorableError)


def test_a_batch_has_the_fields_of_the_interface() -> None:
    batch = new_task(batch=Batch(1, items=1), subtasks=Subtasks(1, None, policy="allow_failures"))
    status = BatchStatus(batch, batch.created_at)
    assert RemoteBatch.model_fields.keys() == status.view().keys()


def test_a_task_has_the_fields_of_the_interface_and_may_get_more() -> None:
    said = "`RemoteTask` in client/answers.py has the fields of `public_view` in model/view.py"
    assert RemoteTask.model_fields.keys() == public_view(new_task()).keys(), said
    told = RemoteTask.model_validate(task_view(added_later=1))
    assert told.model_dump(mode="json").keys() == task_view().keys()
    assert issubclass(ApiError, TaskframeworkError)


@pytest.mark.parametrize("wrong", [None, 5, {"$ne": None}, b"t-1"], ids=str)
async def test_an_id_is_a_text_or_what_the_client_gave(connect: Connect, wrong: Any) -> None:
    client = connect(task()).client
    calls = (client.get, client.cancel, client.explain, client.retry, client.batch, client.cancel_batch)
    for call in (*calls, client.dead_letter):
        with pytest.raises(TypeError, match="expected an id, or a task or batch that a client has returned"):
            await call(wrong)
    given: Any = await client.get("t-1")
    stage = connect(task())
    await stage.client.cancel(given)
    assert given.task_id in stage.asked[0].url.path


async def test_one_dead_letter_is_no_list(connect: Connect) -> None:
    stage, one = connect(), "01a2-text"
    for call in (stage.client.replay(one), stage.client.discard(one, reason="why")):
        with pytest.raises(TypeError, match="for one dead letter write a list of one"):
            await call
    assert not stage.asked


async def test_a_name_that_is_no_valid_text_is_not_found(connect: Connect) -> None:
    """Where a path is made of the name, it was a UnicodeEncodeError."""
    client = connect().client
    with pytest.raises(TaskNotFoundError, match=r"There is no task 'a\\ud800'"):
        await client.get("a\ud800")
    with pytest.raises(InvalidRequestError, match="name: "):
        await client.signal("t-1", "a\ud800")


def test_an_address_that_is_no_valid_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not the address of an API"):
        address_of("http://host/\ud800")
