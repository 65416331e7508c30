"""Queues over HTTP: look, pause, let go on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from pydantic import TypeAdapter

from taskframework.api.views import CursorText
from taskframework.errors import BrokerUnavailableError
from taskframework.model.status import TaskStatus
from tests.unit.api.conftest import Api, OpenApi, problem_of

QUEUES = "/api/v1/admin/queues"


@pytest.fixture
async def working(open_api: OpenApi) -> AsyncIterator[Api]:
    async with open_api(worker=True) as api:
        yield api


async def test_a_queue_is_paused_and_goes_on(working: Api) -> None:
    fresh = {"task_type": "count-words", "is_paused": False, "paused": None, "is_running": False}
    messages = {"high": 0, "normal": 0, "low": 0}
    rates = {"in_per_second": 0.0, "out_per_second": 0.0}
    nothing = {"waiting": 0, "oldest_at": None, "running": 0, "retrying": 0, "is_bounded": False, **rates}
    traffic = {"lanes": dict.fromkeys(messages, nothing), "is_bounded": False, "is_running_bounded": False}
    assert (await working.get(f"{QUEUES}/count-words")).json() == {**fresh, "messages": messages, **traffic}
    paused = (await working.post(f"{QUEUES}/count-words/pause", json={"reason": "a bad release"})).json()
    assert (paused["is_paused"], paused["paused"]["by"]) == (True, "anonymous")
    assert paused["paused"]["reason"] == "a bad release"
    again = (await working.post(f"{QUEUES}/count-words/pause", json={"reason": "another"})).json()
    assert again == paused, "the first one stays"
    await working.framework.process.pauses.refresh()
    waiting = await working.submit()
    listed = {queue["task_type"]: queue for queue in (await working.get(QUEUES)).json()["items"]}
    assert listed["count-words"]["is_paused"]
    assert not listed["refuses"]["is_paused"]
    lane = listed["count-words"]["lanes"]["normal"]
    assert (lane["waiting"], lane["oldest_at"]) == (1, waiting["not_before"])
    assert lane["in_per_second"] == round(1 / 60, 3)
    assert (await working.framework.handle(waiting["task_id"]).task()).status is TaskStatus.QUEUED
    for _ in range(2):
        assert (await working.post(f"{QUEUES}/count-words/resume")).json()["is_paused"] is False
    assert (await working.finished(waiting))["status"] == "COMPLETED"


async def test_a_broker_that_does_not_answer_is_asked_once_for_the_whole_list(
    working: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def no_answer(task_type: str, lane: object) -> int:
        asked.append(task_type)
        raise BrokerUnavailableError("no answer in time")

    monkeypatch.setattr(working.framework.process.broker, "queue_depth", no_answer)
    listed = (await working.get(QUEUES)).json()["items"]
    assert len(listed) > 1
    assert {queue["messages"] for queue in listed} == {None}
    assert len(asked) == 1, "each question waits for seconds"


@pytest.mark.parametrize("path", [QUEUES, "/api/v1/task-types"])
async def test_the_list_of_types_has_pages_for_those_who_ask(working: Api, path: str) -> None:
    everything = [entry["task_type"] for entry in (await working.get(path)).json()["items"]]
    assert len(everything) > 3
    found, query = [], "?limit=2"
    while query:
        page = (await working.get(path + query)).json()
        assert len(page["items"]) <= 2
        found += [entry["task_type"] for entry in page["items"]]
        query = f"?limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert found == everything
    schemas = (await working.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("QueuePage", "TaskTypePage"):
        assert schemas[name]["properties"]["next_cursor"] == schemas["TaskPage"]["properties"]["next_cursor"], name


@pytest.mark.parametrize("call", ["", "/pause", "/resume"])
async def test_a_type_that_nobody_knows_is_not_found_with_the_nearest(working: Api, call: str) -> None:
    path = f"{QUEUES}/count-word{call}"
    response = await (working.post(path) if call else working.get(path))
    problem = problem_of(response, 404, "task_type_not_found")
    assert "count-words" in problem["hint"] + problem["detail"]


async def test_a_wrong_body_pauses_nothing(working: Api) -> None:
    problem_of(await working.post(f"{QUEUES}/count-words/pause", json={"why": "x"}), 422, "invalid_request")
    assert not (await working.get(f"{QUEUES}/count-words")).json()["is_paused"]


def test_a_cursor_may_be_the_name_of_a_type() -> None:
    pattern = TypeAdapter(CursorText).json_schema()["pattern"]
    assert re.search(pattern, "shop.send-mail_2")
