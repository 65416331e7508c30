"""Signals are sent once, and sub-tasks are listed to the end."""

from __future__ import annotations

import inspect
import json

import httpx
import pytest

from taskframework import IdempotencyConflictError, InvalidRequestError, TaskNotFoundError
from taskframework.api.tasks import TaskQuery
from taskframework.client import TaskClient
from taskframework.model.replays import TIMES
from tests.unit.client.conftest import Connect, problem, task, task_view


@pytest.mark.parametrize("key", [None, "mine"])
async def test_a_signal_that_is_repeated_has_one_key(connect: Connect, key: str | None) -> None:
    stage = connect(httpx.ReadError("broken"), problem(503, "stopping"), task(202))
    await stage.client.signal("t-1", "approved by", {"by": "ada"}, key=key)
    assert {request.url.raw_path for request in stage.asked} == {b"/api/v1/tasks/t-1/signals/approved%20by"}
    assert [json.loads(request.content) for request in stage.asked] == [{"by": "ada"}] * 3
    [sent] = {request.headers["idempotency-key"] for request in stage.asked}
    assert sent == (key or sent)
    assert sent


async def test_two_signals_have_two_keys(connect: Connect) -> None:
    stage = connect(task(202), task(202))
    await stage.client.signal("t-1", "go")
    await stage.client.signal("t-1", "go")
    assert stage.asked[0].content == b"null"
    assert stage.asked[0].headers["idempotency-key"] != stage.asked[1].headers["idempotency-key"]


@pytest.mark.parametrize("key", ["", "é", "a\nb"])
async def test_a_key_that_no_header_can_carry_is_refused(connect: Connect, key: str) -> None:
    with pytest.raises(InvalidRequestError, match="idempotency_key: must be 1 to 200 printable ASCII characters"):
        await connect().client.signal("t-1", "go", key=key)


async def test_a_key_of_another_signal_is_named_in_the_error(connect: Connect) -> None:
    stage = connect(problem(409, "idempotency_conflict"))
    with pytest.raises(IdempotencyConflictError) as refused:
        await stage.client.signal("t-1", "go", key="mine")
    assert (refused.value.key, refused.value.task_id) == ("mine", "t-1")


async def test_times_of_a_list_may_be_texts(connect: Connect) -> None:
    stage = connect(_page())
    assert [one async for one in stage.client.list_tasks(created_after="2026-01-01T00:00:00Z")] == []
    assert stage.asked[0].url.params["created_after"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("name", ["", "approved/by", "é"])
async def test_a_signal_name_that_no_address_can_carry_is_refused(connect: Connect, name: str) -> None:
    with pytest.raises(InvalidRequestError) as told:
        await connect().client.signal("t-1", name)
    assert told.value.field == "name"


def _page(*ids: str, after: str | None = None) -> httpx.Response:
    return httpx.Response(200, json={"items": [task_view(task_id=one) for one in ids], "next_cursor": after})


async def test_sub_tasks_come_page_by_page(connect: Connect) -> None:
    stage = connect(_page("a", "b", after="1"), httpx.ConnectError("refused"), _page("c"))
    assert [one.task_id async for one in stage.client.subtasks("t-1", status="FAILED")] == ["a", "b", "c"]
    assert [str(request.url) for request in stage.asked] == [
        "http://api/api/v1/tasks/t-1/subtasks?status=FAILED",
        *["http://api/api/v1/tasks/t-1/subtasks?status=FAILED&cursor=1"] * 2,
    ]


async def test_an_empty_page_of_a_search_has_others_behind_it(connect: Connect) -> None:
    stage = connect(_page(after="a"), _page("t-1", after="b"), _page(after="c"), _page("t-2"))
    assert [one.task_id async for one in stage.client.list_tasks(error="timed out")] == ["t-1", "t-2"]


async def test_lists_take_every_condition_that_the_api_has(connect: Connect) -> None:
    conditions = inspect.signature(TaskClient.list_tasks).parameters.keys() - {"self"}
    assert conditions == TaskQuery.model_fields.keys() - {"limit", "cursor"}
    stage = connect(_page("t-1"))
    texts = dict.fromkeys(conditions - set(TIMES), "x")
    assert [one.task_id async for one in stage.client.list_tasks(**texts)] == ["t-1"]
    assert dict(stage.asked[0].url.params) == texts


async def test_listing_sub_tasks_of_an_unknown_task_is_an_error(connect: Connect) -> None:
    with pytest.raises(TaskNotFoundError) as told:
        [one async for one in connect(problem(404, "task_not_found")).client.subtasks("t-1")]
    assert told.value.task_id == "t-1"
